"""Reading single keys of a Hugging Face config.json: their several names, their ranges, and which were understood."""

import re
from typing import Any

from dse.core.errors import clean, show
from dse.core.specfile import Document, KeyPath

MAX_LAYERS = 10_000
MAX_DIM = 65_536  # also of heads
MAX_LATENT = 32_767  # latent and rope part together stay within MAX_DIM
MAX_HIDDEN = 2**20
MAX_TOKENS = 2**40

NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
#: keys that a file with a nested text section may also keep outside of it
OUTER = ("vocab_size", "tie_word_embeddings")
#: keys without which a top-level file is broken; a nested section drops those that equal its class's defaults
CORE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size")
MARKS = ("model_type", "architectures", "auto_map", "num_hidden_layers", "n_layer", "n_embd", *NESTED)
LAYERS = ["num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"]
HIDDEN = ["hidden_size", "n_embd", "n_embed", "d_model", "model_dim"]
Q_HEADS = ["num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads"]
KV_HEADS = [
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "num_key_value_heads_per_layer",
    "attn_config.kv_n_heads",
]
VOCAB = ["vocab_size", "padded_vocab_size"]
HEAD_DIM = ["head_dim", "attention_head_dim", "kv_channels"]
POSITIONS = ["max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx", "max_context_length"]
POSITIONS += ["model_max_length"]
WINDOW = ["sliding_window", "sliding_window_size"]
PATTERN = ["sliding_window_pattern", "_sliding_window_pattern", "layer_switch"]
FALCON = ("falcon", "RefinedWeb", "RefinedWebModel")

#: keys whose names speak of what a layer caches; one that no rule here reads is an error
SUSPICIOUS = re.compile(
    r"(?i)kv|key_value|k_eq_v|multi_query|window|swa(?:_|$)|latent|lora_(?:rank|dim)|head_(?:dim|size)|heads|attention_groups"
    r"|gqa|query_groups?|chunk|layers?_(?:block_)?types?|block_types?|attn_types?|attention_types?|mixer"
    r"|^(?:(?!attn|attention).)*(?:attn|attention).*(?:layer|interval|pattern|method)"
    r"|^(?:(?!layer).)*layer.*(?:attn|attention)|block_config|(?:^|_)cla(?:_|$)"
    r"|yoco|cross_layer|cross_attention|add_cross|state_size|state_dim|d_state|mamba|ssm|rwkv|lru|recurren|d_conv"
    r"|conv_(?:kernel|l_cache)|linear_|lightning|hybrid|sparse_(?:att|conf)|blocksparse|(?:local|global|linear)_att"
    r"|attn_config|attention_config|sink|compress|cache_(?:size|len)|v_head|index_(?:n|topk)"
)
#: of those, keys that name no size of the cache
HARMLESS = re.compile(
    r"(?i)dropout|pdrop|bias$|softcap|scal|clip_qkv|softmax|norm|_implementation|upcast|temperature|use_cache|init|dtype"
    r"|no_rope|rope_linear|linear_scaling|kv_cache_(?:dtype|quant)|layer_idx|pruned_heads|cross_attention_hidden_size"
    r"|^pooler|^vision|^use_unified_vision|^audio|^image|^mm_|summary|add_bias_linear|theta|sinkhorn|^activation_|hidden_act|^mtp_"
)
MIXTURE = re.compile(r"expert|moe", re.I)
MIXTURE_HARMLESS = re.compile(r"group|capacity|normal|coef|loss|jitter|scal|init|router|bias|seed|type|parallel", re.I)
#: keys that change no size, whatever the model: all that a file of an unknown type may have beside what is read
NEUTRAL = re.compile(
    r"(?i)token_(?:id|index)s?$|^tokenizer|dtype|dropout|pdrop|init|norm|(?:^|_)eps(?:ilon)?$|(?:^|_)act(?:ivation)?(?:_fn|$)"
    r"|rope|rotary|theta|^vision_|^image_|^video_|^audio_|^media_|^output_|^num_(?:beam|return|logits)|_penalty$|^(?:max|min)_length$"
    r"|^top_[kp]$|temperature|^typical_p$|quantization|scal|softcap|router|loss|jitter|label|_name_or_path|^architectures$"
    r"|^auto_map$|^transformers_version$|^torchscript$|^use_(?:cache|bfloat16|mtp)$|^is_|^tie_|^prefix$|^problem_type$"
    r"|^task_spec|^finetuning|^early_stopping$|^do_sample$|^bad_words|^suppress_|^return_dict|prun|^pretraining_tp$|^ep_size$"
    r"|^seed$|^cache_implementation$|^_|multiplier$|^mtp_|_bias$"
)
OFF: tuple[object, ...] = (None, False, 0, -1, "", [], {})


