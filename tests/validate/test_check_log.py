"""Start-up logs of servers beside the designs that they describe, and their memory as that of further answers.

The logs are written for these tests in the shapes that servers print: their first line names where the facts come from
(model, options, GiB, tokens); times, process ids, memory free before and lines of source files are made up.
"""

import gzip
import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dse
from dse.core.errors import DseError, InputError, SpecError
from dse.sweep.spec import from_dict
from dse.validate import startup_log
from dse.validate.check_log import ACTIVATIONS, BESIDE, CONCURRENCY, POOL, TOKENS, WEIGHTS
from factories import assert_one_line

FOLDER = Path(__file__).parent / "logs"
#: a log -> what it lacks, the design, terms of which log and design may differ by so much, words of the sentence
H100, ROUNDED = {"device": "h100"}, 0.005
LOGS = {
    "vllm-0.19-llama-3.1-8b": (H100, "llama3.1-8b, bf16 weights, bf16 KV, on H100", {TOKENS: 0.001, WEIGHTS: 0.001}),
    "vllm-0.19-llama-3.1-8b-kv-fp8": (H100, "bf16 weights, fp8 KV", {TOKENS: 0.001, CONCURRENCY: 0.001}),
    "vllm-0.19-llama-3.1-8b-fp8": (H100, "fp8 weights, bf16 KV", {TOKENS: 0.001, WEIGHTS: 0.001, BESIDE: 0.001}),
    "vllm-0.19-llama-3.1-8b-fp32": (H100, "fp32 weights", {POOL: 0.01, WEIGHTS: 0.002}),
    "vllm-0.19-llama-3.1-8b-pp2": (H100, "on 2 x H100 (pp 2)", {WEIGHTS: 0.001, TOKENS: 0.02}),
    "vllm-0.19-llama-3.1-8b-tp4": (H100, "on 4 x H100 (tp 4)", {WEIGHTS: 0.001, TOKENS: 0.001, BESIDE: 0.02}),
    "vllm-0.19-deepseek-v2-lite": (H100, "deepseek-v2-lite, bf16", {WEIGHTS: 0.005, TOKENS: 0.005}),
    "vllm-0.19-gemma-3-27b": (H100, "gemma-3-27b, bf16", {WEIGHTS: 0.005, TOKENS: 0.02, ACTIVATIONS: 0.1}),
    "vllm-0.19-llama-3.1-8b-w4a16": (H100, "int4 weights, bf16 KV", {WEIGHTS: 0.01, TOKENS: 0.001}),
    "vllm-0.19-qwen3-30b-a3b": (H100, "qwen3-30b-a3b, bf16", {WEIGHTS: 0.001, TOKENS: 0.02, ACTIVATIONS: 0.1}),
    "vllm-0.11-llama-3.1-8b": (H100, "vLLM 0.11.0: llama3.1-8b", {POOL: 0.002, ACTIVATIONS: 0.02, BESIDE: 0.02}),
    "vllm-0.10-qwen2-7b-tp2": (
        {"device": "a100-80gb", "model": "qwen2.5-7b"},
        "on 2 x A100-80GB (tp 2)",
        {WEIGHTS: 0.01, TOKENS: 0.02},
    ),
    "vllm-0.7-r1-distill-qwen-14b-tp2": ({"device": "rtx-4090"}, "2 x RTX-4090", {WEIGHTS: 0.02, POOL: 0.04}),
    "vllm-0.6-llama-3.1-8b": ({"device": "rtx-3090"}, "vLLM 0.6.4", {WEIGHTS: 0.001, TOKENS: 0.1}),
    "vllm-0.24-qwen3.6-35b-a3b-nvfp4": ({}, "nvfp4 weights, fp8 KV, on RTX-5090", {TOKENS: 0.05, POOL: 0.05}),
    "vllm-0.20-glm-5.1-nvfp4": (
        {"device": "rtx-pro-6000"},
        "glm-5, nvfp4-experts weights",
        {WEIGHTS: 0.01, POOL: 0.07},
    ),
    "vllm-minimax-m2.5-tp4": ({}, "minimax-m2.5, fp8-block weights", {WEIGHTS: 0.005, POOL: 0.07, TOKENS: 0.07}),
    "sglang-0.4-llama-3.1-8b": (H100, "SGLang: llama3.1-8b", {WEIGHTS: 0.01, TOKENS: 0.002, POOL: 0.002}),
    "sglang-qwen3-14b-tp4": ({"device": "rtx-4090"}, "SGLang: qwen3-14b", {WEIGHTS: 0.03, TOKENS: 0.06}),
    "trtllm-1.3-kimi-k2.5-nvfp4": ({"device": "b300"}, "8 x B300 (tp 8, ep 8)", {TOKENS: 0.03, POOL: 0.03}),
    "trtllm-0.17-llama-8b": (
        {"device": "l40s", "stack": "trtllm@0.17.0"},
        "TensorRT-LLM: llama3.1-8b",
        {POOL: 0.14, TOKENS: 0.14},
    ),
    "llamacpp-llama-3.1-8b-q4_k_m": ({}, "q4_k_m weights, fp16 KV, on RTX-4090", {WEIGHTS: 0.07, POOL: ROUNDED}),
    "llamacpp-llama-3.1-8b-kv-q8_0": ({}, "q4_k_m weights, q8_0 KV, on RTX-4090", {POOL: ROUNDED}),
    "llamacpp-old-llama-3.1-8b-q4_k_m": ({}, "llama.cpp: llama3.1-8b, q4_k_m weights", {POOL: ROUNDED}),
}


