"""vLLM's TurboQuant caches: keys as a norm and indices of a rotated unit vector (or E4M3), values with a minimum."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from kernels_ref import half, minifloat
from kernels_ref.formats import TURBOQUANT_TYPES
from kernels_ref.fp8 import decode_table
from kernels_ref.hadamard import TILE, narrowed, saturated, saturated_value, transform, transposed
from kernels_ref.inputs import check_choice
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.packing import look_up, pick
from kernels_ref.rows import BufferColumn, Buffers, RowMethod, n_pieces, rows_of

__all__ = ["TurboQuant"]

Preset = Literal["k8v4", "4bit_nc", "k3v4_nc", "3bit_nc"]
Side = Literal["key", "value"]

#: preset -> bits of a key's code (8: E4M3), of a value's
PRESETS = {name: (entry.key_bits, entry.value_bits) for name, entry in TURBOQUANT_TYPES.items()}
#: Lloyd-Max: half width of the start in standard deviations, iterations, intervals of a trapezoid sum, smallest move
_WIDTH, _ITERATIONS, _INTERVALS, _MOVE = 3.5, 200, 200, 1e-10


@cache
def codebook(bits: int, head_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """(centroids [2^bits], midpoints [2^bits - 1]), float32: Lloyd-Max for a normal of variance 1 / head_dim.

    From the centers of equal cells over +-3.5 standard deviations, at most 200 iterations; the mean of a cell by
    trapezoids over 200 intervals, outer cells to +-10.5 standard deviations, in double precision.
    """
    sigma = np.sqrt(1 / head_dim)
    width = 2 * _WIDTH * sigma / 2**bits
    centers = -_WIDTH * sigma + width * (np.arange(2**bits) + 0.5)
    end = 3 * _WIDTH * sigma
    for _ in range(_ITERATIONS):
        edges = np.concatenate([[-end], (centers[:-1] + centers[1:]) / 2, [end]])
        x = np.linspace(edges[:-1], edges[1:], _INTERVALS + 1)
        density = np.exp(-(x**2) / (2 * sigma**2))
        weight = np.trapezoid(density, x, axis=0)
        moved = np.where(weight > 0, np.trapezoid(x * density, x, axis=0) / np.maximum(weight, 1e-300), centers)
        largest, centers = np.abs(moved - centers).max(), moved
        if largest < _MOVE:
            break
    centroids = centers.astype(np.float32)
    return centroids, (centroids[:-1] + centroids[1:]) / np.float32(2)


@inner
def _norm(x: np.ndarray) -> np.float32:
    """The norm of float32 x[n], n a multiple of 8, summed in float64 in eight parts, as float32."""
    a, b, c, d = np.float64(0), np.float64(0), np.float64(0), np.float64(0)
    e, f, g, h = np.float64(0), np.float64(0), np.float64(0), np.float64(0)
    for i in range(0, x.size, 8):
        a += np.float64(x[i]) * np.float64(x[i])
        b += np.float64(x[i + 1]) * np.float64(x[i + 1])
        c += np.float64(x[i + 2]) * np.float64(x[i + 2])
        d += np.float64(x[i + 3]) * np.float64(x[i + 3])
        e += np.float64(x[i + 4]) * np.float64(x[i + 4])
        f += np.float64(x[i + 5]) * np.float64(x[i + 5])
        g += np.float64(x[i + 6]) * np.float64(x[i + 6])
        h += np.float64(x[i + 7]) * np.float64(x[i + 7])
    return np.float32(np.sqrt(((a + b) + (c + d)) + ((e + f) + (g + h))))


@inner
def _units(values: np.ndarray, head_dim: int, norms: np.ndarray) -> None:
    """Unit vectors in place, and norms in FP16 within 65504."""
    for vector in range(norms.size):
        x = values[vector * head_dim : (vector + 1) * head_dim]
        norm = _norm(x)
        norms[vector] = saturated(norm)
        divisor = np.float32(norm + np.float32(1e-8))
        for i in range(head_dim):
            x[i] = np.float32(x[i] / divisor)


@inner
def _scaled(values: np.ndarray, factor: np.float32) -> None:
    for i in range(values.size):
        values[i] = np.float32(values[i] * factor)


@inner
def _indices(y: np.ndarray, midpoints: np.ndarray, codes: np.ndarray) -> None:
    """Count, of 7 or 15 ascending midpoints, those at or below each of y: ties go up.

    Seven at a time in registers: 15 are the 7 below the middle one, it, and the 7 above.
    """
    if midpoints.size == 15:
        _count(y, midpoints[:7], codes)
        _count_more(y, midpoints[7:], codes)
    else:
        _count(y, midpoints, codes)


@inner
def _count(y: np.ndarray, m: np.ndarray, codes: np.ndarray) -> None:
    a, b, c, d, e, f, g = m[0], m[1], m[2], m[3], m[4], m[5], m[6]
    for i in range(y.size):
        v = y[i]
        low = np.uint32(np.uint32(a <= v) + np.uint32(b <= v)) + np.uint32(np.uint32(c <= v) + np.uint32(d <= v))
        high = np.uint32(np.uint32(e <= v) + np.uint32(f <= v)) + np.uint32(g <= v)
        codes[i] = np.uint8(np.uint32(low + high))


@inner
def _count_more(y: np.ndarray, m: np.ndarray, codes: np.ndarray) -> None:
    a, b, c, d, e, f, g, h = m[0], m[1], m[2], m[3], m[4], m[5], m[6], m[7]
    for i in range(y.size):
        v = y[i]
        low = np.uint32(np.uint32(a <= v) + np.uint32(b <= v)) + np.uint32(np.uint32(c <= v) + np.uint32(d <= v))
        high = np.uint32(np.uint32(e <= v) + np.uint32(f <= v)) + np.uint32(np.uint32(g <= v) + np.uint32(h <= v))
        codes[i] += np.uint8(np.uint32(low + high))


@inner
def _pack(codes: np.ndarray, width: int, packed: np.ndarray) -> None:
    """codes[n] uint8 below 2^width -> packed[n * width / 8], the first element lowest; width 3 or 4."""
    if width == 4:
        pairs = codes.view(np.uint16)
        for i in range(packed.size):
            packed[i] = np.uint8((pairs[i] & np.uint16(0xF)) | (pairs[i] >> np.uint16(4)))
    else:
        eights = codes.view(np.uint64)
        for i in range(eights.size):
            v = eights[i]
            v = (v | (v >> np.uint64(5))) & np.uint64(0x003F003F003F003F)
            v = (v | (v >> np.uint64(10))) & np.uint64(0x00000FFF00000FFF)
            v = v | (v >> np.uint64(20))
            packed[3 * i] = np.uint8(v & np.uint64(0xFF))
            packed[3 * i + 1] = np.uint8((v >> np.uint64(8)) & np.uint64(0xFF))
            packed[3 * i + 2] = np.uint8((v >> np.uint64(16)) & np.uint64(0xFF))


@inner
def _unpack(packed: np.ndarray, width: int, codes: np.ndarray) -> None:
    """The reverse of `_pack`."""
    if width == 4:
        pairs = codes.view(np.uint16)
        for i in range(packed.size):
            byte = np.uint16(packed[i])
            pairs[i] = (byte & np.uint16(0xF)) | ((byte & np.uint16(0xF0)) << np.uint16(4))
    else:
        eights = codes.view(np.uint64)
        for i in range(eights.size):
            v = np.uint64(packed[3 * i]) | (np.uint64(packed[3 * i + 1]) << np.uint64(8))
            v = v | (np.uint64(packed[3 * i + 2]) << np.uint64(16))
            v = (v | (v << np.uint64(20))) & np.uint64(0x00000FFF00000FFF)
            v = (v | (v << np.uint64(10))) & np.uint64(0x003F003F003F003F)
            eights[i] = (v | (v << np.uint64(5))) & np.uint64(0x0707070707070707)


@kernel
def _quantize_keys(
    bits: np.ndarray, head_dim: int, midpoints: np.ndarray, packed: np.ndarray, norms: np.ndarray
) -> None:
    """FP16 patterns bits[n * head_dim] -> packed[n * head_dim * width / 8], norms[n]."""
    stages, width = np.int64(np.round(np.log2(head_dim))), int(np.round(np.log2(midpoints.size + 1)))
    factor = np.float32(1 / np.sqrt(np.float64(head_dim)))
    per_tile = max(TILE // head_dim, 1)
    for tile in prange((norms.size + per_tile - 1) // per_tile):
        first, last = tile * per_tile, min((tile + 1) * per_tile, norms.size)
        begin, end = first * head_dim, last * head_dim
        values, work = np.empty(end - begin, np.float32), np.empty(end - begin, np.float32)
        indices, codes = np.empty(end - begin, np.uint8), np.empty(end - begin, np.uint8)
        half.widen(bits[begin:end], values)
        _units(values, head_dim, norms[first:last])
        transform(values, work, stages)
        _scaled(values, factor)
        _indices(values, midpoints, indices)
        transposed(indices, last - first, codes)
        _pack(codes, width, packed[begin // 8 * width : end // 8 * width])


@inner
def _square_sum(codes: np.ndarray, squares: np.ndarray) -> np.float32:
    """The sum of squares[codes], in float64 in four parts, as float32."""
    a, b, c, d = np.float64(0), np.float64(0), np.float64(0), np.float64(0)
    for i in range(0, codes.size, 4):
        a += squares[codes[i]]
        b += squares[codes[i + 1]]
        c += squares[codes[i + 2]]
        d += squares[codes[i + 3]]
    return np.float32((a + b) + (c + d))


@inner
def _of_indices(
    codes: np.ndarray,
    norms: np.ndarray,
    head_dim: int,
    centroids: np.ndarray,
    squares: np.ndarray,
    table: np.ndarray,
    values: np.ndarray,
) -> None:
    """FP16 of norm * centroid, centroids divided by the norm of the vector of them, as float32."""
    for vector in range(norms.size):
        vector_codes = codes[vector * head_dim : (vector + 1) * head_dim]
        length = np.float32(np.sqrt(np.float32(_square_sum(vector_codes, squares) + np.float32(1e-16))))
        inverse = np.float32(np.float32(1) / length)
        norm = half.to_f32(norms[vector])
        for j in range(centroids.size):
            table[j] = saturated_value(np.float32(norm * np.float32(centroids[j] * inverse)))
        pick(vector_codes, table, values[vector * head_dim : (vector + 1) * head_dim])


@kernel
def _dequantize_keys(
    packed: np.ndarray, norms: np.ndarray, head_dim: int, centroids: np.ndarray, squares: np.ndarray, bits: np.ndarray
) -> None:
    """The reverse of `_quantize_keys`."""
    stages, width = np.int64(np.round(np.log2(head_dim))), int(np.round(np.log2(centroids.size)))
    factor = np.float32(1 / np.sqrt(np.float64(head_dim)))
    per_tile = max(TILE // head_dim, 1)
    for tile in prange((norms.size + per_tile - 1) // per_tile):
        first, last = tile * per_tile, min((tile + 1) * per_tile, norms.size)
        begin, end = first * head_dim, last * head_dim
        values, work = np.empty(end - begin, np.float32), np.empty(end - begin, np.float32)
        codes = np.empty(end - begin, np.uint8)
        _unpack(packed[begin // 8 * width : end // 8 * width], width, codes)
        _of_indices(codes, norms[first:last], head_dim, centroids, squares, np.empty(16, np.float32), values)
        transform(values, work, stages)
        _scaled(values, factor)
        narrow = np.empty(end - begin, np.uint16)
        narrowed(values, narrow)
        transposed(narrow, last - first, bits[begin:end])


@inner
def _steps(bits: np.ndarray, low: np.float32, scale: np.float32, largest: np.float32, codes: np.ndarray) -> None:
    for i in range(bits.size):
        value = np.float32(np.float32(np.float32(half.finite(bits[i]) - low) / scale) + np.float32(0.5))
        codes[i] = np.uint8(np.int32(min(value, largest)))


@inner
def _scale_of(low: np.float32, high: np.float32, largest: np.float32) -> np.float32:
    return max(np.float32(np.float32(high - low) / largest), np.float32(1e-8))


@kernel
def _quantize_values(bits: np.ndarray, width: int, packed: np.ndarray, scales: np.ndarray, lows: np.ndarray) -> None:
    """FP16 patterns bits[n, head_dim] -> packed[n, head_dim * width / 8], patterns scales[n] and lows[n]."""
    largest = np.float32((1 << width) - 1)
    for piece in prange(n_pieces(bits)):
        codes = np.empty(bits.shape[1], np.uint8)
        for row in rows_of(piece, bits):
            low, high = half.extent(bits[row])
            scale = _scale_of(low, high, largest)
            scales[row], lows[row] = saturated(scale), saturated(low)
            _steps(bits[row], low, scale, largest, codes)
            _pack(codes, width, packed[row])


@kernel
def _dequantize_values(packed: np.ndarray, width: int, scales: np.ndarray, lows: np.ndarray, bits: np.ndarray) -> None:
    """FP16 patterns of code * scale + minimum, within +-65504."""
    for piece in prange(n_pieces(bits)):
        codes, table = np.empty(bits.shape[1], np.uint8), np.empty(16, np.uint16)
        for row in rows_of(piece, bits):
            scale, low = half.to_f32(scales[row]), half.to_f32(lows[row])
            for j in range(1 << width):
                product = np.float32(np.float32(j) * scale)
                table[j] = saturated(np.float32(product + low))
            _unpack(packed[row], width, codes)
            pick(codes, table, bits[row])


@kernel
def _quantize_floats(bits: np.ndarray, codes: np.ndarray) -> None:
    """FP16 patterns bits[n, channels] -> E4M3 codes, saturating."""
    for piece in prange(n_pieces(bits)):
        for row in rows_of(piece, bits):
            _floats_of_halves(bits[row], codes[row])


@inner
def _floats_of_halves(bits: np.ndarray, codes: np.ndarray) -> None:
    for i in range(bits.size):
        codes[i] = minifloat.e4m3(half.finite(bits[i]))


#: FP16 patterns of the E4M3 codes, exactly
_HALVES = decode_table("e4m3").astype(np.float16).view(np.uint16)


def _check_dim(head_dim: int, preset: Preset) -> None:
    if problem := TURBOQUANT_TYPES[preset].problem(head_dim):
        raise ValueError(problem)


@dataclass(frozen=True)
class TurboQuant(RowMethod):
    """One side of a TurboQuant cache of vLLM: preset k8v4, 4bit_nc, k3v4_nc or 3bit_nc.

    Keys: n = norm of the head's vector, u = k / (n + 1e-8), y = u H with H the Hadamard matrix over the root of
    head_dim (a power of two), index = midpoints <= y of a Lloyd-Max codebook for N(0, 1 / head_dim); n is stored in
    FP16. Decoded h(n * c), c the centroids divided by the norm of all of them, then multiplied by H again in float32.
    k8v4: keys in E4M3 without a scale. Values: s = max((max - min) / (2^b - 1), 1e-8), code = floor((v - min) / s +
    0.5); s and min in FP16; decoded h(code * s + min). Norms, scales and minima beyond 65504 are stored as 65504.

    Buffers: `codes` uint8 [rows, heads * head_dim * b / 8], the first code in the lowest bits; keys: `norm`, values:
    `scale` and `minimum`, float16 [rows, heads], and `pad` uint8 [rows, heads] where a slot would have an odd size.
    Layers that vLLM keeps in 16 bits are no matter of this class. Source: vLLM 0.33.0, triton_turboquant_store.py.
    """

    preset: Preset = "4bit_nc"
    side: Side = "key"

    def __post_init__(self) -> None:
        check_choice("preset", self.preset, tuple(PRESETS))
        check_choice("side", self.side, ("key", "value"))

    @property
    def _width(self) -> int:
        return PRESETS[self.preset][self.side == "value"]

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        head_dim = channels // n_heads
        _check_dim(head_dim, self.preset)
        columns = [BufferColumn("codes", dtype=np.uint8, items=channels * self._width // 8, part="payload")]
        if self.side == "key":
            return (
                *columns,
                *([BufferColumn("norm", dtype=np.float16, items=n_heads, part="scales")] if self._width < 8 else []),
            )
        columns += [
            BufferColumn("scale", dtype=np.float16, items=n_heads, part="scales"),
            BufferColumn("minimum", dtype=np.float16, items=n_heads, part="zero_points"),
        ]
        if TURBOQUANT_TYPES[self.preset].padding_bytes(head_dim):
            columns.append(BufferColumn("pad", dtype=np.uint8, items=n_heads, part="padding"))
        return tuple(columns)

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> None:
        head_dim, codes, width = bits.shape[1] // n_heads, buffers["codes"], self._width
        if width == 8:
            _quantize_floats(bits, codes)
        elif self.side == "key":
            norms = buffers["norm"].view(np.uint16).reshape(-1)
            _quantize_keys(bits.reshape(-1), head_dim, codebook(width, head_dim)[1], codes.reshape(-1), norms)
        else:
            scales, lows = (buffers[name].view(np.uint16).reshape(-1) for name in ("scale", "minimum"))
            packed = codes.reshape(-1, head_dim * width // 8)
            _quantize_values(bits.reshape(-1, head_dim), width, packed, scales, lows)
            if "pad" in buffers:
                buffers["pad"][:] = 0

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        head_dim, codes, width = bits.shape[1] // n_heads, buffers["codes"], self._width
        if width == 8:
            look_up(codes.reshape(-1), _HALVES, bits.reshape(-1))
        elif self.side == "key":
            norms = np.ascontiguousarray(buffers["norm"]).view(np.uint16).reshape(-1)
            centroids = codebook(width, head_dim)[0]
            squares = (centroids * centroids).astype(np.float64)
            _dequantize_keys(codes.reshape(-1), norms, head_dim, centroids, squares, bits.reshape(-1))
        else:
            scales, lows = (buffers[name].view(np.uint16).reshape(-1) for name in ("scale", "minimum"))
            packed = codes.reshape(-1, head_dim * width // 8)
            _dequantize_values(packed, width, scales, lows, bits.reshape(-1, head_dim))
