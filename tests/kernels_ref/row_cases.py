"""Inputs and methods that the tests of row methods share."""

import itertools
from typing import Any, NamedTuple

import numpy as np

from bits import digest
from kernels_ref import SCALED_TYPES, latent, per_head
from kernels_ref.atom import Atom
from kernels_ref.fp8 import FP8
from kernels_ref.ggml import CODES, GGML, TYPES
from kernels_ref.integers import PerTensorInteger, PerTokenInteger
from kernels_ref.kvquant import KVQuantKeys, KVQuantValues
from kernels_ref.latent import Latent
from kernels_ref.mlx import MLX
from kernels_ref.mx import MX
from kernels_ref.nf4 import NF4
from kernels_ref.nvfp4 import NVFP4
from kernels_ref.oaken import Oaken
from kernels_ref.per_head import PerTokenHead
from kernels_ref.qserve import QServe
from kernels_ref.tender import Tender
from kernels_ref.turboquant import PRESETS, TurboQuant
from studies.quanto import Quanto

GGML_VARIANTS = [
    (name, code)
    for name in TYPES
    for code in CODES
    if code == "ggml" or (name == "q8_0" if code == "avx2" else name != "iq4_nl")
]


def scaled(name, scale=1.0):
    """The cache's method by the name of a format of NVFP4 or MX."""
    if name.startswith("nvfp4"):
        return NVFP4(scale, "4over6" if name == "nvfp4_4over6" else "vllm")
    return MX(name)


class Case(NamedTuple):
    """A method, the name by which the design-space models know it, its side, and (heads, head_dim) that it takes."""

    method: Any
    name: str
    which: str = "key"
    dims: tuple[tuple[int, int], ...] = ((3, 22), (4, 64), (1, 7), (3, 43), (1, 1))


_BY_32 = ((3, 32), (4, 64), (1, 96))
_POWERS = ((2, 32), (4, 64), (1, 8))
METHODS = [
    Case(NF4(), "nqkv"),
    Case(NF4(64, "fp32"), "nqkv:block=64,absmax=fp32"),
    Case(NF4(7), "nqkv:block=7"),
    Case(NF4(1), "nqkv:block=1"),
    Case(PerTokenInteger(), "int8"),
    Case(PerTokenInteger(8, "fp16"), "int8:scale=fp16"),
    Case(PerTokenInteger(4), "int4"),
    Case(PerTensorInteger(0.03), "int8:granularity=tensor"),
    Case(PerTensorInteger(0.5, 4), "int4:granularity=tensor"),
    Case(FP8(), "fp8"),
    Case(FP8("e5m2", 0.25), "fp8:format=e5m2"),
    Case(Atom(), "atom"),
    Case(Atom(20), "atom:group=20", "value"),
    Case(QServe(), "qserve"),
    Case(QServe("artifact"), "qserve:mode=artifact", "value"),
    *(Case(GGML(name, code), name, "key", _BY_32) for name, code in GGML_VARIANTS),
    Case(GGML("q4_0", rotated="key"), "q4_0", "key", ((3, 64), (1, 192), (2, 96))),
    *(Case(MLX(bits, 32), f"mlx:bits={bits},group=32", "key", _BY_32) for bits in (2, 4)),
    *(Case(scaled(name, 0.03), name, "value", _BY_32) for name in SCALED_TYPES),
    *(Case(PerTokenHead(fmt), f"{fmt}_per_token_head", "key", _BY_32) for fmt in per_head.FORMATS),
    *(
        Case(TurboQuant(preset, side), f"turboquant_{preset}", side, _POWERS)
        for preset, side in itertools.product(PRESETS, ("key", "value"))
    ),
    *(Case(Latent(fmt), f"{fmt}_ds_mla", "key", ((1, 576),)) for fmt in latent.FORMATS),
]
#: of 66 channels, with outliers: rows of one token are not as long as those of another
VARYING = [
    Case(KVQuantKeys((-1.0,) * 66, (1.0,) * 66), "kvquant", "key", ((3, 22),)),
    Case(KVQuantValues(0.8), "kvquant", "value", ((3, 22),)),
    Case(Oaken((-2.5, -0.01), (3.0, 0.0134)), "oaken", "key", ((3, 22),)),
]
#: of tensors at once, which do not grow
WHOLE = [
    Case(Tender("key"), "tender", "key"),
    Case(Tender("value"), "tender", "value"),
    Case(Quanto(2, 12), "quanto", "key", ((3, 22),)),
    Case(Quanto(4, 2, -1), "quanto", "value", ((3, 22),)),
]
NAMES = [f"{case.name} {case.which}" for case in (*METHODS, *VARYING)]


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


def stored(n_rows, n_scaled):
    """Digest of what all methods store and give back, `n_scaled` rows of NVFP4 and MX, slow in plain Python."""
    found = {}
    named = [(case.method, *min(case.dims), n_scaled if case.name in SCALED_TYPES else n_rows) for case in METHODS]
    for i, (method, heads, head_dim, rows) in enumerate([*named, *((m, 1, 67, n_rows) for m in baselines(67))]):
        packed = method.quantize(normal(rows // 2 * 2, heads * head_dim), heads)
        found |= {f"{i} {name}": buffer for name, buffer in packed.buffers.items()} | {f"{i}": packed.dequantize()}
    return digest(found)
