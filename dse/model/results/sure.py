"""Certainty of a design's results: measured over predicted, and the assumed numbers behind them."""

from dse.model.assumed import implementations_text, reason
from dse.model.facts import Facts
from dse.model.results.declare import NAMES, NUMBER, Derivation, Topic, how
from dse.model.results.reads import KERNELS, POOL, STACK

_HOW_SURE = "docs/explanation/model.md, How sure"

#: of a server the workload says the share
_POOL = tuple(name for name in POOL if name != "usable_frac")
topic = Topic()


def _of_energy(at: Facts) -> Derivation:
    return how("the range of the device's file over its value", _HOW_SURE)


def _of_pool(at: Facts) -> Derivation:
    pool = at.point.lowered.pool
    return how("1 + share of the device's memory / pool", pool.why if pool else _HOW_SURE)


def _of_tokens(at: Facts) -> Derivation:
    return how(f"measured over predicted: {at.point.lowered.sure.tokens.why}", _HOW_SURE)


def _of_prompts(at: Facts) -> Derivation:
    return how(f"measured over predicted: {at.point.lowered.sure.first.why}", _HOW_SURE)


def _of_kernels(at: Facts) -> Derivation:
    rule = "the end of the range over the rate itself; of several kernels the widest"
    return how(rule, implementations_text(at.point) or "docs/explanation/implementations.md")


for name, title, reads, explain in (
    ("byte_energy", "measured over predicted energy of bytes", ("energy_per_byte",), _of_energy),
    ("flop_energy", "measured over predicted energy of operations", ("energy_per_flop",), _of_energy),
    ("pool", "measured over predicted pool", _POOL, _of_pool),
    ("token_time", "measured over predicted time per token", STACK, _of_tokens),
    ("first_time", "measured over predicted time of prompts", STACK, _of_prompts),
    ("unpack_rate", "unpacking rate over what is taken", KERNELS, _of_kernels),
):
    for end in ("low", "high"):
        topic.add(f"{name}_{end}", "1", NUMBER, f"{title}, {end}", reads=reads, explain=explain)


@topic.result("", NAMES, "assumed numbers")
def assumptions(at: Facts) -> Derivation:
    rule = "numbers of kind `assumed` among those behind this result"
    reasons = {name: reason(at.point, name) for name in at.results["assumptions"]}
    return how(rule, f"dse show {at.device.name}", **reasons)
