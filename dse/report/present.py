"""Results and specs as text and rows: what `dse point`, `show`, `list` and `check` print."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

from dse.core import units
from dse.core.columns import aligned
from dse.core.compiling import FORMULAS
from dse.core.errors import InputError, did_you_mean, show
from dse.model import assumed, engine, own_server, quality, stacks, uncertainty
from dse.model.attention import cast_step_s
from dse.model.compare import OF_ATTENTION
from dse.model.engine import at_ends, bound_text, in_wide_weights, room_text
from dse.model.explain import explained
from dse.model.kernels import expert_code, fits_used
from dse.model.kv_layout import KvPlan
from dse.model.offload import MOST_TOKENS, offload_of
from dse.model.point import Point
from dse.model.results import RESULT_UNITS, RESULTS, STEPS, assumed_behind, assumed_title, rests_on, ring, section
from dse.model.results.declare import INTERVALS, MEASURED, SECTIONS, Results, of_host
from dse.model.results.reads import DEVICE_PARAMETERS
from dse.model.starts import told_text
from dse.questions.common import value_text
from dse.report.design import as_said
from dse.specs import catalog, device_names, measured_memory, tokens
from dse.specs.device_and_model import HardwareSpec, ModelSpec, Quantity
from dse.specs.oaken_grid import SAMPLE
from dse.specs.stack import ServedStack
from dse.specs.weights import ATTENTION, FORMATS, WIDE
from dse.specs.workload import ASKED, OF_EXPERTS, Workload, weights_text

Rows = list[dict[str, Any]]
#: a step that takes so many times as long is said to be slower
SLOWER = 1.01
#: of the memory bandwidth, at which kernels are said to be slow
SLOW_SHARE = 0.5
#: parts of a time that are told
LEAST_SHARE = 0.005


def change(value: float, base: float) -> str:
    """Difference of a number from another: in percent, or as a factor from twice on; empty where that is 0."""
    if not base:
        return ""
    ratio = value / base
    if ratio >= 2:
        return f"{ratio:,.3g} x"
    percent = 100 * (ratio - 1)
    return "same" if abs(percent) < 0.05 else f"{percent:+.1f} %"


#: a result with its unit as people read it
number = units.number


def _value_text(name: str, results: Results, model: ModelSpec) -> str:
    """A result as a section shows it: a pool below 0 is none, a context beyond the model's positions says so."""
    value = results[name]
    if name == "free_bytes" and value < 0:  # the line on top says by how much
        return "none"
    if name == "measured_error":
        return f"{value:.4g}"
    made_for = made_for_positions(model, value) if name == "max_context_tokens" else ""
    text = number(value, RESULT_UNITS[name])
    if name == "kv_pool_tokens" and (ends := pool_ends(results)):
        return f"{text} (8 of 10 start-ups: {ends})"
    return f"{text} ({made_for})" if made_for else text


def pool_ends(results: Results) -> str:
    """Tokens between which the pool of 8 of 10 start-ups lies; "" where that is not known."""
    if results["pool_low"] is None or results["kv_pool_tokens"] is None:
        return ""
    return " to ".join(f"{round(results['kv_pool_tokens'] * results[f'pool_{end}']):,}" for end in ("low", "high"))


def section_lines(title: str, results: Results, model: ModelSpec, names: Container[str] = RESULTS) -> list[str]:
    """The lines of a section for results of these names; of a design that does not run those that have a value."""
    return [
        line(entry.words or result.title, _value_text(result.name, results, model))
        for entry, result in section(title, results)
        if result.name in names and (results["feasible"] or results[result.name] is not None)
    ]


def line(label: str, text: str) -> str:
    """A line of a section: what it is, and its number in a column where the label leaves room for it."""
    return f"  {label:<39} {text}"


def bit_ledger(point: Point) -> dict[str, float]:
    """Bits an element by part of one sequence at its final length; they add up to `stored_bits`."""
    if not point.work.kv_cache:
        return {}
    parts = point.ledger(point.work.final_tokens)
    return {part: float(bits / point.made.n_elements) for part, bits in parts.items()}


def samples_text(work: Workload) -> str:
    """Answers of a prompt in the head of a design, where there are several."""
    return f"{work.samples} answers a prompt  " if work.samples > 1 else ""


