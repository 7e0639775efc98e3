"""Errors on measured servers that ship, as the validation page shows them."""

import io

import pandas as pd

from dse import data

#: heads of the page's table, and the column behind each
_COLUMNS = {
    "TPOT": "tpot_mean",
    "90th percentile": "tpot_p90",
    "median": "tpot_bias",
    "in interval": "tpot_inside",
    "width": "tpot_width",
    "TTFT": "ttft_mean",
    "in its interval": "ttft_inside",
    "its width": "ttft_width",
    "kernels alone": "kernels_mean",
    "data sheet": "naive_mean",
}
HEAD = ("rows of", "which", "number", *_COLUMNS)
#: what the page calls the groups of column `by`
_WORDS = {
    "all": "all",
    "kind": "kind",
    "model": "model",
    "system": "system",
    "stack": "stack",
    "n_devices": "devices",
    "suspect": "suspect rows",
    "model left out": "model left out of the fit",
    "system left out": "system left out of the fit",
}


def table() -> pd.DataFrame:
    """The rows of data/serving.csv: errors by group as shares, measured times of which do not ship."""
    return pd.read_csv(io.StringIO(data.text("serving.csv")), dtype={"group": str})


def cells() -> list[list[str]]:
    """The table of the page, in percent; releases are left to the table's file."""
    shown = table()
    return [
        [_WORDS[row["by"]], row["group"], f"{row['predicted']:,}", *(_percent(row[name]) for name in _COLUMNS.values())]
        for row in shown[shown["by"].isin(list(_WORDS))].to_dict("records")
    ]


def _percent(share: float) -> str:
    return "-" if pd.isna(share) else f"{100 * share:.1f}"
