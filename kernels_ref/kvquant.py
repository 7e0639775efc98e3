"""KVQuant as Oaken's artifact runs it: 4-bit codes per channel (keys) or token (values), outliers kept in FP16."""

from dataclasses import dataclass

import numpy as np

from kernels_ref import half
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.packing import ODD_PAD, pack_low_first, unpack_low_first
from kernels_ref.rows import BufferColumn, Buffers, RowMethod, n_pieces, nibbles, rows_of

__all__ = ["KVQuantKeys", "KVQuantValues"]

_LEVELS = np.float32(15)
#: channels that a 16-bit index reaches, all of them counted by 16 bits
MAX_CHANNELS = 2**16 - 1


@inner
def _uniform(value: np.float32, factor: np.float32, offset: np.float32) -> np.uint16:
    """clip(rint(factor * value - offset), 0, 15); 0 where the factor is not finite."""
    steps = np.float32(np.float32(factor * value) - offset)
    return half.to_nibble(half.rint(steps)) if abs(factor) <= np.float32(3e38) else np.uint16(0)


@inner
def _nearest(value: np.float32, lut: np.ndarray) -> np.uint16:
    """Index of the table's value nearest to `value`, the first of equals; 0 for NaN."""
    best, distance = 0, np.float32(abs(np.float32(value - lut[0])))
    for i in range(1, lut.size):
        other = np.float32(abs(np.float32(value - lut[i])))
        if other < distance:
            best, distance = i, other
    return np.uint16(best)


@inner
def _encode_row(
    bits: np.ndarray, outlier: np.ndarray, scale: np.ndarray, offset: np.ndarray, lut: np.ndarray, codes: np.ndarray
) -> None:
    """scale, offset: factor and offset of the uniform codes, or half range and center of those by table."""
    step = 0 if scale.size == 1 else 1
    for i in range(bits.size):
        value = half.to_f32(bits[i])
        if lut.size:
            moved = np.float32(0) if outlier[i] else np.float32(value - offset[i * step])
            codes[i] = _nearest(np.float32(moved / scale[i * step]), lut)
        else:
            codes[i] = _uniform(np.float32(0) if outlier[i] else value, scale[i * step], offset[i * step])


@kernel
def _pack_codes(
    bits: np.ndarray, outlier: np.ndarray, scale: np.ndarray, offset: np.ndarray, lut: np.ndarray, packed: np.ndarray
) -> None:
    """FP16 patterns bits[n, channels], outlier uint8 alike -> packed; scale, offset float32 [n, 1] or [1, channels]."""
    for piece in prange(n_pieces(bits)):
        codes = np.full(2 * packed.shape[1], ODD_PAD, np.uint16)
        for row in rows_of(piece, bits):
            mine = min(row, scale.shape[0] - 1)
            _encode_row(bits[row], outlier[row], scale[mine], offset[mine], lut, codes)
            pack_low_first(codes, packed[row])


@inner
def _decode_row(codes: np.ndarray, scale: np.ndarray, offset: np.ndarray, lut: np.ndarray, bits: np.ndarray) -> None:
    step = 0 if scale.size == 1 else 1
    for i in range(bits.size):
        if lut.size:
            value = np.float32(np.float32(lut[codes[i]] * scale[i * step]) + offset[i * step])
        else:
            value = np.float32(np.float32(np.float32(codes[i]) + offset[i * step]) / scale[i * step])
        # neither infinite nor NaN: the artifact puts 0 in their place
        value = value if abs(value) <= np.float32(3e38) else np.float32(0)
        bits[i] = half.from_f32(half.limited(value))


@kernel
def _unpack_codes(packed: np.ndarray, scale: np.ndarray, offset: np.ndarray, lut: np.ndarray, bits: np.ndarray) -> None:
    """The reverse of `_pack_codes`, without the outliers."""
    for piece in prange(n_pieces(bits)):
        codes = np.empty(2 * packed.shape[1], np.uint16)
        for row in rows_of(piece, bits):
            unpack_low_first(packed[row], codes)
            mine = min(row, scale.shape[0] - 1)
            _decode_row(codes, scale[mine], offset[mine], lut, bits[row])


def _rounded(values: np.ndarray) -> np.ndarray:
    """float32 rounded to FP16."""
    return values.astype(np.float16).astype(np.float32)


def _parameters(low: np.ndarray, high: np.ndarray, by_table: bool, in_half: bool) -> tuple[np.ndarray, np.ndarray]:
    """(factor, offset) or, for codes by table, (half range, center); every step in FP16 where `in_half`."""
    step = _rounded if in_half else np.asarray
    with np.errstate(all="ignore"):
        if by_table:
            return step(step(high - low) / np.float32(2)), step(step(high + low) / np.float32(2))
        factor = step(step(np.float32(1) / step(high - low)) * _LEVELS)
        return factor, step(low * factor)


def _checked_table(lut: tuple[float, ...] | None) -> None:
    if lut is not None and (len(lut) != 16 or not np.isfinite(np.array(lut, np.float32)).all()):
        raise ValueError("lut: must be 16 finite numbers, the values of the codes in [-1, 1]")


