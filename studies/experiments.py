"""The papers' own experiments as settings: the perplexities that a study of a model computes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import kernels_ref
from dse import quantizers
from dse.quantizers.base import N_SHALLOW_LAYERS
from dse.quantizers.kernel import Side
from dse.quantizers.methods import sinkq
from dse.transformer import caches
from dse.transformer.caches import CachedModel, Decoded, DecodingCache
from studies.table import SIGNED

#: several bit-widths of each kind of method
METHODS = (
    "fp16",
    "fp8",
    "int8_per_token_head",
    "int4_per_token_head",
    "int8",
    "int4",
    "nqkv:block=64",
    "oaken",
    "qserve",
    "atom:group=64",
    "tender",
    "kvquant",
    "kivi:bits=4",
    "kivi:bits=2",
    "sinkq:bits=4",
    "sinkq:bits=2",
    # as SinkQ Table 8 has it, and as ZipCache's own tables do
    "zipcache:salient=0.2",
    "zipcache",
)


@dataclass(frozen=True, kw_only=True)
class StudyPoint:
    """One perplexity: `series` and `x` say where it stands in the figure of its experiment."""

    experiment: str
    series: str
    x: float
    method: str
    #: text that thresholds come from; empty: the usual calibration text
    text: str = ""
    #: KIVI: what shares a scale, key and value: "channel/token" is KIVI's choice
    axes: str = ""
    #: SinkQ: the first layer that tracks sinks, and the window that keeps those eliminated from the pool; -1: its own
    first_layer: int = -1
    window: int = -1
    #: SinkQ: so many first tokens in place of sinks, kept and excluded as they are; -1: sinks by their keys
    first_tokens: int = -1

    @property
    def name(self) -> str:
        """For a progress bar."""
        return f"{self.experiment}: {self.method}"

    @property
    def key(self) -> str:
        """Key of the computation, whatever figure it stands in."""
        return "|".join((self.method, self.text, self.axes, *map(str, (self.first_layer, self.window)))) + (
            f"|first {self.first_tokens}" if self.first_tokens >= 0 else ""
        )


AXES = ("channel/token", "channel/channel", "token/token", "token/channel")
#: SinkQ Table 3
GROUPS, RESIDUALS = (32, 64, 128), (0, 8, 16, 32, 64, 128)
#: Oaken Table 3: groups and bits of an outlier
TABLE_3 = (
    ("4/90/6", 5),
    ("90/10", 5),
    ("10/90", 5),
    ("4/90/3/3", 5),
    ("2/2/90/6", 5),
    ("2/2/90/3/3", 5),
    ("4/90/3/3", 4),
    ("2/2/90/6", 4),
    ("2/2/90/3/3", 4),
)
#: Oaken Figure 12(a): percent of outliers, and the outer group's part of them
OUTLIERS, OUTER_PARTS = (2, 5, 10, 20), (0.2, 0.4, 0.6, 0.8)
BLOCKS = (16, 32, 64, 96, 192, 256)
#: texts that Oaken's thresholds come from: the one for calibration, the scored ones, tokens drawn evenly
CALIBRATION, SCORED, RANDOM = "", "scored", "random"
#: SinkQ's window of 32 (4.1), and smaller ones. 512 tokens have three groups of 128: the first fills the pool, of which
#: each later one eliminates 3 at most, so that a window of 6 or more never fills
WINDOWS = (0, 2, 32)
#: SinkQ 3.2: sinks at any position, against as many tokens from the first on
PLACES = (1, 3, 8, 16)
SINKQ = "sinkq:bits=2,group=128,residual=32"


def _at(experiment: str, series: str, x: float, method: str, **more: Any) -> StudyPoint:
    return StudyPoint(experiment=experiment, series=series, x=x, method=method, **more)


def points(model: CachedModel, width: int, texts: Sequence[str]) -> list[StudyPoint]:
    """Every point of the study of a model whose tokens have `width` channels, by 16 bits first; names of its texts."""
    plan = [_at("methods", name, 0, name) for name in METHODS]
    for share in OUTLIERS:
        for part in OUTER_PARTS:
            outer = round(share * part, 2)
            groups = f"{outer:g}/{100 - share:g}/{round(share - outer, 2):g}"
            plan.append(_at("oaken-ratios", f"{share} %", outer, f"oaken:groups={groups}"))
    plan += [_at("oaken-groups", f"{g}, {b} bit", 0, f"oaken:groups={g},outlier_bits={b}") for g, b in TABLE_3]
    plan += [
        _at("oaken-groups", f"{g}, {SIGNED}", 0, f"oaken:groups={g},outlier_bits=4,outlier_code=signed")
        for g, bits in TABLE_3
        if bits == 4
    ]
    for name in (CALIBRATION, SCORED, RANDOM, *texts):
        plan.append(_at("oaken-texts", name or "calibration", 0, "oaken", text=name))
    plan += [_at("nqkv-blocks", "NQKV", n, f"nqkv:block={n}") for n in BLOCKS if width % n == 0]
    for bits in (2, 4):
        method = f"kivi:bits={bits},group=32,residual=32"
        plan += [_at("kivi-axes", axes, bits, method, axes=axes) for axes in AXES]
    for group in GROUPS:
        method = f"sinkq:bits=2,group={group},residual="
        plan += [_at("sinkq-sizes", f"G = {group}", n, f"{method}{n}") for n in RESIDUALS]
    plan += [_at("sinkq-sinks", "sinks", n, f"{SINKQ},sinks={n}") for n in range(7)]
    plan += [_at("sinkq-window", "window", n, SINKQ, window=n) for n in WINDOWS]
    plan += [_at("sinkq-places", "smallest keys", n, f"{SINKQ},sinks={n}") for n in PLACES]
    plan += [_at("sinkq-places", "first tokens", n, f"{SINKQ},sinks=0", first_tokens=n) for n in PLACES]
    first = sorted({n for n in (0, 1, 2, 4, 8, 16) if n < model.n_layers} | {model.n_layers})
    plan += [_at("sinkq-layers", "layers", n, SINKQ, first_layer=n) for n in first]
    return plan


def caches_of(point: StudyPoint, model: CachedModel, known: caches.Calibration) -> list[Any]:
    """Empty caches of the point, one a layer."""
    spec = quantizers.parse(point.method)
    values = dict(spec.values)
    if point.axes:
        return [_by_axes(values, point.axes) for _ in range(model.n_layers)]
    if point.first_tokens >= 0:
        return [_first_kept(values, point.first_tokens if i >= N_SHALLOW_LAYERS else 0) for i in range(model.n_layers)]
    if max(point.first_layer, point.window) >= 0:
        window = sinkq.WINDOW if point.window < 0 else point.window
        first = N_SHALLOW_LAYERS if point.first_layer < 0 else point.first_layer
        numbers = {name: values[name] for name in ("bits", "group", "residual", "sinks")}
        return [
            caches.QuantizedCache(
                kernels_ref.SinkQ(
                    **numbers, window=window, layer=N_SHALLOW_LAYERS if i >= first else 0, overflow="saturate"
                ).cache()
            )
            for i in range(model.n_layers)
        ]
    return list(caches.caches(spec, model, known))


def _first_kept(values: dict[str, Any], n_first: int) -> DecodingCache:
    """SinkQ whose sinks are the first tokens, as in StreamingLLM: kept in FP16, and their group's mean packed."""
    method = kernels_ref.SinkQ(
        values["bits"], group=values["group"], residual=values["residual"], sinks=0, overflow="saturate"
    )

    def decode(key: np.ndarray, value: np.ndarray) -> Decoded:
        kept, group = n_first if method.n_packed(key.shape[2]) else 0, slice(method.group)
        taken = [key.copy(), value.copy()]
        for x in taken:  # as SinkQ packs a sink: rounded to binary32, then to FP16
            mean = x[:, :, group].astype(np.float64).sum(axis=2, keepdims=True) / method.group
            x[:, :, :kept] = mean.astype(np.float32).astype(np.float16)
        cache = method.cache()
        cache.append(*taken)
        seen = [x.copy() for x in cache.seen()]
        for x, whole in zip(seen, (key, value), strict=True):
            x[:, :, :kept] = whole[:, :, :kept]
        read.stored_bits = cache.stored_bits + 16 * kept / key.shape[2]
        return Decoded(seen[0], seen[1], method.n_packed, method.n_packed)

    read = DecodingCache(decode, math.nan)
    return read


def _by_axes(values: dict[str, Any], axes: str) -> DecodingCache:
    """KIVI with keys and values quantized along the axes named."""
    method = kernels_ref.KIVI(values["bits"], values["group"], values["residual"], overflow="saturate")
    sides: list[Side] = ["key" if axis == "channel" else "value" for axis in axes.split("/")]
    key_side, value_side = sides

    def decode(key: np.ndarray, value: np.ndarray) -> Decoded:
        return Decoded(
            method.dequantize(method.quantize(key, key_side)),
            method.dequantize(method.quantize(value, value_side)),
            lambda n: method.n_packed(key_side, n),
            lambda n: method.n_packed(value_side, n),
        )

    return DecodingCache(decode, math.nan)
