"""Devices, models and quantizers as rows, which `dse list`, `dse show` and `dse check` print as text or as JSON."""

import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dse.core import errors, files, specfile, units
from dse.core.columns import aligned
from dse.core.errors import InputError, did_you_mean
from dse.core.field import Field
from dse.model import kv_layout
from dse.model.records import NO_LIMIT
from dse.quantizers import FAMILIES, QuantizerSpec, TensorShape, engine_names, layered, parse, skipping
from dse.quantizers.base import Beside, Family
from dse.specs import catalog, device_names, engines, model_names, servers, tokens
from dse.specs.device_and_model import GPU_PATHS, HardwareSpec, LayerKV, ModelSpec, Quantity
from dse.specs.implementation import Starts
from dse.specs.stack import Fit
from dse.specs.weights import EIGHTHS, FORMATS, KEEPS, WIDE
from kernels_ref import storage

Rows = list[dict[str, Any]]
#: width of tables where there is no terminal, and of a wrapped last column at least
MAX_COLUMNS = 160
MIN_LAST_COLUMN = 30

#: keys and values of a layer of Llama2-7B, for which bits are listed
SHAPES = (TensorShape("key", n_heads=32, head_dim=128), TensorShape("value", n_heads=32, head_dim=128))
_OF_SHAPES = "32 heads of 128"

#: columns of numbers in SI units -> the heading and unit under which people read them
_READABLE = {
    "capacity_bytes": ("capacity", "B"),
    "bandwidth_bytes_per_s": ("bandwidth", "B/s"),
    "peak_flops_per_s": ("peak FP16", "FLOP/s"),
    "board_power_w": ("power", "W"),
    "kv_bytes_per_token_fp16": ("KV per token, FP16", "B"),
    "kv_bytes_beyond_windows_fp16": ("beyond windows", "B"),
    "n_parameters": ("parameters", ""),
    "n_layers": ("layers", ""),
    "n_q_heads": ("query heads", ""),
    "n_kv_heads": ("KV heads", ""),
    "head_dim": ("head dim", ""),
    "window_tokens": ("window", "token"),
    "effective_bits": ("bits", ""),
    "in_engines": ("in engines", ""),
}
#: runs of equal layers that are shown in their order; of more, those of a kind together
MAX_RUNS = 14


class Checked(NamedTuple):
    """A file without problems: in a line, as rows, and what of it should be looked at."""

    head: str
    rows: Rows
    warnings: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(filter(None, [self.head, rows_text(self.rows), *self.notes]))

    @property
    def notes(self) -> list[str]:
        """The warnings, called so."""
        return [f"Warning: {warning}" for warning in self.warnings]


def cells(rows: Rows) -> list[list[str]]:
    """Headings, then rows, numbers with their units."""
    columns = list(rows[0]) if rows else []
    headings = [_READABLE.get(column, (column, ""))[0] for column in columns]
    return [headings, *([_cell(column, row.get(column)) for column in columns] for row in rows)]


def rows_text(rows: Rows) -> str:
    """Rows as aligned columns, numbers with their units."""
    if not rows:
        return ""
    headings, *shown = cells(rows)
    widths = [max(len(line[i]) for line in [headings, *shown]) for i in range(len(headings) - 1)]
    # the last column wraps at the edge of the terminal; a file or pipe gets long lines
    room = shutil.get_terminal_size((MAX_COLUMNS, 24)).columns if sys.stdout.isatty() else MAX_COLUMNS
    room = max(room - sum(widths) - 2 * len(widths), MIN_LAST_COLUMN)
    lines = []
    for *first, last in [headings, *shown]:
        head, *rest = textwrap.wrap(last, room) or [""]
        lines += [[*first, head], *([*("" for _ in first), part] for part in rest)]
    return "\n".join(aligned(lines))


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    unit = _READABLE.get(column, ("", ""))[1]
    if isinstance(value, int):
        return f"{value:,}" if unit in ("", "token") else units.human(value, unit)
    if unit == "":
        return f"{value:,.10g}"
    return units.human(value, unit)


def kernels_of(device: HardwareSpec) -> str:
    """Origin of a device's kernel times: measured on it, borrowed from another by name, or estimated by its peaks."""
    if device.stacks_of:
        return f"of {device.stacks_of}"
    return "measured" if device.stacks else "estimated"


