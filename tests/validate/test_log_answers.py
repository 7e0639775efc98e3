"""Logs of servers that do not start, and of servers that run: why, and with which options.

The lines are written for these tests in the words that engines print; lengths and sizes are by hand: a token of
Qwen3-32B takes 64 layers x 8 heads x 128 x 2 x 2 bytes = 256 KiB.
"""

import re

import pytest

import dse
from dse.core.errors import InputError
from dse.validate import startup_log
from dse.validate.check_log import NEEDED, RATE, RUNNING, STEP

VLLM = (
    "Initializing a V1 LLM engine (v0.11.0) with config: model='{model}', dtype=torch.bfloat16, max_seq_len={longest}\n"
)
QWEN = VLLM.format(model="Qwen/Qwen3-32B", longest=131072)
WEIGHTS = "Model loading took 61.03 GiB memory and 9.1 seconds\n"
LONGEST = (
    "ValueError: To serve at least one request with the models's max seq len (131072), (32.00 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (7.72 GiB). Based on the available memory, the estimated "
    "maximum model length is 31600. Try increasing `gpu_memory_utilization` or decreasing `max_model_len`"
)
NO_POOL = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when"
TAKEN = (
    "ValueError: Free memory on device (cuda:0) (70.50/79.19 GiB) on startup is less than desired GPU memory "
    "utilization (0.9, 71.27 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
OUT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has a total capacity of 79.19 GiB"
)
STATES = "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (856). Each decode sequence requires one"
SGLANG = """server_args=ServerArgs(model_path='Qwen/Qwen3-32B', context_length=None, mem_fraction_static=0.7, tp_size=1)
[TP0] Load weight begin. avail mem=78.66 GB
[TP0] Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=17.49 GB, mem usage=61.17 GB.
RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."""
TRTLLM = """[TRT-LLM] [I] TensorRT-LLM version: 1.2.0
[TRT-LLM] [I] LLM Args: model='Qwen/Qwen3-32B' tensor_parallel_size=1 max_seq_len=131072
[TRT-LLM] [RANK 0] [E] Failed to initialize executor on rank 0: Executor creation failed due to insufficient GPU memory.
The following component could not be created: KV cache
Total GPU memory (GiB): 79.11
Model: 78.55 / 17.30"""
LLAMA = """  Device 0: NVIDIA GeForce RTX 4090, compute capability 8.9, VMM: yes
llama_model_loader: - kv   2:   general.name str              = Meta Llama 3.1 8B Instruct
print_info: file type   = Q4_K - Medium
load_tensors: offloaded 33/33 layers to GPU
load_tensors:        CUDA0 model buffer size =  4403.49 MiB
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 262144
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 32768.00 MiB on device 0: cudaMalloc failed: out of memory
llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache"""
STEPS = """\
Avg prompt throughput: 820.0 tokens/s, Avg generation throughput: 640.0 tokens/s, Running: 21 reqs, Waiting: 12 reqs, \
GPU KV cache usage: 99.1%, Prefix cache hit rate: 0.0%
Avg prompt throughput: 780.0 tokens/s, Avg generation throughput: 660.0 tokens/s, Running: 19 reqs, Waiting: 14 reqs, \
GPU KV cache usage: 98.9%, Prefix cache hit rate: 0.0%, Preemptions: 3
Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 8.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, \
GPU KV cache usage: 3.0%, Prefix cache hit rate: 0.0%
"""
POOL = "Available KV cache memory: 9.20 GiB\nGPU KV cache size: 37,664 tokens\n"

