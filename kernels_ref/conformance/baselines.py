"""Golden files of the methods that Oaken, NQKV and SinkQ are compared with: QServe, Atom, Tender, Quanto, KVQuant."""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kernels_ref.atom import Atom
from kernels_ref.conformance.compare import Pair
from kernels_ref.conformance.kivi import SIDES
from kernels_ref.conformance.vectors import Vectors
from kernels_ref.kvquant import KVQuantKeys, KVQuantValues
from kernels_ref.packed import Packed
from kernels_ref.qserve import QServe, smooth_factors
from kernels_ref.quanto import Quanto
from kernels_ref.tender import Tender


def _flat(x: np.ndarray) -> np.ndarray:
    """[..., tokens, channels] as [tokens, channels]."""
    return x.reshape(-1, x.shape[-1])


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """The codes of `bits` bits in bytes [rows, n], the first element lowest: uint8 [rows, 8 / bits * n]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((packed[:, :, None] >> shifts) & np.uint8(2**bits - 1)).reshape(len(packed), -1)


def qserve(vectors: Vectors) -> Iterator[Pair]:
    """base_qserve: keys smoothed by channel and values, both per token over all channels."""
    key, factors = vectors["key"], vectors["smooth_scale"]
    yield Pair("smooth_scale", factors, np.array(smooth_factors(_flat(key)), np.float16))
    for name, x, smooth in (("k_out", key, tuple(factors.tolist())), ("v_out", vectors["value"], None)):
        packed = QServe("artifact", smooth).quantize(_flat(x))
        yield Pair(name, vectors[name], packed.dequantize().reshape(x.shape))


def atom(vectors: Vectors) -> Iterator[Pair]:
    """base_atom: keys and values in 4 bits per head vector."""
    for name, side in (("atom_k", "key"), ("atom_v", "value")):
        yield Pair(name, vectors[name], Atom().quantize(vectors[side]).dequantize())


def tender(vectors: Vectors) -> Iterator[Pair]:
    """base_tender: codes, scales, keys' centre and decoded values of [heads, tokens, head_dim].

    The released code decodes codes that are still floats: its -0 is a stored code's +0. It leaves the centre out.
    """
    for side, letter in SIDES:
        x = vectors[side][None]
        n_heads, n_tokens, head_dim = x.shape[1:]
        packed = Tender(side).quantize(x)
        nibbles = _unpacked(packed.buffers["codes"], 4)[:, : n_heads * head_dim]
        codes = ((nibbles ^ 8).astype(np.int8) - np.int8(8)).reshape(n_tokens, n_heads, head_dim).transpose(1, 0, 2)
        yield Pair(f"{letter}_code", vectors[f"{letter}_code"], codes)
        scale = packed.buffers["scale"]
        if side == "key":
            centre = packed.buffers["centre"]
            yield Pair("k_bias", vectors["k_bias"], centre.reshape(n_heads, 1, head_dim))
            yield Pair("k_scale", vectors["k_scale"], scale.T[:, :, None])
            packed = replace(packed, buffers={**packed.buffers, "centre": np.zeros_like(centre)})
        else:
            yield Pair("v_scale", vectors["v_scale"], scale.reshape(n_heads, 1, head_dim))
        decoded = packed.dequantize()[0] + np.float16(0)
        yield Pair(f"{letter}_dequant", vectors[f"{letter}_dequant"] + np.float16(0), decoded)


def quanto(vectors: Vectors) -> Iterator[Pair]:
    """hf_quanto: {k,v}_b{bits}_ax{0,m1}_g{group}_{code,scale,shift,dequant}, a code per element.

    Of axis -1 a column is a group; of axis 0 a row.
    """
    for side, letter in SIDES:
        for name in vectors:
            if found := re.fullmatch(rf"({letter}_b(\d)_ax(0|m1)_g(\d+))_code", name):
                stem, bits, last, group = found[1], int(found[2]), found[3] == "m1", int(found[4])
                packed = Quanto(bits, group, -1 if last else 0).quantize(vectors[side])  # type: ignore[arg-type]
                codes, scale, shift = (packed.buffers[part] for part in ("codes", "scale", "shift"))
                wide = _unpacked(codes, bits)
                yield Pair(name, vectors[name], wide.T if last else wide)
                shape = (1, -1) if last else (-1, 1)
                yield Pair(f"{stem}_scale", vectors[f"{stem}_scale"], scale.reshape(shape))
                yield Pair(f"{stem}_shift", vectors[f"{stem}_shift"], shift.reshape(shape))
                yield Pair(f"{stem}_dequant", vectors[f"{stem}_dequant"], packed.dequantize())


def kvquant(vectors: Vectors) -> Iterator[Pair]:
    """base_kvquant: outliers and decoded values, uniform codes (as the artifact runs them) and those by table.

    Thresholds of keys and the table are fixed with the weights: they are inputs.
    """
    lut = tuple(vectors["lut"].reshape(-1).tolist())
    for form, table in (("", None), ("nuq_", lut)):
        lower, upper = (tuple(vectors[f"k_{form}{end}"].tolist()) for end in ("lower", "upper"))
        keys = KVQuantKeys(lower, upper, table).quantize(vectors["key"])
        values = KVQuantValues(vectors.entry.params["sparsity_threshold"], table).quantize(vectors["value"])
        yield Pair(f"k_{form}mask", vectors[f"k_{form}mask"], _outliers(keys))
        yield Pair("v_mask", vectors["v_mask"], _outliers(values))
        for letter, packed in (("k", keys), ("v", values)):
            name = f"{letter}_{form or 'zp_'}out"
            yield Pair(name, vectors[name], packed.dequantize())


def _outliers(packed: Packed) -> np.ndarray:
    """True where an element is kept as an outlier."""
    mask = np.zeros(packed.shape, bool)
    counts = packed.buffers["outlier_count"][:, 0]
    mask[np.repeat(np.arange(len(mask)), counts), packed.buffers["outlier_index"]] = True
    return mask
