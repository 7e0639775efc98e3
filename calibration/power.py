"""Fit a device's energy to the measured power of its kernels: J a byte and J an operation by format, and idle power.

    power = idle_power + sum over formats of (J/B * bytes + J/FLOP * operations) / seconds

holds for a kernel that runs long enough, at the board's limit too: its time is then the stretched one. The driver
tells the mean of the last second, so a product of the package's tables counts only where the rows before and after it
tell nearly the same. Decode attention has no such rows: its readings hold what ran before, a number that is fitted too.
docs/explanation/calibration.md, Energy, has what was measured and how well the fit holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration import served
from calibration.part import FittedPart
from dse.calibrate import blocks
from dse.calibrate.fit import HELD_OUT_ONE_IN, SEED, percent
from dse.calibrate.solve import Floats, Space, solve
from dse.calibrate.table import PACKAGE, number, package_folder, rows_of
from dse.calibrate.write import cited
from dse.core import units
from dse.core.errors import InputError, did_you_mean, show
from dse.specs import catalog
from dse.specs.device_and_model import FITTED_ENERGY, HardwareSpec, flat
from dse.specs.stack import WeightCode

#: formats whose bytes and operations have an energy of their own -> the end of their names in a device file
FORMATS = {"bf16": "", "fp8": "_fp8", "fp4": "_fp4"}
#: formats of the package's tables -> those
_OF_CODE: dict[WeightCode, str] = {"bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4"}
#: how the package's tables call the formats
_NAMES: dict[str, WeightCode] = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
#: columns of a CSV table, with the largest value of each
COLUMNS = {"latency_us": 1e9, "power_w": 1e6, "n_bytes": 1e18, "flops": 1e24}
#: a kernel that is shorter never reaches steady power between two readings
SHORTEST_S = 1e-4
#: neighbours of a row that counts read within this share of it
SETTLED = 0.03
#: a row must keep the memory or the cores busy at least this far: others wait for something else
BUSY = 0.4
#: readings of short kernels, between which a device rests: so far up is its idle power
IDLE_QUANTILE, IDLE_RANGE = 0.01, (0.001, 0.05)
FEWEST_ROWS, FEWEST_OF_A_FORMAT, FEWEST_OF_ATTENTION = 30, 20, 100
#: a fit whose median error on rows held out is larger is not trusted
MAX_ERROR = 0.15
#: errors of rows that do not draw the limit: at it a prediction cannot be above
_BELOW = "shapes below the limit"
#: a row below this share of the board's limit is below it
BELOW_LIMIT = 0.93
#: shorter contexts read whole pages of which they use a part
FEWEST_CONTEXT = 512
#: what the driver's mean covers, and how the package's authors repeat a kernel: for so long, at most so often
AVERAGED_S, REPEATED_S, MOST_REPEATS = 1.0, 1.0, 3000
#: scales of the parameters: usual values are near one
_SCALE = {"idle": 100.0, "byte": 100e-12, "flop": 0.5e-12}


@dataclass(frozen=True)
class PowerRows:
    """Kernels whose power was measured: rates by format, W, the board's limit; which table and shape each is of."""

    rates: dict[str, Floats]
    power_w: Floats
    limit_w: Floats
    tables: NDArray[np.str_]
    shapes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.power_w)

    def take(self, mask: NDArray[Any]) -> "PowerRows":
        """The rows where `mask` is true, or at its places."""
        kept_rates = {name: values[mask] for name, values in self.rates.items()}
        return PowerRows(kept_rates, self.power_w[mask], self.limit_w[mask], self.tables[mask], self.shapes[mask])


@dataclass(frozen=True, kw_only=True)
class FittedEnergy(FittedPart):
    """Fitted energy; errors by "shapes", a format of keys and values, or the name of a table."""

    #: parameter -> the ends of its range
    ends: dict[str, tuple[float, float]]

    @property
    def trusted(self) -> bool:
        """False where the parameters should not be used."""
        return self.errors["shapes"]["median"] <= MAX_ERROR