def path(name):
    return FOLDER / f"{name}.log"


def read(name):
    return path(name).read_text()


def test_every_log_is_tested():
    assert {one.stem for one in FOLDER.glob("*.log")} == set(LOGS)
    assert len(LOGS) >= 20
    assert all(one.read_text().startswith("# facts: ") for one in FOLDER.glob("*.log"))


@pytest.mark.parametrize("name", LOGS)
def test_terms_of_a_log_are_near_ours(name):
    given, design, within = LOGS[name]
    found = dse.check_log(path(name), **given)
    assert design in found.head()
    for term in found.terms:
        if term.name in within:
            assert term.log is not None, term.name
            assert abs(term.share) <= within[term.name], term
    assert found.says.count(".") >= 1
    assert found.text().splitlines()[-1].startswith("design: dse point --device ")


@pytest.mark.parametrize("name", LOGS)
def test_answers_with_the_memory_of_a_log_are_the_servers(name, tmp_path, run):
    """Tokens are those that the log printed, within a block or the last digit of its GiB."""
    given, _, _ = LOGS[name]
    file = tmp_path / "memory.json"
    found = dse.check_log(path(name), **given, out=str(file))
    words = shlex.split(found.command)[1:]
    code, out, err = run(*words, "--calibrated", str(file), "--json")
    assert (code, err) == (0, "")
    result, log = json.loads(out), found.log
    assert "server_memory" not in result["assumptions"]
    if log.weight_gib is not None:
        assert result["weight_bytes"] == pytest.approx(log.weight_gib * 2**30, abs=1)
    if log.kv_gib is not None:
        assert 0.8 * log.kv_gib * 2**30 < result["free_bytes"] <= (log.kv_gib + 0.011) * 2**30
    # of llama.cpp the pool is of the context that was asked for; of GLM a token has an index beside; of FP32 others
    if log.engine != "llama.cpp" and log.kv_tokens and "glm" not in name and "fp32" not in name:
        assert result["kv_pool_tokens"] == pytest.approx(log.kv_tokens, rel=0.002)
    code, out, _ = run(*words, "--calibrated", str(file))
    assert f"Note: memory as {file} has it (start-up log of {log.title}, {name}.log)" in out


def test_a_log_of_vllm_is_read_whole():
    log = startup_log.read(read("vllm-0.19-llama-3.1-8b"))
    assert (log.engine, log.release, log.model) == ("vllm", "0.19.0", "meta-llama/Llama-3.1-8B-Instruct")
    assert (log.gpu_memory_utilization, log.max_model_len, log.tp, log.pp) == (0.95, 8192, 1, 1)
    assert (log.weight_gib, log.activation_gib, log.non_torch_gib, log.graph_gib) == (14.99, 1.89, 0.25, 0.91)
    assert (log.kv_gib, log.kv_tokens, log.max_concurrency) == (58.11, 476_016, 58.11)
    assert (log.backend, log.kv_format, log.weights) == ("FLASH_ATTN", "auto", "")


def test_logs_of_other_engines_and_old_releases_are_read():
    old = startup_log.read(read("vllm-0.6-llama-3.1-8b"))
    assert (old.kv_tokens, old.total_gib, round(old.activation_gib, 2)) == (1952 * 16, 23.69, 2.07)
    usage = startup_log.read(read("vllm-0.11-llama-3.1-8b"))
    assert (usage.activation_gib, usage.non_torch_gib, usage.total_gib) == (4.76, 0.13, 79.19)
    sglang = startup_log.read(read("sglang-0.4-llama-3.1-8b"))
    assert (sglang.kv_gib, sglang.kv_tokens, sglang.weight_gib) == (54.26, 444_500, 15.09)
    assert (sglang.max_model_len, sglang.max_num_seqs, sglang.backend) == (131_072, None, "flashinfer")
    trtllm = startup_log.read(read("trtllm-1.3-kimi-k2.5-nvfp4"))
    assert (trtllm.kv_gib, trtllm.kv_tokens, trtllm.ep, trtllm.kv_format) == (166.02, 5_073_376, 8, "fp8")
    llama = startup_log.read(read("llamacpp-llama-3.1-8b-kv-q8_0"))
    assert (llama.key_format, llama.value_format, llama.max_num_seqs, llama.max_model_len) == ("q8_0", "q8_0", 4, 8192)
    assert (llama.weights, llama.weight_gib, llama.kv_gib) == ("q4_k_m", 4403.49 / 1024, 2176 / 1024)
    assert (llama.device, llama.release) == ("NVIDIA GeForce RTX 4090", "6100")


def test_limits_that_sglang_prints():
    """Tokens of the pool, of layers with a window, batches with a graph, and requests of each device's own."""
    said = "max_total_tokens=400000, swa_full_tokens_ratio=0.5, cuda_graph_max_bs=16, enable_dp_attention=True"
    text = read("sglang-0.4-llama-3.1-8b").replace("max_total_tokens=None", said)
    log = startup_log.read(text)
    assert (log.max_total_tokens, log.window_share, log.graph_requests, log.dp_attention) == (400_000, 0.5, 16, True)
    whole = startup_log.read(
        text.replace("tp_size=1, dp_size=1", "tp_size=8, dp_size=2, disable_hybrid_swa_memory=True")
    )
    assert (whole.window_share, whole.dp_attention) == (1.0, None)
    usual = startup_log.read(read("sglang-0.4-llama-3.1-8b"))
    assert (usual.max_total_tokens, usual.window_share, usual.graph_requests, usual.dp_attention) == (None,) * 4
    found = dse.check_log(text.replace("enable_dp_attention=True", ""), device="h100")
    assert "--max-total-tokens 400000 --swa-full-tokens-ratio 0.5 --cuda-graph-max-bs 16" in found.command


