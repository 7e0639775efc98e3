"""Names of models as people and servers write them, `meta-llama/Llama-3.1-70B-Instruct`, and the shipped one meant.

All of a name must agree but for what leaves the shape as it is: the organisation before a slash, capitals, dots, dashes
and underscores, the words of IGNORED, and those that say how weights are stored (dse/specs/weight_names.py). Nothing is
guessed: a name that is short of a size is unknown; what is taken on top of the words is passed on to be said: words of
tuners before or behind, experts that go with a size, the newest of a series.
"""

import re
from functools import cache

from dse.core.errors import is_one_slip, show
from dse.specs.device_names import Names
from dse.specs.weight_names import is_format, without_types

#: what a model was tuned for, and when it came out (0528, 2507, 20250528)
IGNORED = (
    r"meta|instruct|chat|base|it|hf|thinking|rl|sft|preview|exp|terminus|speciale|turbo|[0-9]+k|1m"
    r"|(?:0[1-9]|1[0-2])[0-3][0-9]|2[3-9](?:0[1-9]|1[0-2])|20[0-9]{6}"
)
#: names whose weights were released in another format than those of the model that they mean -> format
RELEASED_IN = {"kimi-k2-thinking": "int4-experts"}


#: a series and a size -> the newest model of it
NEWEST = {
    "llama 8b": "llama3.1-8b",
    "llama 70b": "llama3.1-70b",
    "llama 405b": "llama3.1-405b",
    "qwen 32b": "qwen3-32b",
    "qwen 72b": "qwen2.5-72b",
    "qwen 235b": "qwen3-235b-a22b",
    "mistral 24b": "mistral-small-3.1-24b",
    "gemma 12b": "gemma-3-12b",
    "gemma 27b": "gemma-3-27b",
}
#: series without a shipped file -> the shipped model nearest in layers and experts
UNSHIPPED = {
    "lfm2-24b": "lfm2-8b-a1b",
    "lfm2.5-8b": "lfm2-8b-a1b",
    "lfm2.5-2.6b": "lfm2-2.6b",
    "ling-2.6": "ling-3.0-flash",
    "mimo-v2.5": "mimo-v2-flash",
    "mimo-v2.6": "mimo-v2-flash",
    "minimax-m3.1": "minimax-m3",
}
#: series of an architecture that is not read from a config.json either -> likewise
UNREAD = {
    "deepseek-v4.1": "deepseek-v4-flash",
    "hy4": "hy3",
    "qwen3.8-flash-next": "qwen3-next-80b-a3b",
    "step-5": "step-3.7-flash",
}
#: words at the end that name another shape, or what is no language model
CHANGES = (
    r"vl|vision|omni|audio|asr|tts|image|ocr|embed(?:ding)?|rerank(?:er)?|reward|rm|prm|guard|safeguard|eagle[0-9]*|draft"
    r"|medusa|lite|mini|nano|small|medium|large|flash|plus|max|pro|next|coder|math|moe|air|super|ultra|distill|pruned|edge"
)
#: words at the end that may be unknown
MAX_UNKNOWN = 3


def _words(name: str) -> list[str]:
    """The words of a name that say the shape, and unknown ones."""
    words = [word for word in re.split(r"[\s._:-]+", without_types(name.strip().rpartition("/")[2].lower())) if word]
    words = [word for word in words if re.search("[a-z0-9]", word)]
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


def meant(name: str, names: Names) -> str | None:
    """The one of the shipped models that a name means, or None."""
    return _by_plain_name(names).get(plain(name))


def meant_but_for(name: str, names: Names) -> tuple[str, str] | None:
    """The shipped model that a name means but for what can be said beside it, and this in words; or None.

    Words at the end, or one before, that are not known have letters alone and name no other shape; experts may be left
    out behind a size where one model alone has it; a series and a size mean the newest. No name is one mistyped.
    """
    known, words = _by_plain_name(names), _words(name)
    if newest := next((model for short, model in NEWEST.items() if plain(short) == _joined(words)), ""):
        return newest, "no version given: the newest of that size"
    if re.fullmatch(r"[0-9.]+b", words[-1] if words else ""):
        longer = {
            model for word, model in known.items() if re.fullmatch(rf"{re.escape(_joined(words))}-?a[0-9]+b", word)
        }
        if len(longer) == 1:
            return longer.pop(), "the one model of that size"
    if any(is_one_slip(_joined(words), word) for word in known):
        return None
    is_tuner = len(words) > 2 and re.fullmatch(r"[a-z]{3,}", words[0]) and not re.fullmatch(CHANGES, words[0])
    if is_tuner and (model := known.get(_joined(words[1:]))):
        return model, f"{show(words[0])} not known"
    for n_unknown in range(1, min(MAX_UNKNOWN, len(words) - 1) + 1):
        last = words[-n_unknown]
        if not re.fullmatch(r"[a-z]{2,}", last) or re.fullmatch(CHANGES, last):
            return None
        if model := known.get(_joined(words[:-n_unknown])):
            return model, ", ".join(show(word) for word in words[-n_unknown:]) + " not known"
    return None


def without_file(name: str) -> str:
    """Say why a series that is known has no file, and the shipped model nearest by shape; "" for other names."""
    words = plain(name)
    for series, nearest in (UNSHIPPED | UNREAD).items():
        if re.match(rf"{plain(series)}(?![0-9])", words):
            if series in UNREAD:
                return f"its architecture is not read; nearest by shape is {nearest}"
            return f"no file of it ships: give its config.json; nearest by shape is {nearest}"
    return ""


@cache
def _by_plain_name(names: Names) -> dict[str, str]:
    return {plain(name): model for name, model in names}
