"""KV types that engines run: kinds of models by hand, rows beside what logs and pull requests of engines show."""

import json

import pytest

from dse import quantizers
from dse.core.errors import InputError
from dse.specs import catalog, engines

HERE = [
    # log of vLLM 0.24.0: "out of potential backends: ['TRITON_ATTN']" (club-3090, issue 585)
    ("vllm", "rtx-3090", "qwen3.6-27b", "int8_per_token_head", "runs", "TRITON_ATTN"),
    # the same log: ['FLASHINFER', 'TRITON_ATTN'], of which the latter would raise below 8.9
    ("vllm", "rtx-3090", "qwen3.6-27b", "fp8", "runs", "FLASHINFER (also TRITON_ATTN)"),
    # vLLM pull request 46963, an A100
    ("vllm", "a100-80gb", "llama3.1-8b", "nvfp4", "runs", "FLASHINFER"),
    # vLLM pull request 43914: a ValueError as the model is built, below 8.9
    ("vllm", "a100-80gb", "gpt-oss-20b", "fp8", "fails", "TRITON_ATTN"),
    ("vllm", "a100-80gb", "deepseek-v3", "fp8", "fails", "TRITON_MLA"),
    # vLLM issue 48374: sparse latent attention has no backend on 8.x
    ("vllm", "rtx-3090", "deepseek-v3.2", "fp8", "refused", ""),
    # config check of vLLM: NVFP4 with latent heads
    ("vllm", "b200", "deepseek-v3", "nvfp4", "refused", ""),
    # no common layout of its boundary layers, seen on MI300 (vLLM pull request 54988)
    ("vllm", "b200", "llama3.1-8b", "turboquant_4bit_nc", "fails", "TURBOQUANT"),
    ("vllm", "t4", "llama3.1-8b", "int4_per_token_head", "runs", "TRITON_ATTN"),
    # SGLang issue 18550: e5m2 on Hopper runs by triton
    ("sglang", "h100", "llama3.1-8b", "fp8_e5m2", "runs", "flashinfer, triton"),
    ("sglang", "h100", "llama3.1-8b", "nvfp4", "refused", ""),
    ("trtllm", "a100-80gb", "llama3.1-8b", "fp8", "refused", ""),
    # llama.cpp issues 27109 and 28524: default builds have q8_0 and q4_0, others fall to the CPU
    ("llama.cpp", "h100", "qwen3-8b", "q8_0", "runs", "flash attention"),
    ("llama.cpp", "rtx-3090", "qwen3-8b", "q5_1", "doubtful", "flash attention"),
    ("llama.cpp", "rtx-3090", "qwen3-8b", "iq4_nl", "doubtful", ""),
    # LMDeploy's page on quantized keys and values: from Volta to Hopper, by head and token
    ("lmdeploy", "h100", "qwen3-8b", "quant_policy_4", "runs", "TurboMind (also PyTorch)"),
    ("lmdeploy", "t4", "qwen3-8b", "quant_policy_8", "runs", "TurboMind (also PyTorch)"),
    # its assertion for latent heads, its ValueError for sparse ones
    ("lmdeploy", "h100", "deepseek-v3", "quant_policy_16", "fails", ""),
    ("lmdeploy", "h100", "deepseek-v3.2", "quant_policy_8", "refused", ""),
    ("lmdeploy", "h100", "deepseek-v3.2", "quant_policy_16", "runs", "FlashMLA sparse"),
    # TensorRT-LLM's check of heads of NVFP4
    ("trtllm", "b200", "phi-2", "nvfp4", "fails", ""),
]


@pytest.mark.parametrize(("stack", "device", "model", "kv_dtype", "status", "backend"), HERE)
def test_rows_are_what_engines_were_seen_to_do(stack, device, model, kv_dtype, status, backend):
    found = engines.support(stack, "", catalog.device(device), catalog.model(model), kv_dtype)
    assert (found.status, found.backend) == (status, backend)
    assert found.runs == (status in ("runs", "doubtful"))
    assert found.engine in found.text()


