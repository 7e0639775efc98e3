"""Fitted numbers as blocks of a device file, and the file that they are written into."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dse.core import files, specfile, toml, units
from dse.core.errors import InputError, show
from dse.specs import catalog
from dse.specs.stack import BEFORE_ROWS

HEAD = "# Written by `dse calibrate`; docs/explanation/calibration.md has the forms and the errors."


def digits(share: float) -> float:
    """An error as files have it: three digits."""
    return float(f"{share:.3g}")


def number(value: float, unit: str) -> str | float:
    """A number given in SI units as a block writes it: four digits and its unit, a share bare."""
    shown = float(f"{value / units.to_base(1, unit):.4g}")
    return shown if unit == "1" else f"{shown!r} {unit}"


def block(
    parameters: Mapping[str, float],
    unit_of: Mapping[str, str],
    *,
    fitted_on: str,
    rows: str,
    n_points: int,
    errors: Mapping[str, float],
) -> dict[str, Any]:
    """Parameters in SI units as a block: its source once, then each number; `unit_of` those that are not in us.

    `rows` says how many rows were fitted, and how well. `errors` are the fields of the block that hold errors.
    """
    source = f"{fitted_on}; {rows}"
    entries = {"source": source, **{name: number(value, unit_of.get(name, "us")) for name, value in parameters.items()}}
    entries |= {"n_points": n_points, **{name: digits(share) for name, share in errors.items()}}
    return entries if BEFORE_ROWS.split(source)[0] == fitted_on else {**entries, "fitted_on": fitted_on}


def check_out(out: str) -> None:
    """Raise InputError for a path that is no device file's."""
    if not out.lower().endswith(".toml"):
        raise InputError(f"out = {show(out)}: must end in .toml: it becomes a device file")


def device_data(name: str) -> dict[str, Any]:
    """The keys of a device's file, fitted ones included."""
    shipped = catalog.device_files().get(name.strip().lower())
    return (catalog.shipped_device(shipped) if shipped else specfile.read(name)).data


def device_text(data: Mapping[str, Any], out: str) -> str:
    """A device file that holds `data`; of a path among the shipped calibrations, only what its data sheet lacks.

    Raises InputError or SpecError where no device can be read from the data.
    """
    catalog.device_from(specfile.parse(out, toml.dumps(data)))
    path = Path(out).absolute()
    sheet = catalog.device_files().get(path.stem)
    if sheet and path == catalog.calibration_file(path.stem).absolute():
        more = _without(data, specfile.read(sheet).data)
        data = {table: more[table] for table in ("energy", "stacks", "links") if table in more}
    return f"{HEAD}\n{toml.dumps(data)}"


def write_device(data: Mapping[str, Any], out: str) -> None:
    """Write a device file, or a shipped device's calibration. Raises InputError, SpecError or OutputError."""
    files.write(Path(out), device_text(data, out).encode())


def _without(data: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of `data` that `other` has not; of tables in both, what the table has more."""
    rest = {}
    for name, item in data.items():
        if name not in other:
            rest[name] = item
        elif isinstance(item, Mapping) and item != other[name] and (more := _without(item, other[name])):
            rest[name] = more
    return rest
