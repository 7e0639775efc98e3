"""Fit the kernels of whole steps to the package's tables: products, experts, latent heads, sparse layers, prompts.

What decode attention and 16-bit products are to `dse.calibrate.fit`, everything else that a server runs is here:
products with weights of other formats, grouped products of routed experts, decode attention of latent (MLA) heads and
of layers that read chosen or compressed tokens, updates of constant states, and attention over prompts. Each is a start
and one or two ceilings; docs/explanation/calibration.md, Whole steps, has forms and errors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration.part import FittedPart
from dse.calibrate import blocks
from dse.calibrate.fit import HELD_OUT_ONE_IN, SEED, percent
from dse.calibrate.solve import Floats, Space, solve
from dse.calibrate.table import PACKAGE, newest, package_folder
from dse.calibrate.write import cited
from dse.core import units
from dse.core.compiling import array, elementwise
from dse.core.errors import InputError
from dse.model.formulas import weights
from dse.model.formulas.calibrated import choice_s, gemm_s, index_read_s
from dse.model.kernels import CHOICE_TOKENS
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec
from dse.specs.huggingface.mixers import Compressed, Heads, Index, LatentAttention, Mixer
from dse.specs.stack import CHOSEN_PROMPTS, SERVED, GemmFit, HeadCode, LatentCode, StateCode, WeightCode

_US = units.to_base(1, "us")
#: launch in us; shares of the peaks as their inverses; us to choose among 1,000 tokens, and to write a million elements
#: in 16 bits
SPACE = Space(
    ("launch", "memory", "flops", "index", "choice", "cast"),
    usual=np.array([5.0, 1.3, 1.5, 1.3, 0.1, 1.0]),
    low=np.array([0.3, 1.0, 1.0, 1.0, 0.0, 0.01]),
    high=np.array([300.0, 50.0, 100.0, 50.0, 100.0, 100.0]),
)
#: the parameters of SPACE that parts have; others: the first three
_FREE = {"prompt": (0, 2), "state": (0, 1), "sparse": (0, 1, 2, 3, 4)}
#: elements that a fitted `cast` is named for
CAST_ELEMENTS = 1e6
#: rows of decode steps and of prompts: tokens, and operations that keep a device busy
DECODE_TOKENS, EXPERT_TOKENS, PROMPT_TOKENS, PROMPT_FLOPS = 256, 512, 1024, 2e10
#: experts that a token chooses change: rows that repeat one choice count where it fills this part of a cache
CACHE_SHARE = 16
#: experts spread further than over so many devices are another deployment's
MAX_EXPERT_PARALLEL = 16
#: a part whose mean error on held-out rows is larger is not shipped: one number a format for all shapes is coarse
MAX_SERVED_ERROR = 0.30
#: a layer whose kernels take longer to start was not run from a graph; and no kernel starts sooner
MIN_START_S, MAX_START_S = 1e-6, 100e-6
#: contexts above are left out of a second fit, which is judged by them
LONG_CONTEXT = 8192
#: query heads of a device at least, in rows of prompts that choose tokens: fewer are of other deployments
FEWEST_HEADS = 8
#: most rows that a fit takes: more change nothing
MOST_ROWS, FEWEST_ROWS = 4000, 20

#: format -> names in tables, bytes of a weight, bytes of an activation
_FORMATS: dict[WeightCode, tuple[tuple[str, ...], float, float]] = {
    "bf16": (("bfloat16",), 2.0, 2.0),
    "fp8": (("fp8",), 1.0, 1.0),
    "fp8_block": (("fp8_block",), 1.0, 1.0),
    "nvfp4": (("nvfp4",), 36 / 64, 36 / 64),
    "mxfp4": (("w4a8_mxfp4_mxfp8", "w4a16_mxfp4"), 34 / 64, 1.0),
    "int4": (("int4_wo",), 33 / 64, 2.0),
    "int8": (("int8_wo",), 1.0, 2.0),
}
#: the only model whose experts are published in MXFP4 (gpt-oss): kernels are chosen by its shapes
MXFP4_HIDDEN = 2880
#: routed tokens are not even over experts; tables draw them so, and evenly
ROUTING = ("power_law_1.01", "balanced")
#: the kernel of latent heads that reads no FP8 (SGLang, flashattention_backend.py, forward_decode): the whole pool is
#: written in 16 bits first, which in tables is as large as what a row reads
READS_16_BITS = "flash_attention"
#: elements of a latent token, and those that a query is scored with and weighs (DeepSeek-V2, arXiv:2405.04434)
LATENT, LATENT_SCORE = 576, 576 + 512


#: state -> the folder of its tables; those of Mamba-2 have the convolution alone
_STATES: dict[StateCode, str] = {"gdn": "linear_attention", "kda": "kda"}
#: sparse layers -> the folder of their tables, and their names there
_SPARSE: dict[str, str] = {
    "dsa": "sparse_attention",
    "dsa_shared": "sparse_attention",
    "msa": "msa",
    "csa": "sparse_attention",
    "hca": "sparse_attention",
}
_TABLE_OF = {"dsa_shared": "dsa", "csa": "dsv4_csa", "hca": "dsv4_hca"}
#: kernels that take a token into a state, and bytes of an element of what they keep
CONVOLUTION, RECURRENCE, STATE_BYTES, CONV_BYTES = "causal_conv1d_update", "fused_recurrent", 4, 2


class Module(NamedTuple):
    """Rows of whole layers beside attention: seconds of their products as these were fitted, bytes of their
    index, the tokens of a sequence that are chosen from (0 without a choice), and the context."""

    products_s: Floats
    index_bytes: Floats
    choices: Floats
    context: Floats


@dataclass(frozen=True)
class KernelRows:
    """Measured kernels of one part: operations, bytes moved, seconds; rows of decode steps, and who measured what."""

    flops: Floats
    n_bytes: Floats
    measured_s: Floats
    is_decode: NDArray[np.bool_]
    source: str
    module: "Module | None" = None
    #: elements written in 16 bits before; None: none are
    cast: Floats | None = None

    def take(self, mask: NDArray[Any]) -> "KernelRows":
        """The rows where `mask` is true, or at its places."""
        module = self.module and Module(*(column[mask] for column in self.module))
        return KernelRows(
            self.flops[mask],
            n_bytes=self.n_bytes[mask],
            measured_s=self.measured_s[mask],
            is_decode=self.is_decode[mask],
            source=self.source,
            module=module,
            cast=None if self.cast is None else self.cast[mask],
        )


@dataclass(frozen=True, kw_only=True)
class FittedKernel(FittedPart):
    """One fitted part of a stack; errors by "all", "decode" and "prompt"."""

    @property
    def trusted(self) -> bool:
        """False where the parameters should not be used: what a step is made of counts, else the prompts."""
        judged = self.errors.get("decode") or self.errors["all"]
        if self.part.startswith(("state.", "sparse.")) and self.parameters["memory_frac"] == 1:
            return False  # faster than the memory: states are not FP32 there, weights of a layer were in a cache
        if self.part.startswith("sparse.") and not MIN_START_S < self.parameters["launch"] < MAX_START_S:
            return False  # a host started these kernels one by one: a server replays a graph; or products took it all
        if any(self.errors[name]["mean"] > MAX_SERVED_ERROR for name in ("long", "model") if name in self.errors):
            return False
        return judged["mean"] <= MAX_SERVED_ERROR


def fit(device: HardwareSpec, stack: str) -> list[FittedKernel]:
    """Every part that the package's newest tables of a device and stack give."""
    outcomes: list[FittedKernel] = []
    stack_spec = device.stacks.get(stack)
    launch_s = stack_spec.gemm.launch.si if stack_spec and stack_spec.gemm else None
    for part, rows, peak in _parts(device, stack, stack_spec.products if stack_spec else {}):
        plain = next((known for known in outcomes if known.part == "latent.fp16"), None)
        outcome = _fit(part, rows, device.memory_bandwidth.si, peak, plain)
        if rows.cast is not None and device.n_cores:
            outcome.parameters["cast_rate"] /= device.n_cores.count
        if part.startswith("products.") and launch_s is not None:
            # rows of narrow formats start their quantizing too, eagerly; in a graph a product starts as 16-bit ones do
            outcome.parameters["launch"] = launch_s
        elif part == "products.bf16":
            launch_s = outcome.parameters["launch"]
        outcomes.append(outcome)
    frame = _frame(package_folder(device.name) / "sparse_attention" / stack, "dsa_context_module_perf.parquet")
    codes: HeadCode
    for codes in CHOSEN_PROMPTS if frame is not None else ():
        prompts = _chosen_prompts(frame, codes == "dsa_fp8", device, stack_spec.products if stack_spec else {})
        if prompts:
            outcomes.append(_fit_chosen(f"prompt.{codes}", prompts, device.peak_flops.si))
    return outcomes


