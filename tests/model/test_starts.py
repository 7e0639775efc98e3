"""One rule of what runs: formats, layouts and models that a device's software starts, and why not the others.

Expected values are read by hand from the tables of engines (hwspecs/engines, by file and line of the engines' code),
from Oaken's paper (its engine unpacks its own method) and from the lists of published code (hwspecs/implementations).
"""

import dataclasses
import re
from pathlib import Path

import pytest

import dse
from dse.core import specfile
from dse.model import capacity, pool, starts
from dse.model.point import Point
from dse.quantizers import FAMILIES
from dse.questions.common import design
from dse.specs import catalog, servers
from dse.specs.workload import Workload


def told(device, model, quantizer, value="", **work):
    spec = catalog.device(device) if isinstance(device, str) else device
    found = design(spec, model, quantizer, value).speed(Workload(**{"batch": 1, "input_tokens": 64, **work}))
    return found["runs"], found["runs_why"]


LLAMA, GPT, GEMMA, V32 = "llama3.1-8b", "gpt-oss-20b", "gemma3-27b", "deepseek-v3.2"
#: device, model, format, workload -> "" where it runs, else words of the line that says why not
TABLE = [
    # vllm-0.33.0.csv: fp8 on 8.0 by FLASHINFER for heads of 128, fails with sinks: "native FP8 needs SM89+"
    ("a100-80gb", LLAMA, "fp8", {}, ""),
    (
        "a100-80gb",
        GPT,
        "fp8",
        {},
        "vLLM 0.33.0 takes it and fails as it starts: TRITON_ATTN is chosen, then ValueError",
    ),
    ("h100", GPT, "fp8", {}, ""),
    # fp8 on 7.5: TRITON_ATTN fails whatever the heads; T4 keeps 16 bits
    ("t4", LLAMA, "fp8", {}, "fails as it starts"),
    ("t4", LLAMA, "fp16", {}, ""),
    # no type of vLLM is one of the papers'
    ("a100-80gb", LLAMA, "sinkq", {}, "sinkq: no KV type of vLLM 0.33.0"),
    ("a100-80gb", LLAMA, "oaken", {}, "oaken: no KV type of vLLM 0.33.0"),
    ("h100", LLAMA, "kivi", {}, "kivi: no KV type of vLLM 0.33.0"),
    # a release that was not read is told by the newest that was
    ("h100", LLAMA, "kivi", {"stack": "vllm@0.19.1"}, "kivi: no KV type of vLLM 0.33.0"),
    # sglang-0.5.23.csv: nvfp4 refused below 10.x, fp4_mx_block16 from 7.5 on
    ("h100", LLAMA, "nvfp4", {"stack": "sglang"}, "SGLang 0.5.23 refuses it: needs 10.x or 12.x: use fp4_mx_block16"),
    ("b200", LLAMA, "nvfp4", {"stack": "sglang"}, ""),
    ("h100", LLAMA, "fp4_mx_block16", {"stack": "sglang"}, ""),
    # trtllm-1.3.csv: INT8 "not on Blackwell", doubtful below, which may run
    ("b200", LLAMA, "int8", {"stack": "trtllm"}, "TensorRT-LLM 1.4 refuses it: not on Blackwell"),
    ("h100", LLAMA, "int8", {"stack": "trtllm"}, ""),
    ("a100-80gb", LLAMA, "fp8", {"stack": "trtllm"}, "TensorRT-LLM 1.4 refuses it: FP8 keys and values need 8.9"),
    # a model that the engine does not start at all: sparse latent attention begins at 9.0
    ("a100-80gb", V32, "fp16", {"tp": 8}, "fp16: vLLM 0.33.0 refuses it: no backend: compute capability"),
    # chips with an engine run what it unpacks; those without run 16 bits
    ("oaken-hbm", LLAMA, "oaken", {}, ""),
    ("oaken-hbm", LLAMA, "fp16", {}, ""),
    ("oaken-hbm", LLAMA, "sinkq", {}, "sinkq: no engine of Oaken-HBM runs it"),
    ("oaken-lpddr", LLAMA, "nqkv", {}, "nqkv: no engine of Oaken-LPDDR runs it"),
    ("oaken-hbm", LLAMA, "fp8", {}, "fp8: no engine of Oaken-HBM runs it"),
    ("lpu-hbm", LLAMA, "fp16", {}, ""),
    ("lpu-hbm", LLAMA, "kivi", {}, "kivi: no kernel known for LPU-HBM"),
    ("tender-a100", LLAMA, "tender", {}, ""),
    ("tender-a100", LLAMA, "oaken", {}, "oaken: no kernel known for Tender-A100"),
    # CUDA code of papers is for no other chip; llama.cpp has Metal and ROCm
    ("m4-max", LLAMA, "kivi", {}, "kivi: no kernel known for M4-Max"),
    ("m4-max", LLAMA, "q8_0", {}, ""),
    ("tpu-v6e", LLAMA, "sinkq", {}, "sinkq: no kernel known for TPU-v6e"),
    # AMD: vLLM's fp8 on gfx942, no table tells more
    ("mi300x", LLAMA, "fp8", {}, ""),
    ("mi300x", LLAMA, "sinkq", {}, "no kernel known for MI300X"),
    # as papers compare: their published code on a GPU, whatever a server's release has
    ("a100-80gb", LLAMA, "qserve", {"memory": "paper"}, ""),
    ("a100-80gb", LLAMA, "kivi:bits=4", {"model_kind": "ideal"}, ""),
    ("oaken-hbm", LLAMA, "kivi:bits=4", {"model_kind": "ideal"}, "kivi: no engine of Oaken-HBM runs it"),
    # a release that is named is asked, however memory is counted
    ("a100-80gb", LLAMA, "qserve", {"memory": "paper", "stack": "vllm"}, "qserve: no KV type of vLLM 0.33.0"),
    # without the server's own time it is vLLM all the same
    ("a100-80gb", LLAMA, "kivi:bits=4", {"stack": "vllm@kernels"}, "kivi: no KV type of vLLM 0.33.0"),
    # code that is named is what runs
    ("h100", LLAMA, "kivi", {"implementation": "kivi-released"}, ""),
    ("h100", LLAMA, "kivi", {"implementation": "generic"}, "kivi: no kernel known for H100"),
]


