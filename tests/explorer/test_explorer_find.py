"""The search box: what people type and paste, as fields of a design."""

import pytest

from dse.core.errors import InputError
from dse.explorer import common_fields, find
from dse.specs import server_flags
from dse.specs.workload import ASKED
from explorer_page import opened, plain

LLAMA = {"model": "llama3.1-70b", "weights": None}
QWEN = {"model": "qwen3-8b", "weights": None}
H200 = {"device": "h200", "edits": ""}


@pytest.mark.parametrize(
    ("text", "values", "left_out"),
    [
        ("Llama 3.1 70B", LLAMA, []),
        ("Llama-3.1-70B-Instruct", LLAMA, []),
        ("deepseek-r1", {"model": "deepseek-v3", "weights": None}, []),
        ("H100 SXM", {"device": "h100", "edits": ""}, []),
        ("8x H200", {**H200, "tp": 8}, []),
        ("https://huggingface.co/meta-llama/Llama-3.1-70B-Instruct", LLAMA, []),
        ("huggingface.co/meta-llama/Llama-3.1-70B-Instruct/tree/main", LLAMA, []),
        ("Llama 3.1 70B on 8x H200", {**LLAMA, **H200, "tp": 8}, []),
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8", {"model": "llama3.1-70b", "weights": "fp8"}, []),
        (
            "vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size=4 --kv-cache-dtype fp8_e4m3 "
            "--max-model-len 32768 --gpu-memory-utilization 0.95 --enable-prefix-caching --port 8000",
            {
                "stack": "vllm",
                **LLAMA,
                "tp": 4,
                "quantizer": "fp8",
                "parameters": "",
                "max_model_len": 32768,
                "gpu_memory_utilization": 0.95,
            },
            ["--port 8000"],
        ),
        (
            "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --enable-expert-parallel --quantization fp8",
            {"stack": "vllm", "model": "deepseek-v3", "weights": "fp8-block", "tp": 8, "ep": 8},
            [],
        ),
        (
            "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --trust-remote-code",
            {"stack": "sglang", "model": "deepseek-v3", "weights": None, "tp": 8},
            [],
        ),
        (
            "./llama-server -m models/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf -ctk q8_0 -ctv q4_0 -c 8192 -ngl 99 -np 4 "
            "-fa on",
            {
                "stack": "llama.cpp",
                "model": "llama3.1-8b",
                "weights": "q4_k_m",
                "quantizer": "q8_0",
                "parameters": "",
                "value_quantizer": "q4_0",
                "value_parameters": "",
                "max_total_tokens": 8192,
                "n_gpu_layers": 99,
                "max_num_seqs": 4,
            },
            ["-fa on"],
        ),
        (
            "vllm serve Qwen/Qwen3.6-27B --enforce_eager --mamba-ssm-cache-dtype float16 --max_num_seqs 512 "
            '--kv-cache-memory-bytes 40GiB --speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\'',
            {
                "stack": "vllm",
                "model": "qwen3.6-27b",
                "weights": None,
                "cuda_graphs": False,
                "state_type": "float16",
                "max_num_seqs": 512,
                "kv_cache_memory": 40 * 2**30,
                "speculative_config": '{"method": "mtp", "num_speculative_tokens": 2}',
            },
            [],
        ),
        (
            "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp=2 --enable-dp-attention "
            "--max-total-tokens 9",
            {
                "stack": "sglang",
                "model": "qwen3-32b",
                "weights": None,
                "tp": 2,
                "dp_attention": True,
                "max_total_tokens": 9,
            },
            [],
        ),
        (
            "vllm serve deepseek-ai/DeepSeek-V3 --data-parallel-size 8 --enable-expert-parallel --max-num-seqs 64",
            {
                "stack": "vllm",
                "model": "deepseek-v3",
                "weights": None,
                "tp": 8,
                "ep": 8,
                "dp_attention": True,
                "max_num_seqs": 512,
            },
            [],
        ),
        (
            "vllm serve Qwen/Qwen3-8B -tp 2 --data-parallel-size 4 --kv-cache-dtype fp8_e5m2",
            {"stack": "vllm", **QWEN, "tp": 2, "quantizer": "fp8", "parameters": "format=e5m2"},
            ["data parallel 4"],
        ),
        (
            "python -m sglang.launch_server --model-path zai-org/GLM-4.7 --tp 4 --dp-size 4 --enable-dp-attention "
            "--speculative-algorithm NEXTN --speculative-num-steps 3",
            {
                "stack": "sglang",
                "model": "glm-4.7",
                "weights": None,
                "tp": 4,
                "dp_attention": True,
                "speculative_config": '{"method": "mtp", "num_speculative_tokens": 3}',
            },
            [],
        ),
        (
            "trtllm-serve Qwen/Qwen3-8B --tp_size 4 --kv_cache_dtype fp8 --max_batch_size 64",
            {"stack": "trtllm", **QWEN, "tp": 4, "quantizer": "fp8", "parameters": "", "max_num_seqs": 64},
            [],
        ),
        (
            "llama-server -hf unsloth/Qwen3-8B-GGUF:Q8_0 -sm layer -ts 1,1 --no-kv-offload",
            {"stack": "llama.cpp", "model": "qwen3-8b", "weights": "q8_0", "pp": 2, "kv_offload": 1.0},
            [],
        ),
        ("llama-server -m Qwen3-8B.gguf -ts 3,1", {"stack": "llama.cpp", **QWEN}, ["split 3,1"]),
        ("vllm serve /own/model --tp eight --pp 2", {"stack": "vllm", "pp": 2}, ["/own/model", "--tp eight"]),
    ],
)
def test_what_people_type(text, values, left_out):
    found = find.find(text)
    assert (found.values, [one.strip() for one in found.left_out]) == (values, left_out)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lama 3.1 70b", "no model or device that is known: did you mean llama3.1-70b"),
        ("Ling 2.6", "no file of it ships: give its config.json; nearest by shape is"),
        ("xyz", "no model or device that is known: give a model, a device, 8x H200"),
        ("vllm serve 'open", "close the quotes"),
        ("serve --port 1", "nothing that a design has"),
        (" , ;", "names nothing: give a model"),
    ],
)
def test_what_is_not_known(text, message):
    with pytest.raises(InputError, match=message):
        find.find(text)


def test_every_field_of_a_command_is_one_of_a_page():
    work = {ASKED[name].key for engine in server_flags.engines().values() for name in engine.flags if name in ASKED}
    assert work <= {one.key for one in (*common_fields.DESIGN, *common_fields.SCENARIO)}


def test_the_box_sets_the_design_that_is_being_changed():
    page = opened("compare")
    page.text_input(key="find").set_value("vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 2 --max-num-seqs 0").run()
    assert not page.exception
    assert (page.selectbox(key="model").value, page.number_input(key="tp").value) == ("llama3.1-70b", 2)
    said = next(plain(text.value) for text in page.caption if plain(text.value).startswith("Set: "))
    assert "tp 2" in said
    assert "not taken: max" in said
    assert page.text_input(key="find").value == ""
    page.text_input(key="find").set_value("xyz").run()
    assert any("no model or device that is known" in text.value for text in page.markdown)
    assert page.selectbox(key="model").value == "llama3.1-70b"
