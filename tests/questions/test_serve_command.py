"""Commands that start a design: against the recorded flags of each release, and read back as Find reads them."""

import itertools
import json
import shlex
import tomllib
from pathlib import Path

import pytest

import hwspecs
from cases import each
from dse import quantizers
from dse.core.errors import DseError, InputError
from dse.model.engine import evaluate
from dse.model.point import Point
from dse.operations.shared import layout
from dse.quantizers import engine_names, skipping
from dse.questions.serve_command import ServeCommand, serve_command
from dse.specs import catalog, server_flags, servers
from dse.specs.workload import ASKED, Workload

#: as the releases have them
RECORDED = tomllib.loads((Path(hwspecs.__file__).parent / "commands.toml").read_text())
#: engine -> device and model, and one that has the layers that the first has not
BASES = {
    "vllm": [("h200", "qwen3-30b-a3b"), ("h200", "qwen3.6-27b")],
    "sglang": [("h200", "deepseek-v3"), ("h200", "gemma-3-12b"), ("b200", "qwen3.6-27b")],
    "trtllm": [("h200", "llama3.1-70b"), ("h200", "qwen3-30b-a3b")],
    "llama.cpp": [("rtx5090", "Qwen/Qwen3-8B-GGUF:Q8_0"), ("rtx5090", "ggml-org/gemma-3-12b-it-GGUF:Q4_K_M")],
}
MTP, EAGLE = (
    json.dumps({"method": "mtp", "num_speculative_tokens": 2}),
    json.dumps({"method": "eagle3", "model": "RedHatAI/Qwen3-head", "num_speculative_tokens": 3}),
)
TURBO = "turboquant_k8v4"
#: layers in 16 bits, beside those that vLLM keeps so by itself
SKIPS, TURBO_SKIPS = "fp8:skip=0+3+-1", f"{TURBO}:skip=0+1+7+-2+-1"
#: values of fields beside their defaults; of "kv", the quantizers of keys and values
VALUES = {
    "kv": [
        ("fp8", "fp8"),
        ("fp8:format=e5m2", "fp8:format=e5m2"),
        ("nvfp4", "nvfp4"),
        ("q8_0", "q8_0"),
        (TURBO, TURBO),
        (SKIPS, SKIPS),
        (TURBO_SKIPS, TURBO_SKIPS),
    ],
    "tp": [2, 8],
    "pp": [2],
    "ep": [8],
    "dp_attention": [True],
    "dcp": [2],
    "weights": ["fp8", "q8_0", "int4"],
    "batch": [16, 3000],
    "max_model_len": [4096, 3000],
    "max_num_seqs": [256, 6],
    "prompt_budget_tokens": [4096],
    "gpu_memory_utilization": [0.8512],
    "kv_cache_memory_bytes": [8 * 2**30],
    "max_total_tokens": [65536],
    "page_tokens": [64],
    "batching": ["continuous", "chunked", "static"],
    "admission": ["paged", "reserve"],
    "state_type": ["float16", "int8"],
    "state_slots": [64],
    "state_share": [0.5],
    "prefix_cache": ["off", "on"],
    "cuda_graphs": [False],
    "cuda_graph_max_bs": [64],
    "tower": [False],
    "gpu_layers": [20],
    "cpu_moe_layers": [10],
    "cpu_offload_gib": [2.0, 1.5],
    "kv_offload": [1.0, 0.5],
    "swa_full_tokens_ratio": [1.0, 0.5],
    "speculative_config": [MTP, EAGLE],
    "tokens": ["streaming"],
    "pp_batches": [1],
}
#: fields that need another -> what it is where the pair does not have it
NEEDS = {"ep": {"tp": 8}, "dp_attention": {"tp": 8}, "dcp": {"tp": 8}, "pp_batches": {"pp": 2}}
#: fields of a line that the design may leave open -> what it then means
OPEN = {"max_model_len": lambda work: work.longest_tokens}
#: how a line calls fields that it lacks, where that is not their title
SAID = {"weights": (" weights",), "speculative_config": ("drafts by", "speculative-config")}
#: results of a deployment, which a line read back has too
SAME = ("weight_bytes", "running_batch", "free_bytes", "throughput_tokens_per_s", "tpot_s", "ttft_s", "score_drop_frac")


