"""The table of claims, the registry of functions that compute ours, and the comparison of the two."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
from typing import Any, Literal, cast

import pandas as pd

from dse import data
from dse.core.errors import InputError, did_you_mean, show

Kind = Literal["exact", "relation", "model", "erratum", "not derivable"]
#: reproduced: exact and relation rows that come out; within: a model inside its tolerance; erratum: the printed
#: number does not follow, ours does; not derivable: the document does not say enough to compute it; missed: ours is not
#: what is expected
Verdict = Literal["reproduced", "within", "missed", "erratum", "not derivable", "not attempted"]
#: the rule for all rows. What follows from a document agrees to one unit of the last printed digit, whole numbers and
#: answers exactly. What our model predicts agrees where each number that the claim speaks of is within so much of the
#: printed one, or of the nearer end of a printed range.
MODEL_PERCENT = "15%"
#: rows whose number goes into this tool as it is printed: that it comes out says only that it was copied
INPUTS = frozenset(
    (
        *(
            f"oaken-t1-{device}-{number}"
            for device in ("oaken-hbm", "oaken-lpddr")
            for number in ("capacity", "bandwidth", "peak-fp16")
        ),
        "oaken-power",
        "oaken-area",
        # the rates of the engines are those that give these shares
        "oaken-quant-share",
        "oaken-dequant-share",
        "nqkv-pad-16",
        "sinkq-sinks-shallow",
    )
)
#: rows that need what is not built, and what that is
NOT_ATTEMPTED: dict[str, str] = {}
#: room for the last bit of a float, far below any printed digit
FLOAT_SLACK = Decimal("1e-12")

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?")
_RANGE = re.compile(r"(\d+(?:\.\d+)?) to (\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Claim:
    """One row of claims.csv."""

    id: str
    source: str
    where: str
    quantity: str
    unit: str
    published: str
    kind: Kind
    expected: str
    tolerance: str
    how: str


@dataclass(frozen=True)
class Relation:
    """Ours where it is more than one number: what to show, whether a relation holds, the numbers to compare.

    `orders` are the ratios that an order rests on, by name: it holds where all are above 1.
    """

    text: str
    holds: bool | None = None
    numbers: tuple[float, ...] = ()
    orders: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Modeled:
    """Ours where a model predicts a measurement: the value, and a line on what it rests on or why it is off.

    `each`: the numbers that are judged where a claim speaks of several, of which `value` is the one shown.
    """

    value: float
    note: str
    each: tuple[float, ...] = ()


Ours = int | float | Fraction | bool | Relation | Modeled


@dataclass(frozen=True)
class ClaimResult:
    """A claim beside our value. `ours` is a number, the text of a finding, "yes" or "no", or None."""

    id: str
    published: str
    ours: int | float | str | None
    unit: str
    verdict: Verdict
    reason: str


#: claim id -> function that computes our value through the product
FUNCTIONS: dict[str, Callable[[], Ours]] = {}


def claim(claim_id: str) -> Callable[[Callable[[], Ours]], Callable[[], Ours]]:
    """Register a function as ours for one claim."""

    def register(function: Callable[[], Ours]) -> Callable[[], Ours]:
        FUNCTIONS[claim_id] = function
        return function

    return register


def family(cases: Mapping[str, tuple]) -> Callable[[Callable[..., Ours]], Callable[..., Ours]]:
    """Register a function for several claims: id -> its arguments."""

    def register(function: Callable[..., Ours]) -> Callable[..., Ours]:
        FUNCTIONS.update({claim_id: partial(function, *arguments) for claim_id, arguments in cases.items()})
        return function

    return register


@cache
def load() -> dict[str, Claim]:
    """All claims by id, in the order of the file."""
    rows = [Claim(**cast(dict[str, Any], row)) for row in data.rows("claims.csv")]
    return {row.id: row for row in rows}


def printed_numbers(text: str) -> list[str]:
    """The numbers in a cell, as printed: "11 to 45" gives 11 and 45."""
    return _NUMBER.findall(text)


def _decimal(value: int | float | Fraction) -> Decimal:
    if isinstance(value, Fraction):
        return Decimal(value.numerator) / Decimal(value.denominator)
    return Decimal(str(value))


def within_last_digit(value: int | float | Fraction, printed: str) -> bool:
    """True when `value` and the printed number differ by no more than one unit of its last digit."""
    number = Decimal(printed)
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return abs(_decimal(value) - number) <= Decimal(1).scaleb(exponent) * (1 + FLOAT_SLACK)


def within_percent(value: int | float | Fraction, published: str, percent: str) -> bool:
    """True when `value` is within `percent` of the published number."""
    number = Decimal(published)
    return abs(_decimal(value) - number) <= abs(number) * Decimal(percent.rstrip("%")) / 100


def _near(row: Claim, ours: int | float | Fraction) -> bool:
    """A model's value against the published number, or range ("2 to 10"), to `MODEL_PERCENT`."""
    printed = _RANGE.match(row.published)
    ends = printed.groups() if printed else (printed_numbers(row.published)[0],)
    return (len(ends) == 2 and Decimal(ends[0]) <= _decimal(ours) <= Decimal(ends[1])) or any(
        within_percent(ours, end, MODEL_PERCENT) for end in ends
    )


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _exact(row: Claim, ours: int | float | Fraction) -> bool:
    """Ours against `published`, to its digits or exactly, and against `expected`, to its digits."""
    if row.tolerance == "0":
        cells = [cell for cell in (row.expected, row.published) if _is_number(cell)]
        close = all(abs(_decimal(ours) - Decimal(cell)) <= FLOAT_SLACK * abs(Decimal(cell)) for cell in cells)
    else:
        close = within_last_digit(ours, printed_numbers(row.published)[0])
    return close and within_last_digit(ours, row.expected)


