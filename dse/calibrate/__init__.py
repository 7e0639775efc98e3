"""Measured times of kernels, and the parameters of a software stack that fit them."""
