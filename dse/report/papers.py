"""The part of the validation page with the papers' experiments: NQKV Table 4, Figures 8 and 9; Oaken Figure 3."""

import pandas as pd

from dse.core import units
from dse.validate.papers import nqkv_memory, nqkv_table_4, oaken_utilisation

#: figures of this part, each of the table of its name
FIGURES = ("nqkv_figure_8", "nqkv_figure_9", "oaken_figure_3")
TABLE_4_HEAD = (
    "model",
    "batch",
    "in",
    "system",
    "token/s, paper",
    "ideal",
    "calibrated",
    "NQKV over it, paper",
    "ideal",
    "calibrated",
    "peak GB, paper",
    "ours",
)


def tables() -> dict[str, pd.DataFrame]:
    """Every table of this part by name, as it is written beside the page."""
    return {
        "nqkv_table_4": nqkv_table_4(),
        "nqkv_figure_8": nqkv_memory("batch"),
        "nqkv_figure_9": nqkv_memory("input_tokens"),
        "oaken_figure_3": oaken_utilisation(),
    }


def table_4(table: pd.DataFrame) -> list[list[str]]:
    """NQKV's Table 4 beside ours, the cells of TABLE_4_HEAD."""
    lines = []
    for _, row in table.iterrows():
        speeds = [_shown(row[f"{kind}_tokens_per_s"], 1) for kind in ("published", "ideal", "calibrated")]
        ratios = [_shown(row[f"{kind}_ratio"], 2) for kind in ("published", "ideal", "calibrated")]
        sizes = [_shown(row[name] / units.to_base(1, "GB"), 1) for name in ("published_bytes", "ours_bytes")]
        place = [row["model"], str(row["batch"]), str(row["input_tokens"]), row["system"]]
        lines.append([*place, *speeds, *ratios, *sizes])
    return lines


def _shown(value: float, digits: int) -> str:
    return "out of memory" if pd.isna(value) else f"{value:,.{digits}f}"
