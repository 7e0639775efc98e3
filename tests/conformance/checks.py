"""Checks of golden files by family: each yields pairs of arrays, the file's and the kernel's."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import naive_ggml
from conformance import blocks, vllm
from conformance.compare import Pair
from conformance.vectors import Vectors
from kernels_ref.atom import Atom
from kernels_ref.cache import Side
from kernels_ref.formats import FORMATS, storage
from kernels_ref.fp8 import FP8, Format, decode_table, encode
from kernels_ref.ggml import GGML, TYPES, Code
from kernels_ref.integers import PerTokenInteger
from kernels_ref.kivi import KIVI
from kernels_ref.kvquant import KVQuantKeys, KVQuantValues
from kernels_ref.nf4 import CODEBOOK, NF4
from kernels_ref.oaken import Oaken, Profiler
from kernels_ref.packed import Packed
from kernels_ref.qserve import QServe
from kernels_ref.sinkq import SinkQ, SinkQCache
from kernels_ref.tender import Tender
from studies.quanto import Quanto

SIDES: tuple[tuple[Side, str], ...] = (("key", "k"), ("value", "v"))


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


def kivi(vectors: Vectors) -> Iterator[Pair]:
    """kivi_*: {k,v}_b{bits}_g{group}_{code,scale,mn,dequant} and, of keys, the released kernels' triton_code."""
    for side, letter in SIDES:
        for name in vectors:
            if found := re.fullmatch(rf"{letter}_b(\d+)_g(\d+)_code", name):
                bits, group = int(found[1]), int(found[2])
                yield from _kivi_groups(vectors, side, f"{letter}_b{bits}_g{group}", bits, group)


def _kivi_groups(vectors: Vectors, side: Side, name: str, bits: int, group: int) -> Iterator[Pair]:
    method = KIVI(bits, group, residual=0, overflow="propagate")
    packed = method.quantize(vectors[side], side)
    words, scales, mins = (packed.buffers[f"{side}_{part}"] for part in ("codes", "scales", "mins"))
    yield from _groups_of(vectors, side, name, bits, group, words, scales, mins)
    expected = vectors[f"{name}_scale"].reshape(scales.shape)
    finite = _spread(np.isfinite(expected), side, group)
    yield Pair(f"{name}_dequant", vectors[f"{name}_dequant"], packed.dequantize(), finite)
    if f"{name}_triton_code" in vectors:
        transposed = KIVI(bits, group, residual=0, overflow="propagate", key_layout="triton").quantize(
            vectors[side], side
        )
        good = np.swapaxes(_defined(expected, side, bits, group), 2, 3)
        yield Pair(f"{name}_triton_code", vectors[f"{name}_triton_code"], transposed.buffers[f"{side}_codes"], good)


def _groups_of(
    vectors: Vectors,
    side: Side,
    name: str,
    bits: int,
    group: int,
    words: np.ndarray,
    scales: np.ndarray,
    mins: np.ndarray,
) -> Iterator[Pair]:
    """Words, scales and minima of packed groups; the golden scales and minima have an axis of length 1 more."""
    expected = vectors[f"{name}_scale"].reshape(scales.shape)
    yield Pair(f"{name}_code", vectors[f"{name}_code"], words, _defined(expected, side, bits, group))
    yield Pair(f"{name}_scale", expected, scales)
    yield Pair(f"{name}_mn", vectors[f"{name}_mn"].reshape(mins.shape), mins)


def _spread(of_group: np.ndarray, side: Side, n: int) -> np.ndarray:
    """A value of each group, [batch, heads, groups, channels] or [..., tokens, groups], n times along its axis."""
    return np.repeat(of_group, n, axis=2 if side == "key" else 3)


