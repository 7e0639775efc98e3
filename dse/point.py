"""One design point: a device, a model with its quantizers, and a workload, evaluated into named numbers."""

import math
from typing import Any

from dse import assumptions, catalog, memory_unit, point_times, units, utilisation
from dse.errors import InputError, show
from dse.formulas import FORMULAS, effective_bits
from dse.memory import Memory
from dse.plan import NO_WINDOW, KvPlan
from dse.quantizers import QuantizerSpec
from dse.specs import HardwareSpec, Quantity, StackSpec
from dse.trace import Trace
from dse.workload import Workload

#: result names in the order of the table, with units ("" for names and yes/no)
RESULT_UNITS = {
    "device": "", "model": "", "quantizer": "", "key_quantizer": "", "value_quantizer": "", "model_kind": "",
    "stack": "", "tokens": "", "batch": "sequence", "input_tokens": "token", "output_tokens": "token", "admission": "",
    "page_tokens": "token", "prefix_tokens": "token", "weights_bits": "bit", "activation_bits": "bit",
    "prompt_chunk_tokens": "token", "kv_cache": "", "cached_input_discount": "1", "key_dequant_path": "",
    "value_dequant_path": "",
    "stored_tokens": "token", "read_tokens": "token",
    "effective_bits": "bit", "stored_bits": "bit", "page_tail_bits": "bit", "write_amplification": "1",
    "bits_kind": "", "measured_bits": "bit", "mse": "1",
    "sqnr_db": "dB", "measured_error": "1", "measured_on": "", "kv_bytes_per_token": "B/token", "kv_bytes": "B",
    "peak_kv_bytes_per_sequence": "B", "weight_bytes": "B", "activation_bytes": "B", "workspace_bytes": "B",
    "capacity_bytes": "B", "free_bytes": "B", "min_capacity_bytes": "B", "feasible": "", "infeasible_reason": "",
    "fits_whole_batch": "", "max_batch": "sequence", "max_context_tokens": "token", "running_batch": "sequence",
    "n_waves": "1", "linear_s": "s", "attention_s": "s", "quantize_s": "s", "dequantize_s": "s",
    "quantize_busy_s": "s", "dequantize_busy_s": "s", "busy_cores": "1", "decode_step_s": "s", "prefill_s": "s",
    "total_s": "s", "ttft_s": "s", "tpot_s": "s",
    "throughput_tokens_per_s": "token/s", "bound": "", "linear_bound": "", "attention_bound": "",
    "compute_utilisation": "1", "bandwidth_utilisation": "1", "prefill_compute_utilisation": "1",
    "prefill_bandwidth_utilisation": "1",
    "joules_per_token": "J/token", "joules_per_token_by_parts": "J/token", "memory_joules_per_token": "J/token",
    "compute_joules_per_token": "J/token", "idle_joules_per_token": "J/token",
    "usd_per_million_tokens": "USD per million tokens", "usd_per_request": "USD per request",
    "effective_bandwidth_bytes_per_s": "B/s", "effective_capacity_bytes": "B", "assumptions": "",
}  # fmt: skip


#: what most of the time goes into, by `bound`
WHY_BOUND = {
    "bandwidth": "reading weights, keys and values", "compute": "arithmetic, the prompt included",
    "latency": "launching and scheduling kernels: take a larger batch",
    "dequantization": "packing and unpacking keys and values",
}  # fmt: skip
#: memory that holds every batch of interest
ROOM_BYTES = 2**53
#: results that say what memory keeps from a point
ROOM_RESULTS = ("throughput_tokens_per_s", "decode_step_s", "bound")
#: software stack of a device that has several
DEFAULT_STACK = "vllm"
#: whose stacks a GPU runs by that is known by its data sheet alone, when calibrated is asked for
DEFAULT_STACKS_OF = "h100"


def dequant_paths(device: HardwareSpec, plan: KvPlan, work: Workload) -> dict[str, str]:
    """Path of keys and of values: the workload's override, else the device's rule, "none" where nothing is packed.

    Where layers have different quantizers there is a path for each of them, by `TensorGroup.place`.
    """
    paths: dict[str, str] = {}
    sides = {"key": plan.key_quantizer, "value": plan.value_quantizer}
    places = {g.place: g.quantizer for g in plan.groups} if any(q.layers for q in sides.values()) else sides
    for place, quantizer in places.items():
        default = device.path_of(quantizer.family.name)
        path: str = work.dequant_path or default
        packed = any(g.layout.needs_unpacking for g in plan.groups if g.place == place)
        if packed and path == "engine" and device.engine_rate is None:
            raise InputError(
                f"dequant-path = engine: {device.name} has no engine (engine_rate): use fused or materialised"
            )
        paths[place] = path if packed else "none"
    return paths


