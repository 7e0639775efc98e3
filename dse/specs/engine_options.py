"""Options of engines that no command here takes: whose they are, and why each changes nothing."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import hwspecs
from dse.core import specfile

#: options of one letter that commands take, and other options of engines begin with; of these, what commands take too
_LETTERS, _TAKEN = ("c", "m"), ("-ctk", "-ctv")
#: options of engines without a value -> the option and value that they stand for
_STAND_FOR = {
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
    return [word for typed in words for word in _STAND_FOR.get(typed.replace("_", "-"), (typed,))]


def is_cut(word: str) -> bool:
    """True for an option such as -cram, which a parser takes for -c with a value."""
    return word[:1] == "-" and word[1:2] in _LETTERS and len(word) > 2 and word not in _TAKEN and bool(answer(word))


@cache
def _options() -> tuple[dict[str, Any], dict[str, tuple[str, str]]]:
    """The answers of hwspecs/options.toml; engine and group by option, of the first engine that has it."""
    engines = specfile.read(Path(hwspecs.__file__).parent / "options.toml").data
    answers = engines.pop("answers")
    known: dict[str, tuple[str, str]] = {}
    for engine, groups in engines.items():
        for group, names in groups.items():
            if group in answers["reasons"]:
                known |= {name: (engine, group) for name in names.split() if name not in known}
    return answers, known


def answer(option: str) -> str:
    """The line for an option of an engine, with its dashes; "" for one that no engine has."""
    answers, known = _options()
    name = answers["spellings"].get(option, option)
    if instead := answers["instead"].get(name):
        return f"is an engine's: {instead}"
    engine, group = known.get(name) or known.get(name.replace("--no-", "--", 1), ("", ""))
    return f"of {engine} {answers['reasons'][group]}" if engine else ""