def _parts(
    device: HardwareSpec, stack: str, known: Mapping[WeightCode, GemmFit]
) -> list[tuple[str, KernelRows, float]]:
    """(place in the stack, rows, peak rate) of everything measured; `known` are the products of the device's file,
    which sparse layers were measured with."""
    folder, parts = package_folder(device.name), []
    cache = device.l2_cache.si if device.l2_cache else 0.0
    frame = _frame(folder / "gemm" / stack, "gemm_perf.parquet")
    codes: WeightCode
    for codes in _FORMATS:
        if frame is not None and (rows := _products(frame, codes, cache)):
            parts.append((f"products.{codes}", rows, device.format_peak(codes).si))
    frame = _frame(folder / "moe" / stack, "moe_perf.parquet")
    for codes in _FORMATS:
        expert_rows = frame
        if codes == "mxfp4" and frame is not None and _shares_kernels(frame):
            expert_rows = _flashinfer(folder)
        if expert_rows is not None and (rows := _experts(expert_rows, codes, cache)):
            parts.append((f"experts.{codes}", rows, device.format_peak(codes).si))
    frame = _frame(folder / "mla" / stack, "generation_mla_perf.parquet")
    stored: LatentCode
    for stored in ("fp16", "fp8"):
        if frame is not None and (rows := _latent(frame, stored)):
            parts.append((f"latent.{stored}", rows, device.peak_flops.si))
    for code, table in _STATES.items():
        frame = _frame(folder / table / stack, f"{code}_perf.parquet")
        if frame is not None and (rows := _states(frame, cache)):
            parts.append((f"state.{code}", rows, device.peak_flops.si))
    for kind, place in _SPARSE.items():
        frame = _frame(folder / place / stack, f"{_TABLE_OF.get(kind, kind)}_generation_module_perf.parquet")
        for end in ("", "_fp8"):
            if frame is not None and (rows := _sparse(frame, kind, end == "_fp8", device, known)):
                parts.append((f"sparse.{kind}{end}", rows, device.peak_flops.si))
    frame = _frame(folder / "attention" / stack, "context_attention_perf.parquet")
    head: HeadCode
    for head in ("d64", "d128"):
        if frame is not None and (rows := _prompts(frame, int(head[1:]))):
            parts.append((f"prompt.{head}", rows, device.peak_flops.si))
    return parts


