"""Why a result is what it is: the formulas that a run called, with their arguments and values.

`recorded` runs the model as plain Python and notes every formula. What spans several of them has a line of its own in
`_notes`: an equation and numbers that the run has made.
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import CodeType, FrameType
from typing import Any, TypeVar

from dse.core.compiling import FORMULAS, Formula
from dse.model import deployed, implementations, lower, uncertainty
from dse.model.attention import hideable_share, sums_of
from dse.model.batch import shares_of
from dse.model.evaluate import Point
from dse.model.formulas import activations, attention, calibrated, capacity, collectives, kv_cache, prefill, weights
from dse.model.kv_bytes import (
    NO_LIMIT,
    attention_flops,
    padding_bits,
    read_tokens,
    reading_of,
    stored_bits,
    stored_tokens,
    window_of,
)
from dse.model.kv_layout import KvPlan, TensorGroup
from dse.model.measured import how_measured
from dse.model.operations import DECODE, PREFILL, decode_operations, prompt_operations, total_of
from dse.model.peak_memory import activation_tokens, peak_lengths, size_at
from dse.model.records import MATERIALISED, Tensor
from dse.model.results import RESULT_UNITS
from dse.model.steady import last_pass
from dse.model.step import experts_of, experts_s, one_prompt_s, peak_flops, product_peak, prompt_host_s, share_touched
from dse.specs import servers
from dse.specs import tokens as token_policies
from dse.specs.device_and_model import LayerKV
from dse.specs.stack import ServedStack

T = TypeVar("T")
_MODEL, _CAPACITY = "docs/explanation/model.md", "docs/explanation/model.md, Capacity"
_TIMES, _PATHS = "docs/explanation/model.md, Steps and times", "docs/explanation/model.md, Dequantisation"


#: whole numbers that the core computes as floats
_COUNTS = frozenset({"n_sequences", "n_waves", "running_batch", "max_batch"})
#: units of steps that are no results
_UNITS = {
    **RESULT_UNITS,
    "weight_read_bytes": "B",
    "prefill_matrix_s": "s",
    "memory_s": "s",
    "compute_s": "s",
    "one_prompt_s": "s",
    "experts_s": "s",
    "prefill_experts_s": "s",
    "burst_wait_s": "s",
    "place_wait_s": "s",
    "bit_ledger": "bit",
}
#: formulas that give a result of another name
_RESULTS = {"paged_total_s": "total_s", "steady_request_s": "request_s", "steady_chunked_request_s": "request_s"}


@dataclass(frozen=True)
class Step:
    """One evaluated formula: result, unit, equation, the values that went in, and the source."""

    name: str
    value: Any
    unit: str
    equation: str
    source: str
    terms: Mapping[str, Any]


def _plain(name: str, number: Any) -> Any:
    """A number as people write it: counts whole, None for one that is not known."""
    if isinstance(number, float) and math.isnan(number):
        return None
    return int(number) if name in _COUNTS and number == int(number) else number


def recorded(run: Callable[[], T]) -> tuple[T, dict[str, Step]]:
    """What `run` returns, and the first call of each formula in it, by name."""
    formulas: dict[CodeType, Formula] = {f.__code__: f for f in FORMULAS.values()}  # type: ignore[attr-defined]
    found: dict[str, Step] = {}
    arguments: dict[FrameType, dict[str, Any]] = {}

    def watch(frame: FrameType, event: str, value: Any) -> None:
        formula = formulas.get(frame.f_code)
        if formula is None or _RESULTS.get(formula.__name__, formula.__name__) in found:
            return
        if event == "call":
            arguments[frame] = dict(frame.f_locals)
        elif event == "return" and frame in arguments:
            terms = {name: _plain(name, number) for name, number in arguments.pop(frame).items()}
            name = _RESULTS.get(formula.__name__, formula.__name__)
            found[name] = Step(name, _plain(name, value), formula.unit, formula.equation, formula.source, terms)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        return run(), found
    finally:
        sys.setprofile(before)


def explained(point: Point) -> tuple[dict[str, Any], dict[str, Step]]:
    """The results of a point and, by name, how they came about."""
    results, steps = recorded(lambda: Point(point.device, replace(point.plan), point.work).results)  # nothing kept
    fresh = point
    steps |= {step.name: step for step in _memory_notes(fresh, results)}
    steps |= {step.name: step for step in _choice_notes(fresh, results)}
    if fresh.max_batch:
        steps |= {step.name: step for step in _time_notes(fresh, results, steps)}
    return results, steps


def _note(name: str, value: Any, equation: str, source: str, **terms: Any) -> Step:
    return Step(name, value, _UNITS[name], equation, source, terms)


def _memory_notes(point: Point, results: dict[str, Any]) -> list[Step]:
    """Tokens, bits and bytes."""
    design, made, work, plan = point.design, point.made, point.work, point.plan
    n, limits, model, den = work.final_tokens, made.limits, plan.model, plan.den
    device, batch = point.device, work.batch
    if work.admission == "reserve":
        free = point.free_bytes * point.unit
        passed = sorted(set(peak_lengths(design, limits, made.prefix_tokens, work.input_tokens, n)))
        sizes = {length: size_at(design, limits, made.prefix_tokens, length) for length in passed}
        where = min(passed, key=lambda length: capacity.max_batch(free, sizes[length].shared, sizes[length].own))
        shared_bytes, own_bytes = sizes[where].shared / point.unit, sizes[where].own / point.unit
        rule = f"at the length between prompt and last token where the batch is largest, {where:,}"
    else:
        shared_bytes = made.largest_shared_bits / point.unit
        own_bytes = made.sum_of_own_bits / work.output_tokens / point.unit
        rule = "at its mean size over the generation"
    groups = tuple(zip(plan.groups, design.tensors, strict=False))  # constant states come after
    windows = _of_groups(
        plan,
        (
            (g, "window_tokens", window_of(t, limits))
            for g, t in groups
            if g.which == "key" and window_of(t, limits) < NO_LIMIT
        ),
    )
    tokens = {
        "n_tokens": n,
        "prompt_kept_tokens": min(limits.prompt_kept_tokens, work.input_tokens),
        "dropped_tokens": limits.dropped_tokens,
        **windows,
    }
    of_layer = _of_groups(plan, ((g, f"{g.place}_packed_token_bits", g.packed_bits / den) for g in plan.groups))
    n_stages = design.deployment.n_stages
    pipeline = {"n_stages": n_stages} if n_stages > 1 else {}
    server, is_server = servers.of(point.stack_name), bool(design.memory.is_server)
    memory: dict[str, Any] = {
        "memory_capacity_bytes": device.capacity_bytes,
        "usable_frac": device.usable_frac.si,
        "weight_bytes": point.weight_bytes,
        "overhead_bytes": device.runtime_overhead.count,
    }
    if is_server:
        memory = {
            "reported_bytes": device.reported_bytes,
            "share": device.usable_frac.si * design.memory.share,
            "share_of_free": design.memory.share_of_free,
            "usable_frac": device.usable_frac.si,
            "weight_bytes": point.weight_bytes,
            "activation_bytes": results["activation_bytes"],
            "runtime_bytes": results["runtime_bytes"],
            "outside_bytes": design.memory.outside_bytes,
        }
    pool, least = (capacity.pool_bytes, capacity.min_reported_bytes) if is_server else (capacity.free_bytes, None)
    graphs = {"graph_bytes": design.memory.graph_bytes, "buffer_bytes": design.memory.buffer_bytes}
    family = work.token_policy.family
    return [
        *(
            _note(
                name,
                results[name],
                f"mean over layers of {FORMULAS[name].equation} at the final length",
                family.source,
                **tokens,
            )
            for name in ("stored_tokens", "read_tokens")
        ),
        _note(
            "effective_bits",
            results["effective_bits"],
            "element-weighted mean of what the methods' papers count",
            plan.key_quantizer.family.source,
            **_of_groups(plan, ((g, f"{g.place}_bits", float(g.layout.effective_bits)) for g in plan.groups)),
        ),
        _note(
            "page_tail_bits",
            results["page_tail_bits"],
            "unused bits of last pages at the final length / elements; counted in stored_bits as padding",
            "docs/explanation/model.md, KV bytes",
            n_tokens=n,
            n_elements=made.n_elements,
            page_tokens=point.page_tokens if work.kv_cache else 1,
            page_bytes=device.kv_page.count if device.kv_page else None,
        ),
        _note(
            "write_amplification",
            results["write_amplification"],
            "bytes the memory takes for one new token / bytes packed, slices of a head rounded up to bursts; none "
            "without an engine or a burst",
            "docs/explanation/model.md, KV bytes",
            burst_bytes=device.kv_burst.count if device.kv_burst else None,
            **_of_groups(
                plan,
                (
                    (
                        g,
                        f"{g.place}_slice_bytes",
                        ", ".join(f"{bits / (point.unit * g.layout.shape.n_heads):g}" for bits in g.streams),
                    )
                    for g in plan.groups
                    if g.burst_row_bits
                ),
            ),
        ),
        _note(
            "kv_bytes_per_token",
            results["kv_bytes_per_token"],
            "sum over layers, keys and values of bits at the final length / 8 / kept tokens, page padding included",
            "docs/explanation/model.md, KV bytes",
            n_tokens=n,
            **_of_groups(plan, ((g, f"{g.place}_bytes", _token_bytes(point, t, n)) for g, t in groups)),
        ),
        _note(
            "kv_bytes_per_token_beyond_windows",
            results["kv_bytes_per_token_beyond_windows"],
            "kv_bytes_per_token of the layers without a window, which alone grow once all windows are full",
            "docs/explanation/model.md, KV bytes",
            n_tokens=n,
            **_of_groups(
                plan,
                (
                    (g, f"{g.place}_bytes", _token_bytes(point, t, n))
                    for g, t in groups
                    if window_of(t, limits) == NO_LIMIT
                ),
            ),
        ),
        _note(
            "state_bytes",
            results["state_bytes"],
            "sum over layers of what they keep of a request of any length" + (" / n_stages" if pipeline else ""),
            "docs/explanation/model.md, KV bytes",
            **pipeline,
            **_states(point),
        ),
        _note(
            "weight_bytes",
            point.weight_bytes,
            "ceil(sum of parameters * bits / 8)",
            "docs/explanation/model.md, Capacity",
            n_parameters=model.parameters,
            **_weight_bits(point),
            **_split(point),
        ),
        _note(
            "kv_bytes",
            results["kv_bytes"],
            "(shared_bits + batch * (bits_per_sequence - shared_bits)) / 8, bits summed over layers, keys and values",
            "docs/explanation/model.md, KV bytes",
            batch=batch,
            n_tokens=n,
            bits_per_sequence=made.final_bits / den,
            shared_bits=made.final_shared_bits / den,
            elements_per_sequence=made.n_elements,
            **of_layer,
        ),
        _note(
            "max_batch",
            point.max_batch,
            f"{capacity.max_batch.equation}{'' if work.max_num_seqs is None else ', at most max_num_seqs'}; "
            f"a request counts {rule}",
            capacity.max_batch.source,
            free_bytes=point.free_bytes,
            shared_bytes=shared_bytes,
            bytes_per_sequence=own_bytes,
            activation_bytes_per_sequence=made.activation_bytes,
            workspace_bytes_per_sequence=made.workspace_bytes,
            admission=work.admission,
            **({} if work.max_num_seqs is None else {"max_num_seqs": work.max_num_seqs}),
        ),
        _note("free_bytes", point.free_bytes, pool.equation, pool.source, **memory),
        _note(
            "capacity_bytes",
            results["capacity_bytes"],
            "memory that the driver reports, in proportion where memory_capacity is changed" if is_server else "given",
            device.reported_memory.source if is_server and device.reported_memory else device.memory_capacity.source,
        ),
        _note(
            "runtime_bytes",
            results["runtime_bytes"],
            "runtime_overhead + graphs + context, workspaces and buffers",
            "; ".join(
                f"{name}: {number.source}"
                for name, number in server.quantities().items()
                if name in ("graphs", "buffers", "communication")
            )
            if is_server
            else "docs/explanation/model.md, Capacity",
            overhead_bytes=device.runtime_overhead.count,
            **graphs,
        ),
        _note(
            "kv_pool_tokens",
            results["kv_pool_tokens"],
            capacity.pool_tokens.equation,
            capacity.pool_tokens.source,
            free_bytes=point.free_bytes,
            block_tokens=design.memory.block_tokens,
        ),
        _note(
            "unused_bytes",
            results["unused_bytes"],
            "device memory - weights - activations of prompts - graphs and buffers - room for sequences",
            capacity.pool_bytes.source,
            capacity_bytes=results["capacity_bytes"],
            free_bytes=point.free_bytes,
        ),
        _note(
            "feasible",
            point.max_batch > 0,
            "max_batch >= 1: at least one request fits",
            _CAPACITY,
            max_batch=point.max_batch,
        ),
        _note(
            "infeasible_reason",
            results["infeasible_reason"],
            "what is missing for one request; none where one fits",
            _CAPACITY,
            free_bytes=point.free_bytes,
            bytes_per_sequence=max(size.shared + size.own for size in made.sizes) / point.unit,
        ),
        _note(
            "fits_whole_batch",
            point.max_batch >= batch,
            "max_batch >= batch",
            capacity.max_batch.source,
            max_batch=point.max_batch,
            batch=batch,
        ),
        _note(
            "max_context_tokens",
            results["max_context_tokens"],
            "largest s such that the whole batch fits with all requests at s' tokens at once, for every s' <= s; "
            "where a token policy follows the prompt, s less the output is the prompt",
            _CAPACITY,
            free_bytes=point.free_bytes,
            batch=batch,
        ),
        _note(
            "min_capacity_bytes",
            results["min_capacity_bytes"],
            f"{least.equation}; a request counts {rule}"
            if least
            else f"(weights + overhead + shared + batch * bytes_per_sequence) / usable_frac; a request counts {rule}",
            _CAPACITY,
            weight_bytes=point.weight_bytes,
            overhead_bytes=device.runtime_overhead.count,
            usable_frac=device.usable_frac.si,
            shared_bytes=shared_bytes,
            batch=batch,
            bytes_per_sequence=own_bytes,
        ),
        _note(
            "peak_kv_bytes_per_sequence",
            results["peak_kv_bytes_per_sequence"],
            "largest KV size between prompt and last token, page padding included: just before a group is packed",
            _CAPACITY,
            first_tokens=work.input_tokens,
            last_tokens=n,
        ),
        _note(
            "activation_bytes",
            results["activation_bytes"],
            activations.prompt_bytes.equation,
            "; ".join(
                number.source
                for name, number in server.quantities().items()
                if name in ("prompt_budget", "sequences", "logit")
            ),
            prompt_budget_tokens=results["prompt_budget_tokens"],
            n_sequences=server.sequences.count,
            vocab_size=(plan.whole or plan).model.vocab_size,
            logit_bytes=server.logit.count,
            layer_elements=model.activation_elements if model.layer_elements is None else model.layer_elements,
        )
        if is_server
        else _note(
            "activation_bytes",
            results["activation_bytes"],
            f"batch * {activations.activation_bytes.equation}",
            activations.activation_bytes.source,
            batch=batch,
            n_tokens=activation_tokens(design, n),
            activation_elements=model.activation_elements,
            logits_elements=design.model.logits_elements,
            activation_bits=work.activation_bits,
        ),
        _note(
            "workspace_bytes",
            results["workspace_bytes"],
            "batch * 2 bytes * materialised elements of one layer and sequence, padded to tiles of tokens where the "
            "method's code pads them",
            _CAPACITY,
            batch=batch,
            materialised_elements=made.workspace_bytes // 2,
            **_tiles(point),
        ),
    ]


def _kind(layer: LayerKV) -> str:
    """What users call such layers: by their window, their state or how they choose what they read."""
    return f"window_{layer.window}" if layer.window else layer.state_code or layer.sparse_kind or "full"


def _of_layers(rows: Sequence[tuple[tuple[str, ...], int, str, float | str]]) -> dict[str, float | str]:
    """Terms that count for each of some layers, from rows of (words, number of layers, term, value).

    The name says of how many layers and, in as few words as tell all values apart, of which; equal ones count together.
    """
    n_most = max((len(words) for words, *_ in rows), default=1)
    for n_words in range(1, n_most + 1):
        found: dict[tuple[str, ...], dict[float | str, int]] = {}
        for words, n_layers, term, value in rows:
            counts = found.setdefault((*words[:n_words][::-1], "layers", term), {})
            counts[value] = counts.get(value, 0) + n_layers
        if all(len(counts) == 1 for counts in found.values()):
            break
    return {
        f"each_of_{n_layers}_{'_'.join(filter(None, name))}": value
        for name, counts in found.items()
        for value, n_layers in counts.items()
    }


def _of_groups(plan: KvPlan, rows: Iterable[tuple[TensorGroup, str, float | str]]) -> dict[str, float | str]:
    """The same of groups of keys or values: by kind, of the model's first two layers or not, heads, and at last by an
    index that no other layers have."""

    def words(g: TensorGroup) -> tuple[str, ...]:
        layer, first = plan.layers[g.shape_index][0], "first" if g.layout.shape.shallow else ""
        return _kind(layer), first, f"with_{layer.n_kv_heads}_heads_of_{layer.key_dim}", f"shape_{g.shape_index}"

    return _of_layers([(words(g), g.n_stored_layers, term, value) for g, term, value in rows])


def _states(point: Point) -> dict[str, float | str]:
    """Bytes that each layer keeps of a request of any length, by its kind or that of the layers it stands beside."""
    kind, rows = "", []
    for layer in point.plan.model.layers:
        kind = kind if layer.joined else _kind(layer)
        if layer.state_bytes:
            rows.append(((kind, f"state_{layer.state_bytes}"), layer.n_layers, "state_bytes", layer.state_bytes))
    return _of_layers(rows)


def _token_bytes(point: Point, g: Tensor, n_tokens: int) -> float:
    """Bytes of a token of one layer's keys or values, mean over a sequence of `n_tokens`, page padding included."""
    kept = stored_tokens(g, point.made.limits, n_tokens)
    bits = stored_bits(g, point.made.limits, n_tokens) + padding_bits(g, kept, point.page_tokens)
    return float(bits / (point.unit * kept))


