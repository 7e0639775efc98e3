"""Tokens that are stored and read, bits per element, and what was measured of the quantizers."""

from typing import TYPE_CHECKING

from dse.model.formulas import tokens
from dse.model.results.declare import MEASURED, NAME, NUMBER, Derivation, TextLine, Topic, how

if TYPE_CHECKING:
    from dse.model.facts import Facts

_BITS, _KV, _SECTION = "docs/explanation/model.md, Bits", "docs/explanation/model.md, KV bytes", "Bits per element"

topic = Topic()


def _tokens(at: "Facts", equation: str) -> Derivation:
    return how(
        f"mean over layers of {equation} at the final length",
        at.work.token_policy.family.source,
        n_tokens=at.n_tokens,
        prompt_kept_tokens=min(at.limits.prompt_kept_tokens, at.work.input_tokens),
        dropped_tokens=at.limits.dropped_tokens,
        **at.windows(),
    )


@topic.result("token", NUMBER, "stored tokens")
def stored_tokens(at: "Facts") -> Derivation:
    return _tokens(at, tokens.stored_tokens.equation)


@topic.result("token", NUMBER, "tokens read")
def read_tokens(at: "Facts") -> Derivation:
    return _tokens(at, tokens.read_tokens.equation)


@topic.result("bit", NUMBER, "effective bits", TextLine(_SECTION, 1, "effective (as the paper counts)"))
def effective_bits(at: "Facts") -> Derivation:
    return how(
        "element-weighted mean of what the methods' papers count",
        at.quantizers["key"].family.source,
        **at.of_groups((g, "bits", float(g.layout.effective_bits)) for g in at.plan.groups),
    )


topic.add("stored_bits", "bit", NUMBER, "stored bits", TextLine(_SECTION, 2, "stored"), reads=("kv_page",))


@topic.result("bit", NUMBER, "bits left unused in pages", reads=("kv_page",))
def page_tail_bits(at: "Facts") -> Derivation:
    return how(
        "unused bits of last pages at the final length / elements; counted in stored_bits as padding",
        _KV,
        n_tokens=at.n_tokens,
        n_elements=at.made.n_elements,
        page_tokens=at.point.page_tokens if at.work.kv_cache else 1,
        page_bytes=at.device.kv_page.count if at.device.kv_page else None,
    )


@topic.result("1", NUMBER, "written over packed", reads=("kv_burst",))
def write_amplification(at: "Facts") -> Derivation:
    return how(
        "bytes the memory takes for one new token / bytes packed, slices of a head rounded up to bursts; none "
        "without an engine or a burst",
        _KV,
        burst_bytes=at.device.kv_burst.count if at.device.kv_burst else None,
        **at.slices(),
    )


@topic.result("", NAME, "bits from")
def bits_kind(at: "Facts") -> Derivation:
    return how("closed: nominal shares; measured: shares that data realised", _BITS)


@topic.result("bit", NUMBER, "measured bits", TextLine(MEASURED, 1, "stored, at the data's lengths"))
def measured_bits(at: "Facts") -> Derivation:
    return at.measured("measured_bits")


@topic.result("1", NUMBER, "mean squared error", TextLine(MEASURED, 2, "mean squared error, packed elements"))
def mse(at: "Facts") -> Derivation:
    return at.measured("mse")


@topic.result("dB", NUMBER, "signal to noise", TextLine(MEASURED, 3, "signal to quantization noise"))
def sqnr_db(at: "Facts") -> Derivation:
    return at.measured("sqnr_db")


@topic.result(
    "1",
    NUMBER,
    "error of the attention output",
    TextLine(MEASURED, 4, "relative error of the attention output", lambda found: found["measured_error"] is not None),
    figure_unit="%",
)
def measured_error(at: "Facts") -> Derivation:
    return at.measured("measured_error")


@topic.result("", NAME, "measured on")
def measured_on(at: "Facts") -> Derivation:
    return at.measured("measured_on")


@topic.step("bit")
def bit_ledger(at: "Facts") -> Derivation:
    parts = {part: float(bits / at.made.n_elements) for part, bits in at.ledger.items() if bits}
    equation = "payload + scales + ... + padding, at the final length"
    return how(equation, _BITS, **parts).giving(at.results["stored_bits"])
