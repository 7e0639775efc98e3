"""Read how weights are stored: quantization_config of a config.json, hf_quant_config.json of ModelOpt.

A file says one format, or one for each group of modules, and the modules that stay as they were. Each matrix of the
layers is looked up by its names, as engines do (vllm/model_executor/layers/quantization): exact names, parts of names
between dots, `*`, and regular expressions behind `re:` or in GPTQModel's `dynamic`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.core import specfile
from dse.core.errors import InputError, show
from dse.core.specfile import Document
from dse.specs.device_and_model import NOTHING_WIDE, Wide
from dse.specs.huggingface.parameters import Shape, ffn_matrices
from dse.specs.weights import FORMATS, WIDE, WIDE_BITS, WIDE_EIGHTHS

if TYPE_CHECKING:
    from dse.specs.huggingface.keys import Keys

#: the configuration of a model, and what ModelOpt says beside it of its weights
CONFIG, QUANTIZED = "config.json", "hf_quant_config.json"
#: modules outside the matrices of layers, which every format leaves at 16 bits
_OUTSIDE = re.compile(
    r"lm_head|^head$|embed|norm|vision|visual|audio|projector|mtp|router|eh_proj|(?:^|\.)gate(?:[*.$]|$)|shared_expert_gate"
    r"|e_score|conv1d|indexers_proj|patch_merge|vit|sound|rotary|mlp1|nextn|A_log|dt_bias"
)
#: keys that list the modules left as they are
_KEPT = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")
#: formats of experts alone by the format of all layers
_EXPERTS = {"nvfp4": "nvfp4-experts", "mxfp4": "mxfp4-experts", "int4-of-32": "int4-experts"}
#: what ModelOpt calls a format
_ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8-block",
    "FP8_BLOCK_SCALES": "fp8-block",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "MXFP4": "mxfp4",
    "MXFP8": "mxfp8",
    "W4A16_AWQ": "int4",
    "W4A8_AWQ": "int4",
    "W8A16": "w8a16",
    "INT8_SQ": "int8",
    "UNQUANTIZED": WIDE,
}
#: bits and group of integer weights -> the format
_INTEGERS = {(4, 128): "int4", (4, 64): "int4-of-64", (4, 32): "int4-of-32", (8, 128): "w8a16", (8, None): "w8a16"}
#: a matrix -> its other names, of engines that fuse several, and of other model types
_ALSO = {
    "q_proj": ("qkv_proj", "wq", "query_key_value", "W_pack"),
    "k_proj": ("qkv_proj", "wk", "query_key_value", "W_pack"),
    "v_proj": ("qkv_proj", "wv", "query_key_value", "W_pack"),
    "o_proj": ("wo", "dense", "out_proj"),
    "gate_proj": ("gate_up_proj", "w1", "w13"),
    "up_proj": ("gate_up_proj", "w3", "w13", "fc1", "dense_h_to_4h"),
    "down_proj": ("w2", "fc2", "dense_4h_to_h"),
    "in_proj_qkv": ("in_proj_qkvz",),
    "in_proj_z": ("in_proj_qkvz",),
    "in_proj_a": ("in_proj_ba",),
    "in_proj_b": ("in_proj_ba",),
    "indexer": ("indexer.wq_b", "indexer.wk", "indexer.weights_proj", "index_q_proj", "index_k_proj"),
}
#: what stands before `layers.0` in names of checkpoints
_BEFORE = ("model.", "model.language_model.", "language_model.model.", "backbone.", "")
_LAYER = re.compile(r"(?:^|.*\.)layers\.(\d+)(?:\.|(?=\*)|$)")
#: of regular expressions in a file: more is taken to be none of a file for checkpoints
_MAX_LETTERS, _MAX_REPEATS, _MAX_PATTERNS = 300, 4, 64
_ATTENTION, _REST, _EXPERT, _HEAD = range(4)


@dataclass(frozen=True)
class _Matrix:
    """A matrix of a layer, or all of one kind of its experts."""

    layer: int
    kind: int
    parameters: int
    #: its names behind `layers.0.`, and of them those that are no other model type's, nor of several fused
    names: tuple[str, ...]
    own: tuple[str, ...]


class _Modules:
    """Modules of which a file says something: by names and patterns."""

    def __init__(self, patterns: list[str]) -> None:
        #: expression of a name behind `layers.0.` -> the layers meant, None: all
        self.templates: dict[str, set[int] | None] = {}
        #: expressions of whole names
        self.expressions: list[re.Pattern[str]] = []
        self.not_read: list[str] = []
        for pattern in patterns:
            if pattern.startswith("re:"):
                self._add_expression(pattern)
            else:
                self._add_name(pattern)

    def _add_expression(self, pattern: str) -> None:
        text = re.sub(r"^(?:\.\*)+|(?:\.\*)+$", "", pattern[3:])
        anchored = text == pattern[3:] or not pattern[3:].startswith(".*")
        is_cheap = len(text) <= _MAX_LETTERS and len(re.findall(r"[*+{]", text)) <= _MAX_REPEATS
        if not is_cheap or re.search(r"\)[*+{]", text) or len(self.expressions) >= _MAX_PATTERNS:
            self.not_read.append(pattern)
            return
        try:
            self.expressions.append(re.compile(("^" if anchored else "") + f"(?:{text})"))
        except (re.error, OverflowError, RecursionError):
            self.not_read.append(pattern)

    def _add_name(self, pattern: str) -> None:
        name = re.sub(r"experts\.\d+", "experts.0", pattern.strip().removesuffix(".weight").rstrip("."))
        layer = _LAYER.match(name)
        if _OUTSIDE.search(name[: layer.start(1)] if layer else ""):  # layers of a tower, or of drafts
            return
        rest = name[layer.end() :] if layer else re.sub(r"^(?:.*layers\.\*+\.?|[*.]+)", "", name)
        expression = re.sub(r"(?:\\\*)+", ".*", re.escape(rest))
        if expression.count(".*") > _MAX_REPEATS or not name.strip("*.") or len(name) > _MAX_LETTERS:
            self.not_read.append(pattern)
        elif layer is None:
            self.templates[expression] = None
        elif (layers := self.templates.setdefault(expression, set())) is not None:
            layers.add(int(layer[1]))

    @cached_property
    def _compiled(self) -> list[tuple[re.Pattern[str], set[int] | None]]:
        return [(re.compile(rf"(?:^|\.)(?:{text})(?:\.|$)" if text else ""), at) for text, at in self.templates.items()]

    def match(self, matrix: _Matrix) -> bool:
        """True where one of the patterns means the matrix."""
        for expression, layers in self._compiled:
            if layers is not None and matrix.layer not in layers:
                continue
            if any(expression.search(name) for name in matrix.names):
                return True
        at = "" if matrix.kind == _HEAD else f"layers.{matrix.layer}."
        return any(
            expression.search(f"{before}{at}{name}")
            for expression in self.expressions
            for name in matrix.names
            if name in matrix.own or name.rpartition(".")[2] in expression.pattern  # in_proj_b begins in_proj_ba
            for before in _BEFORE
        )

    def unknown(self, matrices: list[_Matrix]) -> list[str]:
        """Patterns that mean no matrix of the model and nothing beside its layers."""
        names = {name for matrix in matrices for name in matrix.names}
        lost = [
            text
            for text, (expression, _) in zip(self.templates, self._compiled, strict=True)
            if not _OUTSIDE.search(text.replace("\\", "")) and not any(map(expression.search, names))
        ]
        return [text.replace("\\", "").replace(".*", "*") for text in lost] + self.not_read


def of_config(keys: "Keys", shape: Shape) -> dict[str, Any]:
    """The fields of a model that say how its weights were released; notes say what is not understood."""
    for place in (keys.data, keys.document.data):
        if (quantized := place.get("quantization_config")) is None:
            continue
        inner = flat(quantized) if isinstance(quantized, Mapping) else {}
        matrices = list(_matrices(shape, are_blocks=keys.get("model_type") == "nemotron_h"))
        name, wide, unknown = _stored(inner, place.get("expert_dtype") or inner.get("expert_dtype"), matrices)
        if not name:
            keys.note("quantization_config ignored: weights count 16 bits unless --weights says otherwise")
            return {}
        for module in unknown[:3]:
            keys.note(f"quantization_config: {show(module)} is no module that is known: counted with the layers")
        if kv := inner.get("kv_cache_quant_algo"):
            keys.note(f"kv_cache_quant_algo = {show(kv)}: servers store keys and values so: --quantizer says it here")
        of_modelopt = isinstance(quantized.get("quantization"), Mapping)
        source = f"{QUANTIZED} beside its {CONFIG}" if of_modelopt else f"quantization_config of its {CONFIG}"
        more = {} if wide == NOTHING_WIDE else {"wide": {name: wide.model_copy(update={"source": source})}}
        return {"released": name, "released_source": source, **more}
    return {}


def read_config(path: str) -> Document:
    """A config.json, with the format that ModelOpt writes into a file beside it where it says none itself.

    The path of that file means the config.json beside it. Raises InputError.
    """
    place = Path(path)
    if place.name == QUANTIZED:
        place = place.with_name(CONFIG)
        if not place.is_file():
            raise InputError(f"{path}: says how weights are stored alone: put the model's {CONFIG} beside it")
    return with_quantized(specfile.read(str(place)), place)


def with_quantized(document: Document, place: Path) -> Document:
    """The config.json at a place with what a file beside it says of its weights, where it says nothing itself."""
    beside = place.with_name(QUANTIZED)
    if place.name != CONFIG or document.data.get("quantization_config") is not None or not beside.is_file():
        return document
    return replace(document, data={**document.data, "quantization_config": specfile.read(str(beside)).data})


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """A quantization_config, with what ModelOpt's file has in a table of its own."""
    inner = config.get("quantization")
    return {**config, **inner} if isinstance(inner, Mapping) else dict(config)


