"""One design point: a device, a model with its quantizers, and a workload, evaluated into named numbers."""

from typing import Any

from dse import catalog, memory_unit, steps, units
from dse.errors import InputError, show
from dse.formulas import capacity, effective_bits, energy, throughput
from dse.memory import Memory
from dse.plan import KvPlan
from dse.specs import ASSUMED, HardwareSpec, StackSpec
from dse.trace import Trace
from dse.workload import Workload

#: result names in the order of the table, with units ("" for names and yes/no)
RESULT_UNITS = {
    "device": "", "model": "", "quantizer": "", "key_quantizer": "", "value_quantizer": "", "model_kind": "",
    "stack": "", "batch": "sequence", "input_tokens": "token", "output_tokens": "token", "admission": "",
    "page_tokens": "token", "prefix_tokens": "token", "weights_bits": "bit", "key_dequant_path": "",
    "value_dequant_path": "",
    "effective_bits": "bit", "stored_bits": "bit", "page_tail_bits": "bit", "write_amplification": "1",
    "bits_kind": "", "measured_bits": "bit", "mse": "1",
    "sqnr_db": "dB", "measured_on": "", "kv_bytes_per_token": "B/token", "kv_bytes": "B",
    "peak_kv_bytes_per_sequence": "B", "weight_bytes": "B", "activation_bytes": "B", "workspace_bytes": "B",
    "capacity_bytes": "B", "free_bytes": "B", "min_capacity_bytes": "B", "feasible": "", "infeasible_reason": "",
    "fits_whole_batch": "", "max_batch": "sequence", "max_context_tokens": "token", "running_batch": "sequence",
    "n_waves": "1", "linear_s": "s", "attention_s": "s", "quantize_s": "s", "dequantize_s": "s",
    "quantize_busy_s": "s", "dequantize_busy_s": "s", "busy_cores": "1", "decode_step_s": "s", "prefill_s": "s",
    "total_s": "s", "throughput_tokens_per_s": "token/s", "bound": "", "linear_bound": "", "attention_bound": "",
    "joules_per_token": "J/token", "usd_per_million_tokens": "USD",
    "effective_bandwidth_bytes_per_s": "B/s", "effective_capacity_bytes": "B", "assumptions": "",
}  # fmt: skip


#: software stack of a device that has several
DEFAULT_STACK = "vllm"
#: whose stacks a GPU runs by that is known by its data sheet alone, when calibrated is asked for
DEFAULT_STACKS_OF = "h100"