#: a log -> the device, words of why, options that start, and words that no answer has
FAILURES = {
    "longest context": (
        QWEN + WEIGHTS + LONGEST,
        "h100",
        "one request of 131,072 tokens needs 32.00 GiB of keys and values, 7.72 GiB are left",
        # 7.72 GiB are 31,621 tokens, and 63,242 of FP8
        ("--max-model-len 31600", "--kv-cache-dtype fp8 --max-model-len 62464", "--tensor-parallel-size 2"),
    ),
    "no pool": (
        VLLM.format(model="Qwen/Qwen3-32B", longest=8192) + "gpu_memory_utilization=0.8, args\n" + WEIGHTS + NO_POOL,
        "h100",
        "weights, activations and buffers leave no memory for keys and values",
        ("--gpu-memory-utilization 0.9", "--tensor-parallel-size 2"),
    ),
    "taken by others": (
        VLLM.format(model="meta-llama/Llama-3.1-8B-Instruct", longest=8192) + TAKEN,
        "h100",
        "70.50 of 79.19 GiB are free, less than the share asked for",
        ("--gpu-memory-utilization 0.89",),
    ),
    "weights": (
        VLLM.format(model="meta-llama/Llama-3.3-70B-Instruct", longest=8192) + OUT,
        "h100",
        "the weights do not fit (0.44 GiB more): 131.45 GiB by our count on a device of 79.19 GiB",
        ("a checkpoint in int4", "--tensor-parallel-size 4"),
    ),
    "activations": (
        QWEN + "non-default args: {'max_num_batched_tokens': 65536}\n" + WEIGHTS + OUT,
        "b200",
        "a batch of prompt tokens does not fit beside the weights (0.44 GiB more)",
        ("--max-num-batched-tokens 2048", "--tensor-parallel-size 2"),
    ),
    "states": (
        VLLM.format(model="Qwen/Qwen3.6-27B-FP8", longest=262144).replace("0.11.0", "0.19.0") + STATES,
        "h100",
        "1,024 requests need a block of states each, and the pool has 856",
        ("--max-num-seqs 856",),
    ),
    "SGLang": (
        SGLANG,
        "h100",
        "weights, activations and buffers leave no memory",
        ("--mem-fraction-static 0.9", "--tp-size 2"),
    ),
    "TensorRT-LLM": (
        TRTLLM,
        "h100",
        "keys and values do not fit beside the weights",
        ("--max_seq_len ", "--tp_size 2"),
    ),
    # 27.0 G parameters of 16 bits, and a tower of 0.4: 51.4 GiB, on 4 x 0.9 x 31.86
    "AMD": (
        VLLM.format(model="google/gemma-3-27b-it", longest=28900).replace("0.11.0", "0.13.0")
        + "(Worker_TP0 pid=77) torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.50 GiB. GPU 0 has",
        "r9700",
        "the weights do not fit (1.50 GiB more): 51.38 GiB by our count on a device of 31.86 GiB",
        ("a checkpoint in int4", "--tensor-parallel-size 4"),
    ),
    # 0.97 of 23.52 GiB are 1.65 more than 0.9: 0.42 GiB, 1,700 tokens of 256 KiB
    "less than no pool": (
        VLLM.format(model="Qwen/Qwen3-32B-AWQ", longest=40960)
        + "Model loading took 18.14 GiB memory\nAvailable KV cache memory: -1.23 GiB\n"
        + NO_POOL,
        "rtx-4090",
        "weights, activations and buffers leave no memory for keys and values (-1.23 GiB)",
        (
            "--gpu-memory-utilization 0.97 --max-model-len 1024",
            "--gpu-memory-utilization 0.97 --kv-cache-dtype fp8 --max-model-len 3072",
            "--tensor-parallel-size 2 (2 devices)",
        ),
    ),
    "graphs": (
        VLLM.format(model="Qwen/Qwen3-32B", longest=8192)
        + WEIGHTS
        + "Available KV cache memory: 7.20 GiB\nGPU KV cache size: 29,488 tokens\n"
        + "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  52%\n"
        + OUT,
        "h100",
        "memory ends beside the pool, as graphs are captured or kernels warm up (0.44 GiB more)",
        # 0.05 x 79.18 GiB less of the pool leave 3.24 GiB, 13,271 tokens
        ("--gpu-memory-utilization 0.85", "--max-num-seqs 64", "--enforce-eager"),
    ),
    "SGLang's graphs": (
        SGLANG.partition("RuntimeError")[0].replace("0.7", "0.88")
        + "KV Cache is allocated. #tokens: 32768, K size: 4.00 GB, V size: 4.00 GB\n"
        + "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 7 has",
        "h100",
        "memory ends beside the pool, as graphs are captured or kernels warm up (0.44 GiB more)",
        ("--mem-fraction-static 0.83", "--max-running-requests 64", "--disable-cuda-graph", "--tp-size 2"),
    ),
    "TensorRT-LLM's model": (
        TRTLLM.replace("Qwen/Qwen3-32B", "meta-llama/Llama-3.3-70B-Instruct").replace("KV cache", "Model"),
        "h100",
        "the weights do not fit: 131.45 GiB by our count on a device of 79.11 GiB",
        ("--tp_size 4 (4 devices)",),
    ),
    # 256 Ki tokens of 128 KiB are 32 GiB, of which a card of 24 GB has room for a good half, and 17 of 8.5 bits
    "llama.cpp": (
        LLAMA,
        None,
        "keys and values do not fit beside the weights (32.00 GiB more)",
        ("-c 1", "-ctk q8_0 -ctv q8_0"),
    ),
    # a layer of 80 has 855.6 M parameters of 4.875 bits: 42 are 20.4 GiB of 23.65
    "llama.cpp's weights": (
        "\n".join(LLAMA.splitlines()[:3]).replace("Meta Llama 3.1 8B", "Meta Llama 3.1 70B")
        + "\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 40543.00 MiB on device 0: cudaMalloc failed: out "
        "of memory\nalloc_tensor_range: failed to allocate CUDA0 buffer of size 42512416768\n"
        "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
        None,
        "the weights do not fit (39.59 GiB more): 40.07 GiB by our count on a device of 23.65 GiB",
        ("-ngl 4",),
    ),
    "llama.cpp's weights by Vulkan": (
        "ggml_vulkan: 0 = AMD Radeon RX 7900 XTX (RADV NAVI31) (radv) | uma: 0 | fp16: 1\n"
        "llama_model_loader: - kv   2:   general.name str              = Qwen3 30B A3B\n"
        "print_info: file type   = Q6_K\n"
        "ggml_vulkan: Device memory allocation of size 26843545600 failed.\n"
        "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory\n"
        "alloc_tensor_range: failed to allocate Vulkan0 buffer of size 26843545600\n"
        "llama_model_load: error loading model: unable to allocate Vulkan0 buffer",
        None,
        "the weights do not fit (25.00 GiB more)",
        ("a checkpoint in q5_k_m", "--n-cpu-moe ", "-ngl "),
    ),
    "llama.cpp before it said initialize": (
        LLAMA.rpartition("\n")[0] + "\nllama_kv_cache_init: failed to allocate buffer for kv cache\n"
        "llama_init_from_model: llama_kv_cache_init() failed for self-attention cache",
        None,
        "keys and values do not fit beside the weights (32.00 GiB more)",
        ("-c 1", "-ctk q8_0 -ctv q8_0", "-ngl "),
    ),
    # 16 GiB of keys and values, of which 4 have to go: three quarters of 131,072 tokens stay
    "llama.cpp's compute buffers": (
        "\n".join(LLAMA.splitlines()[:-3])
        + "\nllama_context: n_ctx         = 131072\nllama_kv_cache:      CUDA0 KV buffer size = 16384.00 MiB\n"
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of "
        "memory\n"
        "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 4294967296\n"
        "llama_new_context_with_model: failed to allocate compute buffers",
        None,
        "a batch of prompt tokens does not fit beside the weights (4.00 GiB more)",
        ("-ub 256", "-c 98304", "-ctk q8_0 -ctv q8_0"),
    ),
}
#: how drivers and libraries say that memory is out
WORDS = (
    "RuntimeError: HIP error: out of memory",
    "RuntimeError: CUDA error: out of memory",
    "hipErrorOutOfMemory: out of memory",
    "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 896.00 MiB.",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "torch.distributed.DistBackendError: NCCL error: Cuda failure 2 'out of memory'",
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.",
    "RuntimeError: CUDA driver error: out of memory",
)


