"""Golden vectors against kernels_ref: `python -m kernels_ref.conformance DIR` compares every value of a directory."""
