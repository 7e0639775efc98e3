"""A front that was swept: filtered, as a table, as a figure, and its designs as those of the tray."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dse import quantizers
from dse.explorer import common_fields, names, tray
from dse.explorer.front.request import FrontRequest
from dse.figures.charts import design_front
from dse.figures.drawing.chart import Chart
from dse.model import uncertainty
from dse.model.results import RESULT_UNITS, shown_unit
from dse.quantizers import layered
from dse.specs.workload import Workload
from dse.sweep import axes, conditions
from dse.sweep.axes import SweepAxis
from dse.sweep.pareto import designs
from dse.sweep.pareto.designs import DesignFront
from dse.sweep.spec import DEFAULT_KEEP, Sweep

#: columns that intervals alone read
_READ = tuple(name for name in uncertainty.READ if name not in (*DEFAULT_KEEP, "tpot_s"))
#: columns left out of the table: they tell a reader nothing of a design on the front
_HIDDEN = ("row", "feasible", "infeasible_code", "runs", *_READ)
#: relative distance within which a click belongs to a point
NEAR = 1e-6


def filtered(front: DesignFront, text: str, sweep: Sweep) -> DesignFront:
    """The designs of a front that meet a condition on any of its columns, in base units; names may be any of the sweep.

    Raises InputError.
    """
    if not text.strip() or front.table.empty:
        return front
    axes, digits = [], {}
    for name in front.table.columns:
        codes, values = pd.factorize(front.table[name].astype(object).where(front.table[name].notna(), None))
        numbers = all(isinstance(v, int | float | np.number) and not isinstance(v, bool | np.bool_) for v in values)
        shown: tuple[Any, ...] = tuple(values.tolist())
        if not numbers:
            others = sweep.axis[name].values if name in sweep.axis else ()
            shown = tuple(dict.fromkeys(map(str, (*shown, *others))))
        axes.append(
            SweepAxis(name=name, kind="number" if numbers else "text", role="workload", values=shown, items=shown)
        )
        digits[name] = codes.astype(np.int32)
    keep = conditions.parse(text, axes).keep(digits)
    return replace(front, table=front.table[keep].reset_index(drop=True), row=front.row[keep], knee=front.knee[keep])


def limits_text(front: DesignFront) -> str:
    """The limits in a sentence; "" where there are none."""
    said = []
    for limit in front.limits:
        unit, size = shown_unit(limit.column, unit_of(front, limit.column))
        said.append(f"{names.words(limit.column)} {limit.kind} {limit.value / size:g} {unit}".rstrip())
    return f"Limits: {', '.join(said)}." if said else ""


def table_of(front: DesignFront, most: int) -> pd.DataFrame:
    """The first `most` designs as people read them: knees marked, what varies and objectives first, shown units."""
    shown = {"Knee": ["★" if knee else "" for knee in front.knee[:most]]}
    for heading, name in names_of(front).items():
        shown[heading] = _shown(front, name, front.table[name].iloc[:most])
    return pd.DataFrame(shown)


def said_of(front: DesignFront) -> tuple[str, ...]:
    """Columns that tell the designs apart; behind a batch, how many of it run at once, where some do not."""
    table = front.table
    if "batch" not in front.design or (table["running_batch"] == table["batch"]).all():
        return front.design
    at = front.design.index("batch") + 1
    return (*front.design[:at], "running_batch", *front.design[at:])


def names_of(front: DesignFront) -> dict[str, str]:
    """Headings of `table_of` and the columns that they stand for, as conditions name them."""
    first = dict.fromkeys((*said_of(front), *front.objectives))
    hidden = {*_HIDDEN, *(["runs_why"] if "runs_why" in front.table and front.table["runs_why"].isna().all() else [])}
    rest = (name for name in front.table.columns if name not in first and name not in hidden)
    return {heading_of(front, name): name for name in (*first, *rest)}


def heading_of(front: DesignFront, name: str) -> str:
    """A column in a reader's words with the unit it is shown in."""
    return names.heading(name, unit_of(front, name))


def unit_of(front: DesignFront, name: str) -> str:
    """Base unit of a column; of axes too, which a sweep leaves without one where the name says it."""
    return front.units.get(name, "") or RESULT_UNITS.get(name, "")


def _shown(front: DesignFront, name: str, column: pd.Series) -> pd.Series:
    _, size = shown_unit(name, unit_of(front, name))
    return column.astype(float) / size if size != 1 and pd.api.types.is_numeric_dtype(column) else column