def test_the_list_has_every_table(run):
    rows = json.loads(run("list", "kv-types", "--json")[1])
    assert {row["name"].rpartition(" ")[0] for row in rows} == {
        f"{engines.ENGINES[stack]} {release}" for stack, known in engines.releases().items() for release in known
    }
    found = json.loads(run("list", "kv-types", "lmdeploy 0.18.0 quant_policy_42", "--json")[1])
    assert [row["status"] for row in found] == ["runs", "fails", "refused"]
    assert found[1]["attention"] == "latent_576"


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ("llama3.1-8b", ["grouped_128"]),
        ("llama3.2-1b", ["grouped_64"]),
        ("qwen3.5-27b", ["hybrid_256"]),
        ("gemma-2-27b", ["window_128"]),
        ("gemma-4-31b", ["window_256_512"]),
        ("gpt-oss-120b", ["window_64_sinks"]),
        ("mimo-v2-flash", ["window_192_sinks"]),
        ("gemma-3-12b", ["window_256_image"]),
        ("deepseek-v3", ["latent_576"]),
        ("kimi-k2.5", ["latent_576"]),
        ("deepseek-v3.2", ["sparse_latent_576"]),
        ("deepseek-v4-flash", ["compressed"]),
    ],
)
def test_the_kind_of_a_model_comes_from_its_layers(model, kinds):
    assert engines.kinds(catalog.model(model)) == kinds


def test_an_image_mask_counts_where_images_are_shown():
    """TRITON_ATTN has the mask and no FP8 below 8.9; without images FlashInfer takes FP8."""
    a100, gemma = catalog.device("a100-80gb"), catalog.model("gemma-3-12b")
    assert engines.support("vllm", "", a100, gemma, "fp8").status == "fails"
    assert engines.support("vllm", "", a100, gemma, "fp8", shows_images=False).status == "runs"


def test_sparse_latent_heads_are_stored_otherwise_by_architecture():
    """656 B a token on 9.0 and 12.x, 576 B on 10.x."""
    model = catalog.model("deepseek-v3.2")
    stored = {
        device: engines.support("vllm", "", catalog.device(device), model, "fp8").stored_as
        for device in ("h200", "b200", "rtx-pro-6000")
    }
    assert stored == {"h200": "fp8_ds_mla", "b200": "fp8", "rtx-pro-6000": "fp8_ds_mla"}


def test_what_no_table_tells_is_none():
    llama = catalog.model("llama3.1-8b")
    assert engines.support("vllm", "", catalog.device("mi300x"), llama, "fp8") is None
    assert engines.support("vllm", "", catalog.device("oaken-hbm"), llama, "fp8") is None
    assert engines.support("lmdeploy", "", catalog.device("h100"), llama, "fp8") is None
    assert engines.support("vllm", "", catalog.device("h100"), catalog.model("mimo-v2-flash"), "fp8") is None


def test_tables_are_whole():
    """No row twice, statuses and architectures that are known, types that quantizers or engines name."""
    architectures = {device.architecture for device in map(catalog.device, catalog.device_files())}
    names = {one.name for one in quantizers.engine_names.every(quantizers.FAMILIES)} | {*quantizers.FAMILIES}
    for stack, known in engines.releases().items():
        assert stack in engines.ENGINES
        for release in known:
            assert set(engines.types(stack, release)) <= names
            assert set(engines.architectures(stack, release)) <= architectures
            rows = engines._rows(stack, release)
            assert {row.status for row in rows.values()} <= {"runs", "refused", "fails", "doubtful"}
            assert all(row.source or not row.runs for row in rows.values())


def test_releases():
    assert engines.release_for("vllm", "0.33.0") == engines.release_for("vllm", "0.19.0") == "0.33.0"
    assert engines.release_for("transformers", "1") is None
    with pytest.raises(
        InputError, match=r"stack = 'vllm@latest': is no release: use one as vllm@0\.33\.0, or vllm for"
    ):
        engines.check_release("vllm", "latest")
    engines.check_release("vllm", "0.19.0")
