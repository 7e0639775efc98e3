"""Checks of the formats with block scales: NVFP4 and MX."""

import re
from collections.abc import Iterator

import numpy as np

import naive_scaled
from conformance import mx_libraries
from conformance.compare import Pair
from conformance.vectors import Vectors
from kernels_ref import mx, nvfp4
from kernels_ref.fp8 import decode_table
from kernels_ref.minifloat import E2M1_VALUES

#: slots of a page of NVFP4 files
_SLOTS = 16


def wide(x: np.ndarray) -> np.ndarray:
    """float32 of FP16, float32 or of BF16 patterns."""
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32) if x.dtype == np.uint16 else x.astype(np.float32)


def _flat(x: np.ndarray) -> np.ndarray:
    """[..., channels] as [rows, channels]."""
    return x.reshape(-1, x.shape[-1])


def packed_of(codes: np.ndarray) -> np.ndarray:
    """Two codes a byte, the first one low."""
    return codes[..., ::2] | codes[..., 1::2] << np.uint8(4)


def _like(vectors: Vectors, name: str, found: np.ndarray) -> Pair:
    expected = vectors[name]
    return Pair(name, expected, found.reshape(expected.shape))


def _quantized(x: np.ndarray, method: nvfp4.NVFP4 | mx.MX) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Packed codes, scales and decoded FP16 of FP16 x by the cache's own way."""
    packed = method.quantize(_flat(x))
    return packed.buffers["codes"], packed.buffers["scales"], packed.dequantize()


def _as_fp16(values: np.ndarray) -> np.ndarray:
    return values.clip(-65504, 65504).astype(np.float16)


def nvfp4_cache(vectors: Vectors) -> Iterator[Pair]:
    """nvfp4_{vllm,flashinfer}_*, nvfp4_4over6_vllm_*: codes, scales, decoded values and pages of keys and values."""
    found = re.match(r"nvfp4_(4over6|vllm|flashinfer)_", vectors.entry.file)
    if not found:
        raise ValueError("the name says no writer: must have one of 4over6, vllm, flashinfer")
    code: nvfp4.Code = found[1]  # type: ignore[assignment]
    stored = {}
    for side, letter in (("key", "k"), ("value", "v")):
        x, scale = vectors[side], float(vectors[f"{letter}_scale"][0])
        codes, scales, decoded = naive_scaled.nvfp4_rows(_flat(wide(x)), np.float32(scale), code)
        yield _like(vectors, f"{letter}_packed", packed_of(codes))
        yield _like(vectors, f"{letter}_sf", scales)
        yield _like(vectors, f"{letter}_dequant", decoded)
        if f"{letter}_differs_from_nvfp4" in vectors:
            plain = naive_scaled.nvfp4_rows(_flat(wide(x)), np.float32(scale), "vllm")
            differs = (plain[0] != codes).reshape(*scales.shape, -1).any(axis=-1) | (plain[1] != scales)
            yield _like(vectors, f"{letter}_differs_from_nvfp4", differs)
        if x.dtype == np.float16:
            ours = _quantized(x, nvfp4.NVFP4(scale, code))
            yield _like(vectors, f"{letter}_packed", ours[0])
            yield _like(vectors, f"{letter}_sf", ours[1])
            yield Pair(f"{letter}_dequant in FP16", _as_fp16(_flat(vectors[f"{letter}_dequant"])), ours[2])
        stored[letter] = packed_of(codes).reshape(*x.shape[:2], -1), scales.reshape(*x.shape[:2], -1)
    for layout in ("HND", "NHD"):
        if f"page_{layout.lower()}" in vectors:
            yield _like(vectors, f"page_{layout.lower()}", _pages(stored, layout))


