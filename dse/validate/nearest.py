"""Measurements nearest to a design: groups of servers, kernels, and how far its model is from measured ones.

Rows of measurements do not ship, their errors do: dse/data/silicon.csv of kernels, dse/data/serving.csv of servers.
"""

import itertools
import math
from collections.abc import Mapping
from functools import cache

from dse import data
from dse.model.point import Point
from dse.model.stacks import KERNELS
from dse.specs import catalog
from dse.specs.device_and_model import ModelSpec
from dse.specs.engines import ENGINES
from dse.specs.stack import ServedStack
from dse.validate import silicon
from dse.validate.silicon import SiliconRow


@cache
def _groups() -> Mapping[tuple[str, str], Mapping[str, str]]:
    """The rows of data/serving.csv, by what they are grouped and the name of the group."""
    return {(row["by"], row["group"]): row for row in data.rows("serving.csv")}


def kind_of(model: ModelSpec) -> str:
    """The kind of models that a model's servers err as: dense or mixture."""
    return "mixture" if model.n_experts > 1 else "dense"


@cache
def _sizes(kind: str) -> Mapping[str, float]:
    """Active parameters of the models of a kind whose servers were measured, by name."""
    models = [catalog.model(group) for by, group in _groups() if by == "model"]
    return {model.name: float(model.active_parameters) for model in models if kind_of(model) == kind}


@cache
def _reach(kind: str) -> float:
    """The ratio of active parameters within which a model counts as near to a measured one of its kind: the largest of
    a measured model over its nearest neighbor, since intervals are those of models left out of the fit."""
    sizes = sorted(_sizes(kind).values())
    steps = [larger / smaller for smaller, larger in itertools.pairwise(sizes)]
    return max(min(pair) for pair in zip([*steps, math.inf], [math.inf, *steps], strict=True))


def nearest_model(model: ModelSpec) -> tuple[str, float]:
    """The measured model of its kind with the nearest number of active parameters, and the ratio of the model's to
    that (below 1: fewer)."""
    sizes = _sizes(kind_of(model))
    ratios = {name: float(model.active_parameters) / size for name, size in sizes.items()}
    name = min(ratios, key=lambda name: (name != model.name, abs(math.log(ratios[name]))))
    return name, ratios[name]


def is_far(model: ModelSpec) -> bool:
    """True where the model is farther in size from every measured one than a left-out model was from the others."""
    return abs(math.log(nearest_model(model)[1])) > math.log(_reach(kind_of(model))) + 1e-9


def groups_of(point: Point) -> dict[str, str]:
    """The groups of measured servers that a design belongs to: by what they are grouped -> the group's name.

    Its model, device, engine, release (that whose own time counts) and kind of models, where these were measured.
    """
    stack, model = point.stack, point.plan.whole_model
    release = (stack.stands_in or stack.measured) if isinstance(stack, ServedStack) else ""
    system = next(
        (group for by, group in _groups() if by == "system" and catalog.device(group).name == point.device.name), ""
    )
    wanted = {
        "model": model.name,
        "system": system,
        "stack": (point.stack_name or "").partition("@")[0],
        "release": release,
        "kind": kind_of(model),
    }
    return {by: group for by, group in wanted.items() if (by, group) in _groups()}


def is_of_model(model: str, stack: str | None) -> bool:
    """True where servers of the model were measured on the stack, as results name both: its interval is from them."""
    engine, _, release = (stack or "").partition("@")
    return engine in catalog.servers() and release != KERNELS and model in catalog.servers()[engine].models


def kernels_of(point: Point) -> list[SiliconRow]:
    """Errors of the fits to the kernels of the design's device and stack, on rows that no fit saw, like serving."""
    return [
        row
        for row in silicon.recorded_rows()
        if (row.device, row.stack, row.size_class) == (point.device.name, point.stack_name, "like serving")
    ]


def sentence(point: Point) -> str:
    """Say what was measured near a design, how far off it is, and from what its interval is."""
    return f"{_kernels(point)}, {_servers(point)}; the interval: {point.lowered.sure.tokens.why}."


def _kernels(point: Point) -> str:
    device = point.device.name
    if point.work.model_kind == "ideal":
        return "Times are those of peak rates"
    if point.stack is None:
        return f"Nobody timed kernels on {device}"
    engine = ENGINES.get(point.stack_name or "", point.stack_name)
    if rows := kernels_of(point):
        off = _percent(max(row.mean for row in rows))
        return f"{engine}'s kernels on {device} were timed ({off} off at most in the mean)"
    if point.device.stacks_of:
        return f"Kernels of {point.device.stacks_of.upper()} stand in for those of {device}"
    return f"{engine}'s kernels on {device} were not timed by themselves"


def _servers(point: Point) -> str:
    model = point.plan.whole_model
    name, ratio = nearest_model(model)
    if name != model.name:
        size = f"has {1 / ratio:,.2g} times its active parameters"
        return f"servers of {model.name} were not measured (the nearest that was, {name}, {size})"
    row = _groups()["model", name]
    engines = [ENGINES[stack] for stack, server in catalog.servers().items() if name in server.models]
    return (
        f"{int(row['rows']):,} servers of {name} were measured, on {' and '.join(engines)} "
        f"({_percent(row['tpot_mean'])} off in the mean, {_percent(row['tpot_inside'])} inside their intervals)"
    )


def _percent(share: float | str) -> str:
    return f"{100 * float(share):.0f}\u00a0%"