def path_text(paths: dict[str, str], which: str) -> str:
    """The path of keys or of values; several where layers have different quantizers with different paths."""
    own = (path for place, path in paths.items() if place.partition(" ")[0] == which)
    return ", ".join(dict.fromkeys(own)) or "none"


def laid_out(device: HardwareSpec, plan: KvPlan, work: Workload) -> tuple[KvPlan, dict[str, str]]:
    """The plan as this device and workload hold it, under the token policy and in the device's pages; and its paths."""
    plan = plan.under(work.token_policy.limits(work.input_tokens))
    paths = dequant_paths(device, plan, work)
    _check_without_cache(plan, work)
    return memory_unit.attach(device, plan, paths), paths


def laid_out_for_traffic(device: HardwareSpec, plan: KvPlan, work: Workload) -> tuple[KvPlan, dict[str, str]]:
    """`laid_out` for requests of mixed lengths, whose own prompts a policy cannot know here; InputError otherwise."""
    for name, value, only in (
        ("prefix", work.prefix_tokens, 0), ("tokens", work.token_policy.name, "full"), ("kv-cache", work.kv_cache, True)
    ):  # fmt: skip
        if value != only:
            raise InputError(f"{name} = {show(value)}: traffic is modelled with {show(only)} only: leave it out")
    return laid_out(device, plan, work)


def _check_without_cache(plan: KvPlan, work: Workload) -> None:
    """Without a KV cache nothing is stored, so nothing can be quantised. Raises InputError."""
    if not work.kv_cache and any(g.layout.needs_unpacking for g in plan.groups):
        raise InputError(f"quantizer = {plan.quantizer_name}: without a KV cache nothing is stored: use fp16")
    if not work.kv_cache and work.token_policy.name != "full":
        raise InputError(f"tokens = {work.token_policy.name}: without a KV cache nothing is stored: use full")


def stack_of(device: HardwareSpec, work: Workload) -> tuple[str | None, StackSpec | None]:
    """The software stack whose calibrated parameters are used, vllm by default; none for the ideal model."""
    if work.model_kind == "ideal" or (work.model_kind == "auto" and not device.stacks and not work.stack):
        return None, None
    if not device.stacks and device.n_cores is None:
        raise InputError(
            f"model-kind = calibrated: {device.name} has no calibrated parameters: use ideal, or `dse calibrate`"
        )
    stacks = device.stacks or catalog.device(DEFAULT_STACKS_OF).stacks
    name = work.stack or (DEFAULT_STACK if DEFAULT_STACK in stacks else next(iter(stacks)))
    if name not in stacks:
        raise InputError(f"stack = {show(name)}: {device.name} is calibrated for {', '.join(stacks)}")
    return name, stacks[name]