def point_text(
    point: Point, given_device: str | None = None, would_fit: Sequence[tuple[str, str]] = (), is_brief: bool = False
) -> str:
    """One design point: the answer, then its numbers, grouped as a person would read them; with `is_brief` those that
    most look for. `given_device`: the name or file the user wrote; `would_fit`: commands of designs that fit in place
    of one that does not, and what they change and give."""
    device, plan, result = point.device, point.plan, as_said(engine.evaluate(point))
    is_full = point.asked.batch is None
    device_name = given_device or device.name
    lines = [
        f"{result['device']}  {result['model']}  {weights_said(result)}{result['quantizer']}  "
        f"{batch_text(result, is_full)}  {result['input_tokens']:,} in, {result['output_tokens']:,} out  "
        f"{samples_text(point.work)}{result['admission']}  "
        f"({result['model_kind']} model{', ' + result['stack'] if result['stack'] else ''})"
        + ("" if result["kv_cache"] else "  no KV cache")
    ]
    if result["n_devices"] > 1:
        lines.append(deployment_text(result))
    policy = tokens.parse(result["tokens"]).family
    if policy.validity:
        stored, read = (f"{result[name]:,.10g}" for name in ("stored_tokens", "read_tokens"))
        said = f"{policy.title} ({result['tokens']}): {stored} tokens stored and {read} read at the end"
        lines.append(said + _state_text(point, result))
    if result["runs_why"]:
        lines += ["", as_if_run(result["runs_why"])]
    elif point.lowered.may_not_start:
        lines += ["", f"{point.lowered.may_not_start}."]
    if not result["feasible"]:
        lines += ["", f"Does not fit: {result['infeasible_reason']}"]
        lines += ["These do:"] if would_fit else [f"Room comes from {_room_comes_from(result)}"]
        lines += [line for command, change in would_fit for line in (f"  {command}", f"    {change}")]
    else:
        lines += ["", *_answer_lines(point, result)]
    lines += _brief_lines(result, plan) if is_brief else _all_lines(point, result)
    lines += _offload_lines(point)
    if result["assumptions"]:
        names = _assumptions_text(result)
        names = names.replace("usable_frac", f"usable_frac ({100 * device.usable_frac.si:g} %)")
        lines += ["", f"Rests on assumed numbers: {names} (`dse show {device_name}`, `--explain assumptions`)"]
    lines += [f"Warning: {warning}" for warning in device.warnings()]
    is_own_name = device_name.lower() in catalog.device_files()
    if not is_own_name and (also := device_names.others(device_name, catalog.device_aliases())):
        lines.append(f"Note: {device_name} is taken as {device.name}; {' and '.join(also)} would fit the name too")
    lines += design_notes(device, plan.model, result)
    if plan.quantizer_name != result["quantizer"]:
        lines.append(f"Note: {result['quantizer']} is stored as {plan.quantizer_name} by this engine, which is counted")
    lines += position_note(plan.model, result["input_tokens"] + result["output_tokens"])
    if policy.validity:
        lines.append(f"Note: {result['tokens']}: {policy.validity}")
    return "\n".join(lines)


def fits_text(result: Mapping[str, Any], is_full: bool = False) -> str:
    """Whether a design fits, and by what limit, in a sentence; `is_full`: the batch is as many requests as fit."""
    if not result["feasible"]:
        return f"Does not fit: {result['infeasible_reason']}."
    batch, most = result["batch"], result["max_batch"]
    if is_full:
        limit = "as many as fit" if batch == most else f"as many as the server takes; room for {most:,}"
        return f"Runs {batch:,} request{'s' if batch > 1 else ''} at once: {limit}."
    if result["fits_whole_batch"]:
        room = f"; room for {most:,}" if most > batch else ""
        return f"Fits: {'the request' if batch == 1 else f'all {batch:,} requests'} at once{room}."
    limited = "the server's own limit" if result.get("max_num_seqs") == most else "memory"
    if result["n_waves"] is None:
        return f"Exceeds {limited}: at most {most:,} of {batch:,} requests run at once, the others wait."
    waves = f"runs in {result['n_waves']:,} waves of up to {result['running_batch']:,}"
    return f"Exceeds {limited}: {waves} of {batch:,} requests."


def _state_text(point: Point, result: Results) -> str:
    """The bytes of a state in place of a cache, and the length from which on a cache takes more."""
    if point.work.token_policy.family.name != "constant":
        return ""
    n_bytes = number(result["stored_tokens"] * result["kv_bytes_per_token"], "B")
    return f"; {n_bytes} whatever the length, less than a cache from {result['stored_tokens'] + 1:,.10g} tokens on"


def _answer_lines(point: Point, result: dict[str, Any]) -> list[str]:
    """The answer of a design that runs, in three lines: how many fit, how fast and how sure, what binds and what would
    do more."""
    names = ("tpot_s" if of_host(result) else "decode_step_s", "ttft_s")
    speeds = [value_text(result, RATE)]
    speeds += [
        "no TPOT (an answer of one token)"
        if result[name] is None
        else f"{RESULTS[name].title} {value_text(result, name)}"
        for name in names
    ]
    more = _more_text(result, engine.with_more(point))
    bound = _bound_text(result, engine.with_room(point))
    if result["bound"] == "communication" and point.work.kv_offload:
        bound = "communication: the largest part of the time goes into keys and values that come from host memory"
        more = "more by a smaller share there (--kv-offload), or by fewer bits"
    return [
        fits_text(result, point.asked.batch is None),
        f"{', '.join(speeds)}; 8 of 10 measurements lie in brackets",
        f"Bound by {bound}{f'; {more}' if more else ''}",
    ]


RATE = "throughput_tokens_per_s"


