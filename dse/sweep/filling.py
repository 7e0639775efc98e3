"""Result columns that a sweep's table lacks, as it holds them fixed or did not keep them: evaluated again."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.core.errors import DseError
from dse.model.results import RESULT_UNITS
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.measurements import bits_from
from dse.specs.workload import Workload
from dse.sweep.axes import AxisError, SweepAxis, build, of_items
from dse.sweep.points import evaluate_points
from dse.sweep.spec import ALWAYS, Sweep, of_axes
from dse.sweep.table import schema, to_arrow_of, to_frame

#: under this name a table in memory has the identity of its sweep, as JSON text
ATTRIBUTE = "sweep"


def noted(table: pd.DataFrame, identity: Mapping[str, Any]) -> pd.DataFrame:
    """The table with a note of its sweep, by which `filled` finds what it lacks."""
    table.attrs[ATTRIBUTE] = json.dumps(identity)  # a text: copies of a table copy its attributes deeply
    return table


def note_of(table: pd.DataFrame) -> dict[str, Any] | None:
    """Read the note of a table in memory: the identity of its sweep; None where it is of none."""
    text = table.attrs.get(ATTRIBUTE)
    note = json.loads(text) if isinstance(text, str) else None
    return note if isinstance(note, dict) else None


def filled(table: pd.DataFrame, identity: Mapping[str, Any] | None, names: Sequence[str]) -> pd.DataFrame:
    """The table of a sweep with those of the result columns `names` that it lacks; the same where that cannot be:
    an axis was taken out, or a file that the sweep read has changed."""
    wanted = tuple(name for name in RESULT_UNITS if name in names and name not in table and name not in ALWAYS)
    sweep = _sweep_of(identity, wanted) if identity and wanted and len(table) else None
    digits = None if sweep is None else _places(table, sweep.axes)
    if sweep is None or digits is None:
        return table
    columns = evaluate_points(sweep, digits)
    types = schema(sweep)
    for axis in sweep.axes:
        types = types.remove(types.get_field_index(axis.name))
    results = to_frame(to_arrow_of(types, columns))[list(wanted)]
    whole = pd.concat([table, results.set_index(table.index)], axis=1)
    whole.attrs = table.attrs
    return whole


def _sweep_of(identity: Mapping[str, Any], keep: tuple[str, ...]) -> Sweep | None:
    """The sweep again, with other columns; None where its files have changed, or its measurements are not at hand."""
    if identity["bits"]["measurements"] != "shipped":
        return None
    try:
        axes = [_axis_of(axis) for axis in identity["axes"]]
        base = Workload(**identity["workload"])
        sweep = of_axes(axes, base, bits_from(identity["bits"]["kind"], None), keep)
    except (AxisError, DseError, ValueError, TypeError):  # of another version
        return None
    return sweep if json.loads(json.dumps(sweep.identity["axes"])) == identity["axes"] else None


def _axis_of(axis: Mapping[str, Any]) -> SweepAxis:
    if "specs" not in axis:
        return build(axis["name"], axis["values"])
    kind = HardwareSpec if axis["name"] == "device" else ModelSpec
    return of_items(axis["name"], [kind.model_validate_json(json.dumps(spec)) for spec in axis["specs"]])


def _places(table: pd.DataFrame, axes: Sequence[SweepAxis]) -> dict[str, NDArray[np.int32]] | None:
    """By axis, the place of each row's value, -1 for none; None where a row has a value that the axis has not."""
    digits = {}
    for axis in axes:
        if axis.name not in table:
            return None
        place = {value: i for i, value in enumerate(axis.values)}
        places = [-1 if pd.isna(value) else place.get(value, len(place)) for value in table[axis.name]]
        digits[axis.name] = np.array(places, dtype=np.int32)
        if (digits[axis.name] == len(place)).any() or (axis.role != "parameter" and (digits[axis.name] < 0).any()):
            return None
    return digits
