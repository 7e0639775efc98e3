"""Checks of vLLM's cache formats: scales per token and head, TurboQuant, FP8 with one scale, slots of latent heads.

Inputs in BF16 are patterns (uint16). Inputs of all types are compared by the slow twins on float32, which
`tests/kernels_ref` holds the methods to, FP16 inputs also by the methods themselves.
"""

import re
from collections.abc import Iterable, Iterator

import numpy as np

import naive_vllm
from conformance.compare import Pair
from conformance.vectors import Vectors
from kernels_ref import latent, per_head, turboquant
from kernels_ref.fp8 import FP8, NAN_CODE, Format, decode_table, encode
from kernels_ref.minifloat import E2M1_VALUES

SIDES: tuple[tuple[turboquant.Side, str], ...] = (("key", "k"), ("value", "v"))
_KEPT = {"float16": "fp16", "float32": "fp32", "bfloat16": "bf16"}


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


def _fp16(values: np.ndarray) -> np.ndarray:
    """Decoded values as the methods give them."""
    return values.astype(np.float32).clip(-65504, 65504).astype(np.float16)


def _bytes(rows: Iterable[bytes]) -> np.ndarray:
    """uint8 [n, bytes]."""
    return np.array([np.frombuffer(row, np.uint8) for row in rows])


