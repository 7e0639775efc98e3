"""Names of models as people and servers write them: what they mean, and what they must not mean."""

import re
from pathlib import Path

import pytest

from cases import each
from dse.core.errors import InputError
from dse.report import listing
from dse.specs import catalog, model_names

MEANS = {
    "Qwen/Qwen2.5-VL-7B-Instruct-AWQ": "qwen2.5-vl-7b",
    "LiquidAI/LFM2-1.2B": "lfm2-1.2b",
    "LiquidAI/LFM2.5-1.2B-Instruct": "lfm2-1.2b",
    "LiquidAI/LFM2-8B-A1B-GGUF": "lfm2-8b-a1b",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": "tinyllama-1.1b",
    "google/gemma-4-12B-it": "gemma-4-12b",
    "GLM-Z1-32B-0414": "glm-4-32b",
    "Step-3.5": "step-3.7-flash",
    "Mistral Medium 3.5": "devstral-2-123b",
    "Devstral-Small-2-24B-Instruct-2512": "mistral-small-3.1-24b",
    "baidu/ERNIE-4.5-300B-A47B-PT": "ernie-4.5-300b-a47b",
    "CodeLlama-7b-Instruct-hf": "codellama-7b",
    "Mistral-7B-Instruct-v0.2": "mistral-7b-v0.3",
    "Qwen/Qwen3-Reranker-8B": "qwen3-8b",
    "qwen3-235b": "qwen3-235b-a22b",
    "qwen3 235b": "qwen3-235b-a22b",
    "llama 70b": "llama3.1-70b",
    "Qwen-72B": "qwen2.5-72b",
    "Qwen2-72B": "qwen2.5-72b",
    "mistralai/Mistral-Large-4-1T-A52B": "mistral-large-4",
    "meta-models/Muse-Spark-Open-816B-A42B": "muse-spark",
    "meituan-longcat/LongCat-Flash-Chat": "longcat-flash",
    "zai-org/GLM-5.3-Flash-FP8": "glm-5.3-flash",
    "nvidia/Llama-3_1-Nemotron-Ultra-253B-v1": "llama-3.1-nemotron-ultra-253b",
    "GLM-4.7-Flash": "glm-4.7-flash",
    "Qwen/Qwen3-VL-32B-Instruct": "qwen3-vl-32b",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "qwen3-30b-a3b",
    "unsloth_Qwen3-8B-GGUF": "qwen3-8b",
    "AxionML-Qwen3.6-27B": "qwen3.6-27b",
    "Qwen3.6-27B-MTP": "qwen3.6-27b",
    "GLM-5.1-NVFP4 + MTP": "glm-5",
    "Qwen3-30B-A3B-128K": "qwen3-30b-a3b",
    "microsoft/Phi-3-mini-128k-instruct": "phi-3-mini-4k",
    "Llama2-7B": "llama2-7b",
    "meta-llama/Llama-2-7b-hf": "llama2-7b",
    "meta-llama/Llama-2-13b-chat-hf": "llama2-13b",
    "Llama-3.1-70B": "llama3.1-70b",
    "meta-llama/Llama-3.1-70B-Instruct": "llama3.1-70b",
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "llama3.1-8b",
    "meta-llama/Meta-Llama-3-8B": "llama3-8b",
    "RedHatAI/Meta-Llama-3.1-405B-Instruct-FP8-dynamic": "llama3.1-405b",
    "amd/Llama-3.1-405B-Instruct-FP8-KV": "llama3.1-405b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama3.1-70b",
    "nvidia/Llama-3.3-70B-Instruct-FP4": "llama3.1-70b",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": "llama3.1-70b",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "llama4-scout",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8": "llama4-maverick",
    "Qwen/Qwen3-32B-FP8": "qwen3-32b",
    "qwen_3_32b": "qwen3-32b",
    "Qwen/Qwen3-8B-AWQ": "qwen3-8b",
    "Qwen/Qwen3-0.6B-Base": "qwen3-0.6b",
    "Qwen/Qwen3-30B-A3B-GPTQ-Int4": "qwen3-30b-a3b",
    "Qwen/Qwen3-30B-A3B-Thinking-2507": "qwen3-30b-a3b",
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": "qwen3-235b-a22b",
    "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8": "qwen3-coder-480b-a35b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "GPT_OSS_20B": "gpt-oss-20b",
    "deepseek-ai/DeepSeek-V3-0324": "deepseek-v3",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-R1-0528": "deepseek-v3",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-v3",
    "nvidia/DeepSeek-R1-0528-FP4": "deepseek-v3",
    "nvidia/DeepSeek-R1-0528-NVFP4-v2": "deepseek-v3",
    "amd/DeepSeek-R1-MXFP4-Preview": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3.1-Terminus": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3.2-Exp": "deepseek-v3.2",
    "moonshotai/Kimi-K2-Instruct-0905": "kimi-k2",
    "moonshotai/Kimi-K2-Thinking": "kimi-k2",
    "moonshotai/Kimi-K2.5": "kimi-k2.5",
    "nvidia/Kimi-K2.6-NVFP4": "kimi-k2.5",
    "zai-org/GLM-5-FP8": "glm-5",
    "zai-org/GLM-5.1": "glm-5",
    "MiniMaxAI/MiniMax-M2": "minimax-m2.5",
    "nvidia/MiniMax-M2.7-NVFP4": "minimax-m2.5",
    "mistralai/Mixtral-8x22B-Instruct-v0.1": "mixtral-8x22b",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
    " facebook/OPT-6.7b ": "opt-6.7b",
    "llama-7b": "llama2-7b",
    "huggyllama/llama-13b": "llama2-13b",
    "LLaMA-7B": "llama2-7b",
    "Llama-30B": "llama-30b",
    "LLaMA-33B": "llama-30b",
    "Vicuna-13B": "llama2-13b",
    "lmsys/vicuna-7b-v1.5": "llama2-7b",
    "Mistral-7B": "mistral-7b",
    "mistralai/Mistral-7B-Instruct-v0.1": "mistral-7b",
    "Yi-34B": "yi-34b",
    "01-ai/Yi-34B-Chat": "yi-34b",
    "Qwen1.5-72B": "qwen1.5-72b",
    "Qwen/Qwen1.5-72B-Chat": "qwen1.5-72b",
    "Qwen/Qwen2.5-0.5B-Instruct": "qwen2.5-0.5b",
    "Qwen2.5-7B": "qwen2.5-7b",
    "gptj-6b": "gpt-j-6b",
    "EleutherAI/gpt-j-6B": "gpt-j-6b",
    "tiiuae/falcon-180B-chat": "falcon-180b",
    "Qwen/Qwen3.5-35B-A3B": "qwen3.5-35b-a3b",
    "nvidia/Qwen3.6-27B-NVFP4": "qwen3.6-27b",
    "moonshotai/Kimi-K3": "kimi-k3",
    "zai-org/GLM-5.2-FP8": "glm-5.2",
    "nvidia/GLM-5.3-NVFP4": "glm-5.2",
    "deepseek-ai/DeepSeek-V4-Flash": "deepseek-v4-flash",
    "google/gemma-4-31B-it": "gemma-4-31b",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "nemotron-3-nano-30b-a3b",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": "llama-3.3-nemotron-super-49b",
    "nvidia/Nemotron-H-56B-Base-8K": "nemotron-h-56b",
    "nvidia/MiniMax-M3-NVFP4": "minimax-m3",
    "meta-llama/Llama-3.2-1B-Instruct": "llama3.2-1b",
    "meta-llama/Llama-3.2-3B-Instruct": "llama3.2-3b",
    "Qwen/Qwen2.5-72B-Instruct": "qwen2.5-72b",
    "Qwen/Qwen2.5-Coder-32B-Instruct": "qwen2.5-32b",
    "Qwen/QwQ-32B": "qwen2.5-32b",
    "Qwen/Qwen3-4B-Instruct-2507": "qwen3-4b",
    "Qwen/Qwen3-14B-FP8": "qwen3-14b",
    "google/gemma-3-27b-it": "gemma-3-27b",
    "google/gemma-2-9b-it": "gemma-2-9b",
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": "mistral-small-3.1-24b",
    "mistralai/Mistral-Small-24B-Instruct-2501": "mistral-small-24b",
    "mistralai/Mistral-Nemo-Instruct-2407": "mistral-nemo-12b",
    "mistralai/Mistral-Large-Instruct-2407": "mistral-large-2411",
    "mistralai/Ministral-8B-Instruct-2410": "ministral-8b",
    "mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b-v0.3",
    "microsoft/phi-4": "phi-4",
    "microsoft/Phi-4-mini-instruct": "phi-4-mini",
    "microsoft/Phi-3-medium-4k-instruct": "phi-3-medium-4k",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": "qwen2.5-32b",
    "deepseek-ai/DeepSeek-V2-Lite-Chat": "deepseek-v2-lite",
    "zai-org/GLM-4.5-Air-FP8": "glm-4.5-air",
    "zai-org/GLM-4.5": "glm-4.5",
    "zai-org/GLM-4.6-FP8": "glm-4.7",
    "ibm-granite/granite-3.1-8b-instruct": "granite-3.1-8b",
    "CohereForAI/c4ai-command-r-plus-08-2024": "command-r-plus",
    "01-ai/Yi-6B-Chat": "yi-6b",
    "allenai/OLMo-2-1124-13B-Instruct": "olmo-2-13b",
    "tiiuae/falcon-40b-instruct": "falcon-40b",
    "codellama/CodeLlama-34b-Instruct-hf": "codellama-34b",
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": "smollm2-1.7b",
    "databricks/dbrx-instruct": "dbrx",
    "Qwen/Qwen3-Next-80B-A3B-Thinking-FP8": "qwen3-next-80b-a3b",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": "kimi-linear-48b-a3b",
    "moonshotai/Kimi-VL-A3B-Thinking-2506": "kimi-vl-a3b",
    "LGAI-EXAONE/EXAONE-4.0-32B-FP8": "exaone-4.0-32b",
    "XiaomiMiMo/MiMo-VL-7B-RL-2508": "mimo-vl-7b",
}

