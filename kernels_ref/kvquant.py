"""KVQuant as Oaken's artifact runs it: 4-bit codes per channel (keys) or token (values), outliers kept in FP16."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels_ref import half
from kernels_ref.inputs import KVTensor, NonFinite
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.nibbles import pack_low_first, unpack_low_first
from kernels_ref.packed import Packed
from kernels_ref.rows import Buffers, Column, channels_of, check_buffers, checked_tensor, decode_rows, shape_of_rows

_LEVELS = np.float32(15)
_LARGEST = np.float32(65504)
#: adding and subtracting it rounds a float32 below 2^22 to an integer, ties to even
_TO_INTEGER = np.float32(1.5 * 2.0**23)
#: channels that a 16-bit index reaches, all of them counted by 16 bits
MAX_CHANNELS = 2**16 - 1
#: elements that are sorted at a time
PIECE = 2**20


@inner
def _uniform(value, factor, offset):
    """clip(rint(factor * value - offset), 0, 15); 0 where the factor is not finite."""
    steps = np.float32(np.float32(factor * value) - offset)
    steps = min(max(steps, np.float32(0)), _LEVELS) if abs(factor) <= np.float32(3e38) else np.float32(0)
    return np.uint16(np.int32(np.float32(np.float32(steps + _TO_INTEGER) - _TO_INTEGER)))


@inner
def _nearest(value, lut):
    """Index of the table's value nearest to `value`, the first of equals; 0 for NaN."""
    best, distance = 0, np.float32(abs(np.float32(value - lut[0])))
    for i in range(1, lut.size):
        other = np.float32(abs(np.float32(value - lut[i])))
        if other < distance:
            best, distance = i, other
    return np.uint16(best)


@inner
def _encode_row(bits, outlier, one, other, lut, codes):
    """one, other: factor and offset of the uniform codes, or half range and centre of those by table."""
    step = 0 if one.size == 1 else 1
    for i in range(bits.size):
        value = half.to_f32(bits[i])
        if lut.size:
            moved = np.float32(0) if outlier[i] else np.float32(value - other[i * step])
            codes[i] = _nearest(np.float32(moved / one[i * step]), lut)
        else:
            codes[i] = _uniform(np.float32(0) if outlier[i] else value, one[i * step], other[i * step])


@kernel
def _encode(bits, outlier, one, other, lut, packed):
    """FP16 patterns bits[n, channels], outlier uint8 alike -> packed; one, other float32 [n, 1] or [1, channels]."""
    for row in prange(bits.shape[0]):
        codes = np.zeros(2 * packed.shape[1], np.uint16)
        mine = min(np.int64(row), one.shape[0] - 1)
        _encode_row(bits[row], outlier[row], one[mine], other[mine], lut, codes)
        pack_low_first(codes, packed[row])


@inner
def _decode_row(codes, one, other, lut, bits):
    step = 0 if one.size == 1 else 1
    for i in range(bits.size):
        if lut.size:
            value = np.float32(np.float32(lut[codes[i]] * one[i * step]) + other[i * step])
        else:
            value = np.float32(np.float32(np.float32(codes[i]) + other[i * step]) / one[i * step])
        # neither infinite nor NaN: the artifact puts 0 in their place
        value = value if abs(value) <= np.float32(3e38) else np.float32(0)
        bits[i] = half.from_f32(min(max(value, -_LARGEST), _LARGEST))


@kernel
def _decode(packed, one, other, lut, bits):
    """The reverse of `_encode`, without the outliers."""
    for row in prange(bits.shape[0]):
        codes = np.empty(2 * packed.shape[1], np.uint16)
        unpack_low_first(packed[row], codes)
        mine = min(np.int64(row), one.shape[0] - 1)
        _decode_row(codes, one[mine], other[mine], lut, bits[row])


def _rounded(values: np.ndarray) -> np.ndarray:
    """float32 rounded to FP16."""
    return values.astype(np.float16).astype(np.float32)


def _parameters(low: np.ndarray, high: np.ndarray, by_table: bool, in_half: bool) -> tuple[np.ndarray, np.ndarray]:
    """(factor, offset) or, for codes by table, (half range, centre); every step in FP16 where `in_half`."""
    step = _rounded if in_half else np.asarray
    with np.errstate(all="ignore"):
        if by_table:
            return step(step(high - low) / np.float32(2)), step(step(high + low) / np.float32(2))
        factor = step(step(np.float32(1) / step(high - low)) * _LEVELS)
        return factor, step(low * factor)


