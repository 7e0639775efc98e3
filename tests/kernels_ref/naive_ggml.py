"""llama.cpp's cache types in plain numpy, from the rules: one block at a time, codes as Python integers."""

import struct

import numpy as np

F32 = np.float32


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


def block(x, name, code="ggml"):
    """The bytes of one block."""
    codes, d, low = codes_of(x, name, code)
    found = np.float16(d).tobytes() + (b"" if low is None else np.float16(low).tobytes())
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