def _split(point: Point) -> dict[str, int]:
    """How the model lies on several devices; nothing for one."""
    split = point.design.deployment
    return {} if split.n_devices == 1 else split._asdict()


def _exchange_note(point: Point) -> Step:
    """What the devices exchange in a step."""
    device, work, run = point.device, point.work, point.largest_wave
    parts: dict[str, Any] = {}
    for name, exchange, found in deployed.exchanges(device, point.plan.model, work, point.stack_name):
        name = name.replace(" ", "_")
        n_bytes = run.product_tokens * exchange.token_bytes
        each_s = collectives.collective_s(n_bytes, *exchange[3:])
        parts |= {
            f"{name}_per_step": exchange.n_per_pass,
            f"{name}_bytes": n_bytes,
            f"{name}_each_s": each_s,
            f"{name}_rests_on": found.source,
        }
    return _note(
        "collective_s",
        run.wave.collective_s,
        f"sum over exchanges of their number * {collectives.collective_s.equation}" if parts else "one device: none",
        collectives.collective_s.source,
        **_split(point),
        **parts,
    )


def _tiles(point: Point) -> dict[str, int]:
    """What padding the token dimension costs one sequence (NQKV Figure 7), in elements: of the layer in work, and if
    the stored cache were padded, of every layer."""
    by_layer: dict[int, list[int]] = {}
    for g in point.design.tensors:
        if g.path == MATERIALISED:
            kept = read_tokens(g, point.made.limits, point.work.final_tokens)
            layer = by_layer.setdefault(g.shape, [0, g.n_stored_layers])
            layer[0] += g.n_elements * kv_cache.padding_tokens(kept, g.tile_tokens)
    one_layer = max((elements for elements, _ in by_layer.values()), default=0)
    all_layers = sum(elements * n_layers for elements, n_layers in by_layer.values())
    return {"padded_elements": one_layer, "padded_elements_if_stored_padded": all_layers} if one_layer else {}


