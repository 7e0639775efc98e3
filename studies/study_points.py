"""The papers' own experiments as settings: which perplexities a study of a model computes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import kernels_ref
from dse import quantizers
from dse.measure.study_table import SIGNED
from dse.quantizers.kernel import Side
from dse.quantizers.methods import sinkq
from dse.transformer import caches
from dse.transformer.caches import Decoded
from studies import oaken_reading
from studies.run import METHODS
from studies.streamed import Quantize, of_caches
from studies.weights import ByteModel


@dataclass(frozen=True)
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
        """Key of the computation, whatever figure it stands in."""
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


def points(model: ByteModel) -> list[StudyPoint]:
    """Every point of the study of a model, FP16 first."""
    width = model.n_kv_heads * model.head_dim
    found = [StudyPoint("methods", name, 0, name) for name in METHODS]
    for share in OUTLIERS:
        for part in OUTER_PARTS:
            outer = round(share * part, 2)
            groups = f"{outer:g}/{100 - share:g}/{round(share - outer, 2):g}"
            found.append(StudyPoint("oaken-ratios", f"{share} %", outer, f"oaken:groups={groups}"))
    found += [StudyPoint("oaken-groups", f"{g}, {b} bit", 0, f"oaken:groups={g},outlier_bits={b}") for g, b in TABLE_3]
    found += [
        StudyPoint("oaken-groups", f"{g}, {SIGNED}", 0, f"oaken:groups={g},outlier_bits=4", steps=7)
        for g, bits in TABLE_3
        if bits == 4
    ]
    found += [StudyPoint("oaken-texts", text or "both", 0, "oaken", text=text) for text in TEXTS]
    found += [StudyPoint("nqkv-blocks", "NQKV", block, f"nqkv:block={block}") for block in BLOCKS if block <= width]
    for bits in (2, 4):
        method = f"kivi:bits={bits},group=32,residual=32"
        found += [StudyPoint("kivi-axes", axes, bits, method, axes=axes) for axes in AXES]
    for group in GROUPS:
        method = f"sinkq:bits=2,group={group},residual="
        found += [StudyPoint("sinkq-sizes", f"G = {group}", n, f"{method}{n}") for n in RESIDUALS]
    found += [StudyPoint("sinkq-sinks", "sinks", n, f"{SINKQ},sinks={n}") for n in range(7)]
    n_layers = len(model.layers)
    found += [StudyPoint("sinkq-layers", "layers", n, SINKQ, first_layer=n) for n in range(n_layers + 1)]
    return found


def quantize_of(point: StudyPoint, model: ByteModel, known: caches.Calibration) -> tuple[Quantize, bool, list[Any]]:
    """(what decodes, whether keys are before RoPE, the caches where it has any)."""
    spec = quantizers.parse(point.method)
    values = dict(spec.values)
    if point.axes:
        return _axes(values, point.axes), False, []
    if point.first_layer >= 0:
        numbers = (values["bits"], values["group"], values["residual"], values["sinks"], sinkq.WINDOW)
        found: list[Any] = [
            caches.QuantizedCache(
                kernels_ref.SinkQ(*numbers, 2 if layer >= point.first_layer else 0, overflow="saturate").cache()
            )
            for layer in range(len(model.layers))
        ]
    else:
        found = list(caches.caches(spec, model, known))
    if point.steps:
        return _reading(found, point.steps), False, found
    return *of_caches(found), found


def _reading(found: list[Any], steps: int) -> Quantize:
    """Another reading of the outliers; the caches count the bits, which are the same."""

    def quantize(layer: int, key: np.ndarray, value: np.ndarray) -> Decoded:
        cache = found[layer]
        cache.append(key, value)
        rows = cache.cache
        return Decoded(
            oaken_reading.decoded(key, rows.key_method, steps),
            oaken_reading.decoded(value, rows.value_method, steps),
            lambda n: n,
            lambda n: n,
        )

    return quantize


def _axes(values: dict[str, Any], axes: str) -> Quantize:
    method = kernels_ref.KIVI(values["bits"], values["group"], values["residual"], overflow="saturate")
    sides: list[Side] = ["key" if axis == "channel" else "value" for axis in axes.split("/")]
    key_side, value_side = sides

    def quantize(layer: int, key: np.ndarray, value: np.ndarray) -> Decoded:
        return Decoded(
            method.dequantize(method.quantize(key, key_side)),
            method.dequantize(method.quantize(value, value_side)),
            lambda n: method.n_packed(key_side, n),
            lambda n: method.n_packed(value_side, n),
        )

    return quantize
