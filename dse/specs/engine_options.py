"""Options of engines that no command here takes: whose they are, and why each changes nothing."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import hwspecs
from dse.core import specfile
from dse.core.errors import did_you_mean

#: options of one letter that commands take, and other options of engines begin with; of these, what commands take too
_LETTERS, _TAKEN = ("c", "m"), ("-ctk", "-ctv")
#: options of engines without a value -> the option and value that they stand for
STAND_FOR = {
    "--cpu-moe": ("--n-cpu-moe", "all"),
    "-cmoe": ("--n-cpu-moe", "all"),
    "--swa-full": ("--swa-full-tokens-ratio", "1"),
    "--disable-hybrid-swa-memory": ("--swa-full-tokens-ratio", "1"),
    "--enable-prefix-caching": ("--prefix-cache", "on"),
    **dict.fromkeys(
        ("--no-prefix-cache", "--no-enable-prefix-caching", "--disable-radix-cache", "--no-cache-prompt"),
        ("--prefix-cache", "off"),
    ),
}


def spelled_out(words: Iterable[str]) -> list[str]:
    """A command's words, options of engines that stand for a value written out."""
    return [word for typed in words for word in STAND_FOR.get(typed.replace("_", "-"), (typed,))]


def is_cut(word: str) -> bool:
    """True for an option such as -cram, which a parser takes for -c with a value."""
    return word[:1] == "-" and word[1:2] in _LETTERS and len(word) > 2 and word not in _TAKEN and bool(answer(word))


@cache
def _options() -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """The answers of hwspecs/options.toml; the group of each option, by engine with its release."""
    engines = specfile.read(Path(hwspecs.__file__).parent / "options.toml").data
    answers = engines.pop("answers")
    words = {engine: {group: entry.get(group, "") for group in answers["reasons"]} for engine, entry in engines.items()}
    of = {
        engine: {name: at for at, names in groups.items() for name in names.split()} for engine, groups in words.items()
    }
    return answers, of


def answer(option: str) -> str:
    """The line for an option of an engine, with its dashes; "" for one that no engine has."""
    answers, known = _options()
    name = answers["spellings"].get(option, option)
    if instead := answers["instead"].get(name):
        return f"is an engine's: {instead}"
    for spelled in (name, name.replace("--no-", "--", 1)):
        for engine, groups in known.items():
            if spelled in groups:
                return f"of {engine} {answers['reasons'][groups[spelled]]}"
    return ""


def names(engine: str) -> set[str]:
    """Options of an engine (vLLM), with their dashes, but for those that commands take by the same name."""
    return {name for title, groups in _options()[1].items() if title.startswith(engine) for name in groups}


def near(option: str, engine: str, others: Iterable[str]) -> str:
    """'did you mean --max-num-seqs?' for an option that an engine (vLLM) has not, by its own and `others`; "" for one
    that some engine has, and where none is near."""
    known = [name for name in (*names(engine), *others) if name.startswith("--")]
    said = did_you_mean(option, known, 1) if option.startswith("--") and not answer(option) else ""
    return said if said.startswith("did") else ""
