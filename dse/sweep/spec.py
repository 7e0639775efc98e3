"""A sweep as a user writes it, in TOML or Python, and as it is run: axes, conditions, columns, all names resolved."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dse.core import specfile
from dse.core.errors import MAX_PROBLEMS, DseError, InputError, LimitError, SpecError, did_you_mean, show
from dse.model.engine import AUTO, By
from dse.model.results import RESULT_UNITS
from dse.specs import measured_memory
from dse.specs.measurements import Bits, bits_from
from dse.specs.workload import Workload
from dse.sweep import designs
from dse.sweep.axes import QUANTIZER_AXES, AxisError, KeyPath, SweepAxis, applies, build, known_axes
from dse.sweep.conditions import Condition, parse
from dse.sweep.designs import Designs

#: columns kept where a sweep does not say which
DEFAULT_KEEP = (
    "effective_bits",
    "stored_bits",
    "kv_bytes",
    "max_batch",
    "running_batch",
    "decode_step_s",
    "throughput_tokens_per_s",
    "joules_per_token",
    "usd_per_million_tokens",
    "bound",
    "runs_why",
)
#: results that every table of a sweep has, one in another form: `feasible`, `infeasible_code` and `runs`
ALWAYS = ("feasible", "infeasible_reason", "runs")
#: points of a part at most; a part is written, and lost by a kill, as a whole
MAX_PART_POINTS = 2**19
MIN_PART_POINTS = 2**12
#: of a sweep that keeps a front only, whose parts are small
MAX_FRONT_POINTS = 2**22
MAX_POINTS = 2**62
#: quantizers that are listed, or pairs of them; their parameters come on top
MAX_QUANTIZERS = 100_000


class SweepFile(BaseModel):
    """The keys of a sweep file.

    `axes` name what is varied (`dse.sweep.axes`), the last one fastest; `where` are conditions that points must meet;
    `keep` are result columns, or "all". `bits` and `measurements` are as of `dse point`.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    title: str = Field(default="", max_length=200)
    axes: dict[str, Any]
    where: list[str] = Field(default_factory=list, max_length=100)
    keep: list[str] | str = Field(default_factory=lambda: list(DEFAULT_KEEP), max_length=200)
    bits: str = "closed"
    measurements: str | None = None


@dataclass(frozen=True)
class Block:
    """A stretch of a dimension in which the same axes vary: the last one fastest. `fixed` axes keep one value."""

    start: int
    size: int
    varying: tuple[SweepAxis, ...]
    fixed: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Dimension:
    """One digit of a point's index: an axis, or quantizers each with the parameters that vary it."""

    blocks: tuple[Block, ...]

    @property
    def size(self) -> int:
        """Values of the digit."""
        return self.blocks[-1].start + self.blocks[-1].size


