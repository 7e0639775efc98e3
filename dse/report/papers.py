"""The part of the validation page with the papers' experiments: NQKV Table 4, Figures 8 and 9; Oaken Figure 3."""

import pandas as pd

from dse.core import units
from dse.core.columns import Column
from dse.validate.papers import nqkv_memory, nqkv_table_4, oaken_utilisation

#: figures of this part, each of the table of its name
FIGURES = ("nqkv_figure_8", "nqkv_figure_9", "oaken_figure_3")
_PER_GB = 1 / units.to_base(1, "GB")


def _shown(name: str, title: str, digits: int = 1, times: float = 1) -> Column:
    return Column(name, title=title, form=f",.{digits}f", times=times, missing="out of memory")


#: NQKV's Table 4 beside ours
TABLE_4 = (
    Column("model"),
    Column("batch"),
    Column("input_tokens", title="in"),
    Column("system"),
    _shown("published_tokens_per_s", "tok/s, paper"),
    _shown("ideal_tokens_per_s", "ideal"),
    _shown("calibrated_tokens_per_s", "calibrated"),
    _shown("published_ratio", "NQKV over it, paper", 2),
    _shown("ideal_ratio", "ideal", 2),
    _shown("calibrated_ratio", "calibrated", 2),
    _shown("published_bytes", "peak GB, paper", times=_PER_GB),
    _shown("ours_bytes", "ours", times=_PER_GB),
)


def tables() -> dict[str, pd.DataFrame]:
    """Every table of this part by name, as it is written beside the page."""
    return {
        "nqkv_table_4": nqkv_table_4(),
        "nqkv_figure_8": nqkv_memory("batch"),
        "nqkv_figure_9": nqkv_memory("input_tokens"),
        "oaken_figure_3": oaken_utilisation(),
    }
