"""The tables of the quantizer lab: one quantizer on a KV dump, and one head of it before and after, for `dse plot`."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dse.core import files
from dse.figures import FIGURES
from dse.figures.source import BESIDE, beside
from dse.measure import lab
from dse.measure.lab import ATTENTION, ERRORS, DumpMeasurement, HeadView

#: table -> kinds of figures that `dse plot` draws of it
KINDS = {
    stem: tuple(
        name for name, fig in FIGURES.items() if fig.written.command.startswith("dse lab") and stem in fig.written.stems
    )
    for stem in ("bits", "errors", "histogram", "values")
}
#: tokens and channels of a map, of the command and of the explorer's page
MAX_TOKENS, MAX_CHANNELS = 256, 384


def values_table(view: HeadView) -> pd.DataFrame:
    """The map of a head as a table: a row a token and channel, its value before and after."""
    before, after = (part[:, :MAX_CHANNELS].astype(np.float64) for part in (view.before, view.after))
    n_tokens, n_channels = before.shape
    tokens = np.repeat(np.arange(view.first_token, view.first_token + n_tokens), n_channels)
    return pd.DataFrame(
        {
            "token": tokens,
            "channel": np.tile(np.arange(n_channels), n_tokens),
            "before": before.reshape(-1),
            "after": after.reshape(-1),
        }
    )


def write(
    out: str, measured: DumpMeasurement, view: HeadView, place: str, side: str, error: str, data: str
) -> list[Path]:
    """Write the tables and what their figures say beside them into directory `out`; the paths of the tables.

    `place` names the head shown, `side` (key, value) and `error` (of `ERRORS`) what the map of heads shows, `data`
    what was measured on. Raises OutputError.
    """
    name, _, more = ERRORS[error]
    on = f"Measured on {data}."
    queries = [measured.queries] if error in ATTENTION and measured.queries else []
    tables: dict[str, tuple[pd.DataFrame, dict[str, Any]]] = {
        "bits": (
            measured.ledger,
            {
                "title": "Bits an element as stored",
                "notes": [on, *([measured.thresholds] if measured.thresholds else [])],
            },
        ),
        "errors": (
            measured.errors,
            {
                "title": f"{name[0].upper()}{name[1:]} by layer and head, {side}s",
                "error": error,
                "side": side,
                "notes": [f"{'More' if more else 'Less'} is better. {on}", *queries],
            },
        ),
        "histogram": (
            view.histogram,
            {"title": f"Values before and after, {place}", "marks": [list(mark) for mark in view.marks], "notes": [on]},
        ),
        "values": (values_table(view), {"place": place}),
    }
    paths = []
    with files.publishing(out) as published:
        for stem, (table, about) in tables.items():
            published.write(f"{stem}{BESIDE}", beside(about))
            paths.append(published.write(f"{stem}.csv", files.csv_of(table)))
    return paths


def check(side: str, error: str) -> None:
    """Raises InputError for a side or an error that is not known."""
    from dse.core.errors import InputError, did_you_mean, show

    for name, value, known in (("side", side, lab.SIDES), ("error", error, tuple(ERRORS))):
        if value not in known:
            raise InputError(f"{name} = {show(value)}: {did_you_mean(value, known)}")