def list_devices(vendor: str = "") -> Rows:
    """One row per shipped device, by vendor, in SI units; those of one vendor where one is given.

    Raises InputError for a vendor that no device has.
    """
    every = [catalog.device(name) for name in catalog.device_files()]
    vendors = sorted({device.vendor for device in every})
    if vendor and vendor.lower() not in (known.lower() for known in vendors):
        raise InputError(f"vendor = {errors.show(vendor)}: {did_you_mean(vendor, vendors)}")
    rows = []
    for device in sorted(every, key=lambda spec: spec.vendor.lower()):
        if vendor and vendor.lower() != device.vendor.lower():
            continue
        power = device.board_power
        rows.append(
            {
                "vendor": device.vendor,
                "name": device.name,
                "capacity_bytes": device.capacity_bytes,
                "bandwidth_bytes_per_s": device.memory_bandwidth.si,
                "peak_flops_per_s": device.peak_flops.si,
                "board_power_w": power.si if power else None,
                "kernels": kernels_of(device),
                "title": device.title,
            }
        )
    return rows


def family(name: str) -> str:
    """The family that a model's name begins with: what stands before its first digit or dash."""
    return re.split("[0-9-]", name, maxsplit=1)[0] or name


def matching(rows: Rows, pattern: str | None) -> Rows:
    """The rows that have a text in their name or title, in any case; all without a text."""
    text = (pattern or "").lower()
    return [row for row in rows if text in f"{row['name']}\n{row.get('title', '')}".lower()]


def list_models() -> Rows:
    """One row per shipped model, families together, each from the smallest to the largest."""
    rows = []
    for name in catalog.model_files():
        model = catalog.model(name)
        first = next((layer for layer in model.layers if layer.key_dim), model.layers[0])
        windows = [layer.window for layer in model.layers if layer.window]
        rows.append(
            {
                "family": family(model.name),
                "name": model.name,
                "n_parameters": model.parameters,
                "n_layers": model.n_layers,
                "n_q_heads": model.n_q_heads,
                "n_kv_heads": first.n_kv_heads,
                "head_dim": first.key_dim,
                "window_tokens": min(windows, default=None),
                "kv_bytes_per_token_fp16": _kv_bytes_per_token(model),
                "kv_bytes_beyond_windows_fp16": kv_bytes_beyond_windows(model) if windows else None,
                "title": model.title + _layers_in_short(model),
            }
        )
    return sorted(rows, key=lambda row: (row["family"], row["n_parameters"], row["name"]))


def grouped(rows: Rows) -> Rows:
    """Rows whose family, or vendor, is said once, at its first one, as people read them."""
    said: Rows = []
    for index, row in enumerate(rows):
        by = next((name for name in ("family", "vendor") if name in row), None)
        same = by and index > 0 and row[by] == rows[index - 1][by]
        said.append(row | {by: ""} if by and same else row)
    return said


def _kv_bytes_per_token(model: ModelSpec) -> int:
    """Bytes of a token over all layers in FP16, indexes included."""
    fp16 = parse("fp16")
    return (kv_layout.build(model, fp16, fp16).bits(1) + model.index_bits) // units.BITS_PER_BYTE


def kv_bytes_beyond_windows(model: ModelSpec) -> int:
    """Bytes that a token adds once all windows are full: those of the layers without one."""
    fp16 = parse("fp16")
    groups = kv_layout.build(model, fp16, fp16).groups
    grows = sum(g.n_stored_layers * g.full_bits for g in groups if g.window_tokens == NO_LIMIT)
    return (grows + model.index_bits) // units.BITS_PER_BYTE


def _layers_in_short(model: ModelSpec) -> str:
    """Remarks on layers beside a row's numbers: windows, constant states, latent attention, tokens read."""
    said = []
    n_windows = sum(layer.n_layers for layer in model.layers if layer.window and not layer.joined)
    n_states = sum(layer.n_layers for layer in model.layers if layer.state_flops)
    n_compressed = sum(layer.n_layers for layer in model.layers if layer.tokens_per_entry > 1)
    if 0 < n_windows < model.n_layers:
        said.append(f"window in {n_windows} layers")
    if n_states:
        said.append(f"constant state in {n_states} layers")
    if n_compressed:
        said.append(f"compressed cache in {n_compressed} layers")
    elif model.is_latent:
        said.append("latent attention")
    if model.read_limit_tokens:
        said.append(f"reads {model.read_limit_tokens:,} tokens")
    return f" ({', '.join(said)})" if said else ""