def _time_notes(point: Point, results: dict[str, Any], steps: Mapping[str, Step]) -> list[Step]:
    """Times, what binds, shares of the peak rates."""
    design, made, terms, work, run = point.design, point.made, point.terms, point.work, point.largest_wave
    wave, device, n = run.wave, point.device, run.n
    n_steps, last, running = work.output_tokens, work.final_tokens, results["running_batch"]
    cores = design.device.token_cores
    fitted, server = point.stack and point.stack.attention, point.stack and point.stack.host
    found = [_waves_note(point, results), *_bound_notes(point, results), _exchange_note(point)]
    if work.admission == "paged":
        found.append(_note("n_waves", None, "paged admission has no waves", _CAPACITY))
    found.append(
        _note(
            "tpot_s",
            wave.decode_step_s,
            "decode_step_s: every step gives each running request a token",
            "docs/explanation/model.md, Latency",
            decode_step_s=wave.decode_step_s,
        )
    )
    found.append(
        _note(
            "one_prompt_s",
            one_prompt_s(design, terms),
            "prefill_s of one request alone, whose shared prefix is cached",
            "docs/explanation/model.md, Latency",
            input_tokens=work.input_tokens,
            prefix_tokens=made.prefix_tokens,
        )
    )
    if "power_s" not in steps:
        measured = "times were measured within the limit" if design.device.power_limit_w else "its energy is assumed"
        found.append(_note("power_s", 0.0, f"none: {measured}", "docs/explanation/model.md, Energy and cost"))
    found += [_host_note(point), *_steady_notes(point)]
    if not work.kv_cache:
        return [*found, *_uncached_notes(point)]
    peak, bandwidth = peak_flops(design, n), device.memory_bandwidth.si
    unpacked = sum(
        g.n_read_layers * g.n_elements * reading_of(g, made.limits, last).packed for g in design.tensors if g.is_packed
    )
    read = sum(g.n_read_layers * reading_of(g, made.limits, last).bits for g in design.tensors)
    read /= terms.per_byte
    form = calibrated.attention_layer_s if fitted else attention.attention_s
    rates, unpack_rates = _rates(point), _unpack_rates(point)
    paths = ", ".join(sorted(set(point.paths.values())))
    sums = sums_of(design, made, n)
    scheduled = {"hideable_share": hideable_share(design, n), "busy_cores": results["busy_cores"]} if cores else {}
    scale = n / n_steps
    write_s = n * terms.burst_bits / terms.per_byte / bandwidth
    scores_s = scale * terms.score_bytes / terms.reached_bytes_per_s
    choice_s = scale * terms.choice_bytes / terms.reached_bytes_per_s
    launches = (
        {"copies_per_step": made.copy_starts / n_steps, "start_of_a_copy_s": design.stack.copy_launch_s}
        if made.copy_starts
        else {
            "launch_s": terms.read_launch_s,
            "launches_per_step": made.read_starts / n_steps,
            "kernel_launch_s": device.kernel_launch.si,
        }
    )
    return [
        *found,
        *_product_notes(point),
        _note(
            "attention_s",
            wave.attention_s,
            f"mean over steps t of {form.equation}, s = I + t",
            form.source,
            n_sequences=n,
            first_context_tokens=work.input_tokens + 1,
            last_context_tokens=last,
            mean_kv_read_s=run.attention_read_s,
            unpacked_elements_at_end=n * unpacked,
            mean_attention_compute_s=run.attention_compute_s,
            kv_read_bytes_at_end=n * read,
            flops_at_end=n * attention_flops(design.layers, made.limits, last),
            bandwidth_bytes_per_s=bandwidth,
            peak_flops_per_s=peak,
            **(
                {
                    "mean_fixed_s": sums.fixed_s / n_steps,
                    "mean_unit_s": n * sums.unit_s / n_steps,
                    **point.stack.attention_terms(),
                }
                if fitted and point.stack
                else {}
            ),
        ),
        _note(
            "dequantize_s",
            wave.dequantize_s,
            f"mean over steps of what unpacking adds to {_hides_behind(point)}, plus launches",
            _PATHS,
            paths=paths,
            busy_s=run.dequantize_busy_s,
            materialised_traffic_s=run.copies_s,
            mean_kv_read_s=run.attention_read_s,
            **launches,
            **({"sink_scores_s": scores_s} if scores_s else {}),
            **scheduled,
            rates_elements_per_s=unpack_rates,
        ),
        _note(
            "quantize_s",
            wave.quantize_s,
            "mean over steps of what packing new tokens adds, plus copies of packed buffers, bursts written, and "
            "launches",
            _PATHS,
            paths=paths,
            busy_s=run.quantize_busy_s - write_s,
            copy_s=n * terms.buffer_s / n_steps,
            **({"write_s": write_s} if write_s else {}),
            **scheduled,
            launch_s=terms.pack_launch_s,
            kernel_launch_s=device.kernel_launch.si,
            launches_per_step=made.pack_starts / n_steps,
            **({"sink_choice_s": choice_s} if choice_s else {}),
            rates_elements_per_s=rates,
        ),
        *(
            _note(
                name,
                busy_s,
                f"mean over steps of {what}; overlap, copies and launches not counted",
                _PATHS,
                paths=paths,
                rates_elements_per_s=each,
                n_sequences=n,
                unpacked_elements_at_end=n * unpacked,
            )
            for name, busy_s, each, what in (
                (
                    "dequantize_busy_s",
                    run.dequantize_busy_s,
                    unpack_rates,
                    "elements unpacked / rate, materialised traffic / BW",
                ),
                ("quantize_busy_s", run.quantize_busy_s, rates, "elements packed / rate, traffic / BW"),
            )
        ),
        _note(
            "prefill_s",
            wave.prefill_s,
            "prefill_compute_s + quantising the prompt's keys and values + exchange" + (" + host" if server else ""),
            prefill.prefill_compute_s.source,
            prefill_tokens=made.prefix_tokens + n * (work.input_tokens - made.prefix_tokens),
            prefill_compute_s=wave.prompt_compute_s,
            quantize_s=wave.prompt_quantize_s,
            exchange_s=wave.prompt_collective_s,
            **({"host_s_of_a_prompt": prompt_host_s(design)} if server else {}),
        ),
        _note(
            "busy_cores",
            results["busy_cores"],
            FORMULAS["busy_cores"].equation if cores else "the device names no token_cores",
            FORMULAS["busy_cores"].source,
            **({"n_sequences": running, "token_cores": cores} if cores else {}),
        ),
    ]


