"""Random designs over everything that a design has, and what today's code says of each."""

import contextlib
import math
import random
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from dse import quantizers
from dse.core.errors import DseError
from dse.model import engine, kv_layout, many
from dse.model.batch import BOUNDS
from dse.model.point import Point
from dse.model.results import RESULT_UNITS
from dse.specs import catalog, measurements
from dse.specs import tokens as token_policies
from dse.specs.weights import FORMATS
from dse.specs.workload import OF_SERVERS, Workload

SEED = 20261128
#: designs of the two tables, and of each the share that may be refused, and in which not one request may fit
N_DESIGNS, N_PAPERS = 2000, 300
MAX_REFUSED, MAX_INFEASIBLE = 0.08, 0.10
#: paths in the tables are relative to this directory: config.json files, plans by layer, device files
GOLDEN = Path(__file__).parent
#: what a design says beside the fields of a workload
NAMED = ("device", "model", "key_quantizer", "value_quantizer", "bits")
FIELDS = tuple(field.name for field in fields(Workload))
#: packed groups counted one by one take seconds
MAX_OUTPUT = 4096

OWN_DEVICES = ("inputs/devices/bare.toml", "inputs/devices/small-gpu.toml")
#: kinds of models that no shipped one is
CONFIGS = ("gemma-3n-e4b", "gpt-neo-1.3b", "openelm-270m", "starcoderbase", "llava-1.5-7b", "mpt-7b")
#: changes of a number on the spot: of any device, of GPUs, of devices with token cores
ANY_CHANGES = (
    "usable_frac=0.9",
    "runtime_overhead=2 GB",
    "memory_bandwidth=3 TB/s",
    "memory_bandwidth=900 GB/s",
    "peak_flops=500 TFLOP/s",
    "memory_capacity=96 GiB",
    "board_power=350 W",
    "usd_per_hour=2.49 USD/h",
    "kernel_launch=0 s",
    "kernel_launch=2 us",
    "fused_rate=1 Telement/s",
    "energy_per_byte=30 pJ/B,energy_per_flop=0.5 pJ/FLOP,idle_power=70 W",
    "energy_per_byte=60 pJ/B,energy_per_flop=2 pJ/FLOP,idle_power=20 W,board_power=100 W",
    "memory_capacity=512 GB,memory_bandwidth=8 TB/s",
)
GPU_CHANGES = ("n_cores=64 core", "l2_cache=96 MiB", "peak_flops_fp8=1000 TFLOP/s", "link_bandwidth=450 GB/s")
CORE_CHANGES = (
    "token_cores=32 core",
    "token_cores=1 core",
    "kv_page=8 KiB,kv_burst=128 B",
    "kv_page=2 KiB,kv_burst=64 B",
    "engine_rate=1 Telement/s",
)
ENGINES = ("oaken-hbm", "oaken-lpddr")
#: numbers near and beyond 2**53: memories of thousands of petabytes
HUGE = ("memory_capacity=4e15 B", "memory_capacity=9e15 B", "memory_capacity=1e15 B")

#: options of a quantizer that may be given, by family
OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "fp8": {"format": ("e4m3", "e5m2")},
    "int8": {"granularity": ("token", "tensor"), "scale": ("fp16", "fp32")},
    "int4": {"granularity": ("token", "tensor"), "scale": ("fp16", "fp32")},
    "kivi": {"bits": (1, 2, 4, 8), "group": (32, 64), "residual": (64, 128)},
    "sinkq": {
        "bits": (1, 2, 4, 8),
        "group": (32, 96, 128),
        "residual": (0, 1, 17, 128),
        "sinks": (0, 1, 5, 20),
        "evicted": (0, 2, 11),
    },
    "nqkv": {"block": (16, 100, 256, 4096, 2**20), "absmax": ("fp16", "fp32")},
    "qserve": {"mode": ("head", "artifact")},
    "atom": {"group": (16, 32, 100, 256)},
    "oaken": {"outer": (0, "0.02", "0.1"), "inner": (0, "0.06", "0.125"), "outlier_bits": (4, 5)},
    "kvquant": {"bits": (2, 3, 4), "outliers": (0, "0.005", "0.05")},
    "rotated": {"dim": (2, 4), "index": (4, 5), "group": (32, 64), "residual": (3, 64)},
    "gear": {"group": (8, 64), "buffer": (16, 64), "outliers": ("0.01", "0.03")},
    "xquant": {"zero": ("full",), "store": ("latent",)},
}
#: what the shipped measurements know beside families at their defaults
MEASURED = ("oaken", "nqkv:block=64", "sinkq:group=32", "kivi:bits=4", "kivi", "int8", "fp8", "oaken:groups=4/90/6")
#: of latent heads alone
LATENT = ("fp8_ds_mla", "nvfp4_ds_mla")
#: layers of a model and the plans by layer that there are for as many
PLAN_LAYERS, PLANS_EACH = (12, 24, 28, 32, 40, 42, 48, 80), 3
UNKNOWN_QUANTIZERS = ("kivi:bits=3", "kivi:group=32,residual=100", "oakn", "oaken:outer=0.9,inner=0.2", "int4:scale=x")


