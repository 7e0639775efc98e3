"""The papers' own experiments as settings: which perplexities a study of a model computes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import kernels_ref
from dse import quantizers
from dse.measure.kernels import SINKQ_WINDOW, Side
from dse.measure.lm import caches as kv
from dse.measure.lm import oaken_reading
from dse.measure.lm.names import SIGNED
from dse.measure.lm.run import METHODS
from dse.measure.lm.streamed import Decoded, Quantise, of_caches
from dse.measure.lm.weights import LanguageModel


@dataclass(frozen=True)
class Point:
    """One perplexity: `series` and `x` say where it stands in the figure of its experiment."""

    experiment: str
    series: str
    x: float
    method: str
    #: text that thresholds come from; empty: the usual calibration text
    text: str = ""
    #: KIVI: what shares a scale, key and value: "channel/token" is KIVI's choice
    axes: str = ""
    #: SinkQ: the first layer that tracks sinks; -1: the method's own
    first_layer: int = -1
    #: Oaken: steps of an outlier's magnitude beside its sign (`oaken_reading`); 0: as the method is defined
    steps: int = 0

    @property
    def name(self) -> str:
        """For a progress bar."""
        return f"{self.experiment}: {self.method}"

    @property
    def key(self) -> str:
        """What is computed, whatever figure it stands in."""
        rest = (str(self.steps),) if self.steps else ()
        return "|".join((self.method, self.text, self.axes, str(self.first_layer), *rest))


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
BLOCKS = (16, 32, 64, 128, 256)
#: texts that Oaken's thresholds are taken from; "scored": the very text that is scored; "random": bytes drawn evenly
TEXTS = ("", "string", "timeit", "scored", "random")
SINKQ = "sinkq:bits=2,group=128,residual=32"


def points(model: LanguageModel) -> list[Point]:
    """Every point of the study of a model, FP16 first."""
    width = model.n_kv_heads * model.head_dim
    found = [Point("methods", name, 0, name) for name in METHODS]
    for share in OUTLIERS:
        for part in OUTER_PARTS:
            outer = round(share * part, 2)
            groups = f"{outer:g}/{100 - share:g}/{round(share - outer, 2):g}"
            found.append(Point("oaken-ratios", f"{share} %", outer, f"oaken:groups={groups}"))
    found += [Point("oaken-groups", f"{g}, {b} bit", 0, f"oaken:groups={g},outlier_bits={b}") for g, b in TABLE_3]
    found += [
        Point("oaken-groups", f"{g}, {SIGNED}", 0, f"oaken:groups={g},outlier_bits=4", steps=7)
        for g, bits in TABLE_3
        if bits == 4
    ]
    found += [Point("oaken-texts", text or "both", 0, "oaken", text=text) for text in TEXTS]
    found += [Point("nqkv-blocks", "NQKV", block, f"nqkv:block={block}") for block in BLOCKS if block <= width]
    for bits in (2, 4):
        method = f"kivi:bits={bits},group=32,residual=32"
        found += [Point("kivi-axes", axes, bits, method, axes=axes) for axes in AXES]
    for group in GROUPS:
        method = f"sinkq:bits=2,group={group},residual="
        found += [Point("sinkq-sizes", f"G = {group}", n, f"{method}{n}") for n in RESIDUALS]
    found += [Point("sinkq-sinks", "sinks", n, f"{SINKQ},sinks={n}") for n in range(7)]
    n_layers = len(model.layers)
    found += [Point("sinkq-layers", "layers", n, SINKQ, first_layer=n) for n in range(n_layers + 1)]
    return found


def quantise_of(point: Point, model: LanguageModel, known: kv.Calibration) -> tuple[Quantise, bool, list[Any]]:
    """(what decodes, whether keys are before RoPE, the caches where it has any)."""
    spec = quantizers.parse(point.method)
    values = dict(spec.values)
    if point.axes:
        return _axes(values, point.axes), False, []
    if point.first_layer >= 0:
        numbers = (values["bits"], values["group"], values["residual"], values["sinks"], SINKQ_WINDOW)
        found: list[Any] = [
            kv.QuantizedCache(
                kernels_ref.SinkQ(*numbers, 2 if layer >= point.first_layer else 0, overflow="saturate").cache()
            )
            for layer in range(len(model.layers))
        ]
    else:
        found = list(kv.caches(spec, model, known))
    if point.steps:
        return _reading(found, point.steps), False, found
    return *of_caches(found), found


def _reading(found: list[Any], steps: int) -> Quantise:
    """Another reading of the outliers; the caches count the bits, which are the same."""

    def quantise(layer: int, key: np.ndarray, value: np.ndarray) -> Decoded:
        cache = found[layer]
        cache.append(key, value)
        rows = cache.cache
        return Decoded(
            oaken_reading.decoded(key, rows.key_method, steps),
            oaken_reading.decoded(value, rows.value_method, steps),
            lambda n: n,
            lambda n: n,
        )

    return quantise


def _axes(values: dict[str, Any], axes: str) -> Quantise:
    method = kernels_ref.KIVI(values["bits"], values["group"], values["residual"], overflow="saturate")
    sides: list[Side] = ["key" if axis == "channel" else "value" for axis in axes.split("/")]
    key_side, value_side = sides

    def quantise(layer: int, key: np.ndarray, value: np.ndarray) -> Decoded:
        return Decoded(
            method.dequantize(method.quantize(key, key_side)),
            method.dequantize(method.quantize(value, value_side)),
            lambda n: method.n_packed(key_side, n),
            lambda n: method.n_packed(value_side, n),
        )

    return quantise
