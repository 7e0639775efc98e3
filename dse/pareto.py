"""Pareto fronts: which rows of a table no other row beats in every objective."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pandas as pd

from dse.errors import InputError, did_you_mean

Sense = Literal["min", "max"]


def front(table: pd.DataFrame, objectives: Mapping[str, Sense]) -> np.ndarray:
    """Mask, in the order of the rows, of those that no other row dominates.

    A row dominates another when it is no worse in every objective and better in one; equal rows are both kept.
    Rows with a missing objective (a design that does not fit) are never on the front. Raises InputError for an
    unknown column or sense.
    """
    for name, sense in objectives.items():
        if name not in table.columns:
            raise InputError(f"unknown objective {name!r}: {did_you_mean(name, table.columns)}")
        if sense not in ("min", "max"):
            raise InputError(f"objective {name}: sense must be min or max, not {sense!r}")
    values = np.column_stack([
        table[name].to_numpy(dtype="float64", na_value=np.nan) * (1 if sense == "min" else -1)
        for name, sense in objectives.items()
    ])  # fmt: skip
    known = ~np.isnan(values).any(axis=1)
    mask = np.zeros(len(table), dtype=bool)
    mask[known] = _front_of_minima(values[known])
    return mask


def _front_of_minima(values: np.ndarray) -> np.ndarray:
    """Mask of the non-dominated rows, all objectives minimised; finite values.

    Sorted by the first objective (ties by the next), a row can only be dominated by one before it, or by an equal
    first objective; each survivor is compared with the front found so far.
    """
    order = np.lexsort(values.T[::-1])
    kept = np.empty((0, values.shape[1]))
    mask = np.zeros(len(values), dtype=bool)
    for index in order:
        row = values[index]
        no_worse = (kept <= row).all(axis=1)
        if not (no_worse & (kept < row).any(axis=1)).any():
            mask[index] = True
            kept = np.vstack([kept, row])
    return mask
