"""Every published claim beside our value: rows for a table, JSON or a page, and the verdicts of the last release."""

import math
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dse.validate import claims
from dse.validate.claims import Claim, ClaimResult, Verdict

Shade = Literal["green", "amber", "red"]
#: what a row compares: two numbers; an order, a bound or a yes/no; a number that is an input of this tool; or a rule
#: of the document for which it prints no number
Basis = Literal["number", "relation", "input", "no number"]
#: what a verdict looks like: its shade, and a mark for those who cannot tell shades apart
SHADES: dict[Verdict, tuple[Shade, str]] = {
    "reproduced": ("green", "✓"),
    "within": ("green", "✓"),
    "erratum": ("amber", "!"),
    "not derivable": ("amber", "∅"),
    "not attempted": ("amber", "–"),
    "missed": ("red", "✗"),
}
#: what each verdict means, in a line
MEANINGS: dict[Verdict, str] = {
    "reproduced": "the printed number comes out, to its last digit",
    "within": f"a measurement that our model meets within {claims.MODEL_PERCENT}, in each number of the claim",
    "erratum": "the printed number does not follow from what the document states; ours does",
    "not derivable": "the document does not say enough to compute the printed number",
    "not attempted": "needs what is not built yet",
    "missed": f"a printed number that does not come out, or a model off by more than {claims.MODEL_PERCENT}",
}
#: what "reproduced" means of a row that compares no two numbers; the marks differ from those of `SHADES`
WEAKER: dict[Basis, tuple[str, str]] = {
    "relation": ("~", "only a direction, an order, a bound or a yes/no is checked; the numbers may differ"),
    "input": ("=", "the number is an input of ours (device file, parameter of a method): it says that we copied it"),
    "no number": ("?", "the document prints no number: ours follows from its rule, and nothing is compared"),
}
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class ClaimRow:
    """A claim and its result. `difference` is ours / published - 1 where both are numbers."""

    id: str
    source: str
    where: str
    quantity: str
    kind: str
    published: str
    ours: int | float | str | None
    unit: str
    difference: float | None
    expected: str
    tolerance: str
    verdict: Verdict
    reason: str

    @property
    def basis(self) -> Basis:
        """Description of the row."""
        if self.published == "-":
            return "no number"
        if self.id in claims.INPUTS:
            return "input"
        return "relation" if self.kind == "relation" else "number"

    @property
    def label(self) -> str:
        """The verdict with what it rests on, where that is not two numbers: "reproduced (relation)"."""
        if self.verdict not in ("reproduced", "within") or self.basis == "number":
            return self.verdict
        return "not compared" if self.basis == "no number" else f"{self.verdict} ({self.basis})"

    @property
    def compared(self) -> str:
        """The tolerance, or what is checked instead of a number."""
        if self.basis == "no number":
            return "nothing to compare"
        if self.basis == "relation":
            says_more = self.expected != "same" and not _NUMBER.fullmatch(self.expected)
            return f"only checked: {self.expected if says_more else self.published}"
        return self.tolerance

    @property
    def shade(self) -> Shade:
        """Green, amber or red."""
        return SHADES[self.verdict][0]

    @property
    def mark(self) -> str:
        """The verdict as a sign that needs no colour."""
        return SHADES[self.verdict][1] if self.label == self.verdict else WEAKER[self.basis][0]


def published_number(cell: str) -> float | None:
    """The number that a cell prints, where it prints one and nothing else."""
    return float(cell) if _NUMBER.fullmatch(cell) else None


def difference(published: str, ours: int | float | str | None) -> float | None:
    """Ours over published, less one; None where either is not a number, or published is 0."""
    number = published_number(published)
    if number is None or isinstance(ours, str) or ours is None or number == 0:
        return None
    share = ours / number - 1
    return share if math.isfinite(share) else None


def row_of(claim: Claim, result: ClaimResult) -> ClaimRow:
    """A claim with its result."""
    return ClaimRow(
        id=claim.id,
        source=claim.source,
        where=claim.where,
        quantity=claim.quantity,
        kind=claim.kind,
        published=result.published,
        ours=result.ours,
        unit=result.unit,
        difference=difference(result.published, result.ours),
        expected=claim.expected,
        tolerance=claim.tolerance,
        verdict=result.verdict,
        reason=" ".join(result.reason.split()),
    )