def dequant_paths(device: HardwareSpec, plan: KvPlan, work: Workload) -> dict[str, str]:
    """Path of keys and of values: the workload's override, else the device's rule, "none" where nothing is packed."""
    paths: dict[str, str] = {}
    for which, quantizer in (("key", plan.key_quantizer), ("value", plan.value_quantizer)):
        default = device.path_of(quantizer.family.name)
        path: str = work.dequant_path or default
        packed = any(g.layout.needs_unpacking for g in plan.groups if g.which == which)
        if packed and path == "engine" and device.engine_rate is None:
            raise InputError(
                f"dequant-path = engine: {device.name} has no engine (engine_rate): use fused or materialised"
            )
        paths[which] = path if packed else "none"
    return paths


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
    paths = dequant_paths(device, plan, work)
    stack_name, stack = stack_of(device, work)
    plan = memory_unit.attach(device, plan, paths)
    memory = Memory(device, plan, work, paths)
    if trace.keep:
        memory.record(trace)
    n = work.final_tokens
    elements = plan.elements(n)
    bits = float(plan.effective_bits)
    per_token_bytes = [
        (g, (g.bits(n) + g.padding_bits(n, memory.pages)) / (memory.unit * min(n, g.window_tokens)))
        for g in plan.groups
    ]
    result: dict[str, Any] = {
        "device": device.name, "model": plan.model.name, "quantizer": plan.quantizer_name,
        "key_quantizer": plan.key_quantizer.name, "value_quantizer": plan.value_quantizer.name,
        "model_kind": "calibrated" if stack else "ideal", "stack": stack_name,
        "batch": work.batch, "input_tokens": work.input_tokens, "output_tokens": work.output_tokens,
        "admission": work.admission, "page_tokens": work.page_tokens, "prefix_tokens": work.prefix_tokens,
        "weights_bits": work.weights_bits, "key_dequant_path": paths["key"], "value_dequant_path": paths["value"],
        "effective_bits": trace.note(
            "effective_bits", bits, "bit", "element-weighted mean of what the methods' papers count",
            plan.key_quantizer.family.source,
            **{f"{g.which}_bits": float(g.layout.effective_bits) for g in plan.groups},
        ),
        "stored_bits": trace.call(
            "stored_bits", effective_bits.stored_bits, sequence_bytes=memory.sequence(n) / memory.unit,
            n_elements=elements,
        ),
        **memory_unit.results(device, plan, n, memory.pages, trace),
        **_measured(plan, trace),
        "kv_bytes_per_token": trace.note(
            "kv_bytes_per_token",
            sum(g.n_stored_layers * per_token for g, per_token in per_token_bytes),
            "B/token", "sum over layers, keys and values of bits at the final length / 8 / kept tokens, page padding "
            "included", "docs/model.md, KV bytes", n_tokens=n,
            **{
                f"{g.which}_bytes_per_layer_{g.n_stored_layers}_layers": per_token for g, per_token in per_token_bytes
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
    result.update(_times(device, plan, work, memory, trace, stack) if memory.max_batch else _NO_TIMES)
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
    result["assumptions"] = assumptions(device, plan, paths, stack)
    if trace.keep:
        _record_choices(device, plan, work, paths, result, trace)
    return {name: result[name] for name in RESULT_UNITS}


def _measured(plan: KvPlan, trace: Trace) -> dict[str, Any]:
    """Bits and errors that quantising real keys and values gave, weighted by the model's elements on each side."""
    sides = {"key": plan.key_quantizer, "value": plan.value_quantizer}
    kinds = {sides[g.which].bits_kind for g in plan.groups}
    kind = kinds.pop() if len(kinds) == 1 else ", ".join(f"{side} {q.bits_kind}" for side, q in sides.items())
    trace.note(
        "bits_kind", kind, "", "closed: nominal shares; measured: shares that data realised", "docs/model.md, Bits"
    )
    found: dict[str, Any] = dict.fromkeys(("measured_bits", "mse", "sqnr_db", "measured_on"))
    used = {g.which: sides[g.which].measured.get(g.which) for g in plan.groups}
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
            "bits at the data's own lengths" if not missing else f"no measurement of the {missing}",
            "dse quantize", **{f"{side}_{what}": number for side, m in used.items() if m for what, number in (
                ("elements_of_the_data", m.n_elements), ("mse", m.mse), ("mean_square", m.mean_square))},
        )  # fmt: skip
    return {"bits_kind": kind, **found}


_NO_TIMES: dict[str, Any] = {
    "running_batch": 0, "n_waves": None, "bound": "capacity", "linear_bound": None, "attention_bound": None,
    **dict.fromkeys((
        "linear_s", "attention_s", "quantize_s", "dequantize_s", "quantize_busy_s", "dequantize_busy_s",
        "busy_cores", "decode_step_s", "prefill_s", "total_s", "throughput_tokens_per_s", "joules_per_token",
        "usd_per_million_tokens",
    )),
}  # fmt: skip


def _times(
    device: HardwareSpec, plan: KvPlan, work: Workload, memory: Memory, trace: Trace, stack: StackSpec | None
) -> dict[str, Any]:
    paths, prefix = memory.paths, memory.prefix_tokens
    if work.admission == "reserve":
        n_waves = trace.call("n_waves", capacity.n_waves, n_sequences=work.batch, max_batch=memory.max_batch)
        running = trace.call("running_batch", capacity.running_batch, n_sequences=work.batch, n_waves=n_waves)
        times = steps.evaluate(device, plan, work, running, paths, prefix, trace, stack)
        n_full = work.batch - n_waves * (running - 1)
        smaller = (
            steps.evaluate(device, plan, work, running - 1, paths, prefix, Trace(), stack)
            if n_full < n_waves
            else times
        )
        total_s = trace.note(
            "total_s",
            n_full * times.wave_s + (n_waves - n_full) * smaller.wave_s,
            "s",
            "sum over waves of output_tokens * decode_step_s + prefill_s",
            "docs/model.md, Steps and times",
            n_waves=n_waves,
            running_batch=running,
            wave_s=times.wave_s,
            n_waves_of_one_less=n_waves - n_full,
        )
    else:
        running = trace.note(
            "running_batch",
            min(work.batch, memory.max_batch),
            "sequence",
            "min(batch, max_batch): finished requests are replaced at once",
            "docs/model.md, Capacity",
            batch=work.batch,
            max_batch=memory.max_batch,
        )
        n_waves = trace.note("n_waves", None, "", "paged admission has no waves", "docs/model.md, Capacity")
        times = steps.evaluate(device, plan, work, running, paths, prefix, trace, stack)
        total_s = trace.call(
            "total_s", throughput.paged_total_s, n_sequences=work.batch, running_batch=running, wave_s=times.wave_s
        )
    tokens_per_s = trace.call(
        "throughput_tokens_per_s",
        throughput.throughput_tokens_per_s,
        n_sequences=work.batch,
        output_tokens=work.output_tokens,
        total_s=total_s,
    )
    power, price = device.board_power, device.usd_per_hour
    return {
        "running_batch": running, "n_waves": n_waves, "linear_s": times.linear_s, "attention_s": times.attention_s,
        "quantize_s": times.quantize_s, "dequantize_s": times.dequantize_s,
        "quantize_busy_s": times.quantize_busy_s, "dequantize_busy_s": times.dequantize_busy_s,
        "busy_cores": times.busy_cores, "decode_step_s": times.decode_step_s,
        "prefill_s": times.prefill_s, "total_s": total_s,
        "throughput_tokens_per_s": tokens_per_s,
        **_bounds(times, work, running, trace),
        "joules_per_token": trace.call(
            "joules_per_token", energy.joules_per_token, board_power_w=power.si, throughput_tokens_per_s=tokens_per_s
        ) if power else None,
        "usd_per_million_tokens": trace.call(
            "usd_per_million_tokens", energy.usd_per_million_tokens, usd_per_hour=price.si,
            throughput_tokens_per_s=tokens_per_s,
        ) if price else None,
    }  # fmt: skip


def _bounds(times: steps.StepTimes, work: Workload, running: int, trace: Trace) -> dict[str, str]:
    """What the whole, the matrix products and attention wait for."""
    where = "docs/model.md, Steps and times"
    shares = dict.fromkeys(("bandwidth", "compute", "latency", "dequantization"), 0.0)
    bounds = {}
    for name, waits in (("linear_bound", times.linear), ("attention_bound", times.attention)):
        bounds[name] = trace.note(
            name, waits.bound, "", "the largest of reading (bandwidth), multiplying (compute) and launching (latency)",
            where, bandwidth_s=waits.bandwidth, compute_s=waits.compute, latency_s=waits.latency,
        )  # fmt: skip
        for part, seconds in waits.shares().items():
            shares[part] += seconds
    for part, seconds in times.prefill_shares.items():
        shares[part] += seconds / work.output_tokens
    shares["dequantization"] += times.dequantize_s + times.quantize_s
    largest = "capacity" if running < work.batch else max(shares, key=lambda name: shares[name])
    trace.note(
        "bound", largest, "",
        "capacity if running_batch < batch, else the largest of these times per decode step, prompt included", where,
        running_batch=running, batch=work.batch, **{f"{name}_s": seconds for name, seconds in shares.items()},
    )  # fmt: skip
    return {"bound": largest, **bounds}


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
        trace.note(f"{which}_dequant_path", paths[which], "", rule, "docs/model.md, Dequantisation")
    found = {}
    for name in result["assumptions"]:
        if name == "peak_rates":
            found[name] = "memory and arithmetic are taken to reach the peak of their data sheet"
            continue
        if name == "stacks_of":
            found[name] = f"kernels as fitted on {device.stacks_of or DEFAULT_STACKS_OF}"
            continue
        number = getattr(device, name, None) or device.rate(name.removesuffix("_rate"))
        found[name] = f"{number.value:g} {number.unit}: ".replace(" 1:", ":") + number.source
    trace.note(
        "assumptions", result["assumptions"], "", "numbers of kind `assumed` among those behind this result",
        f"dse show {device.name}", **found,
    )  # fmt: skip


def assumptions(device: HardwareSpec, plan: KvPlan, paths: dict[str, str], stack: StackSpec | None) -> list[str]:
    """Names of the assumed numbers that this result rests on."""
    # a fitted rate unpacks what is stored; packing new tokens takes the device's rate all the same
    used = {path for path in paths.values() if path in ("engine", "fused")}
    found = [f"{path}_rate" for path in sorted(used) if device.rate(path).kind == ASSUMED]
    launching = any(
        paths[g.which] != "engine" and g.layout.needs_unpacking and any(g.quantizer.family.gpu_code.read)
        for g in plan.groups
    )
    if launching and device.kernel_launch.si and device.kernel_launch.kind == ASSUMED:
        found.append("kernel_launch")
    if device.token_cores and device.token_cores.kind == ASSUMED:
        found.append("token_cores")
    if any(g.streams for g in plan.groups):
        found += [name for name in ("kv_page", "kv_burst") if (size := getattr(device, name)) and size.kind == ASSUMED]
    fields = ("board_power", "usd_per_hour", "memory_capacity", "memory_bandwidth", "peak_flops")
    found += [name for name in fields if (number := getattr(device, name)) is not None and number.kind == ASSUMED]
    if stack and (device.stacks_of or not device.stacks):
        found.append("stacks_of")
    if not stack:
        found.append("peak_rates")
    if device.usable_frac.kind == ASSUMED:
        found.append("usable_frac")
    return found
