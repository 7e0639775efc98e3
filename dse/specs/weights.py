"""Formats of weights as servers and checkpoints name them: bits in memory, and how products with them run."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hwspecs
from dse.core import specfile
from dse.core.errors import InputError, did_you_mean, show

#: eighths of a bit: what a parameter takes with its scales is a whole number of them
EIGHTHS = 8
#: of a parameter in 16 bits
WIDE_BITS, WIDE_EIGHTHS = 16, 128
#: format of weights of a model whose files say nothing else
WIDE = "bf16"
#: the format of `--weights` that takes what the publisher released
RELEASED = "released"
#: what a format leaves in 16 bits: nothing; embeddings and output head; these and attention
NOTHING, OUTSIDE, ATTENTION = "nothing", "outside", "attention"
#: the same in words
KEEPS = {NOTHING: "-", OUTSIDE: "embeddings, output head", ATTENTION: "embeddings, output head, attention"}


@dataclass(frozen=True)
class WeightFormat:
    """Storage of the weights of a checkpoint: those outside the routed experts, and those of the experts.

    `*_eighths`: bits of a parameter times 8, scales included. `*_code`: which measured products run with them
    (`dse.specs.stack.WeightCode`), "" where none does. `keeps`: what is left in 16 bits.
    """

    name: str
    title: str
    dense_eighths: int
    expert_eighths: int
    dense_code: str
    expert_code: str
    keeps: str = NOTHING
    #: rows of experts are padded
    pads: bool = False

    @property
    def is_file(self) -> bool:
        """True for what llama.cpp's files are stored in, and no other engine's."""
        return self.dense_code.startswith("gguf")


def _uniform(name: str, title: str, eighths: int, code: str) -> WeightFormat:
    """All of the weights in one format."""
    return WeightFormat(
        name, title=title, dense_eighths=eighths, expert_eighths=eighths, dense_code=code, expert_code=code
    )


def _gguf(tables: dict[str, Any]) -> list[WeightFormat]:
    """The types of llama.cpp's files, whose tables are packed as well, of its fork and of hubs."""
    plain, hubs = tables["gguf"], tables["hubs"]
    types = [(name, eighths, name, "") for name, eighths in plain.items()]
    types += [(name, eighths, name, ", of ik_llama.cpp") for name, eighths in tables["ik"].items()]
    own_mix = ", a hub's own mix: counted as {}"
    types += [(name, plain[near], near, own_mix.format(near.upper())) for name, near in hubs.items()]
    formats = []
    for name, eighths, near, more in types:
        code = "gguf_grid" if re.fullmatch(_GRIDS, name) else "gguf"
        form = _uniform(name, f"GGUF {name.upper()}{more}", eighths, code)
        formats.append(replace(form, expert_eighths=tables["gguf_experts"].get(near, eighths)))
    return formats


def _formats(tables: dict[str, Any]) -> dict[str, WeightFormat]:
    formats = [
        WeightFormat(
            name,
            title=entry["title"],
            dense_eighths=entry["eighths"],
            expert_eighths=entry.get("expert_eighths", entry["eighths"]),
            dense_code=entry.get("code", ""),
            expert_code=entry.get("expert_code", entry.get("code", "")),
            keeps=entry.get("keeps", OUTSIDE),
            pads=entry.get("pads", False),
        )
        for name, entry in tables["formats"].items()
    ]
    formats += _gguf(tables)
    return {entry.name: entry for entry in formats}


#: GGUF types whose weights are looked up in a grid, several at once
_GRIDS = r"iq[123]_(?:xxs|xs|s|m)"
_TABLES = specfile.read(Path(hwspecs.__file__).parent / "weights.toml").data
FORMATS = _formats(_TABLES)
#: a word of a name -> formats that it may mean, the likeliest first; words of one name must agree on one
WORDS: dict[str, list[str]] = _TABLES["words"]


def gguf_type(text: str) -> str:
    """A type of llama.cpp's files as the table spells it: without Unsloth's UD- before it and rows packed together
    behind it (_R4); a type that stands for a mix (Q4_K) by that mix; a name that is no type as it is."""
    plain = re.sub(r"^ud[-_]|_r[48]$|(?<=q4_0)_[48]_[48]$", "", text.strip().lower().replace("-k-", "_k_"))
    plain = plain if plain in FORMATS else plain.replace("-", "_")
    return f"{plain}_m" if plain not in FORMATS and f"{plain}_m" in FORMATS else plain


def _key(text: str) -> str:
    """A name as the table spells it: types of GGUF keep their underscores."""
    plain = text.strip().lower()
    known = (name for name in (plain, gguf_type(plain)) if name in FORMATS)
    return next(known, plain.replace("_", "-"))


def is_format(text: str) -> bool:
    """True for the name of a format, False for a word that may mean one of several."""
    return _key(text) in FORMATS


def parse(text: str) -> WeightFormat:
    """The format of that name, or the likeliest of a word in names of checkpoints. Raises InputError."""
    if chosen := FORMATS.get(_key(text)):
        return chosen
    for pattern, formats in WORDS.items():
        if re.fullmatch(pattern, text.strip().lower()):
            return FORMATS[formats[0]]
    if text.lower().endswith(".json"):
        raise InputError(f"weights = {show(text)}: is a file: --model takes it, with the config.json beside it")
    raise InputError(f"weights = {show(text)}: is not known: {did_you_mean(text, FORMATS)}")


def weight_format(weights: str | None, weights_bits: int, activation_bits: int) -> WeightFormat:
    """The format that a workload asks for: by name, else by the bits of weights and activations."""
    if weights not in (None, RELEASED):
        return parse(weights)
    if activation_bits == 8:  # of 8-bit activations only FP8 with FP8 weights was measured
        code = "fp8" if weights_bits == 8 else ""
    else:
        code = {16: "bf16", 8: "int8", 4: "int4"}[weights_bits]
    name, title = f"{weights_bits} bits", f"{weights_bits} bits, scales not counted"
    return _uniform(name, title, 8 * weights_bits, code)