#: near a name that ships, of another shape, or short of what tells sizes apart
UNKNOWN = [
    "qwen3-32",
    "qwen3",
    "Qwen/Qwen3-3.2B",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "Gemma-3-270M",
    "Mistral-Small",
    "Qwen2.5",
    "llama-3.1",
    "Llama-31-70B",
    "llama-3-170b",
    "meta-llama/Llama-3.1-70B-Instruct-Draft",
    "gpt-oss",
    "openai/gpt-oss-safeguard-20b",
    "deepseek-v",
    "DeepSeek-R1-v2",
    "DeepSeek-V3-Instruct-v2",
    "DeepSeek-V4",
    "DeepSeek-R1-Distill-Llama",
    "Kimi-K25",
    "MiniMax-M1",
    "Llama-4-17B-16E",
    "llama-65b",
    "opt-67b",
    "opt-13",
    "instruct",
    "meta-llama/",
    "/",
    "-",
    "",
]


@each("name", MEANS)
def test_name_means(name):
    assert catalog.model(name).name == MEANS[name]


@each("name", UNKNOWN)
def test_no_size_is_guessed(name):
    with pytest.raises(InputError) as caught:
        catalog.model(name)
    assert len(caught.value.lines()) == 1
    assert (
        "unknown model" in str(caught.value)
        or "cannot be read" in str(caught.value)
        or "directory" in str(caught.value)
    )