def _joined(parts: list[PowerRows]) -> PowerRows:
    return PowerRows(
        {name: np.concatenate([part.rates[name] for part in parts]) for name in parts[0].rates},
        np.concatenate([part.power_w for part in parts]),
        np.concatenate([part.limit_w for part in parts]),
        np.concatenate([part.tables for part in parts]),
        np.concatenate([part.shapes for part in parts]),
    )


def _check_power(place: str, values: Floats) -> None:
    """Raise InputError at the first power that cannot be."""
    wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if len(wrong):
        raise InputError(
            f"{place}:{wrong[0] + 1}: power = {values[wrong[0]]:g}: must be more than 0 W: leave out rows without a "
            "reading"
        )


def from_csv(path: str, device: HardwareSpec) -> PowerRows:
    """Rows of a CSV file, whose readings are taken to be steady.

    Columns: format (bf16, fp8, fp4), latency_us, power_w, n_bytes, flops, and table if there are several. Raises
    InputError with file, line and column.
    """
    header, lines, cells = rows_of(path, f"the path of a .csv file, or {PACKAGE}")
    for name in ("format", *COLUMNS):
        if name not in header:
            raise InputError(f"{path}:1: column {name} is missing: {did_you_mean(name, header)}")
    columns = {
        name: np.array(
            [
                number(path, line, name, row[header.index(name)], high, False)
                for line, row in zip(lines, cells, strict=True)
            ]
        )
        for name, high in COLUMNS.items()
    }
    formats = np.array([row[header.index("format")].strip() for row in cells])
    for line, code in zip(lines, formats, strict=True):
        if code not in FORMATS:
            raise InputError(f"{path}:{line}: format = {show(str(code))}: is not known: {did_you_mean(code, FORMATS)}")
    seconds = columns["latency_us"] * units.to_base(1, "us")
    place = header.index("table") if "table" in header else None
    tables = np.array(["" if place is None else row[place].strip() for row in cells])
    shapes = np.array([hash(pair) for pair in zip(columns["n_bytes"], columns["flops"], strict=True)])
    limit = device.board_power.si if device.board_power else np.inf
    rows = PowerRows(
        _rates(formats, columns["n_bytes"] / seconds, columns["flops"] / seconds),
        columns["power_w"],
        np.full(len(seconds), limit),
        tables,
        shapes,
    )
    return rows.take(seconds >= SHORTEST_S)


def _rates(formats: NDArray[np.str_], of_bytes: Floats, of_flops: Floats) -> dict[str, Floats]:
    return {
        f"{kind}.{code}": np.where(formats == code, rate, 0.0)
        for kind, rate in (("byte", of_bytes), ("flop", of_flops))
        for code in FORMATS
    }


@dataclass(frozen=True)
class PowerTables:
    """Tables of a device: steady rows, decode attention by format with seconds of a kernel, readings."""

    rows: PowerRows
    attention: dict[str, tuple[PowerRows, Floats]]
    readings_w: Floats
    source: str


_TABLES = (
    ("gemm", "gemm_perf.parquet"),
    ("moe", "moe_perf.parquet"),
    ("attention", "generation_attention_perf.parquet"),
)
_CHECKOUT = "ai-dynamo/aiconfigurator (Apache-2.0; arXiv:2601.06288)"
_SHAPE = {
    "gemm": ["m", "n", "k"],
    "moe": served.EXPERT_SHAPE,
    "attention": ["batch_size", "step", "num_heads", "num_key_value_heads", "head_dim"],
}


