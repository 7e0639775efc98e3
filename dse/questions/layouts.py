"""Layouts of a model over devices that questions try: tp and pp, and how experts, requests and tokens are shared."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dse.core.errors import InputError
from dse.questions.common import options
from dse.specs import deployment
from dse.specs.device_and_model import ModelSpec
from dse.specs.workload import Workload

#: how the devices of a stage share experts, requests and tokens
SHARED = ("ep", "dp_attention", "dcp")
#: all that says how a model lies on devices
SPLIT = ("tp", "pp", *SHARED)
#: stages that are tried even where they do not divide the layers
USUAL_STAGES = (2, 4, 8)
#: engines that share the tokens of copied KV heads
SHARES_TOKENS = ("vllm",)


def on_one_device(work: Workload, **changed: Any) -> Workload:
    """The workload on one device, with other fields changed."""
    return replace(work, tp=1, pp=1, ep=1, dp_attention=False, dcp=1, pp_batches=None, **changed)


def words(split: Mapping[str, Any]) -> str:
    """A split in words: "tp 8, ep 8, dp-attention"; "" on one device. A table may lack some of its numbers."""
    return ", ".join(options(split, (name for name in SPLIT if name in split)).removeprefix("--").split(" --"))


def sizes(model: ModelSpec, most: int, any_size: bool = False) -> Iterator[tuple[int, int]]:
    """Splits by tp and pp over up to `most` devices: 1, 2, 4, 8 and whole servers, or over `any_size`."""
    for pp in (n for n in range(1, most + 1) if model.n_layers % n == 0 or n in USUAL_STAGES):
        for tp in range(1, most // pp + 1):
            has_usual = deployment.is_usual(tp) and deployment.is_usual(tp * pp)
            if any_size or (has_usual and (deployment.is_usual(pp) or tp >= deployment.SERVER)):
                yield tp, pp


def layouts(model: ModelSpec, work: Workload, tp: int, pp: int) -> list[Workload]:
    """The ways of a split to share experts, requests and tokens that the model and engines have, plain first; none
    where the model does not split so. A workload that says how they are shared keeps that."""
    plain = replace(work, tp=tp, pp=pp, pp_batches=None)
    ways: list[dict[str, Any]] = [{}]
    if tp > 1 and not any((work.ep > 1, work.dp_attention, work.dcp > 1)):
        experts: list[dict[str, Any]] = [{}] + [{"ep": tp}] * (model.n_experts > 1)
        copies = min((tp // layer.n_kv_heads for layer in model.layers if layer.key_dim), default=1)
        by_tokens = {"dcp": copies} if (work.stack or SHARES_TOKENS[0]).startswith(SHARES_TOKENS) else {}
        shared: list[dict[str, Any]] = [{"dp_attention": True}, by_tokens] if copies > 1 else []
        ways = [{**expert, **other} for expert in experts for other in [dict[str, Any](), *filter(None, shared)]]
    works = []
    for way in ways:
        split_work = replace(plain, **way)
        try:
            deployment.check(model, split_work)
        except InputError:
            continue
        works.append(split_work)
    return works