def _uncached_notes(point: Point) -> list[Step]:
    """Without a KV cache every step is a prompt."""
    where, run, terms, work = "docs/explanation/model.md, No KV cache", point.largest_wave, point.terms, point.work
    rest = ("quantize_s", "dequantize_s", "quantize_busy_s", "dequantize_busy_s", "prefill_s")
    return [
        _note("busy_cores", None, "every step is a prompt, on all cores", where),
        *(
            _note(
                name,
                0.0,
                "no step of its own: every step runs the prompt" if name == "prefill_s" else "nothing is stored",
                where,
            )
            for name in rest
        ),
        _note(
            "linear_s",
            run.wave.linear_s,
            "mean over steps t of the products over B * s tokens, s = I + t",
            where,
            n_sequences=run.n,
            first_tokens=work.input_tokens + 1,
            last_tokens=work.final_tokens,
            active_parameters=float(point.plan.model.active_parameters),
            peak_flops_per_s=terms.product_peak_per_s,
            mean_compute_s=run.wave.linear_compute_s,
            mean_read_s=run.linear_read_s,
        ),
        _note(
            "attention_s",
            run.wave.attention_s,
            "mean over steps t of causal attention over s = I + t tokens: FLOP / (flops_frac * F)",
            where,
            flops=run.attention_flops,
            flops_frac=terms.prompt_flops_frac,
            peak_flops_per_s=point.device.peak_flops.si,
        ),
    ]