@pytest.mark.parametrize(("device", "model", "quantizer", "work", "why"), TABLE)
def test_the_table_by_hand(device, model, quantizer, work, why):
    runs, said = told(device, model, quantizer, **work)
    assert runs == (not why)
    assert why in (said or "")
    assert bool(said) == bool(why)


@pytest.mark.parametrize(
    ("quantizer", "value", "work", "why"),
    [
        # one --kv-cache-dtype for both sides
        ("fp8", "fp16", {}, "keys and values: vLLM keeps both in one type"),
        ("fp8", "fp8", {}, ""),
        # --kv-cache-dtype-skip-layers: in the wheel of vLLM 0.19.0, not in 0.18.0; no flag of SGLang 0.5.23
        ("fp8:skip=0", "fp8:skip=0", {}, ""),
        ("fp8:skip=0", "fp8:skip=0", {"stack": "vllm@0.19.0"}, ""),
        (
            "fp8:skip=0",
            "fp8:skip=0",
            {"stack": "vllm@0.18.0"},
            "layers: vLLM 0.18.0 keeps all layers in one KV type: vllm@0.19.0 leaves some in 16 bits",
        ),
        ("fp8:skip=0", "fp8:skip=0", {"stack": "sglang"}, "layers: SGLang keeps all layers in one KV type"),
        # no flag is needed for those that a format has itself
        ("turboquant_k8v4", "turboquant_k8v4", {"stack": "vllm@0.18.0"}, ""),
    ],
)
def test_layouts_that_an_engine_does_not_start(quantizer, value, work, why):
    assert told("h100", LLAMA, quantizer, value, **work) == (not why, why or None)


@pytest.mark.parametrize(("ep", "runs"), [(1, True), (2, False), (4, False), (8, True)])
def test_vllm_spreads_experts_over_all_devices_or_none(ep, runs):
    """--enable-expert-parallel has no number: its size is that of tp times dp."""
    found, why = told("h100", "gpt-oss-120b", "fp16", tp=8, ep=ep)
    assert found is runs
    assert (why or "") == (
        "" if runs else f"ep {ep}: vLLM spreads whole experts over all devices or over none: ep 1 or 8"
    )


