"""Tables of published measurements of quantized KV: each row a design point and a number that somebody printed of it.

Columns: `id, device, model, kv, stack, quantity, value, unit`, and where they apply `n_devices, weights, activations,
batch, input_tokens, output_tokens, cls, group, is_base, note`. Rows of one `group` were measured on one machine; gains
are taken over its row with `is_base` 1.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dse.calibrate.table import named_rows, number
from dse.core.errors import DseError, InputError, did_you_mean, show
from dse.model import kv_layout
from dse.model.engine import evaluate, roomy
from dse.model.formulas import calibrated
from dse.model.point import Point
from dse.model.stacks import KERNELS
from dse.serving import burst
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec, LayerKV, ModelSpec
from dse.specs.measurements import bits_from
from dse.specs.workload import MAX_BATCH, MAX_DEVICES, MAX_INPUT_TOKENS, MAX_OUTPUT_TOKENS, Workload

NEEDED = ("id", "device", "model", "kv", "stack", "quantity", "value", "unit")
MAX_VALUE = 1e15
#: requests that the authors of QServe's tables run at once at most (evidence: "capped by the authors")
STATIC_LIMIT = {"l40s": 128, "a100-80gb": 256}
#: requests that TensorRT-LLM runs at once at most (its benchmark's default, v0.17)
MOST_AT_ONCE = 2048
#: in which numbers are printed -> base units
UNITS = {"token/s": 1.0, "us": 1e-6, "ms": 1e-3, "request": 1.0, "bool": 1.0, "ms/token": 1e-3, "token": 1.0, "s": 1.0}
#: units in which more is better
RATES = ("token/s", "request", "token")
#: how tables name keys and values -> quantizer; what is not here is taken as a quantizer's own name
KV = {
    "fp16": "fp16",
    "bf16": "fp16",
    "auto": "fp16",
    "": "fp16",
    "none": "fp16",
    "-": "fp16",
    "fp16 (int8 where faster)": "fp16",
    "int8": "int8:granularity=tensor",
    "int4 per head": "qserve",
    "int4, keys per channel": "kivi:bits=4,group=128",
    "int2, keys per channel": "kivi:bits=2,group=128",
    "turboquant 4 bit, vllm": "turboquant_4bit_nc@vllm-0.20",
    "turboquant 4 bit, optimised": "turboquant_4bit_nc@vllm-53060",
    "int4": "atom",
    "nqkv": "nqkv:block=256",
}
#: keys and values of tables that keep none: every step runs the whole prefix
WITHOUT_CACHE = "none"
#: how stacks' names begin -> software whose other kernels and server stand for it; and implementation of what it packs
STACKS = {
    "vllm": ("vllm", ""),
    "sglang": ("sglang", ""),
    "tensorrt-llm": ("trtllm", ""),
    "trt-llm": ("trtllm", ""),
    "qserve": ("trtllm", "omniserve"),
    "lmdeploy": ("trtllm", "turbomind-2023-10"),
    "turbomind": ("trtllm", "turbomind"),
    "bitdecoding": ("vllm", "bitdecoding"),
    "flashattention": ("vllm", ""),
    "atom": ("trtllm", "atom-released"),
    "quarot": ("trtllm", "quarot-released"),
    "transformers": ("transformers", ""),
}
#: (weights, activations) as tables name them -> fields of a workload
WEIGHTS: dict[tuple[str, str], dict[str, Any]] = {
    ("16", "16"): {"weights": "bf16"},
    ("fp8", "fp8"): {"weights": "fp8"},
    ("int4", "16"): {"weights": "int4"},
    ("int8", "int8"): {"weights_bits": 8, "activation_bits": 8},
    ("int8", "16"): {"weights_bits": 8},
    ("fp8", "16"): {"weights_bits": 8},
    ("int4", "int8"): {"weights_bits": 4, "activation_bits": 8},
    ("int4", "int4"): {"weights_bits": 4, "activation_bits": 8},
    ("mxfp4", "16"): {"weights": "mxfp4-experts"},
    ("nvfp4", "nvfp4"): {"weights": "nvfp4"},
}


@dataclass(frozen=True)
class EvidenceRow:
    """One printed number, and the design that it is of."""

    id: str
    line: int
    group: str
    is_base: bool
    cls: str
    quantity: str
    value: float
    unit: str
    cells: Mapping[str, str]
    device: HardwareSpec | None = None
    model: ModelSpec | None = None
    kv: str = "fp16"
    work: Workload | None = None
    #: a batch that the table does not state: the largest that fits
    is_open: bool = False
    #: why nothing can be predicted; "" where it can
    reason: str = ""
    marks: tuple[str, ...] = field(default=())

    def point(self, **changes: Any) -> Point:
        """Its design, on another device (`device`) or with another workload where given."""
        assert self.device is not None
        assert self.model is not None
        assert self.work is not None
        device, kv = changes.pop("device", self.device), changes.pop("kv", self.kv)
        quantizer = bits_from("closed", None).required(kv)
        return Point(device, kv_layout.build(self.model, quantizer, quantizer), replace(self.work, **changes))


def read(path: str) -> list[EvidenceRow]:
    """The rows of a table. Raises InputError with file, line and column for a cell that says nothing."""
    rows = [_row(path, line, said) for line, said in named_rows(path, NEEDED)]
    bases = [row.group for row in rows if row.is_base and row.group]
    doubled = next((group for group in bases if bases.count(group) > 1), None)
    if doubled:
        raise InputError(f"{path}: group = {show(doubled)}: has two rows with is_base 1: give it one")
    return rows


def _row(path: str, line: int, cells: dict[str, str]) -> EvidenceRow:
    value = number(path, line, "value", cells["value"], MAX_VALUE, False)
    base = cells.get("is_base", "")
    if base not in ("", "0", "1"):
        raise InputError(f"{path}:{line}: is_base = {show(base)}: must be 0 or 1")
    row = EvidenceRow(
        cells["id"],
        line=line,
        group=cells.get("group", ""),
        is_base=base == "1",
        cls=cells.get("cls", ""),
        quantity=cells["quantity"],
        value=value,
        unit=cells["unit"],
        cells=cells,
    )
    try:
        return _described(row, path)
    except DseError as error:
        return replace(row, reason=str(error))


def _described(row: EvidenceRow, path: str) -> EvidenceRow:
    """The row with its design. Raises DseError for what is not known."""
    cells = row.cells
    device, marks = _device(cells["device"])
    model = _model(cells["model"])
    stack, implementation, release = _stack(cells["stack"])
    kv = _kv(cells["kv"], model)
    bits_from("closed", None).required(kv)  # raises for one that is not known
    _check_unit(row)
    tp = int(_whole(path, row.line, "n_devices", cells.get("n_devices", ""), MAX_DEVICES, 1))
    batch, is_open = _batch(path, row.line, cells.get("batch", ""))
    lengths = [
        int(_whole(path, row.line, name, cells.get(name, ""), most, 1))
        for name, most in (("input_tokens", MAX_INPUT_TOKENS), ("output_tokens", MAX_OUTPUT_TOKENS))
    ]
    if "attention" in row.quantity or "product" in row.quantity:
        release = KERNELS
    if implementation and "@" not in kv and catalog.implementations_of(kv.partition(":")[0]).get(implementation):
        kv += f"@{implementation}"
    near = stack if release != KERNELS or stack in device.stacks else "vllm"
    work = Workload(
        batch=batch,
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        admission="reserve",
        tp=tp,
        stack=f"{near}@{release}" if release else near,
        model_kind="calibrated",
        kv_cache=cells["kv"].lower() != WITHOUT_CACHE,
        **_weights(cells),
    )
    return replace(row, device=device, model=model, kv=kv, work=work, is_open=is_open, marks=marks)


def _check_unit(row: EvidenceRow) -> None:
    """Raises InputError for a quantity that is not known, or a unit that is none of it."""
    formula = formula_of(row.quantity)[0]
    units = OWN_UNITS.get(formula, TIMES)
    if row.unit not in units:
        raise InputError(f"unit = {show(row.unit)}: {row.quantity} must be in {', '.join(units)}")


def _device(text: str) -> tuple[HardwareSpec, tuple[str, ...]]:
    """The device of a row; of one that is not stated, what the table was run as."""
    assumed = re.fullmatch(r"not stated \(run as (.*)\)", text)
    name = re.sub(r"[ _]+", "-", assumed[1] if assumed else text).lower()
    name = re.sub(r"^rtx(?=\d)", "rtx-", name)
    marks = (f"device: not stated, taken for {name}",) if assumed else ()
    return catalog.device(name if name in catalog.device_files() else f"{name}-80gb"), marks


_HEADS = re.compile(r"attention (\d+) query, (\d+) KV heads of (\d+)", re.ASCII)
_PRODUCT = re.compile(r"matrix product\b.*\bN (\d+)\b.*\bK (\d+)\b.*", re.ASCII)
#: columns and inner size of a matrix product
MAX_SIDE = 2**31


def _model(text: str) -> ModelSpec:
    """The model of a row; of one kernel, a model of one layer with its heads."""
    heads = _HEADS.fullmatch(text)
    if not heads:
        return catalog.model("llama2-7b" if text.startswith("matrix product") else text)
    n_q, n_kv, dim = (
        _bounded(name, n) for name, n in zip(("query heads", "KV heads", "dimension"), heads.groups(), strict=True)
    )
    if n_q % n_kv:
        raise InputError(f"model = {show(text)}: {n_kv} KV heads do not divide {n_q} query heads")
    layer = LayerKV(n_layers=1, n_kv_heads=n_kv, key_dim=dim, value_dim=dim, score_dim=2 * dim)
    return ModelSpec(
        name=text,
        source="a table's own words",
        hidden_size=n_q * dim,
        vocab_size=1,
        n_q_heads=n_q,
        layers=(layer,),
        dense_parameters=n_q * dim,
        activation_elements=n_q * dim,
    )


def _kv(text: str, model: ModelSpec) -> str:
    """The quantizer of a row; `FP8, windows BF16` keeps the windowed layers of a model in 16 bits."""
    name, comma, rest = text.lower().partition(", windows ")
    if comma and KV.get(rest) == "fp16":
        windowed = [n for layer in model.layers for n in [layer.window is not None] * layer.n_layers]
        skipped = "+".join(str(n) for n, is_windowed in enumerate(windowed) if is_windowed)
        return f"{KV.get(name, name)}:skip={skipped or 'none'}"
    return KV.get(text.lower(), text)


def _bounded(name: str, cell: str, most: int = 65_536) -> int:
    """A count of a model that a table describes. Raises InputError."""
    if len(cell) > len(str(most)) or not 1 <= int(cell) <= most:
        raise InputError(f"model: {name} = {show(cell)}: must be a whole number from 1 to {most:,}")
    return int(cell)


def _stack(text: str) -> tuple[str, str, str]:
    """(software, implementation, release) of a stack as tables name it. Raises InputError for one that is not known."""
    words = text.lower()
    software = next((entry for start, entry in STACKS.items() if words.startswith(start)), None)
    if software is None:
        raise InputError(f"stack = {show(text)}: is not known: {did_you_mean(words, STACKS)}")
    release = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", words)
    return *software, release[1] if release and software[0] in words.replace("tensorrt-llm", "trtllm") else ""


def _batch(path: str, line: int, cell: str) -> tuple[int, bool]:
    """Requests at once; (1, True) where the table says "best" or "as fits"."""
    told = re.match(r"\d+", cell)
    if not told:
        return 1, True
    return int(_whole(path, line, "batch", told[0], MAX_BATCH, 1)), False


def _whole(path: str, line: int, name: str, cell: str, most: int, usual: int) -> float:
    told = re.match(r"[\d.]+", cell)
    return number(path, line, name, told[0], most, True) if told else usual


def _weights(cells: Mapping[str, str]) -> dict[str, Any]:
    def plain(text: str) -> str:
        word = re.split(r"[ (]", text.lower())[0]
        return "16" if word in ("fp16", "bf16", "-", "") else {"w4a8": "int4", "w8a8": "int8"}.get(word, word)

    named = plain(cells.get("weights", "")), plain(cells.get("activations", ""))
    if named not in WEIGHTS:
        raise InputError(
            f"weights = {show(cells.get('weights', ''))}: with {show(cells.get('activations', ''))}: are not known"
        )
    return WEIGHTS[named]


def _roomy(point: Point, row: EvidenceRow, **changes: Any) -> Point:
    """The point, in memory for all of its batch: a server ran it all the same."""
    return point if point.max_batch >= point.batch else row.point(device=roomy(point.device), **changes)


def _largest(row: EvidenceRow, **changes: Any) -> int:
    """The largest batch whose prompts run at once, all their activations live, as far as the table's authors went."""
    assert row.device is not None
    assert row.work is not None

    def fits(batch: int) -> bool:
        budget = min(batch * row.work.input_tokens, MAX_INPUT_TOKENS)  # type: ignore[union-attr]
        return row.point(**{**changes, "batch": batch, "prompt_budget_tokens": budget}).max_batch >= batch

    low, high = 0, STATIC_LIMIT.get(row.device.name.lower(), MOST_AT_ONCE)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _static(row: EvidenceRow, **changes: Any) -> float:
    """Tokens a second of one batch, prompt included: as large as fits where the table does not say."""
    if row.is_open:
        changes["batch"] = max(_largest(row, **changes), 1)
    point = row.point(**changes)
    if row.is_open and not point.max_batch:
        raise InputError(point.infeasible_reason or "not one request fits")
    return float(evaluate(_roomy(point, row, **changes))["throughput_tokens_per_s"])


