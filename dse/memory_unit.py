"""A memory management unit that keeps packed keys and values in pages of bytes, per head (Oaken 5.2).

Dense codes and sparse entries of a head go to pages of their own, apart from each other; group minima and maxima and
chunk counts, for which 5.2 names no pages, count as they are. It serves what a streaming engine packs token by token.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

from dse import units
from dse.formulas import attention, memory_unit
from dse.plan import KvPlan, TensorGroup
from dse.quantizers import TensorLayout
from dse.specs import HardwareSpec
from dse.trace import Trace

#: parts of the ledger that fill pages together: codes with what pads them, and sparse entries
STREAMS = (("payload", "padding"), ("outliers",))


def attach(device: HardwareSpec, plan: KvPlan, paths: dict[str, str]) -> KvPlan:
    """The plan with the pages and bursts of the device, where it has any, for what its engine packs token by token."""
    if device.kv_page is None and device.kv_burst is None:
        return plan
    sizes = (device.kv_page and device.kv_page.count, device.kv_burst and device.kv_burst.count)

    def with_pages() -> KvPlan:
        return replace(plan, groups=tuple(
            _with_pages(device, g, plan.den) if _served(g, paths[g.place]) else g for g in plan.groups
        ))  # fmt: skip

    return plan.once((*sizes, *paths.items()), with_pages)


def _served(g: TensorGroup, path: str) -> bool:
    return path == "engine" and g.layout.needs_unpacking and (g.step_tokens, g.residual_tokens) == (1, 0)


def _with_pages(device: HardwareSpec, g: TensorGroup, den: int) -> TensorGroup:
    row = units.BITS_PER_BYTE * den * g.layout.shape.n_heads
    return replace(
        g,
        streams=tuple(bits for parts in STREAMS if (bits := _numerator(g.layout, parts, den))),
        page_row_bits=row * device.kv_page.count if device.kv_page else 0,
        burst_row_bits=row * device.kv_burst.count if device.kv_burst else 0,
    )


def _numerator(layout: TensorLayout, parts: tuple[str, ...], den: int) -> int:
    bits = den * sum((Fraction(layout.packed.get(part, 0)) for part in parts), Fraction(0))
    assert bits.denominator == 1  # den is that of the whole token, and one part of a token at most is a fraction
    return int(bits)


def write_amplification(plan: KvPlan) -> float | None:
    """Bytes that the memory takes over bytes packed, of one new token of all layers; None where nothing is rounded."""
    served = [g for g in plan.groups if g.burst_row_bits and g.n_stored_layers]
    if not served:
        return None
    return float(memory_unit.write_amplification(
        sum(g.n_stored_layers * g.written_bits for g in served),
        sum(g.n_stored_layers * g.packed_bits for g in served),
    ))  # fmt: skip


def results(device: HardwareSpec, plan: KvPlan, n_tokens: int, page_tokens: int, trace: Trace) -> dict[str, Any]:
    """What last pages leave unused at `n_tokens`, a bit count an element, and how much bursts add to a write."""
    elements = plan.elements(n_tokens)
    return {
        "page_tail_bits": trace.note(
            "page_tail_bits", float(Fraction(plan.padding_bits(n_tokens, page_tokens), plan.den * elements)), "bit",
            "unused bits of last pages at the final length / elements; counted in stored_bits as padding",
            "docs/model.md, KV bytes", n_tokens=n_tokens, n_elements=elements, page_tokens=page_tokens,
            page_bytes=device.kv_page.count if device.kv_page else None,
        ),
        "write_amplification": trace.note(
            "write_amplification", write_amplification(plan), "1",
            "bytes the memory takes for one new token / bytes packed, slices of a head rounded up to bursts; None "
            "without an engine or a burst", "docs/model.md, KV bytes",
            burst_bytes=device.kv_burst.count if device.kv_burst else None,
            **{f"{g.which}_slice_bytes": ", ".join(
                f"{bits / (units.BITS_PER_BYTE * plan.den * g.layout.shape.n_heads):g}" for bits in g.streams
            ) for g in plan.groups if g.burst_row_bits},
        ),
    }  # fmt: skip


def write_s(plan: KvPlan, n_sequences: int, bandwidth_bytes_per_s: float) -> float:
    """Seconds a step that writing one new token of `n_sequences` takes from the memory, rounded up to bursts.

    Where no burst is given a write counts nothing, as on other devices: it is 1/s of the read.
    """
    bits = sum(g.n_stored_layers * g.written_bits for g in plan.groups if g.burst_row_bits)
    n_bytes = n_sequences * bits / (units.BITS_PER_BYTE * plan.den)
    return float(attention.time_at_rate(n_bytes, bandwidth_bytes_per_s))