def defaults_text(family: Family) -> str:
    """A family's parameters with their defaults, as one would write them; "-" where it has none, as a plan."""
    shown = (param for param in family.params if param.default != skipping.NONE)
    return ",".join(f"{param.name}={_default(param.default)}" for param in shown) or "-"


def list_quantizers() -> Rows:
    """One row per quantizer family: bits for a Llama2-7B layer (32 heads of 128), and what engines call it."""
    rows = []
    for name, family in FAMILIES.items():
        rows.append(
            {
                "name": name,
                "effective_bits": _bits(parse(name)),
                "parameters": defaults_text(family),
                "in_engines": _engines(name) or "-",
                "source": family.source,
            }
        )
    return rows


def list_implementations() -> Rows:
    """One row per implementation: name, methods, GPUs, granularity and products of its code, rate."""
    return [
        {
            "name": kernel.name,
            "title": kernel.title,
            "methods": ", ".join(kernel.methods) or "any",
            "runs on": ", ".join(kernel.architectures) or "everything",
            "unpacks per": kernel.unpacked_per,
            "products on": kernel.products,
            "reaches": kernel.rate_text(),
        }
        for kernel in catalog.implementations()
    ]


def list_kv_types() -> Rows:
    """One row per KV type, architectures and kinds of attention that a release of an engine tells of."""
    return [
        {
            "name": f"{row.engine} {row.release} {row.kv_dtype}",
            "status": row.status,
            "architectures": architectures,
            "attention": kinds,
            "kernels": row.backend,
            "why": row.why,
            "source": row.source,
        }
        for architectures, kinds, row in engines.every()
    ]


def _implementation_rows(name: str) -> Rows:
    """Rows of the implementations of that name."""
    rows: Rows = []
    for kernel in catalog.implementations():
        if kernel.name != name:
            continue
        facts = {
            "methods": ", ".join(kernel.methods) or "any",
            "release": kernel.release,
            "stack": kernel.stack or "none",
            "architectures": ", ".join(kernel.architectures) or "everything",
            "elsewhere": kernel.elsewhere,
            "path": kernel.path,
            "unpacked_per": kernel.unpacked_per,
            "products": kernel.products,
            "arithmetic": kernel.arithmetic,
            "new_token": kernel.new_token,
            "prompts_quantised": kernel.prompts_quantised,
            "sixteen_bit": kernel.sixteen_bit,
            "starts": _starts_text(kernel.starts),
            "source": kernel.source,
        }
        rows += [_row(key, value, kernel.title) for key, value in facts.items() if value]
        rows += [
            _row(key, f"{number.value:g} ({number.low:g} to {number.high:g})", number.source, number.kind, number.unit)
            for key, number in kernel.numbers().items()
        ]
    return rows


def _starts_text(starts: Starts) -> str:
    changed = {name: value for name, value in starts.model_dump().items() if value != getattr(Starts(), name)}
    return ", ".join(f"{name} {value}" for name, value in changed.items()) or "none beside attention's"


def _engines(family: str) -> str:
    """Names of a family in engines that do not use its own; `show` says which engines."""
    names = engine_names.of_family(family, FAMILIES)
    return ", ".join(dict.fromkeys(alias.name for alias in names if alias.name != family))


def list_tokens() -> Rows:
    """One row per token policy."""
    rows = []
    for name, family in tokens.FAMILIES.items():
        params = ",".join(f"{param.name}={_default(param.default)}" for param in family.params)
        rows.append(
            {"name": name, "parameters": params or "-", "source": family.source, "validity": family.validity or "-"}
        )
    return rows


def list_weights() -> Rows:
    """One row per format of weights."""
    return [
        {
            "name": form.name,
            "bits": form.dense_eighths / EIGHTHS,
            "bits_of_experts": form.expert_eighths / EIGHTHS,
            "keeps_16_bits": KEEPS[form.keeps],
            "title": form.title,
        }
        for form in FORMATS.values()
    ]


