"""The options of a measurement of a KV dump, beside the file and the quantizers."""

from dataclasses import dataclass

from dse.core.field import BYTES, NUMBER, SWITCH, WHOLE, declared
from dse.measure import MAX_BYTES


@dataclass(frozen=True)
class MeasureOptions:
    """Options of a measurement of a KV dump, beside the file and the quantizers."""

    thresholds: str | None = declared(None, help="Oaken's thresholds, from `dse thresholds`.", metavar="T.toml")
    contexts: str | None = declared(
        None, help="Context lengths; default: powers of two from 64, and the whole.", metavar="A,B"
    )
    n_queries: int = declared(
        16, kind=WHOLE, name="queries", help="Queries of each head that attention is measured with; 0: no attention."
    )
    query_places: str = declared(
        "last",
        help="Where they stand: at the end, as in generation, or over the context, as in a prompt.",
        metavar="last|spread",
    )
    seed: int = declared(0, kind=WHOLE, help="Of queries drawn where none were dumped.")
    model: str = declared(
        "",
        help="The model that the dump comes from, for the record; with --perplexity its file or directory.",
        shows_default=False,
    )
    rope: str | None = declared(
        None, help="Keys and queries after or before RoPE; none: no RoPE.", metavar="after|before|none"
    )
    theta: float | None = declared(
        None, kind=NUMBER, name="rope-theta", help="Base of RoPE, for keys before it.", metavar="N"
    )
    n_heads: int | None = declared(None, kind=WHOLE, name="heads", help="Heads of tensors [tokens, channels].")
    nonfinite: str = declared(
        "raise",
        help="What to do with NaN and infinities: refuse, or take them as 0 and +-65504.",
        metavar="raise|replace",
    )
    partial: bool = declared(False, kind=SWITCH, help="Take a dump that lacks layers, keys or values.")
    synthetic: bool = declared(False, kind=SWITCH, help="Mark the measurement as one of synthetic data.")
    max_bytes: int = declared(MAX_BYTES, kind=BYTES, help="Largest size of one layer.")