def _unlimited(row: EvidenceRow, **changes: Any) -> float:
    """Tokens a second of a server that never waits for requests."""
    batch = max(min(row.point(**changes).max_batch, MOST_AT_ONCE), 1)
    results = evaluate(row.point(batch=batch, **changes))
    if not results["feasible"]:
        raise InputError(results["infeasible_reason"])
    return float(results["decoding_requests"] / results["tpot_s"])


def _at_once(row: EvidenceRow, **changes: Any) -> float:
    """Tokens a second of requests that start together, in the memory that the server has, and end one by one."""
    assert row.work is not None
    words = re.findall(r"\d+", row.cells.get("output_tokens", ""), re.ASCII)
    told = [min(float(word), MAX_OUTPUT_TOKENS) for word in words] or [row.work.output_tokens]
    mean, longest = told[0], told[-1]
    if not 0 < mean <= longest:
        raise InputError(f"output_tokens = {show(row.cells['output_tokens'])}: must be the mean and the longest")
    point = row.point(**{"output_tokens": int(longest), "admission": "paged", **changes})
    n = point.batch
    prompts, answers = burst.varied_lengths(n, row.work.input_tokens, mean, int(longest))
    return burst.serve(point, prompts, answers).output_tokens_per_s


def _step(row: EvidenceRow, **changes: Any) -> float:
    """Seconds of a decode step."""
    return float(evaluate(_roomy(row.point(**changes), row, **changes))["decode_step_s"])


