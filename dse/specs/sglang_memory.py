"""The share of the memory and the batch of prompt tokens that SGLang chooses where none are given, by release.

Sources: sglang/srt/server_args.py of SGLang 0.4.3 and 0.4.9; sglang/srt/arg_groups/memory_hook.py:84-165, 268-330 and
440-462 of 0.5.23. Which release after 0.5.10, whose logs have the older batches, took the newer ones is not known.
"""

from dse.specs.drafts import MODEL, TEXT
from dse.specs.releases import release_of
from dse.specs.workload import Workload

#: releases from which on the share is by memory, by what is reserved for each need, and batches are those of 0.5.23
BY_MEMORY, BY_NEED, NEW_BATCHES = ("0.4.8",), ("0.5.4",), ("0.5.23",)
#: shares by devices that share the layers, of releases before
_BY_DEVICES = {16: 0.79, 8: 0.81, 4: 0.85, 2: 0.87, 1: 0.88}
#: of models that take images, of which a factor by the size of the tower, 0.8 to 1.05, is left out
IMAGES_SHARE = 0.95
MIB, GIB_OF_MIB = 2**20, 1024


def _is_from(release: str, since: tuple[str]) -> bool:
    return release_of(release) >= release_of(since[0])


def prompt_tokens(reported_bytes: int, release: str) -> int:
    """Tokens of the largest batch of prompt tokens, chunked_prefill_size; "" is the newest release."""
    mib = reported_bytes / MIB
    if not _is_from(release, BY_MEMORY):
        return 2048 if mib < 25_000 else 8192
    if mib >= 160 * GIB_OF_MIB:
        return 16384
    if _is_from(release, NEW_BATCHES):
        return 2048 if mib < 20 * GIB_OF_MIB else 4096 if mib < 60 * GIB_OF_MIB else 8192
    return 2048 if mib < 35 * GIB_OF_MIB else 8192


def largest_graph(reported_bytes: int, tp: int) -> int:
    """Requests of the largest batch that graphs are recorded for, cuda_graph_max_bs of 0.5.23."""
    gib, is_split = reported_bytes / 2**30, tp >= 4
    if gib < 20:
        return 8
    if gib < 60:
        return 160 if is_split else 48 if gib < 35 else 32
    return 512 if is_split or gib >= 160 else 256


def share(reported_bytes: int, prompt_budget_tokens: int, work: Workload, has_images: bool) -> float:
    """Share of the memory for weights and keys and values, mem_fraction_static: what is left beside activations of a
    batch of prompt tokens, buffers of each device and graphs, and what a method of drafting reserves."""
    mib, tp, release = reported_bytes / MIB, work.tp, (work.stack or "").partition("@")[2]
    if not _is_from(release, BY_MEMORY):
        return _BY_DEVICES[max(n for n in _BY_DEVICES if n <= tp)]
    if _is_from(release, BY_NEED):
        graphs = 2 * (work.cuda_graph_max_bs or largest_graph(reported_bytes, tp))
        reserved = 512 + 1.5 * max(prompt_budget_tokens, 2048) + 128 * tp * work.pp + graphs
        reserved = max(reserved, 10_240 if mib > 60 * GIB_OF_MIB else 0)
    else:
        gib = mib / GIB_OF_MIB
        few, many = (2.8, 10) if gib < 35 else (9.5, 2) if gib < 90 else (12, 2)
        reserved = GIB_OF_MIB * (32 if gib >= 160 else few + tp * work.pp / many) + 4096 * work.dp_attention
    if work.draft and work.draft.method != TEXT:  # the same in both
        reserved += GIB_OF_MIB * (6 if work.draft.method == MODEL else 2)
    return round((mib - reserved) / mib * (IMAGES_SHARE if has_images else 1), 3)
