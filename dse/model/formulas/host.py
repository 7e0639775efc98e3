"""Time of a step outside the kernels that are modelled: small kernels of every layer, and the host of the server."""

from dse.core.compiling import formula


@formula("s", "layer * n_layers + sequence * n", "docs/explanation/calibration.md, Whole steps")
def host_s(n_sequences: float, n_layers: float, layer_s: float, sequence_s: float) -> float:
    """Seconds that a server adds to a step of `n_sequences`: what its kernels and its host do one after the other."""
    return layer_s * n_layers + sequence_s * n_sequences
