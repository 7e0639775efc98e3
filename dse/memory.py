"""What fits on a device: weights, keys and values, activations; solved for batch, context and capacity.

Every size is an exact integer in units of 1 / den bit (the plan's denominator), so "it fits" is never a rounding.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial

from dse import peaks, units
from dse.formulas import activations, capacity, weights
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

    @cached_property
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

    @cached_property
    def prefix_tokens(self) -> int:
        """Shared prompt tokens that count: whole pages where memory is paged, none where a policy drops some."""
        if not self.plan.limits.keeps_all:
            return 0
        prefix = self.workload.prefix_tokens
        return prefix - prefix % self.workload.page_tokens if self.workload.admission == "paged" else prefix

    def shared(self, n_tokens: int) -> int:
        """Numerator of what all sequences of `n_tokens` share."""
        return self.plan.shared_bits(n_tokens, self.prefix_tokens) if self.prefix_tokens else 0

    def activation_tokens(self, n_tokens: int) -> int:
        """Tokens of one sequence that are worked on at once at a context of `n_tokens`: all without a KV cache."""
        work = self.workload
        if not work.kv_cache:
            return n_tokens
        return activations.activation_tokens(n_tokens, work.input_tokens, work.output_tokens, work.prompt_chunk_tokens)

    def activations(self, n_tokens: int) -> int:
        """Bytes of activations of one sequence at a context of `n_tokens`: the widest operation of a layer."""
        return activations.activation_bytes(
            self.activation_tokens(n_tokens), self.plan.model.activation_elements, self.logits_elements,
            self.workload.activation_bits,
        )  # fmt: skip

    @cached_property
    def logits_elements(self) -> int:
        """Elements per token of the output head: the logits, and two rows of the hidden size beside them."""
        model = self.plan.model
        return min(model.activation_elements, 2 * model.hidden_size + model.vocab_size)

    @cached_property
    def activation_bytes(self) -> int:
        """Activations of one sequence at its final length."""
        return self.activations(self.workload.final_tokens)

    def workspace_bytes(self, n_tokens: int) -> int:
        """FP16 keys and values of one layer and sequence that the materialised path keeps."""
        return FP16_BYTES * self.plan.workspace_elements(n_tokens, self.paths) if self._writes_copies else 0

    @cached_property
    def _writes_copies(self) -> bool:
        return bool(self.plan.materialised(self.paths))

    def extra(self, n_tokens: int) -> int:
        """Numerator of activations and workspace of one sequence."""
        return self.unit * (self.activations(n_tokens) + self.workspace_bytes(n_tokens))

    @cached_property
    def pages(self) -> int:
        """Tokens that memory is given out by; 1 where every request reserves what it needs."""
        return self.workload.page_tokens if self.workload.admission == "paged" else 1

    def sequence(self, n_tokens: int) -> int:
        """Numerator of one sequence's keys and values, page padding included; 0 where none are kept."""
        if not self.workload.kv_cache:
            return 0
        return self.plan.bits(n_tokens) + self.plan.padding_bits(n_tokens, self.pages)

    @cached_property
    def _sizes(self) -> dict[int, tuple[int, int]]:
        """`shared` and `own` of lengths asked for before: searches come back to the same ones."""
        return {}

    def own(self, n_tokens: int) -> int:
        """Numerator that one more sequence of `n_tokens` adds: what it does not share, activations, workspace."""
        return self.sequence(n_tokens) - self.shared(n_tokens) + self.extra(n_tokens)

    def need(self, n_sequences: int, n_tokens: int) -> int:
        """Numerator of `n_sequences`, all at `n_tokens`."""
        sizes = self._sizes.get(n_tokens)
        if sizes is None:
            sizes = self._sizes[n_tokens] = (self.shared(n_tokens), self.own(n_tokens))
        return sizes[0] + n_sequences * sizes[1]

    @cached_property
    def passed(self) -> list[int]:
        """The lengths that decide what a request needs on its way from prompt to last token."""
        work = self.workload
        return peaks.lengths(self.plan, work.input_tokens, work.final_tokens, self.prefix_tokens, self.pages)

    @cached_property
    def peak_kv_bytes(self) -> int:
        """Most bytes of keys and values that one sequence takes between its prompt and its last token."""
        return self.to_bytes(max(self.sequence(n) for n in self.passed))

    @cached_property
    def kv_bytes(self) -> int:
        """Keys and values of the whole batch at the final length."""
        n, batch = self.workload.final_tokens, self.workload.batch
        return self.to_bytes(self.need(batch, n) - batch * self.extra(n))

    @cached_property
    def mean(self) -> tuple[int, int, int]:
        """Paged: (shared part at its largest, sum over the decode steps of what a request adds, number of steps)."""
        work = self.workload
        first, n, steps = work.input_tokens + 1, work.final_tokens, work.output_tokens
        shared = peaks.sum_of_shared_bits(self.plan, first, n, self.prefix_tokens) if self.prefix_tokens else 0
        resident = (
            0
            if not work.kv_cache
            else self.plan.sum_of_bits(first, n) + self.plan.sum_of_padding_bits(first, n, work.page_tokens)
        )
        return max(self.shared(s) for s in self.passed), resident - shared + steps * self.extra(n), steps

    @cached_property
    def max_batch(self) -> int:
        """Most requests that fit at once under the workload's admission rule; 0 when not even one does."""
        free = self.free_bytes * self.unit
        if any(self.need(1, n) > free for n in self.passed):
            return 0
        if self.workload.admission == "reserve":
            return min(capacity.max_batch(free, self.shared(n), self.own(n)) for n in self.passed)
        shared, own, steps = self.mean
        return max(capacity.max_batch((free - shared) * steps, 0, own), 1)

    def fits(self, n_sequences: int, n_tokens: int) -> bool:
        """True when `n_sequences` fit with all of them at `n_tokens`, and at every shorter length.

        Where a token policy follows the prompt, the prompt is what the workload's output leaves of `n_tokens`, and the
        lengths are those from there on.
        """
        return self._largest(n_sequences, n_tokens) <= self.free_bytes * self.unit

    def _largest(self, n_sequences: int, n_tokens: int) -> int:
        """Most that `n_sequences` need (numerator) on their way to `n_tokens`; see `fits` for where the way begins."""
        there, first, policy = self, 1, self.workload.token_policy
        if policy.follows_prompt:
            first = max(n_tokens - self.workload.output_tokens, 1)
            there = replace(self, plan=self.plan.under(policy.limits(first)))
        lengths = peaks.lengths(there.plan, first, n_tokens, self.prefix_tokens, self.pages)
        return max(there.need(n_sequences, n) for n in lengths)

    @cached_property
    def max_context_tokens(self) -> int | None:
        """Longest context at which the whole batch fits, with every shorter one; None where there is no limit."""
        largest = partial(self._largest, self.workload.batch)
        step = max((step for step, _ in self.plan.packings), default=1)
        never_falls = not self.workload.token_policy.follows_prompt
        return peaks.longest(largest, self.free_bytes * self.unit, MAX_CONTEXT_TOKENS, step, never_falls)

    @cached_property
    def min_capacity_bytes(self) -> int:
        """Smallest memory in which the whole batch runs at once under the admission rule."""
        batch = self.workload.batch
        needed = max(self.need(batch if self.workload.admission == "reserve" else 1, n) for n in self.passed)
        if self.workload.admission == "paged" and batch > 1:  # one request alone counts at its largest, not its mean
            shared, own, steps = self.mean
            needed = max(needed, shared - -batch * own // steps)
        return capacity.min_capacity_bytes(
            self.to_bytes(needed), self.device.usable_frac.si, self.weight_bytes, self.device.runtime_overhead.count
        )

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
        need = self.to_bytes(max(self.need(1, n) for n in self.passed))
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
            bits_per_sequence=self.sequence(n) / plan.den,
            shared_bits=self.shared(n) / plan.den,
            elements_per_sequence=plan.elements(n),
            **{
                f"{g.place}_bits_per_packed_token_layers_{g.n_stored_layers}": g.packed_bits / plan.den
                for g in plan.groups
            },
        )
        if work.admission == "reserve":
            free = self.free_bytes * self.unit
            at = min(self.passed, key=lambda s: capacity.max_batch(free, self.shared(s), self.own(s)))
            shared_bytes, own_bytes = self.shared(at) / self.unit, self.own(at) / self.unit
            rule = f"at the length between prompt and last token where the batch is largest, {at:,}"
        else:
            shared, own, steps = self.mean
            shared_bytes, own_bytes = shared / self.unit, own / steps / self.unit
            rule = "at its mean size over the generation"
        trace.note(
            "max_batch",
            self.max_batch,
            "sequence",
            f"{capacity.max_batch.equation}; a request counts {rule}",
            capacity.max_batch.source,
            free_bytes=self.free_bytes,
            shared_bytes=shared_bytes,
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
            "feasible",
            self.max_batch > 0,
            "",
            "max_batch >= 1: at least one request fits",
            "docs/model.md, Capacity",
            max_batch=self.max_batch,
        )
        trace.note(
            "infeasible_reason",
            self.infeasible_reason,
            "",
            "what is missing for one request; None where one fits",
            "docs/model.md, Capacity",
            free_bytes=self.free_bytes,
            bytes_per_sequence=max(self.need(1, s) for s in self.passed) / self.unit,
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
            "largest s such that the whole batch fits with all requests at s' tokens at once, for every s' <= s; "
            "where a token policy follows the prompt, s less the output is the prompt",
            "docs/model.md, Capacity",
            free_bytes=self.free_bytes,
            batch=work.batch,
        )
        trace.note(
            "min_capacity_bytes",
            self.min_capacity_bytes,
            "B",
            f"(weights + overhead + shared + batch * bytes_per_sequence) / usable_frac; a request counts {rule}",
            "docs/model.md, Capacity",
            weight_bytes=self.weight_bytes,
            overhead_bytes=self.device.runtime_overhead.count,
            usable_frac=self.device.usable_frac.si,
            shared_bytes=shared_bytes,
            batch=work.batch,
            bytes_per_sequence=own_bytes,
        )
        trace.note(
            "peak_kv_bytes_per_sequence",
            self.peak_kv_bytes,
            "B",
            "largest KV size between prompt and last token, page padding included: just before a group is packed",
            "docs/model.md, Capacity",
            first_tokens=work.input_tokens,
            last_tokens=n,
        )
        trace.note(
            "activation_bytes",
            work.batch * self.activation_bytes,
            "B",
            f"batch * {activations.activation_bytes.equation}",
            activations.activation_bytes.source,
            batch=work.batch,
            n_tokens=self.activation_tokens(n),
            activation_elements=model.activation_elements,
            logits_elements=self.logits_elements,
            activation_bits=work.activation_bits,
        )
        trace.note(
            "workspace_bytes",
            work.batch * self.workspace_bytes(n),
            "B",
            "batch * 2 bytes * materialised elements of one layer and sequence, padded to tiles of tokens where the "
            "method's code pads them",
            "docs/model.md, Capacity",
            batch=work.batch,
            materialised_elements=plan.workspace_elements(n, self.paths),
            **self._tiles(),
        )

    def _tiles(self) -> dict[str, int]:
        """Padded elements of one sequence: of the layer in work, and of a cache that were stored padded."""
        one_layer, every_layer = self.plan.tile_padding(self.workload.final_tokens, self.paths)
        return {"padded_elements": one_layer, "padded_elements_if_stored_padded": every_layer} if one_layer else {}
