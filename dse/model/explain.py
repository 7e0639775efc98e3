"""Why a result is what it is: the formulas that a run called, with their arguments and values.

`recorded` runs the model as plain Python and notes every formula. What spans several of them is explained where the
result is declared (`dse.model.results`), from the facts of its design.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any, TypeVar

from dse.core.compiling import FORMULAS, Formula
from dse.model.engine import evaluate
from dse.model.facts import Facts
from dse.model.point import Point
from dse.model.results import RESULTS, STEPS, Result

T = TypeVar("T")

#: whole numbers that the core computes as floats
_COUNTS = frozenset({"n_sequences", "n_waves", "running_batch", "max_batch"})
#: parts of a step, which measurements of one's own server correct by a factor
STEP_PARTS = ("linear_s", "attention_s", "quantize_s", "dequantize_s", "collective_s", "host_s", "power_s")
#: formulas that give a result of another name
_RESULTS = {
    "paged_total_s": "total_s",
    "closed_loop_tokens_per_s": "throughput_tokens_per_s",
    "steady_request_s": "request_s",
}


@dataclass(frozen=True)
class Explanation:
    """One evaluated formula: result, unit, equation, the values that went in, and the source."""

    name: str
    value: Any
    unit: str
    equation: str
    source: str
    terms: Mapping[str, Any]


def _plain(name: str, number: Any) -> Any:
    """A number as people write it: counts whole, None for one that is not known."""
    if isinstance(number, float) and math.isnan(number):
        return None
    return int(number) if name in _COUNTS and number == int(number) else number


def recorded(run: Callable[[], T]) -> tuple[T, dict[str, Explanation]]:
    """Run a function: what it returns, and the first call of each formula in it, by name."""
    formulas: dict[CodeType, Formula] = {f.__code__: f for f in FORMULAS.values()}  # type: ignore[attr-defined]
    steps: dict[str, Explanation] = {}
    arguments: dict[FrameType, dict[str, Any]] = {}

    def watch(frame: FrameType, event: str, value: Any) -> None:
        formula = formulas.get(frame.f_code)
        if formula is None or _RESULTS.get(formula.__name__, formula.__name__) in steps:
            return
        if event == "call":
            arguments[frame] = dict(frame.f_locals)
        elif event == "return" and frame in arguments:
            terms = {name: _plain(name, number) for name, number in arguments.pop(frame).items()}
            name = _RESULTS.get(formula.__name__, formula.__name__)
            steps[name] = Explanation(
                name=name,
                value=_plain(name, value),
                unit=formula.unit,
                equation=formula.equation,
                source=formula.source,
                terms=terms,
            )

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        return run(), steps
    finally:
        sys.setprofile(before)


def explained(point: Point) -> tuple[dict[str, Any], dict[str, Explanation]]:
    """The results of a point and, by name, how they came about."""
    results, steps = recorded(lambda: evaluate(Point(point.device, replace(point.plan), point.work)))  # nothing kept
    facts = Facts(point, results, frozenset(steps))
    declared = (_declared(entry, facts) for entry in (*RESULTS.values(), *STEPS.values()))
    return results, steps | {step.name: step for step in declared if step}


def _declared(entry: Result, facts: Facts) -> Explanation | None:
    """The explanation that a result declares for a design; None where its formula explains it."""
    how = entry.explain(facts)
    if how is None:
        return None
    value = how.value if how.has_value else facts.results[entry.name]
    equation, terms, factor = how.equation, how.terms, facts.design.stack.token_time
    if entry.name in STEP_PARTS and value and factor != 1:
        equation, terms = f"({equation}) * own_server", {**terms, "own_server": factor}
    return Explanation(name=entry.name, value=value, unit=entry.unit, equation=equation, source=how.source, terms=terms)
