"""A dump before it is measured: what it says of itself, what it holds and lacks, and what makes it unusable."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import kernels_ref
from dse.core.errors import InputError, LimitError, clean, show
from dse.core.progress import Progress
from dse.measure import kernels
from dse.measure.dumps import Dump, DumpTensor
from dse.measure.kernels import DumpLayer, Side

Rope = Literal["after", "before", "none"]
ROPES = ("after", "before", "none")
#: the exponent of FP16 infinities and NaN
_INFINITE = np.uint16(0x7C00)
#: what a key's or query's name may say of RoPE: layer0.key.before_rope
_MARK = re.compile(r"(before|after|pre|post)[._-]?rope")
_MARKS: dict[str, Rope] = {"before": "before", "pre": "before", "after": "after", "post": "after"}


@dataclass(frozen=True)
class About:
    """Description of a dump: options win over the file's metadata, metadata over defaults.

    `rope`: keys and queries are before or after rotary position embedding, or the model has none; `theta` is its base
    and `first_position` that of the first token.
    """

    model: str = ""
    rope: Rope = "after"
    #: False: `rope` is the default, the file does not say
    rope_is_said: bool = False
    theta: float | None = None
    first_position: int = 0
    n_heads: int = 1
    synthetic: bool = False
    #: what the data is, or with what it was generated
    note: str = ""


def about(
    dump: Dump,
    path: str,
    layers: Iterable[DumpLayer],
    model: str = "",
    rope: str | None = None,
    theta: float | None = None,
    n_heads: int | None = None,
    synthetic: bool = False,
) -> About:
    """Describe a dump by its file and the options. Raises InputError, also where they contradict each other."""
    meta = dump.metadata
    said = _said_rope(dump, path, layers)
    if rope is not None and rope not in ROPES:
        raise InputError(f"rope = {show(rope)}: must be one of {', '.join(ROPES)}")
    if rope is not None and said not in (None, rope):
        raise InputError(f"rope = {rope}: {path} says {said}: leave --rope out or correct the file")
    chosen: Any = rope or said or "after"
    base = theta if theta is not None else _number(meta, "rope_theta", path)
    if base is not None and not (math.isfinite(base) and base > 1):
        raise InputError(f"rope_theta = {show(base)}: must be above 1, such as 10000: see the model's config.json")
    if chosen == "before" and base is None:
        raise InputError(
            f"{path}: keys are before RoPE, but rope_theta is missing: give --rope-theta (in the model's config.json)"
        )
    flag = meta.get("synthetic", "false")
    if flag not in ("true", "false"):
        raise InputError(f"{path}: synthetic = {show(flag)}: must be true or false: correct the metadata")
    heads = n_heads if n_heads is not None else _whole(meta, "n_heads", path, 1)
    if not 1 <= heads <= 2**20:
        raise InputError(f"heads = {heads}: must be 1 to {2**20:,}")
    return About(
        model=clean(model or meta.get("model", ""), 200),
        rope=chosen,
        rope_is_said=bool(rope or said),
        theta=base,
        first_position=_whole(meta, "first_position", path, 0),
        n_heads=heads,
        synthetic=synthetic or flag == "true",
        note=clean(meta.get("note", ""), 500),
    )


def _said_rope(dump: Dump, path: str, layers: Iterable[DumpLayer]) -> str | None:
    """Where RoPE was, by the metadata or the names of the tensors. Raises InputError where they contradict."""
    marks: dict[str, str] = {}
    for tensor in (t for layer in layers for t in (layer.tensors.get("key"), layer.query) if t):
        if match := _MARK.search(tensor.name.lower()):
            marks.setdefault(_MARKS[match[1]], tensor.name)
    if len(marks) > 1:
        names = " and ".join(f"{show(name)}" for name in marks.values())
        raise InputError(f"{path}: tensors {names}: one is before, one after RoPE: store all keys the same way")
    said = dump.metadata.get("rope")
    if said is not None and said not in ROPES:
        raise InputError(f"{path}: rope = {show(said)}: must be one of {', '.join(ROPES)}: correct the metadata")
    for mark, name in marks.items():
        if said not in (None, mark):
            raise InputError(f"{path}: tensor {show(name)}: is {mark} RoPE, the metadata say {said}: correct one")
        said = mark
    return said


def _number(meta: dict[str, str], name: str, path: str) -> float | None:
    text = meta.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{0,15})?", text, re.ASCII):
        raise InputError(f"{path}: {name} = {show(text)}: must be a number, such as 10000: correct the metadata")
    return float(text)


def _whole(meta: dict[str, str], name: str, path: str, default: int) -> int:
    text = meta.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        raise InputError(f"{path}: {name} = {show(text)}: must be a whole number: correct the metadata")
    return int(text)


def axes(shape: tuple[int, ...], n_heads: int) -> tuple[int, int, int, int]:
    """(batch, heads, tokens, head_dim) of a tensor [tokens, channels] or of four axes; zeros where it has neither."""
    if len(shape) == 4:
        return shape
    if len(shape) == 2:
        return 1, n_heads, shape[0], shape[1] // n_heads
    return 0, 0, 0, 0


def problems(layers: list[DumpLayer], of: About, max_bytes: int, partial: bool) -> list[str]:
    """Reasons that make a dump unusable, a line each, before any tensor is read.

    Layers count from 0 without a gap and each has keys and values, unless `partial`. All tensors have one dtype and,
    but for their layer, one shape; queries have whole groups of heads on each head of keys. A layer takes at most
    `max_bytes`, as it has to fit into memory.
    """
    lines = []
    if not layers:
        return ["holds no tensors: dump at least one layer"]
    indices = [layer.index for layer in layers]
    gaps = sorted(set(range(min(indices[-1], 2**20))) - set(indices))
    if gaps and not partial:
        more = f" and {len(gaps) - 1:,} more" if len(gaps) > 1 else ""
        lines.append(f"layer {gaps[0]}{more} missing, the last is {indices[-1]}: dump all layers or give --partial")
    tensors: list[tuple[DumpLayer, str, DumpTensor]] = [
        (layer, side, t) for layer in layers for side, t in (*layer.tensors.items(), ("query", layer.query)) if t
    ]
    dtypes: dict[str, str] = {}
    for _, _, tensor in tensors:
        dtypes.setdefault(tensor.dtype, tensor.name)
    if len(dtypes) > 1:
        held = ", ".join(f"{show(name)} is {dtype}" for dtype, name in dtypes.items())
        lines.append(f"mixed dtypes: {held}: save all tensors in one")
    for layer in layers:
        for side in ("key", "value"):
            if side not in layer.tensors and not partial:
                lines.append(f"layer {layer.index} has no {side}s: dump both or give --partial")
    first: list[DumpTensor] = []
    for layer, side, tensor in tensors:
        lines += _tensor_problems(layer, side, tensor, first, of)
    for layer in layers:
        n_bytes = sum(t.stored_bytes for t in (*layer.tensors.values(), layer.query) if t)
        if n_bytes > max_bytes:
            lines.append(
                f"layer {layer.index} takes {n_bytes:,} bytes: at most {max_bytes:,} are read: raise --max-bytes"
            )
    return lines


def _tensor_problems(
    layer: DumpLayer, side: str, tensor: DumpTensor, first: list[DumpTensor], of: About
) -> Iterator[str]:
    """Problems of a tensor's shape; the first keys or values without one are put into `first`."""
    shape = axes(tensor.shape, of.n_heads)
    shown = f"tensor {show(tensor.name)}: shape {list(tensor.shape)}"
    if problem := kernels.shape_problem(tensor):
        yield problem
    elif len(tensor.shape) == 2 and tensor.shape[1] % of.n_heads:
        yield f"{shown}: {of.n_heads} heads do not divide the channels: give --heads"
    elif 0 in shape:
        yield f"{shown}: holds no elements: give at least one token"
    elif side == "query":
        yield from _query_problems(layer, shown, shape, of)
    elif not first:
        first.append(tensor)
    elif shape != (wanted := axes(first[0].shape, of.n_heads)):
        yield f"{shown}: {show(first[0].name)} has {list(wanted)}: keys and values must have the same shape"
    if side == "key" and of.rope == "before" and shape[-1] % 2:
        yield f"{shown}: RoPE needs an even head_dim"


