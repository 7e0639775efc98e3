"""Token-level scheduling: in generation a core works on one token of one request (Oaken 5.3)."""

from dse.core.compiling import formula


@formula("1", "min(n_sequences, token_cores)", "Oaken 5.3: each core handles a single output token from one request")
def busy_cores(n_sequences: int, token_cores: int) -> int:
    """Cores that work in generation; a prompt keeps all of them busy, its tokens being spread over them."""
    return min(n_sequences, token_cores)


@formula("1", "1 - 1 / busy_cores", "Oaken 5.3: engine work overlaps reads and attention of other requests")
def hideable_share(busy_cores: float) -> float:
    """Share of attention's time behind which the engines' work can hide: that of the other requests on the cores.

    Of the requests on the cores one at a time has its own keys and values pass the engine, and cannot hide that
    behind itself: alone it pays for all of it. An upper bound of what is paid: a schedule without any gap would hide
    work from two requests on. Valid for busy_cores >= 1.
    """
    return 1 - 1 / busy_cores