@pytest.mark.parametrize("name", FAILURES)
def test_a_server_that_does_not_start_is_answered_with_options_that_do(name):
    text, device, why, options = FAILURES[name]
    found = dse.check_log(text + "\n", device=device)
    assert found.says.startswith(f"Does not start: {why}"), found.says
    for option in options:
        assert any(line.startswith(option) for line in found.tries), (option, found.tries)
    assert f"starts with: {found.tries[0]}" in found.text()
    assert found.to_json()["tries"] == list(found.tries)


def test_a_request_that_does_not_fit_is_a_term():
    found = dse.check_log(QWEN + WEIGHTS + LONGEST, device="h100")
    needed = next(term for term in found.terms if term.name == NEEDED)
    assert (needed.log, needed.ours) == (32 * 2**30, 32 * 2**30)


def test_options_that_a_log_names_are_evaluated_and_start():
    """A design with the option of the answer has room for a request of its longest context."""
    design = {"device": "h100", "model": "qwen3-32b", "stack": "vllm@0.11.0", "gpu_memory_utilization": 0.9}
    found = dse.check_log(QWEN + WEIGHTS + LONGEST, device="h100")
    assert "--tensor-parallel-size 2 (2 devices)" in found.tries
    for tp, starts in ((1, False), (2, True)):
        result = dse.evaluate(**design, max_model_len=131072, tp=tp, admission="paged")
        assert (result["max_concurrency"] >= 1) is starts


