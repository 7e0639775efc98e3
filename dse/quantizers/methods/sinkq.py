"""SinkQ: KIVI's groups, and the keys and values of attention sinks in FP16."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dse.core.errors import InputError
from dse.core.units import FP16_BITS
from dse.quantizers.base import Family, TensorLayout, TensorShape, Values, param
from dse.quantizers.kernel import KernelRunner, QuantizedTensor, Settings, Side
from dse.quantizers.methods import kivi
from kernels_ref import storage

if TYPE_CHECKING:
    import numpy as np

    from kernels_ref.sinkq import SinkQ, SinkQCache

#: evicted sinks kept per head (SinkQ 4.1: 32 is enough)
WINDOW = 32


def _layout(values: Values, shape: TensorShape) -> TensorLayout:
    sinks = 0 if shape.shallow else values["sinks"] + values["evicted"]
    pool = FP16_BITS * shape.n_elements * sinks
    if shape.which == "key" or shape.alone:  # positions are kept once for a key and its value, per head
        pool += storage.position * shape.n_heads * sinks
    return TensorLayout(
        shape,
        packed=kivi.core(values, shape),
        pool={"sinks": pool},
        pool_rows=sinks,
        step=values["group"],
        residual=values["residual"],
    )


class _SinkQKernel(KernelRunner):
    def _method(self, values: Values, layer: int) -> "SinkQ":
        from kernels_ref.sinkq import SinkQ

        return SinkQ(
            bits=values["bits"],
            group=values["group"],
            residual=values["residual"],
            sinks=values["sinks"],
            window=WINDOW,
            layer=layer,
            overflow="saturate",
        )

    def run(
        self, values: Values, layer: int, tensors: Mapping[Side, "np.ndarray"], settings: Settings
    ) -> dict[Side, QuantizedTensor]:
        if len(tensors) != 2:
            raise InputError(f"sinkq: layer {layer} has no {'value' if 'key' in tensors else 'key'}s: it needs both")
        method = self._method(values, layer)
        cache = method.quantize(tensors["key"], tensors["value"], settings.n_heads, settings.nonfinite)
        key, value = cache.seen()
        n_heads = cache.n_evicted.size if method.pool_size and cache.counts["n_packed_elements"] else 0
        seen: dict[Side, np.ndarray] = {"key": key, "value": value}
        outcomes: dict[Side, QuantizedTensor] = {}
        for side in seen:
            (packed,) = cache.packed(side)
            outcomes[side] = QuantizedTensor(packed, seen[side], {**packed.counts, "n_sink_heads": n_heads})
        return outcomes

    def cache(self, values: Values, layer: int, known: Mapping[Side, "np.ndarray"], settings: Settings) -> "SinkQCache":
        return self._method(values, layer).cache()


FAMILIES = (
    Family(
        name="sinkq",
        title="SinkQ",
        source="SinkQ sections 3.2 and 4.1: KIVI's core; the sinks' keys and values stay in FP16",
        layout=_layout,
        params=(
            kivi.BITS,
            param("group", default=128, help="tokens packed at a time", low=4, high=65536),
            param("residual", default=32, help="most recent tokens kept in FP16", low=0, high=65536),
            param("sinks", default=3, help="sink tokens kept in FP16 per head", low=0, high=1024),
            param(
                "evicted",
                default=0,
                help="replaced sinks still kept in FP16 (depends on data; 0 nominal)",
                low=0,
                high=1024,
            ),
        ),
        problem=kivi.word_problem,
        kernel=_SinkQKernel(),
        realised=(("sinks", "n_pool", "n_sink_heads"), ("evicted", "n_evicted", "n_sink_heads")),
        listed=70,
    ),
)
