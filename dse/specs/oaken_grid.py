"""Oaken's group shares, group counts and outlier bits as measured on the sample that ships: a row a set and side.

The axes of Oaken Figure 12(a). `python -m scripts.oaken_grid FOLDER` makes the table; the
columns are described in dse/data/README.md.
"""

import csv
import math
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Literal, NamedTuple

from dse import data
from dse.quantizers.base import QuantizerSpec, SideMeasurement

#: the language model whose keys and values the shipped tables were measured on
SAMPLE = "SmolLM2-135M, not your model"
SHIPPED = "oaken_grid.csv"


class GridRow(NamedTuple):
    """Keys or values of all layers, quantized with one set of parameters, and how many of them were outliers."""

    measured: SideMeasurement
    outlier_share: Fraction


@cache
def _rows() -> dict[str, dict[str, GridRow]]:
    """The shipped rows by canonical name of the quantizer and side."""
    return rows_of(data.text(SHIPPED), SAMPLE)


def rows_of(text: str, data: str) -> dict[str, dict[str, GridRow]]:
    """Rows of a table by canonical name of the quantizer and side; `data` names what was quantized."""
    grid: dict[str, dict[str, GridRow]] = {}
    for line in csv.DictReader(text.splitlines()):
        n_elements, squared = int(line["n_elements"]), float(line["squared_output"])
        measured = SideMeasurement(
            n_elements,
            n_packed_elements=n_elements,
            stored_bytes=int(line["stored_bytes"]),
            squared_error=float(line["squared_error"]),
            squared_signal=float(line["squared_signal"]),
            data=data,
            shape=(int(line["n_heads"]), int(line["head_dim"])),
            output_error=math.sqrt(float(line["squared_output_error"]) / squared),
            output_error_both=math.sqrt(float(line["squared_output_error_both"]) / squared),
        )
        share = Fraction(int(line["n_outliers"]), n_elements)
        grid.setdefault(line["quantizer"], {})[line["which"]] = GridRow(measured, share)
    return grid


def attach(spec: QuantizerSpec, use_bits: bool) -> QuantizerSpec:
    """`spec` with its row, if the grid has one; its share of outliers drives the bits if `use_bits`."""
    if spec.family.name != "oaken" or spec.name not in _rows():
        return spec
    sides = _rows()[spec.name]
    kind: Literal["closed", "measured"] = "measured" if use_bits else "closed"
    return replace(
        spec,
        measured={which: row.measured for which, row in sides.items()},
        bits_kind=kind,
        realised={which: {"outlier_share": row.outlier_share} for which, row in sides.items()} if use_bits else {},
    )
