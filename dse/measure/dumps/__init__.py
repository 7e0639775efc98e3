"""Dumps of KV caches (.npy, .npz, .safetensors; FP16, BF16, FP32), read without trusting a byte of them.

with open_dump("kv.npz") as dump:
    for tensor in dump.tensors:
        x = dump.read(tensor.name)
"""

from dse.measure.dumps.dump import Dump, open_dump
from dse.measure.dumps.stored import DumpLimits, DumpTensor

__all__ = ["Dump", "DumpLimits", "DumpTensor", "open_dump"]
