"""Write a checkpoint's weights as BF16: python studies/training/export.py runs/mha/checkpoint.pt mha.safetensors."""

import json
import struct
import sys
from pathlib import Path

import text
import torch

import model


def write(weights: dict[str, torch.Tensor], metadata: dict[str, str], path: Path) -> None:
    """A .safetensors file of BF16 tensors (huggingface/safetensors, README "Format")."""
    header: dict[str, object] = {"__metadata__": metadata}
    parts, end = [], 0
    for name, weight in weights.items():
        part = weight.to(torch.bfloat16).contiguous().view(torch.int16).numpy().astype("<i2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [end, end + len(part)]}
        parts.append(part)
        end += len(part)
    start = json.dumps(header).encode()
    start += b" " * (-len(start) % 8)
    path.write_bytes(struct.pack("<Q", len(start)) + start + b"".join(parts))


def metadata_of(shape: dict[str, int], note: str) -> dict[str, str]:
    """Metadata for the reader of the weights, all text."""
    sizes = {name: str(size) for name, size in shape.items()}
    constants = {"rope_theta": str(model.ROPE_BASE), "norm_epsilon": str(model.NORM_EPSILON)}
    return {**sizes, **constants, "note": note}


def main() -> None:
    stored = torch.load(sys.argv[1], weights_only=True)
    shape = model.SHAPES[stored["shape"]]
    note = f"training/train.py {stored['shape']}, seed {stored['seed']}, {stored['step']} steps, CPython {text.CPYTHON}"
    write(stored["weights"], metadata_of(shape, note), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