def _frame(folder: Path, name: str) -> Any:
    path = newest(folder, name)
    return None if path is None else frame_of(path)


def frame_of(path: Path) -> Any:
    """A table of the package. Raises InputError where it cannot be read."""
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be used: {error}: install {PACKAGE} 0.12.0") from error


#: a library whose kernels several stacks run
SHARED = "flashinfer"


def _shares_kernels(frame: Any) -> bool:
    """True where experts in MXFP4 run on the shared library: the tables of each stack then have another of its
    paths."""
    mxfp4 = frame[frame["moe_dtype"].isin(_FORMATS["mxfp4"][0]) & (frame["hidden_size"] == MXFP4_HIDDEN)]
    return bool(len(mxfp4)) and bool(mxfp4["kernel_source"].str.contains(SHARED).all())


def _flashinfer(folder: Path) -> Any:
    """The rows of that library in the expert tables of all stacks."""
    import pandas as pd

    frames = [_frame(path, "moe_perf.parquet") for path in sorted((folder / "moe").glob("*"))]
    every = pd.concat([frame for frame in frames if frame is not None], ignore_index=True)
    return every[every["kernel_source"].str.contains(SHARED)]


def _rows(
    frame: Any, flops: Floats, n_bytes: Floats, is_decode: Any, keep: Any, cast: Floats | None = None
) -> KernelRows | None:
    """Rows of one table, its times in milliseconds; None where there are too few."""
    seconds = frame["latency"].to_numpy(float) * units.to_base(1, "ms")
    keep = np.asarray(keep & np.isfinite(seconds) & (seconds > 0))
    if keep.sum() < FEWEST_ROWS:
        return None
    first = frame.iloc[0]
    source = ", ".join((cited(), str(first["device"]), f"{str(first['framework']).lower()} {first['version']}"))
    rows = KernelRows(
        flops, n_bytes=n_bytes, measured_s=seconds, is_decode=np.asarray(is_decode), source=source, cast=cast
    )
    return rows.take(keep)


def _products(frame: Any, code: WeightCode, cache: float) -> KernelRows | None:
    """Products whose weights no cache holds, of decode steps and of prompts; of several kernels the fastest."""
    frame = frame[frame["gemm_dtype"].isin(_FORMATS[code][0])]
    if not len(frame):
        return None
    frame = frame.loc[frame.groupby(["m", "n", "k"])["latency"].idxmin()]
    flops, n_bytes, weight_bytes = product_work(frame, code)
    m = frame["m"].to_numpy(float)
    decode = (m <= DECODE_TOKENS) & (weight_bytes > cache)
    prompts = (m >= PROMPT_TOKENS) & (flops > PROMPT_FLOPS)
    return _rows(frame, flops, n_bytes, decode, decode | prompts)


def product_work(frame: Any, code: WeightCode) -> tuple[Floats, Floats, Floats]:
    """Operations, bytes moved and bytes of weights of each product (m x k) @ (k x n) of a table, weights in `code`."""
    _, of_weight, of_activation = _FORMATS[code]
    m, n, k = (frame[name].to_numpy(float) for name in "mnk")
    weight_bytes = n * k * of_weight
    return 2 * m * n * k, weight_bytes + m * k * of_activation + 2 * m * n, weight_bytes


