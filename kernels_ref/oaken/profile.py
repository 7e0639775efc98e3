"""Oaken's offline step: thresholds from profiled keys and values, one histogram over all FP16 patterns at a time."""

import math
from collections.abc import Sequence

import numpy as np

from kernels_ref.inputs import row_tensor
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.oaken.thresholds import Thresholds, Which, check_fracs

#: up to here ranks are FP32 products, as torch.quantile has them; it refuses more elements
TORCH_LIMIT = 2**24
#: parts of a block that are counted side by side
PARTS = 16
TOOL = "kernels_ref.oaken"


@inner
def _count(bits: np.ndarray, even: np.ndarray, odd: np.ndarray) -> None:
    """Two histograms in turn: equal neighbours do not wait for each other."""
    for i in range(bits.size // 2):
        even[bits[2 * i]] += np.uint32(1)
        odd[bits[2 * i + 1]] += np.uint32(1)
    if bits.size % 2:
        even[bits[bits.size - 1]] += np.uint32(1)


@inner
def _add(counts: np.ndarray, total: np.ndarray) -> None:
    for pattern in range(total.size):
        total[pattern] += counts[pattern]


@kernel
def histogram(bits: np.ndarray, n_parts: int, total: np.ndarray) -> None:
    """Add to total[65536] (int64) how often each pattern is in bits[n]; the parts are counted side by side."""
    counts = np.zeros((2 * n_parts, total.size), np.uint32)
    for part in prange(n_parts):
        first, last = part * bits.size // n_parts, (part + 1) * bits.size // n_parts
        _count(bits[first:last], counts[2 * part], counts[2 * part + 1])
    for row in range(2 * n_parts):
        _add(counts[row], total)


def _ascending() -> np.ndarray:
    """All patterns in the order of their values: negative ones from the largest magnitude, then the others."""
    return np.concatenate([np.arange(2**16 - 1, 2**15 - 1, -1), np.arange(2**15)]).astype(np.uint16)


def _ranks(n: int, fracs: Sequence[float]) -> list[tuple[int, int]]:
    """(lower, upper) rank of every group among n sorted values: torch.quantile, interpolation lower and higher.

    The share outside is summed in doubles, then FP32 as is its product with n - 1. Beyond torch's 2**24 elements the
    product is taken in doubles, exactly.
    """
    ranks, share = [], 0.0
    real = np.float32 if n <= TORCH_LIMIT else np.float64
    for frac in fracs:
        share += frac
        low = real(np.float32(share / 2)) * real(n - 1)
        high = real(np.float32(1 - share / 2)) * real(n - 1)
        ranks.append((min(max(math.floor(low), 0), n - 1), min(max(math.ceil(high), 0), n - 1)))
    return ranks


class Profiler:
    """Thresholds by profiling (Oaken 4.2 and its released profiler), streaming: one call of `add` is one run.

    A run is the keys or the values of one layer in one forward pass, all tokens. Of each run the order statistics are
    exact; a layer's thresholds are their means over its runs, in doubles. Memory: histograms, whatever the tensors.

    fracs: Shares of the groups, outermost first, which sum to 1; each is split evenly between the two tails.
    model: Name of the model, for the record.
    data: Name of the data, for the record.
    """

    def __init__(self, fracs: Sequence[float] = (0.04, 0.90, 0.06), *, model: str = "", data: str = "") -> None:
        check_fracs(fracs)
        self.fracs = tuple(float(frac) for frac in fracs)
        self.model, self.data = model, data
        self._lower: dict[tuple[int, str], np.ndarray] = {}
        self._upper: dict[tuple[int, str], np.ndarray] = {}
        self._runs: dict[tuple[int, str], int] = {}
        self.n_elements = 0

    def add(self, layer: int, which: Which, x: np.ndarray) -> None:
        """Profile one run. Raises TypeError and ValueError; then nothing has been added.

        layer: Number of the layer, from 0.
        which: "key" or "value".
        x: Of any shape and type that `Oaken.quantize` takes, finite, not empty.
        """
        if isinstance(layer, bool) or not isinstance(layer, int | np.integer) or layer < 0:
            raise ValueError(f"layer = {layer!r}: must be 0 or more")
        if which not in ("key", "value"):
            raise ValueError(f"which = {which!r}: must be 'key' or 'value'")
        tensor = row_tensor(x)
        n = tensor.array.size
        if not n:
            raise ValueError(f"x has shape {x.shape}: must not be empty")
        counts = np.zeros(2**16, np.int64)
        for _, bits in tensor.row_blocks():
            histogram(bits.reshape(-1), PARTS if bits.size > 2**20 else 1, counts)
        patterns = _ascending()
        ends = np.cumsum(counts[patterns])  # values up to and with this one
        ranks = np.array(_ranks(n, self.fracs))
        values = patterns[np.searchsorted(ends, ranks, side="right")].view(np.float16).astype(np.float64)
        at = (int(layer), which)
        for side, column in ((self._lower, 0), (self._upper, 1)):
            side[at] = side.get(at, np.zeros(len(self.fracs))) + values[:, column]  # 0 + -0 is +0: no -0 is stored
        self._runs[at] = self._runs.get(at, 0) + 1
        self.n_elements += n

    def thresholds(self) -> Thresholds:
        """The means over all runs so far.

        Raises ValueError unless keys and values of every layer from 0 on have been profiled, all equally often.
        """
        n_layers = 1 + max((layer for layer, _ in self._runs), default=0)
        most = max(self._runs.values(), default=1)
        for layer in range(n_layers):
            for which in ("key", "value"):
                n = self._runs.get((layer, which), 0)
                if not n:
                    raise ValueError(f"layer {layer}: has no {which}s: must have keys and values of every layer")
                if n != most:
                    raise ValueError(f"layer {layer}: its {which}s have {n} runs: must have {most}, as many as others")

        def means(side: dict[tuple[int, str], np.ndarray], which: str) -> tuple[tuple[float, ...], ...]:
            return tuple(tuple((side[layer, which] / most).tolist()) for layer in range(n_layers))

        return Thresholds(
            self.fracs,
            key_lower=means(self._lower, "key"),
            key_upper=means(self._upper, "key"),
            value_lower=means(self._lower, "value"),
            value_upper=means(self._upper, "value"),
            model=self.model,
            data=self.data,
            tool=TOOL,
            n_runs=most,
            n_elements=self.n_elements,
        )