#: facts of start-up logs that users of llama.cpp and ik_llama.cpp published: release line, lines of buffers in MiB, and
#: weights, keys and values, compute buffers of the device, weights of the host, added by hand
LLAMA_BUFFERS = {
    "ik_llama.cpp, Gemma 3 27B on an RTX A6000": (
        "Q4_K - Medium",
        """llm_load_tensors:        CPU buffer size =  1102.77 MiB
llm_load_tensors:      CUDA0 buffer size = 15773.97 MiB
llama_kv_cache_init:      CUDA0 KV buffer size = 15872.00 MiB
llama_new_context_with_model:  CUDA_Host  output buffer size =     1.00 MiB
ggml_gallocr_reserve_n: reallocating CUDA0 buffer from size 0.00 MiB to 522.62 MiB
llama_new_context_with_model:      CUDA0 compute buffer size =   522.62 MiB
llama_new_context_with_model:  CUDA_Host compute buffer size =   138.51 MiB""",
        ("q4_k_m", 15773.97, 15872.0, 522.62, 1102.77),
    ),
    "ik_llama.cpp, Qwen3 235B on an RTX 3090 Ti and the host": (
        "IQ3_K - 3.4325 bpw",
        """llm_load_tensors:        CPU buffer size = 89709.28 MiB
llm_load_tensors:  CUDA_Host buffer size =   630.59 MiB
llm_load_tensors:      CUDA0 buffer size = 19053.73 MiB
llama_kv_cache_init:      CUDA0 KV buffer size =  3196.05 MiB
llama_new_context_with_model:  CUDA_Host  output buffer size =     0.58 MiB
llama_new_context_with_model:      CUDA0 compute buffer size =   312.75 MiB
llama_new_context_with_model:  CUDA_Host compute buffer size =   128.01 MiB""",
        ("iq3_k", 19053.73, 3196.05, 312.75, 90339.87),
    ),
    "llama.cpp 5192, Qwen3 235B on an RTX A6000 and the host": (
        "Q8_0",
        """load_tensors:    CUDA_Host model buffer size =   630.59 MiB
load_tensors:        CUDA0 model buffer size = 39273.87 MiB
load_tensors:          CPU model buffer size = 198451.27 MiB
llama_context:  CUDA_Host  output buffer size =     0.58 MiB
init:      CUDA0 KV buffer size =  6016.00 MiB
llama_context:      CUDA0 compute buffer size =  1024.00 MiB
llama_context:  CUDA_Host compute buffer size =    72.01 MiB""",
        ("q8_0", 39273.87, 6016.0, 1024.0, 199081.86),
    ),
    "llama.cpp 6168, GLM-4.5-Air on an RTX PRO 6000": (
        "IQ1_S - 1.5625 bpw",
        """load_tensors:        CUDA0 model buffer size = 63980.86 MiB
load_tensors:          CPU model buffer size =   407.00 MiB
llama_context:  CUDA_Host  output buffer size =     0.58 MiB
llama_kv_cache_unified:      CUDA0 KV buffer size = 23552.00 MiB
llama_context:      CUDA0 compute buffer size =  3584.09 MiB
llama_context:  CUDA_Host compute buffer size =  2112.11 MiB""",
        ("iq1_s", 63980.86, 23552.0, 3584.09, 407.0),
    ),
    "llama.cpp, names of a Mac's buffers, made up": (
        "IQ4_XS - 4.25 bpw",
        """load_tensors: Metal_Mapped model buffer size =  4403.49 MiB
load_tensors:   CPU_Mapped model buffer size =   281.81 MiB
llama_context:        CPU  output buffer size =     0.49 MiB
llama_kv_cache_unified:      Metal KV buffer size =  1024.00 MiB
llama_context:      Metal compute buffer size =   258.50 MiB
llama_context:        CPU compute buffer size =    24.01 MiB""",
        ("iq4_xs", 4403.49, 1024.0, 258.5, 281.81),
    ),
}


@pytest.mark.parametrize("source", LLAMA_BUFFERS)
def test_buffers_of_the_host_are_no_device(source):
    file_type, lines, (weights, *sizes) = LLAMA_BUFFERS[source]
    head = f"print_info: file type   = {file_type}\nload_tensors: offloaded 63/63 layers to GPU\n"
    log = startup_log.read(head + lines)
    assert (log.pp, log.weights) == (1, weights)
    read_gib = (log.weight_gib, log.kv_gib, log.activation_gib, log.host_weight_gib)
    assert read_gib == pytest.approx([mib / 1024 for mib in sizes])


def test_layers_on_two_devices_are_two_stages():
    log = startup_log.read("""load_tensors: offloaded 33/33 layers to GPU
load_tensors:        CUDA0 model buffer size =  2000.00 MiB
load_tensors:        RPC[10.0.0.2:50052] model buffer size =  2400.00 MiB
load_tensors:   CPU_Mapped model buffer size =   281.81 MiB
llama_context:  CUDA_Host  output buffer size =     0.49 MiB
llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB
llama_kv_cache:      RPC[10.0.0.2:50052] KV buffer size =   480.00 MiB""")
    assert (log.pp, log.weight_gib, log.kv_gib) == (2, 2400 / 1024, 512 / 1024)


