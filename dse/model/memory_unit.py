"""A memory management unit that keeps packed keys and values in pages of bytes, per head (Oaken 5.2).

Dense codes and sparse entries of a head go to pages of their own, apart from each other; group minima and maxima and
chunk counts, for which 5.2 names no pages, count as they are. It serves what a streaming engine packs token by token.
"""

from dataclasses import replace
from fractions import Fraction

from dse.core import units
from dse.core.errors import InputError
from dse.model.formulas import memory_unit
from dse.model.kv_layout import KvPlan, TensorGroup
from dse.specs.device_and_model import HardwareSpec

#: parts of the ledger that fill pages together: codes with what pads them, and sparse entries
STREAMS = (("payload", "padding"), ("outliers",))


def attach(device: HardwareSpec, plan: KvPlan, paths: dict[str, str]) -> KvPlan:
    """The plan with the pages and bursts of the device, where it has any, for what its engine packs token by token.

    Raises InputError where devices would share tokens that pages hold whole.
    """
    if device.kv_page is None and device.kv_burst is None:
        return plan
    if plan.token_shards > 1:
        raise InputError(
            f"dcp = {plan.token_shards}: {device.name} keeps heads in pages of its own (kv_page), which hold whole "
            "tokens: use dcp 1"
        )
    sizes = (device.kv_page and device.kv_page.count, device.kv_burst and device.kv_burst.count)

    def with_pages() -> KvPlan:
        return replace(
            plan,
            groups=tuple(_with_pages(device, g, plan.den) if _served(g, paths[g.place]) else g for g in plan.groups),
        )

    return plan.once((*sizes, *paths.items()), with_pages)


def _served(g: TensorGroup, path: str) -> bool:
    return path == "engine" and g.layout.needs_dequantizing and (g.step_tokens, g.residual_tokens) == (1, 0)


def _with_pages(device: HardwareSpec, g: TensorGroup, den: int) -> TensorGroup:
    row = units.BITS_PER_BYTE * den * g.layout.shape.n_heads
    return replace(
        g,
        streams=tuple(bits for parts in STREAMS if (bits := _numerator(g, parts, den))),
        page_row_bits=row * device.kv_page.count if device.kv_page else 0,
        burst_row_bits=row * device.kv_burst.count if device.kv_burst else 0,
    )


def _numerator(g: TensorGroup, parts: tuple[str, ...], den: int) -> int:
    """Bits of a token in these parts: of its own, or its share of an entry."""
    bits = den * sum((Fraction(g.layout.packed.get(part, 0)) for part in parts), Fraction(0)) / g.tokens_per_entry
    assert bits.denominator == 1  # den is that of the whole token, and one part of a token at most is a fraction
    return int(bits)


def write_amplification(plan: KvPlan) -> float | None:
    """Bytes that the memory takes over bytes packed, of one new token of all layers; None where nothing is rounded."""
    served = [g for g in plan.groups if g.burst_row_bits and g.n_stored_layers]
    if not served:
        return None
    return float(
        memory_unit.write_amplification(
            sum(g.n_stored_layers * g.written_bits for g in served),
            sum(g.n_stored_layers * g.packed_bits for g in served),
        )
    )
