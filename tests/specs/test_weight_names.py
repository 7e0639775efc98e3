"""Formats of weights that names of checkpoints say, and what a workload then counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from dse.core.errors import InputError
from dse.specs import catalog, weight_names
from dse.specs.weights import FORMATS
from dse.specs.workload import Workload

#: as on Hugging Face, in llama.cpp and Ollama -> format
SAYS = {
    "Qwen/Qwen3-32B-FP8": "fp8-block",  # Qwen's have blocks
    "RedHatAI/Qwen3-32B-FP8-dynamic": "fp8",  # of which RedHat's have channels
    "RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8": "fp8",
    "amd/Llama-3.1-405B-Instruct-FP8-KV": "fp8",
    "nvidia/Llama-3.1-70B-Instruct-FP8": "fp8",
    "deepseek-ai/DeepSeek-V3-FP8": "fp8-block",
    "RedHatAI/Qwen3-30B-A3B-FP8-dynamic": "fp8-tensor",
    "Qwen/Qwen3-8B-AWQ": "int4",
    "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4": "int4",
    "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8": "w8a16",
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": "int4",
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": "int8",
    "someone/Qwen3-32B-INT8": "int8",
    "nvidia/Llama-3.3-70B-Instruct-FP4": "nvfp4",
    "nvidia/Llama-3.3-70B-Instruct-NVFP4": "nvfp4",
    "nvidia/Qwen3.5-122B-A10B-NVFP4": "nvfp4-experts",
    "nvidia/Gemma-4-31B-IT-NVFP4": "nvfp4-ffn",
    "nvidia/Qwen3-235B-A22B-NVFP4": "nvfp4",
    # makers leave different modules in 16 bits
    "nvidia/Qwen3.6-27B-NVFP4": "nvfp4",
    "Inferact/Qwen3.8-27B-NVFP4": "nvfp4",
    "cpatonn/Qwen3-Next-80B-A3B-Instruct-AWQ-4bit": "int4-experts",
    "cyankiwi/GLM-4.5-Air-AWQ-4bit": "int4-of-32",
    "cpatonn/Qwen3-Coder-30B-A3B-Instruct-GPTQ-4bit": "int4",
    "cyankiwi/Qwen3.6-27B-AWQ-INT4": "int4-of-32",
    "Qwen/Qwen3.5-27B-GPTQ-Int4": "int4-ffn",
    "amd/DeepSeek-R1-MXFP4-Preview": "mxfp4-experts",
    "openai/gpt-oss-120b-mxfp4": "mxfp4-experts",
    "moonshotai/Kimi-K2-Thinking": "int4-experts",
    "moonshotai/Kimi-K2.5": "int4-experts",
    "unsloth/Qwen3-8B-unsloth-bnb-4bit": "nf4",
    "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M": "q4_k_m",
    "qwen3-32b-Q4-K-M": "q4_k_m",
    "llama3.1:8b-instruct-q8_0": "q8_0",
    "qwen3-8b-IQ4_XS": "iq4_xs",
    "Llama-3.1-8B-q5_K": "q5_k_m",
    "unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL": "q4_k_xl",
    "Qwen3-8B-UD-IQ1_S.gguf": "iq1_s",
    "ubergarm/Qwen3-30B-A3B-GGUF:IQ4_KS_R4": "iq4_ks",
    "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_0_4_4": "q4_0",
    "qwen3-8b-iq3_k": "iq3_k",
    "mlx-community/Qwen3-8B-4bit": "mlx-4bit",
    "lmstudio-community/Qwen3-8B-MLX-8bit": "mlx-8bit",
    "mlx-community/Qwen3-30B-A3B-6bit-DWQ": "mlx-6bit",
    "ggml-org/gpt-oss-20b-GGUF": "mxfp4_moe",
    "llama3.1-8b-TQ1_0": "tq1_0",
    "meta-llama/Llama-3.1-8B-Instruct-bf16": "bf16",
    "llama3.1-8b": "bf16",
    "gpt-oss-120b": "mxfp4-experts",
    "gpt-oss-120b-BF16": "bf16",
}


@each("name", SAYS)
def test_a_name_says_the_weights(name):
    found = catalog.model(name)
    assert found.released == SAYS[name]
    # and a design counts them so, unless another format is asked for
    expected = None if SAYS[name] == "bf16" else SAYS[name]
    assert Workload().of_model(found).weights == expected
    assert Workload(weights="released").of_model(found).weights == expected
    assert Workload(weights="int8").of_model(found).weights == "int8"
    assert Workload(weights_bits=8).of_model(found).weights is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Qwen/Qwen3-32B-FP8-AWQ", "says two formats of weights, fp8 and awq: leave one out"),
        ("qwen3-32b-int4-int8", "says two formats of weights, int4 and int8"),
        ("qwen3-8b-q4_k_m-q8_0", "says two formats of weights, q4_k_m and q8_0"),
        ("qwen3-8b:UD-Q7_K_XL", "q7_k_xl is no type that is known: use one of q8_0, q6_k"),
    ],
)
def test_what_is_refused_is_one_line(name, message):
    with pytest.raises(InputError, match=message) as caught:
        catalog.model(name)
    assert len(caught.value.lines()) == 1


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("qwen3-32b-uncensored", "'qwen3-32b-uncensored': 'uncensored' not known: taken as qwen3-32b"),
        ("me/Qwen3-32B-FP8-my-tune", "'me/Qwen3-32B-FP8-my-tune': 'my', 'tune' not known: taken as qwen3-32b"),
        ("unsloth/Qwen3-8B-GGUF", "GGUF without its type: taken as q4_k_m, as llama.cpp does"),
    ],
)
def test_words_that_nobody_knows_are_said(name, note):
    assert note in catalog.model(name).notes[-1]
    weights = {"FP8": "fp8-block", "GGUF": "q4_k_m"}
    assert catalog.model(name).released == next((code for word, code in weights.items() if word in name), "bf16")


@pytest.mark.parametrize("name", ["phi-4-mni", "qwen3-32b-vl", "qwen3-32b-eagle", "qwen3-32b-7b", "qwen3-32b-a-b-c-d"])
def test_words_of_another_shape_and_slips_are_not_passed_over(name):
    with pytest.raises(InputError, match="unknown model"):
        catalog.model(name)


@pytest.mark.parametrize(
    ("model", "word", "weights"),
    [
        ("qwen3-next", "awq", "int4-experts"),
        ("qwen3.5-27b", "GPTQ", "int4-ffn"),
        ("qwen3-8b", "awq", "int4"),
        ("qwen3-8b", "w8a8", "int8"),
        ("qwen3-8b", "4bit", "int4"),
        ("qwen3.6-27b", "nvfp4", "nvfp4"),
    ],
)
def test_words_of_names_are_formats_too(model, word, weights):
    found = catalog.model(model)
    asked = Workload(weights=word).of_model(found)
    assert asked.weights == weights
    assert asked.of_model(found) == asked


def test_fp8_of_a_mixture_means_blocks_where_it_has_them():
    asked = Workload(weights="fp8")
    weights = {name: asked.of_model(catalog.model(name)).weights for name in ("deepseek-v3", "qwen3-30b-a3b")}
    assert weights == {"deepseek-v3": "fp8-block", "qwen3-30b-a3b": "fp8-block"}
    others = {name: asked.of_model(catalog.model(name)).weights for name in ("qwen3-32b", "dbrx")}
    assert others == {"qwen3-32b": "fp8", "dbrx": "fp8"}
    assert Workload(weights="fp8-tensor").of_model(catalog.model("deepseek-v3")).weights == "fp8-tensor"


@given(st.sampled_from(sorted(catalog.model_files())), st.sampled_from(sorted(SAYS)))
def test_a_resolved_workload_stays_as_it_is(shipped, name):
    for model in (catalog.model(shipped), catalog.model(name)):
        once = Workload().of_model(model)
        assert once.of_model(model) == once
        assert once.weights in {None, *FORMATS}


@given(st.text("abcdefpq0123458_-.: ", max_size=30))
def test_any_text_has_a_format_or_is_refused_in_one_line(text):
    try:
        found = weight_names.format_in(text).name
    except InputError as error:
        found = "" if len(error.lines()) == 1 else "more than one line"
    assert found in {"", *FORMATS}
