"""How sure a design's results are: measured over predicted, and the assumed numbers behind them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dse.model.results.declare import NAMES, NUMBER, How, Result
from dse.model.results.reads import KERNELS, STACK

if TYPE_CHECKING:
    from dse.model.facts import Facts

_HOW_SURE = "docs/explanation/model.md, How sure"


def _ratio(
    name: str,
    title: str,
    equation: "str | Callable[[Facts], str]",
    reads: tuple[str, ...],
    source: "str | Callable[[Facts], str]" = _HOW_SURE,
) -> tuple[Result, Result]:
    """Declare both ends of a ratio."""
    how = How(equation=equation, source=source)
    low, high = (
        Result(f"{name}_{end}", "1", NUMBER, f"{title}, {end}", reads=reads, how=(how,)) for end in ("low", "high")
    )
    return low, high


_RANGE = "the range of the device's file over its value"

RESULTS = (
    *_ratio("byte_energy", "measured over predicted energy of bytes", _RANGE, ("energy_per_byte",)),
    *_ratio("flop_energy", "measured over predicted energy of operations", _RANGE, ("energy_per_flop",)),
    *_ratio(
        "token_time",
        "measured over predicted time per token",
        lambda at: f"measured over predicted: {at.sure.tokens.why}",
        STACK,
    ),
    *_ratio(
        "first_time",
        "measured over predicted time of prompts",
        lambda at: f"measured over predicted: {at.sure.first.why}",
        STACK,
    ),
    *_ratio(
        "unpack_rate",
        "unpacking rate over what is taken",
        "the end of the range over the rate itself; of several kernels the widest",
        KERNELS,
        lambda at: at.implementations or "docs/explanation/implementations.md",
    ),
    Result(
        "assumptions",
        "",
        NAMES,
        "assumed numbers",
        how=(
            How(
                equation="numbers of kind `assumed` among those behind this result",
                source=lambda at: f"dse show {at.device.name}",
                terms=lambda at: at.reasons(),
            ),
        ),
    ),
)