class Keys:
    """The section of the file that describes the decoder, read key by key; problems and notes are collected.

    A name with a dot is a key of an inner table. Every name asked for counts as understood.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.used: set[str] = set()
        self.defaults: dict[str, Any] = {}
        self.prefix: KeyPath = ()
        #: keys that are told by another one of the file -> that one
        self.told_by: dict[str, str] = {}
        self.data: dict[str, Any] = document.data
        while nested := [name for name in NESTED if self.data.get(name) is not None]:
            inner = self.data[nested[0]]
            if not isinstance(inner, dict):
                self.bad(nested[0], "a table of keys")
                break
            self.prefix, self.data = (*self.prefix, nested[0]), inner

    def tell(self, name: str, by: str, value: Any) -> None:
        """Let a key have a value that another key of the file says in other words."""
        self.data = {**self.data, name: value}
        self.told_by[name] = by
        self.used.add(by)

    def _lookup(self, name: str) -> tuple[KeyPath, Any, bool]:
        """(key path, value, whether it is in the file)."""
        places = [(self.prefix, self.data)]
        if self.prefix and name in OUTER:
            places.append(((), self.document.data))
        for prefix, data in places:
            value: Any = data
            for part in name.split("."):
                if not isinstance(value, dict) or part not in value:
                    break
                value = value[part]
            else:
                return (*prefix, *name.split(".")), value, True
        return (*self.prefix, *name.split(".")), None, False

    def get(self, name: str) -> Any:
        """The raw value of a key, None where it is absent."""
        self.used.add(name)
        return self._lookup(name)[1]

    def find(self, names: list[str]) -> tuple[str, Any] | None:
        """The first of several names of one thing that has a value, or its class's default, or None."""
        self.used.update(names)
        states = [(name, *self._lookup(name)[1:]) for name in names]
        for name, value, _ in states:
            if value is not None:
                return name, value
        if not any(present for _, _, present in states):
            for name in names:
                if self.defaults.get(name) is not None and (self.prefix or name not in CORE):
                    self.note(f"{name} = {self.defaults[name]}: key absent, the default of this model_type")
                    return name, self.defaults[name]
        return None

    def name_of(self, names: list[str]) -> str:
        """The one of several names that the file uses; the first if none."""
        entry = self.find(names)
        return entry[0] if entry else names[0]

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(clean(text, 300))

    def _said(self, name: str) -> tuple[KeyPath, Any, bool]:
        """`_lookup` of the key that tells this one."""
        by = self.told_by.get(name.partition(".")[0])
        if by is None:
            return self._lookup(name)
        data: Any = self.document.data
        for part in self.prefix:
            data = data[part]
        return (*self.prefix, by), data.get(by), by in data

    def where(self, name: str) -> str:
        return self.document.where(self._said(name)[0])

    def bad(self, name: str, rule: str) -> None:
        """Record that the value of a key must be something else."""
        path, value, _ = self._said(name)
        self.problems.append(f"{self.where(name)}: {'.'.join(map(str, path))} = {show(value)}: must be {rule}")

    def missing(self, name: str) -> None:
        path, _, present = self._said(name)
        state = " = None: must be a number" if present else ": is missing: add it"
        self.problems.append(f"{self.where(name)}: {'.'.join(map(str, path))}{state}")

    def whole(
        self,
        names: list[str],
        low: int,
        high: int,
        default: int | None = None,
        *,
        required: bool = False,
        same: bool = False,
    ) -> int | None:
        """A whole number in low..high under the first of `names`; with `same`, the other names must agree."""
        entry = self.find(names)
        if entry is None:
            if required:
                self.missing(names[0])
            return default
        name, value = entry
        if not _is_whole(value, low, high):
            self.bad(name, f"a whole number in {low:,}..{high:,}")
            return default
        for other in names if same else []:
            if (again := self._lookup(other)[1]) is not None and again != value:
                self.bad(other, f"equal to {name} = {value}")
        return int(value)

    def flag(self, name: str) -> bool | None:
        """True, false, or None where the key is absent or null."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            self.bad(name, "true or false")
            return None
        return value

    def per_layer(self, names: list[str], n_layers: int, low: int, high: int) -> list[int]:
        """One whole number per layer, from a list or from one number for all layers."""
        entry = self.find(names)
        if entry is None or not isinstance(entry[1], list):
            return [self.whole(names, low, high, low, required=True) or low] * n_layers
        name, values = entry
        if n_layers and len(values) != n_layers:
            self.bad(name, f"a list of {n_layers} entries, one per layer, not {len(values)}")
        elif not all(_is_whole(value, low, high) for value in values):
            self.bad(name, f"a list of whole numbers in {low:,}..{high:,}")
        else:
            return list(values) if n_layers else []
        return [low] * n_layers

    def layer_indices(self, name: str, n_layers: int) -> list[int] | None:
        """A list of layer numbers, or None where the key is absent."""
        values = self.get(name)
        if values is None:
            return None
        if not isinstance(values, list) or not all(_is_whole(v, 0, max(n_layers - 1, 0)) for v in values):
            if n_layers:
                self.bad(name, f"a list of layer numbers in 0..{n_layers - 1}")
            return []
        return values


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