@lru_cache(maxsize=1)
def known() -> dict[str, tuple[str, ...]]:
    """Names of everything that designs are made of."""
    stacks = [stack for stack in catalog.servers() if stack in catalog.device("h100").stacks]
    releases = [
        f"{stack}@{release}"
        for stack in stacks
        for release in catalog.servers()[stack].releases
        if release[0].isdigit()
    ]
    return {
        "device": (*catalog.device_files(), *OWN_DEVICES),
        "model": (*catalog.model_files(), *(f"hf_configs/{name}.json" for name in CONFIGS)),
        "quantizer": tuple(quantizers.FAMILIES),
        "tokens": tuple(token_policies.FAMILIES),
        "weights": tuple(FORMATS),
        "stack": (*stacks, *releases, *(f"{stack}@kernels" for stack in stacks)),
    }


def quantizer(rng: random.Random) -> str:
    """A family with its defaults or with options of its own."""
    family = rng.choice(known()["quantizer"])
    own = OPTIONS.get(family, {})
    given = [f"{name}={rng.choice(values)}" for name, values in own.items() if rng.random() < 0.5]
    if family == "oaken" and rng.random() < 0.4:
        given = [
            f"groups={rng.choice(('4/90/6', '2/2/90/6', '10/90', '33.3/33.3/33.4'))}",
            f"dense={rng.choice((0, 1))}",
        ]
    return f"{family}:{','.join(given)}" if given else family


def tokens(rng: random.Random, n_input: int) -> str:
    """A token policy, at its defaults or with options near the prompt's length."""
    pick, family = rng.choice, rng.choice(known()["tokens"])
    near = max(1, round(n_input * pick((0.05, 0.25, 0.5, 1, 1.2))) + pick((-1, 0, 0, 1)))
    share = pick(("0.16", "0.5", "1", "0.01"))
    options = {
        "window": (f"tokens={near}",),
        "streaming": (f"sinks={pick((0, 1, 8))},window={near}",),
        "h2o": (f"heavy={pick((0, '0.1', '0.5'))},recent=0.3,evict={pick(('always', 'prompt'))}",),
        "snapkv": (f"share={share}", f"budget={near}"),
        "scissorhands": (f"share={share}", f"budget={near}"),
        "sparse": (f"k={near},index_dim={pick((0, 32, 128))},index_bits={pick((4, 8))},index_heads={pick((1, 16))}",),
        "constant": (f"c={near}",),
    }.get(family)
    return family if options is None or rng.random() < 0.2 else f"{family}:{pick(options)}"


def spread(rng: random.Random, low: float, high: float) -> int:
    """A whole number, all orders of magnitude alike; every third a power of two."""
    found = math.exp(rng.uniform(math.log(low), math.log(high)))
    return max(1, 2 ** round(math.log2(found)) if rng.random() < 0.33 else round(found))


