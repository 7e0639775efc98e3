"""Options that were given and would have no effect are refused, so that nobody reads a result as if they had."""

import click

from dse.core.errors import InputError, show


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