TYPED = (Path(__file__).parents[1] / "data" / "typed_models.txt").read_text().splitlines()


@each("name", [line for line in TYPED if not line.startswith(("#", "!"))])
def test_names_in_logs_and_tables_are_known(name):
    assert catalog.model(name).parameters > 0


@each("name", [line[2:] for line in TYPED if line.startswith("! ")])
def test_names_that_no_configuration_is_public_of_get_one_line(name):
    with pytest.raises(InputError) as caught:
        catalog.model(name)
    assert len(caught.value.lines()) == 1


def test_nearest_names_are_said():
    with pytest.raises(InputError, match="unknown model 'Qwen/Qwen3-32': did you mean qwen3-32b"):
        catalog.model("Qwen/Qwen3-32")
    with pytest.raises(InputError, match="unknown model 'xyzzy': see `dse list models`"):
        catalog.model("xyzzy")


def mistypings(name: str):
    """The name with one letter left out, one changed, or two neighbours swapped, by turns at every place."""
    for place, letter in enumerate(name):
        left, right = name[:place], name[place + 1 :]
        yield left + (right, ("x" if letter != "x" else "y") + right, right[:1] + letter + right[1:])[place % 3]


@each("name", catalog.model_files())
@pytest.mark.slow
def test_a_name_mistyped_by_one_letter_is_found(name):
    """It means the model all the same, or another one that ships, or the message names it."""
    for typed in {*mistypings(name)} - {name}:
        if model_names.meant(typed, catalog.model_aliases()) or typed.startswith("."):
            continue  # a dash less is the same name; a digit more may be another model's; a dot before is a path
        notes, told = [], ""
        try:
            notes = catalog.model(typed).notes
        except InputError as error:
            told = str(error)
        assert name in told or any("taken as" in note for note in notes), typed