def test_weights_in_the_hosts_memory_explain_what_a_device_lacks():
    log = path("llamacpp-llama-3.1-8b-q4_k_m").read_text()
    text = log.replace("4403.49", "2403.49").replace("281.81", "2281.81")
    found = dse.check_log(text)
    assert found.says.startswith("Largest difference: weights, -1.9")
    # beside the input embeddings, which the design has there too
    assert "1.93 GiB more of them stay in the host's memory" in found.says


def test_a_log_names_a_device_and_a_model_but_no_file(tmp_path, monkeypatch):
    """Names of files in a log are names: nothing is opened."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text("this is no device")
    (tmp_path / "Own").mkdir()
    log = read("llamacpp-llama-3.1-8b-q4_k_m")
    for name, own, message in (
        ("NVIDIA GeForce RTX 4090", "own.toml", r"unknown device 'own\.toml': .* \(the log's\): give --device"),
        ("Meta Llama 3.1 8B Instruct", "Own", r"unknown model 'Own': .* \(the log's\): give --model"),
        ("K (f16)", "K (own)", r"unknown quantizer 'own': .* \(the log's\): give --quantizer"),
    ):
        with pytest.raises(InputError, match=message):
            dse.check_log(log.replace(name, own))
    vllm = read("vllm-0.19-llama-3.1-8b").replace("kv_cache_dtype=auto", "kv_cache_dtype=plan:own.toml")
    with pytest.raises(InputError, match=r"kv_format = 'plan:own\.toml': the log's, is no format: give --quantizer"):
        dse.check_log(vllm, device="h100")
    # given, it stands for the log's, and the answer says so
    found = dse.check_log(log, device="rtx-3090")
    assert "the log names 'NVIDIA GeForce RTX 4090': RTX-3090 stands for it, as given" in found.notes
    assert not dse.check_log(log, device="rtx-4090").notes[1:]


def test_memory_profiles_of_tensorrt_llm_are_read():
    lines = """[TRT-LLM] [I] TensorRT-LLM version: 1.2.0
