"""Measured servers beside a recommended one: whether another layout was measured to give clearly more.

The figures are ratios of output tokens a second and device inside cells (dse/data/measured_fronts.csv, made by
calibration/measured_fronts.py): a model with its lengths, under a limit on the time per token or at so many requests.
A choice among layouts weighs computed rates by how measured ones differ from them beside one another
(dse/data/layout_factors.csv, made by calibration/layout_factors.py).
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from statistics import geometric_mean
from typing import Any, NamedTuple, get_type_hints

from dse import data
from dse.core import units
from dse.questions import layouts
from dse.questions.common import limits_text, options
from dse.specs.engines import ENGINES
from dse.specs.weights import WIDE, WIDE_BITS

#: how far mean lengths, a limit and requests at once of a cell may be from those asked for, as a factor either way;
#: assumed
LENGTHS_WITHIN, LIMIT_WITHIN, LOAD_WITHIN = 1.25, 1.5, 1.5
#: times as many tokens as are clearly more, assumed: just beyond what reruns differ by (`two_runs.RERUN_90`), as one
#: release in one month is compared
CLEARLY = 1.05
LAYOUT = tuple(name for name in layouts.SPLIT if name != "dcp")
_MS = units.to_base(1, "ms")


#: model, device, engine, format of weights, and the layout; mean lengths of prompts and answers
LayoutKey = tuple[Any, ...]
Lengths = tuple[int, int]


class MeasuredLayout(NamedTuple):
    """A deployment in a cell."""

    model: str
    input_tokens: int
    output_tokens: int
    #: None: a cell of so many requests at once
    limit_s: float | None
    device: str
    engine: str
    #: release, and month of the measurement, "" where they are not stated; as the type of keys and values is
    release: str
    month: str
    weights: str
    kv: str
    n_devices: int
    tp: int
    pp: int
    ep: int
    dp_attention: bool
    source: str
    requests: int
    #: more load was not measured, and keeps the limit maybe: the ratio is the least that it gives
    is_open: bool
    #: output tokens a second and device over those of the best deployment of the cell
    ratio: float

    @property
    def key(self) -> LayoutKey:
        """Model, device, engine, format of weights and layout."""
        return self.model, self.device, self.engine, self.weights, *_layout(self)

    def layout_text(self) -> str:
        """The options of its layout."""
        return options(self._asdict(), LAYOUT) or "one device"


class MeasuredFront(NamedTuple):
    """Deployments of one cell that differ in their layout alone, most tokens a device first; `picked` is the
    recommended one, None where that was not measured."""

    deployments: tuple[MeasuredLayout, ...]
    picked: MeasuredLayout | None
    #: the layout that is recommended, as options
    layout: str
    #: the type of keys and values that is recommended
    kv: str

    @property
    def times(self) -> float | None:
        """The best deployment's tokens a device over those of the recommended one."""
        return self.picked and self.deployments[0].ratio / self.picked.ratio

    @property
    def contradicts(self) -> bool:
        """True where a measured deployment gave clearly more than the recommended one."""
        return (self.times or 1.0) > CLEARLY

    def text(self) -> str:
        """One line, or a clause where the measured front agrees."""
        best = self.deployments[0]
        within = limits_text({"tpot_s": best.limit_s}) if best.limit_s else f"{best.requests:,} requests at once"
        release = f"{ENGINES.get(best.engine, best.engine)} {best.release or best.month}"
        kv = f", keys and values in {best.kv}" if best.kv not in ("", self.kv) else ""
        where = f"{release}, {best.input_tokens:,} + {best.output_tokens:,} tokens, {within}{kv}; {best.source}"
        if self.picked is None:
            names = ", ".join(one.layout_text() for one in self.deployments)
            return f"Not measured: {self.layout}. Measured there, most tokens a device first: {names} ({where})."
        if self.contradicts:
            return (
                f"Measured otherwise: {best.layout_text()} gave {self.times:.2f} times the tokens a device of "
                f"{self.layout} ({where})."
            )
        how = "the best too" if self.times == 1 else f"within {100 * (self.times or 1) - 100:.2g} % of the best"
        return f"Measured {how}, of {len(self.deployments)} layouts ({where})."

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        told = [{name: value for name, value in one._asdict().items() if value != ""} for one in self.deployments]
        return {"contradicts": self.contradicts, "times": self.times, "deployments": told}


