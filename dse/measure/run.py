"""`dse measure`: every layer of a dump by every method and context length, in parts that a later run goes on from."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dse.core import files
from dse.core.errors import InputError, show
from dse.core.progress import Progress
from dse.core.version import VERSION
from dse.measure import errors, kernels, source, table
from dse.measure.dumps import Dump, open_dump
from dse.measure.kernels import DumpLayer, Settings
from dse.measure.options import MeasureOptions
from dse.measure.parts import MEASUREMENT, PAGE, SUMMARY, TABLE, Store, opened
from dse.measure.source import About
from dse.quantizers import QuantizerSpec
from dse.specs.measurements import Data, MeasurementFile, TensorMeasurement, to_json

#: context lengths that are measured when none are asked for: powers of two from here on, and the whole
FIRST_CONTEXT = 64
MAX_CONTEXTS, MAX_QUERIES, MAX_METHODS = 100, 2**16, 100
QUERY_PLACES = ("last", "spread")
#: a dump may hold this many bytes: only a layer at a time is read
DUMP_BYTES = 2**50


@dataclass(kw_only=True)
class FinishedMeasurement:
    """A finished measurement: the table (a row a method, layer, side, head and context) and where it lies."""

    table: Any
    summary: dict[str, Any]
    file: MeasurementFile
    folder: Path
    #: parts taken over from an earlier run
    n_before: int = 0
    #: what readers should know
    notes: list[str] = field(default_factory=list)


def check(path: str, asked: MeasureOptions, progress: Progress) -> dict[str, Any]:
    """List what a dump holds and lacks, and its problems. Raises InputError for a file that cannot be read at all."""
    with _open(path, asked) as dump:
        layers = kernels.layers(dump, path)
        of = _about(dump, path, layers, asked)
        problems = source.problems(layers, of, asked.max_bytes, asked.partial)
        if not any("raise --max-bytes" in text for text in problems):
            problems += source.values(dump, layers, progress)
        return {"file": path, **source.holds(dump, layers, of), "lacks": source.lacks(layers, of), "problems": problems}


def _open(path: str, options: MeasureOptions) -> Dump:
    kernels.limits(options.max_bytes)
    return open_dump(path, kernels.limits(DUMP_BYTES))


def _about(dump: Dump, path: str, layers: list[DumpLayer], options: MeasureOptions) -> About:
    names = ("model", "rope", "theta", "n_heads", "synthetic")
    return source.about(dump, path, layers, **{name: getattr(options, name) for name in names})


def run(path: str, methods: Sequence[str], out: str, asked: MeasureOptions, progress: Progress) -> FinishedMeasurement:
    """Measure every layer of the dump by every method; write the parts, then table, measurement file and summary.

    All that can be checked is checked before the first tensor is read and before anything is written. Raises
    InputError, LimitError, BusyError.
    """
    specs, settings = kernels.methods_of(methods, asked.nonfinite, asked.thresholds)
    if not 1 <= len(specs) <= MAX_METHODS:
        raise InputError(f"quantizers = {len(specs)}: must be 1 to {MAX_METHODS}: name quantizers, such as nqkv,kivi")
    if not 0 <= asked.n_queries <= MAX_QUERIES:
        raise InputError(f"queries = {asked.n_queries}: must be 0 to {MAX_QUERIES:,}")
    if asked.query_places not in QUERY_PLACES:
        raise InputError(f"query-places = {show(asked.query_places)}: must be {' or '.join(QUERY_PLACES)}")
    if not 0 <= asked.seed < 2**63:
        raise InputError(f"seed = {asked.seed}: must be 0 to 2^63 - 1")
    if not out:
        raise InputError("out = '': is not a directory name: give another --out")
    with _open(path, asked) as dump:
        layers = kernels.layers(dump, path)
        of = _about(dump, path, layers, asked)
        source.refuse(path, source.problems(layers, of, asked.max_bytes, asked.partial))
        layers = [layer for layer in layers if layer.tensors]
        lengths = contexts(asked.contexts, layers, of)
        sha256 = kernels.sha256(path)
        identity = {
            "dse": VERSION,
            "dump": sha256,
            "contexts": lengths,
            "queries": asked.n_queries,
            "seed": asked.seed,
            "nonfinite": asked.nonfinite,
            "partial": asked.partial,
            "about": asdict(of),
        }
        if asked.query_places != "last":
            identity["query_places"] = asked.query_places
        settings = Settings(of.n_heads, settings.nonfinite, settings.thresholds)
        with opened(out, identity) as store:
            runner = Each(path, dump, store, of, settings, lengths, asked)
            steps = [(layer, spec) for layer in layers for spec in specs]
            with progress(steps, label="measuring", length=len(steps)) as shown:
                for layer, spec in shown:
                    runner.part(layer, spec)
            data = Data(name=Path(path).name[:200], sha256=sha256, synthetic=of.synthetic, note=_note(of))
            return _finish(store, specs, layers, data, of, runner, asked)


def _note(of: About) -> str:
    return ", ".join(text for text in (of.model, f"keys {of.rope} RoPE" if of.rope != "none" else "", of.note) if text)


def contexts(text: str | None, layers: list[DumpLayer], of: About) -> list[int]:
    """Context lengths, ascending; the last is that of the dump. Raises InputError."""
    n_tokens = source.axes(next(iter(layers[0].tensors.values())).shape, of.n_heads)[2]
    if text is None:
        powers = [2**i for i in range(40) if FIRST_CONTEXT <= 2**i < n_tokens]
        return [*powers, n_tokens]
    if not re.fullmatch(r"[0-9]{1,12}(,[0-9]{1,12})*", text.replace(" ", ""), re.ASCII):
        raise InputError(f"contexts = {show(text)}: must be whole numbers with commas between, such as 256,1024")
    lengths = sorted({int(part) for part in text.replace(" ", "").split(",")})
    if lengths[0] < 1 or lengths[-1] > n_tokens or len(lengths) > MAX_CONTEXTS:
        raise InputError(f"contexts = {show(text)}: must be at most {MAX_CONTEXTS} from 1 to {n_tokens:,}, the dump's")
    return sorted({*lengths, n_tokens})


class Each:
    """Measures one layer by one method at a time; holds the tensors of one layer."""

    def __init__(
        self,
        path: str,
        dump: Dump,
        store: Store,
        of: About,
        settings: Settings,
        lengths: list[int],
        asked: MeasureOptions,
    ) -> None:
        self.path, self.dump, self.store, self.of, self.settings, self.lengths, self.asked = (
            path,
            dump,
            store,
            of,
            settings,
            lengths,
            asked,
        )
        self.n_before = 0
        self._reader = kernels.LayerReader(self._read)
        self._thresholds = asked.thresholds and kernels.sha256(asked.thresholds)

    def key(self, spec: QuantizerSpec) -> str:
        """Key of a method's part."""
        if errors.is_turned_back(spec, self.of):
            return f"{spec.name} before RoPE"
        return f"{spec.name} {self._thresholds}" if kernels.needs_thresholds(spec) else spec.name

    def part(self, layer: DumpLayer, spec: QuantizerSpec) -> None:
        """Measure and write a part, unless it is there."""
        if self.store.load(layer.index, self.key(spec)):
            self.n_before += 1
            return
        rows: list[dict[str, Any]] = []
        tensors: list[TensorMeasurement] = []
        for n_tokens in self.lengths:
            new_rows, tensors = self._context(layer, spec, n_tokens)
            rows += new_rows
        self.store.save(layer.index, self.key(spec), rows, tensors)

    def _read(self, name: str) -> np.ndarray:
        x = self.dump.read(name)
        if self.asked.nonfinite == "raise" and (bad := source.bad_values(name, x)):
            raise InputError(f"{self.path}: {bad}")
        return x

    def _context(
        self, layer: DumpLayer, spec: QuantizerSpec, n_tokens: int
    ) -> tuple[list[dict[str, Any]], list[TensorMeasurement]]:
        """Rows of the heads, then of all heads together with the bits, of the first `n_tokens` tokens."""
        whole = n_tokens == self.lengths[-1]
        tensors = {side: x if whole else errors.prefix(x, n_tokens) for side, x in self._reader.tensors(layer).items()}
        query = self._reader.query(layer) if self.asked.n_queries else None
        if query is not None:
            query = errors.by_head(query, self.of.n_heads)
            # the queries are those of the dump's last tokens
            n_asked = query.shape[2] - (self.lengths[-1] - n_tokens)
            query = query[:, :, :n_asked] if n_asked > 0 else None
        wanted = errors.Queries(self.asked.n_queries, self.asked.seed, self.asked.query_places == "spread")
        rows, sums, measured = errors.of_layer(spec, layer, tensors, query, self.of, self.settings, wanted)
        totals = {}
        for side, total in sums.items():
            parts = [measured[which] for which in measured if side in (which, "both")]
            names = dict.fromkeys(name for t in parts for name in t.ledger)
            stored = {
                "stored_bytes": sum(t.stored_bytes for t in parts),
                "ledger": {name: sum(t.ledger.get(name, 0) for t in parts) for name in names},
            }
            totals[side] = {"side": side, "head": None, **total, **stored}
        every = [{"context_tokens": n_tokens, **row} for row in (*rows, *totals.values())]
        return every, list(measured.values())