def from_package(source: str, device: HardwareSpec, stack: str) -> PowerTables:
    """The rows of a device and stack that have a power.

    `source` is the package's name, or the folder `systems/data` of a checkout of it, whose tables of older releases
    have power where the package has none. Raises InputError where no table of the device and stack has a power.
    """
    folder = package_folder(device.name)
    if source != PACKAGE:
        folder = Path(source) / folder.name
        if not folder.is_dir():
            raise InputError(f"{source}: has no folder {folder.name}: give {PACKAGE}, a .csv file, or systems/data")
    steady, readings, named = [], [], ""
    attention: dict[str, tuple[PowerRows, Floats]] = {}
    for kind, name in _TABLES:
        for path in sorted((folder / kind / stack).glob(f"*/{name}")):
            frame = served.frame_of(path)
            if "power" not in frame or frame["power"].isna().all():
                continue
            reading = frame["power"].to_numpy(float)
            _check_power(str(path), reading)
            readings.append(reading)
            named = f"{frame.iloc[0]['device']}, {stack} {frame.iloc[0]['version']}"
            settled = _settled(reading)
            for code, mask, flops, n_bytes, ops in _works(kind, frame):
                rows, seconds, busy = _of_format(frame[mask], kind, code, flops, n_bytes, ops, device)
                if kind == "attention":
                    long = busy & (seconds >= SHORTEST_S)
                    if long.sum() >= FEWEST_OF_ATTENTION:
                        attention[code] = rows.take(long), seconds[long]
                else:
                    steady.append(rows.take(busy & settled[mask] & (seconds >= SHORTEST_S)))
    if not steady:
        raise InputError(f"{source} has no table of {device.name} and {stack} with a column power: give a CSV file")
    origin = f"{cited() if source == PACKAGE else _CHECKOUT}, {named}"
    return PowerTables(_joined(steady), attention, np.concatenate(readings), origin)


def _settled(power_w: Floats) -> NDArray[np.bool_]:
    """Rows between two that read nearly the same: the mean of the last second then holds nothing else."""
    settled = np.zeros(len(power_w), bool)
    near = np.abs(power_w[1:] / power_w[:-1] - 1) < SETTLED
    settled[1:-1] = near[1:] & near[:-1]
    return settled


def _works(kind: str, frame: Any) -> Iterator[tuple[str, NDArray[np.bool_], Floats, Floats, str]]:
    """(format of the bytes, rows, operations, bytes, format of the operations) of everything in a table."""
    if kind == "attention":
        usable = (frame["step"] >= FEWEST_CONTEXT) & ~frame["kernel_source"].str.contains("triton")
        if "window_size" in frame:
            usable &= frame["window_size"] == 0
        for dtype, size in (("bfloat16", 2), ("fp8", 1)):
            mask = (usable & (frame["kv_cache_dtype"] == dtype)).to_numpy()
            batch, step, heads, kv_heads, dim = (frame[mask][name].to_numpy(float) for name in _SHAPE["attention"])
            pairs = batch * (step + 1)
            yield _OF_CODE[_NAMES[dtype]], mask, 4 * pairs * heads * dim, 2 * pairs * kv_heads * dim * size, "bf16"
        return
    column, work = ("gemm_dtype", served.product_work) if kind == "gemm" else ("moe_dtype", served.expert_work)
    for dtype, code in _NAMES.items():
        mask = (frame[column] == dtype).to_numpy()
        if mask.any():
            flops, n_bytes, _ = work(frame[mask], code)
            yield _OF_CODE[code], mask, flops, n_bytes, _OF_CODE[code]


def _of_format(
    part: Any, kind: str, code: str, flops: Floats, n_bytes: Floats, ops: str, device: HardwareSpec
) -> tuple[PowerRows, Floats, NDArray[np.bool_]]:
    """Rows of one format of a table, their seconds, and which of them keep memory or cores busy, from memory."""
    seconds = part["latency"].to_numpy(float) * units.to_base(1, "ms")
    nothing = np.zeros(len(part))
    rates = {f"byte.{fmt}": n_bytes / seconds if fmt == code else nothing for fmt in FORMATS}
    rates |= {f"flop.{fmt}": flops / seconds if fmt == ops else nothing for fmt in FORMATS}
    peaks = {"bf16": device.peak_flops, "fp8": device.peak_flops_fp8, "fp4": device.peak_flops_fp4}
    of_memory = n_bytes / seconds / device.memory_bandwidth.si
    of_cores = flops / seconds / (peaks[ops] or device.peak_flops).si
    busy = (of_memory <= 1) & (of_cores <= 1) & (np.maximum(of_memory, of_cores) >= BUSY)
    shapes = part.groupby(_SHAPE[kind], sort=True).ngroup().to_numpy(np.int64)
    power, limit = (part[name].to_numpy(float) for name in ("power", "power_limit"))
    return PowerRows(rates, power, limit, np.full(len(part), kind), shapes), seconds, busy