def _host_note(point: Point) -> Step:
    """What a server does beside its kernels."""
    run, reach, formula = point.largest_wave, point.design.stack, FORMULAS["host_s"]
    return _note(
        "host_s",
        run.wave.host_s,
        formula.equation
        if point.stack and point.stack.host
        else "kernels alone: no server was measured, or none was asked for",
        formula.source,
        n_sequences=run.n,
        n_layers=point.design.model.n_layers,
        layer_s=reach.host_layer_s,
        sequence_s=reach.host_sequence_s,
    )


def _steady_notes(point: Point) -> list[Step]:
    """A server that replaces every request as it ends."""
    work, design = point.work, point.design
    last = last_pass(design, point.made, point.terms, float(work.batch), float(point.max_batch))
    token, decoding = FORMULAS["shared_token_s"], FORMULAS["decoding_requests"]
    return [
        _note(
            "steady_tpot_s",
            last.token_s,
            token.equation,
            token.source,
            decoding_on_a_device=int(last.n),
            decode_step_s=last.decode_step_s,
            prefill_s=last.prefill_s,
            output_tokens=work.output_tokens,
        ),
        _note(
            "steady_ttft_s",
            last.first_s,
            "own prompt + prompts of others before it + wait for a place",
            token.source,
            own_prompt_s=last.prompt_s,
            of_which_host_s=design.stack.host_prompt_s,
            burst_wait_s=last.burst_wait_s,
            place_wait_s=last.place_wait_s,
            n_requests=work.batch,
            n_places=int(last.n_places),
        ),
        _note(
            "burst_wait_s",
            last.burst_wait_s,
            FORMULAS["burst_wait_s"].equation,
            token.source,
            n_requests=last.n_places / design.deployment.n_groups,
            prompt_s=last.prefill_s / last.n,
            rounds_in_step=design.stack.rounds_in_step,
            rounds=work.rounds,
        ),
        _note(
            "place_wait_s",
            last.place_wait_s,
            FORMULAS["place_wait_s"].equation,
            token.source,
            n_requests=work.batch,
            n_places=int(last.n_places),
            request_s=last.prompt_s + last.burst_wait_s + last.decode_s,
        ),
        _note(
            "decoding_requests",
            last.decoding,
            decoding.equation,
            decoding.source,
            n_places=int(last.n_places),
            first_s=last.prompt_s + last.burst_wait_s,
            decode_s=last.decode_s,
        ),
    ]


