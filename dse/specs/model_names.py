"""Names of models as people and servers write them, `meta-llama/Llama-3.1-70B-Instruct`, and the shipped one meant.

All of a name must agree but for what leaves the shape as it is: the organisation before a slash, capitals, dots, dashes
and underscores, and the words of IGNORED. Nothing is guessed: a name that is short of a size or has one word more is
unknown.
"""

import re
from functools import cache

#: words that change neither layers nor widths: how weights are stored, what a model was tuned for, when it came out
IGNORED = re.compile(
    r"meta|instruct|chat|base|it|hf|thinking|preview|exp|terminus|speciale|turbo"
    r"|fp4|fp8|fp16|bf16|nvfp4|mxfp4|int4|int8|w4a16|w4a8|w8a8|w8a16|4bit|8bit|awq|gptq|gguf|quantized"
    r"|dynamic|static|block|pertensor|kv"
    r"|(?:0[1-9]|1[0-2])[0-3][0-9]|2[3-9](?:0[1-9]|1[0-2])|20[0-9]{6}"  # dates: 0528, 2507, 20250528
)
#: other names of shipped models: the same shape under another name
ALSO = {
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
    "glm-5.1": "glm-5",
    "minimax-m2": "minimax-m2.5",
    "minimax-m2.1": "minimax-m2.5",
    "minimax-m2.7": "minimax-m2.5",
}


def plain(name: str) -> str:
    """What of a name says the shape, written in one way; numbers stay apart: Llama-3.1-70B-Instruct -> llama3-1-70b."""
    words = [word for word in re.split(r"[\s._-]+", name.strip().rpartition("/")[2].lower()) if word]
    kept = [word for place, word in enumerate(words) if place == 0 or not IGNORED.fullmatch(word)]
    if len(kept) > 1 and kept[0] == "meta":
        del kept[0]
    return re.sub(r"(?<![0-9])-|-(?![0-9])", "", "-".join(kept))


def meant(name: str, shipped: tuple[str, ...]) -> str | None:
    """The one of the shipped models that a name means, or None."""
    return _by_plain_name(shipped).get(plain(name))


@cache
def _by_plain_name(shipped: tuple[str, ...]) -> dict[str, str]:
    return {plain(also): to for also, to in ALSO.items() if to in shipped} | {plain(name): name for name in shipped}