def _row(name: str, value: Any, source: str, kind: str = "", unit: str = "") -> dict[str, Any]:
    """A number, or a fact, of a device, model or quantizer."""
    return {"name": name, "value": value, "unit": unit, "kind": kind, "source": source}


def _parameter_rows(params: Sequence[Field], values: dict[str, Any]) -> Rows:
    return [
        _row(
            param.name,
            _default(values[param.name]) or "-",
            param.help + ("" if param.allowed() == param.help else f"; {param.allowed()}"),
            "parameter",
        )
        for param in params
    ]


def _default(value: object) -> str:
    return str(value) if isinstance(value, int | str) else f"{float(value):g}"  # type: ignore[arg-type]


def _bits(quantizer: QuantizerSpec) -> float:
    shapes = [TensorShape("key", n_heads=32, head_dim=128), TensorShape("value", n_heads=32, head_dim=128)]
    if quantizer.family.latent:
        shapes = [TensorShape("key", n_heads=1, head_dim=storage.mla_latent + storage.mla_rope)]
    return math.fsum(float(quantizer.layout(shape).effective_bits) for shape in shapes) / len(shapes)


def _beside_rows(quantizer: QuantizerSpec) -> Rows:
    """Costs of a quantizer beside the bits of one layer, keys and values together; none for most."""
    family, values = quantizer.family, dict(quantizer.values)
    if family.latent:  # nothing beside it, and no such shapes
        return []
    flops = sum(quantizer.layout(shape).read_flops for shape in SHAPES)
    work: dict[str, Beside] = {}
    for shape in SHAPES:
        for cost in family.beside(values, shape):
            before = work[cost.name].value if cost.name in work else 0
            work[cost.name] = replace(cost, value=before + cost.value)
    source = f"keys and values of a cached token, made anew where it is read; counted with attention; {_OF_SHAPES}"
    rows: Rows = [
        _row(cost.name, cost.value, f"{cost.source}, not counted there; {_OF_SHAPES}", "derived", cost.unit)
        for cost in work.values()
    ]
    if flops:
        rows.append(_row("read_flops", flops, source, "derived", "FLOP"))
    return rows


def _quantity_rows(numbers: dict[str, Quantity]) -> Rows:
    return [_row(name, q.value, q.source, q.kind, q.unit) for name, q in numbers.items()]


def show(name: str) -> Rows:
    """Every number of a device, model or quantizer with its unit, kind and source."""
    name = engine_names.ours(name, FAMILIES)
    family = FAMILIES.get(name.partition(":")[0].lower())
    if family:
        rows = _parameter_rows(family.params, dict(parse(name).values))
        bits = _row(
            "effective_bits",
            _bits(parse(name)),
            f"{family.source}; " + ("a latent head of 576" if family.latent else _OF_SHAPES),
            "derived",
            "bit",
        )
        engines = [
            _row(f"{opt.engine} {opt.name}", opt.text, f"{engine_names.OPTIONS[opt.engine]}: {opt.source}", "engine")
            for opt in engine_names.of_family(family.name, FAMILIES)
        ]
        return [*rows, bits, *engines, *_beside_rows(parse(name))]
    if rows := _implementation_rows(name.strip().lower()):
        return rows
    if name.partition(":")[0].lower() in tokens.FAMILIES:
        policy = tokens.parse(name)
        about = {"source": policy.family.source, "validity": policy.family.validity or "exact"}
        rows = _parameter_rows(policy.family.params, dict(policy.values))
        return rows + [_row(key, policy.family.title, text) for key, text in about.items()]
    if name.lower() in catalog.device_files() or device_names.meant(name, catalog.device_aliases()):
        return _device_rows(catalog.device(name))
    if catalog.shipped_model_file(name):
        return _model_rows(catalog.model(name))
    if name.lower().endswith((".toml", ".json")):
        document = specfile.read(name)
        if catalog.looks_like_device(document.data):
            return _device_rows(catalog.device_from(document))
        return _model_rows(catalog.model_from(document))
    known = [*catalog.device_files(), *dict(catalog.model_aliases()), *FAMILIES, *tokens.FAMILIES]
    of_device = device_names.near(name, catalog.device_aliases())
    hints = (model_names.without_file(name), did_you_mean(name, known), of_device)
    hint = next((hint for hint in hints if hint and not hint.startswith(("known", "see"))), "see `dse list`")
    raise InputError(f"unknown name {errors.show(name)}: {hint}")


