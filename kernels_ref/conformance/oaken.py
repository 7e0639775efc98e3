"""Golden files of Oaken: the released profiler and fake quantiser, and the packed form of the paper."""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from kernels_ref.conformance.compare import Pair
from kernels_ref.conformance.vectors import Vectors
from kernels_ref.oaken import Oaken, Profiler

#: beginning of an output's name -> options of the artifact, and the kind of oracle where it is not the file's
_OUTPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "out_cpu": ({}, ""),
    "out_cudasem": ({"device_semantics": "cuda"}, "shim"),
    "out_cpu_noshift": ({"group_shift": False}, ""),
    "out_inlieronly": ({"quantize_outlier": False}, ""),
}


def artifact(vectors: Vectors) -> Iterator[Pair]:
    """oaken_*: thresholds per layer, groups and outputs of the released code for keys and values."""
    sides: tuple[Literal["key", "value"], ...] = ("key", "value")
    yield from _thresholds(vectors)
    for which in sides:
        x, groups = vectors[which], vectors[f"group_{which}"]
        lower, upper = vectors[f"{which}_lower"], vectors[f"{which}_upper"]
        for layer in range(len(x)):
            tokens = x[layer].reshape(-1, x.shape[-1])
            # groups of the released code go by position: `dense` is of no consequence
            thresholds = (tuple(lower[layer, :-1]), tuple(upper[layer, :-1]))
            method = Oaken(*thresholds, dense=1, mode="artifact")
            found = method.groups(tokens).reshape(groups[layer].shape)
            yield Pair(f"group_{which}[{layer}]", groups[layer], found)
            counts = np.array([np.count_nonzero(found == group) for group in range(lower.shape[1])], np.float32)
            shares = (counts / np.float32(found.size)).astype(np.float64)
            yield Pair(f"val_frac_{which}[{layer}]", vectors[f"val_frac_{which}"][layer], shares)
            for name, (options, kind) in _OUTPUTS.items():
                if f"{name}_{which}" in vectors:
                    method = Oaken(*thresholds, dense=1, mode="artifact", **options)
                    found = method.fake_quantize(tokens, nonfinite="propagate")
                    expected = vectors[f"{name}_{which}"][layer]
                    yield Pair(f"{name}_{which}[{layer}]", expected, found.reshape(expected.shape), kind=kind)


def _thresholds(vectors: Vectors) -> Iterator[Pair]:
    profiler = Profiler(tuple(vectors["fracs"].tolist()))
    sides: tuple[Literal["key", "value"], ...] = ("key", "value")
    for which in sides:
        for run in vectors[f"profile_{which}"]:
            for layer, x in enumerate(run):
                profiler.add(layer, which, x.reshape(-1, x.shape[-1]))
    found = profiler.thresholds()
    for name in ("key_lower", "key_upper", "value_lower", "value_upper"):
        yield Pair(name, vectors[name], np.array(getattr(found, name)))


def paper(vectors: Vectors) -> Iterator[Pair]:
    """oakenpaper_*: packed buffers, groups and decoded values of paper mode with three groups."""
    method = Oaken.three_groups(*vectors["thresholds_olo_ilo_ihi_ohi"].tolist())
    x = vectors["x"]
    packed = method.quantize(x)
    for name in ("dense", "coo", "counts", "meta"):
        yield Pair(name, vectors[name], packed.buffers[name])
    yield Pair("group", vectors["group"], method.groups(x))
    yield Pair("dequant", vectors["dequant"], packed.dequantize())