def power_w(rows: PowerRows, parameters: dict[str, float]) -> Floats:
    """Power of every row (W) by its rates, not above the board's limit."""
    return np.minimum(_demand(rows, parameters), rows.limit_w)


def _demand(rows: PowerRows, parameters: dict[str, float]) -> Floats:
    demand = np.full(len(rows), parameters["idle"])
    for name, rate in rows.rates.items():
        if name in parameters:
            demand = demand + parameters[name] * rate
    return demand


def solved(rows: PowerRows, idle_w: float | None) -> dict[str, float]:
    """The energy that fits the rows best, SI; formats with few rows have none. `idle_w` None: fitted too.

    At the limit as below it: a time that the limit stretched is the one that was measured. Every table and format
    counts the same. Raises InputError where there are too few rows.
    """
    names = ["idle", *(name for name, rate in sorted(rows.rates.items()) if (rate > 0).sum() >= FEWEST_OF_A_FORMAT)]
    if len(rows) < max(FEWEST_ROWS, 2 * len(names)):
        raise InputError(f"{len(rows)} usable rows for {len(names)} parameters: measure more, of 100 us and longer")
    scale = np.array([_SCALE[name.partition(".")[0]] for name in names])
    space = Space(tuple(names), np.ones(len(names)), np.zeros(len(names)), np.full(len(names), 50.0))
    columns = np.stack([np.ones(len(rows)), *(rows.rates[name] for name in names[1:])], 1) * scale
    start = np.ones(len(names))
    if idle_w is not None:
        start[0] = idle_w / _SCALE["idle"]
    free = range(len(names)) if idle_w is None else range(1, len(names))
    point, _ = solve(lambda values: columns @ values, rows.power_w, _counts(rows), space, start, list(free))
    return dict(zip(names, (float(number) for number in point * scale), strict=True))


def share_of_reading(seconds: Floats) -> Floats:
    """The share of a mean reading that a run of so many seconds makes up; the rest ran before.

    A reading is the mean of the last second, so during a run of T <= 1 s its share grows from 0 to T: half of T.
    """
    return np.minimum(REPEATED_S, MOST_REPEATS * seconds) / AVERAGED_S / 2


def solved_attention(
    rows: PowerRows, seconds: Floats, code: str, known: dict[str, float]
) -> tuple[float, float, tuple[float, float], Floats]:
    """J a byte of keys and values in one format, W of what ran before, the range of the first, predicted readings (W).

    Its high end is where the fastest rows would draw the board's limit: they ran, so they did not draw more. Its low
    end is what the highest readings of long runs still ask for if the board drew its limit before each of them.
    """
    rate, share = rows.rates[f"byte.{code}"], share_of_reading(seconds)
    rest = known["idle"] + known.get("flop.bf16", 0.0) * rows.rates["flop.bf16"]
    fast = rate >= np.quantile(rate, 0.9)
    high = float(np.median((rows.limit_w - rest)[fast] / rate[fast]))
    long = share >= np.quantile(share, 0.75)
    before_w = (1 - share[long]) * rows.limit_w[long]
    least_w = (np.quantile(rows.power_w[long], 0.95) - before_w) / share[long]
    low = max(float(np.median((least_w - rest[long]) / rate[long])), 0.0)
    scale = _SCALE["byte"]
    space = Space(
        ("byte", "before"),
        np.array([1.0, 4.0]),
        np.array([0.0, known["idle"] / _SCALE["idle"]]),
        np.array([high / scale, float(rows.limit_w.max()) / _SCALE["idle"]]),
    )

    def predict(point: Floats) -> Floats:
        power: Floats = share * (rest + point[0] * scale * rate) + (1 - share) * point[1] * _SCALE["idle"]
        return power

    point, _ = solve(predict, rows.power_w, np.ones(len(rows)), space, np.array([0.8, 4.0]), [0, 1])
    value = float(point[0]) * scale
    return value, float(point[1]) * _SCALE["idle"], (min(low, value), max(high, value)), predict(point)


