"""The head of a .safetensors file whose values are written behind it, block by block."""

import json
import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any


def fp16_header(metadata: Mapping[str, str], shapes: Iterable[tuple[str, tuple[int, ...]]]) -> bytes:
    """The head of a file of these FP16 tensors, in this order."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, shape in shapes:
        start, end = end, end + 2 * math.prod(shape)  # FP16: 2 bytes
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # values start at a multiple of 8 bytes
    return struct.pack("<Q", len(text)) + text