def designs(stack):
    """Every pair of values of two fields, with a shipped device and model for the engine."""
    for device, model in BASES[stack]:
        for one, other in itertools.combinations(VALUES, 2):
            for asked in itertools.product(VALUES[one], VALUES[other]):
                needed = NEEDS.get(one, {}) | NEEDS.get(other, {})
                yield device, model, needed | dict(zip((one, other), asked, strict=True))


def design_of(stack, device, model, asked):
    """Device, plan and workload; InputError where they do not go together."""
    keys, values = asked.get("kv", ("fp16", "fp16"))
    work = Workload(stack=stack, **{name: value for name, value in asked.items() if name != "kv"})
    return catalog.device(device), layout(model, keys, values), work


def parsed(stack, line):
    """The flags of a line and their values, as the release's parser takes them; the first words begin it."""
    kinds = {name: entry for names, *entry in RECORDED[stack]["flags"].values() for name in names.split()}
    words, found = shlex.split(line), {}
    start = RECORDED[stack]["start"].split()
    assert words[: len(start)] == start
    words = words[len(start) :]
    if not words[0].startswith("-"):
        found["model"] = words.pop(0)
    while words:
        flag = words.pop(0)
        assert flag not in found, f"{flag} twice"
        takes, *stands_for = kinds[flag]
        if takes == "switch":
            assert stands_for
            found[flag] = True
            continue
        value = words.pop(0)
        if takes == "several":
            while words and not words[0].startswith("-"):
                value += f" {words.pop(0)}"
        elif takes == "json":
            json.loads(value)
        elif takes in ("whole", "number"):
            assert {"whole": int, "number": float}[takes](value) >= 0
        elif takes == "layers":
            assert value == "all" or int(value) >= 0
        elif takes != "text":
            assert value in takes.split("|")
        found[flag] = value
    return found


def read_back(plan, work, line):
    """The plan and the workload of a line as Find reads it, its load as before."""
    read = server_flags.read(line)
    assert read.left_out == []
    values = dict(read.values)
    model = values.pop("model")
    assert model == plan.model.name
    keys = values.pop("quantizer", "fp16")
    sides = keys, values.pop("value_quantizer", keys)
    load = {name: getattr(work, name) for name in ("batch", "input_tokens", "output_tokens")}
    return layout(model, *sides), Workload(**load, **values)


def check(stack, device, model, asked):
    """One design: its line parses, and what is read back is the design but for what the line says it lacks."""
    try:
        spec, plan, work = design_of(stack, device, model, asked)
        command = serve_command(spec, plan, work)
    except InputError:
        return ""
    if not command.line:
        assert len(command.cannot) == 1
        return ""
    assert "\n" not in command.line
    parsed(stack, command.line)
    again, back = read_back(plan, work, command.line)
    lacking = " ".join(command.cannot)
    settled, settled_back = work.of_model(plan.model), back.of_model(plan.model)
    for name, form in ASKED.items():
        want, got = getattr(settled, name), getattr(settled_back, name)
        if name in ("batch", "admission") or want == got:
            continue
        if want == form.default:  # open, and written all the same
            assert name not in OPEN or got == OPEN[name](work), name
        else:
            usual = {"pp_batches": work.pp, "batching": servers.batching(stack, work.stack), "prefix_cache": "on"}
            is_own = usual.get(name) == want
            is_slots = stack == "llama.cpp" and name == "max_model_len"
            is_said = any(word in lacking for word in SAID.get(name, (form.title or form.name,)))
            assert is_own or is_slots or is_said, f"{name} = {want!r}, read back {got!r}"
    for side in ("key", "value"):
        for layer in range(plan.model.n_layers):
            want, got = (getattr(one, f"{side}_quantizer").of(side, layer) for one in (plan, again))
            want, got = skipping.bare(want), skipping.bare(got)
            assert want.name == got.name or (want.family.exact and got.family.exact), layer
    batch = work.batch or 0
    if not command.cannot and stack != "llama.cpp" and batch <= 1024:  # llama.cpp's -c is settled by the line
        first, second = evaluate(Point(spec, plan, work)), evaluate(Point(spec, again, back))
        assert {name: first[name] for name in SAME} == {name: second[name] for name in SAME}
    assert not Point(spec, again, back).lowered.refused or command.cannot
    return command.line


