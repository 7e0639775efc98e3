"""Atom, QServe, Tender, Quanto and KVQuant in plain numpy, from their rules; numpy rounds every FP16 operation once."""

import numpy as np

F16, F32 = np.float16, np.float32
LARGEST = F16(65504)


def limited(values):
    """FP16 values with infinities as the largest finite value."""
    return np.clip(values, -LARGEST, LARGEST).astype(F16)


def atom_vector(x):
    """(codes, scale, zero, decoded) of one group."""
    extent = limited(x.max() - x.min())
    scale = F16(F32(max(extent, F16(1e-5))) / F32(15))
    zero = np.clip(np.rint(-(x.min() + F16(0)) / scale), 0, 15)
    codes = np.clip(np.rint(x / scale).astype(F32) + F32(zero), 0, 15)
    return codes, scale, F16(zero), limited((codes - F32(zero)) * F32(scale))


def qserve_head_vector(x):
    low, high = F32(x.min()) + F32(0), F32(x.max()) + F32(0)
    scale = F16(F32(high - low) / F32(15))
    if not scale:
        return np.zeros(x.shape), F16(1), F16(-low), np.full(x.shape, F16(low))
    zero = F16(F32(F32(-15) * low) / F32(high - low))
    codes = np.clip(np.rint(x.astype(F32) * (F32(1) / F32(scale)) + F32(zero)), 0, 15)
    return codes, scale, zero, limited((codes.astype(F32) - F32(zero)) * F32(scale))


def qserve_artifact_vector(x):
    low = x.min() + F16(0)
    extent = limited(x.max() - x.min())
    factor = F16(F32(F16(1) / extent) * F32(15))
    if not np.isfinite(factor):
        return np.zeros(x.shape), F16(1), low, np.full(x.shape, low)
    offset = low * factor
    codes = np.clip(np.rint(factor * x - offset), 0, 15).astype(F16)
    return codes, factor, offset, limited((codes + offset) / factor)


def by_group(rule, x, n_heads, group):
    """(codes, scale, zero, decoded) of x [tokens, channels]: `rule` for every group of channels inside a head."""
    head_dim = x.shape[1] // n_heads
    starts = [head * head_dim + at for head in range(n_heads) for at in range(0, head_dim, group)]
    stops = [*starts[1:], x.shape[1]]
    rows = [[rule(row[start:stop]) for start, stop in zip(starts, stops, strict=True)] for row in x]
    scale, zero = (np.array([[found[i] for found in row] for row in rows], F16) for i in (1, 2))
    codes, decoded = (np.array([np.concatenate([found[i] for found in row]) for row in rows]) for i in (0, 3))
    return codes.astype(int), scale, zero, decoded.astype(F16)


def tender_codes(values, scale):
    codes = np.clip(np.rint(values.astype(F32) / scale.astype(F32)), -8, 7)
    return np.where(scale > 0, codes, 0).astype(int)


def tender_key(x, n_heads):
    """(codes, scale per token and head, centre per channel, decoded) of x [tokens, channels], one sequence."""
    centre = limited(limited(x.max(axis=0) + x.min(axis=0)) / F16(2))
    moved = (x - centre).reshape(len(x), n_heads, -1)
    scale = (np.abs(moved).max(axis=2).astype(F32) / F32(7)).astype(F16)
    codes = tender_codes(moved, scale[:, :, None])
    decoded = limited((codes * scale[:, :, None].astype(F32)).astype(F32))
    return codes.reshape(x.shape), scale, centre, limited(decoded.reshape(x.shape) + centre)


def tender_value(x):
    scale = (np.abs(x).max(axis=0).astype(F32) / F32(7)).astype(F16)
    codes = tender_codes(x, scale)
    return codes, scale, limited(codes.astype(F32) * scale.astype(F32))


def quanto(x, bits, group, axis):
    """(codes, scale, shift, decoded) of groups, x [batch, heads, tokens, head_dim]."""
    lanes = x.reshape(-1, group) if axis == 0 else x.reshape(-1, x.shape[-1]).T.reshape(-1, group)
    low = lanes.min(axis=1, keepdims=True)
    scale = (limited(lanes.max(axis=1, keepdims=True) - low).astype(F32) / F32(2**bits - 1)).astype(F16)
    codes = np.clip(np.rint(limited(limited(lanes - low) / scale)), 0, 2**bits - 1)
    codes = np.where(scale > 0, codes, 0).astype(int)
    decoded = limited(limited(scale * codes.astype(F16)) + low)
    back = decoded if axis == 0 else decoded.reshape(x.shape[-1], -1).T
    return codes, scale[:, 0], -low[:, 0], np.ascontiguousarray(back).reshape(x.shape)


def kvquant(x, outlier, low, high, lut, exact):
    """(codes, decoded); low, high float16 columns or rows, `exact`: parameters in float32 (values)."""
    step = F32 if exact else F16
    low, high = low.astype(step), high.astype(step)
    wide = x.astype(F32)
    if lut is None:
        factor = ((step(1) / (high - low)).astype(F32) * F32(15)).astype(step)
        offset = (low * factor).astype(F32)
        factor = factor.astype(F32)
        codes = np.clip(np.rint(factor * np.where(outlier, F32(0), wide) - offset), 0, 15)
        codes = np.where(np.isfinite(factor), codes, 0).astype(int)
        decoded = (codes.astype(F32) + offset) / factor
    else:
        lut = np.array(lut, F32)
        centre, half_range = ((high + low) / step(2)).astype(F32), ((high - low) / step(2)).astype(F32)
        scaled = np.where(outlier, F32(0), wide - centre) / half_range
        codes = np.abs(scaled[..., None] - lut).argmin(axis=-1)
        decoded = lut[codes] * half_range + centre
    decoded = limited(np.nan_to_num(decoded, nan=0, posinf=0, neginf=0).astype(F16))
    return codes, np.where(outlier, x, decoded)
