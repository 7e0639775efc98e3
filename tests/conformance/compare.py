"""Comparing what a kernel gives with what a golden file holds: raw bits, any NaN equal to any NaN."""

from dataclasses import dataclass

import numpy as np

#: kinds of oracle, in the order they are shown, and what each of them says
KINDS = {
    "third-party": "third-party: values computed by unmodified code of another project",
    "shim": "third-party code under a shim: CUDA's rules for FP16 tensors and Python numbers, not run on a GPU",
    "composed": "composed: tokens selected by this project from the paper's text, quantized by third-party code",
    "second implementation": "second implementation: the written rules implemented twice, by the same author",
    "other": "other",
}


@dataclass(frozen=True)
class Pair:
    """An array of a golden file, what the kernel gives for it, and which of its values count (None: all).

    `kind` is given where it is not the file's.
    """

    name: str
    expected: np.ndarray
    found: np.ndarray
    where: np.ndarray | None = None
    kind: str = ""

    @property
    def compared(self) -> int:
        """Number of compared values."""
        return int(self.expected.size if self.where is None else np.count_nonzero(self.where))

    def mismatches(self) -> np.ndarray:
        """True where the values differ; everywhere where dtype or shape do. Of the shape of `expected`."""
        expected, found = self.expected, self.found
        if expected.shape != found.shape or expected.dtype != found.dtype:
            return np.ones(expected.shape, bool)
        unsigned = np.dtype(f"u{expected.dtype.itemsize}")
        differ = np.ascontiguousarray(expected).view(unsigned) != np.ascontiguousarray(found).view(unsigned)
        if expected.dtype.kind == "f":
            differ &= ~(np.isnan(expected) & np.isnan(found))
        differ = differ.reshape(expected.shape)
        return differ if self.where is None else differ & self.where

    def first_mismatch(self) -> str:
        """Where the first mismatch is, and both values; "" where there is none."""
        if self.expected.shape != self.found.shape or self.expected.dtype != self.found.dtype:
            found, wanted = (f"{a.dtype.name} {list(a.shape)}" for a in (self.found, self.expected))
            return f"{self.name}: {found}, must be {wanted}"
        differ = self.mismatches()
        if not differ.any():
            return ""
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(differ)), differ.shape))
        where = ", ".join(str(i) for i in at)
        return f"{self.name}[{where}]: {self.found[at].item()!r}, must be {self.expected[at].item()!r}"


def kind_of(oracle: str) -> str:
    """The kind of oracle that a manifest's text describes."""
    return next((kind for kind in KINDS if oracle.startswith(kind)), "other")
