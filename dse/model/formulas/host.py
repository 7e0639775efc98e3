"""Time of a step outside the kernels that are modelled: small kernels of every layer, and the host of the server."""

from dse.core.compiling import formula

_SOURCE = "docs/explanation/calibration.md, Whole steps"


@formula("s", "layer * n_layers + sequence * n", _SOURCE)
def host_s(n_sequences: float, n_layers: float, layer_s: float, sequence_s: float) -> float:
    """Seconds that a server adds to a step of `n_sequences`: what its kernels and its host do one after the other."""
    return layer_s * n_layers + sequence_s * n_sequences


@formula("s", "prompt_s - blocks_s + request_s * n", _SOURCE)
def start_s(n_running: float, prompt_s: float, blocks_s: float, request_s: float) -> float:
    """Seconds that a server's host adds to a first token while others go on: of its prompt, but for what of it keeps
    all waiting in a step, and of each request that runs, since one process serves them all."""
    return prompt_s - blocks_s + request_s * n_running
