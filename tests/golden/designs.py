"""5,000 random designs for the golden table. Depends on nothing of the package: all names are written here."""

import math
import random
from typing import Any

SEED = 20240901
N_DESIGNS = 5000

GPU_STACKS = {
    "a100-80gb": ("vllm", "sglang"),
    "2xa100-80gb": ("vllm", "sglang"),
    "a100-40gb": ("vllm", "sglang"),
    "a800-80gb": ("vllm", "sglang"),
    "h100": ("vllm", "sglang", "trtllm"),
    "h200": ("vllm", "sglang"),
    "l40s": ("vllm", "sglang", "trtllm"),
    "b200": ("vllm", "sglang", "trtllm"),
    "inputs/devices/small-gpu.toml": ("vllm", "sglang", "trtllm"),
}
OTHERS = ("lpu-hbm", "lpu-lpddr", "oaken-hbm", "oaken-lpddr", "tender-a100", "inputs/devices/bare.toml")
#: memory in GB; devices of token cores have an engine where Oaken's are
CAPACITY = {
    "a100-80gb": 80,
    "2xa100-80gb": 160,
    "a100-40gb": 40,
    "a800-80gb": 80,
    "h100": 80,
    "h200": 141,
    "l40s": 48,
    "b200": 180,
    "inputs/devices/small-gpu.toml": 24,
    "lpu-hbm": 80,
    "lpu-lpddr": 256,
    "oaken-hbm": 80,
    "oaken-lpddr": 256,
    "tender-a100": 80,
    "inputs/devices/bare.toml": 100,
}
ENGINES = ("oaken-hbm", "oaken-lpddr")
#: devices whose products run in 8 bits
EIGHT_BIT = tuple(name for name in GPU_STACKS if name != "inputs/devices/small-gpu.toml")
ANY_CHANGES = (
    "usable_frac=0.9",
    "usable_frac=0.8",
    "runtime_overhead=2 GB",
    "runtime_overhead=1.5 GiB",
    "memory_bandwidth=3 TB/s",
    "memory_bandwidth=900 GB/s",
    "peak_flops=500 TFLOP/s",
    "peak_flops=61.7 TFLOP/s",
    "memory_capacity=120 GB",
    "memory_capacity=96 GiB",
    "board_power=350 W",
    "usd_per_hour=2.49 USD/h",
    "kernel_launch=2 us",
    "kernel_launch=0 s",
    "fused_rate=1 Telement/s",
    "fused_rate=7.5 Telement/s",
    "energy_per_byte=30 pJ/B,energy_per_flop=0.5 pJ/FLOP,idle_power=70 W",
    "idle_power=25 W",
    "usable_frac=0.9,runtime_overhead=3 GB",
    "n_devices=4 device",
    "memory_capacity=512 GB,memory_bandwidth=8 TB/s",
)
GPU_CHANGES = ("n_cores=64 core", "l2_cache=96 MiB", "peak_flops_fp8=1000 TFLOP/s", "link_bandwidth=450 GB/s")
CORE_CHANGES = (
    "token_cores=32 core",
    "token_cores=200 core",
    "kv_page=8 KiB,kv_burst=128 B",
    "kv_page=2 KiB,kv_burst=64 B",
    "engine_rate=1 Telement/s",
    "engine_rate=20 Telement/s",
    "token_cores=1 core",
)

#: billions of parameters, layers, longest position (0: not said), sliding windows
MODELS = {
    "llama2-7b": (6.7, 32, 4096, ()),
    "llama2-13b": (13.0, 40, 4096, ()),
    "llama2-70b": (69, 80, 4096, ()),
    "llama3-8b": (8.0, 32, 8192, ()),
    "llama3.1-8b": (8.0, 32, 131072, ()),
    "llama3.1-70b": (70.6, 80, 131072, ()),
    "llama3.1-405b": (405.9, 126, 131072, ()),
    "mistral-7b": (7.2, 32, 32768, (4096,)),
    "mixtral-8x7b-oaken": (46.7, 32, 32768, (4096,)),
    "opt-125m": (0.13, 12, 2048, ()),
    "opt-1.3b": (1.3, 24, 2048, ()),
    "opt-6.7b": (6.7, 32, 2048, ()),
    "opt-13b": (12.9, 40, 2048, ()),
    "opt-30b": (30, 48, 2048, ()),
    "opt-175b": (174.6, 96, 2048, ()),
}
CONFIGS = {
    "command-r7b": (8.0, 32, 8192, (4096,)),
    "dbrx": (131.6, 40, 32768, ()),
    "deepseek-v2-lite": (15.7, 27, 163840, ()),
    "deepseek-v2": (235.7, 60, 163840, ()),
    "falcon-7b": (6.9, 32, 0, ()),
    "gemma-2-9b": (9.2, 42, 8192, (4096,)),
    "gemma-3-4b": (3.9, 34, 0, (1024,)),
    "gemma-3n-e4b": (6.8, 35, 32768, (512,)),
    "gpt-neo-1.3b": (1.3, 24, 2048, (256,)),
    "gpt-oss-20b": (20.9, 24, 131072, (128,)),
    "gpt2": (0.12, 12, 1024, ()),
    "llama-3.2-1b": (1.2, 16, 131072, ()),
    "llama-4-scout": (107.8, 48, 10485760, (8192,)),
    "openelm-270m": (0.27, 16, 2048, ()),
    "phi-3-mini-4k": (3.8, 32, 4096, (2047,)),
    "qwen2.5-7b": (7.6, 28, 131072, ()),
    "qwen3-30b-a3b": (30.5, 48, 40960, ()),
    "starcoderbase": (15.5, 40, 8192, ()),
    "bloom-7b1": (7.1, 30, 2048, ()),
    "mistral-nemo-12b": (12.3, 40, 131072, ()),
}
MODELS |= {f"hf_configs/{name}.json": facts for name, facts in CONFIGS.items()}