def chart_of(front: DesignFront) -> Chart:
    """The figure of a front; hovering shows every value with its unit."""
    table = front.table.drop(columns=[name for name in _HIDDEN if name in front.table and name not in _READ])
    units = {name: unit_of(front, name) for name in table.columns}
    return design_front.chart(
        table,
        list(front.knee),
        front.cloud,
        objectives=front.objectives,
        units=units,
        label=partial(_label, front, units),
        by=front.by,
        rests_on=design_front.front_notes(front),
    )


def _label(front: DesignFront, units: Mapping[str, str], row: pd.Series) -> str:
    said = designs.label(row, columns=front.design, units=units)
    is_partly = "running_batch" in said_of(front) and row["running_batch"] < row["batch"]
    return f"{said}, {row['running_batch']:,.0f} at once" if is_partly else said


def at(front: DesignFront, x: float, y: float) -> dict[str, Any] | None:
    """The design drawn at a place of the figure, in the units of its axes; None where none is."""
    axes = list(front.objectives)[:2]
    if len(axes) == 1 or front.table.empty:
        return None
    distance = pd.Series(0.0, index=front.table.index)
    for name, shown in zip(axes, (x, y), strict=True):
        values = front.table[name].astype(float)
        place = shown * design_front.axis(name, front.units.get(name, ""), values.tolist()).per_unit
        distance += (values - place).abs() / max(abs(place), np.finfo(float).tiny)
    nearest = distance.idxmin()
    return front.table.loc[nearest].to_dict() if distance[nearest] < NEAR else None


def added(point: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[tray.TrayDesign, dict[str, Any]]:
    """The design of a point, and what of the workload it changes: all but the batch, which it may have of its own."""
    work = {field.key: point[field.key] for field in common_fields.SCENARIO if field.key in point}
    batch = work.pop("batch")
    design = {**point, common_fields.OWN_BATCH.key: batch if batch != values["batch"] else None}
    changed = {key: value for key, value in work.items() if value != values[key]}
    return tray.design_of(design, common_fields.DESIGN), changed


def loaded(row: Mapping[str, Any], asked: FrontRequest) -> dict[str, Any]:
    """Fields of a design of the tray for a point of what was asked."""
    sweep = asked.sweep()
    point = {name: row[name] for name in sweep.axis if name in row and not pd.isna(row[name])}
    key = _quantizer(point, asked, "key_quantizer" if "key_quantizer" in point else "quantizer")
    value = _quantizer(point, asked, "value_quantizer" if "value_quantizer" in point else "quantizer")
    numbers = [axis for axis in sweep.axes if axis.role == "device_field"]
    edits = [f"{axis.name}={point[axis.name]!r} {axis.unit}".strip() for axis in numbers]
    design = {
        "device": dict(zip(sweep.axis["device"].values, asked.devices, strict=True))[point["device"]],
        "edits": ",".join(edits),
        "model": dict(zip(sweep.axis["model"].values, asked.models, strict=True))[point["model"]],
        "quantizer": key.family,
        "parameters": key.parameters,
        "value_quantizer": None,
        "value_parameters": "",
        "measurements": asked.measurements,
        **common_fields.work_values(_work(point, sweep)),
    }
    if value != key:
        design.update(value_quantizer=value.family, value_parameters=value.parameters)
    return design


def _work(point: Mapping[str, Any], sweep: Sweep) -> Workload:
    """The workload of a row with these values of axes."""
    axes = [axis for axis in sweep.axes if axis.role == "workload" and axis.name in point]
    return Workload(**{axis.name: axis.items[axis.values.index(point[axis.name])] for axis in axes})


class QuantizerText(NamedTuple):
    """Family and parameters of a quantizer, as the fields of a design have them."""

    family: str
    parameters: str


def _quantizer(point: Mapping[str, Any], request: FrontRequest, name: str) -> QuantizerText:
    """Quantizer of a side, with the parameters that axes of their own give."""
    sweep = request.sweep()
    text = str(point.get(name, "fp16"))
    if text.startswith(layered.PREFIX):  # a file of this session: the only plans there are here
        return QuantizerText(request.quantizers[sweep.axis[name].values.index(text)], "")
    family, _, parameters = text.partition(":")
    parts = [parameters] if parameters else []
    for axis in sweep.axes:
        if axis.role == "parameter" and axis.name in point and axes.applies(axis, quantizers.parse(text)):
            parts.append(f"{axis.name.partition('.')[2]}={axis.items[axis.values.index(point[axis.name])]}")
    return QuantizerText(family, ",".join(parts))
