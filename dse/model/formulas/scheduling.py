"""Parts of a chip that rest in generation: a core takes one token of a request (Oaken 5.3), an array many rows."""

from dse.core.compiling import formula


@formula("1", "min(n_sequences, token_cores)", "Oaken 5.3: each core handles a single output token from one request")
def busy_cores(n_sequences: int, token_cores: int) -> int:
    """Cores that work in generation; a prompt keeps all of them busy, its tokens being spread over them."""
    return min(n_sequences, token_cores)


@formula("1", "min(n_rows, array_rows) / array_rows", "one cycle of a systolic array takes a row, whatever it fills")
def filled_share(n_rows: int, array_rows: int) -> float:
    """Share of a systolic array of `array_rows` rows that `n_rows` rows of activations fill.

    The array holds a tile of array_rows x array_rows weights, or of one request's keys or values, for as long as it
    would take to pass array_rows rows. A decode step passes one row a request in products with weights, and in
    attention the queries that share a head of keys and values: 1 / array_rows of it where each has a head of its own.
    """
    return min(n_rows, array_rows) / array_rows


@formula("1", "1 - 1 / busy_cores", "Oaken 5.3: engine work overlaps reads and attention of other requests")
def hideable_share(busy_cores: float) -> float:
    """Share of attention's time behind which the engines' work can hide: that of the other requests on the cores.

    Of the requests on the cores one at a time has its own keys and values pass the engine, and cannot hide that
    behind itself: alone it pays for all of it. An upper bound of what is paid: a schedule without any gap would hide
    work from two requests on. Valid for busy_cores >= 1.
    """
    return 1 - 1 / busy_cores


@formula(
    "s",
    "2 * max(half_products_s, half_attention_s), and one layer's products where attention is longer",
    "NeuPIMs (ASPLOS 2024), sub-batch interleaving: stages A to F of its authors' simulator",
)
def in_turn_s(half_products_s: float, half_attention_s: float, n_layers: int) -> float:
    """Seconds of a decode step in which one half of the batch attends while the other is multiplied with weights.

    Both are of half the batch over all layers. The first half's queries, keys and values start, and the last half's
    output ends it, with nothing beside them: a layer's products, where these are not what decides anyway. What a
    layer's attention takes more than the parts beside it at both ends is left out.
    """
    alone_s = half_products_s / n_layers if half_attention_s > half_products_s else 0.0
    return 2 * max(half_products_s, half_attention_s) + alone_s
