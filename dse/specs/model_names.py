"""Names of models as people and servers write them, `meta-llama/Llama-3.1-70B-Instruct`, and the shipped one meant.

All of a name must agree but for what leaves the shape as it is: the organisation before a slash, capitals, dots, dashes
and underscores, and the words of STORED and IGNORED. Nothing is guessed: a name that is short of a size or has one word
more is unknown.
"""

import re
from functools import cache

#: words that change neither layers nor widths: how weights are stored (`v2` after one is a second such version)
STORED = (
    r"(?:nv|mx)?fp[468](?:a16)?|bf16|fp16|fp32|int[48]|w[48]a(?:8|16)|[48]bit|awq|gptq|gguf|bnb|unsloth|quantized"
    r"|dynamic|static|block|pertensor|kv"
)
#: what a model was tuned for, and when it came out (0528, 2507, 20250528)
IGNORED = (
    r"meta|instruct|chat|base|it|hf|thinking|preview|exp|terminus|speciale|turbo"
    r"|(?:0[1-9]|1[0-2])[0-3][0-9]|2[3-9](?:0[1-9]|1[0-2])|20[0-9]{6}"
)
#: other names of shipped models of the same shape; LLaMA 1 was trained on 2,048 positions, Llama 2 on 4,096
ALSO = {
    "llama-7b": "llama2-7b",
    "llama-13b": "llama2-13b",
    "llama-33b": "llama-30b",
    "vicuna-7b": "llama2-7b",
    "vicuna-7b-v1.3": "llama2-7b",
    "vicuna-7b-v1.5": "llama2-7b",
    "vicuna-13b": "llama2-13b",
    "vicuna-13b-v1.3": "llama2-13b",
    "vicuna-13b-v1.5": "llama2-13b",
    "mistral-7b-v0.1": "mistral-7b",
    "llama-3-70b": "llama3.1-70b",
    "llama-3.3-70b": "llama3.1-70b",
    "llama-3.1-nemotron-70b": "llama3.1-70b",
    "deepseek-r1-distill-llama-70b": "llama3.1-70b",
    "deepseek-r1-distill-llama-8b": "llama3.1-8b",
    "mixtral-8x22b-v0.1": "mixtral-8x22b",
    "llama-4-scout-17b-16e": "llama4-scout",
    "llama-4-maverick-17b-128e": "llama4-maverick",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "kimi-k2.6": "kimi-k2.5",
    "kimi-k2.7-code": "kimi-k2.5",
    "glm-5.1": "glm-5",
    "glm-5.3": "glm-5.2",
    "nvidia-nemotron-3-nano-30b-a3b": "nemotron-3-nano-30b-a3b",
    "nvidia-nemotron-3-super-120b-a12b": "nemotron-3-super-120b-a12b",
    "nvidia-nemotron-3-ultra-550b-a55b": "nemotron-3-ultra-550b-a55b",
    "nvidia-nemotron-3.5-lightning-30b-a3b": "nemotron-3-nano-30b-a3b",
    "nemotron-h-56b-base-8k": "nemotron-h-56b",
    "llama-3-3-nemotron-super-49b-v1": "llama-3.3-nemotron-super-49b",
    "minimax-m2": "minimax-m2.5",
    "minimax-m2.1": "minimax-m2.5",
    "minimax-m2.7": "minimax-m2.5",
    "mistral-nemo": "mistral-nemo-12b",
    "mistral-small-3-24b": "mistral-small-24b",
    "mistral-small-3.1-24b": "mistral-small-24b",
    "mistral-small-3.2-24b": "mistral-small-24b",
    "mistral-large-123b": "mistral-large-2411",
    "mistral-large-2": "mistral-large-2411",
    "qwq-32b": "qwen2.5-32b",
    "qwen2.5-coder-1.5b": "qwen2.5-1.5b",
    "qwen2.5-coder-3b": "qwen2.5-3b",
    "qwen2.5-coder-7b": "qwen2.5-7b",
    "qwen2.5-coder-14b": "qwen2.5-14b",
    "qwen2.5-coder-32b": "qwen2.5-32b",
    "qwen2.5-math-7b": "qwen2.5-7b",
    "qwen2.5-math-72b": "qwen2.5-72b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "deepseek-r1-0528-qwen3-8b": "qwen3-8b",
    "deepseek-v2.5": "deepseek-v2",
    "deepseek-coder-v2": "deepseek-v2",
    "deepseek-coder-v2-lite": "deepseek-v2-lite",
    "glm-4.6": "glm-4.7",
    "phi-4-reasoning": "phi-4",
    "phi-4-reasoning-plus": "phi-4",
    "phi-4-mini-reasoning": "phi-4-mini",
    "granite-3.2-8b": "granite-3.1-8b",
    "granite-3.2-2b": "granite-3.1-2b",
    "c4ai-command-r-v01": "command-r",
    "c4ai-command-r7b-12-2024": "command-r7b",
    "command-r7b-12-2024": "command-r7b",
    "c4ai-command-r-plus": "command-r-plus",
    "c4ai-command-r-plus-08-2024": "command-r-plus",
    "command-r-plus-08-2024": "command-r-plus",
    "intellect-3": "glm-4.5-air",
}


def plain(name: str) -> str:
    """The words of a name that say the shape, spelled one way: Llama-3.1-70B-Instruct -> llama3-1-70b."""
    words = [word for word in re.split(r"[\s._-]+", name.strip().rpartition("/")[2].lower()) if word]
    kept = [
        word
        for place, word in enumerate(words)
        if place == 0
        or not (
            re.fullmatch(IGNORED, word)
            or re.fullmatch(STORED, word)
            or (re.fullmatch("v[2-9]", word) and re.fullmatch(STORED, words[place - 1]))
        )
    ]
    if len(kept) > 1 and kept[0] == "meta":
        del kept[0]
    return re.sub(r"(?<![0-9])-|-(?![0-9])", "", "-".join(kept))


def meant(name: str, shipped: tuple[str, ...]) -> str | None:
    """The one of the shipped models that a name means, or None."""
    return _by_plain_name(shipped).get(plain(name))


@cache
def _by_plain_name(shipped: tuple[str, ...]) -> dict[str, str]:
    return {plain(also): to for also, to in ALSO.items() if to in shipped} | {plain(name): name for name in shipped}