def _device_rows(device: HardwareSpec) -> Rows:
    rows = _quantity_rows({name: q for name, q in device.quantities().items() if name != "reported_memory"})
    named = {*device.dequant_path, *GPU_PATHS, "oaken"} - {"default"}
    for family in (name for name in FAMILIES if name not in ("fp16", "bf16")):
        if kernel := catalog.implementation(device, family, None, ""):
            rows.append(_row(f"implementation.{family}", kernel.name, kernel.title))
    for family in ("default", *sorted(named)):
        stated = family in device.dequant_path or "default" in device.dequant_path
        source = "device file" if stated else "default for a device that does not say"
        rows.append(
            _row(
                f"dequant_path.{family}",
                device.path_of(family),
                f"{source}; see docs/explanation/model.md, Dequantization",
                "assumed",
            )
        )
    return rows + _area_rows(device) + _stack_rows(device) + _link_rows(device) + _server_rows(device)


def _server_rows(device: HardwareSpec) -> Rows:
    """Memory that the driver reports, and the parts that servers of the device's stacks keep."""
    if device.reported_memory is None:
        return []
    rows = _quantity_rows({"reported_memory": device.reported_memory})
    for stack in [name for name in device.stacks if name in servers.stacks()] or [servers.DEFAULT]:
        quantities = _quantity_rows(servers.of(stack, device).quantities())
        rows += [{**row, "name": f"server.{stack}.{row['name']}"} for row in quantities]
    return rows


def _area_rows(device: HardwareSpec) -> Rows:
    """Areas of a compute core's modules, each with its share of the core."""
    core = device.core_area.get("compute_core")
    rows = _quantity_rows(device.core_area)
    for row, area in zip(rows, device.core_area.values(), strict=True):
        row["name"] = f"core_area.{row['name']}"
        if core:
            row["source"] += f"; {100 * area.si / core.si:.2f} % of the core"
    return rows


def _stack_rows(device: HardwareSpec) -> Rows:
    """Calibrated parameters with what they were fitted on, and the error of each fit; of another device its name."""
    if device.stacks_of:
        return [
            _row(
                "stacks_of",
                device.stacks_of,
                f"its kernels reach the shares of the peak rates fitted there: `dse show {device.stacks_of}`",
                "assumed",
            )
        ]
    rows: Rows = []
    for stack, spec in device.stacks.items():
        for part, fit in spec.fits().items():
            shares = {"held_out_error": fit.held_out_error, "serving_error": fit.serving_error}
            rows += _fit_rows(f"stacks.{stack}.{part}", fit, shares)
    return rows


def _link_rows(device: HardwareSpec) -> Rows:
    """Links of devices and nodes, and the parameters of collectives with the error of each fit."""
    if device.links is None:
        return []
    rows = [{**row, "name": f"links.{row['name']}"} for row in _quantity_rows(device.links.quantities())]
    for part, fit in device.links.fits().items():
        shares = {"decode_error": fit.decode_error, "prompt_error": fit.prompt_error}
        rows += _fit_rows(f"links.{part}", fit, shares)
    return rows


def _fit_rows(place: str, fit: Fit, shares: Mapping[str, float | None]) -> Rows:
    """Parameters of a fit, how many rows it saw, and its errors."""
    kind = next(iter(fit.quantities().values())).kind
    rows: Rows = [{**row, "name": f"{place}.{row['name']}"} for row in _quantity_rows(fit.quantities())]
    rows.append(_row(f"{place}.n_points", fit.n_points, fit.fitted_on, kind))
    rows += [
        _row(
            f"{place}.{name}",
            round(100 * share, 2),
            "mean error of rows held out of the fit; see docs/explanation/calibration.md",
            kind,
            "%",
        )
        for name, share in shares.items()
        if share is not None
    ]
    return rows