def _columns(shape: tuple[int, ...], per_token: bool) -> tuple[Column, ...]:
    fixed = (
        Column("codes", np.uint8, -(-channels_of(shape) // 2), "payload"),
        Column("outlier_count", np.uint16, 1, "counts"),
    )
    low_high = (Column("high", np.float16, 1, "scales"), Column("low", np.float16, 1, "zero_points"))
    return (*fixed, *low_high) if per_token else fixed


def _quantize(method: Any, x: np.ndarray, n_heads: int, nonfinite: NonFinite, per_token: bool) -> Packed:
    """All rows, block by block: `method._block(bits)` gives outliers [n, channels], one, other, and low, high."""
    tensor, shape = checked_tensor(x, n_heads, nonfinite)
    if tensor.n_channels > MAX_CHANNELS:
        raise ValueError(f"x has {tensor.n_channels} channels: must have at most {MAX_CHANNELS} for 16-bit indices")
    columns = _columns(shape, per_token)
    buffers = {column.name: np.empty((tensor.n_rows, column.items), column.dtype) for column in columns}
    values, indices = [np.empty(0, np.uint16)], [np.empty(0, np.uint16)]
    for row, bits in _pieces(tensor):
        rows = slice(row, row + len(bits))
        outlier, one, other, low, high = method._block(bits)
        _encode(bits, outlier.view(np.uint8), one, other, method._table, buffers["codes"][rows])
        buffers["outlier_count"][rows, 0] = outlier.sum(axis=1)
        values.append(bits[outlier])
        indices.append(np.nonzero(outlier)[1].astype(np.uint16))
        if per_token:
            buffers["low"][rows], buffers["high"][rows] = low, high
    buffers["outlier_value"] = np.concatenate(values).view(np.float16)
    buffers["outlier_index"] = np.concatenate(indices)
    parts = {column.name: column.part for column in columns}
    return Packed(
        method,
        shape,
        tensor.array.size,
        buffers,
        parts | {"outlier_value": "outliers", "outlier_index": "outliers"},
        padding_bits=4 * (tensor.n_channels % 2) * tensor.n_rows,
        counts={"n_outliers": len(buffers["outlier_value"])},
    )


def _pieces(tensor: KVTensor) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, patterns) in blocks of about PIECE elements: sorting needs several float32 copies of them."""
    step = max(PIECE // tensor.n_channels, 1)
    for row, bits in tensor.row_blocks():
        for at in range(0, len(bits), step):
            yield row + at, bits[at : at + step]


def _dequantize(method: Any, packed: Packed, per_token: bool) -> np.ndarray:
    columns = _columns(packed.shape, per_token)
    check_buffers(packed, columns)
    n_rows, channels = shape_of_rows(packed.shape)
    ends = np.cumsum(packed.buffers["outlier_count"], dtype=np.int64)
    n_outliers = int(ends[-1]) if n_rows else 0
    for name, dtype in (("outlier_value", np.float16), ("outlier_index", np.uint16)):
        buffer = packed.buffers.get(name, np.empty(0))
        if buffer.shape != (n_outliers,) or buffer.dtype != dtype:
            raise ValueError(f"buffer {name}: must be {np.dtype(dtype).name} [{n_outliers}]")
    if n_outliers and int(packed.buffers["outlier_index"].max()) >= channels:
        raise ValueError(f"buffer outlier_index: must be below the {channels} channels")
    position = 0

    def decode(buffers: Buffers, bits: np.ndarray) -> None:
        nonlocal position
        one, other = method._of_buffers(buffers)
        _decode(buffers["codes"], one, other, method._table, bits)
        counts = buffers["outlier_count"][:, 0]
        stop = position + int(counts.sum(dtype=np.int64))
        at = np.repeat(np.arange(len(bits)), counts), packed.buffers["outlier_index"][position:stop]
        bits[at] = packed.buffers["outlier_value"][position:stop].view(np.uint16)
        position = stop

    return decode_rows(packed, columns, decode)


def _checked_table(lut: tuple[float, ...] | None) -> None:
    if lut is not None and (len(lut) != 16 or not np.isfinite(np.array(lut, np.float32)).all()):
        raise ValueError("lut: must be 16 finite numbers, the values of the codes in [-1, 1]")


class _Table:
    """The table of values as kernels want it: empty for uniform codes."""

    lut: tuple[float, ...] | None

    @property
    def _table(self) -> np.ndarray:
        return np.array(self.lut or (), np.float32)


@dataclass(frozen=True)
class KVQuantKeys(_Table):
    """KVQuant keys: offline FP16 thresholds `lower` and `upper` per channel; beyond them (strictly) are outliers.

    Uniform codes (no `lut`): q = h(h(1 / h(upper - lower)) * 15), o = h(lower * q), code = clip(rint(q * x - o), 0,
    15), decoded as h((code + o) / q), in float32 but for q and o. NUQ: the nearest of the 16 values of `lut` to
    (x - centre) / half range, both FP16, the first of equals. An outlier takes the code of 0 (uniform) or of the centre
    (NUQ) and is restored exactly. A channel whose q is not finite decodes to 0, as in the artifact.

    The thresholds and the table are fixed with the weights and not counted as stored.

    Buffers (packing defined here, the artifact only simulates): `codes` uint8 [rows, ceil(channels / 2)], element 2i in
    the low nibble; `outlier_value` float16 and `outlier_index` uint16 (the channel), token after token, and
    `outlier_count` uint16 [rows, 1] to find them.
    Source: KVQuant (arXiv:2401.18079); artifact casys-kaist/oaken@e0bfbf0, kvquant/simquant_module_quantizer.py
    (get_outliers, quant_fn_zp, which is what it runs, and quant_fn_nuq_recon).
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    lut: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _checked_table(self.lut)
        with np.errstate(over="ignore"):
            low, high = np.array(self.lower, np.float16), np.array(self.upper, np.float16)
        if low.ndim != 1 or low.shape != high.shape or not (np.isfinite(low) & np.isfinite(high)).all():
            raise ValueError("lower, upper: must be finite FP16 numbers, one of each per channel")
        if (low > high).any():
            raise ValueError("lower: must not be above upper")

    def _thresholds(self, channels: int) -> tuple[np.ndarray, np.ndarray]:
        if len(self.lower) != channels:
            raise ValueError(f"lower has {len(self.lower)} thresholds: must have one for each of {channels} channels")
        low, high = (np.array([values], np.float16).astype(np.float32) for values in (self.lower, self.upper))
        return low, high

    def _block(self, bits: np.ndarray) -> tuple[np.ndarray, ...]:
        low, high = self._thresholds(bits.shape[1])
        values = bits.view(np.float16)
        outlier = (values < low.astype(np.float16)) | (values > high.astype(np.float16))
        return outlier, *_parameters(low, high, self.lut is not None, True), low, high

    def _of_buffers(self, buffers: Buffers) -> tuple[np.ndarray, np.ndarray]:
        return _parameters(*self._thresholds(len(self.lower)), self.lut is not None, True)

    def quantize(self, x: np.ndarray, n_heads: int = 1, nonfinite: NonFinite = "raise") -> Packed:
        """Quantise [tokens, channels] or [batch, heads, tokens, head_dim]; heads are of no consequence.

        Raises TypeError and ValueError for what is not such a tensor, for another number of channels, and for values
        that are not finite unless `nonfinite` is "replace".
        """
        self._thresholds(channels_of(np.shape(x)) or len(self.lower))
        return _quantize(self, x, n_heads, nonfinite, per_token=False)

    def dequantize(self, packed: Packed) -> np.ndarray:
        """FP16 of the quantised shape."""
        self._thresholds(channels_of(packed.shape))
        return _dequantize(self, packed, per_token=False)


@dataclass(frozen=True)
class KVQuantValues(_Table):
    """KVQuant values: per token, outliers at or beyond the quantiles (1 - t, t) of the token, t = 1 - (1 - kept) / 2.

    Quantiles are interpolated linearly in float32. Minimum and maximum are those of the other elements and, where there
    is an outlier, of the token's (lower) median. Codes as of `KVQuantKeys`, but with every step in float32.

    Buffers: those of `KVQuantKeys`, and `low` and `high` float16 [rows, 1], the minimum and maximum. Sources as there.
    """

    kept: float = 0.99
    lut: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _checked_table(self.lut)
        if isinstance(self.kept, bool) or not isinstance(self.kept, float) or not 0 <= self.kept <= 1:
            raise ValueError(f"kept = {self.kept!r}: must be a number from 0.0 to 1.0, the share that is no outlier")

    def _block(self, bits: np.ndarray) -> tuple[np.ndarray, ...]:
        values = bits.view(np.float16)
        ordered = np.sort(values.astype(np.float32), axis=1)
        t = 1 - (1 - self.kept) / 2
        wide = values.astype(np.float32)
        outlier = (wide <= _quantile(ordered, 1 - t)) | (wide >= _quantile(ordered, t))
        median = ordered[:, [(bits.shape[1] - 1) // 2]]
        wide = np.where(outlier, median, wide)
        low, high = wide.min(axis=1, keepdims=True), wide.max(axis=1, keepdims=True)
        return outlier, *_parameters(low, high, self.lut is not None, False), low, high

    def _of_buffers(self, buffers: Buffers) -> tuple[np.ndarray, np.ndarray]:
        low, high = buffers["low"].astype(np.float32), buffers["high"].astype(np.float32)
        return _parameters(low, high, self.lut is not None, False)

    def quantize(self, x: np.ndarray, n_heads: int = 1, nonfinite: NonFinite = "raise") -> Packed:
        """Quantise [tokens, channels] or [batch, heads, tokens, head_dim]; heads are of no consequence.

        Raises TypeError and ValueError for what is not such a tensor, and for values that are not finite unless
        `nonfinite` is "replace".
        """
        return _quantize(self, x, n_heads, nonfinite, per_token=True)

    def dequantize(self, packed: Packed) -> np.ndarray:
        """FP16 of the quantised shape."""
        return _dequantize(self, packed, per_token=True)


def _quantile(ordered: np.ndarray, q: float) -> np.ndarray:
    """float32 [rows, 1]: the quantile of ascending rows, between neighbours linearly interpolated (torch.quantile)."""
    rank = np.float32(np.float32(q) * np.float32(ordered.shape[1] - 1))
    below = int(rank)
    weight = np.float32(rank - np.float32(below))
    one, other = ordered[:, [below]], ordered[:, [min(below + 1, ordered.shape[1] - 1)]]
    if weight < 0.5:
        return one + weight * (other - one)
    return other - (other - one) * (np.float32(1) - weight)