#: one of so many designs is checked in the quick tier, the others in the slow one
QUICK_STEP = 7


@pytest.mark.slow
@pytest.mark.parametrize("stack", BASES)
def test_any_two_fields_are_in_the_line_or_said_to_lack(stack):
    wrong, lines = [], set()
    for number, (device, model, asked) in enumerate(designs(stack)):
        if number % QUICK_STEP == 0:
            continue
        try:
            lines.add(check(stack, device, model, asked))
        except (AssertionError, DseError) as error:
            wrong.append(f"{device} {model} {asked}: {type(error).__name__}: {error}")
    assert not wrong, f"{len(wrong)}\n" + "\n".join(wrong[:40])
    assert len(lines) > 100


@pytest.mark.parametrize("stack", BASES)
def test_some_pairs_of_fields_are_in_the_line_or_said_to_lack(stack):
    lines = {check(stack, *design) for design in itertools.islice(designs(stack), 0, None, QUICK_STEP)}
    assert len(lines) > 10


def command(device, model, keys="fp16", values=None, **asked):
    return serve_command(catalog.device(device), layout(model, keys, values or keys), Workload(**asked))


@each(
    ("device", "model", "asked", "line"),
    [
        # an MoE model over 8 devices, each of which attends to requests of its own: 128 of 1,024 requests on each
        (
            "h200",
            "deepseek-v3",
            {"keys": "fp8", "tp": 8, "ep": 8, "dp_attention": True},
            "vllm serve deepseek-ai/DeepSeek-V3 --data-parallel-size 8 --enable-expert-parallel --max-model-len 2048 "
            "--max-num-seqs 128 --max-num-batched-tokens 8192 --gpu-memory-utilization 0.92 --kv-cache-dtype fp8",
        ),
        # vLLM keeps the first two and last two layers in 16 bits by itself (turboquant/config.py), of a hybrid none
        (
            "h100",
            "llama3.1-8b",
            {"keys": "turboquant_k8v4"},
            "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 2048 --max-num-seqs 1024 "
            "--max-num-batched-tokens 8192 --gpu-memory-utilization 0.92 --kv-cache-dtype turboquant_k8v4",
        ),
        (
            "h200",
            "qwen3.6-27b",
            {"keys": "turboquant_4bit_nc"},
            "vllm serve Qwen/Qwen3.6-27B --max-model-len 2048 --max-num-seqs 1024 --max-num-batched-tokens 8192 "
            "--gpu-memory-utilization 0.92 --kv-cache-dtype turboquant_4bit_nc",
        ),
        # layers in 16 bits by number, from the end too; latent heads keep them from 0.26.0 on (its pull request 47309)
        (
            "h200",
            "deepseek-v3",
            {"keys": "fp8:skip=1+-1", "tp": 8},
            "vllm serve deepseek-ai/DeepSeek-V3 --tensor-parallel-size 8 --max-model-len 2048 --max-num-seqs 1024 "
            "--max-num-batched-tokens 8192 --gpu-memory-utilization 0.92 --kv-cache-dtype fp8 "
            "--kv-cache-dtype-skip-layers 1 60",
        ),
        # beside vLLM's own, all are listed; of a hybrid, which has none of its own, those that were asked for
        (
            "h100",
            "llama3.1-8b",
            {"keys": TURBO_SKIPS},
            "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 2048 --max-num-seqs 1024 "
            "--max-num-batched-tokens 8192 --gpu-memory-utilization 0.92 --kv-cache-dtype turboquant_k8v4 "
            "--kv-cache-dtype-skip-layers 0 1 7 30 31",
        ),
        (
            "h200",
            "qwen3.6-27b",
            {"keys": "turboquant_k8v4:skip=3+7"},
            "vllm serve Qwen/Qwen3.6-27B --max-model-len 2048 --max-num-seqs 1024 --max-num-batched-tokens 8192 "
            "--gpu-memory-utilization 0.92 --kv-cache-dtype turboquant_k8v4 --kv-cache-dtype-skip-layers 3 7",
        ),
        # SGLang 0.5.23 has --attn-dp-size in place of --enable-dp-attention, and its limit is of all devices
        (
            "h200",
            "deepseek-v3",
            {"keys": "fp8", "tp": 8, "ep": 8, "dp_attention": True, "max_num_seqs": 512, "stack": "sglang"},
            "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp-size 8 --attn-dp-size 8 "
            "--ep-size 8 --context-length 2048 --max-running-requests 512 --kv-cache-dtype fp8_e4m3",
        ),
        (
            "h200",
            "deepseek-v3",
            {"keys": "fp8", "tp": 8, "ep": 8, "dp_attention": True, "max_num_seqs": 512, "stack": "trtllm"},
            "trtllm-serve deepseek-ai/DeepSeek-V3 --tp_size 8 --enable_attention_dp --ep_size 8 --max_seq_len 2048 "
            "--max_batch_size 64 --kv_cache_dtype fp8",
        ),
        # the repository that was asked for; 4 slots of 4,096 tokens
        (
            "rtx4090",
            "Qwen/Qwen3-8B-GGUF:Q8_0",
            {"keys": "q8_0", "max_num_seqs": 4, "max_model_len": 4096},
            "llama-server -hf Qwen/Qwen3-8B-GGUF:Q8_0 --ctx-size 16384 --parallel 4 --cache-type-k q8_0 "
            "--cache-type-v q8_0 --split-mode none",
        ),
        # drafts in the words of SGLang: layers of multi-token prediction are EAGLE without a model of their own
        (
            "h200",
            "deepseek-v3",
            {"tp": 8, "stack": "sglang", "speculative_config": MTP, "prompt_budget_tokens": 4096, "keys": "fp8"},
            "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp-size 8 --context-length 2048 "
            "--chunked-prefill-size 4096 --kv-cache-dtype fp8_e4m3 --speculative-algorithm EAGLE "
            "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3",
        ),
        # JSON is quoted for the shell; 16-bit weights are made FP8 as they are loaded
        (
            "h100",
            "qwen3-32b",
            {"speculative_config": MTP, "weights": "fp8"},
            "vllm serve Qwen/Qwen3-32B --quantization fp8 --max-model-len 2048 --max-num-seqs 1024 "
            "--max-num-batched-tokens 8192 --gpu-memory-utilization 0.92 "
            """--speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'""",
        ),
        # a checkpoint that was named stays as it was written
        (
            "h100",
            "RedHatAI/Qwen3-32B-FP8-dynamic",
            {"cuda_graphs": False},
            "vllm serve RedHatAI/Qwen3-32B-FP8-dynamic --max-model-len 2048 --max-num-seqs 1024 "
            "--max-num-batched-tokens 8192 --gpu-memory-utilization 0.92 --enforce-eager",
        ),
    ],
)
def test_lines_by_hand(device, model, asked, line):
    found = command(device, model, **asked)
    assert (found.line, found.cannot) == (line, ())