def _model_rows(model: ModelSpec) -> Rows:
    rows = _quantity_rows(model.numbers)
    derived = {"parameters": model.parameters, "active_parameters": float(model.active_parameters)}
    rows += [
        _row(key, value, f"counted from the shape ({model.source})", "derived", "parameter")
        for key, value in derived.items()
    ]
    rows.append(_row("kv_bytes_per_token", _kv_bytes_per_token(model), "FP16, all layers", "derived", "B"))
    in_order = [_layers_text(group) for group in model.layers]
    for index, words in enumerate(in_order if len(in_order) <= MAX_RUNS else layers_by_kind(model)):
        rows.append(_row(f"kv_layers.{index}", words, model.source, "derived"))
    rows += [_row("note", note, model.source, "derived") for note in model.notes]
    if model.released != WIDE:
        rows.append(_row("released_weights", model.released, model.released_source, "published"))
    return rows


def layers_by_kind(model: ModelSpec) -> list[str]:
    """The layers of a model in words, those of one kind together wherever they stand."""
    counts: dict[LayerKV, int] = {}
    for group in model.layers:
        kind = group.model_copy(update={"n_layers": 1})
        counts[kind] = counts.get(kind, 0) + group.n_layers
    return [_layers_text(kind.model_copy(update={"n_layers": n})) for kind, n in counts.items()]


def _layers_text(group: LayerKV) -> str:
    """A run of equal layers in words."""
    layers = f"{group.n_layers} layer{'s' if group.n_layers > 1 else ''}"
    if group.state_bytes:
        joined = "beside these, " if group.joined else ""
        what = (
            "what waits for an entry"
            if not group.state_flops
            else f"a constant state ({group.state_code or 'short convolution'})"
        )
        return f"{layers}: {joined}{what}, {group.state_bytes:,} B of a request"
    if not group.key_dim:
        return f"{layers}: a feed-forward alone"
    if group.value_dim:
        dims = f"key {group.key_dim}" + f", value {group.value_dim}"
        heads = f"{group.n_kv_heads} KV head{'s' if group.n_kv_heads > 1 else ''}, {dims}"
    else:
        heads = f"one latent of {group.key_dim} for all heads ({'MLA' if group.prompt_score_dim else 'MQA'})"
    if group.tokens_per_entry > 1:
        heads += f", {group.tokens_per_entry} tokens an entry"
    if group.joined:
        heads = f"beside these, {heads}"
    window = f", {'chunks of' if group.chunked else 'window'} {group.window:,}" if group.window else ""
    shared = "" if group.stored else ", reading an earlier layer's cache"
    index = f", and an index of {group.index_bits:,} bits" if group.index_bits else ""
    return f"{layers}: {heads}{window}{shared}{index}"


def shipped_text(name: str) -> str:
    """The text of a shipped device or model file."""
    known = {**catalog.device_files(), **catalog.model_files()}
    if device := catalog.device_files().get(name.lower()):
        return catalog.device_text(device)
    path = catalog.shipped_model_file(name)
    if path is None:
        raise InputError(f"unknown shipped file {errors.show(name)}: {did_you_mean(name, known)}")
    return files.read_bytes(path).decode()


def check(name: str) -> str:
    """Summarize a good device file, model file or plan by layer. Raises SpecError with all problems of a bad one."""
    device = catalog.device_files().get(name.lower())
    document = catalog.shipped_device(device) if device else specfile.read(catalog.shipped_model_file(name) or name)
    return checked(document)[1].text


def checked(
    document: specfile.Document, model_from: Callable[[specfile.Document], ModelSpec] = catalog.model_from
) -> tuple[str, Checked]:
    """Kind of a good file ("device", "plan" or "model") and its summary. Raises SpecError with all its problems."""
    if catalog.looks_like_device(document.data):
        device = catalog.device_from(document)
        return "device", _checked(f"device {device.name}", _device_rows(device), device.warnings())
    if layered.looks_like_plan(document.data):
        layers = layered.of(document, parse).layers
        rows = [{"layer": i, "keys": key.name, "values": value.name} for i, (key, value) in enumerate(layers)]
        return "plan", _checked(f"plan of {len(rows)} layers", rows)
    model = model_from(document)
    return "model", _checked(f"model {model.name}", _model_rows(model), model.warnings())


def _checked(what: str, rows: Rows, warnings: Sequence[str] = ()) -> Checked:
    return Checked(f"{what}: no problem found", rows, tuple(warnings))