FAMILIES = (
    "fp16",
    "bf16",
    "fp8",
    "int8",
    "int4",
    "kivi",
    "sinkq",
    "nqkv",
    "qserve",
    "atom",
    "tender",
    "oaken",
    "kvquant",
)
#: what the shipped measurements know
MEASURED = (
    "oaken",
    "nqkv",
    "nqkv:block=64",
    "sinkq",
    "sinkq:group=32",
    "kivi",
    "kivi:bits=4",
    "int8",
    "int4",
    "fp8",
    "qserve",
    "atom",
    "tender",
    "kvquant",
    "fp16",
    "bf16",
    "oaken:groups=4/90/6",
    "oaken:inner=0.02",
    "oaken:outer=0.01,inner=0.01,outlier_bits=4",
)
#: layers of a plan file and the plans that there are for as many
PLAN_LAYERS = (12, 24, 28, 32, 40, 42, 48, 80)
PLANS_EACH = 3

POLICIES = ("window", "streaming", "h2o", "snapkv", "sparse", "constant")


def quantizer(rng: random.Random, family: str | None = None) -> str:
    """A family with its defaults or with options of its own."""
    pick = rng.choice
    family = family or pick(FAMILIES)
    if rng.random() < 0.25:
        return family
    bits = pick((1, 2, 4, 8))
    if family == "fp8":
        options = {"format": pick(("e4m3", "e5m2"))}
    elif family in ("int8", "int4"):
        options = {"granularity": pick(("token", "tensor")), "scale": pick(("fp16", "fp32"))}
    elif family == "kivi":
        group = pick((32, 64, 128))
        options = {"bits": bits, "group": group, "residual": group * pick((1, 2, 4))}
    elif family == "sinkq":
        options = {
            "bits": bits,
            "group": pick((32, 64, 96, 128, 256)),
            "residual": pick((0, 1, 17, 32, 128, 1000)),
            "sinks": pick((0, 1, 3, 5, 20)),
            "evicted": pick((0, 0, 0, 2, 11)),
        }
    elif family == "nqkv":
        options = {"block": pick((16, 64, 100, 128, 256, 1024, 4096, 2**20)), "absmax": pick(("fp16", "fp32"))}
    elif family == "qserve":
        options = {"mode": pick(("head", "artifact"))}
    elif family == "atom":
        options = {"group": pick((16, 32, 64, 100, 128, 256))}
    elif family == "oaken" and rng.random() < 0.5:
        options = {
            "outer": pick((0, "0.02", "0.04", "0.1")),
            "inner": pick((0, "0.01", "0.06", "0.125")),
            "outlier_bits": pick((4, 5)),
        }
    elif family == "oaken":
        groups = pick(("4/90/6", "2/2/90/6", "10/90", "1/3/86/4/6", "33.3/33.3/33.4", "2.5/92.5/5"))
        options = {"groups": groups, "dense": pick((0, 0, 1, 2)), "outlier_bits": pick((4, 5))}
    elif family == "kvquant":
        options = {"bits": pick((2, 3, 4)), "outliers": pick((0, "0.005", "0.01", "0.05"))}
    else:
        return family
    return family + ":" + ",".join(f"{name}={value}" for name, value in options.items())


