"""Names of models as people and servers write them, `meta-llama/Llama-3.1-70B-Instruct`, and the shipped one meant.

All of a name must agree but for what leaves the shape as it is: the organisation before a slash, capitals, dots, dashes
and underscores, the words of IGNORED, and those that say how weights are stored (dse/specs/weight_names.py). Nothing is
guessed: a name that is short of a size is unknown; words at the end that nobody knows are passed on to be said.
"""

import re
from functools import cache

from dse.core.errors import is_one_slip
from dse.specs.weight_names import is_format, without_types

#: what a model was tuned for, and when it came out (0528, 2507, 20250528)
IGNORED = (
    r"meta|instruct|chat|base|it|hf|thinking|rl|sft|preview|exp|terminus|speciale|turbo"
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
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
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
    "mistral-small-3.2-24b": "mistral-small-3.1-24b",
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
    "exaone-4-32b": "exaone-4.0-32b",
    "intellect-3": "glm-4.5-air",
}
#: names whose weights were released in another format than those of the model that they mean -> format
RELEASED_IN = {"kimi-k2-thinking": "int4-experts"}


#: words at the end that name another shape, or what is no language model
CHANGES = (
    r"vl|vision|omni|audio|asr|tts|image|ocr|embed(?:ding)?|rerank(?:er)?|reward|rm|prm|guard|safeguard|eagle|draft|mtp"
    r"|medusa|lite|mini|nano|small|medium|large|flash|plus|max|pro|next|coder|math|moe|air|super|ultra|distill|pruned|edge"
)
#: words at the end that may be unknown
MAX_UNKNOWN = 3


def _words(name: str) -> list[str]:
    """The words of a name that say the shape, and unknown ones."""
    words = [word for word in re.split(r"[\s._:-]+", without_types(name.strip().rpartition("/")[2].lower())) if word]
    kept = [
        word
        for place, word in enumerate(words)
        if place == 0
        or not (
            re.fullmatch(IGNORED, word)
            or is_format(word)
            or (re.fullmatch("v[2-9]", word) and is_format(words[place - 1]))
        )
    ]
    if len(kept) > 1 and kept[0] == "meta":
        del kept[0]
    return kept


def _joined(words: list[str]) -> str:
    return re.sub(r"(?<![0-9])-|-(?![0-9])", "", "-".join(words))


def plain(name: str) -> str:
    """The words of a name that say the shape, spelled one way: Llama-3.1-70B-Instruct -> llama3-1-70b."""
    return _joined(_words(name))


def meant(name: str, shipped: tuple[str, ...]) -> str | None:
    """The one of the shipped models that a name means, or None."""
    return _by_plain_name(shipped).get(plain(name))


def meant_but_for(name: str, shipped: tuple[str, ...]) -> tuple[str, list[str]] | None:
    """The shipped model that a name means but for words at its end that are not known, and these words; or None.

    Such a word has letters alone, names no other shape, and the name is no mistyped one.
    """
    known, words = _by_plain_name(shipped), _words(name)
    if any(is_one_slip(_joined(words), one) for one in known):
        return None
    for n_unknown in range(1, min(MAX_UNKNOWN, len(words) - 1) + 1):
        last = words[-n_unknown]
        if not re.fullmatch(r"[a-z]{2,}", last) or re.fullmatch(CHANGES, last):
            return None
        if found := known.get(_joined(words[:-n_unknown])):
            return found, words[-n_unknown:]
    return None


@cache
def _by_plain_name(shipped: tuple[str, ...]) -> dict[str, str]:
    return {plain(also): to for also, to in ALSO.items() if to in shipped} | {plain(name): name for name in shipped}
