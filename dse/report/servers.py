"""Errors on measured servers that ship, as the validation page shows them."""

import io

import pandas as pd

from dse import data
from dse.core.columns import Column, cells, percent

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


#: columns of the page's table, in percent
COLUMNS = (
    Column("by", title="rows of", form=lambda row: _WORDS[row["by"]]),
    Column("group", title="which"),
    Column("predicted", title="number", form=","),
    percent("tpot_mean", "TPOT"),
    percent("tpot_p90", "90th percentile"),
    percent("tpot_bias", "median"),
    percent("tpot_inside", "in interval"),
    percent("tpot_width", "width"),
    percent("ttft_mean", "TTFT"),
    percent("ttft_inside", "in its interval"),
    percent("ttft_width", "its width"),
    percent("kernels_mean", "kernels alone"),
    percent("naive_mean", "data sheet"),
)


def shown() -> list[list[str]]:
    """The heads and rows of the page; releases are left to the table's file."""
    servers = table()
    return cells(COLUMNS, servers[servers["by"].isin(list(_WORDS))].to_dict("records"))