def test_a_failing_allocation_is_of_the_part_that_the_log_has_come_to():
    """Without a line of the weights it is theirs, without one of the pool that of prompts, else of what comes later."""
    for lines, failure in ((QWEN, startup_log.WEIGHTS), (QWEN + WEIGHTS, startup_log.PROFILE)):
        assert startup_log.read(lines + OUT).failure == failure
    later = dse.check_log(QWEN + WEIGHTS + POOL + OUT, device="h100")
    assert later.log.failure == startup_log.LATER
    assert any(line.startswith("--max-num-seqs ") for line in later.tries)


def test_a_start_that_llama_cpp_tries_again_is_none_that_fails():
    """Without pipelines it tries compute buffers again: the first line is no failure."""
    lines = LLAMA.replace("failed to initialize the context: failed to allocate buffer for kv cache", "retrying")
    log = startup_log.read(lines + "\nllama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB")
    assert (log.failure, log.kv_gib) == ("", 0.5)


def test_lines_of_a_running_server_are_averaged_where_it_is_busy():
    steps = startup_log.read(QWEN + POOL + STEPS).steps
    assert (steps.n_lines, steps.running, steps.waiting, steps.n_preempted) == (2, 20, 13, 3)
    assert (steps.prompt_tokens_per_s, steps.output_tokens_per_s) == (800, 650)
    assert steps.usage == pytest.approx(0.99)
    lines = (
        "Decode batch. #running-req: 66, #token: 82002, token usage: 0.94, cuda graph: False, gen throughput (token/s)"
    )
    sglang = startup_log.read(SGLANG.partition("RuntimeError")[0] + lines + ": 2622.21, #queue-req: 10\n")
    assert (sglang.steps.running, sglang.steps.waiting, sglang.steps.usage) == (66, 10, 0.94)
    assert sglang.steps.output_tokens_per_s == 2622.21


def test_a_full_pool_binds_and_each_change_has_its_tokens_per_second():
    found = dse.check_log(QWEN + WEIGHTS + POOL + STEPS, device="h100")
    assert found.says.startswith("The pool of keys and values binds: 20 requests run, 13 wait, 99 % of the pool in use")
    # 0.99 x 37,664 tokens of 20 requests: 1,864 each; prompt over answer 800 / 650: 1,864 / (800 / 650 + 0.5) = 1,077
    assert "about 1,326 tokens of prompt and 1,077 of answer" in found.says
    terms = {term.name: term for term in found.terms}
    assert (terms[RUNNING].log, terms[RATE].log) == (20, 650)
    assert terms[STEP].log == pytest.approx(20 / 650)
    assert terms[STEP].ours == pytest.approx(20 / 650, rel=0.35)
    words = [line.partition(":")[0] for line in found.tries]
    assert words == ["--kv-cache-dtype fp8", "--gpu-memory-utilization 0.92", "--tensor-parallel-size 2"]
    shape = r"[^:]+: ([\d,]+) requests at once \(\+(\d+) %\), [\d,]+ tok/s \(\+\d+ %\)"
    (n_fp8, more), *_ = (re.fullmatch(shape, line).groups() for line in found.tries)
    # of half the bytes: twice the 15 requests that have 2,403 of 37,664 tokens each, or one more
    assert (n_fp8, more) in (("30", "100"), ("31", "107"))


def test_a_full_pool_without_a_queue_is_nearly_full():
    calm = re.sub(r"Waiting: \d+", "Waiting: 0", STEPS).replace(", Preemptions: 3", "")
    found = dse.check_log(QWEN + WEIGHTS + POOL + calm, device="h100")
    assert found.says.startswith(
        "The pool of keys and values is nearly full: 20 requests run, 0 wait, 99 % of the pool"
    )
    assert found.tries