def _stored(config: Mapping[str, Any], expert_dtype: Any, matrices: list[_Matrix]) -> tuple[str, Wide, list[str]]:
    """The format of the weights, "" where it is not understood, what is in more bits, and modules not known."""
    if config.get("quant_method") == "mxfp4":  # of transformers: experts alone
        return "mxfp4-experts", NOTHING_WIDE, []
    kept = _Modules(_kept(config))
    groups = _groups(config)
    base = _base(groups, config)
    if base not in FORMATS or any(name not in FORMATS for _, name in groups):
        return "", NOTHING_WIDE, []
    unknown = kept.unknown(matrices)
    others = WIDE if _names_all(config) else _of_layers(config)
    is_block = config.get("quant_method") == "fp8" and bool(groups)  # the rest is as it was, FP8 in blocks
    if expert_dtype is not None and not groups:  # DeepSeek-V4: FP8 in blocks but for its experts
        is_known = (base, expert_dtype) == ("fp8-block", "fp4") and not any(map(kept.match, matrices))
        return "fp8-mxfp4-experts" if is_known else "", NOTHING_WIDE, unknown
    wide, all_of = [0, 0, 0, 0], [0, 0, 0, 0]
    least = FORMATS[base].dense_eighths
    for matrix in matrices:
        name = next((name for group, name in groups if group.match(matrix)), others)
        if (matrix.kind == _HEAD and name == others) or (kept.match(matrix) and not is_block):
            name = WIDE
        wide[matrix.kind] += matrix.parameters * (FORMATS[name].dense_eighths - least) // (WIDE_EIGHTHS - least)
        all_of[matrix.kind] += matrix.parameters
    return *_named(base, wide, all_of), unknown


