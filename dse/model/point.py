"""One design point: a device, a model laid out with its quantizers, and a workload, and the numbers of their core."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from dse.core import units
from dse.core.errors import LimitError
from dse.model import (
    assumptions,
    capacity,
    implementations,
    intervals,
    kv_bytes,
    memory_unit,
    own_server,
    peak_memory,
    starts,
)
from dse.model.attention import KnownSums
from dse.model.batch import (
    BOUNDS,
    Bounds,
    Served,
    Spent,
    Totals,
    bounds_of,
    full_batch,
    served_of,
    served_s,
    spent_of,
    totals_of,
)
from dse.model.deployed import rests_on_assumed_links
from dse.model.formulas import effective_bits
from dse.model.formulas.deployment import micro_batch
from dse.model.generation import (
    MANY_GROUPS,
    MAX_PIECES,
    Generation,
    contents_of,
    fits_alone,
    generation_of,
    groups_packed,
)
from dse.model.kernels import check_weights
from dse.model.kv_layout import MAX_KNOWN, KvPlan, Same
from dse.model.lower import (
    as_served,
    design_of,
    laid_out,
    memory_counted,
    path_text,
    weights_by_operation,
    with_admission,
)
from dse.model.measured import measured
from dse.model.operations import (
    ATTENTION,
    COLLECTIVES,
    DECODE,
    HOST,
    POWER,
    PREFILL,
    QUANTIZATION,
    decode_operations,
    prompt_operations,
    total_of,
)
from dse.model.quality import quality
from dse.model.records import STATES, Design, known
from dse.model.server import AtOnce, Pass, ServerResults, last_pass, server_results
from dse.model.stacks import kind_of, stack_of, stack_text
from dse.model.step import Run, Terms, Wave, known_run, one_prompt_s, terms_of
from dse.specs import measured_memory, servers
from dse.specs.device_and_model import HardwareSpec, StackSpec
from dse.specs.workload import Workload

#: results that are None where not one request fits, but for those that say so
NO_TIMES: dict[str, Any] = {
    **{name: None for kind in (Served, ServerResults, Wave, Totals, Spent, Bounds) for name in kind._fields},
    "prefill_alone_s": None,
    "running_batch": 0,
    "bound": "capacity",
}


#: fields of a workload that a lowered design does not fix
_OPEN = tuple(f.name for f in fields(Workload) if f.name not in ("batch", "input_tokens", "output_tokens"))


class ByLengths(NamedTuple):
    """Terms of a design at given lengths, shared by all batches; sums run over the steps of one sequence."""

    made: Generation
    terms: Terms
    sums: KnownSums


@dataclass(frozen=True)
class Lowered:
    """A device, a model and what is asked of them but for batch and lengths: laid out, and as numbers."""

    device: HardwareSpec
    plan: KvPlan
    paths: Mapping[str, str]
    stack_name: str | None
    stack: StackSpec | None
    design: Design
    #: of its times, how measurements of one's own correct them, and of a server's pool
    sure: intervals.Intervals
    corrected: own_server.Correction | None
    pool: intervals.Interval | None
    #: results that batch and lengths do not change
    results: Mapping[str, Any]
    #: parts of the design that its software does not run, each with the line that says so
    refused: Mapping[str, str]
    #: the line where start-ups differ in whether they fail
    may_not_start: str
    #: by the lengths of prompt and output, with and without the steps between them
    by_lengths: dict[tuple[int, int, bool], "ByLengths"] = field(default_factory=dict, compare=False, repr=False)
    #: what others make of it, by name
    kept: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, device: HardwareSpec, plan: KvPlan, work: Workload) -> "Lowered":
        """Raises InputError where they do not go together."""
        stack_name, stack = stack_of(device, work)
        engine = stack_text(stack_name, work) or ""
        asked, plan = plan, starts.as_stored(device, plan, work, engine)
        plan, paths = laid_out(device, plan, work)
        check_weights(device, plan.model, work, stack, stack_name)
        bits, memory = float(plan.effective_bits), memory_counted(device, work)
        is_server = memory == "server"
        sure = intervals.time_intervals(device, plan, work, stack, stack_name)
        corrected = own_server.correction_of(device, plan, work, stack, stack_name, sure.tokens.logs()[1])
        unpacking = implementations.rate_range(plan, work, stack)
        design = design_of(device, plan, work, paths, stack, stack_name)
        if corrected:
            sure = sure._replace(tokens=corrected.of(sure.tokens))
            design = design._replace(stack=design.stack._replace(token_time=corrected.factor))
        refused = starts.refusals(device, plan, work, engine)
        if design.memory.most_bytes and work.max_total_tokens:
            open_end = design._replace(memory=design.memory._replace(most_bytes=0))
            refused |= starts.of_cells(work, engine, design.memory.most_bytes, capacity.free_bytes(open_end))
        free_bytes = capacity.free_bytes(design)
        pool = intervals.pool_interval(device, work, stack_name, free_bytes) if is_server else None
        may_not_start = ""
        if design.memory.state_blocks:
            n_blocks, ends = capacity.n_blocks(design), (pool.low, pool.high) if pool else (1.0, 1.0)
            n_sequences = work.max_num_seqs or servers.of(stack_name, device, work.stack).sequences.count
            may_not_start = starts.of_states(device, work, engine, n_blocks, ends, n_sequences)
            if may_not_start and n_blocks < n_sequences:
                refused |= {"states": may_not_start}
        why_not = starts.why_not(refused)
        results = {
            "device": device.name,
            "model": plan.model.name,
            "quantizer": asked.quantizer_name,
            "key_quantizer": asked.key_quantizer.name,
            "value_quantizer": asked.value_quantizer.name,
            **{name: getattr(work, name) for name in _OPEN},
            "model_kind": kind_of(stack, work),
            "stack": stack_text(stack_name, work),
            "tokens": work.token_policy.name,
            "implementation": implementations.implementation_text(plan),
            "runs": work.other_software or not why_not,
            "runs_why": why_not or None,
            "key_dequant_path": path_text(paths, "key"),
            "value_dequant_path": path_text(paths, "value"),
            "effective_bits": bits,
            "memory": memory,
            "gpu_memory_utilization": design.memory.asked_share if is_server else None,
            "prompt_budget_tokens": design.memory.budget_tokens if is_server else None,
            "write_amplification": memory_unit.write_amplification(plan),
            **measured(plan),
            **quality(plan),
            "n_devices": work.n_devices,
            "capacity_bytes": device.reported_bytes if is_server else device.capacity_bytes,
            "effective_bandwidth_bytes_per_s": effective_bits.effective_bandwidth_bytes_per_s(
                device.kv_bandwidth.si, bits
            ),
            "effective_capacity_bytes": effective_bits.effective_capacity_bytes(device.capacity_bytes, bits),
            "pool_low": pool and pool.low,
            "pool_high": pool and pool.high,
            "token_time_low": sure.tokens.low,
            "token_time_high": sure.tokens.high,
            **intervals.energy_factors(device),
            "first_time_low": sure.first.low,
            "first_time_high": sure.first.high,
            "unpack_rate_low": unpacking[0],
            "unpack_rate_high": unpacking[1],
            "assumptions": _assumptions(device, plan, paths, stack, work, stack_name),
        }
        return cls(
            device, plan, paths, stack_name, stack, design, sure, corrected, pool, results, refused, may_not_start
        )


def _assumptions(
    device: HardwareSpec,
    plan: KvPlan,
    paths: Mapping[str, str],
    stack: StackSpec | None,
    work: Workload,
    stack_name: str | None,
) -> list[str]:
    """Names of the assumed numbers that any result rests on."""
    policy = ["token_policy"] if work.token_policy.family.validity or plan.model.read_limit_tokens else []
    has_assumed_links = rests_on_assumed_links(device, plan, work, stack_name)
    is_server = memory_counted(device, work) == "server"
    names = assumptions.of(device, plan, paths, stack, work, has_assumed_links, is_server)
    if measured_memory.of(work.calibrated):
        names.remove("server_memory")
    times, engine = measured_memory.times_of(work.calibrated), stack_text(stack_name, work) or ""
    own = ["own_server"] if times and not own_server.why_not(times, device, stack, work, engine) else []
    return [*names, *policy, *own]


class Point:
    """A device, a model laid out under its quantizers, and a workload; what is computed of them is kept.

    Raises InputError where they do not go together.
    """

    def __init__(self, device: HardwareSpec, plan: KvPlan, work: Workload) -> None:
        work = with_admission(device, work.of_model(plan.model))
        self.device, self.asked, self.asked_plan = device, work, plan
        #: all of the workload but batch and lengths
        settings = (*(vars(work)[name] for name in _OPEN), measured_memory.contents(work.calibrated))
        self.lowered = lowered = plan.once((Same(device), settings), lambda: Lowered.of(device, plan, work))
        #: in the pages of the device
        self.plan, self.paths = lowered.plan, lowered.paths
        self.stack_name, self.stack = lowered.stack_name, lowered.stack
        self.design: Design = lowered.design._replace(input_tokens=work.input_tokens, output_tokens=work.output_tokens)

    @cached_property
    def work(self) -> Workload:
        """The workload with its batch: as given, else as many as fit."""
        return self.asked if self.asked.batch else replace(self.asked, batch=self.batch)

    @cached_property
    def batch(self) -> int:
        """Requests of the batch: as given, else as many as fit, at most what the server takes; 1 where none fits."""
        return self.asked.batch or full_batch(self.design, self.max_batch)

    @property
    def takes_long(self) -> bool:
        """True where the steps are counted and pack so many groups that it takes seconds."""
        return self._packs_many and self._has_steps

    @cached_property
    def _packs_many(self) -> bool:
        return groups_packed(self.design) > MANY_GROUPS

    @cached_property
    def _has_steps(self) -> bool:
        """False where the steps would take long to count and no result reads them, as not one request fits."""
        if not self._packs_many:
            return True
        batch = self.asked.batch  # as many as fit are one, where not one does
        if self.design.load.is_paged and batch and capacity.requests_of(self.design, batch) > 1:
            return True  # the smallest memory for the batch is of a mean over the steps
        return fits_alone(self.design, self.free_bytes * self.unit)

    @cached_property
    def _by_lengths(self) -> ByLengths:
        """Compute the terms that all batches share. Raises LimitError for too many groups."""
        known = self.lowered.by_lengths
        lengths = self.design.input_tokens, self.design.output_tokens, self._has_steps
        if lengths not in known:
            made = generation_of(self.design, self._has_steps)
            if len(made.pieces) > MAX_PIECES:
                raise LimitError(
                    f"output = {self.design.output_tokens}: packs more than {MAX_PIECES:,} groups: take a larger group"
                )
            n_kept = sum(len(entry.made.pieces) for entry in known.values())
            if len(known) >= MAX_KNOWN or n_kept > MANY_GROUPS:
                known.clear()
            terms = terms_of(self.design, made)
            known[lengths] = ByLengths(made, terms, KnownSums.up_to(terms.same_from))
        return known[lengths]

    @property
    def made(self) -> Generation:
        """Bits that one sequence stores, reads and quantizes. Raises LimitError for too many groups."""
        return self._by_lengths.made

    @property
    def terms(self) -> Terms:
        """Terms of the times, shared by all batches."""
        return self._by_lengths.terms

    @property
    def sums(self) -> KnownSums:
        """The sums over the steps of one sequence, by how many run together."""
        return self._by_lengths.sums

    @cached_property
    def unit(self) -> int:
        """Bits per byte times the common denominator of fractional bits, of all stages."""
        return 8 * self.plan.den * self.asked.pp

    @cached_property
    def free_bytes(self) -> int:
        """Bytes left for sequences; negative when the weights do not fit."""
        return int(capacity.free_bytes(self.design))

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return int(capacity.weight_bytes(self.design))

    @cached_property
    def max_batch(self) -> int:
        """Most requests that fit at once under the workload's admission rule; 0 when not even one does."""
        return int(capacity.max_batch(self.design, self.made, self.free_bytes * self.unit))

    @cached_property
    def max_context_tokens(self) -> int | None:
        """Longest context at which the whole batch fits, with every shorter one; None where there is no limit."""
        return known(capacity.max_context_tokens(self.design, self.batch))

    @property
    def page_tokens(self) -> int:
        """Tokens that memory is given out by; 1 where every request reserves what it needs."""
        return int(self.design.load.page_tokens)

    def to_bytes(self, bits: int) -> int:
        """Bits over the common denominator as whole bytes, rounded up."""
        return -(-bits // self.unit)

    def own_bits(self, n_tokens: int) -> int:
        """Bits that one more sequence of `n_tokens` adds: unshared keys and values, activations, workspace."""
        return int(peak_memory.size_at(self.design, self.made.limits, self.made.prefix_tokens, n_tokens).own)

    def extra_bits(self, n_tokens: int) -> int:
        """Activations and workspace of one sequence of `n_tokens`, in the unit of its bits."""
        return int(peak_memory.extra_bits(self.design, self.made.limits, n_tokens))

    def ledger(self, n_tokens: int) -> dict[str, Fraction]:
        """Bits of one sequence by part; the parts add up to what it stores, page padding included and constant states
        left out, exactly."""
        den, tensors = self.plan.den, [g for g in self.design.tensors if g.side != STATES]
        stored = [kv_bytes.stored_tokens(g, self.made.limits, n_tokens) for g in tensors]
        parts = self.plan.ledger(stored)
        for g, kept in zip(tensors, stored, strict=True):
            if g.index_bits:
                index = Fraction(g.n_stored_layers * kept * g.index_bits, den)
                parts["index"] = parts.get("index", Fraction(0)) + index
            parts["padding"] += Fraction(g.n_stored_layers * kv_bytes.padding_bits(g, kept, self.page_tokens), den)
        return parts

    @property
    def infeasible_reason(self) -> str | None:
        """Why not even one request runs, and by how much; None when it does."""
        if self.max_batch:
            return None
        held_bytes, has, leaves = self.weight_bytes, "weights need", "the weights leave"
        if self.design.memory.is_server:
            held_bytes, leaves = int(capacity.held_bytes(self.design)), "weights, activations, graphs and buffers leave"
            has = "weights, activations, graphs and buffers need"
        usable = units.human(self.free_bytes + held_bytes, "B")
        if self.free_bytes < 0:
            return (
                f"{has} {units.human(held_bytes, 'B')}, {units.human(-self.free_bytes, 'B')} more than "
                f"the {usable} that {self.device.name} has for them"
            )
        need = capacity.request_bytes(self.design, self.made)
        return (
            f"one request of {self.work.final_tokens:,} tokens needs {units.human(need, 'B')}, "
            f"{units.human(need - self.free_bytes, 'B')} more than {leaves} of {usable}"
        )

    def run(self, n_sequences: int) -> Run:
        """`n_sequences` that run together, whether or not they fit: what one device does for its part of them."""
        split = self.design.deployment
        n = int(micro_batch(n_sequences, split.n_groups, split.n_in_flight))
        return known_run(self.design, self.made, self.terms, n, self.sums)

    @cached_property
    def waves(self) -> capacity.Waves:
        """Split the batch into waves; at least one request must fit."""
        return capacity.waves_of(float(self.batch), float(self.max_batch), capacity.is_replaced(self.design))

    @cached_property
    def largest_wave(self) -> Run:
        """The run of the largest wave."""
        return self.run(int(self.waves.running))

    @cached_property
    def smaller_wave(self) -> Run:
        """The run of the waves of one sequence less; the largest where all are alike."""
        return self.run(int(self.waves.running) - 1) if self.waves.n_smaller else self.largest_wave

    @cached_property
    def totals(self) -> Totals:
        """Time of all waves, and throughput, energy and cost that follow from it."""
        return totals_of(
            float(self.batch),
            self.work.output_tokens,
            self.waves,
            self.largest_wave.wave.wave_s,
            self.smaller_wave.wave.wave_s,
            capacity.is_replaced(self.design),
        )

    @cached_property
    def cycle(self) -> Pass:
        """The cycle of the server, as batches of papers or continuously; at least one request must fit."""
        return self.cycle_of(float(self.batch), float(self.max_batch))

    def cycle_of(self, batch: float, most: float) -> Pass:
        """The cycle of a server of `batch` requests, of which `most` >= 1 run at once."""
        total_s, n_steps = self.totals.total_s, float(self.design.output_tokens)
        requests = AtOnce(batch, most, n_steps, n_apart=0, longest=1.0)
        return last_pass(self.design, self.made, self.terms, self.sums, requests, total_s)

    @cached_property
    def server(self) -> ServerResults:
        """TPOT, TTFT, rates, energy and price of the server."""
        return server_results(self.design, self.cycle, float(self.batch), float(self.design.output_tokens))

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """Numbers of the core by name, interpreted; times are None where nothing fits."""
        return {**self._sizes(), **self._times()}

    def assumptions(self, device: HardwareSpec) -> list[str]:
        """Names of the assumed numbers that any result rests on, for another device with the same layout."""
        return _assumptions(device, self.plan, self.paths, self.stack, self.work, self.stack_name)

    def _sizes(self) -> dict[str, Any]:
        """Tokens, bits and bytes, and what fits."""
        design, made, batch, most = self.design, self.made, self.batch, self.max_batch
        parts = (
            contents_of(design, made),
            capacity.pool_of(design, made),
            capacity.fit_of(design, made, most),
            capacity.sizes_of(design, made, batch),
            capacity.needs_of(design, made, batch, True),
        )
        return {name: known(number) for part in parts for name, number in part._asdict().items()}

    def _times(self) -> dict[str, Any]:
        """The results from `running_batch` on."""
        if not self.max_batch:
            return NO_TIMES
        design, run, waves = self.design, self.largest_wave, self.waves
        bounds = bounds_of(design, run, waves.running, self.batch)
        total_s = served_s(design, float(self.batch), self.server.throughput_tokens_per_s, self.totals.total_s)
        spent = spent_of(design, self.made, self.terms, run, self.smaller_wave, waves, float(self.batch), total_s)
        served = served_of(design, waves.running, waves.n_waves)
        parts = (run.wave, self.server, self.totals, spent, served)
        numbers = {name: number for part in parts for name, number in part._asdict().items()}
        numbers["prefill_alone_s"] = one_prompt_s(design, self.terms)
        return {
            **{name: known(number) for name, number in numbers.items()},
            **{name: BOUNDS[place] for name, place in bounds._asdict().items()},
        }

    def operations(self) -> list[dict[str, Any]]:
        """Every operation of a decode step and of the prompt of the largest wave; empty where nothing fits.

        Fields of `operations.OperationCost` with both utilisations; the last of each phase is their sum, "all".
        """
        if not self.max_batch:
            return []
        names = [
            name
            for name, _ in weights_by_operation(
                self.plan.model, self.work, self.stack, as_served(self.device, self.stack)
            )
        ]
        run, rows = self.largest_wave, []
        for phase, operations, seconds in (
            ("decode", decode_operations(self.design, self.terms, run), run.wave.decode_step_s),
            ("prefill", prompt_operations(self.design, self.terms, run), run.wave.prefill_s),
        ):
            if not seconds:
                continue
            for op in (*operations, total_of(operations, DECODE if phase == "decode" else PREFILL, seconds)):
                name = "all" if op.kind < 0 else names[op.kind] if op.kind < ATTENTION else "attention"
                others = {QUANTIZATION: "quantization", COLLECTIVES: "collectives", HOST: "host", POWER: "power limit"}
                name = others.get(op.kind, name)
                shares = [
                    part / op.seconds if op.seconds else 0.0 for part in (op.compute_at_peak_s, op.read_at_peak_s)
                ]
                rows.append(
                    {
                        **op._asdict(),
                        "phase": phase,
                        "name": name,
                        "compute_utilisation": shares[0],
                        "bandwidth_utilisation": shares[1],
                    }
                )
        order = (
            "phase",
            "name",
            "seconds",
            "flops",
            "n_bytes",
            "compute_at_peak_s",
            "read_at_peak_s",
            "compute_utilisation",
            "bandwidth_utilisation",
        )
        return [{key: op[key] for key in order} for op in rows]


def filled(device: HardwareSpec, plan: KvPlan, work: Workload) -> Workload:
    """The workload with batch and KV allocation as a design takes them where they are not given: `Point.work`."""
    return work if work.batch and work.admission else Point(device, plan, work).work
