"""Inputs that the tests of KIVI and SinkQ share."""

import numpy as np

from bits import digest
from kernels_ref.kivi import KIVI
from kernels_ref.sinkq import SinkQ


def heads(kind, n_batch, n_heads, n_tokens, head_dim, seed=0):
    """FP16 [batch, heads, tokens, head_dim] of one kind of data; no group of it overflows."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n_batch, n_heads, n_tokens, head_dim))
    if kind == "heavy":
        x = np.clip(rng.standard_t(2, x.shape) * 3, -20000, 20000)
    elif kind == "constant":
        x = np.full(x.shape, -1.37)
    elif kind == "zero":
        x = np.zeros(x.shape)
    elif kind == "signed_zero":
        x = np.where(x > 0, 0.0, -0.0)
    elif kind == "subnormal":
        x = x * 2.0**-20
    elif kind == "tiny":
        x = rng.integers(-2, 3, x.shape) * 2.0**-24
    elif kind == "offset":
        x = 1000 + x
    elif kind == "large":
        x = 30000 * np.tanh(x)
    elif kind == "wide":  # all exponents
        x = np.ldexp(np.sign(x), rng.integers(-24, 15, x.shape)) * rng.uniform(1, 2, x.shape)
    return x.astype(np.float16)


KINDS = ("normal", "heavy", "constant", "zero", "signed_zero", "subnormal", "tiny", "offset", "large", "wide")


def stored():
    """Digest of what KIVI and SinkQ store and give back, but for the sign of NaN."""
    found = {}
    for kind in ("wide", "constant", "tiny"):
        x = heads(kind, 1, 2, 37, 20)
        for bits, group in ((1, 32), (2, 16), (4, 8), (8, 4)):
            for side in ("key", "value"):
                packed = KIVI(bits, group, 0, overflow="propagate", key_layout="triton").quantize(x, side)
                found |= {f"{kind}{bits}{side}{name}": array for name, array in packed.buffers.items()}
                found[f"{kind}{bits}{side}"] = packed.dequantize().view("u2") & 0x7FFF
        cache = SinkQ(2, 16, 4, sinks=2).quantize(x, x[::-1] * np.float16(0.5))
        found |= {f"{kind}{name}": array for name, array in cache.buffers.items()}
        found |= dict(zip((f"{kind}k", f"{kind}v"), cache.seen(), strict=True))
    return digest(found)