def _counts(rows: PowerRows) -> Floats:
    """Weights of rows: every table, format and busier part the same, rows of like power together."""
    code = np.zeros(len(rows), int)
    for place, name in enumerate(sorted(rows.rates)):
        code = np.where(rows.rates[name] > 0, code + (place + 1) * 100, code)
    kinds = np.stack([np.unique(rows.tables, return_inverse=True)[1], code, (rows.power_w / 50).astype(int)], 1)
    _, inverse, n_alike = np.unique(kinds, axis=0, return_inverse=True, return_counts=True)
    counts: Floats = 1 / np.sqrt(n_alike[inverse.ravel()].astype(float))
    return counts / counts.mean()


def _errors(rows: PowerRows, parameters: dict[str, float]) -> dict[str, float]:
    off = np.abs(power_w(rows, parameters) / rows.power_w - 1)
    return {"median": float(np.median(off)), "p90": float(np.quantile(off, 0.9)), "rows": len(rows)}


def fit(rows: PowerRows, source: str, measured: PowerTables | None = None) -> FittedEnergy:
    """The energy of a device, judged on one shape in five that the fit did not see, and on each table left out."""
    idle_w = None if measured is None else float(np.quantile(measured.readings_w, IDLE_QUANTILE))
    shapes = np.unique(rows.shapes)
    n_held = max(1, len(shapes) // HELD_OUT_ONE_IN)
    unseen = np.isin(rows.shapes, np.random.default_rng(SEED).permutation(shapes)[:n_held])
    terms = solved(rows.take(~unseen), idle_w)
    errors = {"shapes": _errors(rows.take(unseen), terms)}
    below = unseen & (rows.power_w < BELOW_LIMIT * rows.limit_w)
    if below.any() and (unseen & ~below).any():
        errors[_BELOW] = _errors(rows.take(below), terms)
    others: list[dict[str, float]] = []
    for table in dict.fromkeys(rows.tables.tolist()):
        left = rows.tables == table
        if (~left).sum() < FEWEST_ROWS:
            continue
        without = solved(rows.take(~left), idle_w)
        known = left & np.all([(rate == 0) | (name in without) for name, rate in rows.rates.items()], axis=0)
        if known.sum() >= FEWEST_OF_A_FORMAT:
            errors[f"table {table}"] = _errors(rows.take(known), without)
            seen = rows.take(~left)
            others.append({name: value for name, value in without.items() if _decides(seen, name, terms)})
    ends = _ends(terms, others, max(errors["shapes"]["p90"], errors.get(_BELOW, errors["shapes"])["median"]))
    if measured is not None:
        ends["idle"] = tuple(float(end) for end in np.quantile(measured.readings_w, IDLE_RANGE))  # type: ignore[assignment]
        for code, (kv_rows, seconds) in measured.attention.items():
            value, _, (low, high), predicted = solved_attention(kv_rows, seconds, code, terms)
            off = np.abs(predicted / kv_rows.power_w - 1)
            median, p90 = (float(number) for number in np.quantile(off, (0.5, 0.9)))
            terms[f"kv.{code}"], ends[f"kv.{code}"] = value, (min(low, value * (1 - median)), high)
            errors[f"attention {code}"] = {"median": median, "p90": p90, "rows": len(kv_rows)}
    return FittedEnergy(
        part="energy",
        parameters={name: blocks.digits(value) for name, value in terms.items()},
        ends={name: (blocks.digits(low), blocks.digits(high)) for name, (low, high) in ends.items()},
        n_points=len(rows),
        errors=errors,
        source=source,
    )


def _decides(rows: PowerRows, name: str, terms: dict[str, float]) -> bool:
    """True where enough rows draw most of their power for one term: others leave it open."""
    if name not in rows.rates or name not in terms:
        return False
    most = terms[name] * rows.rates[name] > 0.5 * (rows.power_w - terms["idle"])
    return int(most.sum()) >= FEWEST_OF_A_FORMAT


def _ends(terms: dict[str, float], others: list[dict[str, float]], share: float) -> dict[str, tuple[float, float]]:
    """The range of each parameter: `share` of it either way, and as far as the fits without a table."""
    ends = {}
    for name, value in terms.items():
        values = [other[name] for other in others if name in other]
        ends[name] = min([value * (1 - share), *values]), max([value * (1 + share), *values])
    return ends


_FIELDS = {
    "idle": ("idle_power", "W"),
    "byte": ("energy_per_byte", "pJ/B"),
    "flop": ("energy_per_flop", "pJ/FLOP"),
    "kv": ("energy_per_kv_byte", "pJ/B"),
}


def fields(outcome: FittedEnergy) -> dict[str, Any]:
    """The fitted numbers as the block `energy` of a device file."""
    error = outcome.errors.get(_BELOW) or outcome.errors["shapes"]
    source = (
        f"{outcome.source}: power of {outcome.n_points:,} long kernels; on {_BELOW} that were left out "
        f"{percent(error['median'])} off in the median, {percent(error['p90'])} in nine of ten "
        "(docs/explanation/calibration.md, Energy)"
    )
    block: dict[str, Any] = {"source": source}
    for name, value in outcome.parameters.items():
        kind, _, code = name.partition(".")
        field, unit = _FIELDS[kind]
        low, high = (blocks.digits(end / units.to_base(1, unit)) for end in outcome.ends[name])
        shown = blocks.digits(value / units.to_base(1, unit))
        block[field + FORMATS.get(code, "")] = {"value": shown, "unit": unit, "low": low, "high": high}
    return block


def with_energy(data: dict[str, Any], block: dict[str, Any]) -> dict[str, Any]:
    """A device's data with the fitted block `energy`; what an earlier fit gave and this one does not stays in it."""
    rest = {name: item for name, item in flat(data).items() if name not in block}
    earlier = {name: rest.pop(name) for name in sorted(FITTED_ENERGY & rest.keys() - data.keys())}
    return {**rest, "energy": {**block, **earlier}}


def run(source: str, out: str, *, device: str, stack: str | None = None, **_: Any) -> dict[str, Any]:
    """Fit the energy of a device and write a device file with it."""
    blocks.check_out(out)
    device_spec = catalog.device(device)
    if source == PACKAGE or Path(source).is_dir():
        measured = from_package(source, device_spec, stack or "vllm")
        outcome = fit(measured.rows, measured.source, measured)
    else:
        outcome = fit(from_csv(source, device_spec), Path(source).name)
    if not outcome.trusted:
        raise InputError(
            f"{source}: the fit cannot be trusted, nothing is written: the median error on shapes left out is "
            f"{percent(outcome.errors['shapes']['median'])}, more than {percent(MAX_ERROR)}"
        )
    blocks.write_device(with_energy(blocks.device_data(device), fields(outcome)), out)
    return {
        "device": device_spec.name,
        "table": source,
        "out": out,
        "parameters": outcome.parameters,
        "ends": outcome.ends,
        "n_points": outcome.n_points,
        "errors": outcome.errors,
        "fitted_on": outcome.source,
    }


def text(found: dict[str, Any]) -> str:
    """The report of `dse calibrate --kernel power`."""
    lines = [f"{found['device']}  energy  from {found['table']}  {found['n_points']:,} rows", ""]
    for name, value in found["parameters"].items():
        kind, _, code = name.partition(".")
        field, unit = _FIELDS[kind]
        low, high = (end / units.to_base(1, unit) for end in found["ends"][name])
        shown = f"{value / units.to_base(1, unit):.3g} {unit}"
        lines.append(f"  {field + FORMATS.get(code, ''):<24}{shown:<16}{low:.3g} to {high:.3g}")
    lines += ["", f"  {'error of the power':<32}{'median':>10}{'p90':>10}{'rows':>8}"]
    for name, error in found["errors"].items():
        title = f"{name}, readings" if name.startswith("attention") else f"{name}, left out"
        lines.append(f"  {title:<32}{percent(error['median']):>10}{percent(error['p90']):>10}{error['rows']:>8,}")
    return "\n".join([*lines, "", f"written: {found['out']}"])
