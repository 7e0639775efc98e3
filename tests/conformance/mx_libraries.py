"""MX as other libraries round it, on float32 arrays: gguf, microxcaling, SGLang's eager code. For comparisons only."""

from typing import Literal

import numpy as np

from kernels_ref import SCALED_TYPES, mx
from kernels_ref.minifloat import E2M1_MAGNITUDES, E8M0_BIAS, LARGEST, LARGEST_EXPONENT
from kernels_ref.mx import ELEMENTS, RULES, Rule, Type, decode

Rounding = Literal["nearest", "even", "floor"]

#: bits of the element's significand that are stored, and its smallest normal exponent
_FIELDS = {"e2m1": (1, 0), "e4m3": (3, -6)}
#: channels of a block of mxfp4 and mxfp8, and of fp4_mx_block16
_BLOCK, _BLOCK16 = 32, 16


def scale_bytes(x: np.ndarray, name: Type, rule: Rule) -> np.ndarray:
    """E8M0 scales uint8 [n, channels / block] of float32 x [n, channels], by the rule that the tables of `MX` ask."""
    largest = np.abs(x).reshape(-1, SCALED_TYPES[name].block).max(axis=1)
    e8m0 = np.empty(largest.size, np.uint8)
    mx._bytes_of(largest, mx._settings(name, rule), e8m0)
    return e8m0.reshape(x.shape[0], -1)


def codes_with(x: np.ndarray, scales: np.ndarray, name: Type, rule: Rule) -> np.ndarray:
    """Codes uint8 [n, channels] of float32 x [n, channels] with these scales; the rule says what byte 0 stands for."""
    codes = np.empty(x.size, np.uint8)
    scale_of_code = np.repeat(scales.reshape(-1), SCALED_TYPES[name].block)
    mx._codes_of(np.ascontiguousarray(x).reshape(-1), scale_of_code, RULES.index(rule), *mx._kind(name), codes)
    return codes.reshape(x.shape)


def _log2(values: np.ndarray) -> np.ndarray:
    """The nearest float32 of the logarithms; -inf of 0."""
    with np.errstate(divide="ignore"):
        return np.log2(values.astype(np.float64)).astype(np.float32)


def _blocks(x: np.ndarray, block: int) -> np.ndarray:
    return x.reshape(*x.shape[:-1], -1, block)


def gguf_blocks(x: np.ndarray) -> np.ndarray:
    """gguf's MXFP4 blocks uint8 [..., channels / 32 * 17] of float32 x [..., channels].

    Exponent first, then 16 bytes: code j low and code j + 16 high. The exponent is OCP's and wraps round below 0; the
    code is the one that errs least, of two the one nearer to zero; zero has no sign.
    """
    parts = _blocks(x, _BLOCK)
    largest = np.abs(parts).max(axis=-1)
    exponent = np.floor(_log2(largest)) - LARGEST_EXPONENT["e2m1"] + E8M0_BIAS
    scales = np.where(largest > 0, exponent, 0).astype(np.int16).astype(np.uint8)
    candidates = np.concatenate([E2M1_MAGNITUDES, -E2M1_MAGNITUDES]) * 2
    with np.errstate(over="ignore"):
        errors = np.abs(_gguf_steps(scales)[..., None, None] * candidates - parts[..., None])
    codes = errors.argmin(axis=-1).astype(np.uint8)
    packed = codes[..., :16] | codes[..., 16:] << np.uint8(4)
    return np.concatenate([scales[..., None], packed], axis=-1).reshape(*x.shape[:-1], -1)


def _gguf_steps(scales: np.ndarray) -> np.ndarray:
    """float32: half of what E8M0 bytes stand for; 255 is a number too."""
    return np.ldexp(np.float32(1), scales.astype(np.int32) - E8M0_BIAS - 1)