def _named(base: str, wide: list[int], all_of: list[int]) -> tuple[str, Wide]:
    """The format of the experts alone, or of all but attention, where that is it."""
    if wide == all_of:  # nothing is quantized
        return "", NOTHING_WIDE
    narrow_head = all_of[_HEAD] - wide[_HEAD]
    if base == "nvfp4" and wide == [all_of[_ATTENTION], 0, 0, all_of[_HEAD]]:
        return "nvfp4-ffn", NOTHING_WIDE
    if all_of[_EXPERT] and wide == [*all_of[:_EXPERT], 0, all_of[_HEAD]] and base in _EXPERTS:
        return _EXPERTS[base], NOTHING_WIDE
    attention, rest, experts, _ = wide
    return base, Wide(attention=attention, rest=rest, experts=experts, narrow_head=narrow_head)


def _matrices(shape: Shape, are_blocks: bool) -> Iterator[_Matrix]:
    """The matrices of all layers with their names; numbered by block where a feed-forward is a block of its own."""
    number = 0
    for layer, mixer in enumerate(shape.mixers):
        for name, parameters in mixer.matrices.items():
            yield _matrix(number, _ATTENTION, parameters, mixer.roots, name)
        behind = list(ffn_matrices(shape, layer))
        number += are_blocks and any(parameters for _, _, parameters, _ in behind)
        for roots, name, parameters, is_routed in behind:
            yield _matrix(number, _EXPERT if is_routed else _REST, parameters, roots, name)
        number += 1
    if not shape.tied:
        yield _Matrix(0, _HEAD, shape.hidden * shape.vocab, ("lm_head", "head"), ("lm_head", "head"))


def _matrix(layer: int, kind: int, parameters: int, roots: tuple[str, ...], name: str) -> _Matrix:
    names, also = (
        tuple(f"{root}.{leaf}" for root in roots for leaf in leaves) for leaves in ((name,), _ALSO.get(name, ()))
    )
    return _Matrix(layer, kind, parameters, names + also, names)


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _kept(config: Mapping[str, Any]) -> list[str]:
    """Patterns of the modules that stay as they were."""
    kept = [name for key in _KEPT for name in _texts(config.get(key))]
    for name, change in _table(config, "extra_config"):  # AutoRound
        if _bits(change) >= WIDE_BITS:
            kept.append(f"re:.*{name}" if re.search(r"[\\\[(^$*]", name) else name)
    return kept + [f"re:{name[2:]}" for name, _ in _table(config, "dynamic") if name.startswith("-:")]  # GPTQModel


