"""Write by how much measured layouts differ from what is computed (dse/data/layout_factors.csv): `python -m
calibration.layout_factors`, after every fit of servers.

Of the fronts that ship (calibration/measured_fronts.py) under a limit on the time per token: the measured rate of each
deployment over the computed one, beside the geometric mean of that over the deployments on its device, and then over
limits, releases and formats of keys and values. A deployment of which no larger load was measured is computed at no
more than that.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

from dse import data
from dse.core import files
from dse.core.columns import csv_text
from dse.questions import common, measured_fronts
from dse.questions.measured_fronts import LAYOUT, LayoutKey, Lengths, MeasuredLayout
from dse.questions.search import Fleet
from dse.questions.server_design import Demand, RequestsAtOnce, ServerDesign
from dse.specs import engines
from dse.specs.workload import Workload

SHIPPED = Path(data.__file__).parent / "layout_factors.csv"
#: digits of a factor
DIGITS = 3
Factors = Mapping[LayoutKey, Mapping[Lengths, float]]


def server_of(one: MeasuredLayout, beyond: bool = False) -> ServerDesign:
    """A measured deployment as a search has it; `beyond`: also at more load than was measured. Raises DseError where
    the model does not run so."""
    fields = {name: getattr(one, name) for name in ("input_tokens", "output_tokens", *LAYOUT)}
    stack = f"{one.engine}@{engines.release_named(one.release)}"
    work = Workload(**fields, weights=one.weights or None, stack=stack)
    design = common.design(one.device.lower(), one.model, one.kv or "fp16")
    assert one.limit_s is not None
    demand = Demand(RequestsAtOnce(None), {"tpot_s": one.limit_s})
    server = ServerDesign(one.device, design, work, demand)
    if beyond or not one.is_open or one.requests >= server.most:
        return server
    return ServerDesign(one.device, design, replace(work, batch=one.requests), demand)


def factors_of(servers: Mapping[MeasuredLayout, ServerDesign]) -> Factors:
    """Measured over computed rate by layout and lengths, of deployments that hold a load within their limit."""
    fronts: dict[tuple[object, ...], list[tuple[MeasuredLayout, float]]] = defaultdict(list)
    for one, server in servers.items():
        if server.holds:
            computed = Fleet(server, 1, 0.0, server.holds).computed_tokens_per_s / one.n_devices
            place = one.model, one.device, one.input_tokens, one.output_tokens, one.limit_s
            fronts[place].append((one, one.ratio / computed))
    found: dict[tuple[LayoutKey, Lengths], list[float]] = defaultdict(list)
    for front in fronts.values():
        if len(front) > 1:
            middle = geometric_mean([times for _, times in front])
            for one, times in front:
                found[one.key, (one.input_tokens, one.output_tokens)].append(times / middle)
    factors: dict[LayoutKey, dict[Lengths, float]] = defaultdict(dict)
    for (key, lengths), of_limits in found.items():
        factors[key][lengths] = geometric_mean(of_limits)
    return factors


def text_of(factors: Factors) -> str:
    """The table as it ships."""
    names = ("model", "device", "engine", "weights", *LAYOUT)
    rows = []
    for key, by_lengths in sorted(factors.items()):
        for (inputs, outputs), times in sorted(by_lengths.items()):
            row = {name: int(cell) if isinstance(cell, bool) else cell for name, cell in zip(names, key, strict=True)}
            rows.append({**row, "input_tokens": inputs, "output_tokens": outputs, "times": times})
    return csv_text(rows, digits=DIGITS)


def limited(fronts: Iterable[MeasuredLayout]) -> list[MeasuredLayout]:
    """Those under a limit on the time per token."""
    return [one for one in fronts if one.limit_s]


def main() -> None:
    """Write what ships."""
    servers = {one: server_of(one) for one in limited(measured_fronts.shipped())}
    files.write(SHIPPED, text_of(factors_of(servers)).encode())


if __name__ == "__main__":
    main()
