"""The layout of a model on several devices, and the part that one of them has.

Every layer is split over `tp` devices, and the layers over `pp` stages of such devices. Where `dp_attention` is asked
for, each of the `tp` devices attends to requests of its own; where `dcp` is, those that would hold copies of the same
KV heads share their tokens. `ep` says how experts are split, whole or in slices: their bytes are the same.
"""

from fractions import Fraction

from dse.core.errors import InputError, show
from dse.specs.device_and_model import LayerKV, ModelSpec
from dse.specs.huggingface import mixers
from dse.specs.weights import NOTHING
from dse.specs.workload import Workload

#: bytes of an element of a recurrent state
STATE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "int8": 1}
#: devices of a server; engines' recipes and clouds offer a part of one by twos, or whole ones
SERVER = 8
#: devices of one server that a model is split over where nobody says over how many
USUAL_SIZES = (1, 2, 4, 8)


def is_usual(n_devices: int) -> bool:
    """Whether people rent so many devices for one model: 1, 2, 4 or 8 of a server, or whole servers."""
    return n_devices in USUAL_SIZES or n_devices % SERVER == 0


def is_single(work: Workload) -> bool:
    """True where one device has it all, as the model says it."""
    is_alone = work.n_devices == work.ep == work.dcp == 1 and work.state_type == "auto"
    return is_alone and not work.dp_attention and not work.expert_skew


def _divisors(number: int, most: int = 64) -> str:
    return ", ".join(str(n) for n in range(1, min(number, most) + 1) if number % n == 0)


def check(model: ModelSpec, work: Workload) -> None:
    """Raises InputError for what cannot be split so, with what would do."""
    tp, pp = work.tp, work.pp
    if work.dp_attention:
        _check_dp_attention(model, tp)
    else:
        _check_heads(model, tp)
    if pp > model.n_layers:
        raise InputError(f"pp = {pp}: {model.name} has {model.n_layers} layers, one a stage at least: use fewer stages")
    if work.ep > 1:
        _check_experts(model, tp, work.ep)
    elif work.expert_skew:
        raise InputError(f"expert-skew = {work.expert_skew:g}: skews what ep devices are sent: add --ep")
    if work.dcp > 1:
        _check_shared_tokens(model, work)


def _check_dp_attention(model: ModelSpec, tp: int) -> None:
    if tp == 1:
        raise InputError("dp-attention: has devices to itself only where tp is above 1: add --tp")
    if model.hidden_size % tp:
        raise InputError(
            f"tp = {tp}: does not divide the hidden size {model.hidden_size:,} of {model.name}: use one of "
            f"{_divisors(model.hidden_size)}"
        )


def _kv_heads(model: ModelSpec) -> set[int]:
    return {layer.n_kv_heads for layer in model.layers if layer.key_dim}


def _check_heads(model: ModelSpec, tp: int) -> None:
    if model.n_q_heads % tp:
        raise InputError(
            f"tp = {tp}: does not divide the {model.n_q_heads} query heads of {model.name}: "
            f"use one of {_divisors(model.n_q_heads)}"
        )
    for n_heads in _kv_heads(model):
        if n_heads % tp and tp % n_heads:
            would = [n for n in range(1, model.n_q_heads + 1) if not model.n_q_heads % n]
            good = ", ".join(str(n) for n in would if not n_heads % n or not n % n_heads)
            raise InputError(
                f"tp = {tp}: neither divides the {n_heads} KV heads of {model.name} nor is a multiple of them: "
                f"use one of {good}"
            )


def _check_experts(model: ModelSpec, tp: int, ep: int) -> None:
    if model.n_experts == 1:
        raise InputError(f"ep = {ep}: {model.name} has no experts: leave it out")
    if tp % ep or model.n_experts % ep:
        raise InputError(
            f"ep = {ep}: must divide tp = {tp} and the {model.n_experts} experts of {model.name}: use one of "
            + ", ".join(str(n) for n in range(1, tp + 1) if tp % n == 0 and model.n_experts % n == 0)
        )


