"""Quantizers on real tensors: bits and errors of dumps, of synthetic data and of small language models."""
