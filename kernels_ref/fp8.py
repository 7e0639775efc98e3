"""FP8 caches: E4M3 and E5M2 (OCP FP8 1.0), cast as PyTorch casts, with an optional fixed scale."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from kernels_ref.half import all_patterns
from kernels_ref.inputs import check_choice, check_scale
from kernels_ref.packing import look_up
from kernels_ref.rows import BufferColumn, Buffers, RowMethod

__all__ = ["FP8"]

Format = Literal["e4m3", "e5m2"]

#: bits of the significand that are stored, exponent bias, code of the largest finite value, code of what is beyond it
_FIELDS = {"e4m3": (3, 7, 0x7E, 0x7F), "e5m2": (2, 15, 0x7B, 0x7C)}
#: code of NaN, sign bit clear
NAN_CODE = 0x7F


def decode_table(fmt: Format) -> np.ndarray:
    """float32 [256]: the values of all codes, exactly; E5M2 has infinities, E4M3 only NaN."""
    mantissa_bits, bias, largest, beyond = _FIELDS[fmt]
    codes = np.arange(256)
    magnitude = codes & 0x7F
    exponent, mantissa = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    significand = np.where(exponent > 0, mantissa + (1 << mantissa_bits), mantissa)
    values = np.ldexp(significand.astype(np.float32), np.maximum(exponent, 1) - bias - mantissa_bits)
    values[magnitude > largest] = np.nan
    if fmt == "e5m2":
        values[magnitude == beyond] = np.inf
    return np.where(codes >= 0x80, -values, values).astype(np.float32)


def encode(values: np.ndarray, fmt: Format, saturate: bool | None = None) -> np.ndarray:
    """uint8 codes of float32 values, rounded once, to nearest even, in integer arithmetic on the bit patterns.

    What rounds to beyond the largest finite value, infinities included, becomes that value where `saturate`, else NaN
    (E4M3) or infinity (E5M2). None: as PyTorch casts since version 2.12: E4M3 saturates, E5M2 does not.
    NaN stays NaN (0x7F and the sign), subnormals are kept.
    """
    if saturate is None:
        saturate = fmt == "e4m3"
    mantissa_bits, bias, largest, beyond = _FIELDS[fmt]
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    magnitude = (bits & np.uint32(0x7FFFFFFF)).astype(np.int64)
    # 24-bit significand, to be shifted right until its last bit has the weight of the last bit that the code keeps
    exponent = np.maximum(magnitude >> 23, 1)
    significand = (magnitude & 0x7FFFFF) | ((magnitude >> 23 > 0).astype(np.int64) << 23)
    code_exponent = np.maximum(exponent - 127 + bias, 1)
    shift = np.minimum(23 - mantissa_bits + code_exponent - (exponent - 127 + bias), 40)
    odd = (significand >> shift) & 1
    rounded = (significand + (np.int64(1) << (shift - 1)) - 1 + odd) >> shift
    # a significand without the leading bit is a subnormal; with it, or one more by rounding, the sum carries into place
    code = ((code_exponent - 1) << mantissa_bits) + rounded
    code = np.where(code > largest, largest if saturate else beyond, code)
    code = np.where(magnitude > 0x7F800000, NAN_CODE, code)
    return (code | ((bits >> np.uint32(24)) & np.uint32(0x80))).astype(np.uint8)


@cache
def _encode_table(fmt: Format, scale: float, saturate: bool | None) -> np.ndarray:
    """uint8 [65536]: code of every FP16 pattern."""
    with np.errstate(over="ignore", invalid="ignore"):
        return encode(all_patterns().astype(np.float32) / np.float32(scale), fmt, saturate)


@cache
def _decode_table(fmt: Format, scale: float) -> np.ndarray:
    """uint16 [256]: FP16 pattern of every code."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (decode_table(fmt) * np.float32(scale)).astype(np.float16).view(np.uint16)


@dataclass(frozen=True)
class FP8(RowMethod):
    """One FP8 code an element: fp32(x / scale) rounded to nearest even; decoded as fp32(code * scale) in FP16.

    `scale` is fixed with the weights (vLLM's kv_cache_dtype=fp8), a float32, and not counted as stored. What rounds to
    beyond the largest finite value becomes that value with `saturate`, NaN (E4M3) or infinity (E5M2) without; None is
    what PyTorch does since version 2.12 (pull request 178817): E4M3 saturates, E5M2 does not.

    Buffer: `codes` uint8 [rows, channels]. Source: OCP FP8 1.0; PyTorch 2.13, Tensor.to(float8_e4m3fn, float8_e5m2).
    """

    format: Format = "e4m3"
    scale: float = 1.0
    saturate: bool | None = None

    def __post_init__(self) -> None:
        check_choice("format", self.format, ("e4m3", "e5m2"))
        check_scale("scale", self.scale)
        check_choice("saturate", self.saturate, (None, False, True))

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        return (BufferColumn("codes", dtype=np.uint8, items=channels, part="payload"),)

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> None:
        table = _encode_table(self.format, float(self.scale), self.saturate)
        look_up(bits.reshape(-1), table, buffers["codes"].reshape(-1))

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        look_up(buffers["codes"].reshape(-1), _decode_table(self.format, float(self.scale)), bits.reshape(-1))
