"""Names of models as people and servers write them, `meta-llama/Llama-3.1-70B-Instruct`, and the shipped one meant.

All of a name must agree but for what leaves the shape as it is: the organisation before a slash, capitals, dots, dashes
and underscores, the words of IGNORED, and those that say how weights are stored (dse/specs/weight_names.py). Nothing is
guessed: a name that is short of a size is unknown; words at the end that nobody knows are passed on to be said.
"""

import re
from functools import cache

from dse.core.errors import is_one_slip
from dse.specs.device_names import Names
from dse.specs.weight_names import is_format, without_types

#: what a model was tuned for, and when it came out (0528, 2507, 20250528)
IGNORED = (
    r"meta|instruct|chat|base|it|hf|thinking|rl|sft|preview|exp|terminus|speciale|turbo"
    r"|(?:0[1-9]|1[0-2])[0-3][0-9]|2[3-9](?:0[1-9]|1[0-2])|20[0-9]{6}"
)
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


def meant(name: str, names: Names) -> str | None:
    """The one of the shipped models that a name means, or None."""
    return _by_plain_name(names).get(plain(name))


def meant_but_for(name: str, names: Names) -> tuple[str, list[str]] | None:
    """The shipped model that a name means but for words at its end that are not known, and these words; or None.

    Such a word has letters alone, names no other shape, and the name is no mistyped one.
    """
    known, words = _by_plain_name(names), _words(name)
    if any(is_one_slip(_joined(words), word) for word in known):
        return None
    for n_unknown in range(1, min(MAX_UNKNOWN, len(words) - 1) + 1):
        last = words[-n_unknown]
        if not re.fullmatch(r"[a-z]{2,}", last) or re.fullmatch(CHANGES, last):
            return None
        if model := known.get(_joined(words[:-n_unknown])):
            return model, words[-n_unknown:]
    return None


@cache
def _by_plain_name(names: Names) -> dict[str, str]:
    return {plain(name): model for name, model in names}