def test_other_software_lets_it_compete_and_keeps_the_mark():
    assert told("oaken-hbm", LLAMA, "sinkq", other_software=True) == (True, "sinkq: no engine of Oaken-HBM runs it")


def own_chip(**numbers):
    given = {"name": "Mine", "memory_capacity": "80 GB", "memory_bandwidth": "2 TB/s", "peak_flops": "300 TFLOP/s"}
    return catalog.device_from(specfile.Document("mine.toml", {**given, **numbers}))


@pytest.mark.parametrize("family", [name for name in FAMILIES if not FAMILIES[name].exact and "ds_mla" not in name])
def test_a_chip_of_the_users_runs_every_format_and_no_code_of_others(family):
    one = design(own_chip(), "llama2-7b", family)
    point = Point(one.device, one.plan, Workload(batch=4, input_tokens=256, output_tokens=16))
    assert point.lowered.results["runs"]
    assert point.lowered.results["implementation"] is None
    assert set(point.paths.values()) <= {"engine", "none"}


def test_formats_of_as_many_bits_take_as_long_on_a_chip_of_the_users():
    """int8, fp8 and their kin of 8 bits; atom, qserve and mxfp4 of 4.25: the rate is the chip's, not a method's."""
    work = Workload(batch=32, input_tokens=2048, output_tokens=64)
    for rate in ({}, {"engine_rate": "1 Telement/s"}):
        for alike in (("atom", "qserve", "mxfp4"), ("int8_per_token_head", "fp8_per_token_head", "mxfp8")):
            steps = [design(own_chip(**rate), "llama2-7b", name).evaluate(work)["decode_step_s"] for name in alike]
            assert max(steps) <= 1.001 * min(steps), (rate, alike, steps)


def test_the_rate_of_a_chip_of_the_users():
    """Ideal: 2 TB/s of elements of one bit are 16 T a second, so that no format waits; given: that of the file. Reading
    4-bit elements at 2 TB/s takes 4 T a second: at half of that the step waits for the engine."""
    assert own_chip().rate("engine").si == 16e12
    assert own_chip().rate("engine").kind == "assumed"
    assert own_chip(engine_rate="3 Telement/s").rate("engine").si == 3e12
    work = Workload(batch=64, input_tokens=4096, output_tokens=16, model_kind="ideal")
    exposed = [
        design(own_chip(**given), "llama2-7b", "int4").evaluate(work)["dequantize_s"]
        for given in ({}, {"engine_rate": "100 Telement/s"}, {"engine_rate": "2 Telement/s"})
    ]
    assert exposed[0] == exposed[1] == 0 < exposed[2]
    assert own_chip(fused_rate="2 Telement/s").path_of("sinkq") == "fused"


@pytest.mark.parametrize(("quantizer", "runs"), [("fp16", True), ("fp8", True), ("kivi", False)])
def test_a_gpu_that_is_known_by_its_data_sheet_runs_what_vllm_runs_on_its_architecture(quantizer, runs):
    assert told(own_chip(architecture="sm_90"), LLAMA, quantizer)[0] is runs
    assert told(own_chip(architecture="sm_90"), LLAMA, quantizer, model_kind="ideal")[0]  # as papers compare


def test_shipped_devices_are_nobodys_own():
    assert [name for name in catalog.device_files() if catalog.device(name).is_own_chip] == []


def test_every_row_of_the_tables_is_the_rule():
    """What a table says of its own types is what the rule says, for a model of every kind that ships."""
    device, work = catalog.device("h100"), Workload()
    for model in map(catalog.model, (LLAMA, GPT, "deepseek-v3")):
        for family in FAMILIES:
            found = starts.of_format(device, model, work, "vllm", family)
            assert bool(found.reason) == bool(found.support is None or not found.support.runs), family


