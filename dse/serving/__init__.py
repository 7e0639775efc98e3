"""Requests of unequal length: their traces, throughput in steady state, and the simulator."""