def _query_problems(layer: DumpLayer, shown: str, shape: tuple[int, int, int, int], of: About) -> list[str]:
    key = layer.tensors.get("key")
    if key is None or len(key.shape) not in (2, 4):
        return []
    batch, heads, tokens, dim = axes(key.shape, of.n_heads)
    if shape[0] != batch or shape[3] != dim or not heads or shape[1] % heads or shape[2] > tokens:
        return [
            f"{shown}: must be [{batch}, a multiple of {heads}, at most {tokens}, {dim}], as the keys are: "
            "dump the queries of the same tokens"
        ]
    return []


def refuse(path: str, lines: list[str]) -> None:
    """Raises InputError with the first of these problems, LimitError where it is a size."""
    if lines:
        more = f" (and {len(lines) - 1:,} more: dse measure --check)" if len(lines) > 1 else ""
        kind = LimitError if lines[0].endswith("raise --max-bytes") else InputError
        raise kind(f"{path}: {lines[0]}{more}")


def bad_values(name: str, x: np.ndarray) -> str:
    """A line where a tensor holds NaN, infinities or values beyond 65,504, which kernels refuse; else ""."""
    parts = np.array_split(x.reshape(-1), max(x.size // kernels.BLOCK, 1))
    bad = sum(int(np.count_nonzero(kernels_ref.fp16_patterns(part) & _INFINITE == _INFINITE)) for part in parts)
    return (
        ""
        if not bad
        else (
            f"tensor {show(name)}: {bad:,} of {x.size:,} values are NaN, infinite or beyond 65504: "
            "--nonfinite replace takes them as 0 and +-65504"
        )
    )


def values(dump: Dump, layers: list[DumpLayer], progress: Progress) -> list[str]:
    """Read every tensor and give a line for each that cannot be read or that kernels refuse."""
    lines = []
    names = [t.name for layer in layers for t in (*layer.tensors.values(), layer.query) if t]
    with progress(names, label="reading", length=len(names)) as shown:
        for name in shown:
            try:
                bad = bad_values(name, dump.read(name))
            except InputError as error:
                bad = str(error).partition(": ")[2]
            lines += [bad] if bad else []
    return lines


def holds(dump: Dump, layers: list[DumpLayer], of: About) -> dict[str, Any]:
    """Content of a dump for `dse measure --check`: counts, shape, marks."""
    shapes = {axes(t.shape, of.n_heads) for layer in layers for t in layer.tensors.values()}
    shape = shapes.pop() if len(shapes) == 1 else (None,) * 4
    sides: list[Side] = ["key", "value"]
    return {
        "model": of.model,
        "synthetic": of.synthetic,
        "note": of.note,
        "rope": of.rope if of.rope_is_said else None,
        "rope_theta": of.theta,
        "n_layers": len(layers),
        "layers": [layer.index for layer in layers],
        **{f"n_{side}_layers": sum(side in layer.tensors for layer in layers) for side in sides},
        "n_query_layers": sum(layer.query is not None for layer in layers),
        "batch": shape[0],
        "n_heads": shape[1],
        "n_tokens": shape[2],
        "head_dim": shape[3],
        "dtypes": sorted({t.dtype for t in dump.tensors}),
        "n_bytes": sum(t.stored_bytes for t in dump.tensors),
    }


def lacks(layers: list[DumpLayer], of: About) -> list[str]:
    """Missing tensors and facts that would improve the measurement, a line each."""
    missing = []
    if not of.model:
        missing.append('model name: metadata "model" or --model')
    if not of.rope_is_said:
        missing.append('RoPE mark: taken as after RoPE (as caches hold keys); metadata "rope" or --rope')
    if n := sum(layer.query is None for layer in layers):
        where = "every layer" if n == len(layers) else f"{n} of {len(layers)} layers"
        drawn = "without, they are drawn, which a model's are unlike: `dse dump` writes a model's own"
        missing.append(f"queries of {where}: layerN.query; {drawn}")
    flat = any(len(t.shape) == 2 for layer in layers for t in layer.tensors.values())
    if flat and of.n_heads == 1:
        missing.append("heads: [tokens, channels] is taken as one head; --heads")
    return missing