class _KVQuant(RowMethod):
    """Common part of keys and values: codes by `_block`, outliers token after token."""

    lut: tuple[float, ...] | None
    #: sorting needs several float32 copies of a block
    _block_bytes = 2**21

    def _block(self, bits: np.ndarray, buffers: Buffers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(which elements are outliers, the two parameters of `_pack_codes`) of a block."""
        raise NotImplementedError

    def _of_buffers(self, buffers: Buffers) -> tuple[np.ndarray, np.ndarray]:
        """The two parameters of `_unpack_codes`."""
        raise NotImplementedError

    @property
    def _table(self) -> np.ndarray:
        """The table of values as kernels want it: empty for uniform codes."""
        return np.array(self.lut or (), np.float32)

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        if channels > MAX_CHANNELS:
            raise ValueError(f"x has {channels} channels: must have at most {MAX_CHANNELS} for 16-bit indices")
        return (
            nibbles("codes", channels),
            BufferColumn("outlier_count", dtype=np.uint16, items=1, part="counts"),
            BufferColumn("outlier_value", dtype=np.float16, items=1, part="outliers", each="entry"),
            BufferColumn("outlier_index", dtype=np.uint16, items=1, part="outliers", each="entry"),
        )

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> Buffers:
        outlier, scale, offset = self._block(bits, buffers)
        _pack_codes(bits, outlier.view(np.uint8), scale, offset, self._table, buffers["codes"])
        buffers["outlier_count"][:, 0] = outlier.sum(axis=1)
        indices = np.nonzero(outlier)[1].astype(np.uint16)
        return {"outlier_value": bits[outlier].view(np.float16), "outlier_index": indices}

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        indices = buffers["outlier_index"]
        if int(indices.max(initial=0)) >= bits.shape[1]:
            raise ValueError(f"buffer outlier_index: must be below the {bits.shape[1]} channels")
        scale, offset = self._of_buffers(buffers)
        _unpack_codes(buffers["codes"], scale, offset, self._table, bits)
        rows = np.repeat(np.arange(len(bits)), buffers["outlier_count"][:, 0])
        bits[rows, indices] = buffers["outlier_value"].view(np.uint16)


@dataclass(frozen=True)
class KVQuantKeys(_KVQuant):
    """KVQuant keys: offline FP16 thresholds `lower` and `upper` per channel; beyond them (strictly) are outliers.

    Uniform codes (no `lut`): q = h(h(1 / h(upper - lower)) * 15), o = h(lower * q), code = clip(rint(q * x - o), 0,
    15), decoded as h((code + o) / q), in float32 but for q and o. NUQ: the nearest of the 16 values of `lut` to
    (x - center) / half range, both FP16, the first of equals. An outlier takes the code of 0 (uniform) or of the center
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

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        self._thresholds(channels)
        return super()._columns(n_heads, channels)

    def _block(self, bits: np.ndarray, buffers: Buffers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        low, high = self._thresholds(bits.shape[1])
        values = bits.view(np.float16)
        outlier = (values < low.astype(np.float16)) | (values > high.astype(np.float16))
        return outlier, *self._of_buffers(buffers)

    def _of_buffers(self, buffers: Buffers) -> tuple[np.ndarray, np.ndarray]:
        return _parameters(*self._thresholds(len(self.lower)), self.lut is not None, True)


@dataclass(frozen=True)
class KVQuantValues(_KVQuant):
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

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        low, high = (
            BufferColumn("low", dtype=np.float16, items=1, part="zero_points"),
            BufferColumn("high", dtype=np.float16, items=1, part="scales"),
        )
        return (*super()._columns(n_heads, channels), high, low)

    def _block(self, bits: np.ndarray, buffers: Buffers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        wide = bits.view(np.float16).astype(np.float32)
        ordered = np.sort(wide, axis=1)
        t = 1 - (1 - self.kept) / 2
        outlier = (wide <= _quantile(ordered, 1 - t)) | (wide >= _quantile(ordered, t))
        kept = np.where(outlier, ordered[:, [(bits.shape[1] - 1) // 2]], wide)
        buffers["low"][:] = kept.min(axis=1, keepdims=True)
        buffers["high"][:] = kept.max(axis=1, keepdims=True)
        return outlier, *self._of_buffers(buffers)

    def _of_buffers(self, buffers: Buffers) -> tuple[np.ndarray, np.ndarray]:
        low, high = buffers["low"].astype(np.float32), buffers["high"].astype(np.float32)
        return _parameters(low, high, self.lut is not None, False)


def _quantile(ordered: np.ndarray, q: float) -> np.ndarray:
    """float32 [rows, 1]: the quantile of ascending rows, between neighbours linearly interpolated (torch.quantile)."""
    rank = np.float32(np.float32(q) * np.float32(ordered.shape[1] - 1))
    below = int(rank)
    weight = np.float32(rank - np.float32(below))
    low, high = ordered[:, [below]], ordered[:, [min(below + 1, ordered.shape[1] - 1)]]
    if weight < 0.5:
        return low + weight * (high - low)
    return high - (high - low) * (np.float32(1) - weight)
