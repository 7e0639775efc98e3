"""Options under their own names in messages; those that were given and would have no effect are refused, so that nobody
reads a result as if they had."""

from typing import Any

import click

from dse.cli.options import Whole, parse_whole
from dse.core.errors import InputError, show


class Named(Whole):
    """A whole number; what is wrong with it is told under the option's own name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number, or InputError."""
        name = param.opts[0].removeprefix("--") if param else "value"
        return value if isinstance(value, int) else parse_whole(name, value)


NAMED = Named()


def refuse(reasons: dict[str, str]) -> None:
    """Raises InputError for the first option of the running command that was given and stands in `reasons`.

    Keys are the command's parameter names, values say where it has no effect ("without --trace"). Defaults are not
    given, so they are never refused.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and name in reasons:
            option = parameter.opts[0].removeprefix("--")
            raise InputError(f"{option} = {show(context.params[name])}: has no effect {reasons[name]}: leave it out")