def _more_text(result: Results, with_more: Results | None) -> str:
    """Say what would give more tokens a second, where memory does not bind."""
    if result["bound"] == "capacity":
        return ""
    if with_more and with_more[RATE] > MORE * result[RATE]:
        return f"the {result['max_batch']:,} requests that fit would give {number(with_more[RATE], 'tok/s')}"
    return f"more by {_MORE_BY[result['bound']]}" if result["bound"] in _MORE_BY else ""


#: from so many times the throughput on it is said to be more
MORE = 1.01
#: what gives more tokens a second, by what binds
_MORE_BY = {
    "bandwidth": "fewer bits of weights or of keys and values, or more devices (--tp)",
    "compute": "products of fewer bits (--weights), prompts that are shared (--prefix), or more devices (--tp)",
    "dequantization": "a format that kernels read sooner (`dse ask formats`)",
    "communication": "faster links, or fewer devices for each copy of the model",
}
#: results of a section that a text shows which does not show all
BRIEF = {
    "Memory": ("weight_bytes", "free_bytes", "kv_pool_tokens", "kv_bytes_per_token", "max_batch", "max_context_tokens"),
    "Bits per element": ("stored_bits",),
    "Time": ("linear_s", "attention_s", "dequantize_s", "collective_s", "host_s", "decode_step_s"),
    "Throughput": ("joules_per_token", "usd_per_million_tokens"),
}


def _brief_lines(result: dict[str, Any], plan: KvPlan) -> list[str]:
    """The sections of a text that shows what most look for."""
    lines = []
    for title, names in BRIEF.items():
        if shown := section_lines(title, result, plan.model, names):
            lines += ["", title, *shown]
    return lines + brief_quality(result)


def _offload_lines(point: Point) -> list[str]:
    """Keys and values in host memory: what a step fetches, and what computing them again would take."""
    offload = offload_of(point)
    if offload is None:
        return []
    stretches = " and ".join(f"{first:,} to {last:,} tokens" for first, last in offload.computed_sooner)
    sooner = f"for a beginning of {stretches}" if stretches else f"at no length up to {MOST_TOKENS:,} tokens"
    rows = [
        ("keys and values there", number(offload.host_bytes, "B")),
        ("fetched a step", f"{number(offload.link_bytes, 'B')} in {number(offload.link_s, 's')}"),
        ("a step waits for them", number(offload.wait_s, "s")),
        ("computing them again instead", f"{number(offload.again_s, 's')} a step"),
        ("even where the link gives", number(offload.even_bytes_per_s, "B/s")),
        ("computed sooner than fetched", sooner),
    ]
    return ["", "Host memory", *(line(label, text) for label, text in rows)]


def _all_lines(point: Point, result: dict[str, Any]) -> list[str]:
    """The sections of a text that shows every result."""
    lines, plan = [], point.plan
    for title in SECTIONS:
        if shown := section_lines(title, result, plan.model):
            lines += ["", title, *shown]
        if title == "Throughput" and result["cached_input_discount"] is not None and result["feasible"]:
            lines.append(
                f"    cost of a request: cached input {result['cached_input_discount']:.0%} off what computing it "
                "costs, in place of what sharing it saves"
            )
        if title == "Bits per element":
            lines += _cut_groups(result, plan)
            parts = [(part.replace("_", " "), bits) for part, bits in bit_ledger(point).items() if bits]
            lines += [f"    {part:<38}{bits:.4g} bit" for part, bits in parts]
            lines += _measured_lines(result, plan)
    lines += [
        *how_sure(result),
        *kernels_text(kernels(point)),
        "",
        "Bottleneck",
        *_share_lines(engine.time_shares(point)),
    ]
    if not result["feasible"]:
        lines.append("  capacity: not even one request fits")
    elif not result["fits_whole_batch"]:
        running, batch = f"{result['running_batch']:,}", f"{result['batch']:,}"
        in_waves = f"{batch} requests run in waves of at most {running}"
        lines.append(
            f"  {in_waves if result['admission'] == 'reserve' else f'{running} of {batch} requests run at a time'}"
        )
    if result["admission"] == "paged":
        size = "its mean size over the generation" if result["memory"] == "paper" else "its full length"
        lines.append(f"  paged: requests are taken as staggered, each counted at {size}")
    return lines


def design_notes(device: HardwareSpec, model: ModelSpec, result: dict[str, Any]) -> list[str]:
    """Notes on a design that hold at every length: on the model, its weights, and how formats are unpacked."""
    notes = [*model.notes, *weights_notes(model, result)]
    return [*(f"Note: {note}" for note in notes), *_own_chip_note(device, result)]


def as_if_run(why: str) -> str:
    """The line that marks a design that the software of its device does not run."""
    return f"Not run by the software of the device: {why}. The numbers are as if other software ran it."


def _own_chip_note(device: HardwareSpec, result: dict[str, Any]) -> list[str]:
    """Note on how fast a chip of the user's is taken to unpack formats."""
    if not device.is_own_chip or "engine" not in (result["key_dequant_path"], result["value_dequant_path"]):
        return []
    if device.engine_rate:
        rate = units.human(device.engine_rate.si, "element/s")
        return [f"Note: {device.name} is taken to unpack every format at its engine_rate, {rate}"]
    return [
        f"Note: {device.name} is taken to unpack every format as fast as its memory gives it: no software is known "
        "for it, nor how fast it unpacks (engine_rate)"
    ]


