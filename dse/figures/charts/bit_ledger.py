"""The bits an element that every quantizer stores, by part."""

import pandas as pd

from dse.core.errors import InputError
from dse.figures.drawing import axes, style
from dse.figures.drawing.chart import Chart, Panel, Series
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
    places = tuple(float(len(names) - 1 - i) for i in range(len(names)))
    base = (0.0,) * len(names)
    series = []
    for (color, hatch), column in zip(style.FILLS, parts(table), strict=False):
        widths = tuple(float(v) for v in table[column])
        part = column.removesuffix("_bits").replace("_", " ")
        texts = tuple(f"{q}\n{part}: {bits:.5g} bit/element" for q, bits in zip(names, widths, strict=True))
        if any(widths):
            series.append(
                Series(
                    part, kind="hbar", x=widths, y=places, color=color, base=base, hatch=hatch, width=0.66, hover=texts
                )
            )
        base = tuple(a + b for a, b in zip(base, widths, strict=True))
    effective = tuple(float(v) for v in table["effective_bits"])
    series.append(
        Series(
            "effective bits",
            kind="scatter",
            x=effective,
            y=places,
            color=style.BLACK,
            marker="diamond",
            opened=(True,) * len(names),
            size=0.8,
            labels=(),
            is_note=False,
            hover=tuple(f"{q}\neffective: {bits:.5g} bit" for q, bits in zip(names, effective, strict=True)),
        )
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