def _product_notes(point: Point) -> list[Step]:
    """Products with the weights, in a step and over the prompts."""
    run, terms, work, design, model = point.largest_wave, point.terms, point.work, point.design, point.design.model
    wave, form = run.wave, "docs/explanation/calibration.md, The form"
    read_bytes = weights.weight_read_bytes(
        model.dense_parameters - model.unread_parameters,
        model.expert_parameters,
        run.share_touched,
        design.load.dense_eighths,
        design.load.expert_eighths,
    )
    found = [
        _note(
            "weight_read_bytes",
            read_bytes,
            weights.weight_read_bytes.equation,
            weights.weight_read_bytes.source,
            n_dense_parameters=model.dense_parameters - model.unread_parameters,
            n_expert_parameters=model.expert_parameters,
            share_touched=run.share_touched,
            **_weight_bits(point),
        )
    ]
    prompt = point.made.prefix_tokens + run.n * (work.input_tokens - point.made.prefix_tokens)
    if terms.has_gemm:
        equation = FORMULAS["linear_calibrated_s"]
        shared = {"n_products": terms.n_products, "launch_s": terms.gemm_launch_s}
        touched = share_touched(design, prompt)
        chosen, of_prompts = experts_of(design, float(run.n), run.share_touched), experts_of(design, prompt, touched)
        read_s = run.linear_read_s - chosen.read_s
        step, prompts, also = {}, {}, ""
        if design.stack.has_experts:  # their products were measured apart, and so are bytes and operations
            also = " + experts"
            step = {"experts_s": experts_s(design, float(run.n), run.share_touched)}
            prompts = {"experts_s": experts_s(design, float(prompt), touched)}
            read_bytes -= weights.weight_read_bytes(
                0, model.expert_parameters, run.share_touched, 0, design.load.expert_eighths
            )
            found += [
                _note(
                    name,
                    seconds,
                    equation.equation,
                    "docs/explanation/calibration.md, Whole steps",
                    n_products=model.n_layers,
                    launch_s=design.stack.expert_launch_s,
                    compute_s=parts.compute_s,
                    memory_s=parts.read_s,
                    n_tokens=float(n_tokens),
                    share_touched=share,
                    memory_frac=design.stack.expert_memory_frac,
                    flops_frac=design.stack.expert_flops_frac,
                    peak_flops_per_s=design.stack.expert_peak_per_s,
                )
                for name, seconds, parts, n_tokens, share in (
                    ("experts_s", step["experts_s"], chosen, run.n, run.share_touched),
                    ("prefill_experts_s", prompts["experts_s"], of_prompts, prompt, touched),
                )
            ]
        return [
            *found,
            _note(
                "linear_s",
                wave.linear_s,
                equation.equation + also,
                equation.source,
                **shared,
                compute_s=wave.linear_compute_s,
                memory_s=read_s,
                **step,
            ),
            _note(
                "prefill_matrix_s",
                wave.prompt_matrix_s,
                equation.equation + also,
                equation.source,
                **shared,
                compute_s=wave.prompt_products_s,
                memory_s=run.prompt_read_s - of_prompts.read_s,
                **prompts,
            ),
            _note(
                "memory_s",
                read_s,
                "weight bytes / (memory_frac * BW)",
                form,
                weight_read_bytes=read_bytes,
                memory_frac=design.stack.gemm_memory_frac,
                bandwidth_bytes_per_s=terms.bandwidth_bytes_per_s,
            ),
            _note(
                "compute_s",
                wave.linear_compute_s,
                "2 * P_active * n_tokens / (flops_frac * F)",
                form,
                n_tokens=float(run.n),
                active_parameters=terms.active_parameters,
                flops_frac=terms.gemm_flops_frac,
                peak_flops_per_s=product_peak(design, run.n),
            ),
        ]
    equation = FORMULAS["linear_s"]
    shared = {
        "active_parameters": terms.active_parameters,
        "weight_read_bytes": read_bytes,
        "bandwidth_bytes_per_s": terms.bandwidth_bytes_per_s,
    }
    peaks = product_peak(design, run.n), terms.product_peak_per_s  # of the cores that decode, and of all
    return [
        *found,
        _note(
            "linear_s",
            wave.linear_s,
            equation.equation,
            equation.source,
            n_tokens=float(run.n),
            peak_flops_per_s=peaks[0],
            **shared,
        ),
        _note(
            "prefill_matrix_s",
            wave.prompt_matrix_s,
            equation.equation,
            equation.source,
            n_tokens=float(prompt),
            peak_flops_per_s=peaks[1],
            **shared,
        ),
    ]