@each("name", catalog.model_files())
def test_names_as_on_hugging_face(name):
    for typed in (f"org/{name.title()}-Instruct", f"org/{name.upper()}", f"{name}-it", f"org/{name}-Chat-AWQ"):
        assert catalog.model(typed).name == name


def test_every_shipped_name_is_its_own_and_no_two_are_one():
    shipped = list(catalog.model_files())
    names = catalog.model_aliases()
    plain = [model_names.plain(name) for name, _ in names]
    assert len(set(plain)) == len(plain) == len(shipped) + 128
    for name in shipped:
        for written in (name, name.upper(), f"org/{name}", name.replace(".", "-"), f"{name}-Instruct-FP8"):
            assert catalog.model(written).name == name, written


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "llama3-1-70b"),
        ("Llama3_1 70b", "llama3-1-70b"),
        ("Qwen3-235B-A22B-Instruct-2507", "qwen3-235ba22b"),
        ("Mixtral-8x7B-v0.1", "mixtral8x7bv0-1"),
        ("instruct", "instruct"),
        ("meta", "meta"),
        ("", ""),
    ],
)
def test_plain_names(name, plain):
    assert model_names.plain(name) == plain


def test_a_file_of_that_name_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    text = catalog.model_files()["opt-125m"].read_text()
    (tmp_path / "org" / "Qwen3-32B.toml").write_text(text)
    assert catalog.model("org/Qwen3-32B.toml").name == "opt-125m"
    assert catalog.model("org/Qwen3-32B").name == "qwen3-32b"
    with pytest.raises(InputError, match="cannot be read"):
        catalog.model("org/qwen3-8b.toml")
    (tmp_path / "Qwen").mkdir()
    assert catalog.model("Qwen/Qwen3-8B").name == "qwen3-8b"  # a folder is no model


def test_lists_and_shows_understand_the_same_names():
    shown = {row["name"]: row["value"] for row in listing.show("nvidia/DeepSeek-V3.2-NVFP4")}
    assert shown["kv_bytes_per_token"] == 78_324
    assert shown["kv_layers.0"] == "61 layers: one latent of 576 for all heads (MLA), and an index of 1,056 bits"
    assert listing.shipped_text("openai/gpt-oss-20b").startswith("# GPT-OSS 20B")
    assert "model gpt-oss-20b: no problem found" in listing.check("openai/gpt-oss-20b")
    rows = {row["name"]: row for row in listing.list_models()}
    assert len(rows) == len(catalog.model_files())
    assert rows["gpt-oss-120b"]["window_tokens"] == 128
    assert rows["gpt-oss-120b"]["title"] == "GPT-OSS 120B (window in 18 layers)"
    assert rows["deepseek-v3"]["title"] == "DeepSeek V3, V3.1, R1 (latent attention)"
    assert rows["glm-5"]["kv_bytes_per_token_fp16"] == 100_152


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Qwen/Qwen3.8-Flash-Next", "its architecture is not read; nearest by shape is qwen3-next-80b-a3b"),
        ("Step-5", "its architecture is not read; nearest by shape is step-3.7-flash"),
        ("Hy4", "its architecture is not read; nearest by shape is hy3"),
        ("XiaomiMiMo/MiMo-V2.5-Pro", "no file of it ships: give its config.json; nearest by shape is mimo-v2-flash"),
        ("Ling-2.6-flash", "no file of it ships: give its config.json; nearest by shape is ling-3.0-flash"),
        ("nvidia/MiniMax-M3.1-NVFP4", "nearest by shape is minimax-m3"),
        ("LFM2", "did you mean lfm2-"),
        ("deepseek-ai/DeepSeek-V4.1-Flash", "nearest by shape is deepseek-v4-flash"),
        ("LFM 3", "did you mean lfm3-1.7b"),
        ("lfm-3", "did you mean lfm3-1.7b"),
        ("Granite 4.1", "did you mean granite-4.1-3b, granite-4.1-8b, granite-4.1-30b?"),
    ],
)
def test_a_name_without_a_shape_says_the_nearest(name, says):
    with pytest.raises(InputError, match=re.escape(says)):
        catalog.model(name)
