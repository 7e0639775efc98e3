"""What fits on a device: weights, keys and values, activations; solved for batch, context and capacity.

Every size is an exact integer in units of 1 / den bit (the plan's denominator), so "it fits" is never a rounding.
"""

from dataclasses import dataclass
from functools import cached_property

from dse import units
from dse.formulas import capacity, weights
from dse.plan import KvPlan
from dse.specs import HardwareSpec
from dse.trace import Trace
from dse.workload import Workload

#: contexts are searched up to here; a plan that still fits has no limit (every layer has a window)
MAX_CONTEXT_TOKENS = 2**40
FP16_BYTES = units.FP16_BITS // units.BITS_PER_BYTE


@dataclass(frozen=True)
class Memory:
    """Memory of one device, plan and workload. `paths` gives the dequantisation path of keys and of values."""

    device: HardwareSpec
    plan: KvPlan
    workload: Workload
    paths: dict[str, str]

    @property
    def unit(self) -> int:
        """Numerator units in a byte."""
        return units.BITS_PER_BYTE * self.plan.den

    def to_bytes(self, numerator: int) -> int:
        """Numerator units as whole bytes, rounded up."""
        return -(-numerator // self.unit)

    @cached_property
    def weight_bytes(self) -> int:
        return weights.weight_bytes(self.plan.model.parameters, self.workload.weights_bits)

    @cached_property
    def free_bytes(self) -> int:
        """Bytes left for sequences; negative when the weights do not fit."""
        device = self.device
        return capacity.free_bytes(
            device.capacity_bytes, device.usable_frac.si, self.weight_bytes, device.runtime_overhead.count
        )

    @property
    def prefix_tokens(self) -> int:
        """Shared prompt tokens that count: whole pages where memory is paged."""
        prefix = self.workload.prefix_tokens
        return prefix - prefix % self.workload.page_tokens if self.workload.admission == "paged" else prefix

    def shared(self, n_tokens: int) -> int:
        """Numerator of what all sequences of `n_tokens` share."""
        return self.plan.shared_bits(n_tokens, self.prefix_tokens) if self.prefix_tokens else 0

    @cached_property
    def activation_bytes(self) -> int:
        """Activations of one sequence in a decode step: the widest operation of a layer, FP16."""
        return FP16_BYTES * self.plan.model.activation_elements

    def workspace_bytes(self, n_tokens: int) -> int:
        """FP16 keys and values of one layer and sequence that the materialised path keeps."""
        return FP16_BYTES * self.plan.workspace_elements(n_tokens, self.paths)

    def extra(self, n_tokens: int) -> int:
        """Numerator of activations and workspace of one sequence."""
        return self.unit * (self.activation_bytes + self.workspace_bytes(n_tokens))

    def at_final_length(self) -> int:
        """Numerator of one sequence's keys and values at its final length, page padding included."""
        n = self.workload.final_tokens
        padding = self.plan.padding_bits(n, self.workload.page_tokens) if self.workload.admission == "paged" else 0
        return self.plan.bits(n) + padding

    def reserved(self, n_tokens: int) -> int:
        """Numerator that one sequence needs to grow to `n_tokens`: its peak, activations, workspace."""
        peak = self.plan.peak_bits(n_tokens)
        if self.workload.admission == "paged":
            peak += self.plan.padding_bits(n_tokens, self.workload.page_tokens)
        return peak + self.extra(n_tokens)

    @cached_property
    def kv_bytes(self) -> int:
        """Keys and values of the whole batch at the final length."""
        shared = self.shared(self.workload.final_tokens)
        return self.to_bytes(shared + self.workload.batch * (self.at_final_length() - shared))

    @cached_property
    def max_batch(self) -> int:
        """Most requests that fit at once under the workload's admission rule; 0 when not even one does."""
        n = self.workload.final_tokens
        free, shared = self.free_bytes * self.unit, self.shared(n)
        if free < self.reserved(n):
            return 0
        own, steps = self.own
        return capacity.max_batch(free * steps, shared * steps, own)

    @cached_property
    def own(self) -> tuple[int, int]:
        """What one more request adds under the admission rule: (numerator, over how many steps it is a sum)."""
        work = self.workload
        n = work.final_tokens
        shared = self.shared(n)
        if work.admission == "reserve":
            return self.reserved(n) - shared, 1
        resident = self.plan.sum_of_bits(work.input_tokens + 1, n)
        resident += self.plan.sum_of_padding_bits(work.input_tokens + 1, n, work.page_tokens)
        return resident + work.output_tokens * (self.extra(n) - shared), work.output_tokens

    def fits(self, n_sequences: int, n_tokens: int) -> bool:
        """True when `n_sequences` fit while each grows to `n_tokens` (reserve rule)."""
        shared = self.shared(n_tokens)
        return shared + n_sequences * (self.reserved(n_tokens) - shared) <= self.free_bytes * self.unit

    @cached_property
    def max_context_tokens(self) -> int | None:
        """Longest context at which the whole batch fits, with every shorter one; None where there is no limit."""
        batch = self.workload.batch
        if not self.fits(batch, 1):
            return 0
        high = 2
        while high <= MAX_CONTEXT_TOKENS and self.fits(batch, high):
            high *= 2
        if high > MAX_CONTEXT_TOKENS:
            return None
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            if self.fits(batch, middle):
                low = middle
            else:
                high = middle
        return low

    @cached_property
    def min_capacity_bytes(self) -> int:
        """Smallest memory in which the whole batch runs at once under the admission rule."""
        n = self.workload.final_tokens
        own, steps = self.own
        needed = max(self.shared(n) * steps + self.workload.batch * own, self.reserved(n) * steps)
        needed_bytes = -(-needed // (steps * self.unit)) + self.weight_bytes + self.device.runtime_overhead.count
        usable_frac = self.device.usable_frac.si
        return needed_bytes if usable_frac == 1 else int(needed_bytes / usable_frac) + 1

    @cached_property
    def infeasible_reason(self) -> str | None:
        """Why not even one request runs, and by how much; None when it does."""
        if self.max_batch:
            return None
        usable = units.human(self.free_bytes + self.weight_bytes, "B")
        if self.free_bytes < 0:
            return (
                f"weights need {units.human(self.weight_bytes, 'B')}, {units.human(-self.free_bytes, 'B')} more than "
                f"the {usable} that {self.device.name} has for them"
            )
        need = self.to_bytes(self.reserved(self.workload.final_tokens))
        return (
            f"one request of {self.workload.final_tokens:,} tokens needs {units.human(need, 'B')}, "
            f"{units.human(need - self.free_bytes, 'B')} more than the weights leave of {usable}"
        )

    def record(self, trace: Trace) -> None:
        """Put the memory formulas and their values into `trace`."""
        work, plan, model = self.workload, self.plan, self.plan.model
        n = work.final_tokens
        trace.note(
            "weight_bytes",
            self.weight_bytes,
            "B",
            weights.weight_bytes.equation,
            weights.weight_bytes.source,
            n_parameters=model.parameters,
            weights_bits=work.weights_bits,
        )
        trace.note(
            "kv_bytes",
            self.kv_bytes,
            "B",
            "(shared_bits + batch * (bits_per_sequence - shared_bits)) / 8, bits summed over layers, keys and values",
            "docs/model.md, KV bytes",
            batch=work.batch,
            n_tokens=n,
            bits_per_sequence=self.at_final_length() / plan.den,
            shared_bits=self.shared(n) / plan.den,
            elements_per_sequence=plan.elements(n),
            **{
                f"{g.which}_bits_per_packed_token_layers_{g.n_stored_layers}": g.packed_bits / plan.den
                for g in plan.groups
            },
        )
        own, steps = self.own
        own_bytes = own / steps / self.unit
        rule = "at its peak size" if work.admission == "reserve" else "at its mean size over the generation"
        trace.note(
            "max_batch",
            self.max_batch,
            "sequence",
            f"{capacity.max_batch.equation}; a request counts {rule}",
            capacity.max_batch.source,
            free_bytes=self.free_bytes,
            shared_bytes=self.shared(n) / self.unit,
            bytes_per_sequence=own_bytes,
            activation_bytes_per_sequence=self.activation_bytes,
            workspace_bytes_per_sequence=self.workspace_bytes(n),
            admission=work.admission,
        )
        trace.note(
            "free_bytes",
            self.free_bytes,
            "B",
            capacity.free_bytes.equation,
            capacity.free_bytes.source,
            capacity_bytes=self.device.capacity_bytes,
            usable_frac=self.device.usable_frac.si,
            weight_bytes=self.weight_bytes,
            overhead_bytes=self.device.runtime_overhead.count,
        )
        trace.note(
            "fits_whole_batch",
            self.max_batch >= work.batch,
            "",
            "max_batch >= batch",
            capacity.max_batch.source,
            max_batch=self.max_batch,
            batch=work.batch,
        )
        trace.note(
            "max_context_tokens",
            self.max_context_tokens,
            "token",
            "largest s such that the whole batch fits with all requests at s' tokens at once, for every s' <= s",
            "docs/model.md, Capacity",
            free_bytes=self.free_bytes,
            batch=work.batch,
        )
        trace.note(
            "min_capacity_bytes",
            self.min_capacity_bytes,
            "B",
            f"weights + overhead + shared + batch * bytes_per_sequence; a request counts {rule}",
            "docs/model.md, Capacity",
            weight_bytes=self.weight_bytes,
            overhead_bytes=self.device.runtime_overhead.count,
            shared_bytes=self.shared(n) / self.unit,
            batch=work.batch,
            bytes_per_sequence=own_bytes,
        )
        trace.note(
            "peak_kv_bytes_per_sequence",
            self.to_bytes(plan.peak_bits(n)),
            "B",
            "largest KV size over the lengths 1..final, just before a group is packed",
            "docs/model.md, Capacity",
            n_tokens=n,
        )
        trace.note(
            "activation_bytes",
            work.batch * self.activation_bytes,
            "B",
            "batch * 2 bytes * elements of the widest operation of a layer (or the output head)",
            "docs/model.md, Capacity",
            batch=work.batch,
            activation_elements=model.activation_elements,
        )
        trace.note(
            "workspace_bytes",
            work.batch * self.workspace_bytes(n),
            "B",
            "batch * 2 bytes * materialised elements of one layer and sequence",
            "docs/model.md, Capacity",
            batch=work.batch,
            materialised_elements=plan.workspace_elements(n, self.paths),
        )
