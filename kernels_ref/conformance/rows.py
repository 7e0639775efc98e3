"""Golden files of the methods that quantise token vectors one by one: NF4, INT8 per token, FP8."""

import re
from collections.abc import Iterator

import numpy as np

from kernels_ref.conformance.compare import Pair
from kernels_ref.conformance.vectors import Vectors
from kernels_ref.formats import FORMATS
from kernels_ref.fp8 import FP8, Format, decode_table, encode
from kernels_ref.integers import PerTokenInteger
from kernels_ref.nf4 import CODEBOOK, NF4


def nf4(vectors: Vectors) -> Iterator[Pair]:
    """nf4_*: per block size B a vector x_bB, its packed codes, absmax and decoded values (bitsandbytes on CPU)."""
    yield Pair("codebook_f32", vectors["codebook_f32"], CODEBOOK)
    for name in vectors:
        if block := re.fullmatch(r"x_b(\d+)", name):
            b = f"b{block[1]}"
            packed = NF4(int(block[1]), "fp32").quantize(vectors[name])
            yield Pair(f"packed_{b}", vectors[f"packed_{b}"], packed.buffers["codes"].reshape(-1))
            yield Pair(f"absmax_{b}", vectors[f"absmax_{b}"], packed.buffers["absmax"].reshape(-1))
            yield Pair(f"dequant_{b}", vectors[f"dequant_{b}"], packed.dequantize())


def int8(vectors: Vectors) -> Iterator[Pair]:
    """base_int8_pertoken: codes, absmax of rows and decoded values (bitsandbytes' int8_vectorwise_quant)."""
    packed = PerTokenInteger(bits=8).quantize(vectors["x"])
    yield Pair("code", vectors["code"], packed.buffers["codes"])
    yield Pair("row_absmax", vectors["row_absmax"], packed.buffers["absmax"][:, 0])
    yield Pair("dequant", vectors["dequant"], packed.dequantize())


def fp8(vectors: Vectors) -> Iterator[Pair]:
    """fp8_tables: both formats' code of every FP16 pattern, the value of every code (PyTorch's casts).

    The cast is compared on all patterns, the cache's way in and out on the finite ones.
    """
    patterns = vectors["fp16_bits"]
    values = patterns.view(np.float16)
    finite = np.isfinite(values)
    formats: tuple[tuple[str, Format], ...] = (("e4m3fn", "e4m3"), ("e5m2", "e5m2"))
    for name, fmt in formats:
        codes, decoded = vectors[name], vectors[f"{name}_decode_fp16"]
        with np.errstate(invalid="ignore", over="ignore"):
            yield Pair(name, codes, encode(values.astype(np.float32), fmt))
            yield Pair(f"{name}_decode_fp16", decoded, decode_table(fmt).astype(np.float16))
        packed = FP8(fmt).quantize(values[finite])
        yield Pair(f"{name} of finite values", codes[finite], packed.buffers["codes"][0])
        yield Pair(f"{name}_decode_fp16 of finite values", decoded[codes[finite]], packed.dequantize())


def hf_fp8(vectors: Vectors) -> Iterator[Pair]:
    """hf_fp8: transformers' FP8 layer, two updates with the scale of the first one."""
    for side, name in (("key", "k"), ("value", "v")):
        x = np.concatenate([vectors[side], vectors[f"{side}_step2"]], axis=2)
        codes = vectors[f"{name}_code"]
        n_batch, n_heads, n_tokens, head_dim = codes.shape
        scale = vectors[f"{name}_scale"]
        largest = np.float32(FORMATS["fp8_e4m3"].largest)
        measured = np.abs(vectors[side].astype(np.float32)).max() / largest
        yield Pair(f"{name}_scale", scale, np.full(scale.shape, measured))
        packed = FP8(scale=float(scale.reshape(-1)[0])).quantize(x)
        by_token = packed.buffers["codes"].reshape(n_batch, n_tokens, n_heads, head_dim)
        yield Pair(f"{name}_code", codes, by_token.transpose(0, 2, 1, 3))
        yield Pair(f"{name}_out", vectors[f"{name}_out"], packed.dequantize())
