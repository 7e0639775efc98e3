"""MX caches: E2M1 or E4M3 codes and for every block of channels of a token a power of two in E8M0."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from kernels_ref import blocks, half
from kernels_ref.formats import SCALED_TYPES
from kernels_ref.fp8 import decode_table
from kernels_ref.inputs import check_choice
from kernels_ref.jit import inner, kernel, prange, sequential
from kernels_ref.minifloat import (
    E2M1_VALUES,
    E8M0_BIAS,
    E8M0_NAN,
    LARGEST,
    LARGEST_EXPONENT,
    ceil_log2,
    e2m1,
    e2m1_away,
    e4m3,
    pattern,
    value_of,
)
from kernels_ref.rows import BufferColumn, Buffers, RowMethod, n_pieces, nibbles, rows_of

__all__ = ["MX"]

Type = Literal["mxfp4", "mxfp8", "fp4_mx_block16"]
Rule = Literal["floor", "ceil", "rceil", "even", "sglang", "vllm"]

#: type -> element format
ELEMENTS = {"mxfp4": "e2m1", "mxfp8": "e4m3", "fp4_mx_block16": "e2m1"}
#: channels of a block of mxfp8
BYTE_BLOCK = SCALED_TYPES["mxfp8"].block
#: how the scale comes from the largest magnitude, by the number that kernels know it by
RULES: tuple[Rule, ...] = ("floor", "ceil", "rceil", "even", "sglang", "vllm")
#: rule, largest value, its exponent, half of its last mantissa bit, least magnitude and quotient: as `_byte` takes them
_Settings = tuple[int, np.float32, int, np.uint32, np.float32, np.float32]
_FLOOR, _CEIL, _RCEIL, _EVEN, _SGLANG, _VLLM = range(len(RULES))
#: rules of a type, the default first
RULES_OF: dict[str, tuple[Rule, ...]] = {
    "mxfp4": ("floor", "ceil", "rceil", "even"),
    "mxfp8": ("sglang", "floor", "ceil", "rceil", "even", "vllm"),
    "fp4_mx_block16": ("sglang",),
}


@inner
def _byte(
    largest: np.float32,
    rule: int,
    top: np.float32,
    exponent: int,
    rounding: np.uint32,
    before: np.float32,
    after: np.float32,
) -> np.uint8:
    """E8M0 byte of a block. top, exponent: the element format's largest value and its exponent; rounding: of "even",
    half of its last mantissa bit in a float32; before, after: what `largest` and `largest` / top are raised to."""
    if rule in (_RCEIL, _SGLANG, _VLLM):
        quotient = max(np.float32(max(largest, before) / top), after)
        return np.uint8(min(max(ceil_log2(quotient) + np.int32(127), np.int32(0)), np.int32(254)))
    bits = np.uint32(pattern(largest))
    if rule == _EVEN:
        bits = np.uint32(bits + rounding)
    e = np.int32(bits >> np.uint32(23)) - np.int32(exponent)
    if rule == _CEIL:
        e += np.int32((bits & np.uint32(0x7FFFFF)) != np.uint32(0))
    return np.uint8(min(max(e, np.int32(0)), np.int32(255)))


@inner
def _multiplier(byte: np.uint8, rule: int) -> np.float32:
    """Factor of elements: 2^(127 - byte), for byte 0 the value of the rule's library."""
    if byte == np.uint8(0):
        if rule == _RCEIL:
            return np.float32(1)
        return np.float32(2.0**127) if rule == _VLLM else np.float32(2.0**126)
    bits = np.uint32(np.uint32(254 - np.uint32(byte)) << np.uint32(23))
    return value_of(bits if bits else np.uint32(0x00400000))


@inner
def _element(x: np.float32, multiplier: np.float32, eight: bool, up: bool) -> np.uint8:
    """The code of an element; eight: E4M3, else E2M1; up: ties away from zero, and no sign for -0."""
    y = np.float32(x * multiplier)
    if eight:
        return e4m3(y)
    if up:
        code = e2m1_away(y)
        return np.uint8(code) if y < np.float32(0) else np.uint8(code & np.uint8(7))
    return e2m1(y)


