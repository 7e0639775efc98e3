"""A record of the formulas behind a result, so that any number can be explained."""

from dataclasses import dataclass, field
from typing import Any

from dse.formulas import Formula


@dataclass(frozen=True)
class Step:
    """One evaluated formula: result, unit, equation, the values that went in, and the source."""

    name: str
    value: Any
    unit: str
    equation: str
    source: str
    terms: dict[str, Any]


@dataclass
class Trace:
    """Collects steps by result name when `keep` is true; otherwise it only calls."""

    keep: bool = False
    steps: dict[str, Step] = field(default_factory=dict)

    def call(self, name: str, function: Formula, **terms: Any) -> Any:
        """Evaluate a formula on its terms, remembering it under `name`."""
        value = function(**terms)
        if self.keep:
            self.steps[name] = Step(
                name,
                value,
                function.unit,
                function.equation,
                function.source,
                terms,
            )
        return value

    def note(self, name: str, value: Any, unit: str, equation: str, source: str, **terms: Any) -> Any:
        """Remember a value whose equation spans several formulas."""
        if self.keep:
            self.steps[name] = Step(name, value, unit, equation, source, terms)
        return value
