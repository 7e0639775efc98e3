"""Reading the table that `dse study` wrote: rows of an experiment, perplexities of its settings, their differences."""

import io
import json
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from dse import data
from dse.sweep import pareto

#: language models whose tables ship
SHIPPED = ("smollm2",)
#: column with ln of a window's own perplexity over FP16's
WINDOW = re.compile("log_ratio_[0-9]+")
#: series of Oaken's 4-bit outliers read as a sign and a 3-bit magnitude
SIGNED = "sign and 3 bit"
#: tables of `dse study` by model name
Tables = Mapping[str, pd.DataFrame]
#: Oaken's own choice of groups
OAKEN = "4/90/6"
#: a difference of more standard errors than this is taken for one
SURE = 2.0


@cache
def shipped(model: str) -> pd.DataFrame:
    """The table of a model that ships (dse/data/lm/MODEL.study.csv)."""
    return pd.read_csv(io.StringIO(data.text(f"lm/{model}.study.csv")), keep_default_na=False)


def about(name: str) -> dict[str, Any]:
    """Read the record beside a table that ships (MODEL.study): command, SHA-256 of weights and tokens."""
    found: dict[str, Any] = json.loads(data.text(f"lm/{name}.json"))
    return found


def rows(table: pd.DataFrame, experiment: str, metric: str = "", side: str = "") -> pd.DataFrame:
    """The rows of an experiment, of one metric and one side where given."""
    own = table[table["experiment"] == experiment]
    own = own[own["metric"] == metric] if metric else own
    return own[own["side"] == side] if side else own


def scores(table: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """A row a setting: series, x, its metrics, and `error`, the standard error of the perplexity against FP16's."""
    own = rows(table, experiment)
    found = own.pivot_table(index=["series", "x"], columns="metric", values="value", sort=False).reset_index()
    if "log_ratio_se" not in found:
        found["log_ratio_se"] = 0.0
    return found.assign(error=found["perplexity"] * found["log_ratio_se"].fillna(0.0))


def fp16(table: pd.DataFrame) -> float:
    """The perplexity with FP16 keys and values."""
    own = scores(table, "methods")
    return float(own.loc[own["series"] == "fp16", "perplexity"].iloc[0])


def setting(table: pd.DataFrame, experiment: str, series: str, x: float = 0.0) -> pd.Series:
    """The row of one setting. Raises KeyError where the table lacks it."""
    own = scores(table, experiment)
    found = own[(own["series"] == series) & (own["x"] == x)]
    if len(found) != 1:
        raise KeyError(f"{experiment}, {series}, {x:g}: {len(found)} settings")
    return found.iloc[0]


def difference(one: pd.Series, other: pd.Series) -> tuple[float, float]:
    """(ln of one's perplexity over the other's, its standard error over the windows that both lost on)."""
    names = [name for name in one.index if WINDOW.fullmatch(str(name))]
    off = (one[names] - other[names]).to_numpy(dtype=float)
    error = float(off.std(ddof=1)) / math.sqrt(len(off)) if len(off) > 1 else math.nan
    return float(one["log_ratio"] - other["log_ratio"]), error


def is_sure(value: float, error: float) -> bool:
    """Whether a difference is more than SURE standard errors."""
    return bool(abs(value) > SURE * error)


def front(table: pd.DataFrame) -> pd.DataFrame:
    """Oaken's group ratios with `groups`, `outliers` (%) and `on_front`: none has fewer bits and less perplexity."""
    own = scores(table, "oaken-ratios")
    share = own["series"].str.removesuffix(" %").astype(float)
    parts = zip(own["x"], 100 - share, (share - own["x"]).round(2), strict=True)
    own = own.assign(groups=[f"{a:g}/{b:g}/{c:g}" for a, b, c in parts], outliers=share)
    # the same share of outliers is the same bits but for the rounding of rows: 0.01 bit is no difference
    rounded = own.assign(bits=np.round(own["stored_bits"], 1))
    return own.assign(on_front=pareto.front(rounded, {"bits": "min", "perplexity": "min"}))
