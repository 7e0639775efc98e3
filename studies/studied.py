"""The shipped table that `dse study` wrote: rows of an experiment, perplexities of settings, their differences."""

import io
import math
import re
from functools import cache

import pandas as pd

from dse import data

#: language models whose tables ship
SHIPPED = ("smollm2",)
#: column with ln of a window's own perplexity over FP16's
WINDOW = re.compile("log_ratio_[0-9]+")
#: a difference of more standard errors than this is taken for one
SURE = 2.0


@cache
def shipped(model: str) -> pd.DataFrame:
    """The table of a model that ships (dse/data/lm/MODEL.study.csv)."""
    return pd.read_csv(io.StringIO(data.text(f"lm/{model}.study.csv")), keep_default_na=False)


def rows(table: pd.DataFrame, experiment: str, metric: str = "", side: str = "") -> pd.DataFrame:
    """The rows of an experiment, of one metric and one side where given."""
    kept = table[table["experiment"] == experiment]
    kept = kept[kept["metric"] == metric] if metric else kept
    return kept[kept["side"] == side] if side else kept


def scores(table: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """A row a setting: series, x, its metrics, and `error`, the standard error of the perplexity against FP16's."""
    kept = rows(table, experiment)
    settings = kept.pivot_table(index=["series", "x"], columns="metric", values="value", sort=False).reset_index()
    if "log_ratio_se" not in settings:
        settings["log_ratio_se"] = 0.0
    return settings.assign(error=settings["perplexity"] * settings["log_ratio_se"].fillna(0.0))


def difference(first: pd.Series, other: pd.Series) -> tuple[float, float]:
    """(ln of one's perplexity over the other's, its standard error over the windows that both lost on)."""
    names = [name for name in first.index if WINDOW.fullmatch(str(name))]
    off = (first[names] - other[names]).to_numpy(dtype=float)
    error = float(off.std(ddof=1)) / math.sqrt(len(off)) if len(off) > 1 else math.nan
    return float(first["log_ratio"] - other["log_ratio"]), error


def is_sure(value: float, error: float) -> bool:
    """Whether a difference is more than SURE standard errors."""
    return bool(abs(value) > SURE * error)
