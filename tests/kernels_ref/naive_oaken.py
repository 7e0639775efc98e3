"""Oaken written straight from its rules, element by element and tensor by tensor: slow twins of `kernels_ref.oaken`."""

import math

import numpy as np

F16, F32 = np.float16, np.float32
LARGEST = F32(65504)


def rne16(value):
    """A Python float as PyTorch makes an FP16 scalar of it: first FP32, then FP16."""
    return F16(F32(value))


def sat16(value):
    """A float32 rounded to FP16, the largest finite values instead of infinities."""
    with np.errstate(over="ignore"):
        return F16(min(max(F32(value), -LARGEST), LARGEST))


# thresholds -----------------------------------------------------------------------------------------------------------


def profile(runs, fracs):
    """lower[groups], upper[groups] (float64) of one layer and side from FP16 arrays, one a run: by sorting."""
    lower, upper = [], []
    for j in range(len(fracs)):
        acc = 0.0
        for frac in fracs[: j + 1]:
            acc += frac
        low, high = [], []
        for run in runs:
            v = np.sort(run.reshape(-1).astype(F32))
            last = F32(v.size - 1)
            high.append(float(v[math.ceil(F32(1 - acc / 2) * last)]))
            low.append(float(v[math.floor(F32(acc / 2) * last)]))
        lower.append(sum(low) / len(low))
        upper.append(sum(high) / len(high))
    return lower, upper


# paper mode -----------------------------------------------------------------------------------------------------------


def group_of(x, lower, upper):
    """(group, upper side) of an FP16 value: the outermost group whose closed interval it leaves (Oaken, Eq. 1)."""
    for j, (low, high) in enumerate(zip(lower, upper, strict=True)):
        if x < low:
            return j, False
        if x > high:
            return j, True
    return len(lower), not np.signbit(x)


def sparse_groups(n, dense):
    """Groups that are not dense, outermost first."""
    return [j for j in range(n) if j != dense]