def _experts(frame: Any, code: WeightCode, cache: float) -> KernelRows | None:
    """Grouped products of gated experts; weights read are those of the experts that tokens are expected to choose."""
    frame = frame[frame["moe_dtype"].isin(_FORMATS[code][0])]
    if code == "mxfp4":
        frame = frame[frame["hidden_size"] == MXFP4_HIDDEN]
    drawn = [name for name in ROUTING if (frame["distribution"] == name).any()]
    if not drawn:
        return None
    frame = frame[frame["distribution"] == drawn[0]]
    frame = frame.loc[frame.groupby(EXPERT_SHAPE)["latency"].idxmin()]
    n_tokens, ep = (frame[name].to_numpy(float) for name in ("num_tokens", "moe_ep_size"))
    flops, n_bytes, weight_bytes = expert_work(frame, code)
    near = ep <= MAX_EXPERT_PARALLEL
    decode = (n_tokens <= EXPERT_TOKENS) & (weight_bytes > cache / CACHE_SHARE) & near
    return _rows(frame, flops, n_bytes, decode, decode | ((n_tokens >= PROMPT_TOKENS) & (flops > PROMPT_FLOPS) & near))


#: columns that say what grouped products of experts calculate
EXPERT_SHAPE = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]


def expert_work(frame: Any, code: WeightCode) -> tuple[Floats, Floats, Floats]:
    """Operations, bytes moved and bytes of weights of each row of experts, weights in `code`: those of the experts that
    tokens are expected to choose."""
    n_tokens, hidden, inner, top, n_experts, tp, ep = (frame[name].to_numpy(float) for name in EXPERT_SHAPE)
    per_expert = 3 * hidden * inner / tp
    touched = n_experts / ep * array(weights.expert_share_touched)(n_tokens.astype(int), n_experts, top)
    pairs, weight_bytes = n_tokens * top / ep, touched * per_expert * _FORMATS[code][1]
    return 2 * per_expert * pairs, weight_bytes + 2 * pairs * (2 * hidden + 3 * inner / tp), weight_bytes


def _latent(frame: Any, stored: LatentCode) -> KernelRows | None:
    """Decode attention of latent heads, keys and values larger than a cache."""
    frame = frame[frame["kv_cache_dtype"] == ("fp8" if stored == "fp8" else "bfloat16")]
    if not len(frame):
        return None
    heads, batch, step = (frame[name].to_numpy(float) for name in ("num_heads", "batch_size", "step"))
    kv_bytes = batch * (step + 1) * LATENT * (1 if stored == "fp8" else 2)
    flops = 2 * batch * (step + 1) * heads * LATENT_SCORE
    everything = np.ones(len(frame), bool)
    is_cast = stored == "fp8" and (frame["kernel_source"] == READS_16_BITS).all()
    n_bytes, cast = kv_bytes + 2 * batch * heads * LATENT_SCORE, batch * (step + 1) * LATENT if is_cast else None
    return _rows(frame, flops, n_bytes, everything, everything, cast)