@each(
    ("device", "model", "asked", "why"),
    [
        ("h100", "llama3.1-8b", {"keys": "kivi"}, "kivi: no KV type of vLLM 0.33.0"),
        ("h100", "llama3.1-8b", {"keys": "kivi", "other_software": True}, "kivi: no KV type of vLLM 0.33.0"),
        ("h100", "llama3.1-8b", {"keys": "nvfp4", "stack": "sglang"}, "nvfp4: SGLang 0.5.23 refuses it"),
        ("h100", "llama3.1-8b", {"keys": "fp8", "values": "fp16"}, "vLLM keeps both in one type"),
        # --kv-cache-dtype-skip-layers is of vLLM from 0.19.0 on, of latent heads from 0.26.0 on
        ("h100", "llama3.1-8b", {"keys": "fp8:skip=0", "stack": "vllm@0.18.0"}, "vllm@0.19.0 leaves some in 16 bits"),
        (
            "h200",
            "deepseek-v3",
            {"keys": "fp8:skip=0+1", "tp": 8, "stack": "vllm@0.25.1"},
            "vllm@0.26.0 leaves some in 16 bits",
        ),
        ("h100", "llama3.1-8b", {"keys": "fp8:skip=0", "stack": "sglang"}, "SGLang keeps all layers in one KV type"),
        ("h100", "llama3.1-8b", {"keys": "fp8:skip=0", "stack": "trtllm"}, "TensorRT-LLM keeps all layers in one"),
        ("rtx4090", "qwen3-8b", {"keys": "q8_0:skip=0", "stack": "llama.cpp"}, "llama.cpp keeps all layers in one"),
        # vLLM adds its own four layers to those that are listed, and drops none
        ("h100", "llama3.1-8b", {"keys": "turboquant_k8v4:skip=none"}, "vLLM keeps the first two and last two layers"),
        # 52 blocks of the checkpoint, by which vLLM counts, are 29 layers here
        (
            "h200",
            "nemotron-3-nano-30b-a3b",
            {"keys": "fp8:skip=3"},
            "vLLM numbers blocks, not layers: 52 blocks are 29",
        ),
        ("h100", "llama3.1-8b", {"memory": "paper"}, "counted as papers do"),
        ("h100", "llama3.1-8b", {"model_kind": "ideal"}, "counted as papers do"),
        ("h100", "llama3.1-405b", {}, "not one request fits"),
        ("rtx4090", "Qwen/Qwen3-8B-GGUF:Q8_0", {"max_total_tokens": 2**20}, "GiB of keys and values"),
        ("h200", "qwen3-30b-a3b", {"tp": 8, "ep": 4}, "whole experts over all devices or over none"),
    ],
)
def test_what_no_engine_starts_has_no_line_and_one_reason(device, model, asked, why):
    found = command(device, model, **asked)
    assert found.line == found.text() == ""
    assert len(found.cannot) == 1
    assert why in found.cannot[0]
    assert "\n" not in found.cannot[0]


