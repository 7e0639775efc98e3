"""A KV dump through the kernels: the measurement file, packed buffers on disk, and the text that a person reads."""

import contextlib
import io
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import kernels_ref
from dse import quantizers
from dse.core import files
from dse.core.errors import InputError, OutputError, show
from dse.core.progress import Progress
from dse.measure import kernels
from dse.measure.dumps import open_dump
from dse.measure.options import MeasureOptions
from dse.measure.parts import MEASUREMENT
from dse.model.formulas import effective_bits
from dse.specs.measurements import Data, MeasurementFile, TensorMeasurement, to_json

#: folder of the packed buffers
PACKED = "packed"


def run(
    file: str, methods: Sequence[str], asked: MeasureOptions, out: str | None, progress: Progress
) -> MeasurementFile:
    """Quantize every layer of the dump by every method. With `out`, write packed buffers, then the measurement.

    Everything that can be checked is checked before the first tensor is read. Raises InputError, LimitError,
    OutputError.
    """
    n_heads = 1 if asked.n_heads is None else asked.n_heads
    if not 1 <= n_heads <= 2**20:
        raise InputError(f"heads = {n_heads}: must be 1 to {2**20:,}")
    specs, settings = kernels.methods_of(methods, asked.nonfinite, asked.thresholds, n_heads)
    measured: dict[str, list[TensorMeasurement]] = {spec.name: [] for spec in specs}
    with open_dump(file, kernels.limits(asked.max_bytes)) as dump, contextlib.ExitStack() as undo:
        layers = kernels.layers(dump, file)
        kernels.check_shapes(file, layers)
        published = undo.enter_context(files.publishing(out)) if out is not None else None
        reader, steps = kernels.LayerReader(dump.read), [(layer, spec) for layer in layers for spec in specs]
        with progress(steps, label="quantizing", length=len(steps)) as shown:
            for layer, spec in shown:
                for measurement, outcome in kernels.measure(spec, layer, reader.tensors(layer), settings):
                    measured[spec.name].append(measurement)
                    if published is not None:
                        name = f"layer{layer.index}.{measurement.which}.npz"
                        published.write(f"{PACKED}/{_safe(spec.name)}/{name}", _npz(outcome.packed.buffers))
        if not all(measured.values()):
            raise InputError(f"{file}: holds no elements: give a dump with at least one token")
        flat = [tensor.name for layer in layers for tensor in layer.tensors.values() if len(tensor.shape) == 2]
        data = Data(
            name=Path(file).name,
            sha256=kernels.sha256(file),
            synthetic=asked.synthetic or dump.metadata.get("synthetic") == "true",
            note="[tokens, channels] taken as one head: give --heads" if flat and n_heads == 1 else "",
        )
        result = kernels.measurement_file(data, specs, measured, asked.thresholds)
        if published is not None:
            published.write(MEASUREMENT, to_json(result))
        return result


def _safe(name: str) -> str:
    """A quantizer's name as a directory name."""
    return "".join(c if c.isalnum() or c in "=.," else "-" for c in name)


def _npz(buffers: Any) -> bytes:
    content = io.BytesIO()
    np.savez(content, **buffers)
    return content.getvalue()


def text(measurement: MeasurementFile, out: str | None) -> str:
    """The measurement as a table per method, and its ledger."""
    lines = [f"{measurement.data.name}" + ("  (synthetic)" if measurement.data.synthetic else "")]
    lines += [f"note: {measurement.data.note}"] if measurement.data.note else []
    for method in measurement.methods:
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
        lines += ["", f"measurement: {Path(out) / MEASUREMENT}   packed buffers: {Path(out) / PACKED}"]
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
    thresholds = kernels.profile(paths, fracs, model, kernels.limits(max_bytes), progress)
    try:
        thresholds.save(out)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise OutputError(f"cannot write {show(out)}: {reason}: give another file with --out") from error
    return {
        "out": out,
        "fracs": list(fracs),
        "n_layers": thresholds.n_layers,
        "n_runs": thresholds.n_runs,
        "n_elements": thresholds.n_elements,
        **{
            side: [list(row) for row in getattr(thresholds, side)]
            for side in ("key_lower", "key_upper", "value_lower", "value_upper")
        },
    }


def _shares(text: str) -> list[float]:
    """`4/90/6` as shares. Raises InputError."""
    parts = text.split("/")
    if not 2 <= len(parts) <= 5 or not all(re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,9})?", p, re.ASCII) for p in parts):
        raise InputError(f"shares = {show(text)}: must be 2 to 5 percentages such as 4/90/6, outermost group first")
    shares = [Fraction(part) for part in parts]
    if not all(0 < share < 100 for share in shares):
        empty = next(part for part, share in zip(parts, shares, strict=True) if not 0 < share < 100)
        raise InputError(
            f"shares = {show(text)}: {empty} percent: each must be above 0 and below 100: a group without "
            "elements has no thresholds, leave it out"
        )
    if sum(shares) != 100:
        raise InputError(f"shares = {show(text)}: must sum to 100, not {float(sum(shares)):g}")
    return [float(share / 100) for share in shares]