def _bound(row: Claim, ours: int | float | Fraction) -> bool:
    """A relation of one number: the published bound, and the expected value to its digits."""
    limit = Decimal(printed_numbers(row.published)[0])
    held = {">": _decimal(ours) > limit, "<": _decimal(ours) < limit}[row.published[0]]
    return held and within_last_digit(ours, row.expected)


def _all_expected(row: Claim, numbers: tuple[int | float | Fraction, ...]) -> bool:
    """True when `expected` prints each of our numbers, in this order."""
    printed = iter(printed_numbers(row.expected))
    return all(any(within_last_digit(number, text) for text in printed) for number in numbers)


def agrees(row: Claim, ours: Ours) -> bool:
    """True where our value is what is expected of it."""
    if row.kind == "not derivable":
        return True
    if isinstance(ours, bool):
        return ("yes" if ours else "no") == row.expected
    if isinstance(ours, Relation):
        return ours.holds is not False and _all_expected(row, ours.numbers)
    if isinstance(ours, Modeled):
        return all(_near(row, value) for value in ours.each or (ours.value,))
    if row.kind == "exact":
        return _exact(row, ours)
    if row.kind == "relation":
        return _bound(row, ours)
    if row.kind == "erratum":
        return _all_expected(row, (ours,))
    return _near(row, ours)


def _shown(ours: Ours) -> int | float | str:
    if isinstance(ours, bool):
        return "yes" if ours else "no"
    if isinstance(ours, Relation):
        return ours.text
    if isinstance(ours, Modeled):
        return ours.value
    return float(ours) if isinstance(ours, Fraction) else ours


_VERDICTS: dict[Kind, Verdict] = {
    "exact": "reproduced",
    "relation": "reproduced",
    "model": "within",
    "erratum": "erratum",
    "not derivable": "not derivable",
}


def check(row: Claim, ours: Ours | None) -> ClaimResult:
    """Judge our value by the one rule (`MODEL_PERCENT`). None: not attempted."""
    if ours is None:
        reason = NOT_ATTEMPTED.get(row.id, f"not computed yet; expected {row.expected}: {row.how}")
        return ClaimResult(
            id=row.id, published=row.published, ours=None, unit=row.unit, verdict="not attempted", reason=reason
        )
    good = agrees(row, ours)
    reason = row.how if good else f"expected {row.expected} (tolerance {row.tolerance}): {row.how}"
    if isinstance(ours, Modeled):
        reason = ours.note
    return ClaimResult(
        id=row.id,
        published=row.published,
        ours=_shown(ours),
        unit=row.unit,
        verdict=_VERDICTS[row.kind] if good else "missed",
        reason=reason,
    )


def evaluate(claim_id: str) -> ClaimResult:
    """Compute our value of one claim and compare. Raises KeyError for an id that is not in the table."""
    function = FUNCTIONS.get(claim_id)
    return check(load()[claim_id], function() if function else None)


def evaluate_all() -> list[ClaimResult]:
    """Every claim of the table, in its order."""
    return [evaluate(claim_id) for claim_id in load()]


def table(prefix: str = "") -> pd.DataFrame:
    """Claims whose id begins with `prefix`, computed now, a row each.

    Columns: id, where, quantity, unit, published (as printed), ours, verdict, reason. InputError where no id does.
    """
    rows = [row for row in load().values() if row.id.startswith(prefix)]
    if not rows:
        raise InputError(f"prefix = {show(prefix)}: no claim begins so: {did_you_mean(prefix, load())}")
    pairs = [(row, evaluate(row.id)) for row in rows]
    return pd.DataFrame(
        [
            {
                "id": row.id,
                "where": row.where,
                "quantity": row.quantity,
                "unit": row.unit,
                "published": row.published,
                "ours": result.ours,
                "verdict": result.verdict,
                "reason": result.reason,
            }
            for row, result in pairs
        ]
    )
