"""NVFP4 caches: E2M1 codes, an E4M3 scale for 16 channels, an FP32 factor for a layer's keys, one for its values."""

from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from kernels_ref import blocks, half
from kernels_ref.formats import SCALED_TYPES
from kernels_ref.fp8 import decode_table
from kernels_ref.inputs import KVTensor, NonFinite, check_choice, check_scale, shown
from kernels_ref.jit import inner, kernel, prange, sequential
from kernels_ref.minifloat import E2M1_VALUES, LARGEST, e2m1, e2m1_value, e4m3, e4m3_value
from kernels_ref.rows import BufferColumn, Buffers, RowMethod, n_pieces, nibbles, rows_of

__all__ = ["NVFP4"]

Code = Literal["vllm", "4over6", "flashinfer", "torchao", "torchao_one_level", "modelopt"]
#: channels of a block
BLOCK = SCALED_TYPES["nvfp4"].block
#: whose rules, by the number that kernels know them by
CODES: tuple[Code, ...] = ("vllm", "4over6", "flashinfer", "torchao", "torchao_one_level", "modelopt")
_VLLM, _FOUR_OR_SIX, _FLASHINFER, _TORCHAO, _ONE_LEVEL, _MODELOPT = range(len(CODES))
#: rules whose codes lose the sign of -0
_UNSIGNED_ZERO = ("modelopt",)
#: the largest magnitude that a factor of 1 can hold: E2M1's times E4M3's
LARGEST_AT_ONE = LARGEST["e2m1"] * LARGEST["e4m3"]

_ONE = np.float32(1)
_SIXTH = np.float32(1) / np.float32(6)
_QUARTER = np.float32(0.25)
_SMALLEST_NORMAL = np.float32(2.0**-126)
#: E4M3's smallest normal and subnormal values
_E4M3_NORMAL = np.float32(2.0**-6)
_E4M3_SUBNORMAL = np.float32(2.0**-9)


@inner
def _reciprocal(value: np.float32) -> np.float32:
    """1 / value, subnormal values taken and given as 0: rcp.approx.ftz correctly rounded."""
    flushed = np.float32(0) if value < _SMALLEST_NORMAL else np.float32(value)
    inverse = np.float32(_ONE / flushed)
    return np.float32(0) if inverse < _SMALLEST_NORMAL else inverse


@inner
def _scale(largest: np.float32, factor: np.float32, code: int, inverse: np.float32) -> np.uint8:
    """E4M3 code of a block whose largest magnitude is `largest`; `factor` decodes; inverse: 1/6, or 1/4 of 4over6."""
    if code <= _FOUR_OR_SIX:
        return e4m3(np.float32(np.float32(_ONE / factor) * np.float32(largest * inverse)))
    if code == _FLASHINFER:
        scale = np.float32(largest / np.float32(np.float32(6) * factor))
        return e4m3(scale if largest > np.float32(0) else np.float32(0))
    if code == _TORCHAO:
        return e4m3(max(np.float32(np.float32(largest / np.float32(6)) / factor), _E4M3_NORMAL))
    if code == _ONE_LEVEL:
        return e4m3(max(np.float32(largest / np.float32(6)), _E4M3_NORMAL))
    scale = np.float32(largest / np.float32(np.float32(6) * factor))
    return e4m3(max(scale, _E4M3_SUBNORMAL) if scale > np.float32(0) else _ONE)


@inner
def _multiplier(scale: np.float32, factor: np.float32, code: int) -> np.float32:
    """Factor (in ModelOpt: divisor) of an element before it is rounded. scale: the value of the byte."""
    if code <= _FOUR_OR_SIX:
        product = _reciprocal(np.float32(scale * _reciprocal(np.float32(_ONE / factor))))
        return product if scale != np.float32(0) else np.float32(0)
    if code == _FLASHINFER:
        return np.float32(_ONE / np.float32(scale * factor)) if scale > np.float32(0) else np.float32(0)
    if code == _TORCHAO:
        return np.float32(np.float32(_ONE / factor) / scale)
    if code == _ONE_LEVEL:
        return np.float32(_ONE / scale)
    return np.float32(scale * factor)


@inner
def _element(x: np.float32, multiplier: np.float32, code: int) -> np.uint8:
    """The E2M1 code of an element."""
    y = np.float32(x / multiplier) if code == _MODELOPT else np.float32(x * multiplier)
    nibble = e2m1(y)
    if code == _MODELOPT:
        return np.uint8(nibble) if x < np.float32(0) else np.uint8(nibble & np.uint8(7))
    return nibble


@sequential
def _scales_of(largest: np.ndarray, factor: np.float32, code: int, inverse: np.float32, out: np.ndarray) -> None:
    """uint8 out[n] of magnitudes largest[n]."""
    for i in range(out.size):
        out[i] = _scale(largest[i], factor, code, inverse)