[TRT-LLM] [I] LLM Args: model='Qwen/Qwen3-14B' tensor_parallel_size=1
[TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 27.51 GiB
[TRT-LLM] [I] Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: 0.67 GiB
[TRT-LLM] [I] Memory dynamically allocated during inference (inside torch) in memory usage profiling: 1.55 GiB
[TRT-LLM] [I] available KV cache memory: 44.60 GiB, fraction is set 0.9, device total memory 79.11 GiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 44.60 GiB for max tokens in paged KV cache (292288)."""
    log = startup_log.read(lines)
    assert (log.weight_gib, log.non_torch_gib, log.activation_gib, log.total_gib) == (27.51, 0.67, 1.55, 79.11)
    assert (log.gpu_memory_utilization, log.kv_gib, log.kv_tokens) == (0.9, 44.6, 292_288)


def test_options_stand_for_what_a_log_says():
    found = dse.check_log(path("vllm-0.19-llama-3.1-8b"), device="h100", quantizer="fp8", gpu_memory_utilization=0.9)
    assert "bytes of a token, +100.0 % in the log: another KV format" in found.says
    assert "--gpu-memory-utilization 0.9" in found.command
    assert dse.check_log(path("vllm-0.19-llama-3.1-8b"), device="h200").device == "H200"


def test_the_largest_difference_is_named_with_what_it_means():
    log = path("vllm-0.19-llama-3.1-8b")
    agrees = "Log and design agree; largest difference: activations, -0.01 GiB in the log."
    assert dse.check_log(log, device="h100").says == agrees
    less = dse.check_log(log, device="h100", weights="fp8").says
    assert less.startswith("Largest difference: weights, +6.50 GiB in the log: another format of weights (--weights)")
    share = dse.check_log(log, device="h100", gpu_memory_utilization=0.8).says
    assert share.startswith("Largest difference: keys and values, +11.9")
    budget = dse.check_log(log, device="h100", prompt_budget_tokens=65536).says
    assert "activations" in budget
    assert "fewer tokens or requests in a batch" in budget


def test_a_pool_is_set_beside_those_of_other_start_ups():
    """Ours is 58.09 GiB on an H100: the log's 58.11 lies in its interval, 50 would not."""
    log = read("vllm-0.19-llama-3.1-8b")
    found = dse.check_log(log, device="h100")
    (said,) = found.usual()
    pool = next(term for term in found.to_json()["terms"] if term["name"] == "keys and values")
    low, high = (pool[end] / 2**30 for end in ("low", "high"))
    assert 50 < low < 58.09 < high < 60
    assert said.endswith(f"have {low:.2f} GiB to {high:.2f} GiB of keys and values; this one too.")
    assert said in found.text()
    other = dse.check_log(
        log.replace("Available KV cache memory: 58.11", "Available KV cache memory: 50.0"), device="h100"
    )
    assert other.usual()[0].endswith("this one does not.")
    of_llamacpp = next(name for name in LOGS if name.startswith("llamacpp"))
    assert dse.check_log(path(of_llamacpp), **LOGS[of_llamacpp][0]).usual() == []


def test_what_cannot_be_read_is_one_line():
    vllm, llama = read("vllm-0.19-llama-3.1-8b"), read("llamacpp-llama-3.1-8b-q4_k_m")
    other = 'INFO text_generation_launcher: Args { model_id: "a/b" }\nINFO Warming up model\nINFO Connected\n'
    cut = "\n".join(vllm.splitlines()[:5])
    for text, words in (
        ("\n", "has no start-up lines of vLLM, SGLang, TensorRT-LLM or llama.cpp"),
        (other, "has no start-up lines of vLLM, SGLang, TensorRT-LLM or llama.cpp"),
        (cut + "\n", "of vLLM 0.19.0, ends before the memory of keys and values"),
        ("\n".join(vllm.splitlines()[-4:]) + "\n", "model: is missing, the log does not say it"),
        (vllm + llama, "has lines of vLLM and llama.cpp: give those of one server"),
        (vllm + read("vllm-0.19-qwen3-30b-a3b"), "holds several servers (model 'meta-llama/Llama-3.1-8B-Instruct'"),
        (vllm + vllm.replace("0.19.0", "0.20.0"), "holds several servers (release '0.19.0' and '0.20.0')"),
        (vllm + vllm.replace("476,016", "276,016"), "holds several servers (tokens '276,016' and '476,016')"),
        (llama.replace("33/33", "0/33"), "no layer of 33 is on the device"),
        (vllm.replace("Llama-3.1-8B-Instruct", "Nobody-9B"), "unknown model 'meta-llama/Nobody-9B'"),
        (vllm.replace("kv_cache_dtype=auto", "kv_cache_dtype=int2_what"), "unknown quantizer"),
        (vllm.replace("476,016", "4" * 19), f"kv_tokens = '{'4' * 19}': must be a number of at most 15 digits"),
        (vllm.replace("max_seq_len=8192", "max_seq_len=" + "9" * 19), "max_model_len = '9999999999999999999': must be"),
        (llama.replace("n_ctx         = 8192", "n_ctx = " + "8" * 19), "kv_tokens = '8888888888888888888': must be"),
        (
            llama.replace("Q4_K - Medium", "IQ9_Z - 3.4325 bpw").replace("file size", "size"),
            "weights = 'iq9_z': the log's, is not known (`dse list weights`), and it does not say the size of its file",
        ),
        (llama + llama, "log: holds 2 starts of llama.cpp: give the lines of one"),
        (
            "\n".join(vllm.splitlines()[:5]) + "\n(EngineCore_DP0 pid=9) ValueError: No kernel\n(APIServer pid=1) "
            "RuntimeError: Engine core initialization failed. See root cause above.\n",
            "of vLLM 0.19.0, does not start for another reason than memory: ValueError: No kernel",
        ),
        (
            "\n".join(llama.splitlines()[:8]) + "\nllama_model_load: error loading model: unknown architecture: 'x'\n",
            "of llama.cpp 6100, does not start for another reason than memory: unknown architecture: 'x'",
        ),
        ("\n" * 2**23, "log: has 8,388,608 bytes: give its start-up alone, at most 2,097,152"),
        ("\n" * 2**20, "has no start-up lines"),
    ):
        with pytest.raises(InputError) as error:
            dse.check_log(text, device="h100")
        assert len(error.value.lines()) == 1
        assert words in error.value.lines()[0], error.value
    with pytest.raises(InputError, match=r"device: is missing, a log of vLLM 0\.19\.0 does not say it: give --device"):
        dse.check_log(vllm)
    with pytest.raises(InputError, match=r"has 79\.\d+ GiB, the log's has 23\.69 GiB: give the log's device"):
        dse.check_log(path("vllm-0.6-llama-3.1-8b"), device="h100")


@pytest.mark.parametrize(
    ("file_type", "weights"),
    [
        ("IQ3_K - 3.4325 bpw", "iq3_k"),
        ("Q2_K - Medium", "q2_k"),
        ("Q4_K - Medium (guessed)", "q4_k_m"),
        ("MXFP4 MoE", "mxfp4_moe"),
        ("IQ4_NL - 4.5 bpw", "iq4_nl"),
        ("IQ3_S mix - 3.66 bpw", "iq3_m"),
        ("Q8_0", "q8_0"),
        ("BF16", "bf16"),
        ("all F32", "fp32"),
    ],
)
def test_types_of_files_as_llama_cpp_prints_them(file_type, weights):
    log = startup_log.read(read("llamacpp-llama-3.1-8b-q4_k_m").replace("Q4_K - Medium", file_type))
    assert log.weights == weights


def test_a_type_of_file_that_is_no_format_is_counted_by_its_size():
    """4.58 GiB for 8.03 G parameters are 4.90 bits each: Q4_0 (4.5) is nearer than Q5_0 (5.5)."""
    text = read("llamacpp-llama-3.1-8b-q4_k_m").replace("Q4_K - Medium", "Q4_K_R4")
    found = dse.check_log(text)
    weights = next(term for term in found.terms if term.name == WEIGHTS)
    assert weights.ours == pytest.approx((4.58 - 281.81 / 1024) * 2**30, rel=0.005)
    assert f"--weights q4_0 --weights-size {round(4.58 * 2**30)}" in found.command
    assert "a file of Q4_K_R4 of 4.58 GiB: memory is by its size, times are those of q4_0" in found.notes


def test_a_file_that_mixes_types_is_counted_by_its_size():
    """IQ3_K takes 3.5 bits a weight, 3.3 GiB of 8.03 G: a file of 4.58 GiB has others too; of 3.3 GiB it has none."""
    text = read("llamacpp-llama-3.1-8b-q4_k_m").replace("Q4_K - Medium", "IQ3_K - 3.4325 bpw")
    found = dse.check_log(text)
    weights = next(term for term in found.terms if term.name == WEIGHTS)
    assert weights.ours == pytest.approx((4.58 - 281.81 / 1024) * 2**30, rel=0.005)
    assert any(note.startswith("a file of IQ3_K of 4.58 GiB: memory is by its size") for note in found.notes)
    alike = dse.check_log(text.replace("4.58 GiB", "3.28 GiB"))
    assert "--weights iq3_k" in alike.command
    assert "--weights-size" not in alike.command


def test_a_file_of_llama_cpp_has_no_tower():
    """Gemma 3 27B in Q4_K_M: 27.0 G parameters of 4.875 bits are 15.3 GiB, and a table that both ends have, 1.4 G once
    more in the log's host; the tower of 0.4 G in 16 bits lies in a file of its own."""
    text = read("llamacpp-llama-3.1-8b-q4_k_m").replace("Meta Llama 3.1 8B Instruct", "Gemma 3 27b It")
    found = dse.check_log(text.replace("33/33", "63/63").replace("4.58 GiB", "15.40 GiB"))
    assert "--no-tower" in found.command
    assert next(term for term in found.terms if term.name == WEIGHTS).ours / 2**30 == pytest.approx(15.4, rel=0.02)
    assert "--no-tower" not in dse.check_log(text.replace("Gemma 3 27b It", "Meta Llama 3.1 8B Instruct")).command


#: what prints logs -> a line as it prints it
WRAPPED = {
    "docker compose": lambda line: f"vllm-1  | {line}",
    "kubernetes": lambda line: f"2025-12-09T19:47:08.123456789Z stdout F {line}",
    "journal": lambda line: f"Dec 09 19:47:08 host python[77]: {line}",
    "ranks": lambda line: f"(Worker_TP0 pid=77) {line}",
    "colors": lambda line: f"\x1b[0;36m{line[:9]}\x1b[0;0m{line[9:]}\x1b[K",
    "colors without escapes": lambda line: f"[0;36m{line}[0m",
    "moves and links": lambda line: f"\x1b[?25l\x1b(B{line}\x1b]8;;file\x1b\\",
    "Windows": lambda line: f"{line}\r",
    "Docker's files": lambda line: json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2025-12-09T19:47:08Z"}),
    "a cloud's files": lambda line: json.dumps({"timestamp": "2025-12-09T19:47:08Z", "textPayload": line}),
}


@pytest.mark.parametrize("form", WRAPPED)
def test_logs_are_read_through_what_prints_them(form):
    for name in LOGS:
        plain = read(name)
        wrapped = "\n".join(map(WRAPPED[form], plain.splitlines())) + "\n"
        assert startup_log.read(startup_log.text_of(wrapped.encode())) == startup_log.read(plain), name


def test_files_of_logs_are_unpacked_and_decoded(tmp_path, run):
    """As gzip and PowerShell write them; a file that is cut, or unpacks to too much, is one line."""
    plain = read("vllm-0.19-llama-3.1-8b")
    told = run("check-log", path("vllm-0.19-llama-3.1-8b"), "--device", "h100")
    packed = gzip.compress(plain.encode())
    file = tmp_path / "vllm.log"
    for content in (
        packed,
        packed + packed[:0],
        plain.encode("utf-16"),
        plain.encode("utf-16-le"),
        b"\xef\xbb\xbf" + plain.encode(),
    ):
        file.write_bytes(content)
        assert run("check-log", file, "--device", "h100") == told
    for content, words in (
        (packed[:-400], "vllm.log: cannot be unpacked (cut off?): give its text"),
        (b"\x1f\x8b" + b"x" * 99, "vllm.log: cannot be unpacked (cut off?): give its text"),
        (gzip.compress(b"\n" * 2**24), "vllm.log, unpacked: has 2,097,153 bytes: give its start-up alone"),
        (b"PK\x03\x04" + bytes(99), "has no start-up lines of vLLM"),
    ):
        file.write_bytes(content)
        assert_one_line(run("check-log", file, "--device", "h100"), 2, words)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_cut_a_doubled_or_a_shuffled_log_is_an_answer_or_one_line(data):
    lines = read(data.draw(st.sampled_from(sorted(LOGS)))).splitlines()
    order = data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=2 * len(lines)))
    text = "\n".join(lines[i] for i in order) + "\n"
    text = text[data.draw(st.integers(0, 40)) : len(text) - data.draw(st.integers(0, 40))]
    said = []
    try:
        said = [dse.check_log(text + "\n", device=data.draw(st.sampled_from(["h100", "rtx-4090"]))).text()]
    except DseError as error:
        said = error.lines()
    assert len(said) == 1