def test_lines_without_prompts_have_lengths_that_are_said_to_be_taken():
    """0.939 x 37,664 tokens of 8 requests: 4,421 each, of which two thirds are the prompt; the answer is as long."""
    line = (
        "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 240.8 tokens/s, Running: 8 reqs, "
        "Waiting: 3 reqs, GPU KV cache usage: 93.9%\n"
    )
    found = dse.check_log(QWEN + WEIGHTS + POOL + line, device="h100")
    assert "Their lengths are not printed: taken as 2,947 tokens of prompt and 2,947 of answer" in found.says


def test_prompts_of_sglang_are_those_of_its_lines():
    """700 tokens computed and 100 found are 400 of each of two prompts; 0.95 x 20,000 tokens of 38 requests are 500
    each, its prompt and half of its answer."""
    text = (
        SGLANG.partition("RuntimeError")[0]
        + "KV Cache is allocated. #tokens: 20000, K size: 2.44 GB, V size: 2.44 GB\n"
        + "[TP0] Prefill batch, #new-seq: 2, #new-token: 700, #cached-token: 100, token usage: 0.00, #running-req: 0\n"
        + "[TP0] Decode batch, #running-req: 38, #full token: 19000, full token usage: 0.95, swa token usage: 0.31, "
        + "gen throughput (token/s): 900.10, #queue-req: 12\n"
    )
    found = dse.check_log(text, device="h100")
    assert "They have about 400 tokens of prompt and 200 of answer." in found.says


def test_requests_that_lose_their_keys_are_counted():
    """SGLang says how many on each device of a split, vLLM up to 0.9 how many since the start."""
    lost = "[2026-01-01 TP{}] KV cache pool is full. Retract requests. #retracted_reqs: {}, #new_token_ratio: 0.9\n"
    text = SGLANG.partition("RuntimeError")[0] + (
        "[TP0] Decode batch. #running-req: 66, #token: 82002, token usage: 0.94, gen throughput (token/s): 2622.21, "
        "#queue-req: 10\n"
    )
    text += lost.format(0, 4) + lost.format(1, 4) + lost.format(0, 2)
    text += "[TP0] Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.4 -> 0.9\n"
    assert startup_log.read(text).steps.n_preempted == 7
    old = "Sequence group 9 is preempted by PreemptionMode.RECOMPUTE mode, total_num_cumulative_preemption={}\n"
    calm = STEPS.replace(", Preemptions: 3", "")
    assert startup_log.read(QWEN + calm + old.format(1) + old.format(51)).steps.n_preempted == 51


def test_a_server_that_ends_as_requests_run_did_start():
    found = dse.check_log(QWEN + WEIGHTS + POOL + STEPS + OUT, device="h100")
    assert found.says.startswith("Ends as requests run: their activations do not fit beside weights and pool (0.44 GiB")
    assert any(line.startswith("--max-num-seqs ") for line in found.tries)
    assert not any("eager" in line for line in found.tries)


def test_memory_that_ran_out_once_is_no_failure_of_a_server_that_runs():
    """As kernels are tuned, or in an attempt before."""
    found = dse.check_log(
        QWEN + WEIGHTS + POOL + OUT + "\nINFO: Application startup complete.\n" + STEPS, device="h100"
    )
    assert found.says.startswith("The pool of keys and values binds")


@pytest.mark.parametrize("words", WORDS)
def test_memory_that_is_out_is_known_by_every_drivers_words(words):
    assert startup_log.read(QWEN + WEIGHTS + POOL + words).failure == startup_log.LATER
    assert startup_log.read(QWEN + WEIGHTS + words).failure == startup_log.PROFILE
    assert startup_log.read(QWEN + words).failure == startup_log.WEIGHTS


def test_an_error_of_another_kind_is_repeated():
    text = (
        SGLANG.partition("RuntimeError")[0]
        + "KV Cache is allocated. #tokens: 20000, K size: 2.44 GB, V size: 2.44 GB\n"
    )
    found = dse.check_log(
        text + "Exception: Capture cuda graph failed: Triton Error [CUDA]: an illegal address\n", device="h100"
    )
    assert found.log.failure == ""
    assert (
        "the log has an error that is not of memory: Exception: Capture cuda graph failed: Triton Error [CUDA]: an "
        "illegal address" in found.notes
    )


