"""Formats of weights in the names of checkpoints: Qwen3-32B-FP8, Llama-3.1-8B-Instruct-quantized.w4a16, ...:Q4_K_M."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.core.errors import InputError, show
from dse.specs.weights import FORMATS, WORDS, gguf_type

if TYPE_CHECKING:
    from dse.specs.device_and_model import ModelSpec

#: words beside a format: how it was made; scales of a tensor or channel
BESIDE, SCALED = r"unsloth|quantized|gguf|kv|hf|mlx|dwq|[2356]bit", r"dynamic|static|pertensor|kv"
#: types of llama.cpp's files: Q4_K_M, q8_0, IQ4_XS, and of ik_llama.cpp's: IQ4_KS_R4
_GGUF = re.compile(
    r"(?<![a-z0-9])(?:ud[-_])?([it]?q[1-8][-_](?:k[-_](?:xl|[sml])|ks{0,2}|k[lt]|[01](?:[-_][48][-_][48])?|nl|xxs|xs|bn|"
    r"[sm])(?:[-_]r[48])?)(?![a-z0-9])"
)
#: publishers whose FP8 has scales of tensors or channels
_TENSOR_SCALES = ("nvidia", "amd", "redhatai", "neuralmagic", "meta-llama", "ibm-granite", "mistralai")
#: publishers whose AWQ has groups of 32 (quantization_config of cyankiwi's Qwen3.5 and 3.6)
_GROUPS_OF_32 = ("cyankiwi", "cpatonn")
#: where a mixture's name says a format of layers, checkpoints of 2026 have experts alone in it
_OF_MIXTURES = {"nvfp4": "nvfp4-experts", "mxfp4": "mxfp4-experts"}


@dataclass(frozen=True)
class NamedFormat:
    """A format as a name says it; "" where it says none."""

    name: str
    #: of the words that say it
    words: str = ""
    #: FP8 with scales of tensors or channels
    has_tensor_scales: bool = False
    #: a GGUF file without its type
    is_open: bool = False


def without_types(name: str) -> str:
    """A name without types of GGUF files, which are several words."""
    return _GGUF.sub(" ", name)


def is_format(word: str) -> bool:
    """True for a word that says how weights are stored, or how that was made."""
    return any(re.fullmatch(pattern, word) for pattern in WORDS) or bool(re.fullmatch(rf"{BESIDE}|{SCALED}", word))


def format_in(name: str) -> NamedFormat:
    """The format that a name says. Raises InputError for two formats, or a type of GGUF that is not known."""
    lower = name.strip().lower()
    owner, _, short = lower.rpartition("/")
    if types := [match.replace("-", "_") for match in _GGUF.findall(short)]:
        if len(set(types)) > 1:
            raise _two(name, types)
        kind = gguf_type(types[0])
        if kind not in FORMATS:
            known = ", ".join(code for code in FORMATS if re.match(r"[it]?q\d", code))
            raise InputError(f"model = {show(name)}: {kind} is no type that is known: use one of {known}")
        return NamedFormat(kind, types[0])
    words = [word for word in re.split(r"[\s._:-]+", short)[1:] if word]
    bits = next((word for word in words if re.fullmatch(r"[2-68]bit", word)), "")
    if bits and (owner.startswith("mlx") or "mlx" in words):
        return NamedFormat(f"mlx-{bits}", f"mlx-{bits}")
    said = [(word, formats) for word in words for pattern, formats in WORDS.items() if re.fullmatch(pattern, word)]
    if not said:
        return NamedFormat("", is_open="gguf" in words)
    agreed = [code for code in said[0][1] if all(code in formats for _, formats in said)]
    if not agreed:
        raise _two(name, [word for word, _ in said])
    if "awq" in words and agreed[0] == "int4" and owner in _GROUPS_OF_32:
        agreed = ["int4-of-32"]
    is_scaled = owner in _TENSOR_SCALES or any(re.fullmatch(SCALED, word) for word in words)
    return NamedFormat(agreed[0], " ".join(word for word, _ in said), has_tensor_scales=is_scaled)


def _two(name: str, words: list[str]) -> InputError:
    return InputError(
        f"model = {show(name)}: says two formats of weights, {' and '.join(dict.fromkeys(words))}: leave one out, or "
        "name the model alone with --weights"
    )


def usual_file(model: "ModelSpec") -> str:
    """The type that llama.cpp takes of a repository that is named without one (common/arg.cpp, -hf): Q4_K_M, or the
    only one there is, of models that were released in MXFP4."""
    return "mxfp4_moe" if model.released == "mxfp4-experts" else "q4_k_m"


def of_model(said: NamedFormat, model: "ModelSpec") -> str:
    """The format of `FORMATS` that a name means of this model: as its publishers store it."""
    code = said.name
    if code == "fp8" and said.has_tensor_scales:
        return "fp8-tensor" if model.n_experts > 1 else "fp8"
    for word in (*said.words.split(), code):
        if word in model.checkpoints:
            return model.checkpoints[word]
    if model.released in (f"{code}-block", f"{code}-experts"):
        return model.released
    return _OF_MIXTURES.get(code, code) if model.n_experts > 1 else code