def test_a_log_of_long_lines_is_read_quickly():
    lines = ["KV Cache is allocated. " * 900, "server_args=" * 1600, "GPU KV cache size: " + "9" * 19_000, "a" * 20_000]
    lines += ["general.name" + " " * 19_000, "buffer size " * 1600, "KvCacheConfig(" * 1400]
    with pytest.raises(InputError):
        startup_log.read("\n".join(lines * 20))


def test_a_log_of_blank_and_short_lines_costs_no_search(monkeypatch):
    """A line of no letters, or of fewer than any pattern has, is not searched at all."""
    lines = []
    monkeypatch.setattr(startup_log, "_found", lambda engine, found: lines.extend(found) or {})
    with pytest.raises(InputError, match="ends before the memory"):
        startup_log.read("load_tensors: one\n" + "\n" * 1_000_000 + " \r\n" * 100_000 + "a\n" * 100_000)
    assert lines == ["load_tensors: one"]


def test_a_log_that_is_too_large_is_refused_before_it_is_read(tmp_path, run, monkeypatch):
    import io
    import sys

    file = tmp_path / "large.log"
    file.write_bytes(b"\n" * 2**23)
    code, out, err = run("check-log", file)
    assert (code, out, err) == (2, "", f"error: {file}: has 8,388,608 bytes: a log has at most 2,097,152\n")
    # two bytes a letter: of half as many letters as bytes, none is left out in silence
    stdin = io.TextIOWrapper(io.BytesIO("\u00e9".encode() * 2**20 + b"\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    code, out, err = run("check-log")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "standard input: has 2,097,153 bytes: give its start-up alone" in err


def test_the_command_takes_a_file_or_standard_input(run, monkeypatch, tmp_path):
    import io
    import sys

    log = path("vllm-0.19-llama-3.1-8b")
    code, out, err = run("check-log", str(log), "--device", "h100")
    assert (code, err) == (0, "")
    assert "tokens of the pool                 476,016    475,888        +128  +0.0 %" in out
    stdin = io.TextIOWrapper(io.BytesIO(log.read_bytes()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run("check-log", "--device", "h100")[1] == out
    file = tmp_path / "memory.json"
    code, out, err = run("check-log", str(log), "--device", "h100", "--out", str(file), "--json")
    found = json.loads(out)
    assert err == f"memory: {file} (--calibrated {file})\n"
    assert found["log"]["kv_tokens"] == 476_016
    assert [term["name"] for term in found["terms"]] == [WEIGHTS, ACTIVATIONS, BESIDE, POOL, TOKENS, CONCURRENCY]
    assert dse.check_log(log, device="h100").table["share"].abs().max() < 0.01
    code, _, err = run("check-log", str(log), "--device", "oaken-hbm", "--out", str(file))
    assert (code, err.count("\n")) == (2, 1)


def memory_file(tmp_path, **changes):
    file = tmp_path / "memory.json"
    dse.check_log(path("vllm-0.19-llama-3.1-8b"), device="h100", out=str(file))
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return str(file)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"model": "llama3.1-70b"}, "was measured with model llama3.1-8b, not llama3.1-70b: add --model llama3.1-8b"),
        ({"device": "h200"}, "was measured with device H100, not H200"),
        ({"tp": 2}, "was measured with tp 1, not 2"),
        ({"weights": "fp8"}, "was measured with weights bf16, not fp8"),
        ({"stack": "sglang"}, "was measured with stack vllm, not sglang"),
        ({"memory": "paper"}, "memory is counted as papers count it: use --memory server"),
    ],
)
def test_memory_of_another_design_is_refused(asked, message, tmp_path):
    design = {"device": "h100", "model": "llama3.1-8b", "calibrated": memory_file(tmp_path), **asked}
    with pytest.raises(InputError, match=message) as error:
        dse.evaluate(design.pop("device"), design.pop("model"), **design)
    assert len(error.value.lines()) == 1