def evaluate(device: HardwareSpec, plan: KvPlan, work: Workload, trace: Trace | None = None) -> dict[str, Any]:
    """All results of one design point, named and ordered as `RESULT_UNITS`. Times are None where nothing fits."""
    trace = trace or Trace()
    plan, paths = laid_out(device, plan, work)
    stack_name, stack = stack_of(device, work)
    memory = Memory(device, plan, work, paths)
    if trace.keep:
        memory.record(trace)
    n = work.final_tokens
    elements = plan.elements(n)
    bits = float(plan.effective_bits)
    per_token_bytes = [  # of a layer
        (g, (g.bits(n) + g.padding_bits(n, memory.pages)) / (memory.unit * g.stored(n))) for g in plan.groups
    ]
    result: dict[str, Any] = {
        "device": device.name, "model": plan.model.name, "quantizer": plan.quantizer_name,
        "key_quantizer": plan.key_quantizer.name, "value_quantizer": plan.value_quantizer.name,
        "model_kind": "calibrated" if stack else "ideal", "stack": stack_name, "tokens": work.token_policy.name,
        "batch": work.batch, "input_tokens": work.input_tokens, "output_tokens": work.output_tokens,
        "admission": work.admission, "page_tokens": work.page_tokens, "prefix_tokens": work.prefix_tokens,
        "weights_bits": work.weights_bits, "activation_bits": work.activation_bits,
        "prompt_chunk_tokens": work.prompt_chunk_tokens, "kv_cache": work.kv_cache,
        "cached_input_discount": work.cached_input_discount, "key_dequant_path": path_text(paths, "key"),
        "value_dequant_path": path_text(paths, "value"),
        **_tokens(plan, work, trace),
        "effective_bits": trace.note(
            "effective_bits", bits, "bit", "element-weighted mean of what the methods' papers count",
            plan.key_quantizer.family.source,
            **({f"{g.place}_bits": float(g.layout.effective_bits) for g in plan.groups} if trace.keep else {}),
        ),
        "stored_bits": trace.call(
            "stored_bits", effective_bits.stored_bits, sequence_bytes=memory.sequence(n) / memory.unit,
            n_elements=elements,
        ),
        **memory_unit.results(device, plan, n, memory.pages if work.kv_cache else 1, trace),
        **measured(plan, trace),
        "kv_bytes_per_token": trace.note(
            "kv_bytes_per_token",
            utilisation.added(g.n_stored_layers * each for g, each in per_token_bytes) if work.kv_cache else 0.0,
            "B/token", "sum over layers, keys and values of bits at the final length / 8 / kept tokens, page padding "
            "included", "docs/model.md, KV bytes", n_tokens=n,
            **{
                f"{g.place}_bytes_per_layer_{g.n_stored_layers}_layers": per_token for g, per_token in per_token_bytes
            },
        ),
        "kv_bytes": memory.kv_bytes, "peak_kv_bytes_per_sequence": memory.peak_kv_bytes,
        "weight_bytes": memory.weight_bytes, "activation_bytes": work.batch * memory.activation_bytes,
        "workspace_bytes": work.batch * memory.workspace_bytes(n), "capacity_bytes": device.capacity_bytes,
        "free_bytes": memory.free_bytes, "min_capacity_bytes": memory.min_capacity_bytes,
        "feasible": memory.max_batch > 0, "infeasible_reason": memory.infeasible_reason,
        "fits_whole_batch": memory.max_batch >= work.batch, "max_batch": memory.max_batch,
        "max_context_tokens": memory.max_context_tokens,
    }  # fmt: skip
    result.update(
        point_times.evaluate(device, plan, work, memory, trace, stack) if memory.max_batch else point_times.NO_TIMES
    )
    bandwidth, capacity_bytes = device.memory_bandwidth.si, device.capacity_bytes
    result["effective_bandwidth_bytes_per_s"] = trace.call(
        "effective_bandwidth_bytes_per_s",
        effective_bits.effective_bandwidth_bytes_per_s,
        bandwidth_bytes_per_s=bandwidth,
        effective_bits=bits,
    )
    result["effective_capacity_bytes"] = trace.call(
        "effective_capacity_bytes",
        effective_bits.effective_capacity_bytes,
        capacity_bytes=capacity_bytes,
        effective_bits=bits,
    )
    result["assumptions"] = assumptions.of(device, plan, paths, stack, work.activation_bits)
    if work.token_policy.family.validity:
        result["assumptions"].append("token_policy")
    if trace.keep:
        _record_choices(device, plan, work, paths, result, trace)
    return {name: result[name] for name in RESULT_UNITS}


def roomy(device: HardwareSpec) -> HardwareSpec:
    """The device with memory in which every batch of interest runs at once."""
    endless = Quantity(value=ROOM_BYTES, unit="B", source="any", kind="derived")
    return device.model_copy(update={"memory_capacity": endless})


def with_room(device: HardwareSpec, plan: KvPlan, work: Workload, result: dict[str, Any]) -> dict[str, Any] | None:
    """What memory keeps from a point with this `result`: the same in memory for the whole batch.

    None where the memory is not what binds, where not one request fits (`infeasible_reason` says why), and where no
    memory would do.
    """
    if not result["feasible"] or result["fits_whole_batch"]:
        return None
    found = evaluate(roomy(device), plan, work)
    return found if found["fits_whole_batch"] else None


def bound_text(bound: str) -> str:
    """What binds, with what that means, but for capacity."""
    return f"{bound}: most of the time goes into {WHY_BOUND[bound]}"


def room_text(rate: str, found: dict[str, Any]) -> str:
    """What capacity keeps from a design: `found` is the result of `with_room`, `rate` its measure as text."""
    bound = found["bound"]
    return f"with room for all it would be {rate}, bound by {bound} (most of the time goes into {WHY_BOUND[bound]})"