@sequential
def _codes_of(x: np.ndarray, scales: np.ndarray, factor: np.float32, code: int, out: np.ndarray) -> None:
    """uint8 out[n] of elements x[n] with scale bytes scales[n]."""
    for i in range(out.size):
        out[i] = _element(x[i], _multiplier(e4m3_value(scales[i]), factor, code), code)


@inner
def _squares(bits: np.ndarray, codes: np.ndarray, back: np.ndarray, scales: np.ndarray, squares: np.ndarray) -> None:
    """squares float32[n, 16]: squared errors of patterns bits[n, 16] with these codes and scales."""
    for b in range(scales.size):
        factor = back[scales[b]]
        for i in range(BLOCK):
            decoded = np.float32(e2m1_value(codes[b, i] & np.uint8(7)) * factor)
            error = np.float32(decoded - half.finite(np.uint16(bits[b, i] & half.ABS)))
            squares[b, i] = np.float32(error * error)


@inner
def _choose_row(
    squares: np.ndarray, six: np.ndarray, four: np.ndarray, with_six: np.ndarray, with_four: np.ndarray
) -> None:
    """Where four errs less than six, its scale and codes take the place of those of six; codes [n, 16], scales [n]."""
    for b in range(six.size):
        error, other = np.float32(0), np.float32(0)
        for pair in range(BLOCK // 2):
            error = np.float32(error + np.float32(squares[0, b, 2 * pair] + squares[0, b, 2 * pair + 1]))
            other = np.float32(other + np.float32(squares[1, b, 2 * pair] + squares[1, b, 2 * pair + 1]))
        if other < error:
            six[b] = four[b]
            for i in range(BLOCK):
                with_six[b, i] = with_four[b, i]


@kernel
def _encode_either(
    bits: np.ndarray, scales: np.ndarray, starts: np.ndarray, back: np.ndarray, codes: np.ndarray, chosen: np.ndarray
) -> None:
    """`blocks.encode` of 4over6: scales[2, 32768] for 6 and for 4; back: `_factors_back`."""
    for piece in prange(n_pieces(bits)):
        spare = np.empty((3, bits.shape[1] // 2), np.uint16)
        wide = np.empty((2, bits.shape[1]), np.uint8)
        four = np.empty(chosen.shape[1], np.uint8)
        squares = np.empty((2, chosen.shape[1], BLOCK), np.float32)
        for row in rows_of(piece, bits):
            parts = bits[row].reshape(-1, BLOCK)
            with_six, with_four = wide[0].reshape(-1, BLOCK), wide[1].reshape(-1, BLOCK)
            blocks.scale_row(bits[row], scales[0], spare, chosen[row])
            blocks.scale_row(bits[row], scales[1], spare, four)
            blocks.codes_of(parts, starts, chosen[row], 0, with_six)
            blocks.codes_of(parts, starts, four, 0, with_four)
            _squares(parts, with_six, back, chosen[row], squares[0])
            _squares(parts, with_four, back, four, squares[1])
            _choose_row(squares, chosen[row], four, with_six, with_four)
            blocks.pack(wide[0], codes[row])


def decode(codes: np.ndarray, scales: np.ndarray, scale: float = 1.0, code: Code = "vllm") -> np.ndarray:
    """float32 [n, channels]: code * (block's scale * scale); of "modelopt" a zero has no sign."""
    with np.errstate(over="ignore", invalid="ignore"):
        factors = _scale_values()[scales] * np.float32(scale)
        values = E2M1_VALUES[codes].reshape(*scales.shape, BLOCK) * factors[..., None]
    if code == "modelopt":
        values += np.float32(0)
    return values.reshape(codes.shape)


@cache
def _scale_values() -> np.ndarray:
    """float32 [256]: values of the E4M3 scales."""
    return decode_table("e4m3")


class _Tables(NamedTuple):
    """Tables of a factor; of 4over6 the scale bytes for 6 and for 4, uint8 [2, 32768], and `_factors_back`."""

    tables: blocks.Tables
    either: np.ndarray
    back: np.ndarray


@lru_cache(maxsize=256)  # of a factor, so of a layer's keys or values
def _tables(scale: float, code: Code) -> _Tables:
    factor, number = np.float32(scale), CODES.index(code)

    def scales_of(inverse: np.float32, largest: np.ndarray) -> np.ndarray:
        scales_out = np.empty(largest.size, np.uint8)
        _scales_of(largest, factor, number, inverse, scales_out)
        return scales_out

    def codes_of(x: np.ndarray, scales: np.ndarray) -> np.ndarray:
        codes_out = np.empty(x.size, np.uint8)
        _codes_of(x, scales, factor, number, codes_out)
        return codes_out

    either = np.stack([blocks.scale_table(partial(scales_of, inverse)) for inverse in (_SIXTH, _QUARTER)])
    every_code, every_scale = np.tile(np.arange(16, dtype=np.uint8), (256, 1)), np.arange(256, dtype=np.uint8)[:, None]
    values = decode(every_code, every_scale, scale, code)
    tables = blocks.Tables(
        either[0], blocks.starts_table(codes_of, either, int(code in _UNSIGNED_ZERO)), blocks.value_table(values)
    )
    return _Tables(tables, either, _factors_back(factor))


def _factors_back(factor: np.float32) -> np.ndarray:
    """float32 [256]: what `_squares` multiplies codes by, by scale byte; 0 where all codes are 0."""
    factors = np.zeros(256, np.float32)
    with np.errstate(all="ignore"):
        for byte in range(0x7F):
            back = _reciprocal(_multiplier(_scale_values()[byte], factor, _FOUR_OR_SIX))
            factors[byte] = back if np.isfinite(back) else 0
    return factors


@dataclass(frozen=True)
class NVFP4(RowMethod):
    """E2M1 codes in blocks of 16 channels with an E4M3 scale; head_dim a multiple of 16. `scale`: FP32, fixed.

    Of a block with largest magnitude A: s = E4M3(1 / scale * (A / 6)), codes E2M1(x / (s * scale)), both to nearest
    even and saturating; decoded code * (s * scale) in float32, here rounded to FP16 within +-65504. Writers differ in
    what they round between: "vllm" is vLLM's kernel for SM100; "4over6" the same where A may also become the code 4, if
    the sum of squared errors is smaller then (nvfp4_4over6); "flashinfer" vLLM's writer on other GPUs; "torchao"
    (s >= 2^-6), "torchao_one_level" (without `scale`), "modelopt" (s of zeros 1).
    `measured` takes the scale from a tensor: largest magnitude / (6 * 448), ModelOpt's rule for a checkpoint.

    Buffers: `codes` uint8 [rows, channels / 2], element 2i in the low nibble; `scales` uint8 [rows, channels / 16] of
    E4M3; `factor` float32 [batch, 1]. Sources: vLLM 0.33.0, csrc/nvfp4_kv_cache_kernels.cu, csrc/quantization/fp4/
    nvfp4_utils.cuh; FlashInfer 0.7.2, page.cuh; torchao 0.18.0; ModelOpt 0.47.0.
    """

    scale: float = 1.0
    code: Code = "vllm"

    #: the factor is no part of the data: it is stored once however a cache grows
    fixed: ClassVar[tuple[str, ...]] = ("factor",)

    def __post_init__(self) -> None:
        check_scale("scale", self.scale)
        check_choice("code", self.code, CODES)
        if self.code == "torchao_one_level" and self.scale != 1:
            raise ValueError(f"scale = {shown(self.scale)}: must be 1 with code = 'torchao_one_level', which has none")

    @classmethod
    def measured(cls, x: np.ndarray, code: Code = "vllm", n_heads: int = 1, nonfinite: NonFinite = "raise") -> "NVFP4":
        """With scale = fp32(max |x| / 2688), 1 for a tensor of zeros. Errors as those of `quantize`.

        x: The tensor that gives the scale, as `quantize` takes it.
        code: Whose code decides, as of `NVFP4`; not one that has no scale of the tensor.
        n_heads: Heads of tensors [tokens, channels], from 1; those of four axes say theirs.
        nonfinite: "raise" refuses NaN and infinities, "replace" takes them as 0 and +-65504.
        """
        largest = blocks.largest_magnitude(x, n_heads, nonfinite)
        return cls(float(largest / np.float32(LARGEST_AT_ONE)) if largest else 1.0, code)

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        blocks.check_head_dim(channels // n_heads, BLOCK, "NVFP4")
        return (
            nibbles("codes", channels),
            BufferColumn("scales", dtype=np.uint8, items=channels // BLOCK, part="scales"),
            BufferColumn("factor", dtype=np.float32, items=1, part="scales", each="sequence"),
        )

    def _once(self, tensor: KVTensor) -> Buffers:
        return {"factor": np.full((tensor.array.shape[0], 1), self.scale, np.float32)}

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> None:
        tables, either, back = _tables(float(self.scale), self.code)
        if self.code == "4over6":
            _encode_either(bits, either, tables.starts, back, buffers["codes"], buffers["scales"])
        else:
            blocks.encode(bits, tables.scales, tables.starts, buffers["codes"], buffers["scales"])

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        values = _tables(float(self.scale), self.code).tables.values
        blocks.decode(buffers["codes"], buffers["scales"], values, bits)