def lengths(rng: random.Random, model: Any) -> tuple[int, int]:
    """Prompt and output: usual ones, or edges."""
    kind, pick = rng.random(), rng.choice
    windows = [layer.window for layer in model.layers if layer.window]
    if kind < 0.72:
        return spread(rng, 16, 16_384), spread(rng, 1, 2_048)
    if kind < 0.76:  # a single token
        return 1, pick((1, 1, 2, 100))
    if kind < 0.86:  # a window, or a round number of tokens, exactly full or nearly
        end = pick([*windows, *windows, 128, 256, 1024, 4096]) + pick((-1, 0, 0, 1, 2))
        n_output = min(pick((1, 2, 16, 128)), end - 1)
        return end - n_output, n_output
    if kind < 0.94:  # around and beyond the positions that the model was made for
        end = model.max_position_tokens or 32_768
        return max(1, end + pick((-64, 0, 1, 1000))), pick((1, 64, 500))
    if kind < 0.97:  # long
        return spread(rng, 2**17, 2**21), spread(rng, 1, MAX_OUTPUT)
    return spread(rng, 1, 4_096), spread(rng, 2_048, MAX_OUTPUT)


def with_changes(rng: random.Random, device: str, often: float) -> str:
    """The device with a number or two changed on the spot."""
    kinds = [ANY_CHANGES]
    if catalog.device(device).stacks:
        kinds.append(GPU_CHANGES)
    if device in ENGINES:
        kinds += [CORE_CHANGES, CORE_CHANGES]
    changes = dict.fromkeys(rng.choice(kind) for kind in kinds if rng.random() < often)
    return f"{device}:{','.join(changes)}" if changes else device