def test_memory_that_others_hold_is_no_reason_for_more_devices():
    """Of 12.38 GiB that are free no share holds the weights: only the others can go."""
    text = VLLM.format(model="openai/gpt-oss-120b", longest=131072) + (
        "ValueError: Free memory on device cuda:0 (12.38/287.69 GiB) on startup is less than desired GPU memory "
        "utilization (0.92, 264.67 GiB)."
    )
    found = dse.check_log(text, device="mi355x")
    assert found.says.startswith(
        "Does not start: 12.38 of 287.69 GiB are free, less than the share asked for: others use"
    )
    assert found.tries == ()


def test_options_of_an_answer_are_those_of_the_engine():
    ours = ("--gpu-memory-utilization", "--prompt-budget", "--max-num-seqs", "--quantizer", "--max-model-len", "--tp ")
    small = (
        SGLANG.partition("RuntimeError")[0] + "KV Cache is allocated. #tokens: 9000, K size: 1.1 GB, V size: 1.1 GB\n"
    )
    texts = [FAILURES[name][:2] for name in ("SGLang", "SGLang's graphs", "TensorRT-LLM", "llama.cpp")]
    for text, device in (*texts, FAILURES["llama.cpp's compute buffers"][:2], (small.replace("0.7", "0.9"), "h100")):
        found = dse.check_log(text + "\n", device=device)
        for line in (found.says, *found.tries, *found.notes):
            assert not any(option in line for option in ours), line
    assert "a smaller share than the design has (--mem-fraction-static)" in found.says


def test_a_limit_prompts_or_the_load_bind_where_the_pool_is_not_full():
    head = QWEN + "non-default args: {'max_num_seqs': 20}\n" + WEIGHTS + POOL
    half = STEPS.replace("99.1%", "50.0%").replace("98.9%", "50.0%").replace(", Preemptions: 3", "")
    found = dse.check_log(head + half, device="h100")
    assert found.says.startswith("The limit of requests binds (--max-num-seqs 20)")
    assert found.tries[0].startswith("--max-num-seqs 40: ")
    found = dse.check_log(head.replace("20}", "64}") + half, device="h100")
    assert found.says.startswith("Prompts bind: 20 requests run, 13 wait, 50 % of the pool in use")
    idle = half.replace("Waiting: 12", "Waiting: 0").replace("Waiting: 14", "Waiting: 0")
    assert dse.check_log(head + idle, device="h100").says.startswith("The load binds: 20 requests run, 0 wait")


def test_running_lines_alone_need_the_model_and_the_device():
    with pytest.raises(InputError, match=r"model: is missing, the log does not say it .*: give --model"):
        dse.check_log(STEPS, device="h100")
    found = dse.check_log(STEPS, device="h100", model="qwen3-32b")
    assert found.says.startswith("The pool of keys and values binds")


def test_two_starts_in_one_log_are_refused():
    for text in (QWEN + LONGEST + "\n" + QWEN + POOL, QWEN + NO_POOL + "\n" + QWEN + POOL):
        with pytest.raises(InputError, match=r"holds several servers \(starts '.*' and '37,664 tokens'\)"):
            dse.check_log(text, device="h100")


def test_a_release_that_is_newer_than_all_and_a_name_of_several_models_are_said():
    found = dse.check_log(QWEN.replace("0.11.0", "0.99.0") + WEIGHTS + POOL, device="h100")
    assert any(
        note.startswith("vLLM 0.99.0 is newer than the newest release that is known (0.") for note in found.notes
    )
    with pytest.raises(InputError, match=r"unknown model 'Qwen/Qwen3-Coder': did you mean .*: give --model") as error:
        dse.check_log(QWEN.replace("Qwen3-32B", "Qwen3-Coder") + POOL, device="h100")
    assert len(error.value.lines()) == 1
    with pytest.raises(InputError, match=r"tp = 3: does not divide the 64 query heads of qwen3-32b: use one of 1, 2"):
        dse.check_log(QWEN + WEIGHTS + POOL, device="h100", tp=3)


def test_no_shorter_context_starts_a_server_without_any_pool():
    text, device, *_ = FAILURES["less than no pool"]
    found = dse.check_log(text + "\n", device=device)
    assert not any(line.startswith(("--max-model-len", "--kv-cache-dtype")) for line in found.tries)
