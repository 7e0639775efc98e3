"""vLLM's slots of latent (MLA) heads, fp8_ds_mla and nvfp4_ds_mla: 512 latent values and 64 RoPE values a token."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kernels_ref import half, minifloat
from kernels_ref.formats import storage
from kernels_ref.hadamard import narrowed
from kernels_ref.inputs import check_choice
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.packed import Packed
from kernels_ref.packing import copied
from kernels_ref.rows import BufferColumn, Buffers, RowMethod, n_pieces, rows_of

__all__ = ["Latent"]

Format = Literal["fp8", "nvfp4"]
FORMATS: tuple[Format, ...] = ("fp8", "nvfp4")
#: latent and RoPE channels of a token
LATENT, ROPE = storage.mla_latent, storage.mla_rope


@inner
def _quotients(x: np.ndarray, scale: np.float32, codes: np.ndarray) -> None:
    for i in range(x.size):
        codes[i] = minifloat.e4m3(np.float32(x[i] / scale))


@inner
def _encode_fp8_row(x: np.ndarray, codes: np.ndarray, scales: np.ndarray) -> None:
    for b in range(scales.size):
        largest = np.float32(minifloat.absmax(x[b * 128 : (b + 1) * 128]) / np.float32(448))
        exponent = minifloat.ceil_log2(max(largest, np.float32(1e-4)))
        scales[b] = minifloat.value_of(np.uint32(np.int32(exponent + np.int32(127)) << np.int32(23)))
        _quotients(x[b * 128 : (b + 1) * 128], scales[b], codes[b * 128 : (b + 1) * 128])


@inner
def _pairs(x: np.ndarray, inverse: np.float32, codes: np.ndarray) -> None:
    for i in range(codes.size):
        low = minifloat.e2m1(np.float32(x[2 * i] * inverse))
        high = minifloat.e2m1(np.float32(x[2 * i + 1] * inverse))
        codes[i] = np.uint8(low | np.uint8(high << np.uint8(4)))


@inner
def _place(block: int) -> int:
    """Where the scale of a block of 16 stands among the 32."""
    return 8 * (block & 3) + (block >> 2)


@inner
def _encode_nvfp4_row(x: np.ndarray, codes: np.ndarray, scales: np.ndarray) -> None:
    for b in range(scales.size):
        part = x[16 * b : 16 * b + 16]
        code = minifloat.e4m3(max(np.float32(minifloat.absmax(part) / np.float32(6)), np.float32(2.0**-9)))
        scales[_place(b)] = code
        _pairs(part, np.float32(np.float32(1) / minifloat.e4m3_value(code)), codes[8 * b : 8 * b + 8])


@inner
def _rope_values(codes: np.ndarray, values: np.ndarray) -> None:
    for i in range(codes.size):
        values[i] = minifloat.e4m3_value(codes[i])


@inner
def _products(codes: np.ndarray, scale: np.float32, values: np.ndarray) -> None:
    for i in range(codes.size):
        values[i] = np.float32(minifloat.e4m3_value(codes[i]) * scale)


@inner
def _decode_fp8_row(codes: np.ndarray, scales: np.ndarray, values: np.ndarray) -> None:
    for b in range(scales.size):
        _products(codes[b * 128 : (b + 1) * 128], scales[b], values[b * 128 : (b + 1) * 128])


@inner
def _pair_values(codes: np.ndarray, scale: np.float32, values: np.ndarray) -> None:
    for i in range(codes.size):
        low, high = minifloat.e2m1_value(codes[i] & np.uint8(0xF)), minifloat.e2m1_value(codes[i] >> np.uint8(4))
        values[2 * i] = minifloat.bf16(half.rounded(np.float32(low * scale)))
        values[2 * i + 1] = minifloat.bf16(half.rounded(np.float32(high * scale)))


@inner
def _decode_nvfp4_row(codes: np.ndarray, scales: np.ndarray, values: np.ndarray) -> None:
    for b in range(scales.size):
        scale = minifloat.e4m3_value(scales[_place(b)])
        _pair_values(codes[8 * b : 8 * b + 8], scale, values[16 * b : 16 * b + 16])


@kernel
def _quantize_fp8(bits: np.ndarray, codes: np.ndarray, scales: np.ndarray, rope: np.ndarray) -> None:
    """FP16 patterns bits[n, 576] -> codes[n, 512], scales[n, 4], rope[n, 64]."""
    for piece in prange(n_pieces(codes)):
        values = np.empty(LATENT, np.float32)
        for row in rows_of(piece, codes):
            half.widen(bits[row, :LATENT], values)
            copied(bits[row, LATENT:], rope[row])
            _encode_fp8_row(values, codes[row], scales[row])


@kernel
def _dequantize_fp8(codes: np.ndarray, scales: np.ndarray, rope: np.ndarray, bits: np.ndarray) -> None:
    """The reverse of `_quantize_fp8`."""
    for piece in prange(n_pieces(codes)):
        values = np.empty(LATENT, np.float32)
        for row in rows_of(piece, codes):
            _decode_fp8_row(codes[row], scales[row], values)
            narrowed(values, bits[row, :LATENT])
            copied(rope[row], bits[row, LATENT:])


@kernel
def _quantize_nvfp4(bits: np.ndarray, codes: np.ndarray, scales: np.ndarray, rope: np.ndarray) -> None:
    """FP16 patterns bits[n, 576] -> codes[n, 256], scales[n, 32], rope[n, 64]."""
    for piece in prange(n_pieces(codes)):
        values = np.empty(LATENT + ROPE, np.float32)
        for row in rows_of(piece, codes):
            half.widen(bits[row], values)
            _encode_nvfp4_row(values, codes[row], scales[row])
            minifloat.e4m3_codes(values[LATENT:], rope[row])


@kernel
def _dequantize_nvfp4(codes: np.ndarray, scales: np.ndarray, rope: np.ndarray, bits: np.ndarray) -> None:
    """The reverse of `_quantize_nvfp4`."""
    for piece in prange(n_pieces(codes)):
        values = np.empty(LATENT + ROPE, np.float32)
        for row in rows_of(piece, codes):
            _decode_nvfp4_row(codes[row], scales[row], values)
            _rope_values(rope[row], values[LATENT:])
            narrowed(values, bits[row])


@dataclass(frozen=True)
class Latent(RowMethod):
    """A latent (MLA) head of 512 latent and 64 RoPE channels: fp8 is vLLM's fp8_ds_mla, nvfp4 its nvfp4_ds_mla.

    fp8: per 128 latent channels s = 2^ceil(log2(max(absmax / 448, 1e-4))), codes E4M3(x / s), decoded code * s; RoPE
    stays in 16 bits. nvfp4: per 16 latent channels s = E4M3(max(absmax / 6, 2^-9)), codes E2M1(x * (1 / s)), decoded
    code * s in FP16, then BF16; beyond 2688 it saturates; RoPE in E4M3 without a scale.

    Buffers: fp8 `codes` uint8 [rows, 512], `scale` float32 [rows, 4], `rope` float16 [rows, 64]; nvfp4 `codes` uint8
    [rows, 256], element 2i in the low nibble, `rope` uint8 [rows, 64], `scale` uint8 [rows, 32], that of block s at
    8 * (s mod 4) + s / 4. `slots` gives vLLM's bytes. Source: vLLM 0.33.0, csrc/cache_kernels.cu,
    csrc/nvfp4_ds_mla_cache_kernels.cu.
    """

    format: Format = "fp8"

    def __post_init__(self) -> None:
        check_choice("format", self.format, FORMATS)

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        if n_heads != 1 or channels != LATENT + ROPE:
            raise ValueError(
                f"{self.format}_ds_mla: x has {n_heads} heads of {channels // n_heads} channels: must be one latent "
                f"(MLA) head of {LATENT} + {ROPE} channels"
            )
        if self.format == "fp8":
            return (
                BufferColumn("codes", dtype=np.uint8, items=LATENT, part="payload"),
                BufferColumn("scale", dtype=np.float32, items=LATENT // 128, part="scales"),
                BufferColumn("rope", dtype=np.float16, items=ROPE, part="payload"),
            )
        return (
            BufferColumn("codes", dtype=np.uint8, items=LATENT // 2, part="payload"),
            BufferColumn("rope", dtype=np.uint8, items=ROPE, part="payload"),
            BufferColumn("scale", dtype=np.uint8, items=LATENT // 16, part="scales"),
        )

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> None:
        codes, scale, rope = (buffers[name] for name in ("codes", "scale", "rope"))
        if not len(bits):
            return
        if self.format == "fp8":
            _quantize_fp8(bits, codes, scale, rope.view(np.uint16))
        else:
            _quantize_nvfp4(bits, codes, scale, rope)

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        codes, scale, rope = (buffers[name] for name in ("codes", "scale", "rope"))
        if not len(bits):
            return
        if self.format == "fp8":
            _dequantize_fp8(codes, scale, rope.view(np.uint16), bits)
        else:
            _dequantize_nvfp4(codes, scale, rope, bits)

    def slots(self, packed: Packed) -> np.ndarray:
        """vLLM's bytes: uint8 [rows, 656 or 352].

        packed: What `quantize` of this method gave.
        """
        order = ("codes", "scale", "rope") if self.format == "fp8" else ("codes", "rope", "scale")
        return np.concatenate([np.ascontiguousarray(packed.buffers[name]).view(np.uint8) for name in order], axis=1)
