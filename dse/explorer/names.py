"""Columns as headings and options name them, with the units that pages show."""

from dse.model import results
from dse.model.results import RESULT_UNITS


def words(name: str) -> str:
    """Title of a column: `decode_step_s` is the decode step."""
    text = results.title(name)
    text = text if text != name else name.replace("_", " ").replace(".", ": ", 1)
    return text[:1].upper() + text[1:]


def heading(name: str, unit: str) -> str:
    """A column of base unit `unit` with the unit in which figures and tables show it: Decode step (ms)."""
    shown, _ = results.shown_unit(name, unit)
    return f"{words(name)} ({shown})" if shown else words(name)


def titled(name: str) -> str:
    """`heading` of a result."""
    return heading(name, RESULT_UNITS.get(name, ""))