def _table(config: Mapping[str, Any], key: str) -> Iterator[tuple[str, Any]]:
    table = config.get(key)
    yield from ((str(name), value) for name, value in table.items()) if isinstance(table, Mapping) else ()


def _bits(change: Any) -> int:
    """Bits that a change for some modules says; 0 where it says none."""
    bits = change.get("bits") if isinstance(change, Mapping) else None
    return bits if isinstance(bits, int) else 0


def _names_all(config: Mapping[str, Any]) -> bool:
    """True where the file names every module that is quantized."""
    method = config.get("quant_method")
    return method == "compressed-tensors" or (method != "fp8" and isinstance(config.get("quantized_layers"), Mapping))


def _groups(config: Mapping[str, Any]) -> list[tuple[_Modules, str]]:
    """Groups of modules with a format of their own, as a file lists them; of one that is not known "?"."""
    by_format: dict[str, list[str]] = {}
    for name, change in _table(config, "quantized_layers"):
        algorithm = str(change.get("quant_algo")).upper() if isinstance(change, Mapping) else ""
        by_format.setdefault(_ALGORITHMS.get(algorithm, "?"), []).append(name)
    if config.get("quant_method") == "compressed-tensors":
        for _, group in _table(config, "config_groups"):
            if isinstance(group, Mapping):
                targets = _texts(group.get("targets")) or ["Linear"]
                every = ["re:.*"] if "Linear" in targets else targets
                by_format.setdefault(_of_group(group, config.get("format")) or "?", []).extend(every)
    for name, change in _table(config, "extra_config"):
        if 0 < _bits(change) < WIDE_BITS:
            both = {**config, **change}
            by_format.setdefault(_of_layers({**both, "extra_config": None}) or "?", []).append(name)
    for name, change in _table(config, "dynamic"):
        if not name.startswith("-:") and _bits(change):
            by_format.setdefault(_of_layers({**config, **change}) or "?", []).append(f"re:{name.removeprefix('+:')}")
    return [(_Modules(names), name) for name, names in by_format.items()]


def _base(groups: list[tuple[_Modules, str]], config: Mapping[str, Any]) -> str:
    """The format that others are counted over: the narrowest of those that a file names, else that of all layers."""
    named = [name for _, name in groups if name in FORMATS and name != WIDE]
    named += [name for name in [_of_layers(config)] if name in FORMATS]
    return min(named, key=lambda name: FORMATS[name].dense_eighths, default="")


def _of_layers(config: Mapping[str, Any]) -> str:
    """The format of the layers that are not kept as they were; "" where it is not known."""
    method, block = config.get("quant_method"), config.get("weight_block_size")
    if method == "fp8":  # dynamic scales of no stated block: servers differ in what they take
        return "fp8-block" if block == [128, 128] else "fp8" if config.get("activation_scheme") == "static" else ""
    if method in ("gptq", "awq", "auto-round", "autoround", "intel/auto-round"):
        bits, group = config.get("bits"), config.get("group_size")
        return _INTEGERS.get((bits, group), "") if isinstance(bits, int) and isinstance(group, int) else ""
    if method == "bitsandbytes":
        return "nf4" if config.get("load_in_4bit") else ""
    if method == "compressed-tensors" and config.get("format") in ("mxfp4-pack-quantized", "nvfp4-pack-quantized"):
        return str(config["format"]).partition("-")[0]
    if method in ("modelopt", None):
        return _ALGORITHMS.get(str(config.get("quant_algo")).upper(), "")
    return ""


def _of_group(group: Mapping[str, Any], packed: Any) -> str:
    """The format of a group of compressed-tensors."""
    packing = group.get("format") or packed
    if packing in ("mxfp4-pack-quantized", "nvfp4-pack-quantized"):
        return str(packing).partition("-")[0]
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        return ""
    inputs, block, size = group.get("input_activations"), weights.get("block_structure"), weights.get("group_size")
    kind, bits = weights.get("type"), weights.get("num_bits")
    width = size if isinstance(size, int) and size > 0 else None
    if kind == "float" and bits == 8:
        return "fp8-block" if block == [128, 128] else "" if block else "fp8"
    if kind == "float" and (bits, width) == (4, 16):
        return "nvfp4"
    if kind != "int" or not isinstance(bits, int):
        return ""
    if bits == 8 and width is None and isinstance(inputs, Mapping) and inputs.get("num_bits") == 8:
        return "int8"
    return _INTEGERS.get((bits, width), "")