def plan_text(rng: random.Random, n_layers: int, number: int) -> str:
    """A plan by layer, in TOML: of many methods, of two, or of one with exceptions at both ends."""
    mixed = [quantizer(rng) for _ in range(4)]
    lines = ["# A plan by layer for the golden tables."]
    if number == 1:
        lines += ["[predicted]", "error = 0.125", "stored_bits = 4.75", "measured_error = 0.0625"]
    for layer in range(n_layers):
        if number == 0:
            key, value = rng.choice(mixed), rng.choice(mixed)
        elif number == 1:
            key, value = ("kivi:bits=4", "oaken") if layer % 3 else ("fp8", "fp8")
        else:
            edge = layer < 2 or layer == n_layers - 1
            key, value = ("fp16", "fp16") if edge else (mixed[0], mixed[1])
        lines += ["", "[[layers]]", f"layer = {layer}", f'key = "{key}"', f'value = "{value}"']
    return "\n".join(lines) + "\n"


def tokens(rng: random.Random, n_input: int) -> str:
    """A token policy other than full attention, at its defaults or with options near the prompt's length."""
    pick, family = rng.choice, rng.choice(POLICIES)
    near = max(1, round(n_input * pick((0.05, 0.25, 0.5, 1, 1.2))) + pick((-1, 0, 0, 1)))
    near = max(1, min(near, 999_999_999))
    if rng.random() < 0.2:
        return family
    if family == "window":
        return f"window:tokens={near}"
    if family == "streaming":
        return f"streaming:sinks={pick((0, 1, 4, 8))},window={near}"
    if family == "h2o":
        heavy, recent = pick((("0.1", "0.2"), ("0.05", "0.05"), (0, "0.3"), ("0.5", "0.5"), ("0.013", 0)))
        return f"h2o:heavy={heavy},recent={recent},evict={pick(('always', 'prompt'))}"
    if family == "snapkv":
        return f"snapkv:share={pick(('0.16', '0.5', '1', '0.01'))}" if rng.random() < 0.5 else f"snapkv:budget={near}"
    if family == "sparse":
        options = {
            "k": near,
            "index_dim": pick((0, 32, 128)),
            "index_bits": pick((4, 8, 16)),
            "index_scale_bits": pick((0, 16, 32)),
            "index_heads": pick((1, 16, 64)),
        }
        return "sparse:" + ",".join(f"{name}={value}" for name, value in options.items())
    return f"constant:c={near}"


def spread(rng: random.Random, low: float, high: float) -> int:
    """A whole number, all orders of magnitude alike; every third a power of two."""
    found = math.exp(rng.uniform(math.log(low), math.log(high)))
    if rng.random() < 0.33:
        return max(1, 2 ** round(math.log2(found)))
    return max(1, round(found))


def _lengths(rng: random.Random, longest: int, windows: tuple[int, ...], kind: float) -> tuple[int, int]:
    """Prompt and output: usual ones, or edges."""
    if kind < 0.70:
        return spread(rng, 16, 16_384), spread(rng, 1, 2_048)
    if kind < 0.74:  # a single token
        return 1, rng.choice((1, 1, 2, 100))
    if kind < 0.84:  # a window, or a round number of tokens, exactly full or nearly
        end = rng.choice([*windows, *windows, 128, 256, 1024, 4096]) + rng.choice((-1, 0, 0, 1, 2))
        n_output = min(rng.choice((1, 2, 16, 128)), end - 1)
        return end - n_output, n_output
    if kind < 0.93:  # around and beyond the positions that the model was made for
        end = longest or 32_768
        return max(1, end + rng.choice((-64, 0, 1, 1000, end))), rng.choice((1, 64, 500))
    if kind < 0.97:  # long
        return spread(rng, 2**17, 2**21), spread(rng, 1, 4_096)
    return spread(rng, 1, 4_096), spread(rng, 2_048, 16_384)


