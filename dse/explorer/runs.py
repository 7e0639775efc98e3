"""Operations on a design as a page runs them: with what files of the reader's own hold in place of their names."""

from dataclasses import fields, replace
from typing import Any

from dse.explorer.request import PointRequest
from dse.operations.declare import Operation
from dse.quantizers import QuantizerSpec


def stored(point: PointRequest) -> QuantizerSpec:
    """Quantizer of the keys, with the measured bits and errors of the design. Raises InputError."""
    return point.bits().attached(point.quantizer_specs()[0])


def with_files(asked: Operation, point: PointRequest, **more: Any) -> Any:
    """An operation on `point`, as its command asks it, ready to run; `more` are fields that name other files.

    Raises InputError and SpecError.
    """
    keys, values = map(point.bits().attached, point.quantizer_specs())
    held = {
        "device": point.device_spec(),
        "model": point.model_spec(),
        "quantizer": keys,
        "value_quantizer": values,
        "measurements": None,
    }
    known = {field.name for field in fields(asked)}
    return replace(asked, **{name: value for name, value in held.items() if name in known}, **more)