def _page(codes: np.ndarray, scales: np.ndarray, swizzled: bool, layout: str) -> np.ndarray:
    """One side of a page of vLLM's cache as bytes: packed codes, then scales; a multiple of 4 blocks a head.

    codes uint8 [slots, heads, head_dim / 2], scales uint8 [slots, heads, blocks]; HND puts heads outside slots.
    `swizzled` (values on SM100): with S blocks, the scale of slot t and block s is at slot 4 * (t / 4) + s / (S / 4),
    block 4 * (s % (S / 4)) + t % 4.
    """
    if swizzled:
        n_slots, n_blocks = scales.shape[0], scales.shape[2]
        t, s = np.arange(n_slots)[:, None], np.arange(n_blocks)[None, :]
        quarter = n_blocks // 4
        moved = np.empty_like(scales)
        moved[4 * (t // 4) + s // quarter, :, 4 * (s % quarter) + t % 4] = scales.transpose(0, 2, 1)
        scales = moved
    order = (1, 0, 2) if layout == "HND" else (0, 1, 2)
    return np.concatenate([part.transpose(order).reshape(-1) for part in (codes, scales)])


def _pages(stored: dict[str, tuple[np.ndarray, np.ndarray]], layout: str) -> np.ndarray:
    """Whole pages of keys and values [tokens, heads, ...]; unused slots are 0."""
    n_tokens = len(stored["k"][0])
    pages = []
    for first in range(0, n_tokens, _SLOTS):
        parts = []
        for letter, arrays in stored.items():
            cut = [np.zeros((_SLOTS, *array.shape[1:]), np.uint8) for array in arrays]
            for slots, array in zip(cut, arrays, strict=True):
                slots[: n_tokens - first] = array[first : first + _SLOTS]
            parts.append(_page(cut[0], cut[1], swizzled=letter == "v", layout=layout))
        pages.append(np.concatenate(parts))
    return np.stack(pages)


def nvfp4_libraries(vectors: Vectors) -> Iterator[Pair]:
    """nvfp4_{torchao,modelopt,vllmref}_*: the same format in other libraries, codes and scales or their values."""
    x = _flat(wide(vectors["x"]))
    if "two_level_global" in vectors:
        for level, code in (("two_level", "torchao"), ("one_level", "torchao_one_level")):
            factor = np.float32(vectors["two_level_global"][0] if level == "two_level" else 1)
            codes, scales, decoded = naive_scaled.nvfp4_rows(x, factor, code)
            yield _like(vectors, f"{level}_packed", packed_of(codes))
            yield _like(vectors, f"{level}_sf", scales)
            yield _like(vectors, f"{level}_dequant", decoded)
        return
    code = "modelopt" if "packed" in vectors else "vllmref"
    codes, scales, decoded = naive_scaled.nvfp4_rows(x, np.float32(vectors["global_scale"][0]), code)
    if code == "modelopt":
        yield _like(vectors, "packed", packed_of(codes))
        yield _like(vectors, "sf", scales)
    else:
        yield _like(vectors, "e2m1_values", E2M1_VALUES[codes])
        yield _like(vectors, "sf_f32", decode_table("e4m3")[scales])
    yield _like(vectors, "dequant", decoded)


def _type(vectors: Vectors) -> mx.Type:
    return vectors.entry.file.partition("_")[0]  # type: ignore[return-value]


def _mx_pairs(vectors: Vectors, prefix: str, name: mx.Type, rule: mx.Rule) -> Iterator[Pair]:
    """Codes, scales and values of a rule, and those of the cache's own way where the input is FP16."""
    x = vectors["x"]
    scales = mx_libraries.scale_bytes(_flat(wide(x)), name, rule)
    codes = mx_libraries.codes_with(_flat(wide(x)), scales, name, rule)
    array = f"{prefix}packed" if f"{prefix}packed" in vectors else f"{prefix}code"
    four = array.endswith("packed")
    yield _like(vectors, array, packed_of(codes) if four else codes)
    yield _like(vectors, f"{prefix}scale", scales)
    yield _like(vectors, f"{prefix}dequant", mx.decode(codes, scales, name))
    if x.dtype == np.float16:
        ours = _quantized(x, mx.MX(name, rule))
        yield _like(vectors, array, ours[0])
        yield _like(vectors, f"{prefix}scale", ours[1])
        yield Pair(f"{prefix}dequant in FP16", _as_fp16(_flat(vectors[f"{prefix}dequant"])), ours[2])


def mx_torchao(vectors: Vectors) -> Iterator[Pair]:
    """mxfp4_torchao_*, mxfp8_torchao_*: codes, scales and values by each of the four rules."""
    rules: tuple[mx.Rule, ...] = ("floor", "rceil", "ceil", "even")
    for rule in rules:
        yield from _mx_pairs(vectors, f"{rule}_", _type(vectors), rule)


def mx_microxcaling(vectors: Vectors) -> Iterator[Pair]:
    """mxfp4_microxcaling_*, mxfp8_microxcaling_*: exponents and decoded values, three ways of rounding."""
    x, name = wide(vectors["x"]), _type(vectors)
    yield _like(vectors, "shared_exp", mx_libraries.microxcaling_exponents(x, name))  # type: ignore[arg-type]
    roundings: tuple[mx_libraries.Rounding, ...] = ("nearest", "even", "floor")
    for rounding in roundings:
        values = mx_libraries.microxcaling_values(x, name, rounding)  # type: ignore[arg-type]
        yield _like(vectors, f"{rounding}_dequant", values)


def mxfp4_gguf(vectors: Vectors) -> Iterator[Pair]:
    """mxfp4_gguf_*: blocks and decoded values."""
    blocks = mx_libraries.gguf_blocks(wide(vectors["x"]))
    yield _like(vectors, "blocks", blocks)
    yield _like(vectors, "dequant", mx_libraries.gguf_values(blocks))


def mxfp4_vllm(vectors: Vectors) -> Iterator[Pair]:
    """mxfp4_vllmref_*: decoded values in BF16."""
    yield _like(vectors, "dequant_bf16", mx_libraries.vllm_mxfp4_values(_flat(wide(vectors["x"]))))


def mxfp8_vllm(vectors: Vectors) -> Iterator[Pair]:
    """mxfp8_vllm_*: codes, scales, decoded values."""
    yield from _mx_pairs(vectors, "", "mxfp8", "vllm")


def mxfp8_sglang(vectors: Vectors) -> Iterator[Pair]:
    """mxfp8_sglang_*: codes, scales, decoded values and scales as they lie in pages."""
    yield from _mx_pairs(vectors, "", "mxfp8", "sglang")
    scales, pages = vectors["scale"], vectors["scale_pages"]
    # the token in slot t is at page t / 128, row t % 32, column (t % 128) / 32
    found, slots = np.zeros((len(pages), scales.shape[1], 32, 4, scales.shape[2]), np.uint8), vectors["slots"]
    found[slots // 128, :, slots % 32, slots % 128 // 32] = scales
    yield Pair("scale_pages", pages, found)


def fp4_mx_block16(vectors: Vectors) -> Iterator[Pair]:
    """fp4_mx_block16_sglang_*: codes, scales, decoded values, compiled and eager."""
    yield from _mx_pairs(vectors, "compiled_", "fp4_mx_block16", "sglang")
    x = vectors["x"]
    codes, scales = mx_libraries.sglang_eager(wide(x), "bfloat16" if x.dtype == np.uint16 else x.dtype.name)
    yield _like(vectors, "eager_packed", packed_of(codes))
    yield _like(vectors, "eager_scale", scales)
    yield _like(vectors, "eager_dequant", mx.decode(codes, scales, "fp4_mx_block16"))