def test_files_that_are_no_memory_are_refused(tmp_path):
    for file, message in (
        (str(tmp_path / "none.json"), "cannot be read"),
        (memory_file(tmp_path, kind="a recipe"), "is neither memory nor times of a server"),
    ):
        with pytest.raises(InputError, match=message):
            dse.evaluate("h100", "llama3.1-8b", calibrated=file)
    with pytest.raises(SpecError, match=r"weight_bytes = -1"):
        dse.evaluate("h100", "llama3.1-8b", calibrated=memory_file(tmp_path, weight_bytes=-1))
    with pytest.raises(SpecError, match=r"gpu_memory_utilization = 1e-300: input should be .* 0\.0001"):
        dse.evaluate("h100", "llama3.1-8b", calibrated=memory_file(tmp_path, gpu_memory_utilization=1e-300))
    with pytest.raises(SpecError, match="version"):
        dse.evaluate("h100", "llama3.1-8b", calibrated=memory_file(tmp_path, version=2))


def test_other_commands_take_the_memory_of_a_log(tmp_path, run):
    file = memory_file(tmp_path, buffer_bytes=10 * 2**30)
    design = {"device": "h100", "model": "llama3.1-8b", "quantizer": "fp8", "admission": "paged"}
    found = dse.evaluate(**design, calibrated=file)
    assert found["runtime_bytes"] == 10 * 2**30
    assert found["gpu_memory_utilization"] == 0.95
    table = dse.sweep({**design, "calibrated": ["auto", file], "batch": [4, 512]})
    own = table[table["calibrated"] == file]
    assert set(own["max_batch"]) == {found["max_batch"]}
    assert (table[table["calibrated"] == "auto"]["max_batch"] > found["max_batch"]).all()
    asked = ("--device", "h100", "--model", "llama3.1-8b", "--admission", "paged", "--calibrated", file)
    for words in (("point",), ("ask", "load", "--quantizer", "fp8"), ("ask", "formats", "--quantizers", "fp8,fp16")):
        code, _, err = run(*words, *asked, "--json")
        assert (code, err) == (0, ""), words
    code, out, _ = run("point", *asked, "--explain", "runtime_bytes")
    assert code == 0
    assert "as a server's log had it" in out


def test_a_sweep_with_the_memory_of_a_log_is_of_what_the_file_holds(tmp_path):
    axes = {"device": "h100", "model": "llama3.1-8b", "calibrated": memory_file(tmp_path), "batch": [1, 2]}
    first = from_dict({"axes": axes}).sha256
    assert from_dict({"axes": axes}).sha256 == first
    memory_file(tmp_path, buffer_bytes=2**30)
    assert from_dict({"axes": axes}).sha256 != first


def test_a_file_that_changes_is_read_again(tmp_path):
    design = ("h100", "llama3.1-8b")
    first = dse.evaluate(*design, calibrated=memory_file(tmp_path))["runtime_bytes"]
    changed = dse.evaluate(*design, calibrated=memory_file(tmp_path, buffer_bytes=2**30 + 1))["runtime_bytes"]
    assert first != changed == 2**30 + 1