def _weight_bits(point: Point) -> dict[str, Any]:
    """Bits of a parameter, scales of named formats included; of experts apart where theirs differ."""
    load = point.design.load
    dense, experts = Fraction(load.dense_eighths, 8), Fraction(load.expert_eighths, 8)
    bits = {
        name: int(value) if value.denominator == 1 else float(value)
        for name, value in (("weights_bits", dense), ("expert_weights_bits", experts))
    }
    return bits if dense != experts else {"weights_bits": bits["weights_bits"]}


def _waves_note(point: Point, results: dict[str, Any]) -> Step:
    """Seconds of all waves, or how many requests are served together."""
    waves, work = point.waves, point.work
    if work.admission == "paged":
        return _note(
            "running_batch",
            results["running_batch"],
            "min(batch, max_batch): finished requests are replaced at once",
            _CAPACITY,
            batch=work.batch,
            max_batch=point.max_batch,
        )
    return _note(
        "total_s",
        results["total_s"],
        "sum over waves of output_tokens * decode_step_s + prefill_s",
        _TIMES,
        n_waves=int(waves.n_waves),
        running_batch=int(waves.running),
        wave_s=point.largest_wave.wave.wave_s,
        n_waves_of_one_less=int(waves.n_smaller),
    )


def _bound_notes(point: Point, results: dict[str, Any]) -> list[Step]:
    """What the whole and its parts wait for."""
    run, work, wave = point.largest_wave, point.work, point.largest_wave.wave
    waits = {
        "linear_bound": (run.linear_read_s, run.linear_compute_s, run.linear_latency_s),
        "attention_bound": (run.attention_read_s, run.attention_compute_s, run.attention_latency_s),
    }
    largest = "the largest of reading (bandwidth), multiplying (compute) and launching (latency)"
    found = [
        _note(name, results[name], largest, _TIMES, bandwidth_s=read_s, compute_s=compute_s, latency_s=latency_s)
        for name, (read_s, compute_s, latency_s) in waits.items()
    ]
    shares = {f"{name}_s": seconds for name, seconds in shares_of(point.design, run)._asdict().items()}
    found.append(
        _note(
            "bound",
            results["bound"],
            "capacity if running_batch < batch, else the largest of these times per decode step, prompt included",
            _TIMES,
            running_batch=results["running_batch"],
            batch=work.batch,
            **shares,
        )
    )
    phases = {
        "": (total_of(decode_operations(point.design, point.terms, run), DECODE, wave.decode_step_s)),
        "prefill_": (total_of(prompt_operations(point.design, point.terms, run), PREFILL, wave.prefill_s)),
    }
    formula = FORMULAS["utilisation"]
    for prefix, phase in phases.items():
        for name, at_peak_s in (("compute", phase.compute_at_peak_s), ("bandwidth", phase.read_at_peak_s)):
            full = f"{prefix}{name}_utilisation"
            if results[full] is not None:
                found.append(
                    _note(
                        full,
                        results[full],
                        formula.equation,
                        formula.source,
                        at_peak_s=at_peak_s,
                        seconds=phase.seconds,
                    )
                )
    return found


def _choice_notes(point: Point, results: dict[str, Any]) -> list[Step]:
    """Results that are not numbers of a formula: paths, parts of the bits, measurements, assumed numbers."""
    device, plan, work = point.device, point.plan, point.work
    n = work.final_tokens
    parts = {part: float(bits / point.made.n_elements) for part, bits in point.ledger(n).items()}
    found = [
        _note(
            "bit_ledger",
            results["stored_bits"],
            "payload + scales + ... + padding, at the final length",
            "docs/explanation/model.md, Bits",
            **{part: bits for part, bits in parts.items() if bits},
        )
    ]
    for which, quantizer in (("key", plan.key_quantizer), ("value", plan.value_quantizer)):
        rule = (
            f"--dequant-path, else the rule of {device.name} for {quantizer.family.name}; none where nothing is packed"
        )
        name = f"{which}_dequant_path"
        found.append(_note(name, results[name], rule, _PATHS))
    found.append(
        _note(
            "bits_kind",
            results["bits_kind"],
            "closed: nominal shares; measured: shares that data realised",
            "docs/explanation/model.md, Bits",
        )
    )
    for name in ("measured_bits", "mse", "sqnr_db", "measured_error", "measured_on"):
        how, source, numbers = how_measured(plan, results[name])
        found.append(_note(name, results[name], how, source, **numbers))
    for name, ratio in uncertainty.energy_factors(device).items():
        found.append(
            _note(name, ratio, "the range of the device's file over its value", "docs/explanation/model.md, How sure")
        )
    sure = uncertainty.intervals(device, plan, point.stack, point.stack_name)
    for name in ("unpack_rate_low", "unpack_rate_high"):
        rule = "the end of the range over the rate itself; of several kernels the widest"
        found.append(_note(name, results[name], rule, _runs(point) or "docs/explanation/implementations.md"))
    for kind, interval in (("token_time", sure.tokens), ("first_time", sure.first)):
        for end, ratio in (("low", interval.low), ("high", interval.high)):
            found.append(
                _note(
                    f"{kind}_{end}",
                    ratio,
                    f"measured over predicted: {interval.why}",
                    "docs/explanation/model.md, How sure",
                )
            )
    reasons = {name: assumed(point, name) for name in results["assumptions"]}
    found.append(
        _note(
            "assumptions",
            results["assumptions"],
            "numbers of kind `assumed` among those behind this result",
            f"dse show {device.name}",
            **reasons,
        )
    )
    return found


