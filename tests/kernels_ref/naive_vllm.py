"""vLLM's cache formats in plain Python, from the rules: one head at a time, codes as Python integers."""

import struct
from functools import cache

import numpy as np

F32 = np.float32
#: value of the E4M3 codes 0 to 0x7E
E4M3 = [m / 8 * 2**-6 if e == 0 else (1 + m / 8) * 2 ** (e - 7) for e in range(16) for m in range(8)][:-1]
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def nearest(value, values, sign):
    """Code of the nearest of ascending values, ties to the even code, `sign` added for what is below zero."""
    size = min(abs(float(value)), values[-1])
    code = min(range(len(values)), key=lambda i: (abs(values[i] - size), i % 2))
    return code + (sign if np.signbit(value) else 0)


def e4m3(value):
    return nearest(value, E4M3, 0x80)


def e4m3_value(code):
    return F32(-E4M3[code - 128] if code >= 128 else E4M3[code])


def e2m1_value(code):
    return F32(-E2M1[code - 8] if code >= 8 else E2M1[code])


def away(value):
    return int(value + F32(0.5 if value >= 0 else -0.5))


def clip(value, low, high):
    return max(low, min(value, high))


def f16(value):
    """Float32 rounded to FP16 within +-65504."""
    return np.float16(clip(float(value), -65504.0, 65504.0))


def butterflies(x):
    """Walsh-Hadamard transform of a list of float32, natural order, steps of 1, 2, 4, .."""
    x, step = list(x), 1
    while step < len(x):
        for start in range(0, len(x), 2 * step):
            for i in range(start, start + step):
                x[i], x[i + step] = F32(x[i] + x[i + step]), F32(x[i] - x[i + step])
        step *= 2
    return x


@cache
def signs(n):
    """+-1 as torch's CPU generator seeded 0x9E3779B9 draws them: the Mersenne Twister of 1998 written out."""
    state = [0x9E3779B9]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + i) & 0xFFFFFFFF)
    for i in range(624):
        y = (state[i] & 0x80000000) | (state[(i + 1) % 624] & 0x7FFFFFFF)
        state[i] = state[(i + 397) % 624] ^ (y >> 1) ^ (0x9908B0DF if y & 1 else 0)
    found = []
    for y in state[:n]:
        y ^= y >> 11
        y ^= y << 7 & 0x9D2C5680
        y ^= y << 15 & 0xEFC60000
        y ^= y >> 18
        found.append(-1 if y >> 23 & 1 else 1)
    return found


def bf16(value):
    """Float32 rounded to BF16, ties to even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return F32(struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0])


#: what rotated values are rounded to, by the type of the keys and values
KEPT = {"fp16": lambda value: F32(f16(value)), "bf16": bf16, "fp32": F32}


def block_of(head_dim):
    """The largest power of two that divides it."""
    return head_dim & -head_dim


def rotated(x, kept="fp16"):
    """A head of float32 values in the basis that int4 quantizes."""
    block, turned = block_of(len(x)), []
    own = signs(block)
    for start in range(0, len(x), block):
        run = butterflies([F32(v * s) for v, s in zip(x[start : start + block], own, strict=True)])
        turned += [KEPT[kept](v) for v in run]
    return turned


def rotated_back(values):
    """`rotated` undone, nothing rounded."""
    block, seen = block_of(len(values)), []
    own = signs(block)
    for start in range(0, len(values), block):
        run = butterflies(values[start : start + block])
        seen += [F32(F32(v * s) / F32(block)) for v, s in zip(run, own, strict=True)]
    return seen


def int4_of(turned):
    """(bytes of one side of a slot, decoded float32 in the rotated basis) of a head that is rotated."""
    low, high = min(turned), max(turned)
    scale = max(F32(F32(high - low) / F32(15)), F32(1e-6))
    zero = clip(away(F32(-low / scale)), 0, 15)
    inverse = F32(1) / scale
    codes = [clip(away(F32(F32(v * inverse) + F32(zero))), 0, 15) for v in turned]
    pattern = struct.unpack("<I", struct.pack("<f", scale))[0] & 0xFFFFFFF0
    kept = F32(struct.unpack("<f", struct.pack("<I", pattern))[0])
    data = bytes(codes[i] | codes[i + 1] << 4 for i in range(0, len(turned), 2)) + struct.pack("<I", pattern | zero)
    return data, [F32(F32(c - zero) * kept) for c in codes]


def per_head(x, fmt, kept="fp16"):
    """(bytes of one side of a slot, decoded float32) of one head of float32 values."""
    if fmt != "int4":
        top = {"int8": 127, "fp8": 448}[fmt]
        scale = max(F32(max(abs(v) for v in x) / F32(top)), F32(1e-6))
        inverse = F32(1) / scale
        if fmt == "int8":
            codes = [clip(away(F32(v * inverse)), -128, 127) for v in x]
            return struct.pack(f"<{len(x)}bf", *codes, scale), [F32(F32(c) * scale) for c in codes]
        codes = [e4m3(F32(v * inverse)) for v in x]
        return bytes(codes) + struct.pack("<f", scale), [F32(e4m3_value(c) * scale) for c in codes]
    data, values = int4_of(rotated(x, kept))
    return data, rotated_back(values)


def packed(codes, bits):
    """Codes, the first in the lowest bits."""
    number = sum(c << bits * i for i, c in enumerate(codes))
    return number.to_bytes(len(codes) * bits // 8, "little")


def unpacked(data, bits):
    """The codes of `packed`."""
    number = int.from_bytes(data, "little")
    return [number >> bits * i & (2**bits - 1) for i in range(8 * len(data) // bits)]


def turbo_values(data, bits):
    """Decoded FP16 of the bytes of one head's value."""
    step, start = map(F32, np.frombuffer(data[-4:], np.float16))
    return [f16(F32(F32(F32(c) * step) + start)) for c in unpacked(data[:-4], bits)]