def _states(frame: Any, cache: float) -> KernelRows | None:
    """Decode updates of constant states: the short convolution and the recurrence, one after the other.

    The recurrence of a row is the kernel that runs after a convolution of its own (those that fuse both are other
    rows); its state is FP32 and read and written, as is what the convolution keeps, in 16 bits. Rows count whose states
    no cache holds, as a server's other layers evict them, and those that are little but a start.
    """
    frame = frame[frame["phase"] == "generation"]
    shape = ["batch_size", "d_conv", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim"]
    conv = frame[frame["kernel_source"] == CONVOLUTION].groupby(shape)["latency"].min()
    update = frame[frame["kernel_source"].str.startswith(RECURRENCE)].groupby(shape)["latency"].min()
    both = conv.add(update).dropna().reset_index()
    if not len(both):
        return None
    first = frame.iloc[0]
    both[["framework", "version", "device"]] = first[["framework", "version", "device"]].to_list()
    batch, d_conv, k_heads, k_dim, v_heads, v_dim = (both[name].to_numpy(float) for name in shape)
    channels, state = 2 * k_heads * k_dim + v_heads * v_dim, v_heads * k_dim * v_dim
    n_bytes = 2 * batch * (state * STATE_BYTES + channels * (d_conv - 1) * CONV_BYTES)
    keep = (n_bytes / 2 > cache) | (n_bytes < cache / CACHE_SHARE)
    return _rows(both, np.zeros(len(both)), n_bytes, np.ones(len(both), bool), keep)


def _sparse(
    frame: Any, kind: str, is_fp8: bool, device: HardwareSpec, known: Mapping[WeightCode, GemmFit]
) -> KernelRows | None:
    """Decode steps of whole layers that read chosen or compressed tokens: their products with the weights, known from
    `known`, then the index, the choice and attention.

    Layers with 16-bit weights where there are any: others start the quantizing of activations too. `flops` and
    `n_bytes` are those of attention over what is read, queries and outputs included.
    """
    frame = frame[frame["op_name"].str.endswith("_skip_indexer") == (kind == "dsa_shared")]
    frame = frame[frame["kv_cache_dtype"].str.startswith("fp8") == is_fp8]
    frame = frame[frame["batch_size"] <= DECODE_TOKENS]
    wide = (frame["gemm_type"] == "bfloat16").any()
    code: WeightCode = "bf16" if wide else "fp8_block"
    frame = frame[frame["gemm_type"] == ("bfloat16" if wide else "fp8_block")]
    product = known.get(code) or known.get("bf16")
    if not len(frame) or product is None:
        return None
    batch, context = (frame["batch_size"].to_numpy(float), frame["step"].to_numpy(float) + 1)
    n_bytes, flops, index, choices, products_s = (np.zeros(len(frame)) for _ in range(5))
    bandwidth, peak = device.memory_bandwidth.si, device.format_peak(code).si
    for model, heads in frame[["model", "num_heads"]].drop_duplicates().itertuples(index=False):
        mask = ((frame["model"] == model) & (frame["num_heads"] == heads)).to_numpy()
        layer, b, s = sparse_layer(kind, model, int(heads)), batch[mask], context[mask]
        n_starts = 5 if layer.caches[0].is_latent else 2  # as `served_products` has them
        products_s[mask] = (n_starts - 1) * product.launch.si + array(gemm_s)(
            2 * layer.parameters * b,
            layer.parameters * _FORMATS[code][1],
            product.launch.si,
            product.flops_frac.si,
            product.memory_frac.si,
            peak,
            bandwidth,
        )
        n_bytes[mask] += 2 * b * heads * layer.caches[0].score_dim
        for cache in layer.caches:
            read = np.minimum(s, min(cache.window or np.inf, cache.read_limit_tokens or np.inf))
            width = cache.n_kv_heads * (cache.key_dim + cache.value_dim) / cache.tokens_per_entry
            n_bytes[mask] += b * read * width * (1 if is_fp8 else 2)
            flops[mask] += 2 * b * read * heads * cache.score_dim / cache.tokens_per_entry
            index[mask] += b * s * cache.index_bits / units.BITS_PER_BYTE
            choices[mask] += s * (cache.index_bits > 0)
    everything = np.ones(len(frame), bool)
    rows = _rows(frame, flops, n_bytes, everything, everything)
    return rows and replace(rows, module=Module(products_s, index, choices, context))


def sparse_layer(kind: str, model: str, heads: int) -> Mixer:
    """The attention of a layer of a table's model with `heads` query heads on a device.

    Shapes: configurations of DeepSeek-V3.2, GLM-5, MiniMax-M3, DeepSeek-V4 Flash and Pro.
    """
    if kind == "msa":
        return Heads(
            6144,
            q_heads=heads,
            kv_heads=max(heads // 16, 1),
            key_dim=128,
            value_dim=128,
            index=Index(2048, heads=4, dim=128, element_bits=16, scale_bits=0),
        ).mixer()
    if kind in ("csa", "hca"):
        hidden, rank, chosen, n_groups, of = (7168, 1536, 1024, 16, 128) if "Pro" in model else (4096, 1024, 512, 8, 64)
        index = Index(chosen, heads=64, dim=128, element_bits=4, scale_bits=0) if kind == "csa" else None
        n_groups = max(n_groups * heads // of, 1)
        return Compressed(
            hidden,
            q_heads=heads,
            q_rank=rank,
            dim=512,
            out_groups=n_groups,
            out_rank=1024,
            window=128,
            ratio=4 if index else 128,
            index=index,
        ).mixer()
    is_dsa = kind == "dsa"
    if "DeepSeek" in model:
        return LatentAttention(
            7168,
            q_heads=heads,
            q_rank=1536,
            rank=512,
            nope=128,
            rope=64,
            value_dim=128,
            index=Index(2048, heads=64, dim=128, own=is_dsa),
        ).mixer()
    return LatentAttention(
        6144,
        q_heads=heads,
        q_rank=2048,
        rank=512,
        nope=192,
        rope=64,
        value_dim=256,
        index=Index(2048, heads=32, dim=128, own=is_dsa),
    ).mixer()


def _prompts(frame: Any, head_dim: int) -> KernelRows | None:
    """Causal attention over whole prompts: half of the products."""
    if "window_size" in frame:
        frame = frame[frame["window_size"] == 0]
    frame = frame[(frame["head_dim"] == head_dim) & (frame["kv_cache_dtype"] == "bfloat16")]
    if not len(frame):
        return None
    flops, keep = prompt_flops(frame), frame["isl"].to_numpy(float) >= PROMPT_TOKENS / 2
    keep &= flops > PROMPT_FLOPS / 4
    return _rows(frame, flops, np.zeros(len(frame)), np.zeros(len(frame), bool), keep)


class ChosenPrompts(NamedTuple):
    """Prompts of whole layers that choose tokens of a latent: seconds of their products, operations of their index, and
    for a head those over tokens that are read and over all that may be chosen; query heads, model, measured seconds."""

    products_s: Floats
    index_flops: Floats
    read_flops: Floats
    all_flops: Floats
    heads: Floats
    model: NDArray[Any]
    measured_s: Floats
    source: str

    def predict_s(self, point: Floats, rows: int, peak: float) -> Floats:
        """Seconds of every row at (1 / share of the peak, share always read, us of a start)."""
        inverse, always, launch = point
        filled = np.ceil(self.heads / rows) * rows
        flops = filled * ((1 - always) * self.read_flops + always * self.all_flops) + self.index_flops
        seconds: Floats = launch * _US + self.products_s + flops * inverse / peak
        return seconds


#: multiples that kernels may fill query heads up to
HEAD_ROWS = (1, 16, 32, 64, 128)
#: 1 / share of the peak, share always read, and us of a start, which the host of a benchmark takes and no server does
CHOSEN_SPACE = Space(
    ("flops", "always", "launch"),
    usual=np.array([2.0, 0.3, 100.0]),
    low=np.array([1.0, 0.0, 0.0]),
    high=np.array([20.0, 1.0, 500.0]),
)


def _chosen_prompts(
    frame: Any, is_fp8: bool, device: HardwareSpec, known: Mapping[WeightCode, GemmFit]
) -> ChosenPrompts | None:
    """Whole prompts without a prefix, 16-bit weights; None where short ones run by other kernels (SGLang's)."""
    first, product = frame.iloc[0], known.get("bf16")
    frame = frame[(frame["op_name"] == "dsa_context_module") & (frame["gemm_type"] == "bfloat16")]
    frame = frame[(frame["kv_cache_dtype"] == ("fp8" if is_fp8 else "bfloat16")) & (frame["step"] == 0)]
    is_one = not frame["kernel_source"].str.contains("dense").any()
    frame = frame[(frame["batch_size"] * frame["isl"] >= PROMPT_TOKENS) & (frame["num_heads"] >= FEWEST_HEADS)]
    if product is None or not is_one or len(frame) < FEWEST_ROWS:
        return None
    batch, length, heads = (frame[name].to_numpy(float) for name in ("batch_size", "isl", "num_heads"))
    parameters, index, most = np.zeros(len(frame)), np.zeros(len(frame)), np.zeros(len(frame))
    for model, n_heads in frame[["model", "num_heads"]].drop_duplicates().itertuples(index=False):
        mask = ((frame["model"] == model) & (frame["num_heads"] == n_heads)).to_numpy()
        layer = sparse_layer("dsa", model, int(n_heads))
        parameters[mask], index[mask] = layer.parameters, layer.caches[0].index_flops
        most[mask] = layer.caches[0].read_limit_tokens
    short = np.minimum(length, most)
    read = batch * (short * (short + 1) / 2 + (length - short) * most)
    rate = product.flops_frac.si * device.format_peak("bf16").si
    return ChosenPrompts(
        products_s=2 * parameters * batch * length / rate,
        index_flops=index * batch * length * (length + 1) / 2,
        read_flops=2 * LATENT_SCORE * read,
        all_flops=2 * LATENT_SCORE * batch * length * most,
        heads=heads,
        model=frame["model"].to_numpy(),
        measured_s=frame["latency"].to_numpy(float) * units.to_base(1, "ms"),
        source=", ".join((cited(), str(first["device"]), f"{str(first['framework']).lower()} {first['version']}")),
    )


def _fit_chosen(part: str, rows: ChosenPrompts, peak: float) -> FittedKernel:
    """The fit to four fifths of the rows, with errors on the rest, and on each model by a fit to the other."""
    order = np.random.default_rng(SEED).permutation(len(rows.measured_s))
    n_held = max(1, len(order) // HELD_OUT_ONE_IN)

    def solved(places: NDArray[Any], filled: int) -> tuple[Floats, float]:
        return solve(
            lambda point: rows.predict_s(point, filled, peak)[places],
            rows.measured_s[places],
            np.ones(len(places)),
            CHOSEN_SPACE,
            CHOSEN_SPACE.usual,
            (0, 1, 2),
        )

    seen = order[n_held:][:MOST_ROWS]
    tried = {filled: solved(seen, filled) for filled in HEAD_ROWS}
    filled = min(tried, key=lambda rows_of: tried[rows_of][1])
    point = tried[filled][0]

    def error(places: NDArray[Any], at: Floats) -> dict[str, float]:
        off = np.abs(rows.predict_s(at, filled, peak) / rows.measured_s - 1)[places]
        return {"mean": float(off.mean()), "p90": float(np.quantile(off, 0.9)), "rows": len(off)}

    errors = {"all": error(order[:n_held], point), "prompt": error(order[:n_held], point)}
    if len(models := sorted(set(rows.model.tolist()))) > 1:
        others = [np.flatnonzero(rows.model != model) for model in models]
        each = [
            error(np.flatnonzero(rows.model == model), solved(places, filled)[0])
            for model, places in zip(models, others, strict=True)
        ]
        errors["model"] = max(each, key=lambda found: found["mean"])
    parameters = {
        "flops_frac": float(f"{1 / point[0]:.4g}"),
        "always_read": float(f"{point[1]:.4g}"),
        "head_rows": float(filled),
    }
    return FittedKernel(part=part, parameters=parameters, n_points=len(seen), errors=errors, source=rows.source)


def prompt_flops(frame: Any) -> Floats:
    """Operations of causal attention over each row's prompts: half of the products."""
    batch, length, heads, head_dim = (
        frame[name].to_numpy(float) for name in ("batch_size", "isl", "num_heads", "head_dim")
    )
    flops: Floats = 2 * batch * length * length * heads * head_dim
    return flops


def predict_s(rows: KernelRows, point: Floats, bandwidth: float, peak: float) -> Floats:
    """Seconds of every row at a point of SPACE."""
    launch, memory, flops, index, choice, cast = point
    seconds: Floats = array(gemm_s)(rows.flops, rows.n_bytes, launch * _US, 1 / flops, 1 / memory, peak, bandwidth)
    if rows.module:
        seconds = (
            seconds + rows.module.products_s + elementwise(index_read_s)(rows.module.index_bytes, 1 / index, bandwidth)
        )
        seconds = seconds + elementwise(choice_s)(rows.module.choices, choice * _US / CHOICE_TOKENS)
    return seconds if rows.cast is None else seconds + rows.cast * cast * _US / CAST_ELEMENTS


def _fit(part: str, rows: KernelRows, bandwidth: float, peak: float, plain: FittedKernel | None = None) -> FittedKernel:
    """The fit to four fifths of the rows, with errors on the rest; decode steps and prompts weigh the same.

    A kernel whose latents are written in 16 bits before is that of 16 bits, `plain`, over twice the stored bytes.
    """
    order = np.random.default_rng(SEED).permutation(len(rows.measured_s))
    n_held = max(1, len(order) // HELD_OUT_ONE_IN)
    places = order[n_held:][:MOST_ROWS]
    seen, unseen = rows.take(places), rows.take(order[:n_held])
    n_decode = max(int(seen.is_decode.sum()), 1)
    n_prompts = max(len(places) - n_decode, 1)
    counts = np.where(seen.is_decode, 1 / n_decode, 1 / n_prompts) * len(places) / 2
    free = _FREE.get(part.partition(".")[0], (0, 1, 2))
    if rows.module and not rows.module.index_bytes.any():
        free = free[:3]
    usual = SPACE.usual
    if rows.cast is not None and plain:
        known = plain.parameters
        usual = np.array([usual[0], 2 / known["memory_frac"], 1 / known["flops_frac"], *usual[3:]])
        free = (0, 5)
    point = _solved(seen, counts, free, bandwidth, peak, usual)
    off = np.abs(predict_s(unseen, point, bandwidth, peak) / unseen.measured_s - 1)
    errors = {
        name: {"mean": float(in_class.mean()), "p90": float(np.quantile(in_class, 0.9)), "rows": len(in_class)}
        for name, mask in (
            ("all", np.ones(len(off), bool)),
            ("decode", unseen.is_decode),
            ("prompt", ~unseen.is_decode),
        )
        if len(in_class := off[mask])
    }
    if rows.module:
        near = rows.module.context <= LONG_CONTEXT
        if min(near.sum(), (~near).sum()) >= FEWEST_ROWS:
            of_short, long = rows.take(near), rows.take(~near)
            other = _solved(of_short, np.ones(len(of_short.flops)), free, bandwidth, peak, usual)
            far = np.abs(predict_s(long, other, bandwidth, peak) / long.measured_s - 1)
            errors["long"] = {"mean": float(far.mean()), "p90": float(np.quantile(far, 0.9)), "rows": len(far)}
    launch, memory, flops = (float(f"{number:.4g}") for number in (point[0], 1 / point[1], 1 / point[2]))
    parameters = {"flops_frac": flops}
    if rows.module:
        parameters = {"launch": launch * _US, "memory_frac": memory, "flops_frac": flops}
        if 3 in free:
            index, choice = float(f"{1 / point[3]:.4g}"), float(f"{point[4]:.4g}")
            parameters |= {"index_frac": index, "choice": choice * _US}
    elif part.startswith("state."):
        parameters = {"launch": launch * _US, "memory_frac": memory}
    elif not part.startswith("prompt."):
        parameters = {"launch": launch * _US, "memory_frac": memory, "flops_frac": flops}
        if rows.cast is not None:
            parameters["cast_rate"] = CAST_ELEMENTS / (point[5] * _US)
    return FittedKernel(part=part, parameters=parameters, n_points=len(places), errors=errors, source=rows.source)


def _solved(
    rows: KernelRows, counts: Floats, free: tuple[int, ...], bandwidth: float, peak: float, usual: Floats
) -> Floats:
    """The point of SPACE that predicts the rows best, of three starts about the usual one."""
    factors = [
        np.array((*of_kernel, 1.0, 1.0, 1.0)) for of_kernel in ((1.0, 1.0, 1.0), (5.0, 1.0, 2.0), (0.5, 1.5, 1.0))
    ]
    starts = [usual * np.where(np.isin(range(len(usual)), free), factor, 1.0) for factor in factors]
    tried = [
        solve(lambda point: predict_s(rows, point, bandwidth, peak), rows.measured_s, counts, SPACE, start, free)
        for start in starts
    ]
    return min(tried, key=lambda attempt: attempt[1])[0]


def fitted(outcome: FittedKernel) -> dict[str, Any]:
    """One part as its block in a device file."""
    error = outcome.errors
    shown = {
        "decode": "decode steps",
        "prompt": "prompts",
        "long": "contexts above 8,192 tokens, left out",
        "model": "a model left out",
    }
    said = ", ".join(f"{percent(error[name]['mean'])} ({words})" for name, words in shown.items() if name in error)
    errors = {"held_out_error": error["all"]["mean"]}
    if "decode" in error:
        errors |= {"serving_error": error["decode"]["mean"], "serving_p90": error["decode"]["p90"]}
    return blocks.block(
        outcome.parameters,
        {
            **dict.fromkeys(("memory_frac", "flops_frac", "index_frac", "always_read", "head_rows"), "1"),
            "cast_rate": "Gelement/s",
        },
        fitted_on=outcome.source,
        rows=f"{outcome.n_points:,} rows, mean error on others {said}",
        n_points=outcome.n_points,
        errors=errors,
    )


def with_served(data: dict[str, Any], stack: str, outcomes: list[FittedKernel]) -> dict[str, Any]:
    """The device's data with the trusted parts in its stack; those of before go."""
    stacks = {name: dict(value) for name, value in data.get("stacks", {}).items()}
    tables = {name: part for name, part in stacks.get(stack, {}).items() if name not in SERVED}
    for outcome in outcomes:
        table, _, code = outcome.part.partition(".")
        if outcome.trusted:
            tables[table] = {**tables.get(table, {}), code: fitted(outcome)}
    return {**data, "stacks": {**stacks, stack: tables}}


def run(
    source: str, out: str, *, device: str, stack: str | None = None, progress: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """Fit the served kernels of one stack, or of all of the device's, and write a device file with them."""
    if source != PACKAGE:
        raise InputError(f"{source}: kernels of whole steps are read from {PACKAGE} only: give its name")
    blocks.check_out(out)
    measured = catalog.device(device)
    names = [stack] if stack else list(catalog.servers())
    data = blocks.device_data(device)
    parts: list[dict[str, Any]] = []

    def every(stacks: Any) -> None:
        nonlocal data
        for name in stacks:
            outcomes = fit(measured, name)
            data = with_served(data, name, outcomes)
            parts.extend({"stack": name, **outcome.as_dict()} for outcome in outcomes)

    if progress is None:
        every(names)
    else:
        with progress(names, "fitting", len(names)) as bar:
            every(bar)
    if not parts:
        raise InputError(f"{PACKAGE} has no such tables of {measured.name} and {', '.join(names)}")
    blocks.write_device(data, out)
    return {"device": measured.name, "table": source, "out": out, "parts": parts}


def text(found: dict[str, Any]) -> str:
    """The report of `dse calibrate --kernel served`."""
    lines = [f"{found['device']}  kernels of whole steps  from {found['table']}", ""]
    lines.append(
        f"{'stack':<8}{'part':<20}{'launch':>9}{'memory':>8}{'flops':>8}{'decode':>9}{'prompts':>9}{'rows':>7}"
    )
    for part in found["parts"]:
        p, e = part["parameters"], part["errors"]
        launch = f"{p['launch'] / _US:.3g} us" if "launch" in p else "-"
        shares = [f"{p[name]:.3f}" if name in p else "-" for name in ("memory_frac", "flops_frac")]
        errors = [percent(e[name]["mean"]) if name in e else "-" for name in ("decode", "prompt")]
        note = "" if part["trusted"] else "  not trusted, not written"
        lines.append(
            f"{part['stack']:<8}{part['part']:<20}{launch:>9}{shares[0]:>8}{shares[1]:>8}{errors[0]:>9}{errors[1]:>9}"
            f"{part['n_points']:>7}{note}"
        )
    return "\n".join([*lines, "", f"written: {found['out']}"])
