"""Oaken's groups as regions of the number line, and the fields of its packed buffers, for 2 to 5 groups.

Groups count from 0, outermost first; group n - 1 is the innermost. Between and beyond its 2 (n - 1) thresholds the
number line has 2 n regions, counted upwards: region r < n is the lower side of group r (of the innermost group: its
negative values), region r >= n the upper side of group 2 n - 1 - r. Within a region the shifted value grows with x, so
a group's minimum and maximum are found from FP16 patterns in integer arithmetic, and a pattern has one region.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kernels_ref import half
from kernels_ref.formats import storage

#: groups that the packed layout can tell apart (Oaken Table 3 uses 2 to 5)
MIN_GROUPS, MAX_GROUPS = 2, 5
#: largest 4-bit code
LEVELS = 2**storage.oaken_dense - 1
#: group bits of a sparse entry by number of groups (Oaken Table 3)
GROUP_BITS = {2: 0, 3: 1, 4: 2, 5: 2}
#: bounds of the first and of the last region: no finite pattern is below or at them
LOWEST, HIGHEST = -(2**15), 2**15 - 1


def rounded_threshold(value: float) -> np.float16:
    """A threshold as it is compared and added: rounded to FP32, then to FP16, as PyTorch makes scalars (may be inf)."""
    with np.errstate(over="ignore"):
        return np.float16(np.float32(value))


def _key(value: np.float16) -> int:
    """Place of an FP16 value among all of them (`half.order`): -0 has -1, +0 has 0."""
    bits = int(value.view(np.uint16))
    return bits if bits < 2**15 else 2**15 - 1 - bits


def _first_not_below(threshold: np.float16) -> int:
    """The key from which x < threshold is false: both zeros are equal."""
    return _key(np.float16(-0.0)) if threshold == 0 else _key(threshold)


def _first_above(threshold: np.float16) -> int:
    """The key from which x > threshold is true."""
    return _key(threshold + np.float16(0)) + 1


@dataclass(frozen=True)
class Layout:
    """What the kernels need to know of one tensor's groups; arrays are per region or per group.

    Buffers of T tokens of d channels (heads concatenated), n groups:
    dense   uint8 [T, ceil(d / 2)]: a 4-bit code of every element, element 2 i in the low nibble; a last odd one is 0
    coo     one entry per element outside the dense group, ordered by token and channel: bits 0 to 5 channel % 64, then
            the group (n = 2: no bit, 3: one, 4 and 5: two; counted among the sparse groups from the innermost out),
            then with 5-bit outliers the sign (1: lower side or negative); uint8, or little-endian uint16 beyond 8 bits
    counts  uint8 [T, ceil(d / 64)]: entries of each 64 channels
    meta    float16 [T, 2 n]: minimum and maximum of the dense group, then of the others, outermost first
    """

    n_groups: int
    #: the dense group, from 0
    dense: int
    outlier_bits: int
    #: int16 [2 n + 1]: region r holds keys bounds[r] <= key < bounds[r + 1]
    bounds: np.ndarray
    #: float32 [2 n]: threshold that a region's values are shifted by; -0 in the innermost group (x + -0 is x, even -0)
    shift: np.ndarray
    #: bool [n]: stored with their sign in minimum, maximum and code; the others as magnitudes with a sign bit
    signed: np.ndarray
    #: int64 [n]: position of the group's pair in meta
    slot: np.ndarray
    #: uint16 [2 n]: group and sign bits of an entry
    tag: np.ndarray
    entry_dtype: np.dtype

    @property
    def entry_values(self) -> int:
        """How many values group and sign bits of an entry can take, at most."""
        return 2 ** (GROUP_BITS[self.n_groups] + self.outlier_bits - storage.oaken_dense)


@lru_cache(maxsize=1024)
def layout_of(lower: tuple[float, ...], upper: tuple[float, ...], dense: int, outlier_bits: int) -> Layout:
    """The layout of n groups by n - 1 thresholds a side, outermost first; `dense` from 0, `outlier_bits` 4 or 5.

    Thresholds must be finite in FP16 and nested (lower rising, upper falling, lower <= upper).
    """
    n = len(lower) + 1
    low16, high16 = [rounded_threshold(v) for v in lower], [rounded_threshold(v) for v in upper]
    below = [_first_not_below(threshold) for threshold in low16]
    above = [_first_above(threshold) for threshold in reversed(high16)]
    zero = min(max(0, below[-1]), above[0])  # the innermost group's sides part at zero, if that is inside
    sparse = [group for group in range(n) if group != dense]
    slot = np.zeros(n, np.int64)
    slot[[dense, *sparse]] = range(n)
    tag = np.zeros(2 * n, np.uint16)
    sign_bit = storage.coo_index + GROUP_BITS[n]
    for number, group in enumerate(reversed(sparse)):
        tag[[group, 2 * n - 1 - group]] = number << storage.coo_index
        if outlier_bits == 5:
            tag[group] |= 1 << sign_bit
    entry_bits = sign_bit + outlier_bits - storage.oaken_dense
    return Layout(
        n_groups=n,
        dense=dense,
        outlier_bits=outlier_bits,
        bounds=np.array([LOWEST, *below, zero, *above, HIGHEST], np.int16),
        shift=np.array([*low16, -0.0, -0.0, *reversed(high16)], np.float32),
        signed=np.array([group == dense or outlier_bits == 4 for group in range(n)]),
        slot=slot,
        tag=tag,
        entry_dtype=np.dtype("u1" if entry_bits <= 8 else "<u2"),
    )


def group_table(layout: Layout) -> np.ndarray:
    """uint8 [65536]: the group of every FP16 pattern (Oaken, Eq. 1); of NaN and infinities nothing meaningful."""
    bits = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    keys = np.where(bits & half.SIGN, np.int32(2**15 - 1) - bits, bits).astype(np.int32)
    region = np.searchsorted(layout.bounds[1:-1], keys, side="right")
    return np.minimum(region, 2 * layout.n_groups - 1 - region).astype(np.uint8)
