"""llama.cpp's cache types q8_0, q5_0, q5_1, q4_0, q4_1 and iq4_nl: blocks of 32 channels of one token (ggml).

Codes are decided in float32 with the unrounded step d; d, and of q4_1 and q5_1 the minimum m, are stored in FP16
within +-65504 (ggml: infinite beyond; rotated channels alone reach it).
`GGML` works on FP16 and on buffers by ledger part; its `blocks` are ggml's own bytes.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from kernels_ref import half
from kernels_ref.formats import GGML_TYPES, storage
from kernels_ref.hadamard import transform, transposed
from kernels_ref.inputs import check_choice
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.packed import Packed
from kernels_ref.packing import copied
from kernels_ref.rows import BufferColumn, Buffers, RowMethod, n_pieces, rows_of

__all__ = ["GGML"]

Type = Literal["q8_0", "q5_0", "q5_1", "q4_0", "q4_1", "iq4_nl"]
Code = Literal["ggml", "gguf", "avx2"]
Side = Literal["", "key", "value"]

#: channels of a block
BLOCK = storage.ggml_block
#: type -> (bits of a code, whether a minimum is stored)
TYPES = {name: (entry.code_bits, entry.minimum) for name, entry in GGML_TYPES.items()}
#: whose rules: ggml's portable C code, the gguf package, ggml's AVX2 code
CODES: tuple[Code, ...] = ("ggml", "gguf", "avx2")
#: shortest run of channels that llama.cpp rotates, and the one of values
SHORTEST_RUN = 64
#: multiples of d that the codes of iq4_nl stand for
LEVELS = np.array(GGML_TYPES["iq4_nl"].levels, np.float32)
#: a block whose largest magnitude is below it has a step of 0 (ggml-quants.c, GROUP_MAX_EPS)
_LEAST = np.float32(1e-15)

_MAGNITUDE = np.int32(0x7FFFFFFF)


class BlockCoding(NamedTuple):
    """Coding of a block: in 8 bits or five (else four), with a minimum or around 0."""

    eight: bool
    five: bool
    minimum: bool
    #: of 8 bits: ties to even; else: the sign of zero is kept
    option: bool
    #: codes stand for LEVELS
    uneven: bool


class RotatedRuns(NamedTuple):
    """Runs of 2^stages channels that are rotated before they are quantized; of 0 stages none is."""

    stages: int
    #: 1 / sqrt(2^stages)
    factor: np.float32


def _coding(name: Type, code: Code) -> BlockCoding:
    bits, minimum = TYPES[name]
    option = code == ("avx2" if name == "q8_0" else "gguf")
    return BlockCoding(bits == 8, bits == 5, minimum, option, bool(GGML_TYPES[name].levels))


def rotated_run(side: Side, head_dim: int) -> int:
    """Channels of a run that llama.cpp rotates in a quantized cache, 0 where it rotates none.

    Of keys the largest power of two that divides the head dimension, of values 64; none where 64 does not divide it.
    """
    if not side or head_dim % SHORTEST_RUN:
        return 0
    return head_dim & -head_dim if side == "key" else SHORTEST_RUN


def _rotation(run: int) -> RotatedRuns:
    return RotatedRuns(run.bit_length() - 1 if run else 0, np.float32(1) / np.sqrt(np.float32(max(run, 1))))


@inner
def _order(value: np.float32) -> np.int32:
    """An int32 that orders finite float32 values, with -0 just below +0; its own inverse on patterns."""
    signed = np.float32(value).view(np.int32)
    return np.int32(signed ^ ((signed >> np.int32(31)) & _MAGNITUDE))


@inner
def _inverse(step: np.float32) -> np.float32:
    return np.float32(np.float32(1) / step) if step != np.float32(0) else np.float32(0)


@inner
def _absmax(x: np.ndarray) -> np.float32:
    """The largest magnitude of x[32]."""
    largest = np.int32(0)
    for i in range(BLOCK):
        largest = max(largest, np.int32(np.float32(x[i]).view(np.int32) & _MAGNITUDE))
    return np.int32(largest).view(np.float32)


@inner
def _first_largest(x: np.ndarray, keep_sign: bool) -> np.float32:
    """The first element of the largest magnitude, with its sign; of a block of zeros +0 unless `keep_sign`."""
    largest = _absmax(x)
    if largest == np.float32(0) and not keep_sign:
        return np.float32(0)
    for i in range(BLOCK):
        if x[i] == largest or x[i] == -largest:
            return np.float32(x[i])
    return largest


@inner
def _extent(x: np.ndarray) -> tuple[np.float32, np.float32]:
    """(minimum, maximum) of x[32]; where the minimum is a zero it is the first zero."""
    lowest, highest = _order(x[0]), _order(x[0])
    for i in range(BLOCK):
        key = _order(x[i])
        lowest = min(lowest, key)
        highest = max(highest, key)
    low = np.int32(lowest ^ ((lowest >> np.int32(31)) & _MAGNITUDE)).view(np.float32)
    high = np.int32(highest ^ ((highest >> np.int32(31)) & _MAGNITUDE)).view(np.float32)
    if low == np.float32(0):
        for i in range(BLOCK):
            if x[i] == np.float32(0):
                return np.float32(x[i]), high
    return low, high


@inner
def _rotate(x: np.ndarray, rotation: RotatedRuns, work: np.ndarray) -> None:
    """Runs of x[n] by the Walsh-Hadamard matrix over the root of its size, its own inverse; work is as large.

    The factor first, then sums and differences 1, 2, 4, .. apart (ggml-cpu/ops.cpp, forward_fwht).
    """
    if rotation.stages:
        for i in range(x.size):
            x[i] = np.float32(x[i] * rotation.factor)
        transform(x, work, np.int64(rotation.stages))
        transposed(x, x.size >> rotation.stages, work)
        copied(work, x)


@inner
def _bytes_away(x: np.ndarray, inverse: np.float32, codes: np.ndarray) -> None:
    """Nearest integers of x * inverse, ties away from zero."""
    for i in range(BLOCK):
        value = np.float32(x[i] * inverse)
        whole = np.int32(value)
        rest = np.float32(value - np.float32(whole))
        codes[i] = np.int8(whole + np.int32(rest >= np.float32(0.5)) - np.int32(rest <= np.float32(-0.5)))


@inner
def _bytes_even(x: np.ndarray, inverse: np.float32, codes: np.ndarray) -> None:
    """Nearest integers of x * inverse, ties to even."""
    for i in range(BLOCK):
        codes[i] = np.int8(np.int32(half.rint(np.float32(x[i] * inverse))))


@inner
def _floors(
    x: np.ndarray, low: np.float32, inverse: np.float32, offset: np.float32, largest: np.int32, codes: np.ndarray
) -> None:
    """min(largest, floor((x - low) * inverse + offset)) of values that are not negative."""
    for i in range(BLOCK):
        scaled = np.float32(np.float32(x[i] - low) * inverse)
        codes[i] = np.uint8(min(np.int32(np.float32(scaled + offset)), largest))


@inner
def _pack(codes: np.ndarray, five: bool, out: np.ndarray, high: np.ndarray) -> None:
    """Codes[32] -> 16 bytes, code j low and code j + 16 high in byte j; returns the word of fifth bits, 0 of 4."""
    for j in range(BLOCK // 2):
        out[j] = np.uint8((codes[j] & np.uint8(0xF)) | np.uint8((codes[j + BLOCK // 2] & np.uint8(0xF)) << np.uint8(4)))
    if five:
        word = np.uint32(0)
        for j in range(BLOCK):
            word |= np.uint32(np.uint32(np.uint32(codes[j]) >> np.uint32(4)) << np.uint32(j))
        high[0] = word


@inner
def _encode_bytes_row(x: np.ndarray, even: bool, codes: np.ndarray, d: np.ndarray) -> None:
    for b in range(d.size):
        part = x[b * BLOCK : (b + 1) * BLOCK]
        largest = _absmax(part)
        step = np.float32(largest / np.float32(127))
        d[b] = half.from_f32(step)
        if even:
            inverse = np.float32(np.float32(127) / largest) if largest != np.float32(0) else np.float32(0)
            _bytes_even(part, inverse, codes[b * BLOCK :])
        else:
            _bytes_away(part, _inverse(step), codes[b * BLOCK :])


@inner
def _nearest(x: np.ndarray, inverse: np.float32, codes: np.ndarray) -> None:
    """Indices of the levels nearest to x * inverse; ties go up."""
    for i in range(BLOCK):
        value = np.float32(x[i] * inverse)
        above = 0
        for j in range(16):
            above += int(LEVELS[j] <= value)
        above = min(max(above, 1), 15)
        lower = np.float32(value - LEVELS[above - 1]) < np.float32(LEVELS[above] - value)
        codes[i] = np.uint8(above - int(lower))


@inner
def _encode_levels(x: np.ndarray, codes: np.ndarray) -> np.float32:
    """Codes of x[32], and the step that errs least for them, weighed by the squares of x."""
    largest = _first_largest(x, False)
    if abs(largest) < _LEAST:
        _nearest(x, np.float32(0), codes)
        return np.float32(0)
    _nearest(x, _inverse(np.float32(largest / LEVELS[0])), codes)
    of_x, of_levels = np.float32(0), np.float32(0)
    for i in range(BLOCK):
        level = LEVELS[codes[i]]
        weighed = np.float32(np.float32(x[i] * x[i]) * level)
        of_x = np.float32(of_x + np.float32(weighed * x[i]))
        of_levels = np.float32(of_levels + np.float32(weighed * level))
    return np.float32(of_x / of_levels)


@inner
def _encode_nibbles_row(
    x: np.ndarray,
    coding: BlockCoding,
    scratch: np.ndarray,
    codes: np.ndarray,
    high: np.ndarray,
    d: np.ndarray,
    m: np.ndarray,
) -> None:
    _, five, minimum, keep_sign, uneven = coding
    levels = np.float32(32) if five else np.float32(16)
    largest = np.int32(31) if five else np.int32(15)
    middle = np.float32(levels * np.float32(0.5))
    for b in range(d.size):
        part = x[b * BLOCK : (b + 1) * BLOCK]
        if minimum:
            low, top = _extent(part)
            step = np.float32(np.float32(top - low) / np.float32(levels - np.float32(1)))
            m[b] = half.from_f32(half.limited(low))
            _floors(part, low, _inverse(step), np.float32(0.5), largest, scratch)
        elif uneven:
            step = _encode_levels(part, scratch)
        else:
            step = np.float32(_first_largest(part, keep_sign) / -middle)
            _floors(part, np.float32(0), _inverse(step), np.float32(middle + np.float32(0.5)), largest, scratch)
        d[b] = half.from_f32(half.limited(step))
        _pack(scratch, five, codes[b * (BLOCK // 2) :], high[b:])


@inner
def _decode_bytes_row(codes: np.ndarray, d: np.ndarray, values: np.ndarray) -> None:
    for b in range(d.size):
        step = half.to_f32(d[b])
        for i in range(b * BLOCK, (b + 1) * BLOCK):
            values[i] = np.float32(np.float32(codes[i]) * step)


@inner
def _decode_nibbles_row(
    codes: np.ndarray, high: np.ndarray, d: np.ndarray, m: np.ndarray, coding: BlockCoding, values: np.ndarray
) -> None:
    _, five, minimum, _, uneven = coding
    # two axes and no slices: a slice for each block takes longer than its arithmetic
    packed, decoded = codes.reshape(-1, BLOCK // 2), values.reshape(-1, BLOCK)
    middle = np.int32(0) if minimum else np.int32(16) if five else np.int32(8)
    for b in range(d.size):
        step = half.to_f32(d[b])
        low = half.to_f32(m[b]) if minimum else np.float32(0)
        word = np.uint32(high[b]) if five else np.uint32(0)
        for j in range(BLOCK // 2):
            first = np.int32(packed[b, j] & np.uint8(0xF))
            second = np.int32(packed[b, j] >> np.uint8(4))
            if five:
                first |= np.int32(np.uint32(np.uint32(word >> np.uint32(j)) & np.uint32(1)) << np.uint32(4))
                second |= np.int32(np.uint32(np.uint32(word >> np.uint32(j + 16)) & np.uint32(1)) << np.uint32(4))
            lower = np.float32((LEVELS[first] if uneven else np.float32(first - middle)) * step)
            upper = np.float32((LEVELS[second] if uneven else np.float32(second - middle)) * step)
            decoded[b, j] = np.float32(lower + low) if minimum else lower
            decoded[b, j + BLOCK // 2] = np.float32(upper + low) if minimum else upper


@inner
def _narrow(values: np.ndarray, bits: np.ndarray) -> None:
    for i in range(bits.size):
        bits[i] = half.from_f32(half.limited(values[i]))


@kernel
def _quantize_bytes(bits: np.ndarray, rotation: RotatedRuns, even: bool, codes: np.ndarray, d: np.ndarray) -> None:
    """FP16 patterns bits[n, channels] -> codes int8[n, channels], patterns d[n, blocks]."""
    for piece in prange(n_pieces(bits)):
        values, work = np.empty(bits.shape[1], np.float32), np.empty(bits.shape[1], np.float32)
        for row in rows_of(piece, bits):
            half.widen(bits[row], values)
            _rotate(values, rotation, work)
            _encode_bytes_row(values, even, codes[row], d[row])


@kernel
def _quantize_nibbles(
    bits: np.ndarray,
    rotation: RotatedRuns,
    coding: BlockCoding,
    codes: np.ndarray,
    high: np.ndarray,
    d: np.ndarray,
    m: np.ndarray,
) -> None:
    """FP16 patterns bits[n, channels] -> codes[n, channels / 2], high[n, blocks] of five bits, patterns d, m."""
    for piece in prange(n_pieces(bits)):
        values, work = np.empty(bits.shape[1], np.float32), np.empty(bits.shape[1], np.float32)
        scratch = np.empty(BLOCK, np.uint8)
        for row in rows_of(piece, bits):
            half.widen(bits[row], values)
            _rotate(values, rotation, work)
            _encode_nibbles_row(values, coding, scratch, codes[row], high[row], d[row], m[row])


@kernel
def _dequantize_bytes(codes: np.ndarray, d: np.ndarray, rotation: RotatedRuns, bits: np.ndarray) -> None:
    """The reverse of `_quantize_bytes`."""
    for piece in prange(n_pieces(bits)):
        values, work = np.empty(bits.shape[1], np.float32), np.empty(bits.shape[1], np.float32)
        for row in rows_of(piece, bits):
            _decode_bytes_row(codes[row], d[row], values)
            _rotate(values, rotation, work)
            _narrow(values, bits[row])


@kernel
def _dequantize_nibbles(
    codes: np.ndarray,
    high: np.ndarray,
    d: np.ndarray,
    m: np.ndarray,
    rotation: RotatedRuns,
    coding: BlockCoding,
    bits: np.ndarray,
) -> None:
    """The reverse of `_quantize_nibbles`."""
    for piece in prange(n_pieces(bits)):
        values, work = np.empty(bits.shape[1], np.float32), np.empty(bits.shape[1], np.float32)
        for row in rows_of(piece, bits):
            _decode_nibbles_row(codes[row], high[row], d[row], m[row], coding, values)
            _rotate(values, rotation, work)
            _narrow(values, bits[row])


def _check_code(name: str, code: str) -> None:
    check_choice("type", name, tuple(TYPES))
    check_choice("code", code, CODES)
    if code == "avx2" and name != "q8_0":
        raise ValueError(f"code = 'avx2': is for q8_0, the others have 'ggml' and 'gguf': type is {name}")
    if code == "gguf" and GGML_TYPES[name].levels:  # type: ignore[index]
        raise ValueError(f"code = 'gguf': the package decodes {name} alone, 'ggml' has its code")


@dataclass(frozen=True)
class GGML(RowMethod):
    """A cache type of llama.cpp: blocks of 32 channels of a token, head_dim a multiple of 32.

    q8_0: d = absmax / 127, code = x * (1 / d) rounded half away from zero. q4_0, q5_0: d = v / -8 or v / -16 for the
    first element v of largest magnitude, code = min(floor(x * (1 / d) + 8.5), 15) or (16.5, 31): v is exact, its
    opposite clipped. q4_1, q5_1: d = (max - min) / 15 or 31, code = min(floor((x - min) * (1 / d) + 0.5), 15 or 31).
    iq4_nl: codes of the LEVELS nearest to x * (-127 / v), ties up; d = sum(x^3 level) / sum(x^2 level^2) in the order
    of the channels. Decoded d * code, d * (code - 8 or 16), d * code + m, d * level in float32, here rounded to FP16
    within +-65504.

    `rotated`: keys or values, whose runs of channels are rotated before they are quantized and after they are decoded,
    as llama.cpp does with every quantized cache (src/llama-kv-cache.cpp and llama-graph.cpp since pull request 21038 of
    April 2026; LLAMA_ATTN_ROT_DISABLE turns it off); "": as they are. `rotated_run` has the lengths. It rotates queries
    and the attention output in place of what is decoded, which is the same but for rounding.

    `code` says whose code decides where implementations differ: "ggml", the portable C code; "gguf", the Python
    package (the sign of d in a block of zeros that begins with -0); "avx2", q8_0 of the CPU backend on x86 (127 /
    absmax, ties to even).

    Buffers: `codes` int8 [rows, channels], or uint8 [rows, channels / 2], of each block code j in the low nibble of
    byte j and code j + 16 in the high one; `high` uint32 [rows, blocks], bit j the fifth bit of code j; `d`, `m`
    float16 [rows, blocks]. `blocks` gives them in ggml's order. Source: ggml 0.25.3, ggml-quants.c; gguf 0.19.0.
    """

    type: Type = "q8_0"
    code: Code = "ggml"
    rotated: Side = ""

    def __post_init__(self) -> None:
        _check_code(self.type, self.code)
        check_choice("rotated", self.rotated, ("", "key", "value"))

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        if channels // n_heads % BLOCK:
            raise ValueError(
                f"head_dim = {channels // n_heads}: must be a multiple of {BLOCK} for {self.type} (ggml's blocks)"
            )
        bits, minimum = TYPES[self.type]
        n_blocks = channels // BLOCK
        dtype, items = (np.int8, channels) if bits == 8 else (np.uint8, channels // 2)
        columns = [
            BufferColumn("codes", dtype=dtype, items=items, part="payload"),
            BufferColumn("d", dtype=np.float16, items=n_blocks, part="scales"),
        ]
        if bits == 5:
            columns.append(BufferColumn("high", dtype=np.uint32, items=n_blocks, part="payload"))
        if minimum:
            columns.append(BufferColumn("m", dtype=np.float16, items=n_blocks, part="zero_points"))
        return tuple(columns)

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> None:
        codes, coding = buffers["codes"], _coding(self.type, self.code)
        rotation = _rotation(rotated_run(self.rotated, bits.shape[1] // n_heads))
        if coding.eight:
            _quantize_bytes(bits, rotation, coding.option, codes, buffers["d"].view(np.uint16))
        else:
            _quantize_nibbles(bits, rotation, coding, codes, *_all(buffers))

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        coding = _coding(self.type, self.code)
        rotation = _rotation(rotated_run(self.rotated, bits.shape[1] // n_heads))
        if coding.eight:
            _dequantize_bytes(buffers["codes"], buffers["d"].view(np.uint16), rotation, bits)
        else:
            _dequantize_nibbles(buffers["codes"], *_all(buffers), rotation, coding, bits)

    def blocks(self, packed: Packed) -> np.ndarray:
        """The bytes as llama.cpp keeps them: uint8 [rows, blocks * bytes of a block].

        packed: What `quantize` of this method gave.
        """
        n_rows, n_blocks = packed.buffers["d"].shape
        stored = [packed.buffers[name] for name in ("d", "m", "high", "codes") if name in packed.buffers]
        parts = [np.ascontiguousarray(buffer).view(np.uint8).reshape(n_rows, n_blocks, -1) for buffer in stored]
        return np.concatenate(parts, axis=2).reshape(n_rows, -1)


def _all(buffers: Buffers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """High bits, patterns of d and of m; what a type does not store is never read."""
    d = buffers["d"].view(np.uint16)
    high = buffers["high"] if "high" in buffers else np.empty(d.shape, np.uint32)
    return high, d, buffers["m"].view(np.uint16) if "m" in buffers else d
