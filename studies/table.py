"""Tables of `dse study`: one setting, the perplexity with 16 bits, and the front of Oaken's group ratios."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dse import data
from dse.sweep import pareto
from studies.studied import scores

#: series of Oaken's 4-bit outliers as one signed code, instead of a sign and 3 bits
SIGNED = "signed 4 bit"
#: tables of `dse study` by model name
Tables = Mapping[str, pd.DataFrame]
#: Oaken's own choice of groups
OAKEN = "4/90/6"


def about(name: str) -> dict[str, Any]:
    """Read the record beside a table that ships (MODEL.study): command, SHA-256 of weights and tokens."""
    record: dict[str, Any] = json.loads(data.text(f"lm/{name}.json"))
    return record


def fp16(table: pd.DataFrame) -> float:
    """The perplexity with FP16 keys and values."""
    scored = scores(table, "methods")
    return float(scored.loc[scored["series"] == "fp16", "perplexity"].iloc[0])


def setting(table: pd.DataFrame, experiment: str, series: str, x: float = 0.0) -> pd.Series:
    """The row of one setting. Raises KeyError where the table lacks it."""
    scored = scores(table, experiment)
    matching = scored[(scored["series"] == series) & (scored["x"] == x)]
    if len(matching) != 1:
        raise KeyError(f"{experiment}, {series}, {x:g}: {len(matching)} settings")
    return matching.iloc[0]


def front(table: pd.DataFrame) -> pd.DataFrame:
    """Oaken's group ratios with `groups`, `outliers` (%) and `on_front`: none has fewer bits and less perplexity."""
    scored = scores(table, "oaken-ratios")
    share = scored["series"].str.removesuffix(" %").astype(float)
    parts = zip(scored["x"], 100 - share, (share - scored["x"]).round(2), strict=True)
    scored = scored.assign(groups=[f"{a:g}/{b:g}/{c:g}" for a, b, c in parts], outliers=share)
    # the same share of outliers is the same bits but for the rounding of rows: 0.01 bit is no difference
    rounded = scored.assign(bits=np.round(scored["stored_bits"], 1))
    return scored.assign(on_front=pareto.front(rounded, {"bits": "min", "perplexity": "min"}))
