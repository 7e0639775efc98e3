"""llama.cpp's cache types in plain numpy, from the rules: one block at a time, codes as Python integers."""

import struct

import numpy as np

F32 = np.float32
LEVELS = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]


def away(value):
    """Nearest integer, ties away from zero."""
    whole = int(value)
    rest = float(value) - whole
    return whole + (rest >= 0.5) - (rest <= -0.5)


def codes_of(x, name, code="ggml"):
    """(codes, step d, minimum m or None) of one block x, float32 [32], before d and m are rounded."""
    if name == "q8_0":
        largest = np.abs(x).max()
        if code == "avx2":
            inverse = F32(127) / largest if largest else F32(0)
            return [int(np.rint(value * inverse)) for value in x], largest / F32(127), None
        d = largest / F32(127)
        inverse = F32(1) / d if d else F32(0)
        return [away(value * inverse) for value in x], d, None
    if name == "iq4_nl":
        return with_levels(x)
    top = {"4": 15, "5": 31}[name[1]]
    if name.endswith("_1"):
        low, high = (next(value for value in x if value == end) for end in (x.min(), x.max()))
        d = (high - low) / F32(top)
        inverse = F32(1) / d if d else F32(0)
        return [min(int((value - low) * inverse + F32(0.5)), top) for value in x], d, low
    half = (top + 1) // 2
    first = next(value for value in x if abs(value) == np.abs(x).max())
    if first == 0 and code == "ggml":
        first = F32(0)
    d = first / F32(-half)
    inverse = F32(1) / d if d else F32(0)
    return [min(int(value * inverse + F32(half + 0.5)), top) for value in x], d, None


def with_levels(x):
    """(codes, d, None) of a block of iq4_nl: nearest levels, then the step of least squares weighed by x^2."""
    first = next(value for value in x if abs(value) == np.abs(x).max())
    inverse = F32(1) / (first / F32(-127)) if first else F32(0)
    scaled = [value * inverse for value in x]
    # the upper one of two that are as near
    codes = [min(range(16), key=lambda code: (abs(F32(LEVELS[code]) - value), -code)) for value in scaled]
    of_x = of_levels = F32(0)
    for value, code in zip(x, codes, strict=True):
        level = F32(LEVELS[code])
        of_x += value * value * level * value
        of_levels += value * value * level * level
    return codes, of_x / of_levels if first else F32(0), None


def turned(x, run):
    """Each run of channels of x [n, channels] by the Hadamard matrix over its root, in the order of butterflies."""
    out = x.astype(F32).reshape(-1, run) * (F32(1) / np.sqrt(F32(run)))
    apart = 1
    while apart < run:
        for start in range(0, run, 2 * apart):
            for i in range(start, start + apart):
                out[:, i], out[:, i + apart] = out[:, i] + out[:, i + apart], out[:, i] - out[:, i + apart]
        apart *= 2
    return out.reshape(x.shape)


def block(x, name, code="ggml"):
    """The bytes of one block."""
    codes, d, low = codes_of(x, name, code)
    found = np.float16(d.clip(-65504, 65504)).tobytes()
    found += b"" if low is None else np.float16(low.clip(-65504, 65504)).tobytes()
    if name == "q8_0":
        return found + struct.pack("32b", *codes)
    if name.startswith("q5"):
        found += struct.pack("<I", sum((c >> 4) << j for j, c in enumerate(codes)))
    return found + bytes((codes[j] & 15) | (codes[j + 16] & 15) << 4 for j in range(16))


def decoded(data, name):
    """float32 [32] of the bytes of one block."""
    d, rest = F32(np.frombuffer(data[:2], np.float16)[0]), data[2:]
    if name == "q8_0":
        return np.array([F32(c) * d for c in struct.unpack("32b", rest)], F32)
    low = None
    if name.endswith("_1"):
        low, rest = F32(np.frombuffer(rest[:2], np.float16)[0]), rest[2:]
    high = 0
    if name.startswith("q5"):
        high, rest = struct.unpack("<I", rest[:4])[0], rest[4:]
    codes = [byte & 15 for byte in rest] + [byte >> 4 for byte in rest]
    codes = [c | (high >> j & 1) << 4 for j, c in enumerate(codes)]
    if name == "iq4_nl":
        return np.array([F32(LEVELS[c]) * d for c in codes], F32)
    if low is not None:
        return np.array([F32(c) * d + low for c in codes], F32)
    middle = 8 if name == "q4_0" else 16
    return np.array([F32(c - middle) * d for c in codes], F32)


def rows(x, name, code="ggml"):
    """Blocks of x [n, channels] as uint8, and their values in float32."""
    wide = x.astype(F32)
    by_row = [[block(row[i : i + 32], name, code) for i in range(0, row.size, 32)] for row in wide]
    values = np.array([np.concatenate([decoded(data, name) for data in row]) for row in by_row])
    return np.array([np.frombuffer(b"".join(row), np.uint8) for row in by_row]), values