@each(
    ("device", "model", "asked", "lacks"),
    [
        ("h100", "qwen3-32b", {"weights": "int4"}, "int4 weights: name a checkpoint"),
        ("h100", "mixtral-8x7b-oaken", {"tp": 2}, "its name on a hub is not known"),
        ("h100", "qwen3-32b", {"kv_offload": 0.5}, "keys and values in host memory 0.5: no flag of vLLM"),
        ("h100", "qwen3-32b", {"tokens": "streaming"}, "token policy streaming: no flag of vLLM"),
        ("h100", "qwen3-32b", {"batching": "static"}, "batching static: no flag of vLLM"),
        ("h100", "llama3-8b", {"max_model_len": 16384}, "context of 16,384 tokens: the model has 8,192"),
        ("h100", "llama3-8b", {"stack": "trtllm", "page_tokens": 64}, "page 64: no flag of TensorRT-LLM"),
        ("h100", "llama3-8b", {"stack": "sglang", "cpu_offload_gib": 0.5}, "weights in host memory 0.5"),
        ("rtx4090", "qwen3-8b", {"weights": "q4_k_m"}, "qwen3-8b-Q4_K_M.gguf: no repository"),
        ("h200", "deepseek-v3", {"tp": 8, "dp_attention": True, "max_num_seqs": 12}, "concurrency, at most 12"),
    ],
)
def test_what_a_line_lacks_is_said(device, model, asked, lacks):
    found = command(device, model, **asked)
    assert found.line
    assert any(lacks in line for line in found.cannot)
    assert found.text() == f"Run it: {found.line}\nNot in this line: {'; '.join(found.cannot)}"