def batch_text(result: dict[str, Any], is_full: bool) -> str:
    """The batch in a line, and how it was chosen where it was not given (`is_full`)."""
    text = f"batch {result['batch']:,}"
    if not is_full or not result["feasible"]:
        return text
    return f"{text}: as many as {'fit' if result['batch'] == result['max_batch'] else 'the server takes at once'}"


def weights_fields(model: ModelSpec, work: Workload) -> dict[str, Any]:
    """The weights of a model as results that are no design point show them."""
    return {"weights_bits": work.weights_bits, "weights": work.of_model(model).weights}


def weights_said(result: dict[str, Any]) -> str:
    """The weights in a first line, with the space behind them."""
    return f"{weights_text(result['weights'], result['weights_bits'])}  "


def weights_notes(model: ModelSpec, result: dict[str, Any]) -> list[str]:
    """Notes on a checkpoint in fewer bits: its format, or that another was asked for in its place."""
    if model.released == WIDE:
        return []
    title, used = FORMATS[model.released].title, weights_text(result["weights"], result["weights_bits"])
    if result["weights"] == model.released:
        where = model.released_source.partition(":")[0]
        notes = [f"weights as released: {model.released} ({title}, by {where}); --weights bf16 counts 16 bits"]
        return notes + _left_wide(model, where)
    return [f"the checkpoint has {model.released} weights ({title}): {used}, as asked, take their place"]


def _left_wide(model: ModelSpec, where: str) -> list[str]:
    """A note on what a checkpoint stores in more bits than its format, and on what a name alone does not tell."""
    form, by_name = FORMATS[model.released], where == "the name"
    notes = []
    if wide := model.wide.get(model.released):
        parts = {"attention": wide.attention, "other layers": wide.rest, "experts": wide.experts}
        said = ", ".join(f"{n / 1e9:.2f} G of {name}" for name, n in parts.items() if n)
        head = ", its output head is not" if wide.narrow_head else ""
        notes.append(
            f"of its parameters {said or 'none'} count as if in 16 bits beside embeddings{head} ({wide.source})"
        )
    if by_name and (wide or form.keeps == ATTENTION or form.name.endswith(OF_EXPERTS)):
        notes.append(
            "makers leave different modules in 16 bits: a directory with its config.json and hf_quant_config.json "
            "(--model DIR) says which"
        )
    return notes


def slower_note(point: Point) -> list[str]:
    """A note where weights of fewer bits make a step slower than 16 bits would: by how much, and which kernels."""
    wide, step_s = in_wide_weights(point), engine.evaluate(point)["decode_step_s"]
    if wide is None or not wide["decode_step_s"] or step_s <= SLOWER * wide["decode_step_s"]:
        return []
    times = " against ".join(number(seconds, "s") for seconds in (step_s, wide["decode_step_s"]))
    return [f"Note: these weights make a step slower than 16 bits would ({times}): {_slow_kernels(point)}"]


def cast_note(point: Point) -> list[str]:
    """A note where a server writes its whole pool in 16 bits in every step, and on what does not."""
    if not (seconds := cast_step_s(point.design)):
        return []
    return [
        f"Note: of each step {number(seconds, 's')} write all FP8 latents of the pool in 16 bits, used or not "
        "(SGLang's fa3): a smaller --max-total-tokens takes less, its --attention-backend flashmla reads FP8"
    ]


def release_note(point: Point) -> list[str]:
    """A note on the measured release that stands in for one that nobody measured, and on how old it is."""
    is_asked = "nearest_release" in engine.evaluate(point)["assumptions"]
    said = (
        assumed.reason(point, "nearest_release")
        if is_asked
        else stacks.age_text(point.stack_name, point.stack, point.work)
    )
    return [f"Note: {said}"] if said else []


def memory_note(point: Point) -> list[str]:
    """Notes where memory is that of a server's log, which file and of what; and on options that change memory alone."""
    work, notes = point.work, []
    if memory := measured_memory.of(work.calibrated):
        notes.append(f"Note: memory as {work.calibrated} has it ({memory.source})")
    if times := measured_memory.times_of(work.calibrated):
        engine = point.lowered.results["stack"] or ""
        unused = own_server.why_not(times, point.device, point.stack, point.work, engine)
        said = f"calibrated: {work.calibrated}, not used: {unused}" if unused else assumed.own_server_text(point)
        notes.append(f"Note: {said}")
    if not work.cuda_graphs:
        notes.append("Note: --enforce-eager counts in memory alone: times are those with CUDA graphs")
    if work.draft:
        notes.append("Note: --speculative-config counts in memory alone: times are those of plain decoding")
    away = (("cpu_offload_gib", 0), ("gpu_layers", None), ("cpu_moe_layers", 0))
    for name in (name for name, usual in away if getattr(work, name) != usual):
        notes.append(f"Note: --{ASKED[name].name} counts in memory alone: times are those of weights on the device")
    return notes