def entry_bits(n, outlier_bits):
    """(group bits, sign bits, bytes) of a sparse entry."""
    group_bits = {2: 0, 3: 1, 4: 2, 5: 2}[n]
    sign_bits = outlier_bits - 4
    return group_bits, sign_bits, -(-(6 + group_bits + sign_bits) // 8)


def encode(x, lower, upper, dense=1, outlier_bits=5, outlier_code="magnitude"):
    """dict(dense, coo, counts, meta, group) of x [T, d] float16; lower, upper: n - 1 thresholds, outermost first."""
    lower, upper = [rne16(v) for v in lower], [rne16(v) for v in upper]
    n, (n_rows, d) = len(lower) + 1, x.shape
    signed = [j == dense or outlier_code == "signed" for j in range(n)]
    order = [dense, *sparse_groups(n, dense)]
    group_bits, sign_bits, entry_bytes = entry_bits(n, outlier_bits)
    out = {
        "dense": np.zeros((n_rows, -(-d // 2)), np.uint8),
        "counts": np.zeros((n_rows, -(-d // 64)), np.uint8),
        "meta": np.zeros((n_rows, 2 * n), F16),
        "group": np.zeros((n_rows, d), np.uint8),
    }
    coo = bytearray()
    for t in range(n_rows):
        placed = []
        for value in x[t]:
            j, up = group_of(value, lower, upper)
            shift = F32(0) if j == n - 1 else F32((upper if up else lower)[j])
            shifted = sat16(F32(value) - shift)
            placed.append((j, up, shifted if signed[j] else abs(shifted)))
        low, high = [F16(0)] * n, [F16(0)] * n
        for j in range(n):
            members = [v for k, _, v in placed if k == j]
            if members:
                low[j], high[j] = min(members) + F16(0), max(members) + F16(0)  # + 0: -0 becomes +0
        out["meta"][t] = [v for j in order for v in (low[j], high[j])]
        for i, (j, up, v) in enumerate(placed):
            size = F32(high[j]) - F32(low[j])
            code = 0
            levels = 15 if signed[j] or outlier_bits == 5 else 7
            if size > 0:
                code = int(min(max(np.rint((F32(v) - F32(low[j])) * (F32(levels) / size)), 0), levels))
            if levels == 7 and not up:
                code += 8
            out["dense"][t, i // 2] |= code << (4 * (i % 2))
            out["group"][t, i] = j
            if j != dense:
                out["counts"][t, i // 64] += 1
                number = sparse_groups(n, dense)[::-1].index(j)  # from the innermost outwards
                entry = (i % 64) | number << 6 | ((not up) << (6 + group_bits) if sign_bits else 0)
                coo += entry.to_bytes(entry_bytes, "little")
    out["coo"] = np.frombuffer(bytes(coo), np.uint8 if entry_bytes == 1 else "<u2")
    return out


def decode(packed, d, lower, upper, dense=1, outlier_bits=5, outlier_code="magnitude"):
    """float16 [T, d] from what `encode` gives (dense, coo, counts, meta)."""
    lower, upper = [rne16(v) for v in lower], [rne16(v) for v in upper]
    n, n_rows = len(lower) + 1, packed["dense"].shape[0]
    order = [dense, *sparse_groups(n, dense)]
    group_bits, sign_bits, _ = entry_bits(n, outlier_bits)
    y = np.zeros((n_rows, d), F16)
    at = 0
    for t in range(n_rows):
        where = {}
        for chunk, count in enumerate(packed["counts"][t]):
            for _ in range(count):
                entry = int(packed["coo"][at])
                at += 1
                number = entry >> 6 & (2**group_bits - 1)
                negative = bool(entry >> (6 + group_bits) & 1) if sign_bits else None
                where[64 * chunk + entry % 64] = sparse_groups(n, dense)[::-1][number], negative
        for i in range(d):
            code = int(packed["dense"][t, i // 2]) >> (4 * (i % 2)) & 15
            j, negative = where.get(i, (dense, None))
            low, high = (F32(v) for v in packed["meta"][t, 2 * order.index(j) :][:2])
            levels = 15
            if j != dense and outlier_bits == 4 and outlier_code == "magnitude":
                levels, negative, code = 7, code >= 8, code % 8
            v = F32(F32(F32(code) * ((high - low) / F32(levels))) + low)
            value = -v if negative else v
            if j < n - 1:  # signed: the side is the sign
                value += F32((lower if (v < 0 if negative is None else negative) else upper)[j])
            y[t, i] = sat16(value)
    assert at == packed["coo"].size
    return y


# artifact mode --------------------------------------------------------------------------------------------------------


def artifact(x, lower, upper, device="cpu", quantize_outlier=True, shift=True):
    """(dequantized, group) of x [..., d] float16 as the released code gives them; lower, upper: n thresholds."""
    with np.errstate(all="ignore"):
        return _artifact(x, lower, upper, device, quantize_outlier, shift)


def _nan_to_num(c, nan):
    return np.nan_to_num(c, nan=F16(nan), posinf=F16(65504), neginf=F16(-65504))


def _per_token(g, levels):
    low, high = g.min(-1, keepdims=True), g.max(-1, keepdims=True)
    q = (F16(1) / (high - low)) * F16(levels)
    o = low * q
    c = _nan_to_num(np.rint((q * g) - o), levels)
    return (c + o) / q


def _artifact(x, lower, upper, device, quantize_outlier, shift):
    n = len(lower)
    add_scalar = {"cpu": lambda a, s: a + rne16(s), "cuda": lambda a, s: F16(a.astype(F32) + F32(s))}[device]
    div_scalar = {
        "cpu": lambda a, s: F16(a.astype(F32) / F32(s)),
        "cuda": lambda a, s: F16(a.astype(F32) * (F32(1) / F32(s))),
    }[device]
    low16, high16 = [rne16(v) for v in lower], [rne16(v) for v in upper]
    group = np.full(x.shape, 255, np.uint8)
    for j in range(n):
        mask = np.ones(x.shape, bool)
        if j:
            mask &= (x > low16[j - 1]) & (x < high16[j - 1])
        if j < n - 1:
            mask &= (x <= low16[j]) | (x >= high16[j])
        group[mask] = j
    group[np.isnan(x)] = 255
    result = np.zeros(x.shape, F16)
    for j in range(n):
        mask = (group == j).astype(F16)
        g = x * mask
        if not quantize_outlier:
            out = _per_token(g, 15) if j == n - 2 else g
        elif j == n - 1:
            out = _per_token(g, 31)
        else:
            up, down = (g > 0).astype(F16), (g < 0).astype(F16)
            s = g
            if shift:
                a, b = g * up - high16[j], g * down - low16[j]
                s = a * up + b * down
            lowest, highest = float(s.min()), float(s.max())
            levels = 15 if j == n - 2 else 31
            q = levels / (highest - lowest)
            o = lowest * q
            scaled = F16(s.astype(F32) * F32(q))
            c = _nan_to_num(np.rint(add_scalar(scaled, -o)), levels)
            out = div_scalar(add_scalar(c, o), q)
            a, b = out * up, out * down
            if shift:
                a, b = (a + high16[j]) * up, (b + low16[j]) * down
            out = a + b
        result = result + out * mask
    return result, group
