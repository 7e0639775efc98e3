"""How good the choice of a deployment is: of those that were measured side by side, the one that is recommended.

    python -m benchmarks.measured_fronts [--stacks DIR] [--models NAME,...] [--computed] [--worst 0]

A front is a model with its lengths and a limit on TPOT, with what each deployment gave there (dse/data/
measured_fronts.csv). The search ranks these deployments, each with its release, on as many devices. Its loss is how far
the measured rate of the first is below the best measured one. A deployment whose largest measured load keeps the limit
still (`is_open`) is ranked at that load at most, as more of it was not measured (all other figures are with this;
"beyond" lifts it: the loss of a deployment that was tried at four requests is then that of four). What measured layouts
say of a front is that of other lengths; `--computed` ranks without. Kinds are fronts of deployments that differ in one
thing alone.

`--stacks` takes a directory that `dse calibrate TABLE --kernel host` wrote, such as one without a model's rows, with
`--models` the model. Bars: a loss of 5 % in the median and 15 % at the 90th percentile, less than of each rule in each
kind; 85 of 100 promised loads within the limit.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from calibration import layout_factors
from calibration.layout_factors import Factors
from dse.questions import measured_fronts
from dse.questions.grid import Grid
from dse.questions.measured_fronts import MeasuredLayout
from dse.questions.search import Budget, Search
from dse.questions.server_design import ServerDesign
from dse.specs import catalog
from dse.specs.prices import Offer, Price

Front = tuple[MeasuredLayout, ...]
#: fields in which the deployments of a front of a kind do not differ
SOFTWARE = "engine", "release", "month"
ALIKE: dict[str, tuple[str, ...]] = {
    "all": (),
    "device": ("engine", "weights", *measured_fronts.LAYOUT),
    "engine": ("device", "weights", "n_devices"),
    "weights": ("device", *SOFTWARE, *measured_fronts.LAYOUT),
    "layout": ("device", *SOFTWARE, "weights", "kv"),
}
RULES: dict[str, Callable[[MeasuredLayout], Any]] = {
    "fewest devices": lambda one: -one.n_devices,
    "newest": lambda one: (one.month, one.release),
    "FP8 always": lambda one: (one.kv == "fp8", -one.n_devices),
}
#: of each device; the choice is by tokens a device, so any price will do
PRICE = Price((Offer(1, 1.0),), "any")


class Judged(NamedTuple):
    """A front and the deployment that is recommended; None where none surely keeps the limit."""

    front: Front
    pick: MeasuredLayout | None
    #: requests at once that are promised
    load: float = 0.0

    @property
    def loss(self) -> float:
        """Measured rate of the pick below the best, as a share of it."""
        return loss(self.front, self.pick) if self.pick else 1.0

    @property
    def keeps(self) -> bool | None:
        """Whether the promised load was measured to keep the limit; None where no load was measured to break it."""
        return None if self.pick is None or self.pick.is_open else self.load <= self.pick.requests


def loss(front: Front, pick: MeasuredLayout) -> float:
    """How far the measured rate of a deployment is below the best of a front."""
    return 1 - pick.ratio / max(one.ratio for one in front)


def fronts(kind: str = "all") -> list[Front]:
    """Fronts of deployments that differ in a kind of thing alone, and in what they gave."""
    cells = defaultdict(list)
    for one in layout_factors.limited(measured_fronts.shipped()):
        alike = (getattr(one, name) for name in ALIKE[kind])
        cells[one.model, one.input_tokens, one.output_tokens, one.limit_s, *alike].append(one)
    return [tuple(cell) for cell in cells.values() if len({one.ratio for one in cell}) > 1]


class Judge:
    """Ranks the deployments of fronts; `factors` as measured layouts differ from what is computed, by lengths."""

    def __init__(self, models: tuple[str, ...] = (), beyond: bool = False, computed: bool = False) -> None:
        self.servers: dict[MeasuredLayout, ServerDesign] = {}
        for one in layout_factors.limited(measured_fronts.shipped()):
            if one.model in models or not models:
                self.servers[one] = layout_factors.server_of(one, beyond)
        as_measured = {one: layout_factors.server_of(one) for one in self.servers} if beyond else self.servers
        self.factors: Factors = {} if computed else layout_factors.factors_of(as_measured)

    def judged(self, kind: str) -> list[Judged]:
        """Every front of a kind."""
        return [self.judge(front) for front in fronts(kind) if front[0] in self.servers]

    def judge(self, front: Front) -> Judged:
        """The first of the deployments of a front by the search, on as many devices of each kind."""
        known = {self.servers[one]: one for one in front}
        each = math.lcm(*(one.n_devices for one in front))
        names = tuple(dict.fromkeys(one.device for one in front))
        grid = Grid(tuple(known), devices=names, engines=(), formats=(), splits=())
        budget, demand = Budget(counts=dict.fromkeys(names, each)), next(iter(known)).demand
        own = front[0].input_tokens, front[0].output_tokens
        others = {
            key: {lengths: times for lengths, times in found.items() if lengths != own}
            for key, found in self.factors.items()
        }
        measured_fronts.layout_factors = lambda: others  # type: ignore[assignment]
        found = Search.of(grid, demand, dict.fromkeys(names, PRICE), "throughput", budget)
        if not found.ranked:
            return Judged(front, None)
        first = found.ranked[0].server
        return Judged(front, known[first], first.holds)


def figures(losses: Iterable[float]) -> tuple[float, float, float]:
    """The median, the share of losses within 5 %, and the 90th percentile."""
    ordered = sorted(losses)
    return median(ordered), sum(one <= 0.05 for one in ordered) / len(ordered), ordered[int(0.9 * len(ordered))]


def line(name: str, losses: list[float]) -> str:
    """Figures of losses in words."""
    middle, near, most = figures(losses)
    return f"{name:<28} {len(losses):>4} fronts, median {middle:.1%}, within 5 % {near:.0%}, 90th percentile {most:.1%}"


def main() -> None:
    """Print the figures of each kind, and of each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stacks", type=Path, help="fits of servers in place of those that ship")
    parser.add_argument("--models", default="", help="fronts of these models alone, as 'a,b'")
    parser.add_argument("--computed", action="store_true", help="without what measured layouts say")
    parser.add_argument("--worst", type=int, default=0, help="so many of the fronts that lose most")
    asked = parser.parse_args()
    if asked.stacks:
        catalog._STACKS = asked.stacks  # before any is read
    models = tuple(filter(None, asked.models.split(",")))
    judge = Judge(models, computed=asked.computed)
    by_kind = {kind: judge.judged(kind) for kind in ALIKE}
    by_kind["all, beyond measured loads"] = Judge(models, True, asked.computed).judged("all")
    for kind, found in by_kind.items():
        n_none = sum(one.pick is None for one in found)
        if not (found := [one for one in found if one.pick]):
            continue
        print(line(kind, [one.loss for one in found]))
        for name, rule in RULES.items():
            print(line(f"    {name}", [loss(one.front, max(one.front, key=rule)) for one in found]))
        kept = [one.keeps for one in found]
        print(f"    {kept.count(True)} of {len(kept) - kept.count(None)} promised loads keep the limit")
        if n_none:
            print(f"    {n_none} fronts without an answer: nothing surely keeps the limit")
    by_model = defaultdict(list)
    for one in filter(lambda one: one.pick, by_kind["all"]):
        by_model[one.front[0].model].append(one.loss)
    for name, losses in sorted(by_model.items()):
        print(line(f"  {name}", losses))
    for one in sorted(by_kind["all"], key=lambda one: -one.loss)[: asked.worst]:
        print(told(one))


def told(one: Judged) -> str:
    """A front: its deployments, the best first, with a mark at the recommended one."""
    first = one.front[0]
    lines = [f"{one.loss:.1%} {first.model} {first.input_tokens}+{first.output_tokens}, {first.limit_s} s"]
    for other in sorted(one.front, key=lambda other: -other.ratio):
        mark, more = (">" if other is one.pick else " "), ("+" if other.is_open else " ")
        of = f"{other.device} {other.engine}@{other.release or other.month} {other.weights} {other.layout_text()}"
        lines.append(f"  {mark} {other.ratio:.3f}{more} {of}, {other.requests} requests")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