def _first(row: EvidenceRow, **changes: Any) -> float:
    """Seconds to the first token."""
    return float(evaluate(_roomy(row.point(**changes), row, **changes))["prefill_alone_s"])


def _slope(row: EvidenceRow, **changes: Any) -> float:
    """Seconds that a token of context adds to a step."""
    low, high = 2**13, 2**17
    ends = [_step(row, **{**changes, "input_tokens": n, "output_tokens": 1}) for n in (low, high)]
    return (ends[1] - ends[0]) / (high - low)


def _one_layer(row: EvidenceRow, **changes: Any) -> float:
    """Seconds of decode attention of the one layer."""
    assert row.work is not None
    changes = {"output_tokens": 1, "memory": "paper", **changes}
    results = evaluate(_roomy(row.point(**changes), row, **changes))
    return float(results["attention_s"] + results["dequantize_s"])


def _product(row: EvidenceRow, **changes: Any) -> float:
    """Seconds of one matrix product, N and K as its model's name says, M the batch."""
    sides = _PRODUCT.fullmatch(row.cells["model"])
    if not sides:
        raise InputError(
            f"model = {show(row.cells['model'])}: must say N and K, such as matrix product, N 4096, K 4096"
        )
    n, k = (_bounded(name, side, MAX_SIDE) for name, side in zip("NK", sides.groups(), strict=True))
    point = row.point(batch=1, **changes)
    assert row.work is not None
    assert row.work.batch is not None
    m, reach, weights = row.work.batch, point.design.stack, row.work.weight_format
    n_bytes = 2 * (m * k + m * n) + n * k * weights.dense_eighths / 64
    peak = reach.dense_peak_per_s or point.device.product_peak(row.work.activation_bits).si  # type: ignore[union-attr]
    return float(
        calibrated.gemm_s(
            calibrated.gemm_flops(m, n, k),
            n_bytes,
            reach.gemm_launch_s,
            reach.gemm_flops_frac,
            reach.gemm_memory_frac,
            peak,
            point.device.memory_bandwidth.si,
        )
    )


