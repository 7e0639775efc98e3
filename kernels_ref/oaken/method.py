"""Oaken for one tensor of one layer: its parameters, quantizing and dequantizing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from kernels_ref import inputs
from kernels_ref.formats import storage
from kernels_ref.inputs import check_choice, row_tensor
from kernels_ref.oaken import artifact
from kernels_ref.oaken.paper import (
    MAX_GROUPS,
    MIN_GROUPS,
    Layout,
    count_outliers,
    decode,
    encode,
    group_table,
    layout_of,
    rounded_threshold,
)
from kernels_ref.oaken.thresholds import Thresholds
from kernels_ref.packed import Packed
from kernels_ref.rows import BufferColumn, Buffers, RowMethod, nibbles

#: artifact mode only: let NaN and infinities spread as they do in the released code
NonFinite = Literal["raise", "replace", "propagate"]


@dataclass(frozen=True)
class Oaken(RowMethod):
    """Oaken (sections 4.2 to 4.5) for keys or values of one layer, with thresholds found offline.

    lower, upper: n - 1 thresholds a side for n groups, outermost first, in the units of the tensor. They are rounded to
    FP16 before use; they must be finite there and nested.
    dense: position of the group stored in the dense matrix, from 1, outermost first; 0: the middle one of three groups
    (with any other number it must be given).
    outlier_bits: 5 (sign and 4-bit magnitude) or 4 for all other groups.
    outlier_code: of 4-bit outliers, "magnitude" (a sign and 3 bits, both in the dense matrix) or "signed" (one code
    from minimum to maximum, both sides together).
    mode: "paper" (Eq. 1 to 4 and the fused encoding; minimum and maximum per token; `quantize`, `dequantize`) or
    "artifact" (what casys-kaist/oaken@e0bfbf0 computes bit for bit; it stores nothing: `fake_quantize`).
    device_semantics ("cpu", "cuda"), quantize_outlier and group_shift belong to the artifact; the two switches are its
    options of these names. There bit widths go by position (last group 5, last but one 4, others 5), not by `dense`.

    Rules where the paper is silent. A group's elements are those outside its own closed interval [lower, upper] and
    inside all outer ones; each is shifted by the threshold that it crossed; the innermost group is not shifted.
    Shifted values are rounded to FP16 and kept within +-65504. Codes have 4 bits in every group: outliers of 5 bits
    have a sign (1: lower side or negative) in their entry, those of 4 bits in the highest bit of their code; the dense
    group and signed codes find their side again by the sign of the decoded shifted value. The paper does not say where
    4-bit outliers have their sign: its entries of 8 bits have no room for one (6 of the index, 2 of the group).
    -0 is on the side of the innermost group that `paper.UPPER_FROM` gives, the lower one; a minimum or maximum of -0 is
    stored as +0. The last nibble of an odd row is `storage.odd_pad`.
    The packed layout is `paper.Layout`'s: `quantize` gives buffers dense, coo, counts and meta, and
    `counts["n_outliers"]`, the length of coo. Raises ValueError for parameters that are not allowed.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    dense: int = 0
    outlier_bits: int = 5
    mode: Literal["paper", "artifact"] = "paper"
    device_semantics: Literal["cpu", "cuda"] = "cpu"
    quantize_outlier: bool = True
    group_shift: bool = True
    outlier_code: Literal["magnitude", "signed"] = "magnitude"

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            object.__setattr__(self, name, _thresholds(name, getattr(self, name)))
        n = len(self.lower) + 1
        if len(self.upper) != len(self.lower):
            raise ValueError(f"upper has {len(self.upper)} thresholds and lower {n - 1}: must have as many")
        nested = (*map(rounded_threshold, self.lower), *map(rounded_threshold, reversed(self.upper)))
        for first, second in pairwise(nested):
            if first > second:
                raise ValueError(
                    f"lower = {self.lower}, upper = {self.upper}: must be nested, outermost first: lower rising, upper "
                    "falling, no lower above an upper"
                )
        if type(self.dense) is not int or not 0 <= self.dense <= n:
            raise ValueError(f"dense = {self.dense!r}: must be 1 to {n}, the position of the dense group, or 0")
        if not self.dense and n != 3 and self.mode == "paper":
            raise ValueError(
                f"dense = 0: must be given for {n} groups, 1 to {n}: only of three the middle one is meant"
            )
        check_choice("outlier_bits", self.outlier_bits, (5, 4))
        check_choice("outlier_code", self.outlier_code, ("magnitude", "signed"))
        if self.outlier_code == "signed" and self.outlier_bits == 5:
            raise ValueError(
                "outlier_code = 'signed': is of 4-bit outliers, must be 'magnitude' where they have 5 bits"
            )
        check_choice("mode", self.mode, ("paper", "artifact"))
        check_choice("device_semantics", self.device_semantics, ("cpu", "cuda"))
        check_choice("quantize_outlier", self.quantize_outlier, (True, False))
        check_choice("group_shift", self.group_shift, (True, False))
        if self.mode == "paper" and not (self.quantize_outlier and self.group_shift and self.device_semantics == "cpu"):
            raise ValueError(
                "device_semantics, quantize_outlier, group_shift: belong to mode = 'artifact', must be left alone"
            )

    @classmethod
    def of(cls, thresholds: Thresholds, layer: int, which: Literal["key", "value"], **options: Any) -> "Oaken":
        """The method for the keys or values of `layer` of profiled thresholds.

        Unless `dense` is given, the largest group is dense (the first of equals). Raises ValueError for a layer that
        has not been profiled.

        thresholds: What `Profiler.thresholds` or `Thresholds.load` gave.
        layer: Number of the layer, from 0.
        which: "key" or "value".
        options: Other parameters of `Oaken`, such as dense or mode.
        """
        lower, upper = thresholds.of(layer, which)
        if not options.get("dense"):
            options["dense"] = 1 + thresholds.fracs.index(max(thresholds.fracs))
        return cls(lower[:-1], upper[:-1], **options)

    @property
    def n_groups(self) -> int:
        """Groups, the dense one included."""
        return len(self.lower) + 1

    @property
    def _layout(self) -> Layout:
        return layout_of(self.lower, self.upper, (self.dense or 2) - 1, self.outlier_bits, self.outlier_code)

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        return (
            nibbles("dense", channels),
            BufferColumn("counts", dtype=np.uint8, items=-(-channels // storage.coo_chunk), part="counts"),
            BufferColumn("meta", dtype=np.float16, items=2 * self.n_groups, part="scales+zero_points"),
            BufferColumn("coo", dtype=self._layout.entry_dtype, items=1, part="outliers", each="entry"),
        )

    def quantize(self, x: np.ndarray, n_heads: int = 1, nonfinite: inputs.NonFinite = "raise") -> Packed:
        """As any `RowMethod`; ValueError in artifact mode, which has no packed form.

        x: FP16, BF16 or FP32, [tokens, channels], [batch, heads, tokens, head_dim], or [n] as one row.
        n_heads: Heads of tensors [tokens, channels], from 1; those of four axes say theirs.
        nonfinite: "raise" refuses NaN and infinities, "replace" takes them as 0 and +-65504.
        """
        if self.mode == "artifact":
            raise ValueError(
                "mode = 'artifact': the released code stores nothing: must be 'paper', or use fake_quantize"
            )
        return super().quantize(x, n_heads, nonfinite)

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> Buffers:
        layout, counts = self._layout, buffers["counts"]
        count_outliers(bits, layout.groups.bounds, layout.groups.dense, counts)
        starts = _starts(counts)
        coo = np.empty(starts[-1], layout.entry_dtype)
        encode(bits, layout.groups, starts, buffers["dense"], coo, buffers["meta"].view(np.uint16))
        return {"coo": coo}

    def dequantize(self, packed: Packed) -> np.ndarray:
        """As any `RowMethod`; ValueError in artifact mode.

        packed: What `quantize` of this method gave.
        """
        if self.mode == "artifact":
            raise ValueError("mode = 'artifact': the released code stores nothing: must be 'paper'")
        return super().dequantize(packed)

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        layout = self._layout
        decode(
            buffers["dense"],
            buffers["counts"],
            buffers["coo"],
            _starts(buffers["counts"]),
            buffers["meta"].view(np.uint16),
            layout.groups,
            bits,
        )

    def fake_quantize(self, x: np.ndarray, *, n_heads: int = 1, nonfinite: NonFinite = "raise") -> np.ndarray:
        """Quantize and dequantize x: float16 of its shape, bit for bit as the mode says.

        mode "artifact": groups' minimum and maximum are taken over the whole of x, so pass what the released code sees
        at once. It may hold NaN where a token's inner group spans less than about 4.73e-4, as the released code's
        result does. Raises ValueError where the released code stops with a ZeroDivisionError: a group but the last has
        no extent.

        x: FP16, BF16 or FP32, [tokens, channels], [batch, heads, tokens, head_dim], or [n] as one row.
        n_heads: Heads of tensors [tokens, channels], from 1; those of four axes say theirs.
        nonfinite: "raise", "replace", or in artifact mode "propagate": NaN and infinities of x spread as there.
        """
        if self.mode == "paper":
            if nonfinite == "propagate":
                raise ValueError("nonfinite = 'propagate': belongs to mode = 'artifact', must be 'raise' or 'replace'")
            return self.dequantize(self.quantize(x, n_heads=n_heads, nonfinite=nonfinite))
        return artifact.fake_quantize(
            x,
            self.lower,
            self.upper,
            device=self.device_semantics,
            quantize_outlier=self.quantize_outlier,
            shift=self.group_shift,
            n_heads=n_heads,
            nonfinite=nonfinite,
        )

    def groups(self, x: np.ndarray) -> np.ndarray:
        """uint8 of x's shape: the group of every element, 0 the outermost; 255 for NaN (artifact), which has none.

        Equality goes by the mode: in the paper a threshold belongs to the group inside, in the artifact to the one
        outside. In paper mode x must be finite, else ValueError.

        x: FP16, BF16 or FP32 of any shape that `quantize` takes.
        """
        is_artifact = self.mode == "artifact"
        table = artifact.group_table(self.lower, self.upper) if is_artifact else group_table(self._layout)
        tensor = replace(row_tensor(x), nonfinite="propagate" if is_artifact else "raise")
        return artifact.by_rows(tensor, np.dtype(np.uint8), lambda bits: table[bits])


def _starts(counts: np.ndarray) -> np.ndarray:
    """First entry of every row, and the end, from counts[rows, chunks]."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts.sum(axis=1, dtype=np.int64), out=starts[1:])
    return starts


def _thresholds(name: str, values: Sequence[float]) -> tuple[float, ...]:
    """`values` as a tuple of floats, checked one by one."""
    thresholds = tuple(values) if isinstance(values, tuple | list | np.ndarray) else ()
    if not MIN_GROUPS <= len(thresholds) + 1 <= MAX_GROUPS:
        raise ValueError(
            f"{name}: must be a sequence of {MIN_GROUPS - 1} to {MAX_GROUPS - 1} thresholds, one fewer than the groups"
        )
    for value in thresholds:
        if isinstance(value, bool) or not isinstance(value, int | float | np.floating):
            raise ValueError(f"{name} = {value!r}: must be numbers")
        if not math.isfinite(rounded_threshold(float(value))):
            raise ValueError(f"{name} = {value!r}: must be finite in FP16")
    return tuple(float(value) for value in thresholds)