@each(
    ("stack", "asked", "joined"),
    [
        ("vllm", {"tp": 8, "pp": 2}, "--nnodes, --node-rank, --master-addr"),
        (
            "vllm",
            {"tp": 16, "ep": 16, "dp_attention": True},
            "--data-parallel-size-local, --data-parallel-start-rank, --data-parallel-address",
        ),
        ("sglang", {"tp": 16, "ep": 16}, "--nnodes, --node-rank, --dist-init-addr"),
        ("trtllm", {"tp": 8, "pp": 2}, "mpirun or srun, with trtllm-llmapi-launch"),
        ("vllm", {"tp": 8}, ""),
    ],
)
def test_several_machines_are_joined_as_the_engine_says(stack, asked, joined):
    """Flags of vLLM 0.33.0 (vllm/engine/arg_utils.py) and SGLang 0.5.23: their addresses are the user's."""
    text = command("h200", "deepseek-v3", stack=stack, **asked).text()
    assert text.endswith(f"\nNot in this line: several machines, joined by {joined}") == bool(joined)
    assert ("several machines" in text) == bool(joined)


def test_a_default_that_releases_differ_in_is_written_and_others_are_said():
    vllm, sglang = command("h100", "llama3.1-8b"), command("h100", "llama3.1-8b", stack="sglang")
    assert "--gpu-memory-utilization 0.92" in vllm.line
    assert "--mem-fraction-static" not in sglang.line
    assert any(line.startswith("memory for the server: SGLang's own, 0.8") for line in sglang.left)
    older = command("h100", "llama3.1-8b", stack="vllm@0.19.0")
    assert "--gpu-memory-utilization 0.9 " in older.line + " "
    assert "flags are those of vLLM 0.33.0, not of 0.19.0" in older.left
    # the share gives way to the bytes
    assert "utilization" not in command("h100", "llama3.1-8b", kv_cache_memory_bytes=2**33).line


@each(
    ("model", "flags", "quantizer", "left_out"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "fp8 --kv-cache-dtype-skip-layers 1 0", "fp8:skip=0+1", []),
        ("meta-llama/Llama-3.1-8B-Instruct", "fp8_e5m2 --kv_cache_dtype_skip_layers 31", "fp8:format=e5m2,skip=31", []),
        # listed without any packed type, vLLM's own, and a layer that the model has not
        ("meta-llama/Llama-3.1-8B-Instruct", "auto --kv-cache-dtype-skip-layers 0", "fp16", []),
        ("meta-llama/Llama-3.1-8B-Instruct", f"{TURBO} --kv-cache-dtype-skip-layers 0 30", TURBO, []),
        (
            "meta-llama/Llama-3.1-8B-Instruct",
            f"{TURBO} --kv-cache-dtype-skip-layers 5",
            f"{TURBO}:skip=0+1+5+30+31",
            [],
        ),
        (
            "meta-llama/Llama-3.1-8B-Instruct",
            "fp8 --kv-cache-dtype-skip-layers 0 32",
            "fp8:skip=0",
            ["--kv-cache-dtype-skip-layers 32"],
        ),
        # gpt-oss: every other layer has a window, from the first on (config.json, layer_types)
        (
            "openai/gpt-oss-20b",
            "fp8 --kv-cache-dtype-skip-layers sliding_window 23",
            f"fp8:skip={'+'.join(map(str, sorted({*range(0, 24, 2), 23})))}",
            [],
        ),
        # vLLM's MLAAttention looks at numbers alone
        (
            "deepseek-ai/DeepSeek-V3",
            "fp8 --kv-cache-dtype-skip-layers sliding_window",
            "fp8",
            ["--kv-cache-dtype-skip-layers sliding_window"],
        ),
    ],
)
def test_layers_in_16_bits_are_read(model, flags, quantizer, left_out):
    read = server_flags.read(f"vllm serve {model} --kv-cache-dtype {flags} --tensor-parallel-size 2")
    assert (read.values["quantizer"], read.left_out) == (quantizer, left_out)
    assert read.values["tp"] == 2