def test_nothing_is_asked_of_an_engine_in_a_second_place():
    """The tables are read by the rule, by what prints them, and by nobody else."""
    root = Path(starts.__file__).parents[1]
    users = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if "engines.support(" in path.read_text()}
    assert users == {"model/starts.py"}


@pytest.mark.parametrize(
    ("model", "tp", "ep", "says"),
    [
        (
            "Qwen/Qwen3-235B-A22B-FP8",
            8,
            1,
            "gate's and up's weight = 192 is not divisible by block_n = 128: --ep 8 runs",
        ),
        ("Qwen/Qwen3-30B-A3B-FP8", 4, 1, "--ep 4 runs, or --tp 2 --pp 2"),  # 768 / 4 = 192, / 2 = 384 = 3 x 128
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", 8, 1, "weight = 320"),  # 2,560 / 8
        ("Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", 8, 1, "weight = 64"),
        # 512 channels of a shared expert stay in slices of 64 (SGLang's issue 10852)
        ("Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", 8, 8, "block_n = 128: --tp 4 --pp 2 runs"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", 4, 4, ""),
        ("MiniMaxAI/MiniMax-M2.5", 8, 1, "weight = 192"),
        ("Qwen/Qwen3-235B-A22B-GPTQ-Int4", 8, 1, "not divisible by group_size = 128"),
        ("Qwen/Qwen3-235B-A22B-FP8", 8, 8, ""),
        ("Qwen/Qwen3-235B-A22B-FP8", 4, 1, ""),  # 384
        ("deepseek-ai/DeepSeek-R1", 8, 1, ""),  # 2,048 / 8 = 256
        ("Qwen/Qwen3-235B-A22B", 8, 1, ""),  # 16 bits have no blocks
        # 9,728 / 8 = 9.5 blocks of a dense feed-forward; 17,408 / 8 = 17 of them
        ("Qwen/Qwen3-4B-FP8", 8, 1, "output_partition_size = 1216 is not divisible by block_n = 128: --tp 4 --pp 2"),
        ("Qwen/Qwen3-4B-FP8", 4, 1, ""),
        ("Qwen/Qwen3.6-27B-FP8", 8, 1, ""),
        ("Qwen/Qwen3-4B", 8, 1, ""),
        ("microsoft/phi-4", 5, 1, "100352 is not divisible by 5"),  # 40 query, 10 KV heads, 1,568 x 64 words
        ("microsoft/phi-4", 2, 1, ""),
    ],
)
def test_a_slice_of_an_expert_must_be_whole_blocks(model, tp, ep, says):
    """vLLM and SGLang refuse at start what they cannot slice, in these words (Fp8MoEMethod.create_weights; `divide` of
    VocabParallelEmbedding)."""
    found = dse.evaluate("h200", model, "fp16", tp=tp, ep=ep, batch=1)
    assert (found.runs, says in (found.runs_why or "")) == (not says, True)


@pytest.mark.parametrize(
    ("weights", "tp", "size"),
    [
        # 768 channels of an expert of Qwen3-30B-A3B in 4 slices of 192 = 1.5 x 128 = 3 x 64, in 8 of 96 = 3 x 32
        ("int4", 2, 0),
        ("int4", 4, 128),
        ("int4-ffn", 4, 128),
        ("w8a16", 4, 128),
        ("fp8-block", 4, 128),
        ("int4-of-64", 4, 0),
        ("int4-of-64", 8, 64),
        ("int4-of-32", 8, 0),
        ("int4-experts", 8, 0),
        ("int4-experts", 16, 32),
        ("int4-of-32", 16, 32),
        ("bf16", 16, 0),
        ("fp8-tensor", 16, 0),
        ("nvfp4", 16, 0),
    ],
)
def test_groups_of_formats_that_slices_must_keep_whole(weights, tp, size):
    """Sizes as quantization_config of public checkpoints has them: group_size 128 of AWQ, GPTQ and W8A16, 32 of Kimi K2
    Thinking's experts; a format without groups is cut anywhere."""
    found = dse.evaluate("h200", "qwen3-30b-a3b", "fp16", tp=tp, batch=1, weights=weights)
    said = re.search(r"(?:block_n|group_size) = (\d+)", found.runs_why or "")
    assert (int(said[1]) if said else 0) == size
    assert (found.runs, said is None) == (size == 0, size == 0)


@pytest.mark.parametrize(("stack", "says"), [("vllm", ""), ("sglang", "weight = 64 is not divisible by block_n = 128")])
def test_a_server_on_each_device_has_its_shared_expert_whole(stack, says):
    """vLLM's data-parallel attention is a server of tp 1 a device; SGLang's slices what is no attention by tp."""
    work = {"tp": 8, "ep": 8, "dp_attention": True, "batch": 64, "stack": stack}
    found = dse.evaluate("h200", "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", "fp16", **work)
    assert (found.runs, says in (found.runs_why or "")) == (not says, True)


@pytest.mark.parametrize(("stack", "runs"), [("vllm@0.22.1", False), ("vllm@0.24.0", True), ("vllm", True)])
def test_a_shared_expert_is_padded_from_the_release_that_does(stack, runs):
    """DeepSeek-V4-Pro over 16: 3,072 / 16 = 192 = 1.5 blocks, in vLLM's words (issue 42384, mended in 0.24.0)."""
    found = dse.evaluate("b200", "deepseek-ai/DeepSeek-V4-Pro", "fp8", tp=16, batch=1, stack=stack)
    says = "input_size_per_partition = 192 is not divisible by block_k = 128"
    assert (found.runs, says in (found.runs_why or "")) == (runs, not runs)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "max_num_seqs (1,024) exceeds available Mamba cache blocks (872, counted): --max-num-seqs 835 starts"),
        ({"max_num_seqs": 835}, ""),
        ({"stack": "vllm@0.18.0"}, ""),  # runs fewer, without a word
        ({"cuda_graphs": False}, ""),  # the check is that of graphs
        ({"stack": "sglang"}, ""),
    ],
)
def test_a_hybrid_starts_with_as_many_requests_as_it_has_states(asked, says):
    """856 in the log of the same (vLLM recipes, pull request 551): 16 layers of attention and 3 x 16 of states share
    blocks of 784 tokens, 16 x 784 x 4 KiB = 51.4 MB each, in 44.8 GB."""
    found = dse.evaluate(
        "h100", "Qwen/Qwen3.6-27B-FP8", "fp16", gpu_memory_utilization=0.95, max_model_len=262_144, **asked
    )
    assert (found.runs, says in (found.runs_why or "")) == (not says, True)


