"""The records by which a result is declared: its line in a point's text, how it is explained, and the result itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dse.core.compiling import Formula

if TYPE_CHECKING:
    from dse.model.facts import Facts

#: the results of a point by name
Results = Mapping[str, Any]

#: dtypes of a result: a name, yes or no, a whole number, a number, several names
NAME, FLAG, WHOLE, NUMBER, NAMES = "name", "flag", "whole", "number", "names"

#: intervals of a result over what is predicted: that of times per token, its inverse, that of prompts, of energy
PER_TOKEN, RATES, PROMPTS, ENERGY = "per token", "rate", "prompts", "energy"

#: sections of a point's text
SECTIONS = ("Memory", "Bits per element", "Time", "Throughput")
#: sections that follow them: what was measured of the quantizers, and intervals of the results
MEASURED, INTERVALS = "Measured on", "How sure"


def always(_: Any) -> bool:
    """Hold for every design."""
    return True


def of_server(results: Results) -> bool:
    """Hold where memory is counted as a server takes it."""
    return bool(results["memory"] == "server")


def of_host(results: Results) -> bool:
    """Hold where the times of a server beside its kernels were measured."""
    return bool(results["host_s"])


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a point's text: its section, its place there, its words, and the designs that show it."""

    section: str
    place: int
    #: "" for the title
    words: str = ""
    shown: Callable[[Results], bool] = always


@dataclass(frozen=True, kw_only=True)
class How:
    """How a result comes about: equation, source, and the numbers that went in."""

    equation: "str | Callable[[Facts], str]"
    source: "str | Callable[[Facts], str]"
    terms: "Callable[[Facts], Mapping[str, Any]]" = lambda _: {}
    #: designs that this explanation is for
    where: "Callable[[Facts], bool]" = always
    #: the number that is explained, where it is not the result itself
    value: "Callable[[Facts], Any] | None" = None


def by(
    formula: Formula,
    terms: "Callable[[Facts], Mapping[str, Any]]",
    where: "Callable[[Facts], bool]" = always,
    value: "Callable[[Facts], Any] | None" = None,
) -> How:
    """Explain a result by the equation and source of a formula."""
    return How(equation=formula.equation, source=formula.source, terms=terms, where=where, value=value)


@dataclass(frozen=True)
class Result:
    """A named result of a design, in base units; or, outside RESULTS, a step on the way to one.

    `title`: the words on an axis or above a column; no two are the same.
    """

    name: str
    #: base unit; "" for names and yes/no
    unit: str
    dtype: str
    title: str = ""
    #: the lines of a point's text that show it
    lines: tuple[Line, ...] = ()
    #: unit of figures, where it is not the usual one of the base unit
    figure_unit: str = ""
    #: numbers of a device that its formulas read; none: it depends on the model and the workload alone
    reads: tuple[str, ...] = ()
    #: the interval of its value over what is predicted
    interval: str = ""
    #: of what a design is asked for with: how its value is chosen
    chosen: str = ""
    #: explanations, of which the first that holds counts; the formula of its name explains a result without
    how: tuple[How, ...] = ()
