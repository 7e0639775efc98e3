"""Checks of vLLM's cache formats: scales per token and head, TurboQuant, FP8 with one scale, slots of latent heads.

Inputs in BF16 are patterns (uint16); they are compared by the functions on float32, FP16 inputs also by the method.
"""

import re
from collections.abc import Iterator

import numpy as np

from conformance.compare import Pair
from conformance.vectors import Vectors
from kernels_ref import latent, per_head, turboquant
from kernels_ref.fp8 import FP8, NAN_CODE, Format, decode_table, encode
from kernels_ref.minifloat import E2M1_VALUES

SIDES: tuple[tuple[turboquant.Side, str], ...] = (("key", "k"), ("value", "v"))
_KEPT: dict[str, per_head.Kept] = {"float16": "fp16", "float32": "fp32", "bfloat16": "bf16"}


def _wide(x: np.ndarray) -> np.ndarray:
    """FP16, FP32 or patterns of BF16 as float32."""
    return x.astype(np.float32) if x.dtype != np.uint16 else (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _rows(vectors: Vectors, letter: str, n_rows: int) -> np.ndarray:
    """True for the tokens that count for a side."""
    keep = np.ones(n_rows, bool)
    for name in ("skip_rows", f"skip_rows_{letter}"):
        keep[vectors.entry.params.get(name, [])] = False
    return keep


def _tensor(x: np.ndarray) -> np.ndarray:
    """[tokens, heads, head_dim] as [1, heads, tokens, head_dim]."""
    return np.ascontiguousarray(x.transpose(1, 0, 2)[None])


def per_token_head(vectors: Vectors) -> Iterator[Pair]:
    """pth_*: slots, codes, scales and decoded values by side; of int4 also the rotation, codes from stored `*_rotated`.

    The scale of an int4 slot has the zero point in its low bits.
    """
    found = re.match(r"pth_(int8|fp8|int4)_", vectors.entry.file)
    if not found:
        raise ValueError("the name says no format: must have int8, fp8 or int4")
    fmt: per_head.Format = found[1]  # type: ignore[assignment]
    kept = _KEPT[str(vectors.entry.params["input_dtype"]).partition(" ")[0]]
    for side, letter in SIDES:
        x = vectors[side]
        keep = _rows(vectors, letter, len(x))

        def pair(name: str, array: np.ndarray, keep: np.ndarray = keep, letter: str = letter) -> Pair:
            expected = vectors[f"{letter}_{name}"][keep]
            return Pair(f"{letter}_{name}", expected, array.reshape(expected.shape))

        flat = _wide(x[keep]).reshape(-1, x.shape[-1])
        if fmt == "int4":
            if letter == "k":
                yield Pair("signs", vectors["signs"], per_head._signs(vectors["signs"].size).astype(np.int8))
            own = per_head.rotate(flat, kept)
            yield Pair(f"{letter}_rotated", _wide(vectors[f"{letter}_rotated"][keep]), own.reshape(x[keep].shape))
            yield pair("slot", per_head.encode(flat, fmt, kept))
            flat = _wide(vectors[f"{letter}_rotated"][keep]).reshape(flat.shape)
        slots = per_head.encode(flat, fmt, kept, rotated=fmt == "int4")
        yield pair("slot", slots)
        codes, raw = slots[:, :-4], np.ascontiguousarray(slots[:, -4:])
        if fmt == "int4":
            yield pair("packed", codes)
            yield pair("scale_raw", raw.view(np.float32))
            yield pair("zero", raw[:, 0] & np.uint8(15))
            yield pair("scale", (raw.view(np.uint32) & np.uint32(0xFFFFFFF0)).view(np.float32))
            yield pair("dequant_rotated", per_head.decode(slots, fmt, rotated=True))
        else:
            yield pair("code", codes.view(vectors[f"{letter}_code"].dtype))
            yield pair("scale", raw.view(np.float32))
        yield pair("dequant", per_head.decode(slots, fmt))
        if x.dtype == np.float16:
            method = per_head.PerTokenHead(fmt)
            yield pair("slot", method.slots(method.quantize(_tensor(x[keep]))))


def turbo_quant(vectors: Vectors) -> Iterator[Pair]:
    """tq_*: codebook, slots and decoded values. Indices of keys are those of the stored rotated unit vectors.

    Ours from the keys themselves are compared where no other order of summation changes them (`k_near_midpoint`).
    """
    params = vectors.entry.params
    preset: turboquant.Preset = params["preset"].removeprefix("turboquant_")
    n_key, n_value = params["key_bytes"], params["value_bytes"]
    slot = vectors["slot"]
    bits = turboquant.PRESETS[preset][0]
    head_dim = vectors["key"].shape[-1]
    if "centroids" in vectors:
        centroids, midpoints = turboquant.codebook(bits, head_dim)
        yield Pair("centroids", vectors["centroids"], centroids)
        yield Pair("midpoints", vectors["midpoints"], midpoints)
    for side, letter in SIDES:
        x = vectors[side]
        keep = _rows(vectors, letter, len(x))
        at = slice(0, n_key) if side == "key" else slice(n_key, n_key + n_value)
        expected = slot[keep][..., at]
        flat, of_slot = _wide(x[keep]).reshape(-1, head_dim), expected.reshape(-1, expected.shape[-1])
        own = turboquant.encode(flat, preset, side)
        if side == "key" and bits < 8:
            yield Pair("slot (norms)", expected[..., -2:], own[:, -2:].reshape(expected[..., -2:].shape))
            yield Pair(
                "k_norm in FP16",
                vectors["k_norm"][keep].astype(np.float16),
                own[:, -2:].copy().view(np.float16).reshape(expected.shape[:-1]),
            )
            units = turboquant.encode(vectors["k_rotated_unit"][keep].reshape(flat.shape), preset, side, units=True)
            yield Pair("slot (key)", expected[..., :-2], units[:, :-2].reshape(expected[..., :-2].shape))
            codes, ours = (turboquant.unpacked(part[:, :-2], bits) for part in (of_slot, own))
            near = vectors["k_near_midpoint"][keep].reshape(codes.shape)
            yield Pair("slot (indices from keys)", codes, ours, ~near)
        else:
            yield Pair(f"slot ({side})", expected, own.reshape(expected.shape))
        name = f"{letter}_dequant"
        decoded = turboquant.decode(of_slot, preset, side, head_dim)
        yield Pair(name, vectors[name][keep], decoded.reshape(vectors[name][keep].shape))
        if x.dtype == np.float16:
            method = turboquant.TurboQuant(preset, side)
            packed = method.quantize(_tensor(x[keep]))
            stored = np.concatenate(
                [b.view(np.uint8).reshape(*expected.shape[:2], -1) for b in packed.buffers.values()], axis=2
            )[..., : expected.shape[-1]]
            yield Pair(f"slot ({side} of the method)", own.reshape(expected.shape), stored)
    yield Pair("slot (padding)", slot[..., n_key + n_value :], np.zeros_like(slot[..., n_key + n_value :]))


_FORMATS: tuple[Format, ...] = ("e4m3", "e5m2")


def fp8_tensor(vectors: Vectors) -> Iterator[Pair]:
    """fp8_tensor_*: codes x / scale, saturating, and code * scale in float32, of both formats."""
    x, scale = vectors["x"], vectors["k_scale"][0]
    for fmt in _FORMATS:
        codes = vectors[f"{fmt}_code"]
        yield Pair(f"{fmt}_code", codes, encode(_wide(x) / scale, fmt, saturate=True))
        yield Pair(f"{fmt}_dequant", vectors[f"{fmt}_dequant"], decode_table(fmt)[codes] * scale)
        if x.dtype == np.float16:
            packed = FP8(fmt, float(scale), saturate=True).quantize(_tensor(x))
            yield Pair(f"{fmt}_code of the method", codes, packed.buffers["codes"].reshape(codes.shape))


def fp8_tables(vectors: Vectors) -> Iterator[Pair]:
    """fp8_sat_tables: codes of all FP16 and BF16 patterns, saturating, NaN without its sign; values of all codes."""
    patterns = vectors["bits"]
    for kind, values in (("fp16", patterns.view(np.float16).astype(np.float32)), ("bf16", _wide(patterns))):
        for fmt in _FORMATS:
            codes = np.where(np.isnan(values), np.uint8(NAN_CODE), encode(values, fmt, saturate=True))
            yield Pair(f"{kind}_{fmt}", vectors[f"{kind}_{fmt}"], codes)
    for fmt in _FORMATS:
        yield Pair(f"{fmt}_decode_f32", vectors[f"{fmt}_decode_f32"], decode_table(fmt))
    yield Pair("e2m1_decode_f32", vectors["e2m1_decode_f32"], E2M1_VALUES)
    powers = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.nan))
    yield Pair("e8m0_decode_f32", vectors["e8m0_decode_f32"], powers)


def ds_mla(vectors: Vectors) -> Iterator[Pair]:
    """fp8_ds_mla_*, nvfp4_ds_mla_*: slots, scales and decoded values of a latent and its RoPE part."""
    fmt: latent.Format = "fp8" if vectors.entry.file.startswith("fp8") else "nvfp4"
    keep = _rows(vectors, "k", len(vectors["kv_c"]))
    rope = vectors["k_pe"][keep]
    x = np.concatenate([_wide(vectors["kv_c"][keep]), _wide(rope)], axis=1)
    slots = latent.encode(x, fmt, rope)
    yield Pair("slot", vectors["slot"][keep], slots)
    values = latent.decode(slots, fmt)
    if fmt == "fp8":
        scales = np.ascontiguousarray(slots[:, latent.LATENT : latent.LATENT + 16]).view(np.float32)
        yield Pair("scale", vectors["scale"][keep], scales)
        yield Pair("dequant_nope", vectors["dequant_nope"][keep], values)
    else:
        yield Pair("dequant_bf16", vectors["dequant_bf16"][keep], (values.view(np.uint32) >> 16).astype(np.uint16))
