"""Per-device shard of the KV layout and weights, and the collectives of a pass."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from statistics import NormalDist

from dse.core.errors import InputError
from dse.model import kv_layout
from dse.model.kv_layout import KvPlan
from dse.model.records import Deployment, Exchange
from dse.specs import collectives, deployment, drafts
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.links import Collective
from dse.specs.workload import Workload

#: engines that send a token to the devices of its experts alone by default, once each; the others gather all tokens
#: (vLLM: allgather_reducescatter, SGLang: moe-a2a-backend none)
SENDS_TO_EXPERTS = ("trtllm",)
#: bytes of an activation that devices exchange
VALUE_BYTES = 2


def on_one_device(plan: KvPlan, work: Workload) -> KvPlan:
    """Return the shard of a plan on one of several devices, all stages together. Raises InputError for no such split.

    Groups of a quantizer inside a token are those of the heads that the device has: a split cuts none, but makes more
    of those that span all heads (Oaken, NQKV).
    """
    whole = plan.whole or plan
    n_away = host_layers(whole.model, work)
    if deployment.is_single(work) and not work.draft and not n_away:
        return whole
    degrees = (
        work.tp,
        work.pp,
        work.ep,
        work.expert_skew,
        work.dp_attention,
        work.dcp,
        work.tokens,
        work.state_type,
        work.draft,
        n_away,
    )

    def split() -> KvPlan:
        rank, draft = deployment.rank_of(whole.model, work), draft_of(whole.model, work)
        layers = draft.layers if draft else ()
        shard = kv_layout.build(rank, whole.key_quantizer, whole.value_quantizer, drafts=layers, n_away=n_away)
        if n_away and not any(g.n_stored_layers for g in shard.groups):
            raise _nothing_stored(whole.model, work)
        shard = replace(shard, whole=whole)
        shard = _stages_alike(shard, work.pp)
        return shard if work.dcp == 1 else _tokens_shared(shard, work.dcp)

    return whole.once(("devices", *degrees), split)


def host_layers(model: ModelSpec, work: Workload) -> int:
    """Layers that lie in host memory with their keys and values: the first ones."""
    return 0 if work.gpu_layers is None else max(model.n_layers - work.gpu_layers, 0)


def _nothing_stored(model: ModelSpec, work: Workload) -> InputError:
    n_last = 0
    for layer in reversed(model.layers):
        if layer.key_dim and layer.stored:
            break
        n_last += 0 if layer.joined else layer.n_layers
    return InputError(
        f"n-gpu-layers = {work.gpu_layers}: the last {n_last} layers of {model.name} store no keys and values of their "
        f"own, and without any the tool has no cache to size on the device: use {n_last + 1} or more"
    )


def draft_of(model: ModelSpec, work: Workload) -> ModelSpec | None:
    """The part of what drafts that one device has; None where no layers do. Raises InputError for no such split."""
    draft = drafts.model_of(work.draft, model) if work.draft else None
    return deployment.rank_of(draft, replace(work, ep=1, expert_skew=0.0, dcp=1)) if draft else None


def _stages_alike(plan: KvPlan, n_stages: int) -> KvPlan:
    """The plan with every stage as full as the fullest, which has the least room and paces a full pipeline."""
    model = deployment.stages_alike(plan.model, n_stages)
    if model is plan.model:
        return plan
    before, after = (kv_layout.layers_by_shape(spec.layers) for spec in (plan.model, model))
    counts, n_before = [], dict.fromkeys(before, 0)
    for shape, n in plan.layers:
        n_after = n_before[shape] + n
        grown = (at * after[shape] // before[shape] for at in (n_before[shape], n_after))
        counts.append(-next(grown) + next(grown))
        n_before[shape] = n_after
    groups = tuple(
        replace(
            g,
            n_stored_layers=-(-g.n_stored_layers * counts[g.shape_index] // g.n_read_layers),
            n_read_layers=counts[g.shape_index],
        )
        for g in plan.groups
    )
    layers = tuple((shape, n) for (shape, _), n in zip(plan.layers, counts, strict=True))
    return replace(plan, model=model, groups=groups, layers=layers)


def _tokens_shared(plan: KvPlan, n_devices: int) -> KvPlan:
    """The plan of one of `n_devices` that each hold as many tokens: of every token, one part in `n_devices`."""
    for g in plan.groups:
        if (g.step_tokens, g.residual_tokens) != (1, 0) or g.pool_bits or g.once_bits:
            raise InputError(
                f"dcp = {n_devices}: {g.quantizer.name} packs tokens together, which devices would cut: use a "
                "quantizer of single tokens, such as fp8 or fp16"
            )
        if g.n_elements % n_devices:
            raise InputError(f"dcp = {n_devices}: does not divide the {g.n_elements} elements of a token")
    groups = tuple(replace(g, n_elements=g.n_elements // n_devices) for g in plan.groups)
    return replace(plan, groups=groups, den=plan.den * n_devices, token_shards=n_devices)


def active_parameters(model: ModelSpec, work: Workload) -> float:
    """Parameters of one device that the token of one of its requests is multiplied with.

    With `dp_attention` the weights outside attention meet the tokens of all groups. The busiest of `ep` devices counts.
    """
    skew, n_groups = 1.0 + work.expert_skew, n_groups_of(work)
    if skew == 1.0 and n_groups == 1:
        return float(model.active_parameters)
    experts = model.expert_parameters * model.n_active_experts / model.n_experts
    attention = model.attention_parameters or 0
    return attention + n_groups * (model.dense_parameters - attention + experts * skew)


def n_groups_of(work: Workload) -> int:
    """Groups of requests whose KV lies apart."""
    return work.tp if work.dp_attention else 1


def deployment_of(model: ModelSpec, work: Workload) -> Deployment:
    """Return how the devices of a workload share the model, its experts and the requests."""
    return Deployment(
        n_devices=work.n_devices,
        n_stages=work.pp,
        n_groups=n_groups_of(work),
        n_in_flight=work.pp if work.pp_batches is None else work.pp_batches,
        experts_each=model.n_experts / work.ep if work.ep > 1 else 0.0,
        fullest=fullest_of(work.ep),
    )


@cache
def fullest_of(n: int) -> float:
    """Standard deviations by which the largest of `n` normal numbers is above the mean, expected (Blom 1958)."""
    return NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) if n > 1 else 0.0


def exchanges(
    device: HardwareSpec, rank: ModelSpec, work: Workload, stack_name: str | None
) -> Iterator[tuple[str, Exchange, collectives.LinkTerms]]:
    """Yield the collectives of a pass through all layers: name, exchange, and the link numbers behind its times.

    tp: an all-reduce after attention and one after the feed-forward of each layer, one of the embeddings, and the
    logits of every new token gathered. With `dp_attention` the feed-forward gathers the tokens of all devices and
    scatters its results; with `ep` too, experts are sent what they are chosen for. dcp: queries are gathered and
    results scattered in every layer. pp: a stage sends its results to the next.

    Raises InputError for a device without links.
    """
    if work.n_devices > 1 and device.n_devices.count > 1:
        raise InputError(
            f"device {device.name} stands for {device.n_devices.count} devices already: name one of them, or use "
            "tp 1 and pp 1"
        )
    tp, n_layers, row = work.tp, rank.n_layers, VALUE_BYTES * rank.hidden_size

    def exchange(
        name: str, kind: Collective, n_devices: int, n_per_pass: int, token_bytes: int, in_prompt: bool = True
    ) -> tuple[str, Exchange, collectives.LinkTerms]:
        link = collectives.terms(device, kind, n_devices, stack_name)
        return name, _exchange(n_per_pass, token_bytes, in_prompt, link), link

    if tp > 1 and not work.dp_attention:
        yield exchange("layers", "all_reduce", tp, 2 * n_layers + 1, row)
    elif tp > 1 and work.ep > 1 and stack_name in SENDS_TO_EXPERTS:
        reached = work.ep * (1.0 - (1.0 - 1.0 / work.ep) ** rank.n_active_experts)
        yield exchange("experts", "all_to_all", work.ep, 2 * n_layers, round(reached * row))
    elif tp > 1:
        yield exchange("tokens of all", "all_gather", tp, n_layers, tp * row)
        yield exchange("results of all", "reduce_scatter", tp, n_layers, tp * row)
    if tp > 1:
        logits = VALUE_BYTES * rank.vocab_size * tp * (tp if work.dp_attention else 1)
        yield exchange("logits", "all_gather", tp, 1, logits, in_prompt=False)
    if work.dcp > 1:
        widest = max(layer.score_dim for layer in rank.layers)
        queries = VALUE_BYTES * rank.n_q_heads * work.dcp * widest // 2
        yield exchange("queries", "all_gather", work.dcp, n_layers, queries, in_prompt=False)
        yield exchange("shared tokens", "reduce_scatter", work.dcp, n_layers, queries, in_prompt=False)
    if work.pp > 1:
        link = collectives.send_terms(device, work.n_devices, stack_name)
        yield "stages", _exchange(work.pp - 1, row, True, link), link


def _exchange(n_per_pass: int, token_bytes: int, in_prompt: bool, link: collectives.LinkTerms) -> Exchange:
    return Exchange(
        n_per_pass=n_per_pass,
        token_bytes=token_bytes,
        in_prompt=int(in_prompt),
        start_s=link.start_s,
        bytes_per_s=link.bytes_per_s,
        chunk_share=link.chunk_share,
        direct_start_s=link.direct_start_s,
        direct_bytes_per_s=link.direct_bytes_per_s,
        split_bytes_per_s=link.split_bytes_per_s,
    )


def rests_on_assumed_links(device: HardwareSpec, plan: KvPlan, work: Workload, stack_name: str | None) -> bool:
    """True where a time of an exchange was not measured."""
    return any(link.kind == collectives.ASSUMED for *_, link in exchanges(device, plan.model, work, stack_name))