@each(
    ("line", "left_out"),
    [
        ("vllm serve Qwen/Qwen3-32B --max-num-seqz 4", ["--max-num-seqz 4 (did you mean --max-num-seqs?)"]),
        ("vllm serve Qwen/Qwen3-32B --enforce_eagr", ["--enforce-eagr (did you mean --enforce-eager?)"]),
        # a flag of the release that no design has; the near ones of each engine are its own
        (
            "vllm serve Qwen/Qwen3-32B --port 80 --atention-backend F",
            ["--port 80", "--atention-backend F (did you mean --attention-backend?)"],
        ),
        (
            "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --max-runing-requests 4",
            ["--max-runing-requests 4 (did you mean --max-running-requests?)"],
        ),
        ("trtllm-serve Qwen/Qwen3-32B --max_batch_siz 4", ["--max-batch-siz 4 (did you mean --max_batch_size?)"]),
        ("--model Qwen/Qwen3-32B --max-num-seq 4", ["--max-num-seq 4 (did you mean --max-num-seqs?)"]),
        ("vllm serve Qwen/Qwen3-32B --zq 4 -zz 5", ["--zq 4", "-zz 5"]),
    ],
)
def test_a_misspelt_flag_is_left_out_beside_the_nearest_one(line, left_out):
    assert server_flags.read(line).left_out == left_out


VLLM, SGLANG = "vllm serve Qwen/Qwen3-32B", "python -m sglang.launch_server --model-path Qwen/Qwen3-32B"


@each(
    ("line", "values", "left_out"),
    [
        (f"{VLLM} --max-num-seq 64", {"max_num_seqs": 64}, []),
        (f"{VLLM} --max_num_seq=64 --enforce --tensor-par 2", {"max_num_seqs": 64, "cuda_graphs": False, "tp": 2}, []),
        (f"{VLLM} --no-enable-prefix", {"prefix_cache": "off"}, []),
        (f"{SGLANG} --max-run 64 --mem-frac 0.8", {"max_num_seqs": 64, "gpu_memory_utilization": 0.8}, []),
        # of an option that no design has
        (f"{VLLM} --served-model x", {}, ["--served-model-name x"]),
        # --max-num-seqs, --max-num-batched-tokens, ...; --kv-cache-dtype and --kv-cache-dtype-skip-layers
        (f"{VLLM} --max-num 64", {}, ["--max-num 64 (did you mean --max-num-seqs?)"]),
        (f"{VLLM} --kv-cache-d fp8", {}, ["--kv-cache-d fp8 (did you mean --kv-cache-dtype?)"]),
        # a flag in full that begins another, and parsers without beginnings
        (f"{VLLM} --kv-cache-dtype fp8", {"quantizer": "fp8"}, []),
        ("trtllm-serve Qwen/Qwen3-32B --max_seq 9", {}, ["--max-seq 9 (did you mean --max_seq_len?)"]),
        ("llama-server -hf Qwen/Qwen3-32B --ctx 9", {}, ["--ctx 9 (did you mean --ctx-size?)"]),
    ],
)
def test_the_beginning_of_one_flag_is_that_flag_where_the_engine_reads_it_so(line, values, left_out):
    """As argparse reads it, which vLLM and SGLang use."""
    read = server_flags.read(line)
    assert {name: read.values[name] for name in read.values if name not in ("stack", "model", "weights")} == values
    assert read.left_out == left_out


def test_a_plan_by_layer_of_one_type_is_started_too(tmp_path):
    names = ["fp16", "fp8", "fp16", *["fp8"] * 29]
    path = tmp_path / "plan.toml"
    path.write_text("".join(f'[[layers]]\nlayer = {i}\nkey = "{n}"\nvalue = "{n}"\n' for i, n in enumerate(names)))
    of_plan, of_name = command("h100", "llama3.1-8b", f"plan:{path}"), command("h100", "llama3.1-8b", "fp8:skip=0+2")
    assert of_plan.line == of_name.line
    assert of_plan.line.endswith("--kv-cache-dtype fp8 --kv-cache-dtype-skip-layers 0 2")


@each("name", catalog.model_files())
def test_the_name_on_a_hub_of_every_model_means_it_and_its_format(name):
    model = catalog.model(name)
    if name not in ("mistral-small-22b", "mixtral-8x7b-oaken", "opt-175b"):  # no name, or none that says the size
        read = server_flags.model_fields(catalog.hub_name(model))
        assert read["model"] == name
        assert read["weights"] in (None, model.released)


