"""The bits an element that every quantizer stores, by part."""

import pandas as pd

from dse.core.errors import InputError
from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Chart, Panel
from dse.figures.registry import by_report, figure
from dse.figures.source import Source

#: how far parts may add up to another number of bits than the whole
PARTS_TOLERANCE = 1e-3


def parts(table: pd.DataFrame) -> list[str]:
    """The columns that add up to the stored bits."""
    whole = ("effective_bits", "stored_bits")
    return [str(name) for name in table if str(name).endswith("_bits") and name not in whole]


def check_parts(table: pd.DataFrame) -> None:
    """Raises InputError where the parts do not add up to what is stored."""
    names = parts(table)
    if not names:
        raise InputError("columns: must have the parts of stored_bits, such as payload_bits and scales_bits")
    total, stored = table[names].astype(float).sum(axis=1), table["stored_bits"].astype(float)
    off = (total - stored).abs() > PARTS_TOLERANCE * stored.abs() + PARTS_TOLERANCE
    if off.any():
        at = off.idxmax()
        raise InputError(
            f"stored_bits = {stored[at]:g}: {', '.join(names)} add up to {total[at]:g}: must be all the parts of it"
        )


def panel(table: pd.DataFrame, name: str = "quantizer") -> Panel:
    """A stacked bar per entry of the column `quantizer`, and the number that the method's paper counts."""
    names = [str(name) for name in table["quantizer"]]
    y = axes.categories(name, names[::-1])
    x = axes.linear("stored bits", "bit/element", [float(v) for v in table["stored_bits"]], n_ticks=9)
    places = range(len(names) - 1, -1, -1)
    shown = {part.removesuffix("_bits").replace("_", " "): table[part] for part in parts(table)}

    def texts(part: str) -> list[str]:
        return [f"{q}\n{part}: {bits:.5g} bit/element" for q, bits in zip(names, shown[part], strict=True)]

    series = [part for part in marks.stacked(shown, places, texts, 0.66) if any(part.x)]
    look = style.Style(style.BLACK, marker="diamond")
    effective = (f"{q}\neffective: {bits:.5g} bit" for q, bits in zip(names, table["effective_bits"], strict=True))
    opened = (True,) * len(names)
    series.append(
        marks.points("effective bits", table["effective_bits"], places, look, effective, opened=opened, size=0.8)
    )
    return Panel("", x, y, tuple(series))


@figure(
    "bit_ledger",
    "What does each quantizer really store for an element, and how far is that from the bits its paper counts?",
    by_report("ledger"),
    ("model", "quantizer", "n_tokens", "effective_bits", "stored_bits"),
    order=70,
    title="Bits an element by part",
)
def chart(source: Source) -> Chart:
    """The panel, of quantizers on one model."""
    table = source.table
    check_parts(table)
    first = table.iloc[0]
    return Chart(
        f"Bits an element by part, {first['model']}, {first['n_tokens']:,} tokens",
        panels=(panel(table),),
        panel_height_pt=15.5 * len(table),
        notes=(
            "Exact counts of the stored layout, averaged over keys, values and layers; no page padding."
            " Effective bits: as the method's paper counts, without what depends on the length.",
        ),
    )
