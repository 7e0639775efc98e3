"""Bit patterns of values as a cache takes them in, without a compiler: a dump is looked at before a kernel runs."""

import numpy as np


def fp16_patterns(part: np.ndarray) -> np.ndarray:
    """The FP16 patterns of `part`, C-contiguous uint16; a view where nothing has to change.

    BF16 and FP32 are rounded to nearest even; beyond 65504 they become infinite (and are then refused or replaced).

    part: FP16, BF16 or FP32 of any shape.
    """
    if part.dtype != np.float16:  # the name of a dtype takes long
        if not part.dtype.isnative:
            part = part.astype(part.dtype.newbyteorder("="))
        if part.dtype.name == "bfloat16":
            part = (part.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            part = part.astype(np.float16)
    return np.ascontiguousarray(part).view(np.uint16)
