"""Oaken as the released code computes it (casys-kaist/oaken@e0bfbf0): quantized and dequantized at once, in FP16.

Written from its behaviour, bit for bit. Every step rounds to FP16. All groups but the last take minimum and maximum
over the whole tensor, so that their results depend on an element's 16-bit pattern alone: they are computed once for
all 65,536 patterns, and the tensor is looked up. The last group goes by token.

PyTorch evaluates an FP16 tensor with a Python number differently on CPUs and CUDA; `Scalars` holds the rules.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kernels_ref import half
from kernels_ref.inputs import KVTensor, row_tensor
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.oaken.paper import rounded_threshold

#: largest code of 5 bits and of 4 bits
FIVE_BITS, FOUR_BITS = 31, 15
#: codes that are infinite become these (torch.nan_to_num)
LARGEST = 65504.0
NO_GROUP = 255
#: parts of a block that are looked through side by side
PARTS = 16
#: above the key of every number
NAN_KEY = np.int16(2**15 - 1)


@dataclass(frozen=True)
class Scalars:
    """FP16 tensor and Python number `s`, as PyTorch evaluates them: `device` is "cpu" or "cuda"."""

    device: str

    def multiply(self, x: np.ndarray, s: float) -> np.ndarray:
        """x * s: the number in FP32, on both."""
        return (x.astype(np.float32) * np.float32(s)).astype(np.float16)

    def add(self, x: np.ndarray, s: float) -> np.ndarray:
        """x + s: the number rounded to FP16 first on CPUs, in FP32 on CUDA."""
        if self.device == "cpu":
            return x + rounded_threshold(s)
        return (x.astype(np.float32) + np.float32(s)).astype(np.float16)

    def divide(self, x: np.ndarray, s: float) -> np.ndarray:
        """x / s: a division on CPUs, a product with the FP32 reciprocal on CUDA."""
        if self.device == "cpu":
            return (x.astype(np.float32) / np.float32(s)).astype(np.float16)
        return (x.astype(np.float32) * (np.float32(1) / np.float32(s))).astype(np.float16)


def group_table(lower: tuple[float, ...], upper: tuple[float, ...]) -> np.ndarray:
    """uint8 [65536]: the group of every FP16 pattern; thresholds belong to the group outside them; NaN has none."""
    x = half.all_patterns()
    group = np.full(x.shape, len(lower), np.uint8)
    with np.errstate(invalid="ignore"):
        for j in reversed(range(len(lower))):
            group[(x <= rounded_threshold(lower[j])) | (x >= rounded_threshold(upper[j]))] = j
    group[np.isnan(x)] = NO_GROUP
    return group


@inner
def _mark(bits: np.ndarray, seen: np.ndarray) -> None:
    for i in range(bits.size):
        seen[bits[i]] = True


@kernel
def _mark_patterns(bits: np.ndarray, seen: np.ndarray) -> None:
    """seen[part, pattern] is set for every pattern that bits[row, channel] holds; each part is one thread's."""
    n_rows = bits.shape[0]
    parts = seen.shape[0]
    for part in prange(parts):
        for row in range(part * n_rows // parts, (part + 1) * n_rows // parts):
            _mark(bits[row], seen[part])


def _outlier_group(
    x: np.ndarray,
    mask: np.ndarray,
    seen: np.ndarray,
    ends: tuple[float, float],
    levels: int,
    shift: bool,
    rules: Scalars,
) -> np.ndarray:
    """float16 [65536]: what a group but the last makes of every pattern, minimum and maximum over those `seen`."""
    g = x * mask
    up, down = (g > 0).astype(np.float16), (g < 0).astype(np.float16)  # a side is the sign of x, not its threshold
    low16, high16 = map(rounded_threshold, ends)
    s = (g * up - high16) * up + (g * down - low16) * down if shift else g
    smallest, largest = float(s[seen].min()), float(s[seen].max())
    if largest == smallest:
        raise ValueError(
            "x: all shifted values of a group before the last are equal (it has no member, say), where the released "
            "code stops with a ZeroDivisionError: must have extent in every such group"
        )
    q = levels / (largest - smallest)
    offset = smallest * q
    code = np.rint(rules.add(rules.multiply(s, q), -offset))
    code = np.nan_to_num(code, nan=levels, posinf=LARGEST, neginf=-LARGEST)
    y = rules.divide(rules.add(code, offset), q)
    if not shift:
        return y * up + y * down
    return (y * up + high16) * up + (y * down + low16) * down


@inner
def _extent(bits: np.ndarray, keys: np.ndarray) -> tuple[np.int16, np.int16]:
    """Smallest and largest of the masked values of one token, by their keys; a NaN is the largest of all."""
    smallest, largest = NAN_KEY, np.int16(-NAN_KEY)
    for i in range(bits.size):
        key = keys[bits[i]]
        smallest = min(smallest, key)
        largest = max(largest, key)
    return smallest, largest


@inner
def _value(key: np.int16) -> np.float32:
    """The float32 value of a key (`half.order`)."""
    return half.to_f32(np.uint16(half.order(np.uint16(key))))


@inner
def _quantized(value: np.float32, q: np.float32, offset: np.float32, levels: np.float32) -> np.float32:
    """One FP16 value, as float32, quantized and dequantized with a token's scale and offset."""
    code = half.rounded(np.float32(half.rounded(np.float32(value * q)) - offset))
    if code != code:
        code = levels
    elif abs(code) > np.float32(65504.0):
        code = np.float32(65504.0) if code > 0 else np.float32(-65504.0)
    else:
        code = np.float32(np.rint(code))
    return half.rounded(np.float32(half.rounded(np.float32(code + offset)) / q))


@inner
def _token(
    bits: np.ndarray,
    keys: np.ndarray,
    member: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
    levels: np.float32,
    out: np.ndarray,
) -> None:
    """One token: out = FP16 sum of `before`, the group quantized by token, `after`."""
    smallest, largest = _extent(bits, keys)
    low = _value(smallest)
    size = half.rounded(np.float32(_value(largest) - low))
    if largest == NAN_KEY:
        low = size = np.float32(np.nan)
    q = half.rounded(np.float32(half.rounded(np.float32(np.float32(1.0) / size)) * levels))
    offset = half.rounded(np.float32(low * q))
    # elsewhere the masked value is 0, of whatever sign, and so is what it adds, unless it is NaN
    elsewhere = np.float32(_quantized(np.float32(0.0), q, offset, levels) * np.float32(0.0))
    for i in range(bits.size):
        pattern = bits[i]
        value = elsewhere
        if member[pattern]:
            value = _quantized(_value(keys[pattern]), q, offset, levels)
        elif value == value:
            out[i] = before[pattern]  # the sum with `after`, see `_tables`
            continue
        total = half.rounded(np.float32(half.to_f32(before[pattern]) + value))
        out[i] = half.from_f32(np.float32(total + half.to_f32(after[pattern])))


@kernel
def _tokens(
    bits: np.ndarray,
    keys: np.ndarray,
    member: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
    levels: np.float32,
    out: np.ndarray,
) -> None:
    """`_token` for every out[row, channel]; the tables are per FP16 pattern."""
    for row in prange(bits.shape[0]):
        _token(bits[row], keys, member, before, after, levels, out[row])


def by_rows(tensor: KVTensor, dtype: np.dtype, make: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """An array of the tensor's shape from `make(bits)` of blocks of token vectors bits[n, channels]."""
    n_batch, n_heads, n_tokens, head_dim = tensor.array.shape
    out = np.empty((n_batch, n_tokens, n_heads, head_dim), dtype)
    rows = out.reshape(-1, tensor.n_channels)
    for row, bits in tensor.row_blocks():
        rows[row : row + len(bits)] = make(bits)
    return np.ascontiguousarray(out.transpose(0, 2, 1, 3)) if len(tensor.shape) == 4 else out.reshape(tensor.shape)


def _tables(
    lower: tuple[float, ...],
    upper: tuple[float, ...],
    seen: np.ndarray,
    quantize_outlier: bool,
    shift: bool,
    device: str,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """keys, member, before, after for `_tokens`, of the group that goes by token and those before and after it.

    Where the token-wise group has no member, `before` already holds the sum with `after`.
    """
    x, group, n = half.all_patterns(), group_table(lower, upper), len(lower) + 1
    by_token = n - 1 if quantize_outlier else n - 2
    before, after = np.zeros(2**16, np.float16), np.zeros(2**16, np.float16)
    for j in range(n):
        mask = (group == j).astype(np.float16)
        if j == by_token:
            keys = _keys(x * mask)
            continue
        change = x * mask
        if quantize_outlier:
            levels = FOUR_BITS if j == n - 2 else FIVE_BITS
            change = _outlier_group(x, mask, seen, (lower[j], upper[j]), levels, shift, Scalars(device))
        if j < by_token:
            before = before + change * mask
        else:
            after = change * mask
    member = group == by_token
    before[~member] += after[~member]
    return keys, member, before.view(np.uint16), after.view(np.uint16)


def _keys(values: np.ndarray) -> np.ndarray:
    """int16: the place of FP16 values among all of them (`half.order`), NaN the largest."""
    keys = half.order_of(values.view(np.uint16))
    keys[np.isnan(values)] = NAN_KEY
    return keys


def fake_quantize(
    x: np.ndarray,
    lower: tuple[float, ...],
    upper: tuple[float, ...],
    *,
    device: str = "cpu",
    quantize_outlier: bool = True,
    shift: bool = True,
    n_heads: int = 1,
    nonfinite: str = "raise",
) -> np.ndarray:
    """float16 of x's shape as the released code's `downsample` gives it for x as a whole.

    n - 1 thresholds a side for n groups, outermost first. quantize_outlier=False: only the last group but one is
    quantized (4 bit, by token, not shifted); shift=False: no group shift. Raises ValueError where that code raises
    ZeroDivisionError, and for NaN and infinities unless `nonfinite` is "replace" or "propagate".
    """
    propagate = nonfinite == "propagate"
    tensor = row_tensor(x, n_heads, "raise" if propagate else nonfinite)  # type: ignore[arg-type]
    tensor = replace(tensor, nonfinite=nonfinite)
    if not tensor.array.size:
        return np.empty(tensor.shape, np.float16)
    present = np.zeros((PARTS, 2**16), np.bool_)
    if quantize_outlier:
        for _, bits in tensor.row_blocks():
            _mark_patterns(bits, present)
    with np.errstate(all="ignore"):
        seen = np.logical_or.reduce(present, axis=0)
        tables = _tables(lower, upper, seen, quantize_outlier, shift, device)
    levels = np.float32(FIVE_BITS if quantize_outlier else FOUR_BITS)

    def quantized(bits: np.ndarray) -> np.ndarray:
        block = np.empty(bits.shape, np.uint16)
        _tokens(bits, *tables, levels, block)
        return block.view(np.float16)

    return by_rows(tensor, np.dtype(np.float16), quantized)
