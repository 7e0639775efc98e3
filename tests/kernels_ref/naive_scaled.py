"""NVFP4 and MX in plain Python, from the rules: one block at a time, codes by search over all values of a format."""

import math

import numpy as np

import naive_minifloat
from naive_minifloat import nearest

F32 = np.float32
BLOCK = {"mxfp4": 32, "mxfp8": 32, "fp4_mx_block16": 16}


def value(code, fmt):
    """float32 of a code."""
    sign = naive_minifloat.SIGN[fmt]
    magnitude = F32(float(naive_minifloat.FORMATS[fmt][code & (sign - 1)]))
    return -magnitude if code & sign else magnitude


def reciprocal(v):
    """1 / v, nothing subnormal in or out."""
    smallest = F32(2.0**-126)
    v = F32(0) if v < smallest else v
    found = F32(1) / v
    return F32(0) if found < smallest else found


def candidate(x, g, m):
    """vLLM's kernel with the largest magnitude at code m: (E4M3 scale, codes, sum of squared errors by pairs)."""
    scale = nearest(min(F32(1) / g * (np.abs(x).max() * reciprocal(F32(m))), F32(448)), "e4m3")
    of_block = value(scale, "e4m3")
    factor = reciprocal(of_block * reciprocal(F32(1) / g)) if of_block else F32(0)
    codes, error = [nearest(min(max(one * factor, F32(-6)), F32(6)), "e2m1") for one in x], F32(0)
    back = reciprocal(factor) if factor else F32(0)
    lost = [value(code, "e2m1") * back - one if factor else one for code, one in zip(codes, x, strict=True)]
    for a, b in zip(lost[::2], lost[1::2], strict=True):
        error = error + (a * a + b * b)
    return scale, codes, error


def nvfp4_block(x, g, code):
    """(E4M3 scale, E2M1 codes) of float32 x[16] with FP32 factor g."""
    if code == "4over6":
        six, four = candidate(x, g, 6), candidate(x, g, 4)
        return four[:2] if four[2] < six[2] else six[:2]
    if code == "vllm":
        return candidate(x, g, 6)[:2]
    largest = np.abs(x).max()
    if code == "flashinfer":
        scale = nearest(min(largest / (F32(6) * g), F32(448)), "e4m3") if largest else 0
        of_block = value(scale, "e4m3")
        factor = F32(1) / (of_block * g) if of_block else F32(0)
    elif code == "torchao":
        scale = nearest(min(max(largest / F32(6) / g, F32(2.0**-6)), F32(448)), "e4m3")
        factor = F32(1) / g / value(scale, "e4m3")
    elif code == "torchao_one_level":
        scale = nearest(min(max(largest / F32(6), F32(2.0**-6)), F32(448)), "e4m3")
        factor = F32(1) / value(scale, "e4m3")
    elif code == "vllmref":  # its factor is the reciprocal of the others'
        scale = nearest(min(g * (largest * (F32(1) / F32(6))), F32(448)), "e4m3")
        product = value(scale, "e4m3") * (F32(1) / g)
        y = [one * (F32(1) / (product if product else F32(1e8))) for one in x]
        codes = [nearest(min(max(one, F32(-6)), F32(6)), "e2m1") for one in y]
        return scale, [c if one < 0 else c & 7 for c, one in zip(codes, y, strict=True)]
    else:
        quotient = largest / (F32(6) * g)
        scale = nearest(min(max(quotient, F32(2.0**-9)) if quotient else F32(1), F32(448)), "e4m3")
        divisor = value(scale, "e4m3") * g
        codes = [nearest(min(max(one / divisor, F32(-6)), F32(6)), "e2m1") for one in x]
        return scale, [c & 7 if one >= 0 else c for c, one in zip(codes, x, strict=True)]
    return scale, [nearest(min(max(one * factor, F32(-6)), F32(6)), "e2m1") for one in x]


def nvfp4_rows(x, g, code):
    """Codes, scales and float32 values of x [n, channels] with FP32 factor g."""

    def decoded(scale, element):
        of_block = value(scale, "e4m3")
        return value(element, "e2m1") * (of_block / g if code == "vllmref" else of_block * g)

    codes, scales, values = rows(x, 16, lambda part: nvfp4_block(part, g, code), decoded)
    return codes, scales, values + F32(0) if code == "modelopt" else values


def mx_rows(x, name, rule):
    """Codes, scales and float32 values of x [n, channels]."""
    fmt = "e4m3" if name == "mxfp8" else "e2m1"

    def decoded(scale, element):
        return value(element, fmt) * F32(2.0 ** (scale - 127))

    return rows(x, BLOCK[name], lambda part: mx_block(part, name, rule), decoded)


def log2(v):
    """The nearest float32 of the logarithm."""
    return float(F32(math.log2(v))) if v else -math.inf


def mx_block(x, name, rule):
    """(E8M0 byte, codes) of one block."""
    largest, fmt = np.abs(x).max(), "e4m3" if name == "mxfp8" else "e2m1"
    top, p, bits = (F32(448), 8, 3) if name == "mxfp8" else (F32(6), 2, 1)
    if rule in ("floor", "ceil", "even"):
        if rule == "even" and largest:
            part, exponent = math.frexp(float(largest))
            largest = F32(math.floor(part * 2 ** (bits + 1) + 0.5) * 2.0 ** (exponent - bits - 1))
        part, exponent = math.frexp(float(largest))  # part in [0.5, 1)
        byte = exponent - 1 - p + (rule == "ceil" and part != 0.5) + 127 if largest else 0
    else:
        if name == "fp4_mx_block16":
            quotient = max(largest / top, F32(1e-10))
        else:
            quotient = max(largest, F32({"sglang": 1e-30, "vllm": 2.0**-126}.get(rule, 0))) / top
        byte = math.ceil(log2(quotient)) + 127 if quotient else 0
    byte = max(byte, 0)
    scale = 2.0 ** (byte - 127)
    if byte == 0:
        scale = {"rceil": 1.0, "vllm": 2.0**-127}.get(rule, 2.0**-126)
    y = [F32(float(one) / scale) for one in x]
    if name == "fp4_mx_block16":
        return byte, [nearest(one, fmt, "away") if one < 0 else nearest(one, fmt, "away") & 7 for one in y]
    return byte, [nearest(one, fmt) for one in y]


def rows(x, block, encode, decode):
    """Codes, scales and float32 values of x [n, channels] by functions of one block."""
    codes, scales, values = [], [], []
    for row in x.astype(F32):
        found = [encode(row[i : i + block]) for i in range(0, row.size, block)]
        scales.append([scale for scale, _ in found])
        codes.append([code for _, part in found for code in part])
        values.append([decode(scale, code) for scale, part in found for code in part])
    return np.array(codes, np.uint8), np.array(scales, np.uint8), np.array(values, F32)