def _check_shared_tokens(model: ModelSpec, work: Workload) -> None:
    tp, dcp = work.tp, work.dcp
    most = min(tp // n_heads if tp % n_heads == 0 else 1 for n_heads in _kv_heads(model))
    if dcp > most or most % dcp:
        copies = f"there are {most}" if most > 1 else "there are none"
        raise InputError(
            f"dcp = {dcp}: shares the tokens of KV heads that tp = {tp} devices hold copies of, and {copies}: use "
            + (f"one of {_divisors(most)}" if most > 1 else "dcp 1")
        )
    if any(layer.read_limit_tokens and not layer.sparse_kind.startswith("dsa") for layer in model.layers):
        raise InputError(
            f"dcp = {dcp}: the index of {model.name} chooses blocks or compressed tokens, which devices would cut: "
            "use dcp 1"
        )
    if work.tokens != "full":
        raise InputError(f"dcp = {dcp}: a token policy ({show(work.tokens)}) chooses among all tokens: use full")


def with_states(model: ModelSpec, work: Workload) -> ModelSpec:
    """The model with recurrent states of the type that is asked for. Raises InputError where it has none."""
    if work.state_type == "auto":
        return model
    n_bytes = STATE_BYTES[work.state_type]
    layers = tuple(mixers.with_states_in(layer, n_bytes) if layer.state_code else layer for layer in model.layers)
    if not any(layer.state_code for layer in layers):
        raise InputError(f"state-type = {work.state_type}: {model.name} has no recurrent states: leave it out")
    return model.model_copy(update={"layers": layers})


def rank_of(model: ModelSpec, work: Workload) -> ModelSpec:
    """The part of the model that one of the `tp` devices has, over all stages.

    KV heads are split until there is one a device, then copied with the weights that make them; latent (MLA) heads are
    copied, and heads of constant states are split. With `dp_attention` all of attention is on every device. Down-
    projections of latent attention, indexes and routers are whole on every device. The rest of the weights, the
    embeddings and the experts are split evenly; biases and norms, which engines copy, are less than a hundredth of a
    percent.

    Raises InputError for what cannot be split so.
    """
    check(model, work)
    tp, model = work.tp, with_states(model, work)
    if tp == 1:
        return model
    attention = model.attention_parameters or 0
    if work.dp_attention and not attention:
        raise InputError(f"dp-attention: the parameters of attention in {model.name} are not known: use tp alone")
    layers, q_heads, attention_share = model.layers, model.n_q_heads, attention
    if not work.dp_attention:
        layers = tuple(_split(layer, tp) for layer in model.layers)
        q_heads = model.n_q_heads // tp
        copies = sum(_copied_parameters(model, layer, tp) for layer in model.layers)
        attention_share = -(-(attention + copies + (tp - 1) * (model.copied_parameters or 0)) // tp)
    row, share = 2 * model.hidden_size, Fraction(attention_share, attention or 1)

    def split(elements: int) -> int:
        return elements if work.dp_attention else row - (row - elements) // tp

    return model.model_copy(
        update={
            "layers": layers,
            "n_q_heads": q_heads,
            "vocab_size": -(-model.vocab_size // tp),
            "attention_parameters": attention_share,
            "wide": {name: wide.split(tp, share) for name, wide in model.wide.items()},
            "dense_parameters": attention_share - (-(model.dense_parameters - attention) // tp),
            "expert_parameters": -(-model.expert_parameters // tp),
            "tower_parameters": -(-(model.tower_parameters or 0) // tp) or None,
            "embedding_parameters": -(-model.embedding_parameters // tp),
            "activation_elements": split(model.activation_elements),
            "layer_elements": None if model.layer_elements is None else split(model.layer_elements),
        }
    )


def group_copies(whole: ModelSpec, rank: ModelSpec, work: Workload) -> tuple[int, int]:
    """Parameters outside attention and routed experts that a device has beyond its part of them, and of these those in
    16 bits whatever the format, where every device attends to requests of its own (`rank_of`).

    vLLM runs a server on each device, TensorRT-LLM gives each all that is not an expert (modeling_deepseekv3.py: "the
    MLP also uses DP instead of TP"); SGLang gives it the table of embeddings (use_attn_tp_group).
    """
    engine, form = (work.stack or "").partition("@")[0], work.weight_format
    if not work.dp_attention or engine not in ("vllm", "trtllm", "sglang"):
        return 0, 0
    if engine == "sglang":
        # one table for both ends, where there is one alone, is whole too
        share = (whole.vocab_size - rank.vocab_size) * whole.hidden_size
        return share, 0 if form.keeps == NOTHING else share
    kept = max(whole.kept_parameters(form) - rank.kept_parameters(form), 0)
    return max(whole.dense_parameters - rank.dense_parameters, kept), kept


def stages_alike(model: ModelSpec, n_stages: int) -> ModelSpec:
    """The model with as many layers in every stage as the fullest has; as it is where the layers divide.

    Embeddings and output head are not repeated.
    """
    n_layers = model.n_layers
    if n_layers % n_stages == 0:
        return model
    wanted = -(-n_layers // n_stages) * n_stages

    def grown(number: int) -> int:
        return -(-number * wanted // n_layers)

    ends = min(model.embedding_parameters + model.vocab_size * model.hidden_size, model.dense_parameters)
    attention = model.attention_parameters
    return model.model_copy(
        update={
            "layers": _grown(model.layers, n_layers, wanted),
            "dense_parameters": ends + grown(model.dense_parameters - ends),
            "expert_parameters": grown(model.expert_parameters),
            "attention_parameters": None if attention is None else grown(attention),
            "wide": {name: wide.grown(Fraction(wanted, n_layers)) for name, wide in model.wide.items()},
        }
    )


def _grown(layers: tuple[LayerKV, ...], n_layers: int, wanted: int) -> tuple[LayerKV, ...]:
    """Layers that become `wanted` in place of `n_layers`, each kind in proportion."""
    stretched: list[LayerKV] = []
    n_before = 0
    for layer in layers:
        if layer.joined:
            n = stretched[-1].n_layers
        else:
            n_after = n_before + layer.n_layers
            n = n_after * wanted // n_layers - n_before * wanted // n_layers
            n_before = n_after
        stretched.append(layer.model_copy(update={"n_layers": n}))
    return tuple(stretched)


def end_parameters(n_layers: int, n_stages: int, n_input: int, n_head: int) -> int:
    """Parameters of embeddings that the fullest stage holds, the first having the input table and the last the output
    head. Layers that are left over go one each to the stages before the last, from there backwards.

    Source: vllm/distributed/utils.py, get_pp_indices.
    """
    left = n_layers % n_stages
    if left == 0:
        return max(n_input, n_head)
    return n_input if left == n_stages - 1 else 0


def _split(layer: LayerKV, tp: int) -> LayerKV:
    """One device's part of a layer: KV heads and the heads of states; what waits for a latent's entry is copied."""
    share: dict[str, int] = {"n_kv_heads": -(-layer.n_kv_heads // tp)}
    if layer.state_flops:
        share |= {"state_bytes": -(-layer.state_bytes // tp), "state_flops": -(-layer.state_flops // tp)}
    return layer.model_copy(update=share)


def _copied_parameters(model: ModelSpec, layer: LayerKV, tp: int) -> int:
    """Parameters of keys and values that copies of KV heads add over all devices, in layers of this shape."""
    copies = -(-layer.n_kv_heads // tp) * tp - layer.n_kv_heads
    return layer.n_layers * model.hidden_size * copies * (layer.key_dim + layer.value_dim)