def test_a_hybrid_that_starts_or_not_says_what_surely_starts():
    """A pool of 872 blocks, counted, of which the class of an H100 has 835 at its low end: 850 may be too many."""
    device, plan = catalog.device("h100"), design("h100", "qwen3.6-27b", "fp16").plan
    work = Workload(None, 1000, 100, gpu_memory_utilization=0.95, weights="fp8-block", max_num_seqs=850)
    lowered = Point(device, plan, work).lowered
    counted, low = capacity.n_blocks(lowered.design), int(capacity.n_blocks(lowered.design) * lowered.pool.low)
    assert low < 850 <= counted
    assert lowered.results["runs"]
    assert lowered.may_not_start.startswith("vLLM may not start: max_num_seqs (850) may exceed available Mamba cache")
    assert lowered.may_not_start.endswith(f"--max-num-seqs {low} starts")
    fewer = Point(device, plan, dataclasses.replace(work, max_num_seqs=low)).lowered
    assert (fewer.may_not_start, fewer.results["runs"]) == ("", True)


def test_nemotron_s_states_are_wide():
    """vLLM keeps states of Nemotron-H in FP32 where its file says nothing (from its pull request 39032 on): 658 blocks
    of 6 x 1,312 tokens x 4 KiB in NeMo-RL's issue 2620 at a share of 0.6 of an H100, 16 bits would have 1,453."""
    found = dse.evaluate("h100", "Nemotron nano v2 12B", "fp16", gpu_memory_utilization=0.6, stack="vllm@0.20.0")
    assert not found.runs
    # 128 heads of 80 x 128 in FP32, 3 inputs of (10,240 + 2 x 8 x 128) channels in 16 bits, in each of 28 layers
    assert found.state_bytes == 28 * (128 * 80 * 128 * 4 + 3 * (10_240 + 2 * 8 * 128) * 2)


