"""A KV dump through the kernels: the measurement file, packed buffers on disk, and the text that a person reads."""

import io
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import kernels_ref
from dse import files, measure, quantizers
from dse.dumps import Dump, Limits, open_dump
from dse.errors import InputError, OutputError, show
from dse.formulas import effective_bits
from dse.measure import Progress, Settings, Side
from dse.measurements import Data, MeasurementFile, MethodMeasurement, TensorMeasurement, to_json
from dse.quantizers import QuantizerSpec

MEASUREMENT = "measurement.json"


def run(
    file: str,
    methods: Sequence[str],
    thresholds: str | None,
    n_heads: int,
    nonfinite: str,
    out: str | None,
    synthetic: bool,
    max_bytes: int,
    progress: Progress,
) -> MeasurementFile:
    """Quantise every layer of the dump by every method. With `out`, write packed buffers, then the measurement.

    Everything that can be checked is checked before the first tensor is read. Raises InputError, LimitError,
    OutputError.
    """
    specs = list({spec.name: spec for spec in map(quantizers.parse, methods)}.values())
    if nonfinite not in ("raise", "replace"):
        raise InputError(f"nonfinite = {show(nonfinite)}: must be raise or replace")
    if not 1 <= n_heads <= 2**20:
        raise InputError(f"heads = {n_heads}: must be 1 to {2**20:,}")
    settings = Settings(n_heads, nonfinite, thresholds_of(thresholds))  # type: ignore[arg-type]
    for spec in specs:
        measure.check(spec, settings)
    found: dict[str, list[TensorMeasurement]] = {spec.name: [] for spec in specs}
    written: list[Path] = []
    with open_dump(file, limits(max_bytes)) as dump:
        layers = measure.layers(dump, file)
        folder = files.prepare(out) if out is not None else None
        if folder is not None:
            (folder / MEASUREMENT).unlink(missing_ok=True)  # what it says is about to change
        steps = [(layer, spec) for layer in layers for spec in specs]
        try:
            with progress(steps, label="quantising", length=len(steps)) as shown:
                _run(dump, shown, specs, settings, folder, found, written)
            if not all(found.values()):
                raise InputError(f"{file}: holds no elements: give a dump with at least one token")
        except BaseException:
            for path in written:
                path.unlink(missing_ok=True)
            raise
    notes = [f"thresholds: {Path(thresholds).name}"] if thresholds else []
    flat = [tensor.name for layer in layers for tensor in layer.tensors.values() if len(tensor.shape) == 2]
    result = MeasurementFile(
        format=1,
        data=Data(
            name=Path(file).name, sha256=measure.sha256(file),
            synthetic=synthetic or dump.metadata.get("synthetic") == "true",
            note="[tokens, channels] taken as one head: give --heads" if flat and n_heads == 1 else "",
        ),
        methods=[
            MethodMeasurement(quantizer=name, note=notes[0] if notes and name.startswith("oaken") else "",
                              tensors=tensors)
            for name, tensors in found.items()
        ],
    )  # fmt: skip
    if folder is not None:
        files.write(folder / MEASUREMENT, to_json(result))
        files.sync(folder)
    return result


def _run(
    dump: Dump,
    steps: Iterable[tuple[measure.Layer, QuantizerSpec]],
    specs: Sequence[QuantizerSpec],
    settings: Settings,
    folder: Path | None,
    found: dict[str, list[TensorMeasurement]],
    written: list[Path],
) -> None:
    """Quantise layer by layer; packed buffers go to `folder`, measurements to `found`."""
    tensors: dict[Side, np.ndarray] = {}
    for layer, spec in steps:
        if spec is specs[0]:
            tensors = {side: dump.read(tensor.name) for side, tensor in layer.tensors.items()}
        for measurement, outcome in measure.measure(spec, layer, tensors, settings):
            found[spec.name].append(measurement)
            if folder is not None:
                written.append(folder / "packed" / _safe(spec.name) / f"layer{layer.index}.{measurement.which}.npz")
                files.write(written[-1], _npz(outcome.packed.buffers))


def limits(max_bytes: int) -> Limits:
    """The limits of a dump. Raises InputError."""
    if not 1 <= max_bytes <= 2**50:
        raise InputError(f"max-bytes = {max_bytes}: must be 1 to {2**50:,}")
    return Limits(max_bytes=max_bytes)