def claim_rows() -> list[ClaimRow]:
    """Every claim, computed now, in the order of the table."""
    table = claims.load()
    return [row_of(table[result.id], result) for result in claims.evaluate_all()]


def counts(rows: list[ClaimRow]) -> dict[Verdict, int]:
    """Number of rows by verdict, in the order of SHADES."""
    return {verdict: sum(row.verdict == verdict for row in rows) for verdict in SHADES}


def labels(rows: list[ClaimRow]) -> dict[str, tuple[ClaimRow, int]]:
    """Every label with a row that has it and how many do, strongest first: by verdict, then by what it compares."""
    order = [*SHADES], ["number", "relation", "input", "no number"]
    by_label: dict[str, tuple[ClaimRow, int]] = {}
    for row in sorted(rows, key=lambda row: (order[0].index(row.verdict), order[1].index(row.basis))):
        by_label[row.label] = (row, by_label[row.label][1] + 1 if row.label in by_label else 1)
    return by_label


def to_json(rows: list[ClaimRow]) -> list[dict[str, Any]]:
    """The rows as plain dictionaries; `shade` is green, amber or red, `basis` what is compared."""
    return [{**asdict(row), "shade": row.shade, "basis": row.basis} for row in rows]


def shown(value: int | float | str | None) -> str:
    """A value as people read it: four digits, whole numbers in full."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 1000 else f"{value:.4g}"


def percent(share: float | None) -> str:
    """A relative difference with its sign."""
    if share is None:
        return "-"
    return "0 %" if share == 0 else f"{100 * share:+.2g} %" if abs(share) < 0.0995 else f"{100 * share:+.0f} %"


def summary(rows: list[ClaimRow]) -> str:
    """The counts in a line; what is an input of ours, or has no printed number, is counted apart."""
    compared = [row for row in rows if row.label == row.verdict or row.basis == "relation"]
    parts = []
    for verdict, n in counts(compared).items():
        k = sum(row.verdict == verdict and row.label != verdict for row in compared)
        by = f" ({n - k} by number, {k} {'as a relation only' if k == 1 else 'as relations only'})" if k else ""
        if n:
            parts.append(f"{n} {verdict}{by}")
    inputs = sum(row.basis == "input" and row.label != row.verdict for row in rows)
    rest = len(rows) - len(compared) - inputs
    apart = [f"{inputs} inputs of ours"] * bool(inputs) + [f"{rest} without a printed number"] * bool(rest)
    return f"{len(rows)} claims: {', '.join(parts)}" + (f"; not counted: {', '.join(apart)}" if apart else "")


def text(rows: list[ClaimRow]) -> str:
    """All rows: those missed, with their cause; then by document those that do not follow or cannot be derived, with
    the reason, and the rest, a line a row."""
    first, width = max(len(row.label) for row in rows), max(len(row.id) for row in rows)

    def numbers(row: ClaimRow) -> str:
        unit = f" {row.unit}" if row.unit != "-" and isinstance(row.ours, int | float) else ""
        off = "" if row.difference is None else f", {percent(row.difference)}"
        return (
            f"  {row.label:<{first}}  {row.id:<{width}}  published {row.published}, ours {shown(row.ours)}{unit}{off}"
        )

    def explained(row: ClaimRow) -> list[str]:
        return [numbers(row), f"  {'':<{first}}  {row.where}: {row.quantity}. {row.reason}"]

    missed = [row for row in rows if row.verdict == "missed"]
    lines = [summary(rows), "", f"Missed: {len(missed)}", *(line for row in missed for line in explained(row))]
    for source in dict.fromkeys(row.source for row in rows):
        others = [row for row in rows if row.source == source and row.verdict != "missed"]
        lines += ["", f"{source}: {summary([row for row in rows if row.source == source])}"]
        for row in others:
            lines += [numbers(row)] if row.shade == "green" else explained(row)
    return "\n".join(lines)
