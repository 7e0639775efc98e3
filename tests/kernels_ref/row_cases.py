"""Inputs and methods that the tests of row methods share."""

import numpy as np

from bits import digest
from kernels_ref.atom import Atom
from kernels_ref.fp8 import FP8
from kernels_ref.integers import PerTensorInteger, PerTokenInteger
from kernels_ref.kvquant import KVQuantKeys, KVQuantValues
from kernels_ref.nf4 import NF4
from kernels_ref.qserve import QServe
from kernels_ref.tender import Tender
from studies.quanto import Quanto

#: method, and the name by which the design-space models know it
METHODS = [
    (NF4(), "nqkv"),
    (NF4(64, "fp32"), "nqkv:block=64,absmax=fp32"),
    (NF4(7), "nqkv:block=7"),
    (NF4(1), "nqkv:block=1"),
    (PerTokenInteger(), "int8"),
    (PerTokenInteger(8, "fp16"), "int8:scale=fp16"),
    (PerTokenInteger(4), "int4"),
    (PerTensorInteger(0.03), "int8:granularity=tensor"),
    (PerTensorInteger(0.5, 4), "int4:granularity=tensor"),
    (FP8(), "fp8"),
    (FP8("e5m2", 0.25), "fp8:format=e5m2"),
]
NAMES = [name for _, name in METHODS]


def baselines(channels):
    """The methods that other papers are compared with, for tensors of an even number of rows."""
    table = tuple(np.tanh(np.linspace(-2, 2, 16)).tolist())
    thresholds = (-1.5,) * channels, (2.0,) * channels
    return [
        Atom(),
        Atom(5),
        QServe(),
        QServe("artifact"),
        QServe("artifact", (0.75,) * channels),
        Tender("key"),
        Tender("value"),
        Quanto(4, 2),
        Quanto(4, 2, -1),
        KVQuantKeys(*thresholds),
        KVQuantKeys(*thresholds, table),
        KVQuantValues(),
        KVQuantValues(0.8, table),
    ]


def normal(rows, channels, seed=0):
    """Gaussian rows with some outlier channels."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, channels)).astype(np.float32)
    x[:, :: max(channels // 3, 1)] *= 20
    return x.astype(np.float16)


def cases(channels):
    """Named inputs [rows, channels] that a quantizer may stumble over."""
    rng = np.random.default_rng(channels)
    signs = rng.choice([-1.0, 1.0], (4, channels))
    heavy = np.clip(rng.standard_t(1.5, (6, channels)), -60000, 60000)
    subnormal = rng.integers(-1023, 1024, (6, channels)) * 2.0**-24
    mixed = normal(6, channels, 1)
    mixed[::2] = 0
    patterns = rng.integers(0, 2**16, (8, channels)).astype(np.uint16)
    patterns[(patterns & 0x7C00) == 0x7C00] &= 0xBFFF
    return {
        "normal": normal(6, channels),
        "heavy": heavy.astype(np.float16),
        "constant": np.full((3, channels), -1.375, np.float16),
        "zero": np.zeros((3, channels), np.float16),
        "minus zero": np.full((3, channels), -0.0, np.float16),
        "signed zeros": (signs * 0.0).astype(np.float16),
        "subnormal": subnormal.astype(np.float16),
        "one step above zero": (signs * 2.0**-24).astype(np.float16),
        "largest": (signs * 65504.0).astype(np.float16),
        "largest and tiny": (signs * [[65504.0], [2.0**-24], [2.0**-14], [1.0]]).astype(np.float16),
        "tiny": (rng.standard_normal((6, channels)) * 1e-4).astype(np.float16),
        "some rows zero": mixed,
        "any pattern": patterns.view(np.float16),
    }


def stored(rows, channels):
    """Digest of what all methods store and give back."""
    x, found = normal(rows, channels), {}
    for i, method in enumerate([*(method for method, _ in METHODS), *baselines(channels)]):
        packed = method.quantize(x)
        found |= {f"{i} {name}": buffer for name, buffer in packed.buffers.items()} | {f"{i}": packed.dequantize()}
    return digest(found)
