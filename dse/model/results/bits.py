"""Tokens that are stored and read, bits per element, and what was measured of the quantizers."""

from typing import TYPE_CHECKING

from dse.model import quality
from dse.model.formulas import tokens
from dse.model.results.declare import MEASURED, NAME, NUMBER, Derivation, TextLine, Topic, how

if TYPE_CHECKING:
    from dse.model.facts import Facts

_BITS, _KV, _SECTION = "docs/explanation/model.md, Bits", "docs/explanation/model.md, KV bytes", "Bits per element"
_SAMPLE = "SmolLM2-135M with the format in the loop, dse/data/smollm2.scores.csv"

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


@topic.result("nat", NUMBER, "divergence on the sample")
def sample_kl_nats(at: "Facts") -> Derivation:
    return _on_sample(at, "kl_nats", "mean over texts of the mean sum p ln(p / p'), p of 16 bits")


@topic.result("1", NUMBER, "perplexity on the sample", figure_unit="%")
def sample_perplexity_frac(at: "Facts") -> Derivation:
    return _on_sample(at, "perplexity_frac", "e to the mean over texts of ln(perplexity / that of 16 bits), less 1")


def _on_sample(at: "Facts", name: str, equation: str) -> Derivation:
    score = quality.sample_score(at.plan)
    if score is None:
        return how("not measured; dse measure --perplexity takes a model of your own", _SAMPLE)
    spread = getattr(score, name)
    return how(equation, _SAMPLE, n_texts=score.n_texts, least=spread.low, greatest=spread.high)


@topic.result("1", NUMBER, "drop of scores", figure_unit="%")
def score_drop_frac(at: "Facts") -> Derivation:
    said = quality.published_drop(at.plan)
    if said is None:
        return how("sample_perplexity_frac, as no score was published; at least 0", _SAMPLE)
    equation = "largest loss over families of tasks, each by the scores nearest to the model that tell it; at least 0"
    source = f"dse scores {at.plan.key_quantizer.name}: {', '.join(said.models)}"
    counts = {"n_rows": said.n_rows, "n_sources": said.n_sources}
    return how(equation, source, tasks=said.family, loss=said.loss, within=said.within, **counts)


@topic.result("", NAME, "drop from")
def score_drop_of(at: "Facts") -> Derivation:
    return how("published, else measured on the sample", "dse scores; dse/data/smollm2.scores.csv")


@topic.step("bit")
def bit_ledger(at: "Facts") -> Derivation:
    parts = {part: float(bits / at.made.n_elements) for part, bits in at.ledger.items() if bits}
    equation = "payload + scales + ... + padding, at the final length"
    return how(equation, _BITS, **parts).giving(at.results["stored_bits"])