def assumed(point: Point, name: str) -> str:
    """What an assumed number is taken to be, and why."""
    device, policy = point.device, point.work.token_policy
    said = {
        "peak_rates": "memory and arithmetic are taken to reach the peak of their data sheet",
        "token_policy": f"{policy.name}: {policy.family.validity or token_policies.FAMILIES['sparse'].validity}",
        "server_memory": "; ".join(
            number.source for number in servers.of(point.stack_name).quantities().values() if number.kind == "assumed"
        ),
        "exchanges": "; ".join(
            dict.fromkeys(
                found.source
                for *_, found in deployed.exchanges(device, point.plan.model, point.work, point.stack_name)
                if found.kind == "assumed"
            )
        ),
        "stacks_of": f"kernels as fitted on {device.stacks_of or lower.DEFAULT_STACKS_OF}",
        "eight_bit_kernels": (
            "products of 8 bits are taken to reach the share of their peak that 16-bit ones were fitted to"
        ),
        "nearest_format": (
            f"products with weights of this format ({point.work.weight_format.title}), or their experts, were not all "
            "measured: these are taken to reach the shares of the peaks that the nearest that was measured reaches"
        ),
        "implementation": _runs(point),
        "no_kernel": f"no kernel of it is known for {device.name}: {_runs(point)}",
        "nearest_kernels": _borrowed(point),
        "sparse_prompts": (
            "prompts of layers that read chosen or compressed tokens are computed as by plain attention over those "
            "tokens: most measured layers take 1.3 to 6 times as long (docs/explanation/calibration.md)"
        ),
        "nearest_release": (
            f"{lower.stack_text(point.stack_name, point.work)} was not measured: the server's own time is that of all "
            "releases and servers that were"
        ),
    }
    if device.core_clock is None:
        said["core_clock"] = f"{implementations.USUAL_CLOCK / 1e9:g} GHz: assumed, the device's file has none"
    if name in said:
        return said[name]
    number = getattr(device, name, None) or device.rate(name.removesuffix("_rate"))
    return f"{number.value:g} {number.unit}: ".replace(" 1:", ":") + number.source


def _runs(point: Point) -> str:
    """The implementations of a point with their numbers and ranges."""
    own = {g.implementation.name: g.implementation for g in point.plan.groups if g.implementation}
    return "; ".join(f"{one.title}: {one.rate_text()}" for one in own.values())


def _borrowed(point: Point) -> str:
    """Kernels of other stacks, or of other layers, that stand in for those of the stack."""
    stack = point.stack
    if not isinstance(stack, ServedStack):
        return ""
    places = lower.fits_used(point.plan, point.paths, point.work, stack)
    found = ", ".join(f"{place} of {stack.borrowed[place]}" for place in places if place in stack.borrowed)
    said = [f"not measured of {point.stack_name} on {point.device.name}, taken from its other stacks: {found}"]
    shapes = dict.fromkeys(g.shape_index for g in point.plan.groups)
    own = {
        lower.sparse_code(point.plan, point.paths, i): lower.sparse_place(point.plan, point.paths, stack, i)
        for i in shapes
    }
    lacking = {code: place for code, place in own.items() if code != (place or "")}
    if lacking:
        stand_ins = [
            f"of {code} layers none were measured: {place or 'attention'}'s stand in" for code, place in lacking.items()
        ]
        said = [*(said if found else ()), *stand_ins]
    return "; ".join(said)


def _hides_behind(point: Point) -> str:
    return "the kernel's ceilings" if point.design.stack.has_attention else "max(FLOP / F, KV bytes / BW)"


def _unpack_rates(point: Point) -> str:
    """Elements per second that unpack, and where they come from."""
    stack, found = point.stack, {}
    if stack is None or stack.attention is None:
        return _rates(point)
    for g in point.plan.groups:
        one = g.implementation
        if one and one.elements_per_cycle and point.paths[g.place] == "fused":
            own = lower.core_rate(point.device, stack, g, "fused")
            shared = f", once for each of {g.unpackings} query heads" if g.unpackings > 1 else ""
            found[one.name] = f"{own:.4g} a core ({one.elements_per_cycle.kind}{shared})"
            continue
        fit = lower.packed_fit(stack, g, point.paths[g.place]) if g.layout.needs_unpacking else None
        if fit:
            rate = f"{fit.core_rate.si:.4g} a core (fitted)" if fit.core_rate else "no ceiling (fitted)"
            found[lower.kv_code(g)] = rate
    return "; ".join(f"{code} {rate}" for code, rate in found.items()) or _rates(point)


def _rates(point: Point) -> str:
    paths = (path for path in point.paths.values() if path in ("engine", "fused"))
    found = {path: point.device.rate(path) for path in paths}
    return "; ".join(f"{path} {rate.si:.4g} ({rate.kind})" for path, rate in sorted(found.items())) or "none"