@pytest.mark.parametrize(
    ("model", "quantizer", "release", "starts"),
    [
        # heads of 256 and 512 channels and a scale of 4 B each: 16 x 2 x 260 B, 4 x 2 x 516 B
        ("gemma-4-31b", "int8_per_token_head", "0.23.0", False),
        ("gemma-4-31b", "int8_per_token_head", "0.24.0", True),
        ("gemma-4-31b", "fp8", "0.23.0", True),  # 8,192 B and 4,096
        ("gemma-3-27b", "int8_per_token_head", "0.23.0", True),  # one shape
        ("llama3.1-8b", "int8_per_token_head", "0.23.0", True),
    ],
)
def test_pages_that_do_not_divide_start_from_the_release_that_pads_them(model, quantizer, release, starts):
    found = dse.evaluate("h200", model, quantizer, batch=1, stack=f"vllm@{release}")
    says = "the page size of the layer is not divisible by the maximum page size"
    assert (says in (found.runs_why or "")) == (not starts)


@pytest.mark.parametrize(
    ("release", "n_full", "n_windows", "groups", "tokens"),
    [
        # pages of 16 tokens, 16 heads x 2 x 260 B = 133,120 B; a token of layers without a window takes 4 x 2 x 516 B.
        # vLLM's pull request 40391 gives those 32 tokens, as they take less than half; from 0.24 on vLLM pads them
        ("0.23.0", 10, 50, (1, 5), 32),
        ("0.24.0", 10, 50, (1, 5), 16),
        # 17 and 12 layers (EAGLE of four layers beside gpt-oss-20b, pull request 36684): 17 < 1.5 x 12
        ("0.17.1", 17, 12, (2, 1), 32),
        ("0.18.0", 17, 12, (1, 1), 32),
        # 13 and 12 (pull request 29303, in 0.12)
        ("0.11.2", 13, 12, (2, 1), 32),
        ("0.12.0", 13, 12, (1, 1), 32),
    ],
)
def test_groups_of_layers_follow_the_release(release, n_full, n_windows, groups, tokens):
    """vLLM, kv_cache_utils.py: unify_kv_cache_spec_page_size and _get_kv_cache_groups_uniform_page_size."""
    full, window = (layer for layer in catalog.model("gemma-4-31b").layers[:2][::-1])
    layers = tuple(kind.model_copy(update={"n_layers": n}) for kind, n in ((full, n_full), (window, n_windows)))
    model = catalog.model("gemma-4-31b").model_copy(update={"layers": layers})
    plan = design("h200", model, "int8_per_token_head").plan
    server = servers.of("vllm", catalog.device("h200"), f"vllm@{release}")
    blocks = pool.blocks_of(plan, server, 16, 1.0)
    assert (blocks.full_groups, blocks.window_groups) == groups
    assert (blocks.full_block_tokens, blocks.window_block_tokens) == (tokens, 16)
    group = max(n_full, n_windows) if groups == (1, 1) else min(n_full, n_windows)
    assert blocks.block_bits == 8 * plan.den * group * 16 * 16 * 2 * 260


@pytest.mark.parametrize(
    ("model", "quantizer", "tokens"),
    [
        ("qwen3.5-4b", "fp16", 528),  # vLLM's issue 40696: "Setting attention block size to 528 tokens"
        ("nemotron-3-super-120b-a12b", "fp8", 8320),  # its issue 48401
        ("granite-4.0-h-small", "fp16", 528),  # vllm-gaudi's pull request 1453
        # 2,170,880 B of states, 576 x 2 B a token: 15 times 128 tokens hold it, 14 do not
        ("kimi-linear-48b-a3b", "fp16", 1920),
    ],
)
def test_a_block_of_a_hybrid_holds_a_state(model, quantizer, tokens):
    """vLLM, vllm/platforms/interface.py, _align_hybrid_block_size."""
    plan = design("h200", model, quantizer).plan
    blocks = pool.blocks_of(plan, servers.of("vllm", catalog.device("h200"), "vllm"), 16, 1.0)
    assert blocks.full_block_tokens == tokens