def per_token_head(vectors: Vectors) -> Iterator[Pair]:
    """pth_*: slots, codes, scales and decoded values by side; of int4 also the rotation, codes from stored `*_rotated`.

    The scale of an int4 slot has the zero point in its low bits. By the slow twin; of FP16 inputs by the method too.
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
            own = [naive_vllm.rotated(head, kept) for head in flat]
            turned = _wide(vectors[f"{letter}_rotated"][keep])
            yield Pair(f"{letter}_rotated", turned, np.array(own, np.float32).reshape(turned.shape))
            data, values = zip(*(naive_vllm.int4_of(head) for head in turned.reshape(flat.shape)), strict=True)
            slots = _bytes(data)
            codes, raw = slots[:, :-4], np.ascontiguousarray(slots[:, -4:])
            yield pair("packed", codes)
            yield pair("scale_raw", raw.view(np.float32))
            yield pair("zero", raw[:, 0] & np.uint8(15))
            yield pair("scale", (raw.view(np.uint32) & np.uint32(0xFFFFFFF0)).view(np.float32))
            yield pair("dequant_rotated", np.array(values, np.float32))
            seen = np.array([naive_vllm.rotated_back(list(head)) for head in values], np.float32)
        else:
            data, values = zip(*(naive_vllm.per_head(head, fmt) for head in flat), strict=True)
            slots, seen = _bytes(data), np.array(values, np.float32)
            codes, raw = slots[:, :-4], np.ascontiguousarray(slots[:, -4:])
            yield pair("code", codes.view(vectors[f"{letter}_code"].dtype))
            yield pair("scale", raw.view(np.float32))
        yield pair("slot", slots)
        yield pair("dequant", seen)
        if x.dtype == np.float16:
            method = per_head.PerTokenHead(fmt)
            packed = method.quantize(_tensor(x[keep]))
            yield pair("slot", method.slots(packed))
            decoded = packed.dequantize()[0].transpose(1, 0, 2)
            yield Pair(f"{letter}_dequant in FP16", _fp16(vectors[f"{letter}_dequant"][keep]), decoded)


def turbo_quant(vectors: Vectors) -> Iterator[Pair]:
    """tq_*: codebook, slots and decoded values. Indices of keys are those of the stored rotated unit vectors.

    Ours from the keys themselves are compared where no other order of summation changes them (`k_near_midpoint`).
    By the slow twin; of FP16 inputs the method's bytes are the twin's.
    """
    params = vectors.entry.params
    preset: turboquant.Preset = params["preset"].removeprefix("turboquant_")
    n_key, n_value = params["key_bytes"], params["value_bytes"]
    slot = vectors["slot"]
    head_dim = vectors["key"].shape[-1]
    centroids, midpoints = turboquant.codebook(turboquant.PRESETS[preset][0], head_dim)
    if "centroids" in vectors:
        yield Pair("centroids", vectors["centroids"], centroids)
        yield Pair("midpoints", vectors["midpoints"], midpoints)
    for side, letter in SIDES:
        x, bits = vectors[side], turboquant.PRESETS[preset][side == "value"]
        keep = _rows(vectors, letter, len(x))
        at = slice(0, n_key) if side == "key" else slice(n_key, n_key + n_value)
        expected = slot[keep][..., at]
        flat, of_slot = _wide(x[keep]).reshape(-1, head_dim), expected.reshape(-1, expected.shape[-1])
        if bits == 8:
            own = _bytes(bytes(map(naive_vllm.e4m3, head)) for head in flat)
            decoded = [[naive_vllm.e4m3_value(code) for code in head] for head in of_slot]
        elif side == "value":
            own = _bytes(naive_vllm.turbo_value(head, bits)[0] for head in flat)
            decoded = [naive_vllm.turbo_values(head.tobytes(), bits) for head in of_slot]
        else:
            own = _bytes(naive_vllm.turbo_key(head, bits, centroids, midpoints)[0] for head in flat)
            decoded = [naive_vllm.turbo_turned(head.tobytes(), bits, centroids) for head in of_slot]
        if side == "key" and bits < 8:
            yield Pair("slot (norms)", expected[..., -2:], own[:, -2:].reshape(expected[..., -2:].shape))
            yield Pair(
                "k_norm in FP16",
                vectors["k_norm"][keep].astype(np.float16),
                own[:, -2:].copy().view(np.float16).reshape(expected.shape[:-1]),
            )
            units = vectors["k_rotated_unit"][keep].reshape(flat.shape)
            indices = [naive_vllm.packed(naive_vllm.turbo_indices(unit, midpoints), bits) for unit in units]
            yield Pair("slot (key)", expected[..., :-2], _bytes(indices).reshape(expected[..., :-2].shape))
            codes, ours = (
                np.array([naive_vllm.unpacked(head[:-2].tobytes(), bits) for head in part], np.uint8)
                for part in (of_slot, own)
            )
            near = vectors["k_near_midpoint"][keep].reshape(codes.shape)
            yield Pair("slot (indices from keys)", codes, ours, ~near)
        else:
            yield Pair(f"slot ({side})", expected, own.reshape(expected.shape))
        name = f"{letter}_dequant"
        yield Pair(name, vectors[name][keep], np.array(decoded, np.float16).reshape(vectors[name][keep].shape))
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
    """fp8_ds_mla_*, nvfp4_ds_mla_*: slots, scales and decoded values of a latent and its RoPE part, by the slow twin.

    Of FP16 inputs by the method too.
    """
    fmt: latent.Format = "fp8" if vectors.entry.file.startswith("fp8") else "nvfp4"
    keep = _rows(vectors, "k", len(vectors["kv_c"]))
    parts = vectors["kv_c"][keep], vectors["k_pe"][keep]
    x = np.concatenate([_wide(part) for part in parts], axis=1)
    if fmt == "fp8":
        with np.errstate(over="ignore"):  # 448 times a scale of 2^120 is infinite there too
            twins = [naive_vllm.latent_fp8(row, rope) for row, rope in zip(x, parts[1], strict=True)]
    else:
        twins = [naive_vllm.latent_nvfp4(row) for row in x]
    slots, values = _bytes(data for data, _ in twins), np.array([seen for _, seen in twins], np.float32)
    yield Pair("slot", vectors["slot"][keep], slots)
    if fmt == "fp8":
        scales = np.ascontiguousarray(slots[:, latent.LATENT : latent.LATENT + 16]).view(np.float32)
        yield Pair("scale", vectors["scale"][keep], scales)
        yield Pair("dequant_nope", vectors["dequant_nope"][keep], values)
    else:
        yield Pair("dequant_bf16", vectors["dequant_bf16"][keep], (values.view(np.uint32) >> 16).astype(np.uint16))
    if parts[0].dtype == np.float16:
        method = latent.Latent(fmt)
        yield Pair("slot", vectors["slot"][keep], method.slots(method.quantize(np.concatenate(parts, axis=1))))
