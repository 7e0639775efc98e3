"""Every published claim beside our value: rows for a table, JSON or a page, and the verdicts of the last release."""

import csv
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dse import claims, data
from dse.claims import Claim, Result, Verdict

Shade = Literal["green", "amber", "red"]
#: what a verdict looks like: its shade, and a mark for those who cannot tell shades apart
SHADES: dict[Verdict, tuple[Shade, str]] = {
    "reproduced": ("green", "✓"),
    "within": ("green", "✓"),
    "erratum": ("amber", "!"),
    "not attempted": ("amber", "–"),
    "missed": ("red", "✗"),
}
#: what each verdict means, in a line
MEANINGS: dict[Verdict, str] = {
    "reproduced": "comes out, to the printed digits or as the relation says",
    "within": "a measurement that our model meets within the row's tolerance",
    "erratum": "the printed number does not follow from what the document states; ours does",
    "not attempted": "needs what is not built yet",
    "missed": "our model is off by more than the row's tolerance",
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
    def shade(self) -> Shade:
        """Green, amber or red."""
        return SHADES[self.verdict][0]

    @property
    def mark(self) -> str:
        """The verdict as a sign that needs no colour."""
        return SHADES[self.verdict][1]


def published_number(cell: str) -> float | None:
    """The number that a cell prints, where it prints one and nothing else."""
    return float(cell) if _NUMBER.fullmatch(cell) else None


def difference(published: str, ours: int | float | str | None) -> float | None:
    """Ours over published, less one; None where either is not a number, or published is 0."""
    number = published_number(published)
    if number is None or isinstance(ours, str) or ours is None or number == 0:
        return None
    found = ours / number - 1
    return found if math.isfinite(found) else None


def row_of(claim: Claim, result: Result) -> ClaimRow:
    """A claim with its result."""
    return ClaimRow(
        claim.id, claim.source, claim.where, claim.quantity, claim.kind, result.published, result.ours, result.unit,
        difference(result.published, result.ours), claim.expected, claim.tolerance, result.verdict,
        " ".join(result.reason.split()),
    )  # fmt: skip


def claim_rows() -> list[ClaimRow]:
    """Every claim, computed now, in the order of the table."""
    table = claims.load()
    return [row_of(table[result.id], result) for result in claims.evaluate_all()]


def counts(rows: list[ClaimRow]) -> dict[Verdict, int]:
    """How many rows have each verdict, in the order of SHADES."""
    return {verdict: sum(row.verdict == verdict for row in rows) for verdict in SHADES}


def to_json(rows: list[ClaimRow]) -> list[dict[str, Any]]:
    """The rows as plain dictionaries; `shade` is green, amber or red."""
    return [{**asdict(row), "shade": row.shade} for row in rows]


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
    """The counts in a line."""
    found = ", ".join(f"{n} {verdict}" for verdict, n in counts(rows).items() if n)
    return f"{len(rows)} claims: {found}"


def text(rows: list[ClaimRow]) -> str:
    """All rows by document, two lines a row: the numbers, then what was claimed where, and why ours is what it is."""
    lines: list[str] = []
    for source in dict.fromkeys(row.source for row in rows):
        own = [row for row in rows if row.source == source]
        lines += [*([""] if lines else []), f"{source}: {summary(own)}"]
        width = max(len(row.id) for row in own)
        for row in own:
            unit = f" {row.unit}" if row.unit != "-" and isinstance(row.ours, int | float) else ""
            numbers = f"published {row.published}, ours {shown(row.ours)}{unit}"
            off = "" if row.difference is None else f", difference {percent(row.difference)}"
            lines.append(f"  {row.verdict:<13}  {row.id:<{width}}  {numbers}{off}, tolerance {row.tolerance}")
            lines.append(f"                 {row.where}: {row.quantity}. {row.reason}")
    return "\n".join([*lines, "", summary(rows)])


def released() -> dict[str, str]:
    """The verdict of every claim as of the last release (dse/data/verdicts.csv)."""
    path = Path(data.__file__).parent / "verdicts.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return {row["id"]: row["verdict"] for row in csv.DictReader(file)}


def changed(rows: list[ClaimRow]) -> list[str]:
    """What differs from the verdicts of the last release, a line each; empty where nothing does."""
    before = released()
    now: dict[str, str] = {row.id: row.verdict for row in rows}
    found = [
        f"{name}: was {before.get(name, 'absent')}, is {now.get(name, 'absent')}"
        for name in dict.fromkeys([*before, *now]) if before.get(name) != now.get(name)
    ]  # fmt: skip
    return found