def split(rng: random.Random, model: Any, smallest: int) -> dict[str, Any]:
    """How the model lies on several devices, at least `smallest` of them."""
    pick, chance = rng.choice, rng.random
    n = smallest * pick((1, 1, 2, 4)) if chance() < 0.5 else smallest
    pp = pick([size for size in (1, 1, 1, 2, 3, 4) if n % size == 0 or size == 3])
    tp = max(1, n // pp)
    found: dict[str, Any] = {"tp": tp, "pp": pp}
    if pp > 1 and chance() < 0.4:
        found["pp_batches"] = rng.randint(1, pp)
    if tp > 1 and model.n_experts > 1 and chance() < 0.5:
        found["ep"] = pick([size for size in (1, 2, 4, 8, 16) if tp % size == 0])
        if found["ep"] > 1 and chance() < 0.5:
            found["expert_skew"] = pick((0.1, 0.25, 1.0))
    if tp > 1 and chance() < 0.2:
        found["dp_attention"] = True
    n_heads = max((layer.n_kv_heads for layer in model.layers if layer.key_dim), default=1)
    if not found.get("dp_attention") and tp > n_heads and chance() < 0.5:
        found["dcp"] = tp // n_heads
    return found


def of_servers(rng: random.Random, n_tokens: int, often: float) -> dict[str, Any]:
    """What a server's memory and its limits may be."""
    asked = {
        "memory": ("server", "paper"),
        "gpu_memory_utilization": (0.5, 0.8, 0.95, 1.0),
        "kv_cache_memory_bytes": (2**33, 40 * 10**9),
        "free_memory_bytes": (22 * 2**30, 70 * 2**30),
        "max_model_len": (n_tokens, n_tokens + 1, 2 * n_tokens),
        "prompt_budget_tokens": (512, 2048, 8192, 16_384),
        "max_num_seqs": (1, 8, 64, 256, 1024),
        "tower": (False,),
        "rounds": (1, 3, 100),
    }
    found = {name: rng.choice(values) for name, values in asked.items() if rng.random() < often / 2}
    # bounded so that most are no contradiction
    if found.get("memory") == "paper":
        found = {name: value for name, value in found.items() if name in ("memory", "rounds", "tower", "max_num_seqs")}
    if "kv_cache_memory_bytes" in found:
        found.pop("gpu_memory_utilization", None)
    return found


def design(rng: random.Random) -> dict[str, Any]:
    """One design; options are rare in some, dense in others, so that each occurs alone and with others."""
    pick, chance = rng.choice, rng.random
    often = pick((0.08, 0.2, 0.5))
    name = pick(known()["device"])
    device = catalog.device(name)
    model_name = pick(known()["model"])
    model = catalog.model(model_name)
    found: dict[str, Any] = {"device": with_changes(rng, name, often), "model": model_name}

    parameters, width = model.dense_parameters + model.expert_parameters, 16.0
    if model.released in FORMATS:
        width = (
            FORMATS[model.released].expert_eighths if model.n_experts > 1 else FORMATS[model.released].dense_eighths
        ) / 8
    if chance() < 0.35:
        found["weights"] = pick(known()["weights"])
        width = FORMATS[found["weights"]].expert_eighths / 8
    elif chance() < 0.15:
        found["weights_bits"] = width = pick((8, 4))
        if chance() < 0.5:
            found["activation_bits"] = 8
    needed = parameters * width / 8 / (0.75 * device.capacity_bytes)
    smallest = 2 ** max(0, math.ceil(math.log2(needed)))
    if smallest > 1 and not device.link_bandwidth and chance() < 0.9:
        return design(rng)
    if smallest > 1 or chance() < 0.25:
        found |= split(rng, model, min(smallest, 64))

    n_input, n_output = lengths(rng, model)
    found |= {"input_tokens": n_input, "output_tokens": n_output}
    if chance() < 0.035:
        found |= {"device": f"{name}:{pick(HUGE)}", "batch": 2 ** rng.randint(12, 24)}
        found["input_tokens"] = n_input = spread(rng, 2**10, 2**30)
    elif chance() < 0.6:
        found["batch"] = pick((1, 1, 2, 3, 5)) if chance() < 0.2 else spread(rng, 1, 1_000 if chance() < 0.9 else 2**24)

    kv_cache = chance() > 0.03
    key = quantizer(rng) if kv_cache and chance() < 0.75 else pick(("fp16", "bf16"))
    value = quantizer(rng) if kv_cache and chance() < 0.25 else key
    if kv_cache and model.is_latent and chance() < 0.3:
        key = value = pick(LATENT)
    if kv_cache and chance() < 0.1:
        found["bits"], key = "measured", pick(MEASURED)
        value = key if chance() < 0.6 else pick(MEASURED)
    elif kv_cache and model.n_layers in PLAN_LAYERS and chance() < 0.15:
        key = f"plan:inputs/plans/{model.n_layers}-{rng.randrange(PLANS_EACH)}.toml"
        value = key if chance() < 0.7 else quantizer(rng)
    if chance() < 0.005:
        value = pick(UNKNOWN_QUANTIZERS)
    found |= {"key_quantizer": key, "value_quantizer": value, "kv_cache": kv_cache}
    if kv_cache and chance() < often:
        found["prefix_tokens"] = min(n_input, max(0, pick((n_input, n_input // 2, n_input // 3, 16, n_input - 1))))
        if chance() < 0.4:
            found["cached_input_discount"] = pick((0.0, 0.5, 0.9, 1.0))
    if kv_cache and chance() < often:
        found["tokens"] = tokens(rng, n_input)

    if chance() < 0.4:
        found["admission"] = pick(("reserve", "paged"))
    if chance() < 0.4:
        found["page_tokens"] = pick((1, 2, 7, 8, 32, 64, 100, 128, 256, 1024, 4096))
    if chance() < often:
        found["prompt_chunk_tokens"] = pick((16, 100, 512, 2048, n_input, 2**30))
    if chance() < often:
        found["dequant_path"] = pick(("fused", "materialised", *(("engine",) if name in ENGINES else ())))
    if device.stacks and chance() < 0.5:
        found["stack"] = pick(known()["stack"])
    elif chance() < 0.25:
        found["model_kind"] = pick(("ideal", "ideal", "calibrated") if device.stacks else ("ideal",))
    own = list(catalog.implementations_of(key.partition(":")[0]))
    if own and key == value and chance() < 0.15:
        found["implementation"] = pick(own) + pick(("", "", ":slowest", ":fastest"))
    if kv_cache and chance() < often:
        found["batching"] = pick(("static", "continuous", "chunked"))
    for name in ("strict_kernels", "other_software"):
        if chance() < 0.05:
            found[name] = True
    if chance() < 0.02:
        found |= OF_LOG
    found |= of_servers(rng, n_input + n_output, often)
    if not device.reported_memory and chance() < 0.9:
        found = {name: value for name, value in found.items() if name not in OF_SERVERS}
    found |= of_later_fields(found, bool(device.host_link))
    found |= of_engine_options(found, model) if device.reported_memory else {}
    found |= of_prefix_cache(found, model) if device.reported_memory else {}
    usual = vars(Workload())
    return {name: value for name, value in found.items() if name not in FIELDS or value != usual[name]}


def of_later_fields(found: dict[str, Any], has_host_link: bool) -> dict[str, Any]:
    """Fields that workloads got later, by a draw of their own: all else stays as it was drawn."""
    rng = random.Random(repr(found))
    if not found["kv_cache"] or "prefix_tokens" in found or rng.random() < 0.75:
        return {}
    if has_host_link and rng.random() < 0.5:
        return {"kv_offload": rng.choice((0.05, 0.25, 0.5, 1.0))}
    if "tokens" in found or found["key_quantizer"].partition(":")[0] in ("kivi", "sinkq", "gear"):
        return {}  # few of these share anything
    return {"samples": rng.choice((2, 3, 8, 100)), "admission": "paged"}


#: options of one engine or of all, which came later too
ENGINE_OPTIONS = ("weights_size_bytes", "cuda_graphs", "cpu_offload_gib", "speculative_config", "max_total_tokens")
ENGINE_OPTIONS += ("cuda_graph_max_bs", "swa_full_tokens_ratio", "state_type", "state_slots", "state_share")
ENGINE_OPTIONS += ("gpu_layers", "cpu_moe_layers", "prefix_cache")


def of_engine_options(found: dict[str, Any], model: Any) -> dict[str, Any]:
    """One option of engines, by a draw of its own, with the engine that has it."""
    rng = random.Random(f"options {found!r}")
    pick = rng.choice
    if found.get("memory") == "paper" or not found["kv_cache"] or "calibrated" in found:
        return {}
    if not model.state_bytes and rng.random() < 0.3:
        return {}
    sglang, alone = {"stack": "sglang"}, {"stack": "llama.cpp", "tp": 1, "pp": 1, "pp_batches": None}
    asked: list[dict[str, Any]] = [
        {"weights_size_bytes": pick((2 * 10**9, 16 * 10**9))},
        {"cuda_graphs": False},
        {"cpu_offload_gib": pick((0.5, 4.0))},
        {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}', "pp": 1, "pp_batches": None},
        {**sglang, "max_total_tokens": pick((4096, 10**5))},
        {**sglang, "cuda_graph_max_bs": pick((8, 64))},
        {**alone, "gpu_layers": pick((1, 8, 24))},
    ]
    if any(layer.window for layer in model.layers):
        asked += 6 * [{**sglang, "swa_full_tokens_ratio": pick((0.25, 1.0))}]
    if model.state_bytes:
        types = {"state_type": pick(("float16", "bfloat16", "int8"))}
        slots = {**sglang, "state_slots": pick((16, 64, 300))}
        share = {**sglang, "state_share": pick((0.1, 0.5, 2.0))}
        asked += 12 * [types, types, slots, slots, slots, share, share]
    if model.n_experts > 1:
        asked += 20 * [{**alone, "cpu_moe_layers": pick((1, 4))}]
    if "expert_skew" in found or "dcp" in found:
        asked = asked[:4]  # one engine's would refuse these
    return pick(asked)


def of_prefix_cache(found: dict[str, Any], model: Any) -> dict[str, Any]:
    """The prefix cache of designs that share nothing, by a draw of its own; often of hybrids, whose states it keeps."""
    rng = random.Random(f"prefix cache {found!r}")
    shares = "prefix_tokens" in found or "samples" in found
    if found.get("memory") == "paper" or not found.get("kv_cache", True) or "calibrated" in found or shares:
        return {}
    often = 0.3 if model.state_bytes else 0.03
    return {"prefix_cache": rng.choice(("on", "off", "off"))} if rng.random() < often else {}


#: a design whose memory a server's log had
OF_LOG = {
    "device": "h100",
    "model": "llama3.1-8b",
    "stack": "vllm",
    "weights": "bf16",
    "tp": 1,
    "pp": 1,
    "calibrated": "inputs/memory.json",
}
#: the papers' conventions: all of the memory on the data sheet, kernels at peak rates
PAPERS = {"memory": "paper", "model_kind": "ideal"}


def as_papers(row: dict[str, Any]) -> dict[str, Any]:
    """The design as papers count: what servers alone have is left out."""
    left = ("gpu_memory_utilization", "kv_cache_memory_bytes", "free_memory_bytes", "max_model_len", "calibrated")
    left += ("prompt_budget_tokens", "stack", "implementation", "strict_kernels", "batching", "other_software")
    left += ENGINE_OPTIONS
    return {name: value for name, value in row.items() if name not in left} | PAPERS


def drawn(seed: int, n: int, is_papers: bool) -> list[dict[str, Any]]:
    """`n` random designs; of those that are refused, and in which not one request fits, few enough."""
    rng, kept = random.Random(seed), []
    room = {"refused": round(MAX_REFUSED * n), "infeasible": round(MAX_INFEASIBLE * n), "fits": n}
    while len(kept) < n:
        with contextlib.chdir(GOLDEN):
            row = as_papers(design(rng)) if is_papers else design(rng)
        found = evaluated(row)
        kind = "refused" if "error" in found else "fits" if found["feasible"] else "infeasible"
        if room[kind]:
            room[kind] -= 1
            kept.append(row)
    return kept


@lru_cache(maxsize=512)
def _device(text: str) -> Any:
    return catalog.device(text)


@lru_cache(maxsize=512)
def _plan(model: str, key: str, value: str, bits: str) -> Any:
    source = measurements.bits_from(bits, None)
    return kv_layout.build(catalog.model(model), source.required(key), source.required(value))


def point(row: dict[str, Any]) -> Point:
    """The design of a row, whose fields left out are usual. Raises DseError for one that is refused."""
    plan = _plan(row["model"], row["key_quantizer"], row["value_quantizer"], row.get("bits", "closed"))
    device, work = _device(row["device"]), Workload(**{name: row[name] for name in row if name not in NAMED})
    work.refuse_idle("" if device.reported_memory else device.name)
    return Point(device, plan, work)


def inside(row: dict[str, Any]) -> Point:
    """The same, with files found where the tables are."""
    with contextlib.chdir(GOLDEN):
        return point(row)


def evaluated(row: dict[str, Any]) -> dict[str, Any]:
    """Every result of a design, or {"error": message} of one that is refused."""
    try:
        found = engine.evaluate(inside(row))
    except DseError as error:
        return {"error": str(error)}
    return {**found, "assumptions": "; ".join(found["assumptions"])}


def compiled(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """What compiled code computes of all designs in one call, as `evaluated`: {"error": message} where a design is
    refused, None where compiled code leaves a design to the interpreter, as its whole numbers might not fit int64."""
    import numpy as np

    found: list[dict[str, Any] | None] = [None] * len(rows)
    asked = []
    for i, row in enumerate(rows):
        try:
            one = inside(row)
            many.tables_of([one.design])
            asked.append((i, one, one.work))
        except DseError as error:
            found[i] = {"error": str(error)}
        except OverflowError:
            continue
    each, state = np.arange(len(asked)), np.zeros(len(asked), np.int8)
    tables = many.tables_of([one.design for _, one, _ in asked], [one.design.device for _, one, _ in asked])
    work = [
        np.array([getattr(own, name) for _, _, own in asked]) for name in ("input_tokens", "output_tokens", "batch")
    ]
    filled = many.found_for(RESULT_UNITS, len(asked))
    runs = many.PointRuns(each, each, *work[:2], each, each + 1, work[2])
    many.evaluate(runs, tables, many.n_keys_of(tables), filled, state)
    columns = {name: column.tolist() for name, column in many.columns_of(filled).items()}
    for at, (i, _, own) in enumerate(asked):
        if state[at] == many.LEFT:
            continue
        result = {name: column[at] for name, column in columns.items()}
        result = {name: None if value == many.MISSING or value != value else value for name, value in result.items()}
        result |= {name: None if result[name] < 0 else BOUNDS[result[name]] for name in many.CODE}
        for name in ("stored_tokens", "read_tokens"):  # means over layers: often whole
            result[name] = int(result[name]) if result[name].is_integer() else result[name]
        result["feasible"] = bool(state[at] == many.FEASIBLE)
        result["fits_whole_batch"] = result["max_batch"] >= own.batch
        found[i] = result
    return found