@sequential
def _bytes_of(largest: np.ndarray, settings: _Settings, out: np.ndarray) -> None:
    """uint8 out[n] of magnitudes largest[n]; settings as of `_byte`."""
    rule, top, exponent, rounding, before, after = settings
    for i in range(out.size):
        out[i] = _byte(largest[i], rule, top, exponent, rounding, before, after)


@sequential
def _codes_of(x: np.ndarray, scales: np.ndarray, rule: int, eight: bool, up: bool, out: np.ndarray) -> None:
    """uint8 out[n] of elements x[n] with scale bytes scales[n]."""
    for i in range(out.size):
        out[i] = _element(x[i], _multiplier(scales[i], rule), eight, up)


@inner
def _codes_row(bits: np.ndarray, multipliers: np.ndarray, scales: np.ndarray, codes: np.ndarray) -> None:
    for b in range(codes.shape[0]):
        multiplier = multipliers[scales[b]]
        for i in range(BYTE_BLOCK):
            codes[b, i] = e4m3(np.float32(half.finite(bits[b, i]) * multiplier))


@kernel
def _quantize_bytes(
    bits: np.ndarray, scales: np.ndarray, multipliers: np.ndarray, codes: np.ndarray, e8m0: np.ndarray
) -> None:
    """FP16 patterns bits[n, channels] -> E4M3 codes[n, channels], scale bytes e8m0[n, channels / 32]."""
    for piece in prange(n_pieces(bits)):
        spare = np.empty((3, bits.shape[1] // 2), np.uint16)
        for row in rows_of(piece, bits):
            blocks.scale_row(bits[row], scales, spare, e8m0[row])
            _codes_row(bits[row].reshape(-1, BYTE_BLOCK), multipliers, e8m0[row], codes[row].reshape(-1, BYTE_BLOCK))


@inner
def _pick_row(codes: np.ndarray, scales: np.ndarray, values: np.ndarray, bits: np.ndarray) -> None:
    for b in range(bits.shape[0]):
        k = scales[b]
        for i in range(BYTE_BLOCK):
            bits[b, i] = values[k, codes[b, i]]


@kernel
def _dequantize_bytes(codes: np.ndarray, e8m0: np.ndarray, values: np.ndarray, bits: np.ndarray) -> None:
    """The reverse of `_quantize_bytes`; values: FP16 patterns by scale byte and code, uint16 [256, 256]."""
    for piece in prange(n_pieces(bits)):
        for row in rows_of(piece, bits):
            _pick_row(codes[row].reshape(-1, BYTE_BLOCK), e8m0[row], values, bits[row].reshape(-1, BYTE_BLOCK))


def _check(name: str, rule: str | None) -> Rule:
    """The rule, a type's default for None. Raises ValueError."""
    check_choice("type", name, tuple(RULES_OF))
    chosen = RULES_OF[name][0] if rule is None else rule
    check_choice("rule", chosen, RULES_OF[name])
    return chosen  # type: ignore[return-value]


def _settings(name: str, rule: Rule) -> _Settings:
    """Arguments of `_byte`: rule, largest value, its exponent, the half of "even", the least magnitude and quotient."""
    element = ELEMENTS[name]
    mantissa_bits = {"e2m1": 1, "e4m3": 3}[element]
    before = {"sglang": 1e-30, "vllm": 2.0**-126}.get(rule, 0.0) if name == "mxfp8" else 0.0
    after = 1e-10 if name == "fp4_mx_block16" else 0.0
    return (
        RULES.index(rule),
        np.float32(LARGEST[element]),
        LARGEST_EXPONENT[element],
        np.uint32(2 ** (22 - mantissa_bits)),
        np.float32(before),
        np.float32(after),
    )


def decode(codes: np.ndarray, scales: np.ndarray, name: Type) -> np.ndarray:
    """float32 [n, channels]: the code's value times 2^(byte - 127)."""
    values = E2M1_VALUES if ELEMENTS[name] == "e2m1" else decode_table("e4m3")
    by_block = values[codes].reshape(*scales.shape, -1)
    with np.errstate(over="ignore", invalid="ignore"):
        return (by_block * powers()[scales][..., None]).reshape(codes.shape)


def powers() -> np.ndarray:
    """float32 [256]: 2^(byte - 127), NaN for 255."""
    values = np.ldexp(1.0, np.arange(256) - E8M0_BIAS)
    return np.where(np.arange(256) == E8M0_NAN, np.nan, np.minimum(values, 2.0**127)).astype(np.float32)


def _kind(name: str) -> tuple[bool, bool]:
    """Whether codes are E4M3, and whether ties go away from zero."""
    return ELEMENTS[name] == "e4m3", name == "fp4_mx_block16"


@cache
def _tables(name: Type, rule: Rule) -> blocks.Tables:
    settings, (eight, up) = _settings(name, rule), _kind(name)

    def bytes_of(largest: np.ndarray) -> np.ndarray:
        e8m0 = np.empty(largest.size, np.uint8)
        _bytes_of(largest, settings, e8m0)
        return e8m0

    def codes_of(x: np.ndarray, scales: np.ndarray) -> np.ndarray:
        element_codes = np.empty(x.size, np.uint8)
        _codes_of(x, scales, settings[0], eight, up, element_codes)
        return element_codes

    n_codes = 256 if eight else 16
    codes = np.tile(np.arange(n_codes, dtype=np.uint8), (256, 1))
    scales = blocks.scale_table(bytes_of)
    values = blocks.value_table(decode(codes, np.arange(256, dtype=np.uint8)[:, None], name))
    starts = np.empty((256, 0), np.uint16) if eight else blocks.starts_table(codes_of, scales, int(up))
    return blocks.Tables(scales, starts, values)


@cache
def _multipliers(rule: Rule) -> np.ndarray:
    """float32 [256]: `_multiplier` by byte."""
    with np.errstate(all="ignore"):
        return np.array([_multiplier(np.uint8(byte), RULES.index(rule)) for byte in range(255)] + [np.nan], np.float32)


@dataclass(frozen=True)
class MX(RowMethod):
    """Codes in blocks with a power of two as scale: mxfp4 and mxfp8 by 32 channels, fp4_mx_block16 by 16.

    With A the largest magnitude of a block, P = 6 (E2M1) or 448 (E4M3) and 2^p the largest power of two up to P, the
    scale is 2^e. Rule "floor" (OCP): e = floor(log2 A) - p; "ceil": ceil(log2 A) - p; "even": floor(log2 A') - p, A'
    being A rounded half up to the element's mantissa; "rceil" (cuBLAS): ceil(log2(A / P)); "sglang": the same with A at
    least 1e-30 (mxfp8) or A / 6 at least 1e-10 (fp4_mx_block16); "vllm": with A at least 2^-126. Codes are x / 2^e to
    nearest even, saturating; of fp4_mx_block16 ties go away from zero. Decoded in float32, here rounded to FP16
    within +-65504. Logarithms are the nearest float32. rule None: the first of `RULES_OF`.

    Buffers: `codes` uint8 [rows, channels / 2], element 2i in the low nibble, or [rows, channels] of E4M3; `scales`
    uint8 [rows, channels / block], E8M0. Sources: OCP Microscaling Formats 1.0; torchao 0.18.0 to_mx; SGLang 0.5.23,
    kvfp4_tensor.py as compiled, mxfp8_quant_store_kv.py; vLLM 0.33.0, mxfp8_utils.py.
    """

    type: Type = "mxfp4"
    rule: Rule | None = None

    def __post_init__(self) -> None:
        _check(self.type, self.rule)

    def _tables(self) -> blocks.Tables:
        return _tables(self.type, _check(self.type, self.rule))

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        entry = SCALED_TYPES[self.type]
        blocks.check_head_dim(channels // n_heads, entry.block, self.type)
        codes = (
            nibbles("codes", channels)
            if entry.code_bits == 4
            else BufferColumn("codes", dtype=np.uint8, items=channels, part="payload")
        )
        return codes, BufferColumn("scales", dtype=np.uint8, items=channels // entry.block, part="scales")

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> None:
        tables = self._tables()
        if self.type == "mxfp8":
            multipliers = _multipliers(_check(self.type, self.rule))
            _quantize_bytes(bits, tables.scales, multipliers, buffers["codes"], buffers["scales"])
        else:
            blocks.encode(bits, tables.scales, tables.starts, buffers["codes"], buffers["scales"])

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        values = self._tables().values
        if self.type == "mxfp8":
            _dequantize_bytes(buffers["codes"], buffers["scales"], values, bits)
        else:
            blocks.decode(buffers["codes"], buffers["scales"], values, bits)