def _pool(row: EvidenceRow, **changes: Any) -> float:
    """KV tokens that a server has room for."""
    return float(evaluate(row.point(**changes))["kv_pool_tokens"])


def _best_batch(row: EvidenceRow, **changes: Any) -> float:
    """Requests of the largest batch."""
    return float(_largest(row, **changes))


def _fails(row: EvidenceRow, **changes: Any) -> float:
    """1 where not one request fits."""
    return float(not row.point(**changes).max_batch)


#: how quantities begin -> what is computed, and which errors it has
QUANTITIES: tuple[tuple[str, Callable[..., float], str], ...] = (
    ("output throughput at unlimited load", _unlimited, "tokens"),
    ("output throughput of 100 requests", _at_once, "tokens"),
    ("output throughput", _static, "tokens"),
    ("time per output token", _step, "tokens"),
    ("median time per output token", _step, "tokens"),
    ("inter-token latency", _step, "tokens"),
    ("slope of inter-token latency", _slope, "tokens"),
    ("median time to first token", _first, "first"),
    ("first token latency", _first, "first"),
    ("decode attention of one layer", _one_layer, "tokens"),
    ("time of one product", _product, "tokens"),
    ("tokens in the pool", _pool, ""),
    ("batch of maximum", _best_batch, ""),
    ("out of memory", _fails, ""),
)


#: units of times, and of all else that is computed
TIMES = ("us", "ms", "s")
OWN_UNITS: dict[Callable[..., float], tuple[str, ...]] = {
    **dict.fromkeys((_static, _unlimited, _at_once), ("token/s",)),
    _slope: ("ms/token",),
    _pool: ("token",),
    _best_batch: ("request",),
    _fails: ("bool",),
    _step: (*TIMES, "ms/token"),
}


def formula_of(quantity: str) -> tuple[Callable[..., float], str]:
    """The formula of a quantity as tables name it, and the errors it has. Raises InputError for an unknown one."""
    for start, formula, kind in QUANTITIES:
        if quantity.startswith(start):
            return formula, kind
    known = ", ".join(dict.fromkeys(start for start, *_ in QUANTITIES))
    raise InputError(f"quantity = {show(quantity)}: is not known: {known}")


def predicted(row: EvidenceRow, **changes: Any) -> float:
    """Predict a row, in its unit. Raises DseError where that cannot be done."""
    if row.reason:
        raise InputError(row.reason)
    return formula_of(row.quantity)[0](row, **changes) / UNITS[row.unit]
