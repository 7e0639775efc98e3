"""Records by which a result is declared: a function of its name explains it, its decorator says how it is shown."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dse.core.compiling import Formula
from dse.model.facts import Facts

#: the results of a point by name
Results = Mapping[str, Any]

#: dtypes of a result: a name, yes or no, a whole number, a number, several names
NAME, FLAG, WHOLE, NUMBER, NAMES = "name", "flag", "whole", "number", "names"

#: intervals of a result over what is predicted: those of a server's pool, of times per token, of times of prompts, of
#: what all of a request's time is in, of what falls as that grows, of energy by parts
POOLED, PER_TOKEN, PROMPTS, SERVED, RATES, ENERGY = "pool", "per token", "prompts", "served", "rates", "energy"

#: sections of a point's text
SECTIONS = ("Memory", "Bits per element", "Time", "Throughput")
#: sections that follow them: measurements of the quantizers, and intervals of the results
MEASURED, INTERVALS = "Measured on", "How sure"


def always(_: Results) -> bool:
    """Hold for every design."""
    return True


def of_server(results: Results) -> bool:
    """Hold where memory is counted as a server takes it."""
    return bool(results["memory"] == "server")


def of_host(results: Results) -> bool:
    """Hold where the times of a server beside its kernels were measured."""
    return bool(results["host_s"])


class TextLine(NamedTuple):
    """A line of a point's text: section, place there, words ("": the title), and the designs that show it."""

    section: str
    place: float
    words: str = ""
    shown: Callable[[Results], bool] = always


@dataclass(frozen=True)
class Derivation:
    """Derivation of a number: equation, source, and the numbers that went in; of a step its value, too."""

    equation: str
    source: str
    terms: Mapping[str, Any]
    value: Any = None
    has_value: bool = False

    def giving(self, value: Any) -> "Derivation":
        """Derive a number that is not the result of its name."""
        return replace(self, value=value, has_value=True)


def how(equation: str, source: str, /, **terms: Any) -> Derivation:
    """Explain a number by an equation."""
    return Derivation(equation, source, terms)


def by(formula: Formula, /, **terms: Any) -> Derivation:
    """Explain a number by the equation and source of a formula."""
    return Derivation(formula.equation, formula.source, terms)


#: a function of a result's name that explains it; None where the formula of that name does
Explain = Callable[[Facts], Derivation | None]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A named result of a design, in base units; or a step on the way to one."""

    name: str
    #: base unit; "" for names and yes/no
    unit: str
    dtype: str
    #: the words on an axis or above a column; no two are the same
    title: str = ""
    #: the lines of a point's text that show it
    lines: tuple[TextLine, ...] = ()
    #: numbers of a device that its formulas read; none: it depends on the model and the workload alone
    reads: tuple[str, ...] = ()
    #: the interval of its value over what is predicted
    interval: str = ""
    #: unit of figures, where it is not the usual one of the base unit
    figure_unit: str = ""
    #: of what a design is asked for with: how its value is chosen
    chosen: str = ""
    #: its explanation for a design; None where the formula of its name explains it
    explain: Explain = lambda _: None


@dataclass(frozen=True)
class Topic:
    """Results of one topic, in the order of tables, and steps on the way to them."""

    #: True where they are times, which a design has that holds one request at least
    of_times: bool = False
    results: list[Result] = field(default_factory=list)
    steps: list[Result] = field(default_factory=list)

    def add(self, name: str, unit: str, dtype: str, title: str, *lines: TextLine, **more: Any) -> None:
        """Declare a result that its formula explains, or that is given."""
        self.results.append(Result(name=name, unit=unit, dtype=dtype, title=title, lines=lines, **more))

    def result(
        self, unit: str, dtype: str, title: str, *lines: TextLine, reads: tuple[str, ...] = (), **more: str
    ) -> Callable[[Explain], None]:
        """Declare the result of the function's name, which the function explains."""
        return lambda explain: self.add(
            explain.__name__, unit, dtype, title, *lines, reads=reads, explain=self._where(explain), **more
        )

    def step(self, unit: str) -> Callable[[Explain], None]:
        """Declare a step on the way to results, which the function explains."""
        return lambda explain: self.steps.append(
            Result(name=explain.__name__, unit=unit, dtype=NUMBER, explain=self._where(explain))
        )

    def _where(self, explain: Explain) -> Explain:
        return (lambda at: explain(at) if at.fits else None) if self.of_times else explain