def _slow_kernels(point: Point) -> str:
    """The kernels of a format that reach the least of the memory bandwidth."""
    form, stack = point.work.weight_format, point.stack
    shares = []
    grouped = expert_code(stack, form) if stack and point.plan.model.n_experts > 1 else None
    if stack and grouped:
        shares.append((stack.experts[grouped].memory_frac.si, "experts"))
    if stack and form.dense_code in stack.products:
        shares.append((stack.products[form.dense_code].memory_frac.si, "layers"))  # type: ignore[index]
    if not shares or min(shares)[0] > SLOW_SHARE:
        return "their kernels start later or multiply at a lower rate"
    share, where = min(shares)
    return f"kernels of {where} in this format, as measured on {point.stack_name}, reach {share:.2g} of the bandwidth"


def _room_comes_from(result: dict[str, Any]) -> str:
    """Advice where not even one request fits."""
    weights = "fewer bits for weights (--weights)"
    if result["free_bytes"] < 0:
        return f"{weights} or more devices (--tp)"
    return f"a shorter request (--input, --output), fewer bits for it (--quantizer), {weights} or more devices (--tp)"


def kernels(point: Point) -> list[dict[str, Any]]:
    """Kernels that run the quantizers of a point: name, title, rates, and the decode step (s) and throughput (tok/s)
    at both ends of their range."""
    implementations = {g.implementation.key: g.implementation for g in point.plan.groups if g.implementation}
    ends = at_ends(point)
    at = {
        end: {name: speed[name] for name in ("decode_step_s", "throughput_tokens_per_s")} for end, speed in ends.items()
    }
    families = {g.implementation.key: g.quantizer.family.name for g in point.plan.groups if g.implementation}
    borrowed = _borrowed_from(point)
    rows = []
    for kernel in implementations.values():
        model, stack = point.plan.whole_model, engine.evaluate(point)["stack"] or ""
        told = told_text(point.device, model, point.work, stack, families[kernel.key])
        rows.append(
            {
                "name": kernel.name,
                "title": kernel.title,
                "methods": list(kernel.methods),
                "numbers": {name: number.model_dump() for name, number in kernel.numbers().items()},
                "reaches": borrowed or kernel.rate_text(),
                "engine": told,
                "at_ends": at,
            }
        )
    return rows


def _borrowed_from(point: Point) -> str:
    """Whose kernels of attention stand in for those of the stack; "" where its own were measured."""
    if not isinstance(point.stack, ServedStack):
        return ""
    used = fits_used(point.plan, point.paths, point.work, point.stack)
    others = dict.fromkeys(
        f"{point.stack.borrowed[place]} ({place})"
        for place in used
        if place in point.stack.borrowed and place.startswith(OF_ATTENTION)
    )
    return f"not measured of {point.stack_name}: by kernels of {', '.join(others)}" if others else ""


def kernels_text(kernels: list[dict[str, Any]]) -> list[str]:
    """Section about the kernels of keys and values."""
    if not kernels:
        return []
    lines = ["", "Kernels of keys and values (`dse list implementations`)"]
    for kernel in kernels:
        lines.append(f"  {kernel['name']}: {kernel['title']}; {kernel['reaches']}")
        lines += [f"  {kernel['engine']}"] if kernel.get("engine") else []
    ends = kernels[0]["at_ends"]
    if all(end.get("decode_step_s") for end in ends.values()) and ends:
        steps, rates = ([number(end[name], RESULT_UNITS[name]) for end in ends.values()] for name in _AT_ENDS)
        lines.append(f"  slowest to fastest: decode step {' to '.join(steps)}, throughput {' to '.join(rates)}")
    return lines


#: results that a point's text gives at both ends of what its kernels may reach
_AT_ENDS = ("decode_step_s", "throughput_tokens_per_s")


#: what the head of the intervals says of times that no kernels were measured for
TIMES_OF = {
    "ideal": "the times above are at peak rates; ",
    "estimated": "no kernels were measured here, so the times above are in the middle of what devices reach; ",
}


def how_sure(result: dict[str, Any]) -> list[str]:
    """Section of the intervals in which 8 of 10 measurements should lie."""
    intervals = uncertainty.of_results(result, None)
    lines = []
    for entry, field in section(INTERVALS, result):
        if field.name in intervals:
            low, high = (number(result[field.name] * end, field.unit) for end in intervals[field.name][:2])
            lines.append(line(entry.words or field.title, f"{low} to {high}"))
    at_peak = TIMES_OF.get(result["model_kind"], "")
    head = f"How sure: {at_peak}8 of 10 measurements lie within (`--explain RESULT` says why)"
    return ["", head, *lines] if lines else []


def made_for_positions(model: ModelSpec, n_tokens: int | None) -> str:
    """Remark on a context longer than the model's positions; "" otherwise."""
    return f"model: {model.max_position_tokens:,} positions" if model.lacks_positions(n_tokens) else ""


