"""Limits of the front page: a number with its unit each, chosen from all results, kept as a text in the address."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import streamlit as st

from dse.core import units
from dse.core.errors import InputError, show
from dse.core.field import Field
from dse.explorer import names, state
from dse.model.results import RESULT_UNITS, shown_unit
from dse.sweep.pareto import designs

#: limits of a field at most: their text, whatever they are called, fits into an address (`fields.MAX_TEXT`)
MAX_LIMITS = 5
#: columns of numbers that a sweep sets, not results
COUNTED = tuple(sorted(designs.COUNTS))
#: from this share of common letters on, a name is taken for another that is misspelled
_ALIKE = 0.85


class NamedLimit(NamedTuple):
    """A column, and its limit in base units; None where the number is still to come, and nothing is limited."""

    column: str
    value: float | None


def objective_names() -> list[str]:
    """Columns that can be objectives."""
    return [*(name for name, unit in RESULT_UNITS.items() if unit), "memory_bandwidth", "memory_capacity"]


def limits_in(text: str, kind: str) -> list[NamedLimit]:
    """The limits of a text, `NAME = NUMBER UNIT; ...`, in base units; `kind` is "at most" or "at least".

    A column goes by its words or its name. A number without a unit is in base units behind a name, as in conditions;
    behind words it needs its unit where people see another than the base unit. Raises InputError.
    """
    limits: list[NamedLimit] = []
    known = (*objective_names(), *COUNTED)
    for item in filter(None, map(str.strip, text.split(";"))):
        said, equals, number = (piece.strip() for piece in item.partition("="))
        name = names.column(said, known)
        if not equals or name not in known:
            raise InputError(f"{kind} {show(item)}: write NAME = NUMBER UNIT; ..., such as {_nearest(item, known)}")
        if name in {limit.column for limit in limits}:
            raise InputError(f"{kind} {said}: is given twice: leave one")
        if not number:
            limits.append(NamedLimit(name, None))
            continue
        base, shown, size = _units(name)
        sizes = {base: 1.0, shown: size, **{symbol: units.to_base(1, symbol) for symbol in units.units_of(base)}}
        try:
            first, _, words = number.partition(" ")  # some units are words
            value, unit = units.number_and_unit(first) or (math.nan, "")
            unit = f"{unit} {words}".strip()
        except ValueError as error:
            raise InputError(f"{kind} {said} = {show(number)}: {error}") from None
        if not math.isfinite(value) or (unit and unit not in sizes):
            among = ", ".join(filter(None, sizes))
            raise InputError(f"{kind} {said} = {show(number)}: must be a number, its unit one of {among}")
        if not unit and size != 1 and said != name:
            raise InputError(f"{said} = {value:g}: say the unit, for example {value:g} {shown}")
        limits.append(NamedLimit(name, value * sizes[unit] if unit else value))
    if len(limits) > MAX_LIMITS:
        raise InputError(f"{kind}: {len(limits)} limits are given: must be at most {MAX_LIMITS}")
    return limits


def written(limits: Iterable[NamedLimit]) -> str:
    """Limits as a text that `limits_in` takes: columns in words, numbers in the unit that people see."""
    said = []
    for column, value in limits:
        _, shown, size = _units(column)
        said.append(f"{names.words(column)} = {'' if value is None else f'{value / size:.12g} {shown}'}".strip())
    return "; ".join(said)


def as_options(limits: Iterable[NamedLimit]) -> tuple[str, ...]:
    """Limits as the command line takes them, in base units."""
    return tuple(f"{column}={value:.12g}" for column, value in limits if value is not None)


def draw_choice(field: Field) -> None:
    """Draw the field that says which columns have a limit."""
    chosen = {limit.column: limit for limit in _now(field)}
    key = f"{field.key} on"
    st.session_state[key] = list(chosen)

    def choose() -> None:
        now = st.session_state[key]
        state.put({field.key: written(chosen.get(name, NamedLimit(name, None)) for name in now)})

    st.multiselect(
        field.label,
        [*objective_names(), *COUNTED],
        key=key,
        on_change=choose,
        max_selections=MAX_LIMITS,
        format_func=names.titled,
        placeholder=field.open_means,
        help=field.help,
    )


def draw_numbers(fields: Mapping[Field, Mapping[str, float]], places: Sequence[Any]) -> None:
    """Draw a number for each limit, in turn in the `places`; one left open limits nothing.

    Each field comes with the limits of the workload that stand in for its own, in base units by column: those are
    changed at one place.
    """
    at = 0
    for field, workload in fields.items():
        limits = _now(field)
        for i, (column, value) in enumerate(limits):
            _, unit, size = _units(column)
            key = f"{field.key} {column}"
            is_given = column in workload
            value = workload.get(column, value)
            st.session_state[key] = None if value is None else float(f"{value / size:.12g}")
            label = f"{names.words(column)}, {field.label.lower()}" + (f" ({unit})" if unit else "")
            with places[at % len(places)]:
                st.number_input(
                    label,
                    min_value=0.0 if unit != "dB" else None,
                    value=None,
                    step=1.0,
                    format="%g",
                    key=key,
                    placeholder="no limit",
                    disabled=is_given,
                    help="The workload's, changed in the sidebar." if is_given else "Left open, it limits nothing.",
                    on_change=partial(_keep, field, limits, i, key, size),
                )
            at += 1


def _keep(field: Field, limits: Sequence[NamedLimit], at: int, key: str, size: float) -> None:
    typed = st.session_state[key]
    changed = NamedLimit(limits[at].column, None if typed is None else typed * size)
    state.put({field.key: written([*limits[:at], changed, *limits[at + 1 :]])})


def _now(field: Field) -> list[NamedLimit]:
    """The field's limits as the session has them; what cannot be used was said when its address was read."""
    try:
        return limits_in(st.session_state[field.key], field.label.lower())
    except InputError:
        return []


def _units(column: str) -> tuple[str, str, float]:
    """The base unit of a column, the one that people see, and its size in base units."""
    base = RESULT_UNITS.get(column, "B/s" if column.endswith("bandwidth") else "B")
    return base, *shown_unit(column, base)


def _nearest(item: str, known: Sequence[str]) -> str:
    """Suggest up to three columns whose words contain what a limit names, or else are spelled like it."""
    said = re.split("[<>=]", item)[0].strip().lower()
    words = {spelled: names.words(name) for name in known for spelled in (name, names.words(name).lower())}
    near = [words[spelled] for spelled in words if said and said in words[spelled].lower()]
    near = near or [words[spelled] for spelled in difflib.get_close_matches(said, words, cutoff=_ALIKE)]
    return " or ".join(list(dict.fromkeys(near))[:3]) or "Decode step = 50 ms"
