"""Tokens that are stored and read, bits per element, and what was measured of the quantizers."""

from dse.model.formulas import tokens
from dse.model.results.declare import MEASURED, NAME, NUMBER, How, Line, Result

_BITS, _KV = "docs/explanation/model.md, Bits", "docs/explanation/model.md, KV bytes"


def _tokens(name: str, title: str, equation: str) -> Result:
    """Declare tokens of one request, a mean over layers."""
    how = How(
        equation=f"mean over layers of {equation} at the final length",
        source=lambda at: at.work.token_policy.family.source,
        terms=lambda at: {
            "n_tokens": at.n_tokens,
            "prompt_kept_tokens": min(at.limits.prompt_kept_tokens, at.work.input_tokens),
            "dropped_tokens": at.limits.dropped_tokens,
            **at.windows(),
        },
    )
    return Result(name, "token", NUMBER, title, how=(how,))


def _measured(name: str, unit: str, dtype: str, title: str, line: Line | None = None, figure_unit: str = "") -> Result:
    """Declare a number of a measurement of the quantizers."""
    how = How(
        equation=lambda at: at.measured(name)[0],
        source=lambda at: at.measured(name)[1],
        terms=lambda at: at.measured(name)[2],
    )
    return Result(name, unit, dtype, title, lines=(line,) if line else (), figure_unit=figure_unit, how=(how,))


RESULTS = (
    _tokens("stored_tokens", "stored tokens", tokens.stored_tokens.equation),
    _tokens("read_tokens", "tokens read", tokens.read_tokens.equation),
    Result(
        "effective_bits",
        "bit",
        NUMBER,
        "effective bits",
        lines=(Line(section="Bits per element", place=1, words="effective (as the paper counts)"),),
        how=(
            How(
                equation="element-weighted mean of what the methods' papers count",
                source=lambda at: at.quantizers["key"].family.source,
                terms=lambda at: at.of_groups((g, "bits", float(g.layout.effective_bits)) for g in at.plan.groups),
            ),
        ),
    ),
    Result(
        "stored_bits",
        "bit",
        NUMBER,
        "stored bits",
        lines=(Line(section="Bits per element", place=2, words="stored"),),
        reads=("kv_page",),
    ),
    Result(
        "page_tail_bits",
        "bit",
        NUMBER,
        "bits left unused in pages",
        reads=("kv_page",),
        how=(
            How(
                equation=(
                    "unused bits of last pages at the final length / elements; counted in stored_bits as padding"
                ),
                source=_KV,
                terms=lambda at: dict(
                    n_tokens=at.n_tokens,
                    n_elements=at.made.n_elements,
                    page_tokens=at.point.page_tokens if at.work.kv_cache else 1,
                    page_bytes=at.device.kv_page.count if at.device.kv_page else None,
                ),
            ),
        ),
    ),
    Result(
        "write_amplification",
        "1",
        NUMBER,
        "written over packed",
        reads=("kv_burst",),
        how=(
            How(
                equation=(
                    "bytes the memory takes for one new token / bytes packed, slices of a head rounded up to bursts; "
                    "none without an engine or a burst"
                ),
                source=_KV,
                terms=lambda at: {
                    "burst_bytes": at.device.kv_burst.count if at.device.kv_burst else None,
                    **at.slices(),
                },
            ),
        ),
    ),
    Result(
        "bits_kind",
        "",
        NAME,
        "bits from",
        how=(How(equation="closed: nominal shares; measured: shares that data realised", source=_BITS),),
    ),
    _measured(
        "measured_bits",
        "bit",
        NUMBER,
        "measured bits",
        Line(section=MEASURED, place=1, words="stored, at the data's lengths"),
    ),
    _measured(
        "mse",
        "1",
        NUMBER,
        "mean squared error",
        Line(section=MEASURED, place=2, words="mean squared error, packed elements"),
    ),
    _measured(
        "sqnr_db",
        "dB",
        NUMBER,
        "signal to noise",
        Line(section=MEASURED, place=3, words="signal to quantization noise"),
    ),
    _measured(
        "measured_error",
        "1",
        NUMBER,
        "error of the attention output",
        Line(
            section=MEASURED,
            place=4,
            words="relative error of the attention output",
            shown=lambda results: results["measured_error"] is not None,
        ),
        "%",
    ),
    _measured("measured_on", "", NAME, "measured on"),
)

STEPS = (
    Result(
        "bit_ledger",
        "bit",
        NUMBER,
        how=(
            How(
                equation="payload + scales + ... + padding, at the final length",
                source=_BITS,
                terms=lambda at: {part: float(bits / at.made.n_elements) for part, bits in at.ledger.items() if bits},
                value=lambda at: at.results["stored_bits"],
            ),
        ),
    ),
)