@each(
    ("asked", "hub"),
    [
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3"),
        ("mistral-7b-v0.1", "mistralai/Mistral-7B-v0.1"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-R1"),
        # of one shape, but other weights: hwspecs/hubs.toml
        ("deepseek-r1", "deepseek-ai/DeepSeek-R1"),
        ("qwq-32b", "Qwen/QwQ-32B"),
        ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),
        ("qwen3-embedding-4b", ""),
    ],
)
def test_an_alias_starts_no_other_checkpoint(asked, hub):
    assert catalog.hub_name(catalog.model(asked)) == hub
    made = command("h200", asked, tp=8, stack="vllm")
    assert (hub in made.line.split()) == bool(hub)
    assert any("put that, or a path, in its place" in why for why in made.cannot) == (not hub)


def test_names_on_a_hub_are_of_aliases_and_mean_their_model():
    hubs = tomllib.loads((Path(hwspecs.__file__).parent / "hubs.toml").read_text())["hubs"]
    models = dict(catalog.model_aliases())
    for alias, name in hubs.items():
        assert catalog.shipped_model_file(name).stem == models[alias], alias


def test_files_of_llama_cpp_are_started_by_no_other_engine():
    made = command("h100", "Qwen3-32B-Q4_K_M.gguf", stack="vllm")
    assert made.line == ""
    assert made.cannot[0].startswith("q4_k_m weights: are a file of llama.cpp")


@pytest.mark.parametrize("stack", BASES)
def test_every_word_of_a_kv_flag_that_a_family_stores_is_read_as_that_family(stack):
    flags = server_flags.engines()[stack].flags
    words = [word for word in flags["quantizer"].words if word not in ("f32", "auto")]
    for word in words:
        try:
            means = engine_names.ours(word, quantizers.FAMILIES)
        except InputError:  # an engine's alone
            continue
        read = server_flags.read(f"{RECORDED[stack]['start']} Qwen/Qwen3-8B {flags['quantizer'].names[0]} {word}")
        assert read.values["quantizer"] == means
        assert quantizers.parse(means)


def test_every_recorded_flag_says_where_it_is_from():
    for stack, entry in RECORDED.items():
        assert entry["release"]
        assert entry["source"]
        for name, (_, takes, *stands_for) in entry["flags"].items():
            assert bool(stands_for) == (takes == "switch"), (stack, name)
        assert {*entry["always"], *entry["per_rank"]} <= set(entry["flags"])
        assert all(word in entry["flags"]["weights"][1].split("|") for word in entry["online"].values())


def test_flags_are_spellings_that_their_fields_declare_but_for_those_of_one_engine():
    own = {
        "--enable-expert-parallel",
        "--data-parallel-size",
        "--attn-dp-size",
        "--enable-attention-dp",
        "--no-enable-chunked-prefill",
        "--enable-mixed-chunk",
        "--disable-decode-cuda-graph",
        "--disable-prefill-cuda-graph",
        "--swa-full",
        "--no-enable-prefix-caching",
        "--disable-radix-cache",
        "--no-cache-prompt",
        "--no-kv-offload",
        "--no-mmproj",
        "--quantization",
        "--dcp-size",
    }
    said = {
        (name, flag.replace("_", "-"))
        for entry in RECORDED.values()
        for name, (flags, *_) in entry["flags"].items()
        if name in ASKED
        for flag in flags.split()
    }
    spelled = {(name, flag) for name, form in ASKED.items() for flag in (f"--{form.name}", *form.also, *form.former)}
    assert {flag for _, flag in said - spelled} <= own


def test_a_command_says_which_fields_it_sets():
    found = command("h200", "deepseek-v3", "fp8", tp=8, dp_attention=True, cuda_graphs=False)
    assert isinstance(found, ServeCommand)
    assert {"model", "tp", "dp_attention", "quantizer", "cuda_graphs", "max_model_len"} <= set(found.set_by)
    assert set(found.set_by) <= {"model", "quantizer", "value_quantizer", *ASKED}