def thresholds_of(path: str | None) -> Any:
    """Oaken's thresholds of a file, None without one. Raises InputError."""
    if path is None:
        return None
    try:
        return kernels_ref.Thresholds.load(path)
    except ValueError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {(error.strerror or type(error).__name__).lower()}") from error


def _safe(name: str) -> str:
    """A quantizer's name as a directory name."""
    return "".join(c if c.isalnum() or c in "=.," else "-" for c in name)


def _npz(buffers: Any) -> bytes:
    content = io.BytesIO()
    np.savez(content, **buffers)
    return content.getvalue()


def text(found: MeasurementFile, out: str | None) -> str:
    """The measurement as a table per method, and its ledger."""
    lines = [f"{found.data.name}" + ("  (synthetic)" if found.data.synthetic else "")]
    lines += [f"note: {found.data.note}"] if found.data.note else []
    for method in found.methods:
        lines += ["", method.quantizer + (f"  ({method.note})" if method.note else "")]
        lines.append(
            f"  {'tensor':<28}{'elements':>12}{'effective':>11}{'stored':>9}{'MSE':>12}{'largest':>10}{'SQNR dB':>9}"
        )
        lines += [_row(tensor.name, [tensor]) for tensor in method.tensors]
        for which in ("key", "value"):
            if len(method.side(which)) > 1:
                lines.append(_row(f"all {which}s", method.side(which)))
        if len(method.tensors) > 1:
            lines.append(_row("all", method.tensors))
        n_elements = sum(tensor.n_elements for tensor in method.tensors)
        parts = {part: sum(t.ledger.get(part, 0) for t in method.tensors) for part in kernels_ref.PARTS}
        bits = ", ".join(f"{part.replace('_', ' ')} {n / n_elements:.4g}" for part, n in parts.items() if n)
        lines.append(f"  bits an element: {sum(parts.values()) / n_elements:.5g} = {bits}")
        spec = quantizers.parse(method.quantizer)
        nominal = sum(tensor.nominal_bits(spec) * tensor.n_elements for tensor in method.tensors) / n_elements
        lines.append(f"  closed form with nominal shares: {float(nominal):.5g}")
    if out is not None:
        lines += ["", f"measurement: {Path(out) / MEASUREMENT}   packed buffers: {Path(out) / 'packed'}"]
    else:
        lines += ["", "Use it in `dse point --bits measured --measurements FILE`: write FILE with --out DIR"]
    return "\n".join(lines)


def _row(name: str, tensors: Sequence[TensorMeasurement]) -> str:
    n = sum(t.n_elements for t in tensors)
    bits = Fraction(8 * sum(t.stored_bytes for t in tensors), n)
    packed = sum(t.n_packed_elements for t in tensors)
    signal = math.fsum(t.squared_signal for t in tensors) / n
    paper = sum((t.effective_bits or 0) * t.n_packed_elements for t in tensors)
    effective, mse, sqnr = "-", "-", "-"
    if packed:  # tokens kept in FP16 come back exactly: errors are those of the packed elements
        error = math.fsum(t.squared_error for t in tensors) / packed
        effective, mse = f"{float(paper / packed):.5g}", f"{error:.4g}"
        sqnr = f"{effective_bits.sqnr_db(signal, error):.2f}" if error and signal else "-"
    largest = max(t.max_abs_error for t in tensors)
    return f"  {name:<28}{n:>12,}{effective:>11}{float(bits):>9.5g}{mse:>12}{largest:>10.4g}{sqnr:>9}"


def profile_to(
    paths: Sequence[str], out: str, shares: str, model: str, max_bytes: int, progress: Progress
) -> dict[str, Any]:
    """Profile Oaken's thresholds and write them. Raises InputError, LimitError, OutputError."""
    fracs = _shares(shares)
    found = measure.profile(paths, fracs, model, limits(max_bytes), progress)
    try:
        found.save(out)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise OutputError(f"cannot write {show(out)}: {reason}: give another file with --out") from error
    return {
        "out": out, "fracs": list(fracs), "n_layers": found.n_layers, "n_runs": found.n_runs,
        "n_elements": found.n_elements,
        **{side: [list(row) for row in getattr(found, side)]
           for side in ("key_lower", "key_upper", "value_lower", "value_upper")},
    }  # fmt: skip


def _shares(text: str) -> list[float]:
    """`4/90/6` as shares. Raises InputError."""
    spec = quantizers.parse(f"oaken:groups={text}")
    return [float(Fraction(part) / 100) for part in dict(spec.values)["groups"].split("/")]