def _defined(scales: np.ndarray, side: Side, bits: int, group: int) -> np.ndarray:
    """Words whose codes are defined: where the scale is 0 or not finite, NaN as an integer is the platform's choice."""
    return _spread(np.isfinite(scales) & (scales != 0), side, group * bits // storage.word)


def sinkq(vectors: Vectors) -> Iterator[Pair]:
    """sinkq_*: sinks, evicted tokens and whether tracking stopped, by event; packed groups; the effective cache.

    An event is the packing of one group. The cache is filled twice, once from event to event and once as one prompt.
    """
    params = vectors.entry.params
    method = SinkQ(params["bits"], params["G"], params["R"], params["sink_num"], params["window"], overflow="propagate")
    key, value = vectors["key"], vectors["value"]
    cache, states = method.cache(), []
    n_tokens = key.shape[2]
    ends = list(range(method.group + method.residual, n_tokens + 1, method.group))
    for start, end in zip([0, *ends], [*ends, n_tokens], strict=True):
        cache.append(key[:, :, start:end], value[:, :, start:end])
        states.append((cache.pool_positions, cache.n_evicted, cache.stopped))
    pools, evicted, stopped = (np.stack(state, axis=2) for state in zip(*states[: len(ends)], strict=True))
    yield Pair("pool_positions", vectors["pool_positions"], _padded(pools, vectors["pool_positions"]))
    yield Pair("evicted_count", vectors["evicted_count"], evicted.astype(np.int32))
    yield Pair("frozen", vectors["frozen"], stopped.astype(np.uint8))
    yield Pair("n_events", vectors["n_events"], np.array([len(ends)]))
    for name, filled in (("", cache), (" of one prompt", method.quantize(key, value))):
        for pair in _sinkq_end(vectors, method, filled):
            yield Pair(pair.name + name, pair.expected, pair.found, pair.where)


def _sinkq_end(vectors: Vectors, method: SinkQ, cache: SinkQCache) -> Iterator[Pair]:
    window = vectors["window_positions"]
    yield Pair("window_positions", window, _padded(cache.window_positions, window))
    n_packed = method.n_packed(cache.n_tokens)
    yield Pair("n_quantized", vectors["n_quantized"], np.array([n_packed]))
    yield Pair("replaced_mask", vectors["replaced_mask"], _kept(cache, n_packed))
    for (side, letter), effective in zip(SIDES, cache.seen(), strict=True):
        buffers = [cache.buffers[f"{side}_{part}"] for part in ("codes", "scales", "mins")]
        group = method.group if side == "key" else min(method.group, effective.shape[3])
        yield from _groups_of(vectors, side, letter, method.bits, group, *buffers)
        yield Pair(f"{letter}_dequant", vectors[f"{letter}_dequant"], cache.decoded(side))
        yield Pair(f"{letter}_effective", vectors[f"{letter}_effective"], effective)


def _padded(positions: np.ndarray, like: np.ndarray) -> np.ndarray:
    """With -1 for no token up to the width of `like`."""
    missing = max(like.shape[-1] - positions.shape[-1], 0)
    return np.pad(positions, [(0, 0)] * (positions.ndim - 1) + [(0, missing)], constant_values=-1)


def _kept(cache: SinkQCache, n_packed: int) -> np.ndarray:
    """1 for every packed token that is also kept apart: in its group the mean stands for it."""
    kept = np.concatenate([cache.pool_positions, cache.window_positions], axis=2)
    # -1, no token, lands in a column of its own
    mask = np.zeros((*kept.shape[:2], n_packed + 1), np.uint8)
    np.put_along_axis(mask, np.where(kept < 0, n_packed, kept).astype(np.int64), 1, axis=2)
    return mask[:, :, :n_packed]


#: beginning of an output's name -> options of the artifact, and the kind of oracle where it is not the file's
_OUTPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "out_cpu": ({}, ""),
    "out_cudasem": ({"device_semantics": "cuda"}, "shim"),
    "out_cpu_noshift": ({"group_shift": False}, ""),
    "out_inlieronly": ({"quantize_outlier": False}, ""),
}


def oaken_artifact(vectors: Vectors) -> Iterator[Pair]:
    """oaken_*: thresholds per layer, groups and outputs of the released code for keys and values."""
    yield from _thresholds(vectors)
    for which, _ in SIDES:
        x, groups = vectors[which], vectors[f"group_{which}"]
        lower, upper = vectors[f"{which}_lower"], vectors[f"{which}_upper"]
        for layer in range(len(x)):
            tokens = x[layer].reshape(-1, x.shape[-1])
            # groups of the released code go by position: `dense` is of no consequence
            thresholds = (tuple(lower[layer, :-1]), tuple(upper[layer, :-1]))
            method = Oaken(*thresholds, dense=1, mode="artifact")
            found = method.groups(tokens).reshape(groups[layer].shape)
            yield Pair(f"group_{which}[{layer}]", groups[layer], found)
            counts = np.array([np.count_nonzero(found == group) for group in range(lower.shape[1])], np.float32)
            shares = (counts / np.float32(found.size)).astype(np.float64)
            yield Pair(f"val_frac_{which}[{layer}]", vectors[f"val_frac_{which}"][layer], shares)
            for name, (options, kind) in _OUTPUTS.items():
                if f"{name}_{which}" in vectors:
                    method = Oaken(*thresholds, dense=1, mode="artifact", **options)
                    found = method.fake_quantize(tokens, nonfinite="propagate")
                    expected = vectors[f"{name}_{which}"][layer]
                    yield Pair(f"{name}_{which}[{layer}]", expected, found.reshape(expected.shape), kind=kind)


