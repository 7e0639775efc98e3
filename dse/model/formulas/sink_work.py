"""Work of SinkQ's sinks beyond their bytes: moving scores to their places, choosing sinks when a group packs."""

from dse.core.compiling import formula


@formula("B", "3 * 2 * n_q_heads * pool_rows", "SinkQ 3.2 and Appendix C: scores of the pool cover those at its places")
def sink_score_bytes(n_q_heads: float, pool_rows: float) -> float:
    """FP16 traffic of the pool's scores in one layer and step, for keys or for values.

    Keys: written by the product with the pool, read, and written over the row of scores. Values: read from the row,
    written, and read by the product. The pool and its positions are among the keys and values read.
    """
    return 6 * n_q_heads * pool_rows


@formula(
    "B", "2 * n_reads * n_tokens * n_elements", "SinkQ 3.2 and Appendix C: magnitudes of keys; means take their place"
)
def sink_choice_bytes(n_reads: float, n_tokens: float, n_elements: float) -> float:
    """FP16 traffic of choosing sinks among `n_tokens` about to be packed in one layer, for keys or for values.

    Keys are read twice, for their magnitudes and for their mean, values once, for theirs. The few rows that the means
    replace are not counted.
    """
    return 2 * n_reads * n_tokens * n_elements