def speed(device: HardwareSpec, plan: KvPlan, work: Workload) -> dict[str, Any]:
    """Of the results of `evaluate` those that say what runs and how fast, in a fraction of its time, for searches.

    feasible, fits_whole_batch, running_batch, decode_step_s, total_s, throughput_tokens_per_s.
    """
    plan, paths = laid_out(device, plan, work)
    _, stack = stack_of(device, work)
    memory = Memory(device, plan, work, paths)
    names = ("running_batch", "decode_step_s", "total_s", "throughput_tokens_per_s")
    found: dict[str, Any] = {name: point_times.NO_TIMES[name] for name in names}
    if memory.max_batch:
        batch = point_times.served(device, plan, work, memory, Trace(), stack)
        values = (batch.running, batch.times.decode_step_s, batch.total_s, batch.tokens_per_s)
        found = dict(zip(names, values, strict=True))
    return {"feasible": memory.max_batch > 0, "fits_whole_batch": memory.max_batch >= work.batch, **found}


def _tokens(plan: KvPlan, work: Workload, trace: Trace) -> dict[str, float]:
    """Tokens stored and read at the final length, means over the layers; whole numbers where they are."""
    family, limits, found = work.token_policy.family, plan.limits, {}
    named = zip(("stored_tokens", "read_tokens"), plan.mean_tokens(work.final_tokens), strict=True)
    for name, mean in named:
        formula = FORMULAS[name]
        found[name] = trace.note(
            name, int(mean) if mean.denominator == 1 else float(mean), "token",
            f"mean over layers of {formula.equation} at the final length", family.source,
            n_tokens=work.final_tokens, prompt_kept_tokens=min(limits.prompt_kept_tokens, work.input_tokens),
            dropped_tokens=limits.dropped_tokens,
            **{f"window_tokens_{g.n_stored_layers}_layers": g.window_tokens
               for g in plan.groups if g.window_tokens < NO_WINDOW},
        )  # fmt: skip
    return found