def _thresholds(vectors: Vectors) -> Iterator[Pair]:
    profiler = Profiler(tuple(vectors["fracs"].tolist()))
    for which, _ in SIDES:
        for run in vectors[f"profile_{which}"]:
            for layer, x in enumerate(run):
                profiler.add(layer, which, x.reshape(-1, x.shape[-1]))
    found = profiler.thresholds()
    for name in ("key_lower", "key_upper", "value_lower", "value_upper"):
        yield Pair(name, vectors[name], np.array(getattr(found, name)))


def oaken_paper(vectors: Vectors) -> Iterator[Pair]:
    """oakenpaper_*: packed buffers, groups and decoded values of paper mode with three groups."""
    outer_low, inner_low, inner_high, outer_high = vectors["thresholds_olo_ilo_ihi_ohi"].tolist()
    method = Oaken((outer_low, inner_low), (outer_high, inner_high))
    x = vectors["x"]
    packed = method.quantize(x)
    for name in ("dense", "coo", "counts", "meta"):
        yield Pair(name, vectors[name], packed.buffers[name])
    yield Pair("group", vectors["group"], method.groups(x))
    yield Pair("dequant", vectors["dequant"], packed.dequantize())


def _flat(x: np.ndarray) -> np.ndarray:
    """[..., tokens, channels] as [tokens, channels]."""
    return x.reshape(-1, x.shape[-1])


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """The codes of `bits` bits in bytes [rows, n], the first element lowest: uint8 [rows, 8 / bits * n]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((packed[:, :, None] >> shifts) & np.uint8(2**bits - 1)).reshape(len(packed), -1)


def smooth_factors(key: np.ndarray) -> np.ndarray:
    """QServe's factors as Oaken's artifact derives them from keys [tokens, channels]: h(sqrt(max |K|)), of zeros 1."""
    largest = np.abs(key).max(axis=0).astype(np.float32)
    return np.where(largest > 0, np.sqrt(largest), 1).astype(np.float16)


def qserve(vectors: Vectors) -> Iterator[Pair]:
    """base_qserve: keys smoothed by channel and values, both per token over all channels."""
    key, factors = vectors["key"], vectors["smooth_scale"]
    yield Pair("smooth_scale", factors, smooth_factors(_flat(key)))
    for name, x, smooth in (("k_out", key, tuple(factors.tolist())), ("v_out", vectors["value"], None)):
        packed = QServe("artifact", smooth).quantize(_flat(x))
        yield Pair(name, vectors[name], packed.dequantize().reshape(x.shape))


def atom(vectors: Vectors) -> Iterator[Pair]:
    """base_atom: keys and values in 4 bits per head vector."""
    for side, letter in SIDES:
        name = f"atom_{letter}"
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


#: beginning of a ggml file's name -> whose code made it
_GGML_CODES: dict[str, Code] = {"gguf": "gguf", "ggml_ref": "ggml", "ggml_x86avx2": "avx2"}


def ggml(vectors: Vectors) -> Iterator[Pair]:
    """gguf_*, ggml_ref_*, ggml_x86avx2_*: blocks, d and m in them, decoded float32; rows in skip_rows left out.

    By the slow twin on float32; of FP16 inputs also by `GGML`.
    """
    found = re.match(rf"({'|'.join(_GGML_CODES)})_({'|'.join(TYPES)})_", vectors.entry.file)
    if not found:
        raise ValueError(f"the name says no type: must have one of {', '.join(TYPES)}")
    code, name = _GGML_CODES[found[1]], found[2]
    x = vectors["x"]
    rows = np.ones(x.shape[0], bool)
    rows[vectors.entry.params.get("skip_rows", [])] = False
    flat = x[rows].reshape(-1, x.shape[-1])
    wide = (flat.astype(np.uint32) << np.uint32(16)).view(np.float32) if x.dtype == np.uint16 else flat
    blocks, decoded = naive_ggml.rows(wide, name, code)
    by_block = blocks.reshape(*x[rows].shape[:-1], x.shape[-1] // storage.ggml_block, -1)
    for array, at in (("d_fp16", slice(0, 2)), ("m_fp16", slice(2, 4))):
        if array in vectors:
            stored = np.ascontiguousarray(by_block[..., at]).view(vectors[array].dtype)[..., 0]
            yield Pair(array, vectors[array][rows], stored.reshape(vectors[array][rows].shape))
    expected = vectors["blocks"][rows]
    yield Pair("blocks", expected, blocks.reshape(expected.shape))
    if "dequant" in vectors:
        yield Pair("dequant", vectors["dequant"][rows], decoded.reshape(x[rows].shape))
    if x.dtype == np.float16:
        packed = GGML(name, code).quantize(flat)  # type: ignore[arg-type]
        yield Pair("blocks", expected, GGML(name, code).blocks(packed).reshape(expected.shape))  # type: ignore[arg-type]
        if "dequant" in vectors:
            found_fp16 = vectors["dequant"][rows].clip(-65504, 65504).astype(np.float16)
            yield Pair("dequant in FP16", found_fp16, packed.dequantize().reshape(x[rows].shape))


@dataclass(frozen=True)
class Method:
    """A family of golden files: its name in reports, and the check that yields what is compared.

    `informative_too`: also compared where the file is informative. `unread`: why arrays are left out, if some are.
    """

    label: str
    check: Callable[[Vectors], Iterator[Pair]]
    informative_too: bool = False
    unread: str = "no check asks for it"


#: why masks of such codes are not asked for
_GPU = "informative: where a GPU's approximate division may give another code: no values"
_FUSED = "informative: where multiplications and additions that fuse would differ"

#: by the beginning of the file's name; the longest that fits counts
METHODS = {
    "oaken_": Method("Oaken, artifact", oaken_artifact),
    "oaken_nonfinite": Method("Oaken, artifact", oaken_artifact, informative_too=True),
    "oakenpaper_": Method("Oaken, paper", oaken_paper),
    "kivi_": Method("KIVI", kivi),
    "sinkq_": Method("SinkQ", sinkq),
    "nf4_": Method("NF4", nf4),
    "base_qserve": Method("QServe", qserve),
    "base_atom": Method("Atom", atom, unread="codes of activations, not of a cache"),
    "base_tender": Method("Tender", tender),
    "base_kvquant": Method("KVQuant (artifact)", kvquant, informative_too=True),
    "hf_quanto": Method("Quanto", quanto),
    "base_int8_pertoken": Method("INT8 per token", int8),
    "fp8_tables": Method("FP8 E4M3, E5M2", fp8),
    "hf_fp8": Method("FP8 (transformers)", hf_fp8, informative_too=True),
    "gguf_q": Method("llama.cpp cache type", ggml),
    "ggml_": Method("llama.cpp cache type", ggml),
    "pth_": Method("vLLM per token and head", vllm.per_token_head, unread=_GPU),
    "tq_": Method("TurboQuant", vllm.turbo_quant),
    "fp8_tensor_": Method("FP8, saturating", vllm.fp8_tensor),
    "fp8_sat_tables": Method("FP8, saturating", vllm.fp8_tables),
    "fp8_ds_mla_": Method("latent slots", vllm.ds_mla),
    "nvfp4_ds_mla_": Method("latent slots", vllm.ds_mla),
    **{
        f"nvfp4_{writer}_": Method("NVFP4", blocks.nvfp4_cache, unread=_FUSED)
        for writer in ("vllm", "4over6", "flashinfer")
    },
    **{f"nvfp4_{name}_": Method("NVFP4", blocks.nvfp4_libraries) for name in ("torchao", "modelopt", "vllmref")},
    **{f"{name}_torchao_": Method("MX", blocks.mx_torchao) for name in ("mxfp4", "mxfp8")},
    **{f"{name}_microxcaling_": Method("MX", blocks.mx_microxcaling) for name in ("mxfp4", "mxfp8")},
    "mxfp4_gguf_": Method("MX", blocks.mxfp4_gguf),
    "mxfp4_vllmref_": Method("MX", blocks.mxfp4_vllm),
    "mxfp8_vllm_": Method("MX", blocks.mxfp8_vllm),
    "mxfp8_sglang_": Method("MX", blocks.mxfp8_sglang),
    "fp4_mx_block16_sglang_": Method("MX", blocks.fp4_mx_block16),
}

#: files whose values no method here promises, and why; some are compared all the same
INFORMATIVE = {
    "nf4_nonfinite": "NaN and infinities are implementation-defined in bitsandbytes, refused or replaced here",
    "oaken_nonfinite_d128": "NaN and infinities make the artifact's whole tensor NaN, are refused or replaced here",
    "hf_hqq": "HQQ optimises scale and zero iteratively; not a method of this package",
    "hf_fp8": "one FP32 scale per tensor, frozen at the first update",
    "base_kvquant": "what the artifact runs under this name is not the published method",
}


def method_of(stem: str) -> Method | None:
    """The method whose files are called like `stem`; None where there is none."""
    fitting = [prefix for prefix in METHODS if stem.startswith(prefix)]
    return METHODS[max(fitting, key=len)] if fitting else None