def gguf_values(blocks: np.ndarray) -> np.ndarray:
    """float32 [..., channels] of `gguf_blocks`."""
    parts = _blocks(blocks, _BLOCK // 2 + 1)
    codes = np.concatenate([parts[..., 1:] & 15, parts[..., 1:] >> 4], axis=-1)
    values = np.concatenate([E2M1_MAGNITUDES, -E2M1_MAGNITUDES + np.float32(0)])[codes] * 2
    return (values * _gguf_steps(parts[..., :1])).reshape(*blocks.shape[:-1], -1)


def microxcaling_exponents(x: np.ndarray, name: Literal["mxfp4", "mxfp8"]) -> np.ndarray:
    """float32 [..., channels / 32]: exponents of the scales, before they are kept at -127 and above."""
    largest = np.abs(_blocks(x, _BLOCK)).max(axis=-1)
    smallest_normal = np.float32(2.0**-126)
    return np.floor(_log2(np.where(largest > 0, largest, smallest_normal))) - LARGEST_EXPONENT[ELEMENTS[name]]


def microxcaling_values(x: np.ndarray, name: Literal["mxfp4", "mxfp8"], rounding: Rounding) -> np.ndarray:
    """float32 of x's shape, quantized and decoded: elements to nearest with ties away from zero or to even, or down.

    Zero has no sign; what rounds to zero keeps its own.
    """
    element = ELEMENTS[name]
    mantissa_bits, smallest = _FIELDS[element]
    scale = np.maximum(microxcaling_exponents(x, name), -E8M0_BIAS)[..., None].astype(np.int32)
    y = np.ldexp(_blocks(x, _BLOCK), -scale)
    exponent = np.maximum(np.floor(_log2(np.where(y == 0, np.float32(1), np.abs(y)))), smallest).astype(np.int32)
    steps = np.ldexp(np.abs(y), mantissa_bits - exponent)
    whole = np.floor(steps + (np.float32(0) if rounding == "floor" else np.float32(0.5)))
    if rounding == "even":
        whole -= (steps - np.float32(0.5)) % 2 == 0
    found = np.minimum(np.ldexp(whole, exponent - mantissa_bits), np.float32(LARGEST[element]))
    return np.ldexp(np.where(y == 0, np.float32(0), np.copysign(found, y)), scale).reshape(x.shape)


def vllm_mxfp4_values(x: np.ndarray) -> np.ndarray:
    """uint16 BF16 patterns of x [n, channels], quantized by rule "even" and decoded: vLLM's reference for weights.

    Where the rounded largest magnitude leaves the range of float32, the scale is 2^-127; that is divided by as it is.
    """
    scales = scale_bytes(x, "mxfp4", "even")
    largest = np.abs(_blocks(x, _BLOCK)).max(axis=-1)
    scales[largest.view(np.uint32) + np.uint32(2**21) >= np.uint32(0x7F800000)] = 0
    codes = codes_with(x, scales, "mxfp4", "vllm")
    return bfloat16_bits(decode(codes, scales, "mxfp4"))


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """uint16 patterns of the nearest BF16, ties to even, of finite float32."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 rounded to "float16", "bfloat16" or "float32", as float32."""
    if dtype == "bfloat16":
        return (bfloat16_bits(values).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(dtype).astype(np.float32)


def sglang_eager(x: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """fp4_mx_block16 without torch.compile: every step rounds to `dtype`, that of x [..., channels].

    x is given as float32. Codes uint8 [..., channels], one a byte, and E8M0 scales [..., channels / 16]. In FP16 the
    least quotient, 1e-10, is 0: blocks that round to 0 are divided by 0, as infinite ones are by infinity.
    """
    parts = _blocks(x, _BLOCK16)
    with np.errstate(all="ignore"):  # a block that rounds to 0 (FP16) has exponent -inf, an infinite one inf
        quotient = _rounded(np.abs(parts).max(axis=-1) / np.float32(LARGEST["e2m1"]), dtype)
        quotient = np.maximum(quotient, _rounded(np.array([1e-10], np.float32), dtype))
        exponent = np.ceil(_rounded(_log2(quotient), dtype))
        finite = np.isfinite(exponent)
        power = np.ldexp(np.float32(1), np.where(finite, exponent, 0).astype(np.int32))
        power = np.where(finite, power, np.exp2(exponent))
        magnitudes = np.abs(_rounded(parts / power[..., None], dtype))
    middles = (E2M1_MAGNITUDES[1:] + E2M1_MAGNITUDES[:-1]) / 2
    # NaN (0 / 0) is above none of the middles, and neither negative nor positive
    codes = (magnitudes[..., None] >= middles).sum(axis=-1) | np.where((parts < 0) & (magnitudes > 0), 8, 0)
    scales = np.where(finite, exponent + E8M0_BIAS, 0)  # what is not finite is stored as byte 0 on x86
    return codes.astype(np.uint8).reshape(x.shape), scales.astype(np.uint8)