def position_note(model: ModelSpec, n_tokens: int) -> list[str]:
    """A note where a context is longer than the model's positions; nothing otherwise."""
    if not model.lacks_positions(n_tokens):
        return []
    most = model.max_position_tokens
    return [f"Note: {n_tokens:,} tokens are beyond the {most:,} positions that {model.name} was made for"]


def ring_text(result: dict[str, Any], model: ModelSpec) -> str:
    """The results of `dse.model.ring.evaluate` as a person would read them."""
    lines = [
        f"{result['n_ring']:,} x {result['device']}  {result['model']}  {result['quantizer']}  batch "
        f"{result['batch']:,}  {result['input_tokens']:,} in, {result['output_tokens']:,} out  "
        f"({result['model_kind']} model)"
    ]
    if not result["feasible"]:
        lines += ["", f"Does not fit: {result['infeasible_reason']}"]
    for title in ring.SECTIONS:
        if shown := section(title, result, ring.RING):
            lines += [
                "",
                title,
                *(line(entry.words or field.title, number(result[field.name], field.unit)) for entry, field in shown),
            ]
    lines += ["", rests_on(result["assumptions"])]
    return "\n".join([*lines, *position_note(model, result["input_tokens"] + result["output_tokens"])])


def operations_text(operations: list[dict[str, Any]]) -> str:
    """`Point.operations` as a table: what each operation takes, moves and calculates, its peak shares."""
    rows = [("phase", "operation", "time", "FLOP", "bytes", "of peak FLOP/s", "of peak bandwidth")]
    for op in operations:
        rows.append(
            (
                op["phase"],
                op["name"].replace("_", " "),
                units.human(op["seconds"], "s"),
                units.human(op["flops"], "FLOP"),
                units.human(op["n_bytes"], "B"),
                f"{100 * op['compute_utilisation']:.3g} %",
                f"{100 * op['bandwidth_utilisation']:.3g} %",
            )
        )
    return "\n".join(aligned(rows))


#: fields of a workload that say how the model lies on devices
DEPLOYMENT = ("n_devices", "tp", "pp", "pp_batches", "ep", "dcp", "dp_attention")


def deployment_text(result: dict[str, Any]) -> str:
    """Deployment on several devices; memory and bytes are those of one."""
    ways = [f"{name} {result[name]}" for name in ("tp", "pp", "ep", "dcp") if result[name] > 1]
    ways += [f"pp-batches {result['pp_batches']}"] if result["pp_batches"] else []
    ways += ["attention data parallel"] if result["dp_attention"] else []
    return f"{result['n_devices']} devices: {', '.join(ways)}; memory is that of each"