def turbo_indices(rotated_unit, midpoints):
    """Indices of a rotated unit vector: how many midpoints are at or below each."""
    return [sum(bool(m <= y) for m in midpoints) for y in rotated_unit]


def turbo_turned(data, bits, centroids):
    """Decoded FP16, in the rotated basis, of the bytes of one head's key."""
    picked = [centroids[c] for c in unpacked(data[:-2], bits)]
    length = np.sqrt(F32(F32(sum(float(F32(c * c)) for c in picked)) + F32(1e-16)))
    kept = F32(np.frombuffer(data[-2:], np.float16)[0])
    return [f16(F32(kept * F32(c * F32(F32(1) / length)))) for c in picked]


def turbo_value(x, bits):
    """(bytes, decoded FP16) of one head's value."""
    low, high = min(x), max(x)
    if low == 0:
        low = F32(-0.0) if any(v == 0 and np.signbit(v) for v in x) else F32(0)
    top = F32(2**bits - 1)
    scale = max(F32(F32(high - low) / top), F32(1e-8))
    codes = [clip(int(F32(F32(F32(v - low) / scale) + F32(0.5))), 0, int(top)) for v in x]
    data = packed(codes, bits) + f16(scale).tobytes() + f16(low).tobytes()
    return data, turbo_values(data, bits)


def turbo_key(x, bits, centroids, midpoints):
    """(bytes, decoded FP16 in the rotated basis, decoded float32 rotated back) of one head's key."""
    norm = F32(np.sqrt(sum(float(v) ** 2 for v in x)))
    units = [F32(v / F32(norm + F32(1e-8))) for v in x]
    factor = F32(1 / np.sqrt(len(x)))
    codes = turbo_indices([F32(y * factor) for y in butterflies(units)], midpoints)
    data = packed(codes, bits) + f16(norm).tobytes()
    seen = turbo_turned(data, bits, centroids)
    back = [F32(v * factor) for v in butterflies([F32(v) for v in seen])]
    return data, seen, back


def latent_fp8(x, rope):
    """(bytes, decoded float32 latent) of a token of 576 values, whose RoPE is stored as its 64 patterns."""
    codes, scales, seen = [], [], []
    for start in range(0, 512, 128):
        part = [F32(v) for v in x[start : start + 128]]
        scale = F32(2.0 ** np.ceil(np.log2(max(F32(max(map(abs, part)) / F32(448)), F32(1e-4)))))
        own = [e4m3(F32(v / scale)) for v in part]
        codes, scales = codes + own, [*scales, scale]
        seen += [F32(e4m3_value(c) * scale) for c in own]
    return bytes(codes) + struct.pack("<4f", *scales) + rope.tobytes(), seen


def latent_nvfp4(x):
    """(bytes, decoded float32) of a token of 576 values."""
    codes, scales, seen = [], [0] * 32, []
    for block in range(32):
        part = [F32(v) for v in x[16 * block : 16 * block + 16]]
        code = e4m3(max(F32(max(map(abs, part)) / F32(6)), F32(2**-9)))
        scales[8 * (block % 4) + block // 4] = code
        inverse = F32(1) / e4m3_value(code)
        own = [nearest(F32(v * inverse), E2M1, 8) for v in part]
        codes += [own[i] | own[i + 1] << 4 for i in range(0, 16, 2)]
        seen += [F32(e2m1_value(c) * e4m3_value(code)) for c in own]  # FP16 and BF16 hold these products exactly
    rope = [e4m3(F32(v)) for v in x[512:]]
    return bytes(codes) + bytes(rope) + bytes(scales), [*seen, *map(e4m3_value, rope)]