def _parts(
    store: Store, layers: list[DumpLayer], spec: QuantizerSpec, runner: Each
) -> Iterator[tuple[int, dict[str, Any]]]:
    for layer in layers:
        part = store.load(layer.index, runner.key(spec))
        if part is None:
            raise InputError(f"{store.path(layer.index, runner.key(spec))}: was changed meanwhile: run it again")
        yield layer.index, part


def _finish(
    store: Store,
    specs: list[QuantizerSpec],
    layers: list[DumpLayer],
    data: Data,
    of: About,
    runner: Each,
    options: MeasureOptions,
) -> FinishedMeasurement:
    """The table, the measurement file and the summary of all parts, written in this order."""
    rows: list[dict[str, Any]] = []
    tensors: dict[str, list[TensorMeasurement]] = {spec.name: [] for spec in specs}
    for spec in specs:
        for index, part in _parts(store, layers, spec, runner):
            rows += [{"method": spec.name, "layer": index, **row} for row in part["rows"]]
            tensors[spec.name] += part["tensors"]
    file = kernels.measurement_file(data, specs, tensors, options.thresholds)
    measured = table.of(rows, data)
    summary = table.summary(rows, data, of, runner.lengths)
    notes = source.lacks(layers, of)
    notes += [
        f"{spec.name}: is defined on keys before RoPE, "
        + ("to which these were turned back" if of.theta else "these are after it: --rope-theta turns them back")
        for spec in specs
        if spec.family.before_rope and of.rope == "after"
    ]
    with files.publishing(str(store.folder)) as published:
        published.write(TABLE, table.parquet(measured))
        published.write(MEASUREMENT, to_json(file))
        published.write(SUMMARY, table.json_of({**summary, "notes": notes}))
        published.remove(PAGE)  # of other numbers
    return FinishedMeasurement(
        table=measured,
        summary={**summary, "notes": notes},
        file=file,
        folder=store.folder,
        n_before=runner.n_before,
        notes=notes,
    )
