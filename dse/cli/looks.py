"""The options that say how a figure is drawn, from the declaration of a look (`dse.specs.look`)."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from dse.specs.look import ASKED, Look

F = TypeVar("F", bound=Callable[..., Any])


def look_options(function: F) -> F:
    """An option for every field of a look, by its own name; a switch is given to turn it off."""
    for name, asked in reversed(ASKED.items()):
        default = getattr(Look, name)
        given: dict[str, Any] = {"default": default, "show_default": default is not None}
        if asked.kind == "switch":
            given = {"is_flag": True}
        elif asked.kind == "number":
            given |= {"type": float, "metavar": asked.unit.upper()}
        else:
            given["metavar"] = "|".join(asked.choices) or "TEXT"
        function = click.option(f"--{asked.option}", help=asked.help, **given)(function)
    return function


def look_of(given: Mapping[str, Any]) -> Look:
    """The look that these values of options ask for. Nothing is checked yet."""
    values: dict[str, Any] = {name: given[asked.option.replace("-", "_")] for name, asked in ASKED.items()}
    for name, asked in ASKED.items():
        if asked.kind == "switch":
            values[name] = not values[name]
    return Look(**values)