def _cut_groups(result: dict[str, Any], plan: KvPlan) -> list[str]:
    """Note on groups that span all heads of a token, where a split by heads cuts them."""
    bits = float((plan.whole or plan).effective_bits)
    if result["effective_bits"] == bits:
        return []
    every = max(layer.n_kv_heads for layer in plan.whole_model.layers)
    n_heads = -(-every // result["tp"])
    heads = f"{n_heads} of {every} KV head{'s' if every > 1 else ''}"
    return [f"    groups span the {heads} that a device has; unsplit {bits:.4g} bit effective"]


def _measured_lines(result: dict[str, Any], plan: KvPlan) -> list[str]:
    """Bits and errors of the measurement, where there is one, and what the bits above rest on."""
    lines = []
    if result["bits_kind"] != "closed":
        lines.append(f"  outliers and sinks where there are any: {result['bits_kind']}, on {result['measured_on']}")
    if result["measured_on"]:
        lines += ["", f"Measured on {result['measured_on']}"]
        lines += section_lines(MEASURED, result, plan.model)
        lines += [f"  {note}" for note in _other_shapes(plan)]
        if result["mse"] is None and plan.key_quantizer.layers and not plan.key_quantizer.measured:
            lines.append("  as the plan's file says; errors of elements: --measurements of what `dse measure` wrote")
        elif result["mse"] is None:
            lines.append("  nothing was packed: the data is shorter than a group and the residual")
    return lines + quality_lines(result, plan)


def quality_lines(result: dict[str, Any], plan: KvPlan) -> list[str]:
    """The cost of the format: on the sample model with the range over texts, and the accuracy loss."""
    lines, score = list[str](), quality.sample_score(plan)
    if score is not None:
        kl, ratio = score.kl_nats, score.perplexity_frac
        over = f"over {score.n_texts} texts"
        lines += [
            "",
            f"Quality: in the loop of {SAMPLE}",
            line("divergence of tokens from 16 bits", f"{kl.mean:.3g} nat ({kl.low:.3g} to {kl.high:.3g} {over})"),
            line(
                "rise of perplexity over 16 bits",
                f"{100 * ratio.mean:+.1f} % ({100 * ratio.low:+.1f} to {100 * ratio.high:+.1f})",
            ),
            line("likeliest token as with 16 bits", f"{100 * score.top1_agreement_frac.mean:.1f} %"),
        ]
    if published := _published_text(result):
        more = f"dse scores --quantizer {result['quantizer']} --model {result['model']}"
        lines += ([] if score else ["", "Quality"]) + [line("accuracy loss", published), line("more scores", more)]
    return lines


def _published_text(result: dict[str, Any]) -> str:
    """The accuracy loss with where it comes from; "" where none was published."""
    of = result["score_drop_of"]
    return "" if of is None or of == quality.EXACT else f"{quality.drop_text(result)} ({of})"


def brief_quality(result: dict[str, Any]) -> list[str]:
    """Lines of the cost of a format in scores, in perplexity and in error, where there are some."""
    lines = [line("accuracy loss", published)] if (published := _published_text(result)) else []
    if result["sample_perplexity_frac"]:
        lines.append(line("rise of perplexity", f"{quality.rise_text(result)} ({SAMPLE})"))
    if result["measured_error"]:
        lines.append(line("error of the attention output", f"{result['measured_error']:.4g}"))
    return ["", "Quality", *lines] if lines else []


def _other_shapes(plan: KvPlan) -> list[str]:
    """A note where the measured tensors have other heads than the model's."""
    for g in plan.groups:
        whole = plan.key_quantizer if g.which == "key" else plan.value_quantizer  # of a plan by layer, not the layer's
        measured, shape = whole.measured.get(g.which), (g.layout.shape.n_heads, g.layout.shape.head_dim)
        if measured and measured.shape and measured.shape != shape:
            data, model = (f"{n} head{'s' if n != 1 else ''} of {dim}" for n, dim in (measured.shape, shape))
            return [f"the data has {data}, the model {model}: errors may differ"]
    return []


def _share_lines(shares: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Lines of what decoding and prompts wait for, the largest part first."""
    lines = []
    for name, parts in shares.items():
        largest = sorted(parts.items(), key=lambda part: -part[1])
        told = ", ".join(f"{part} {100 * share:.0f} %" for part, share in largest if share >= LEAST_SHARE)
        lines.append(f"    of {name:<9}  {told}")
    return lines


def _bound_text(result: dict[str, Any], with_room: dict[str, Any] | None) -> str:
    if result["bound"] != "capacity":
        return bound_text(result["bound"])
    rate = "throughput_tokens_per_s"
    room = f"; {room_text(number(with_room[rate], RESULT_UNITS[rate]), with_room)}" if with_room else ""
    if result["max_batch"] == result["max_num_seqs"]:
        return f"capacity: the server takes no more than {result['max_num_seqs']:,} requests at once{room}"
    return f"capacity: the whole batch does not fit at once{room}"


def _assumptions_text(numbers: dict[str, Any]) -> str:
    """The assumed numbers behind rates and times, and those that energy and price rest on beside them."""
    names = list(numbers["assumptions"])
    parts = []
    for title, results in (
        ("", ("throughput_tokens_per_s",)),
        ("for energy also ", ("joules_per_token", "joules_per_token_by_parts")),
        ("for the price also ", ("usd_per_million_tokens",)),
    ):
        behind = [n for n in names if any(assumed_behind(result, [n], numbers) for result in results)]
        names = [name for name in names if name not in behind]
        if behind:
            parts.append(title + ", ".join(map(assumed_title, behind)))
    return "; ".join(parts)


def explain(name: str, point: Point) -> dict[str, Any]:
    """The formula behind one result: equation, substituted values, and the sources of the constants in them.

    Terms that are results of other formulas are explained in turn, under `steps`, each once.
    """
    if name not in (names := {*RESULT_UNITS, *STEPS, *FORMULAS}):  # before a number is computed
        raise InputError(f"unknown result {show(name)}: {did_you_mean(name, names)}")
    result, steps_by_name = explained(point)
    device, model = point.device, point.plan.model
    known = {**RESULT_UNITS, **{step.name: step.unit for step in steps_by_name.values()}}
    if name not in known:
        raise InputError(f"unknown result {show(name)}: {did_you_mean(name, known)}")
    value = result[name] if name in result else steps_by_name[name].value
    steps: list[dict[str, Any]] = []
    seen: set[str] = set()

    def visit(which: str) -> None:
        if which in seen or which not in steps_by_name:
            return
        seen.add(which)
        step = steps_by_name[which]
        terms = []
        for term, value in step.terms.items():
            source = None
            if field := DEVICE_PARAMETERS.get(term):
                quantity: Quantity | None = getattr(device, field)
                if term == "peak_flops_per_s" and value != device.peak_flops.si:  # products of 8 bits
                    quantity = device.product_peak(units.BITS_PER_BYTE)
                source = _with_kind(quantity) if quantity else None
            elif term in ("n_parameters", "active_parameters", "n_dense_parameters"):
                source = f"{model.name}: counted from its shape ({model.source})"
            terms.append({"name": term, "value": value, "unit": unit_of(term), "source": source})
        steps.append(
            {
                "name": which,
                "value": step.value,
                "unit": step.unit,
                "equation": step.equation,
                "source": step.source,
                "terms": terms,
            }
        )
        for term, term_value in step.terms.items():
            if term in steps_by_name and steps_by_name[term].value == term_value:
                visit(term)

    visit(name)
    if not steps:
        equation, source = _without_formula(name, result)
        steps.append(
            {"name": name, "value": value, "unit": known[name], "terms": [], "source": source, "equation": equation}
        )
    return {"name": name, "value": value, "unit": known[name], "steps": steps, **_interval(name, point, result)}


def _interval(name: str, point: Point, result: dict[str, Any]) -> dict[str, Any]:
    """Between which values 8 of 10 measurements of a result should lie, why, and, of times and energy, which part of a
    step, or of the energy, weighs most in it."""
    intervals = uncertainty.of_results(result, point.stack)
    if name not in intervals:
        return {}
    sure = point.lowered.sure
    low, high = uncertainty.numbers_at(result, name, intervals[name])
    if name in uncertainty.OF_POOL:
        assert point.lowered.pool is not None
        return {"interval": {"low": low, "high": high, "why": point.lowered.pool.why}}
    why = intervals[name].why or (sure.first if name in uncertainty.FIRST_TIMES else sure.tokens).why
    whole, names = ("decode_step_s", STEP_PARTS)
    if name in uncertainty.BY_PARTS:
        whole, *names = uncertainty.BY_PARTS  # type: ignore[assignment]
    parts = {part: result[part] or 0.0 for part in names}
    largest = max(parts, key=lambda part: parts[part])
    return {
        "interval": {
            "low": low,
            "high": high,
            "why": why,
            "dominated_by": largest,
            "share": parts[largest] / result[whole],
            "of": whole,
        }
    }


#: parts that a decode step is made of
STEP_PARTS = ("linear_s", "attention_s", "quantize_s", "dequantize_s", "collective_s", "host_s", "power_s")


def _interval_text(explanation: dict[str, Any]) -> list[str]:
    """The interval of an explained result as a person reads it."""
    if "interval" not in explanation:
        return []
    interval, unit = explanation["interval"], explanation["unit"]
    ends = " to ".join(number(interval[end], unit) for end in ("low", "high"))
    lines = ["", f"8 of 10 measurements lie within {ends}: {interval['why']}"]
    if "of" in interval:
        part, whole = RESULTS[interval["dominated_by"]].title, RESULTS[interval["of"]].title
        lines.append(f"  largest part of the {whole}: {part}, {interval['share']:.0%}")
    return lines


def _without_formula(name: str, result: dict[str, Any]) -> tuple[str, str]:
    """Where a result comes from that no formula gave, and the source of that."""
    if chosen := RESULTS[name].chosen:
        return chosen, "input"
    if not result["feasible"]:
        return f"the design does not run: {result['infeasible_reason']}", "docs/explanation/model.md, Capacity"
    return ("this design has none" if result[name] is None else RESULTS[name].title), "docs/explanation/model.md"


def _with_kind(quantity: Quantity) -> str:
    """Source of a number with its kind, which an assumed number's source already names."""
    return quantity.source if quantity.kind in quantity.source else f"{quantity.source} ({quantity.kind})"


def unit_of(name: str) -> str:
    """Unit that a name carries, by its ending; a rate of what the name does not say is "1/s"."""
    if name in RESULT_UNITS:
        return RESULT_UNITS[name]
    endings = (
        ("bytes_per_s", "B/s"),
        ("flops_per_s", "FLOP/s"),
        ("tokens_per_s", "tok/s"),
        ("requests_per_s", "request/s"),
        ("full_per_s", "request/s"),
        ("core_rate_per_s", "element/s"),
        ("_per_s", "1/s"),
        ("_s_per_token", "s/token"),
        ("bits_per_token", "bit/token"),
        ("usd_per_hour", "USD/h"),
        ("bytes_per_sequence", "B"),
        ("_bytes", "B"),
        ("joules_per_token", "J/token"),
        ("per_byte", "J/B"),
        ("per_flop", "J/FLOP"),
        ("_tokens", "token"),
        ("_bits", "bit"),
        ("flops", "FLOP"),
        ("_s", "s"),
        ("_w", "W"),
        ("bytes_at_end", "B"),
        ("flops_at_end", "FLOP"),
    )
    return next((unit for ending, unit in endings if name.endswith(ending)), "")


def _plain(value: Any, unit: str) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool | str | list):
        return str(value)
    text = f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    unit = "" if unit == "1" else unit
    if unit in ("B", "s", "B/s", "FLOP/s", "FLOP") and value:
        return (
            f"{text} {unit} = {units.human(value, unit)}" if abs(value) >= 1e3 or abs(value) < 1 else f"{text} {unit}"
        )
    return f"{text} {unit}".rstrip()


def explanation_text(explanation: dict[str, Any]) -> str:
    """`explain` as indented text."""
    lines = []
    for step in explanation["steps"]:
        lines.append(f"{step['name']} = {_plain(step['value'], step['unit'])}")
        lines.append(f"    formula  {step['equation']}")
        lines.append(f"    source   {step['source']}")
        for term in step["terms"]:
            source = f"   [{term['source']}]" if term["source"] else ""
            lines.append(f"      {term['name']} = {_plain(term['value'], term['unit'])}{source}")
    return "\n".join([*lines, *_interval_text(explanation)])
