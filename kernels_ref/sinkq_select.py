"""Kernels of dynamic sink tracking: which tokens stay in FP16, and the mean that takes their place in a group.

SinkQ section 4.1 and OTT (Outlier Tokens Tracing, arXiv:2505.10938): the tokens with the smallest keys are kept apart.
All sums are exact: FP16 values are multiples of 2^-24.
"""

import numpy as np

from kernels_ref import half
from kernels_ref.jit import inner, kernel, prange

TASK = 2**15


@inner
def _norm(row):
    """Sum of magnitudes of finite patterns, in units of 2^-24."""
    total = np.int64(0)
    for c in range(row.size):
        magnitude = np.int64(row[c] & np.uint16(0x7FFF))
        exponent = magnitude >> np.int64(10)
        normal = (magnitude & np.int64(0x3FF)) | np.int64(0x400)
        total += (normal << (exponent - np.int64(1))) if exponent > np.int64(0) else magnitude
    return total


@inner
def _norms(rows, out):
    for r in range(rows.shape[0]):
        out[r] = _norm(rows[r])


@kernel
def key_norms(rows, out):
    """L1 norm of each of rows[tokens, channels] (FP16 patterns), exactly, as an integer of units of 2^-24."""
    n_rows = rows.shape[0]
    step = max(TASK // rows.shape[1], 1)
    for task in prange((n_rows + step - 1) // step):
        part = slice(task * step, min((task + 1) * step, n_rows))
        _norms(rows[part], out[part])


@inner
def _candidates(norms, pool_norms, n_pool, order, order_norms):
    """The smallest of pool (in its order) and norms, stable. order: pool entry i as -1 - i, token i as i.

    Returns how many there are; `order_norms` are theirs.
    """
    size = pool_norms.size
    n = n_pool
    for i in range(n_pool):
        order[i], order_norms[i] = -1 - i, pool_norms[i]
    for t in range(norms.size):
        norm = norms[t]
        if n == size and norm >= order_norms[n - 1]:
            continue
        n = min(n + 1, size)
        i = n - 1
        while i > 0 and order_norms[i - 1] > norm:
            order[i], order_norms[i] = order[i - 1], order_norms[i - 1]
            i -= 1
        order[i], order_norms[i] = t, norm
    return n


@inner
def _track(
    norms, key, value, first, window, marks, order, order_norms,
    pool_norms, positions, sizes, pool_keys, pool_values, out_positions, out_keys, out_values, old_keys, old_values,
):  # fmt: skip
    """One group of one head. sizes: tokens in the pool, evicted tokens, 1 once tracking has stopped."""
    n_old = sizes[0]
    n = _candidates(norms, pool_norms, n_old, order, order_norms)
    stays = np.zeros(n_old, np.bool_)
    for i in range(n):
        if order[i] < 0:
            stays[-1 - order[i]] = True
    n_pushed = n_old - stays.sum()
    if sizes[1] + n_pushed > window:
        sizes[2] = 1
        return False
    old_positions = positions.copy()
    for i in range(n_old):
        old_keys[i, :] = pool_keys[i]
        old_values[i, :] = pool_values[i]
        if not stays[i]:
            out_positions[sizes[1]] = positions[i]
            out_keys[sizes[1], :] = pool_keys[i]
            out_values[sizes[1], :] = pool_values[i]
            sizes[1] += 1
    changed = False
    for i in range(n):
        pool_norms[i] = order_norms[i]
        if order[i] < 0:
            positions[i] = old_positions[-1 - order[i]]
            pool_keys[i, :] = old_keys[-1 - order[i]]
            pool_values[i, :] = old_values[-1 - order[i]]
        else:
            positions[i] = first + order[i]
            pool_keys[i, :] = key[order[i]]
            pool_values[i, :] = value[order[i]]
            marks[order[i]] = True
            changed = True
    sizes[0] = n
    return changed


@inner
def _enters(norms, largest):
    found = False
    for t in range(norms.size):
        found |= norms[t] < largest
    return found


@inner
def _track_head(
    norms, key, value, first, group, window, marks, changed,
    pool_norms, positions, sizes, pool_keys, pool_values, out_positions, out_keys, out_values,
):  # fmt: skip
    order, order_norms = np.empty(pool_norms.size, np.int64), np.empty(pool_norms.size, np.int64)
    old_keys, old_values = np.empty_like(pool_keys), np.empty_like(pool_values)
    for g in range(changed.size):
        part = slice(g * group, (g + 1) * group)
        if sizes[2] or (sizes[0] == pool_norms.size and not _enters(norms[part], pool_norms[sizes[0] - 1])):
            continue  # nothing to do, as nearly always
        changed[g] = _track(
            norms[part], key[part], value[part], first + g * group, window, marks[part], order, order_norms,
            pool_norms, positions, sizes, pool_keys, pool_values, out_positions, out_keys, out_values,
            old_keys, old_values,
        )  # fmt: skip


@kernel
def track_sinks(
    norms, keys, values, first, group, window, marks, changed,
    pool_norms, positions, sizes, pool_keys, pool_values, out_positions, out_keys, out_values,
):  # fmt: skip
    """Follow the sinks through the groups of norms[heads, groups * group], in order; heads are independent.

    Sets marks[heads, tokens] of the tokens that enter the pool and changed[heads, groups] of their groups. State, first
    axis heads: pool_norms and positions[., sinks], rows pool_keys, pool_values[., sinks, channels], the evicted tokens
    out_..., sizes[., 3] (tokens in the pool, evicted tokens, 1 once tracking has stopped). `first`: position of the
    first token. Tracking stops, and the pool stays, when evicted tokens would be more than `window`.
    """
    for h in prange(norms.shape[0]):
        _track_head(
            norms[h], keys[h], values[h], first, group, window, marks[h], changed[h],
            pool_norms[h], positions[h], sizes[h], pool_keys[h], pool_values[h],
            out_positions[h], out_keys[h], out_values[h],
        )  # fmt: skip


@inner
def _add(row, total):
    for c in range(row.size):
        total[c] += np.float64(half.to_f32(row[c]))


@inner
def _replace(rows, marks, total, mean):
    total[:] = 0.0
    for t in range(rows.shape[0]):
        _add(rows[t], total)
    for c in range(total.size):
        mean[c] = half.from_f32(np.float32(total[c] / rows.shape[0]))
    for t in range(rows.shape[0]):
        if marks[t]:
            rows[t, :] = mean


@kernel
def replace_by_mean(rows, group, marks, changed):
    """Overwrite the marked tokens of rows[heads, groups * group, channels] by the mean of all tokens of their group.

    Per channel: exact sum (up to 8192 tokens), one division in binary64, rounded to binary32 and then to FP16.
    """
    n_heads, n_groups = changed.shape
    for task in prange(n_heads * n_groups):
        h, g = task // n_groups, task % n_groups
        if changed[h, g]:
            total = np.empty(rows.shape[2], np.float64)
            mean = np.empty(rows.shape[2], np.uint16)
            _replace(rows[h, g * group : (g + 1) * group], marks[h, g * group : (g + 1) * group], total, mean)
