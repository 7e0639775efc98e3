"""Another reading of Oaken's 4-bit outliers: a sign and a 3-bit magnitude in the dense matrix' four bits.

The paper (6.2, Table 3) says that 4-bit outliers keep entries at 8 bits, not where their sign is. `kernels_ref.Oaken`
stores a signed 4-bit code (two group bits leave none for a sign); here a value never changes its side.
"""

from typing import Any

import numpy as np

_LARGEST = np.float32(65504)


def decoded(x: np.ndarray, method: Any, levels: int) -> np.ndarray:
    """x, FP16 [batch, heads, tokens, head_dim], as it comes back: `method` (kernels_ref.Oaken) with outliers of a sign
    and a magnitude of `levels` steps; its dense group keeps 15. With 15 for both it is `method` with 5-bit outliers."""
    n_batch, n_heads, n_tokens, head_dim = x.shape
    flat = x.transpose(0, 2, 1, 3).reshape(-1, n_heads * head_dim).astype(np.float32)
    lower, upper = (
        np.array(side, np.float32).astype(np.float16).astype(np.float32) for side in (method.lower, method.upper)
    )
    n = lower.size + 1
    inside = [(flat >= low) & (flat <= high) for low, high in zip(lower, upper, strict=True)]
    group = np.sum(inside, axis=0)
    up = np.where(group < n - 1, flat > np.append(upper, 0)[group], ~np.signbit(flat))
    shift = np.where(up, np.append(upper, 0)[group], np.append(lower, 0)[group]).astype(np.float32)
    shifted = _half(flat - shift)
    values = np.empty_like(flat)
    for j in range(n):
        mine, is_dense = group == j, j == (method.dense or 2) - 1
        value = shifted if is_dense else np.abs(shifted)
        steps = np.float32(15 if is_dense else levels)
        low = np.where(mine, value, np.inf).min(axis=1, keepdims=True)
        size = np.where(mine, value, -np.inf).max(axis=1, keepdims=True) - low
        with np.errstate(divide="ignore", invalid="ignore"):  # rows without a member, and those of one value
            code = np.clip(np.rint((value - low) * (steps / size)), 0, steps)
            back = (np.where(size > 0, code, 0) * (size / steps) + low).astype(np.float32)
        if is_dense:
            back = back + np.where(back >= 0, np.append(upper, 0)[j], np.append(lower, 0)[j]).astype(np.float32)
        else:
            back = np.where(up, back, -back) + shift
        values = np.where(mine, back, values)
    half = _half(values).astype(np.float16)
    return half.reshape(n_batch, n_tokens, n_heads, head_dim).transpose(0, 2, 1, 3)


def _half(x: np.ndarray) -> np.ndarray:
    """Rounded to FP16 and kept finite, as float32."""
    return np.clip(x, -_LARGEST, _LARGEST).astype(np.float16).astype(np.float32)
