"""A front as the page shows it: filtered, as a table with units, and the fields of What if for one of its designs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dse import catalog, point_names, quantizers, sweep_axes, sweep_where
from dse.pareto_designs import DesignFront
from dse.plots import design_front
from dse.sweep_axes import Axis
from dse.sweep_spec import Sweep

#: column -> field of What if
_FIELDS = {
    "batch": "batch", "input_tokens": "input", "output_tokens": "output", "admission": "admission",
    "weights_bits": "weights_bits", "model_kind": "model_kind", "stack": "stack",
}  # fmt: skip
#: relative distance within which a click belongs to a point
NEAR = 1e-6


def filtered(found: DesignFront, text: str) -> DesignFront:
    """The designs of a front that meet a condition on any of its columns, in base units. Raises InputError."""
    if not text.strip() or found.table.empty:
        return found
    axes, digits = [], {}
    for name in found.table.columns:
        codes, values = pd.factorize(found.table[name].astype(object).where(found.table[name].notna(), None))
        numbers = all(isinstance(v, int | float | np.number) and not isinstance(v, bool | np.bool_) for v in values)
        shown = tuple(values.tolist()) if numbers else tuple(str(v) for v in values)
        axes.append(Axis(name, "number" if numbers else "text", "workload", shown, shown))
        digits[name] = codes.astype(np.int32)
    keep = sweep_where.parse(text, axes).keep(digits)
    return replace(found, table=found.table[keep].reset_index(drop=True), row=found.row[keep], knee=found.knee[keep])


def table(found: DesignFront, most: int) -> pd.DataFrame:
    """The first `most` designs as people read them: knees marked, what varies and objectives first, shown units."""
    first = ("row", "feasible", "infeasible_code")
    names = list(dict.fromkeys((*found.design, *found.objectives, *found.table.columns)))
    shown = {"knee": ["★" if knee else "" for knee in found.knee[:most]]}
    for name in names:
        if name in first:
            continue
        column, unit = found.table[name].iloc[:most], found.units.get(name, "")
        if unit and pd.api.types.is_numeric_dtype(column):
            text, size = point_names.shown_unit(name, unit)  # by the name that conditions and files use
            shown[f"{name} ({text})" if text else name] = column if size == 1 else column.astype(float) / size
        else:
            shown[name] = column
    return pd.DataFrame(shown)


def at(found: DesignFront, x: float, y: float) -> dict[str, Any] | None:
    """The design drawn at a place of the figure, in the units of its axes; None where none is."""
    names = list(found.objectives)[:2]
    if len(names) == 1 or found.table.empty:
        return None
    distance = pd.Series(0.0, index=found.table.index)
    for name, shown in zip(names, (x, y), strict=True):
        values = found.table[name].astype(float)
        place = shown * design_front.axis(name, found.units.get(name, ""), values.tolist()).per_unit
        distance += (values - place).abs() / max(abs(place), np.finfo(float).tiny)
    nearest = distance.idxmin()
    return found.table.loc[nearest].to_dict() if distance[nearest] < NEAR else None


def loaded(row: Mapping[str, Any], sweep: Sweep) -> dict[str, Any]:
    """Fields of What if for a design of a sweep."""
    given = {name: row[name] for name in sweep.axis if name in row and not pd.isna(row[name])}
    key = _quantizer(given, sweep, "key_quantizer" if "key_quantizer" in given else "quantizer")
    value = _quantizer(given, sweep, "value_quantizer" if "value_quantizer" in given else "quantizer")
    policy, _, share = str(given.get("tokens", "full")).partition(":")
    numbers = [axis for axis in sweep.axes if axis.role == "device_field"]
    edits = [f"{axis.name}={given[axis.name]!r} {axis.unit}".strip() for axis in numbers]
    found = {
        "device": _named(catalog.device_files(), catalog.device, given["device"]), "edits": ",".join(edits),
        "model": _named(catalog.model_files(), catalog.model, given["model"]),
        "quantizer": key[0], "parameters": key[1], "value_quantizer": None, "value_parameters": "",
        "tokens": policy, "token_parameters": share, "admission": "reserve", "weights_bits": 16, "stack": None,
    }  # fmt: skip
    if value != key:
        found.update(value_quantizer=value[0], value_parameters=value[1])
    for column, field in _FIELDS.items():
        if column in given:
            number = given[column]
            found[field] = number if isinstance(number, str) else int(number)
    return {**found, "stack": None if found["stack"] == sweep_axes.AUTO else found["stack"]}


def not_loaded(sweep: Sweep) -> list[str]:
    """Axes of a sweep that What if has no field for."""
    return [axis.name for axis in sweep.axes if axis.role == "workload" and axis.name not in (*_FIELDS, "tokens")]


def _quantizer(given: Mapping[str, Any], sweep: Sweep, name: str) -> tuple[str, str]:
    """Family and parameters of a side, with the parameters that axes of their own give."""
    text = str(given.get(name, "fp16"))
    family, _, parameters = text.partition(":")
    parts = [parameters] if parameters else []
    for axis in sweep.axes:
        if axis.role == "parameter" and axis.name in given and sweep_axes.applies(axis, quantizers.parse(text)):
            parts.append(f"{axis.name.partition('.')[2]}={axis.items[axis.values.index(given[axis.name])]}")
    return family, ",".join(parts)


def _named(files: Mapping[str, Any], read: Any, title: str) -> str:
    """The name by which the catalogue knows a device or model."""
    return next(name for name in files if read(name).name == title)