def measured_front(pick: Mapping[str, Any], limit_s: float | None = None) -> MeasuredFront | None:
    """The measured deployments nearest to a recommended one, by its results or a row of them: of its model, device,
    engine and format of weights, at lengths near its own, under a limit on the time per token near `limit_s`; without
    one, at a load and on as many devices as it has.

    None where fewer than two layouts of one release and month were measured there, and where the recommended one was
    measured at less load alone, and gave less. Of several releases one that has the recommended layout goes first, then
    one with its keys and values, then the newest.
    """
    if any(name not in pick for name in ("weights_bits", "stack", "dcp")) or pick["dcp"] != 1:  # tables may say less
        return None
    layout = tuple(pick[name] for name in LAYOUT)
    cells: dict[tuple[float, ...], list[MeasuredLayout]] = defaultdict(list)
    for one in shipped():
        if _is_alike(one, pick) and (far := _distance(one, pick, limit_s)) is not None:
            cells[far, one.input_tokens, one.output_tokens, one.limit_s or one.requests].append(one)
    groups: dict[tuple[str, ...], list[MeasuredLayout]] = defaultdict(list)
    for one in cells[min(cells)] if cells else ():
        groups[one.release, one.month, one.kv].append(one)
    found = []
    for (release, month, kv), group in groups.items():
        picked = next((one for one in group if _layout(one) == layout), None)
        least = picked.ratio if picked else math.inf
        group = [one for one in group if one is picked or not one.is_open or one.ratio > least]
        if len(group) > 1:
            rank = picked is not None, kv in ("", pick["quantizer"]), month, release
            found.append((rank, sorted(group, key=lambda one: -one.ratio), picked))
    if not found:
        return None
    _, group, picked = max(found, key=lambda one: one[0])
    front = MeasuredFront(tuple(group), picked, options(pick, LAYOUT) or "one device", str(pick["quantizer"]))
    is_at_less = picked and picked.is_open and picked.requests < pick["batch"]
    return None if is_at_less and front.times != 1 else front


def _layout(one: MeasuredLayout) -> tuple[Any, ...]:
    return tuple(getattr(one, name) for name in LAYOUT)


def _named(pick: Mapping[str, Any]) -> tuple[str, ...]:
    """Model, device, engine and format of weights of a recommended one."""
    weights = pick["weights"] if isinstance(pick["weights"], str) else WIDE if pick["weights_bits"] == WIDE_BITS else ""
    return pick["model"], pick["device"], str(pick["stack"]).partition("@")[0], weights


def _is_alike(one: MeasuredLayout, pick: Mapping[str, Any]) -> bool:
    return (one.model, one.device, one.engine, one.weights) == _named(pick)


def _distance(one: MeasuredLayout, pick: Mapping[str, Any], limit_s: float | None) -> float | None:
    """Return the distance of a deployment's cell from what is asked, in logarithms; None where that is too far."""
    pairs: list[tuple[float, float, float]] = [(one.input_tokens, pick["input_tokens"], LENGTHS_WITHIN)]
    pairs += [(one.output_tokens, pick["output_tokens"], LENGTHS_WITHIN)]
    if limit_s is None:
        if one.limit_s is not None or one.n_devices != pick["n_devices"]:
            return None
        pairs += [(one.requests, pick["batch"], LOAD_WITHIN)]
    elif one.limit_s is None:
        return None
    else:
        pairs += [(one.limit_s, limit_s, LIMIT_WITHIN)]
    off = [(abs(math.log(value / asked)), math.log(within)) for value, asked, within in pairs]
    return None if any(far > most for far, most in off) else math.fsum(far for far, _ in off)


def layout_times(pick: Mapping[str, Any]) -> float | None:
    """Measured over computed rate of the layout of a result, beside that of the other measured layouts of its model and
    device: the geometric mean over the lengths at which it was measured; None where it was not."""
    if pick["dcp"] != 1:
        return None
    times = layout_factors().get((*_named(pick), *(pick[name] for name in LAYOUT)))
    return geometric_mean(times.values()) if times else None


@cache
def layout_factors() -> Mapping[LayoutKey, Mapping[Lengths, float]]:
    """Measured over computed rate of every measured layout, by lengths."""
    factors: dict[LayoutKey, dict[Lengths, float]] = defaultdict(dict)
    for row in data.rows("layout_factors.csv"):
        layout = (row["dp_attention"] == "1" if name == "dp_attention" else int(row[name]) for name in LAYOUT)
        key = row["model"], row["device"], row["engine"], row["weights"], *layout
        factors[key][int(row["input_tokens"]), int(row["output_tokens"])] = float(row["times"])
    return factors


@cache
def shipped() -> tuple[MeasuredLayout, ...]:
    """All deployments that ship."""
    kinds = get_type_hints(MeasuredLayout)
    return tuple(_measured(row, kinds) for row in data.rows("measured_fronts.csv"))


def _measured(row: Mapping[str, str], kinds: Mapping[str, Any]) -> MeasuredLayout:
    """A row of the table: its columns are the fields, of these `kinds`, but for the limit in ms."""
    limit_ms = row["tpot_limit_ms"]
    limit_s = float(limit_ms) * _MS if limit_ms else None
    said = {name: kinds[name](int(row[name]) if kinds[name] is bool else row[name]) for name in {*kinds} - {"limit_s"}}
    return MeasuredLayout(limit_s=limit_s, **said)