DRAFTS = """\
INFO non-default args: {'model': 'Qwen/Qwen3.6-27B', 'tensor_parallel_size': 2, 'max_model_len': 262144, \
'kv_cache_dtype': 'fp8', 'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 4}, 'enforce_eager': True, \
'cpu_offload_gb': 2.5}
INFO Initializing a V1 LLM engine (v0.21.0) with config: model='Qwen/Qwen3.6-27B', speculative_config=\
SpeculativeConfig(method='mtp', model='Qwen/Qwen3.6-27B', num_spec_tokens=4), enforce_eager=True
INFO Available KV cache memory: 11.10 GiB
INFO GPU KV cache size: 605,495 tokens
"""


def test_drafts_eager_mode_and_weights_in_host_memory_of_a_log():
    found = dse.check_log(DRAFTS, device="rtx-3090")
    work = found.workload
    assert json.loads(work.speculative_config)["num_speculative_tokens"] == 4
    assert (work.cuda_graphs, work.cpu_offload_gib) == (False, 2.5)
    assert "--no-cuda-graphs" in found.command
    assert "--speculative-config" in found.command
    assert not any("draft" in note for note in found.notes)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("speculative_algorithm='EAGLE', speculative_draft_model_path=None, speculative_num_steps=3", ("mtp", 3)),
        ("speculative_algorithm='EAGLE3', speculative_draft_model_path='a/b', speculative_num_steps=5", ("eagle3", 5)),
        ("speculative_algorithm=None, speculative_draft_model_path=None, speculative_num_steps=None", None),
    ],
)
def test_drafts_of_a_log_of_sglang(said, meant):
    lines = (
        f"server_args=ServerArgs(model_path='Qwen/Qwen3-14B', {said})\nKV Cache is allocated. #tokens: 5, KV size: 1 GB"
    )
    config = startup_log.read(lines).speculative_config
    drafted = json.loads(config) if config else None
    assert (drafted and (drafted["method"], drafted["num_speculative_tokens"])) == meant


def test_a_draft_that_is_not_known_is_said():
    text = DRAFTS.replace("'method': 'mtp'", "'method': 'draft_model', 'model': '/etc/own'")
    found = dse.check_log(text, device="rtx-3090")
    assert found.workload.speculative_config is None
    assert any("not computed (--speculative-config)" in note for note in found.notes)


def llama_log(host_mib, device_mib, kv_mib):
    """Lines of a log of llama.cpp with Qwen3-235B-A22B in Q8_0, all of whose 94 layers are on the device."""
    return "\n".join(
        [
            "print_info: general.name     = Qwen3 235B A22B",
            "print_info: file type   = Q8_0",
            "load_tensors: offloaded 95/95 layers to GPU",
            "load_tensors:    CUDA_Host model buffer size =   630.59 MiB",
            f"load_tensors:        CUDA0 model buffer size = {device_mib} MiB",
            f"load_tensors:          CPU model buffer size = {host_mib} MiB",
            "llama_context: n_seq_max     = 1",
            "llama_context: n_ctx         = 32768",
            "llama_context: n_ubatch      = 512",
            f"llama_kv_cache:      CUDA0 KV buffer size =  {kv_mib} MiB",
            "llama_kv_cache: size = 6016.00 MiB, K (f16): 3008.00 MiB, V (f16): 3008.00 MiB",
        ]
    )


@pytest.mark.parametrize(("host_mib", "device_mib", "n_layers"), [(196001.25, 41723.89, 80), (198451.27, 39273.87, 81)])
def test_experts_in_host_memory_of_a_log(host_mib, device_mib, n_layers):
    """-ot with blk.14 to blk.93, and blk.13 to blk.93: two logs of ik_llama.cpp (github.com/ikawrakow/ik_llama.cpp)."""
    found = dse.check_log(llama_log(host_mib, device_mib, 6016.00), device="a100-80gb")
    assert found.workload.cpu_moe_layers == n_layers
    shares = {term.name: term.share for term in found.terms}
    assert abs(shares[WEIGHTS]) < 0.001
    assert shares[POOL] == pytest.approx(0.0, abs=1e-6)
    assert "--n-cpu-moe" in found.command


def test_a_log_with_some_layers_on_the_device():
    """20 of 32 layers hold 20 x 8,192 tokens x 4,096 B of keys and values there: 640 MiB of 1,024."""
    log = read("llamacpp-llama-3.1-8b-q4_k_m").replace("33/33", "20/33").replace("1024.00 MiB", "640.00 MiB")
    found = dse.check_log(log)
    assert found.workload.gpu_layers == 20
    (pool,) = (term for term in found.terms if term.name == POOL)
    assert pool.ours == 640 * 2**20


def test_layers_in_16_bits_of_a_log_of_vllm():
    """Its arguments list them as words."""
    text = """Initializing a V1 LLM engine (v0.19.0) with config: model='meta-llama/Llama-3.1-8B-Instruct', dtype=bf16
non-default args: {'kv_cache_dtype': 'fp8', 'kv_cache_dtype_skip_layers': ['0', '31'], 'max_model_len': 8192}
Model loading took 14.99 GiB memory and 9.1 seconds
Available KV cache memory: 45.23 GiB"""
    found = dse.check_log(text, device="h100", gpu_memory_utilization=0.95)
    assert found.quantizer == "fp8:skip=0+31"
    assert "--quantizer fp8:skip=0+31" in found.command
    plain = dse.check_log(text.replace("['0', '31']", "[]"), device="h100", gpu_memory_utilization=0.95)
    assert plain.quantizer == "fp8"
