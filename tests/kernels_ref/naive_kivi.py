"""KIVI and SinkQ in plain Python and numpy, straight from their rules: FP16 steps one by one, lists of tokens."""

from fractions import Fraction

import numpy as np

F16 = np.float16


def lowest(values):
    """The smallest value; of zeros the negative one."""
    return sorted(values, key=lambda v: (v, not np.signbit(v)))[0] if 0 in values else np.min(values)


def scale_and_min(values, bits, saturate=False):
    """FP16 scale and minimum of one group: numpy rounds every FP16 operation once."""
    low, high = lowest(values), np.max(values)
    with np.errstate(over="ignore"):
        extent = F16(high - low)
        if saturate and np.isinf(extent):
            extent = F16(65504)
        return F16(np.float32(extent) / np.float32(2**bits - 1)), low


def codes_of(x, scale, low, bits):
    """Codes of FP16 values x of one group; NaN becomes 0."""
    levels = 2**bits - 1
    with np.errstate(all="ignore"):
        q = (x - low) / scale
        return np.where(np.isnan(q), 0, np.rint(np.clip(q, 0, levels))).astype(int).tolist()


def decoded(codes, scale, low, saturate=False):
    """FP16 values of codes of one group."""
    with np.errstate(all="ignore"):
        product = np.asarray(codes, F16) * scale
        if saturate:
            product = np.minimum(product, F16(65504))
        found = product + low
        return np.minimum(found, F16(65504)) if saturate else found


def words_of(codes, bits):
    """Codes into 32-bit words, the first one lowest, the last word filled up with 0."""
    per_word = 32 // bits
    words = []
    for first in range(0, len(codes), per_word):
        word = 0
        for j, code in enumerate(codes[first : first + per_word]):
            word += code << (bits * j)
        words.append(word)
    return np.array(words, np.uint32).view(np.int32)


def groups_of(x, bits, group, saturate=False):
    """(words, scales, mins, decoded) of a run of elements, the last group shorter."""
    codes, scales, mins, values = [], [], [], []
    for first in range(0, len(x), group):
        part = x[first : first + group]
        scale, low = scale_and_min(part, bits, saturate)
        found = codes_of(part, scale, low, bits)
        codes += found
        scales.append(scale)
        mins.append(low)
        values.append(decoded(found, scale, low, saturate))
    if not codes:
        return words_of(codes, bits), np.array([], F16), np.array([], F16), np.array([], F16)
    return words_of(codes, bits), np.array(scales), np.array(mins), np.concatenate(values)


def core(x, side, bits, group, saturate=False):
    """Four arrays for x[tokens, channels] of one head: keys along the tokens, values along the channels."""
    runs = x.T if side == "key" else x
    found = [groups_of(run, bits, group, saturate) for run in runs]
    arrays = [np.array([f[i] for f in found]) for i in range(4)]
    if not found:
        return [np.zeros((0, 0), dtype) for dtype in (np.int32, F16, F16, F16)]
    return [array.T for array in arrays] if side == "key" else arrays


def kivi(x, side, bits, group, residual, saturate=False):
    """(packed tokens, recent tokens) of one head after appending one token after the other."""
    packed, buffer = [], []
    for token in x:
        buffer.append(token)
        if side == "key" and len(buffer) == (residual or group):
            packed, buffer = packed + buffer, []
        elif side == "value" and len(buffer) > residual:
            packed.append(buffer.pop(0))
    as_rows = [np.array(rows, F16).reshape(-1, x.shape[1]) for rows in (packed, buffer)]
    return core(as_rows[0], side, bits, group, saturate), as_rows[1]


def norm(row):
    return sum((abs(Fraction(float(v))) for v in row), Fraction(0))


def mean(rows):
    """Per channel: the exact sum, one division in double precision, rounded to float32, then to FP16."""
    sums = [float(sum(Fraction(float(v)) for v in column)) for column in rows.T]
    return np.array([F16(np.float32(np.float64(s) / np.float64(len(rows)))) for s in sums])


def sinkq(key, value, bits, group, residual, sinks, window):
    """State of one head after appending one token after the other: a dict of plain lists and arrays."""
    buffer, pool, evicted, stopped, n = [], [], [], False, 0
    packed = {"key": [], "value": []}
    for position in range(len(key)):
        buffer.append(position)
        if len(buffer) < group + residual:
            continue
        tokens, buffer = buffer[:group], buffer[group:]
        rows = {"key": key[tokens].copy(), "value": value[tokens].copy()}
        if not stopped:
            new = sorted(pool + tokens, key=lambda t: norm(key[t]))[:sinks]
            pushed = [t for t in pool if t not in new]
            if len(evicted) + len(pushed) > window:
                stopped = True
            else:
                evicted += pushed
                for side in rows:
                    instead = mean(rows[side])
                    for t in new:
                        if t in tokens:
                            rows[side][t - tokens[0]] = instead
                pool = new
        for side, made in rows.items():
            packed[side].append(core(made, side, bits, group))
        n += group
    seen = {}
    for side, x in (("key", key), ("value", value)):
        effective = [core_arrays[3] for core_arrays in packed[side]]
        seen[side] = np.concatenate([*effective, x[n:]]) if effective else x.copy()
        for t in pool + evicted:
            seen[side][t] = x[t]
    return {"pool": pool, "evicted": evicted, "stopped": stopped, "packed": packed, "seen": seen, "n_packed": n}