def operations(device: HardwareSpec, plan: KvPlan, work: Workload, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Every operation of a decode step and of the prompt of the running batch of `result`; empty where nothing fits.

    Fields of `dse.utilisation.Operation` with both utilisations; the last of each phase, "all", is their sum.
    """
    if not result["running_batch"]:
        return []
    plan, paths = laid_out(device, plan, work)
    prefix = Memory(device, plan, work, paths).prefix_tokens
    _, stack = stack_of(device, work)
    return [op.as_dict() for op in utilisation.of(device, plan, work, result["running_batch"], paths, prefix, stack)]


def measured(plan: KvPlan, trace: Trace) -> dict[str, Any]:
    """Bits and errors that quantising real keys and values gave, weighted by the model's elements on each side."""
    sides = {"key": plan.key_quantizer, "value": plan.value_quantizer}
    kinds = {sides[g.which].bits_kind for g in plan.groups}
    kind = kinds.pop() if len(kinds) == 1 else ", ".join(f"{side} {q.bits_kind}" for side, q in sides.items())
    trace.note(
        "bits_kind", kind, "", "closed: nominal shares; measured: shares that data realised", "docs/model.md, Bits"
    )
    found: dict[str, Any] = dict.fromkeys(("measured_bits", "mse", "sqnr_db", "measured_error", "measured_on"))
    used = {g.which: sides[g.which].measured.get(g.which) for g in plan.groups}
    if (plan.key_quantizer.layers or plan.value_quantizer.layers) and not all(used.values()):
        return {"bits_kind": kind, **_predicted(sides, found, trace)}
    found["measured_error"] = _output_error(sides)
    if all(used.values()):
        weights = {side: sum(g.n_stored_layers * g.n_elements for g in plan.groups if g.which == side) for side in used}
        total = sum(weights.values())
        each = [(weights[side] / total, m) for side, m in used.items() if m]
        found["measured_bits"] = sum(w * units.BITS_PER_BYTE * m.stored_bytes / m.n_elements for w, m in each)
        if all(m.mse is not None for _, m in each):
            error = sum(w * (m.mse or 0.0) for w, m in each)
            signal = sum(w * m.mean_square for w, m in each)
            found["mse"] = error
            found["sqnr_db"] = effective_bits.sqnr_db(signal, error) if signal and error else None
        found["measured_on"] = ", ".join(dict.fromkeys(m.data for _, m in each))
    missing = ", ".join(f"{side}s ({sides[side].name})" for side, m in used.items() if not m)
    for name, value in found.items():
        trace.note(
            name, value, RESULT_UNITS[name],
            "mean over keys and values, each weighted by its share of the model's elements; errors of packed elements, "
            "bits at the data's own lengths; measured_error: root of squares, of the attention output over itself"
            if not missing else f"no measurement of the {missing}: `dse measure` a KV dump, then give --measurements",
            "dse quantize, dse measure", **{f"{side}_{what}": number for side, m in used.items() if m
                                            for what, number in (("elements_of_the_data", m.n_elements), ("mse", m.mse),
                                                                 ("mean_square", m.mean_square))},
        )  # fmt: skip
    return {"bits_kind": kind, **found}


def _predicted(sides: dict[str, QuantizerSpec], found: dict[str, Any], trace: Trace) -> dict[str, Any]:
    """What the file of a plan by layer says of bits and errors, where both sides are of it."""
    said = sides["key"].predicted if sides["key"].name == sides["value"].name else {}
    if "stored_bits" in said:
        found |= {"measured_bits": said["stored_bits"], "measured_on": said["source"]}
        found["measured_error"] = said.get("measured_error")
    for name, value in found.items():
        trace.note(
            name, value, RESULT_UNITS[name],
            "keys and values are not of one plan, and --measurements lacks some of their layers and methods" if not said
            else "as the plan's file says, from errors of single layers and sides, added as if independent"
            if value is not None else "the plan's file does not say: give --measurements the measurement.json of "
            "`dse measure` with all its layers and methods", "dse mix",
        )  # fmt: skip
    return found


def _output_error(sides: dict[str, QuantizerSpec]) -> float | None:
    """Relative error of the attention output: as measured where one quantizer packs both sides, else root sum of both.

    Errors of keys and of values are taken to be independent where they come from two quantizers. 16 bits keep what the
    model computes and have none.
    """
    exact = {side: quantizer.family.name in ("fp16", "bf16") for side, quantizer in sides.items()}
    if sides["key"].name == sides["value"].name and not all(exact.values()):
        found = [sides[side].measured.get(side) for side in sides]
        return found[0].output_error_both if all(found) and found[0] else None
    alone = [
        0.0 if exact[side] else m.output_error if (m := quantizer.measured.get(side)) else None
        for side, quantizer in sides.items()
    ]
    return None if None in alone else math.sqrt(sum((e or 0.0) ** 2 for e in alone))


def _record_choices(
    device: HardwareSpec, plan: KvPlan, work: Workload, paths: dict[str, str], result: dict[str, Any], trace: Trace
) -> None:
    """Explain the results that are not numbers of a formula: paths, parts of the bits, assumed numbers."""
    n, pages = work.final_tokens, work.page_tokens if work.admission == "paged" else 1
    parts = {part: float(bits / plan.elements(n)) for part, bits in plan.ledger(n, pages).items()}
    trace.note(
        "bit_ledger", result["stored_bits"], "bit", "payload + scales + ... + padding, at the final length",
        "docs/model.md, Bits", **{part: bits for part, bits in parts.items() if bits},
    )  # fmt: skip
    for which, quantizer in (("key", plan.key_quantizer), ("value", plan.value_quantizer)):
        rule = (
            f"--dequant-path, else the rule of {device.name} for {quantizer.family.name}; none where nothing is packed"
        )
        trace.note(f"{which}_dequant_path", path_text(paths, which), "", rule, "docs/model.md, Dequantisation")
    found = {}
    for name in result["assumptions"]:
        if name == "peak_rates":
            found[name] = "memory and arithmetic are taken to reach the peak of their data sheet"
            continue
        if name == "token_policy":
            found[name] = f"{work.token_policy.name}: {work.token_policy.family.validity}"
            continue
        if name == "stacks_of":
            found[name] = f"kernels as fitted on {device.stacks_of or DEFAULT_STACKS_OF}"
            continue
        if name == "eight_bit_kernels":
            found[name] = (
                "products of 8 bits are taken to reach the share of their peak that 16-bit ones were fitted to"
            )
            continue
        number = getattr(device, name, None) or device.rate(name.removesuffix("_rate"))
        found[name] = f"{number.value:g} {number.unit}: ".replace(" 1:", ":") + number.source
    trace.note(
        "assumptions", result["assumptions"], "", "numbers of kind `assumed` among those behind this result",
        f"dse show {device.name}", **found,
    )  # fmt: skip