def design(rng: random.Random) -> dict[str, Any]:
    """One design; options are rare in some, dense in others, so that each occurs alone and with others."""
    pick, chance = rng.choice, rng.random
    dense = pick((0.08, 0.2, 0.5))
    device = pick((*GPU_STACKS, *OTHERS))
    capacity = CAPACITY[device]
    # models that may fit, mostly; weights of fewer bits where they must be
    names = [name for name in MODELS if MODELS[name][0] * 2 < capacity * 0.9]
    model = pick(names) if chance() < 0.6 else pick(tuple(MODELS))
    billions, n_layers, longest, windows = MODELS[model]
    weights_bits = pick((16, 16, 8, 4))
    if billions * weights_bits / 8 > capacity * 0.95 and chance() < 0.7:
        weights_bits = 4 if billions / 2 < capacity * 0.9 else weights_bits
    activation_bits = 16
    if weights_bits < 16 and device in EIGHT_BIT and chance() < 0.5:
        activation_bits = 8
    if chance() < 0.004:  # refused: activations narrower than weights, or no 8-bit units
        activation_bits = 8

    n_input, n_output = _lengths(rng, longest, windows, chance())
    big = chance() < 0.03
    if big:  # numbers near and beyond 2**53: a memory of thousands of petabytes
        batch, n_input = 2 ** rng.randint(12, 24), spread(rng, 2**10, 2**30)
    elif chance() < 0.06:
        batch = spread(rng, 2_000, 2**24)
    else:
        batch = pick((1, 1, 2, 3, 5)) if chance() < 0.2 else spread(rng, 1, 1_000)

    changes = []
    if chance() < dense:
        changes.append(pick(ANY_CHANGES))
    if chance() < dense / 2 and device in GPU_STACKS:
        changes.append(pick(GPU_CHANGES))
    if chance() < dense and device in ENGINES:
        changes.append(pick(CORE_CHANGES))
    if billions * weights_bits / 8 > capacity * 0.95 and chance() < 0.5:  # memory of several devices
        changes = [pick(("memory_capacity=1200 GB", "memory_capacity=1 TB,n_devices=8 device"))]
    if big:
        changes = [pick(("memory_capacity=4e15 B", "memory_capacity=9e15 B", "memory_capacity=1e15 B"))]
    taken = {part.split("=")[0] for part in changes[0].split(",")} if changes else set()
    changes = changes[:1] + [c for c in changes[1:] if not taken & {part.split("=")[0] for part in c.split(",")}]
    device_text = device + (":" + ",".join(changes) if changes else "")

    kv_cache = chance() > 0.04
    key = value = "fp16" if not kv_cache else quantizer(rng)
    bits = "closed"
    if not kv_cache:
        key = value = pick(("fp16", "fp16", "bf16"))
    elif chance() < 0.12:
        bits, key = "measured", pick(MEASURED)
        value = key if chance() < 0.6 else pick(MEASURED)
    elif chance() < 0.12:  # what was measured, in closed form: its errors are shown
        key = pick(MEASURED)
        value = key if chance() < 0.6 else pick(MEASURED)
    elif n_layers in PLAN_LAYERS and chance() < 0.15:
        key = f"plan:inputs/plans/{n_layers}-{rng.randrange(PLANS_EACH)}.toml"
        value = key if chance() < 0.7 else pick((f"plan:inputs/plans/{n_layers}-0.toml", quantizer(rng)))
    elif chance() < 0.3:
        value = quantizer(rng)
    if chance() < 0.01:  # refused: no such thing
        value = pick(("kivi:bits=3", "kivi:group=32,residual=100", "oakn", "oaken:outer=0.9,inner=0.2", "int4:scale=x"))

    prefix = 0
    if kv_cache and chance() < max(dense, 0.2):
        prefix = min(n_input, pick((n_input, n_input // 2, n_input // 3, 1, 16, 100, n_input - 1)))
    admission = pick(("reserve", "paged"))
    policy = tokens(rng, n_input) if kv_cache and chance() < max(dense, 0.25) else "full"
    path = None
    if chance() < max(dense, 0.2):
        path = pick(("fused", "materialised", *(("engine",) if device in ENGINES else ())))
    if chance() < 0.004:
        path = "engine"
    stacks = GPU_STACKS.get(device)
    if stacks:
        kind = pick(("auto", "ideal", "calibrated", "calibrated"))
        stack = pick((None, *stacks)) if kind != "ideal" else None
    else:
        kind, stack = pick(("auto", "ideal")), None
    if chance() < 0.008:
        kind, stack = pick((("calibrated", None), ("auto", "trtllm"), ("ideal", "vllm"), ("auto", "other")))
    return {
        "device": device_text,
        "model": model,
        "key_quantizer": key,
        "value_quantizer": value,
        "bits": bits,
        "batch": batch,
        "input_tokens": n_input,
        "output_tokens": n_output,
        "admission": admission,
        "page_tokens": pick((16, 16, 16, 1, 2, 7, 8, 32, 64, 100, 128, 256, 1024, 4096)),
        "prefix_tokens": prefix,
        "weights_bits": weights_bits,
        "dequant_path": path,
        "model_kind": kind,
        "stack": stack,
        "tokens": policy,
        "activation_bits": activation_bits,
        "prompt_chunk_tokens": pick((1, 16, 100, 512, 2048, n_input, 2**30)) if chance() < max(dense, 0.3) else 1,
        "kv_cache": kv_cache,
        "cached_input_discount": pick((0.0, 0.5, 0.75, 0.9, 1.0)) if prefix and chance() < 0.4 else None,
    }
