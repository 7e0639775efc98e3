"""Row methods in plain numpy, straight from their rules: one rounding after the other, no tables, no packing tricks."""

from itertools import pairwise

import numpy as np

F32 = np.float32

#: QLoRA's 16 values
NF4_VALUES = np.array(
    [
        *(-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1),
    ],
    F32,
)


def nf4_codes(block, absmax):
    """Codes of one block, by the rule in float32."""
    reciprocal = F32(1) / max(F32(absmax), F32(1e-38))
    with np.errstate(over="ignore"):
        scaled = np.clip(block.astype(F32) * reciprocal, F32(-1), F32(1))
    codes = np.zeros(block.shape, int)
    for low, high in pairwise(NF4_VALUES):
        codes += scaled > F32(low + high) / F32(2)
    return codes


def nf4(x, block):
    """(codes of every element, absmax per block, decoded) of x [tokens, channels]."""
    codes, absmax, decoded = [], [], []
    for row in x:
        parts = [row[i : i + block] for i in range(0, row.size, block)]
        scales = [np.abs(part).max() for part in parts]
        found = [nf4_codes(part, scale) for part, scale in zip(parts, scales, strict=True)]
        absmax.append(scales)
        codes.append(np.concatenate(found))
        decoded.append(
            np.concatenate([(NF4_VALUES[c] * F32(a)).astype(np.float16) for c, a in zip(found, scales, strict=True)])
        )
    return np.array(codes), np.array(absmax, np.float16), np.array(decoded)


def integer_rows(x, levels):
    """(codes, absmax per row, decoded): absmax of the row on `levels`."""
    absmax = np.abs(x).max(axis=1).astype(F32)
    codes, decoded = np.zeros(x.shape, int), np.zeros(x.shape, np.float16)
    for i, (row, a) in enumerate(zip(x.astype(F32), absmax, strict=True)):
        if a:
            codes[i] = np.rint(row * F32(F32(levels) / a))
        decoded[i] = (codes[i].astype(F32) * a * (F32(1) / F32(levels))).astype(np.float16)
    return codes, absmax, decoded


def integer_tensor(x, levels, scale):
    """(codes, decoded) with one scale."""
    with np.errstate(over="ignore"):
        codes = np.clip(np.rint(x.astype(F32) / F32(scale)), -levels, levels).astype(int)
        return codes, (codes.astype(F32) * F32(scale)).astype(np.float16)


def nibbles(codes, high_first, pad):
    """4-bit codes [rows, channels] two a byte, one after the other."""
    rows = []
    for row in codes:
        row = [int(code) & 15 for code in row] + [pad] * (len(row) % 2)
        pairs = zip(row[::2], row[1::2], strict=True)
        rows.append([first << 4 | second if high_first else second << 4 | first for first, second in pairs])
    return np.array(rows, np.uint8)


def fp8_values(fmt):
    """Values of the 127 or 124 finite codes without sign, ascending, as Python floats."""
    mantissa_bits, bias, n = (3, 7, 0x7F) if fmt == "e4m3" else (2, 15, 0x7C)
    values = []
    for code in range(n):
        exponent, mantissa = code >> mantissa_bits, code & (2**mantissa_bits - 1)
        fraction = mantissa / 2**mantissa_bits
        values.append((1 + fraction) * 2.0 ** (exponent - bias) if exponent else fraction * 2.0 ** (1 - bias))
    return values


def fp8_code(value, fmt, saturate):
    """Code of a finite float by searching the nearest value, ties to the even code."""
    values = fp8_values(fmt)
    beyond = 2 * values[-1] - values[-2]  # what would come next decides what rounds to too large
    sign = 0x80 if np.signbit(value) else 0
    magnitude = abs(float(value))
    best = min(range(len(values) + 1), key=lambda c: (abs(([*values, beyond])[c] - magnitude), c & 1))
    if best == len(values):
        best = best - 1 if saturate else best
    return sign | best