@dataclass(frozen=True)
class Front:
    """The front that a sweep keeps instead of all rows: designs that no other of the same group `by` beats.

    `objectives` are pairs of a column and "max" or "min"; points without one of them are an error, or left out. Only
    points within `limits` compete: columns, "at most" or "at least", and values in base units.
    """

    objectives: tuple[tuple[str, str], ...]
    by: tuple[str, ...] = ()
    drop_missing: bool = False
    limits: tuple[tuple[str, str, float], ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that decide who is on the front."""
        names = (*dict(self.objectives), *self.by, *(name for name, _, _ in self.limits))
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class Sweep:
    """A sweep ready to run; `n_points` counts the grid, before conditions drop any.

    `by` is the way to compute it: rows are the same by each, so it is no part of what the sweep is.
    """

    axes: tuple[SweepAxis, ...]
    dimensions: tuple[Dimension, ...]
    where: tuple[Condition, ...] = ()
    keep: tuple[str, ...] = DEFAULT_KEEP
    base: Workload = field(default_factory=Workload)
    bits: Bits = field(default_factory=Bits)
    title: str = ""
    front: Front | None = None
    by: By = field(default=AUTO, compare=False)

    @cached_property
    def n_points(self) -> int:
        """Points of the grid."""
        return math.prod(dimension.size for dimension in self.dimensions)

    @property
    def is_compiled(self) -> bool:
        """True where compiled code computes the points."""
        return self.by.compiles(self.n_points)

    @property
    def part_points(self) -> int:
        """Points of a part: about 64 parts, within bounds. Never a choice of the run, since files depend on it."""
        wanted = max(-(-self.n_points // 64), MIN_PART_POINTS)
        return min(1 << (wanted - 1).bit_length(), MAX_FRONT_POINTS if self.front else MAX_PART_POINTS)

    @cached_property
    def axis(self) -> dict[str, SweepAxis]:
        """Axes by name."""
        return {axis.name: axis for axis in self.axes}

    @cached_property
    def designs(self) -> Designs:
        """Builder of the devices, plans and workloads of points."""
        return Designs(self.axes, self.base, self.bits)

    @cached_property
    def case(self) -> Callable[[Any], Any]:
        """`dse.sweep.cases.case_of` a row of `designs.rows`; recent ones are kept."""
        from dse.sweep import cases  # loads numba

        @lru_cache(maxsize=designs.KEPT)
        def of(*key: Any) -> Any:
            return cases.case_of(self.designs, key, self.keep)

        def case(row: Any) -> Any:
            return of(*row)

        return case

    @cached_property
    def columns(self) -> dict[str, str]:
        """Columns of the table and their units."""
        results = {name: RESULT_UNITS[name] for name in self.keep}
        return {**{a.name: a.unit for a in self.axes}, "feasible": "", "infeasible_code": "", "runs": "", **results}

    @cached_property
    def narrow(self) -> "Sweep":
        """This sweep with only the columns that decide who is on the front."""
        assert self.front is not None
        wanted = self.front.columns
        return dataclasses.replace(self, keep=tuple(name for name in self.keep if name in wanted), front=None)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that the results depend on, as plain JSON: the numbers of devices and models, not where they lie."""
        specs = {"device", "model"}
        return {
            "axes": [
                {
                    "name": axis.name,
                    "unit": axis.unit,
                    "values": list(axis.values),
                    **({"specs": [item.model_dump(mode="json") for item in axis.items]} if axis.name in specs else {}),
                    **_plans(axis),
                    **_memories(axis),
                }
                for axis in self.axes
            ],
            "where": [condition.text for condition in self.where],
            "keep": list(self.keep),
            "workload": dataclasses.asdict(self.base),
            "bits": {
                "kind": self.bits.kind,
                "measurements": _sha256(self.bits.file.model_dump(mode="json")) if self.bits.file else "shipped",
            },
            **({"front": dataclasses.asdict(self.front)} if self.front else {}),
        }

    @cached_property
    def sha256(self) -> str:
        """Hash of `identity`, the same for TOML, JSON and Python and any order of keys but that of the axes."""
        return _sha256(self.identity)


def _plans(axis: SweepAxis) -> dict[str, Any]:
    """Contents of the axis's plan files (quantizers by layer); {} for none."""
    plans = {
        item.name: {"layers": [[side.name for side in layer] for layer in item.layers], **item.predicted}
        for item in axis.items
        if axis.name in QUANTIZER_AXES and item.layers
    }
    return {"plans": plans} if plans else {}


def _memories(axis: SweepAxis) -> dict[str, Any]:
    """Contents of the axis's files of measured memory and times; {} for none."""
    if axis.name != "calibrated":
        return {}
    memories = {item: measured_memory.contents(item) for item in axis.items if item}
    return {"memories": {item: memory.model_dump() for item, memory in memories.items() if memory}}


def _sha256(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read(path: str | Path) -> Sweep:
    """The sweep of a TOML or JSON file. Raises InputError, SpecError or LimitError with file and line."""
    return of_document(specfile.read(path, if_empty="docs/reference/sweeps.md says what stands in it"))


def of_document(document: specfile.Document) -> Sweep:
    """The sweep of a file that has been read. Raises SpecError or LimitError with file and line."""
    try:
        file = SweepFile.model_validate(document.data)
    except ValidationError as error:
        items = error.errors(include_url=False)
        listed = [f"{document.where(_path(item))}: {_field_text(item)}" for item in items[:MAX_PROBLEMS]]
        more = [f"{document.path}: {len(items) - MAX_PROBLEMS:,} more problems: mend these first"]
        raise SpecError(listed + more * (len(items) > MAX_PROBLEMS)) from None
    return resolve(file, document.where)


def from_dict(data: Mapping[str, Any]) -> Sweep:
    """The sweep of a dict with the keys of a sweep file. Raises as `read` does, without a file to point to.

    Devices, models and quantizers may be specs in place of names.
    """
    try:
        file = SweepFile.model_validate(dict(data))
    except ValidationError as error:
        raise SpecError(f"sweep: {_field_text(item)}" for item in error.errors()) from None
    return resolve(file, lambda path: "sweep")


def _path(item: Any) -> KeyPath:
    return tuple(part for part in item["loc"] if part not in ("list[str]", "str"))


def _field_text(item: Any) -> str:
    name = ".".join(map(str, _path(item)))
    if item["type"] == "extra_forbidden":
        return f"{name}: unknown key: {did_you_mean(name, SweepFile.model_fields)}"
    if item["type"] == "missing":
        return f"{name}: is missing: add it"
    return f"{name} = {show(item['input'])}: {item['msg'].lower()}"


def resolve(given: SweepFile, where: Callable[[KeyPath], str]) -> Sweep:
    """Look up every name and lay out every range. `where` gives the place of a key, for messages."""
    problems: list[str] = []
    axes: list[SweepAxis] = []
    for path, raw in _flat(given.axes):
        name = ".".join(path)
        try:
            axes.append(build(name, raw))
        except AxisError as error:
            key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path)
            text = f"{where(('axes', *path, *error.path))}: axes.{name}{key}: {error}"
            if error.over_limit:
                raise LimitError(text) from None
            problems.append(text)
    if problems:
        raise SpecError(problems)
    if not {axis.name for axis in axes} & set(QUANTIZER_AXES):
        axes.append(build("quantizer", "fp16"))
    names = {axis.name for axis in axes}
    for needed in ("device", "model"):
        if needed not in names:
            problems.append(f"{where(('axes',))}: axes.{needed}: is missing: add at least one")
    if set(QUANTIZER_AXES) <= names:
        problems.append(f"{where(('axes', 'quantizer'))}: axes.quantizer: has no effect beside both of its sides")
    conditions = []
    for i, text in enumerate(given.where):
        try:
            conditions.append(parse(text, axes))
        except InputError as error:
            problems.append(f"{where(('where', i))}: {error}")
    try:
        keep = keep_columns(given.keep, names)
    except InputError as error:
        problems.append(f"{where(('keep',))}: {error}")
    try:
        bits = bits_from(given.bits, given.measurements)
    except DseError as error:
        problems.append(f"{where(('bits',))}: {error}")
    if problems:
        raise SpecError(problems)
    try:
        dimensions = lay_out(axes)
    except AxisError as error:
        text = f"{where(('axes', *str(error.path[0]).split('.')))}: axes.{error.path[0]}: {error}"
        raise (LimitError(text) if error.over_limit else SpecError([text])) from None
    sweep = Sweep(
        axes=tuple(axes), dimensions=dimensions, where=tuple(conditions), keep=keep, bits=bits, title=given.title
    )
    if sweep.n_points > MAX_POINTS:
        raise LimitError(f"{where(('axes',))}: axes: {sweep.n_points:.3g} points: at most {MAX_POINTS:.3g}")
    return sweep


def _flat(axes: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
    """Axes with the keys that lead to them: `oaken.outer`, dotted, is a table in a table."""
    flat: list[tuple[tuple[str, ...], Any]] = []
    known = set(known_axes())
    for name, raw in axes.items():
        is_table = isinstance(raw, dict) and name not in known
        if is_table and any(f"{name}.{key}" in known for key in raw):
            flat += [((name, key), value) for key, value in raw.items()]
        else:
            flat.append(((name,), raw))
    return flat


def keep_columns(keep: Sequence[str] | str, axes: set[str]) -> tuple[str, ...]:
    """The result columns of a sweep, in the order of the table. Raises InputError for unknown ones."""
    possible = [name for name in RESULT_UNITS if name not in ALWAYS and name not in axes]
    if keep == "all":
        return tuple(possible)
    if isinstance(keep, str):
        raise InputError(f'keep = {show(keep)}: must be "all" or a list of columns')
    for name in keep:
        if name not in RESULT_UNITS:
            raise InputError(f"keep: unknown column {show(name)}: {did_you_mean(name, RESULT_UNITS)}")
    return tuple(name for name in possible if name in keep)


def lay_out(axes: Sequence[SweepAxis]) -> tuple[Dimension, ...]:
    """The digits of a point's index, slowest first. Quantizers and their parameters share the place of the first
    quantizer axis: each quantizer is followed by all values of the parameters that apply to it."""
    named = [axis for axis in axes if axis.name in QUANTIZER_AXES]
    parameters = [axis for axis in axes if axis.role == "parameter"]
    used: set[str] = set()
    blocks: list[Block] = []
    start, n_codes = 0, math.prod(len(axis) for axis in named)
    if n_codes > MAX_QUANTIZERS:
        raise AxisError(
            f"{n_codes:,} quantizers: a sweep has at most {MAX_QUANTIZERS:,}", named[0].name, over_limit=True
        )
    for code in range(n_codes):
        fixed, rest = [], code
        for axis in reversed(named):
            rest, digit = divmod(rest, len(axis))
            fixed.append((axis.name, digit))
        sides = [axis.items[dict(fixed)[axis.name]] for axis in named]
        varying = tuple(p for p in parameters if any(applies(p, side) for side in sides))
        used |= {p.name for p in varying}
        size = math.prod(len(p) for p in varying)
        blocks.append(Block(start, size, varying, tuple(reversed(fixed))))
        start += size
    for axis in parameters:
        if axis.name not in used:
            raise AxisError("varies no quantizer of this sweep: add one, or leave the axis out", axis.name)
    dimensions = []
    for axis in axes:
        if named and axis is named[0]:
            dimensions.append(Dimension(tuple(blocks)))
        elif axis not in named and axis.role != "parameter":
            dimensions.append(Dimension((Block(0, len(axis), (axis,)),)))
    return tuple(dimensions)


def of_axes(axes: Sequence[SweepAxis], base: Workload, bits: Bits, keep: tuple[str, ...] = ()) -> Sweep:
    """A sweep over axes that are known to be right."""
    return Sweep(axes=tuple(axes), dimensions=lay_out(axes), keep=keep, base=base, bits=bits)
