"""Tokens that are stored and read, bits per element, and what was measured of the quantizers."""

from dse.model import quality
from dse.model.facts import Facts
from dse.model.formulas import tokens
from dse.model.measured import how_measured
from dse.model.results.declare import MEASURED, NAME, NUMBER, Derivation, TextLine, Topic, how

_BITS, _KV, _SECTION = "docs/explanation/model.md, Bits", "docs/explanation/model.md, KV bytes", "Bits per element"
_SAMPLE = "SmolLM2-135M with the format in the loop, dse/data/smollm2.scores.csv"

topic = Topic()


def _tokens(at: Facts, equation: str) -> Derivation:
    return how(
        f"mean over layers of {equation} at the final length",
        at.work.token_policy.family.source,
        n_tokens=at.n_tokens,
        prompt_kept_tokens=min(at.limits.prompt_kept_tokens, at.work.input_tokens),
        dropped_tokens=at.limits.dropped_tokens,
        **at.windows(),
    )


@topic.result("token", NUMBER, "stored tokens")
def stored_tokens(at: Facts) -> Derivation:
    return _tokens(at, tokens.stored_tokens.equation)


@topic.result("token", NUMBER, "tokens read")
def read_tokens(at: Facts) -> Derivation:
    return _tokens(at, tokens.read_tokens.equation)


@topic.result("bit", NUMBER, "effective bits", TextLine(_SECTION, 1, "effective bits, as the paper counts"))
def effective_bits(at: Facts) -> Derivation:
    return how(
        "element-weighted mean of what the methods' papers count",
        at.quantizers["key"].family.source,
        **at.of_groups((g, "bits", float(g.layout.effective_bits)) for g in at.plan.groups),
    )


topic.add("stored_bits", "bit", NUMBER, "stored bits", TextLine(_SECTION, 2), reads=("kv_page",))


@topic.result("bit", NUMBER, "bits left unused in pages", reads=("kv_page",))
def page_tail_bits(at: Facts) -> Derivation:
    return how(
        "unused bits of last pages at the final length / elements; counted in stored_bits as padding"
        + ("; tables of pages beside them are not counted, as no width of an entry is printed" if at.tables() else ""),
        _KV,
        n_tokens=at.n_tokens,
        n_elements=at.made.n_elements,
        page_tokens=at.point.page_tokens if at.work.kv_cache else 1,
        page_bytes=at.device.kv_page.count if at.device.kv_page else None,
        **at.tables(),
    )


@topic.result("1", NUMBER, "written over packed", reads=("kv_burst",))
def write_amplification(at: Facts) -> Derivation:
    return how(
        "bytes the memory takes for one new token / bytes packed, slices of a head rounded up to bursts; none "
        "without an engine or a burst",
        _KV,
        burst_bytes=at.device.kv_burst.count if at.device.kv_burst else None,
        **at.slices(),
    )


@topic.result("", NAME, "bits from")
def bits_kind(at: Facts) -> Derivation:
    return how("closed: nominal shares; measured: shares that data realised", _BITS)


def _measured(at: Facts, name: str) -> Derivation:
    rule, source, numbers = how_measured(at.plan, at.results[name])
    return how(rule, source, **numbers)


@topic.result("bit", NUMBER, "measured bits", TextLine(MEASURED, 1, "measured bits, at the data's lengths"))
def measured_bits(at: Facts) -> Derivation:
    return _measured(at, "measured_bits")


@topic.result("1", NUMBER, "mean squared error", TextLine(MEASURED, 2, "mean squared error, packed elements"))
def mse(at: Facts) -> Derivation:
    return _measured(at, "mse")


@topic.result("dB", NUMBER, "signal to noise", TextLine(MEASURED, 3))
def sqnr_db(at: Facts) -> Derivation:
    return _measured(at, "sqnr_db")


@topic.result(
    "1",
    NUMBER,
    "error of the attention output",
    TextLine(MEASURED, 4, "", lambda results: results["measured_error"] is not None),
    figure_unit="%",
)
def measured_error(at: Facts) -> Derivation:
    return _measured(at, "measured_error")


@topic.result("", NAME, "measured on")
def measured_on(at: Facts) -> Derivation:
    return _measured(at, "measured_on")


@topic.result("nat", NUMBER, "divergence on the sample")
def sample_kl_nats(at: Facts) -> Derivation:
    return _on_sample(at, "kl_nats", "mean over texts of the mean sum p ln(p / p'), p of 16 bits")


@topic.result("1", NUMBER, "perplexity", figure_unit="%")
def sample_perplexity_frac(at: Facts) -> Derivation:
    return _on_sample(at, "perplexity_frac", "e to the mean over texts of ln(perplexity / that of 16 bits), less 1")


def _on_sample(at: Facts, name: str, equation: str) -> Derivation:
    score = quality.sample_score(at.plan)
    if score is None:
        return how("not measured; dse measure --perplexity takes a model of your own", _SAMPLE)
    spread = getattr(score, name)
    return how(equation, _SAMPLE, n_texts=score.n_texts, least=spread.low, greatest=spread.high)


@topic.result("1", NUMBER, "accuracy loss", figure_unit="%")
def score_drop_frac(at: Facts) -> Derivation:
    return _published(at, "largest mean over families of tasks that have an interval; at least 0")


@topic.result("1", NUMBER, "accuracy loss, low", figure_unit="%")
def score_drop_low_frac(at: Facts) -> Derivation:
    return _published(at, "highest low end (95 %) of any family of tasks")


@topic.result("1", NUMBER, "accuracy loss, high", figure_unit="%")
def score_drop_high_frac(at: Facts) -> Derivation:
    return _published(at, "high end (95 %) of the largest mean, or of a family that is told where that is higher")


def _published(at: Facts, equation: str) -> Derivation:
    drop = quality.published_drop(at.plan)
    if drop is None:
        return how("no score was published", "dse scores")
    nearest = f"{equation}; a family by the model's own scores, else by the nearest that tell it"
    source = f"dse scores {at.plan.key_quantizer.name}: {', '.join(drop.loss.models)}"
    counts = {"n_rows": drop.loss.n_rows, "n_sources": drop.loss.n_sources}
    return how(nearest, source, tasks=drop.loss.family, loss=drop.loss.loss, within=drop.loss.within, **counts)


@topic.result("", NAME, "drop from")
def score_drop_of(at: Facts) -> Derivation:
    return how("models and tasks of the published scores", "dse scores")


@topic.step("bit")
def bit_ledger(at: Facts) -> Derivation:
    parts = {part: float(bits / at.made.n_elements) for part, bits in at.point.ledger(at.n_tokens).items() if bits}
    equation = "payload + scales + ... + padding, at the final length"
    return how(equation, _BITS, **parts).giving(at.results["stored_bits"])
