"""Tables of whole measured servers: each row a design point, with its measured times.

Columns are those of `silicon_sample.csv` in aiconfigurator-core: `id, backend, backend_version, model_path, system,
precision, isl, osl, batch_size, tp_size, pp_size, attention_dp_size, moe_tp_size, moe_ep_size, silicon_ttft_ms,
silicon_tpot_ms`; only id, backend, model_path, system, isl, osl and batch_size must be there, and `kv_cache_dtype` and
`gpu_memory_utilization` may be. Times are medians in ms.

A row whose `mode` is disagg has separate pools: `prefill_num_workers, prefill_tp_size, decode_num_workers,
decode_tp_size` must be there, and the other splits and `batch_size` may be, each with the prefix of its pool.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dse import quantizers
from dse.calibrate.table import named_rows, number
from dse.core import units
from dse.core.errors import DseError, InputError, did_you_mean, show
from dse.model import kv_layout
from dse.model.point import Point
from dse.model.stacks import DEFAULT_STACK
from dse.specs import catalog, engines
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.measurements import bits_from
from dse.specs.workload import MAX_BATCH, MAX_DEVICES, MAX_INPUT_TOKENS, MAX_OUTPUT_TOKENS, StateType, Workload

#: share of the memory that servers of tables use that do not say it: the default of most of their releases
USUAL_SHARE = 0.9
#: columns that must be there, and the largest value of those that are whole numbers
NEEDED = {
    "id": 0,
    "backend": 0,
    "model_path": 0,
    "system": 0,
    "isl": MAX_INPUT_TOKENS,
    "osl": MAX_OUTPUT_TOKENS,
    "batch_size": MAX_BATCH,
}
SPLITS = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
TIMES = ("silicon_tpot_ms", "silicon_ttft_ms")
#: rows with separate pools, prefixes of the columns of those, and the columns that such rows need
APART, PREFILL, DECODE = "disagg", "prefill_", "decode_"
NEEDED_APART = tuple(pool + name for pool in (PREFILL, DECODE) for name in ("num_workers", "tp_size"))
MAX_MS = 1e8
#: InferenceX draws lengths evenly from 0.8 to 1.0 of those stated, and serves its FP8 and FP4 recipes with FP8 keys and
#: values; its rows name a dump, a day's file or one model's file for comparison as their source: the last repeat times
#: of the others digit by digit, with the lengths as stated (docs/explanation/calibration.md, Whole steps)
INFERENCEX_LENGTHS = 0.9
INFERENCEX = re.compile(r"(?i)db-dump|source_file=(20\d\d-\d\d-\d\d|[^/;]*gap-analysis\.csv)")
#: recipes that leave the type of the cache to the engine, which keeps 16 bits: how models begin, devices, stacks, the
#: day on which they began to say FP8 ("": never); and the states that recipes say which say FP8
#: (github.com/SemiAnalysisAI/InferenceX, benchmarks/*.sh and their history; of separate pools github.com/NVIDIA/
#: srt-slurm, recipes/h200: Apache-2.0)
PLAIN_KV = (
    ("gpt-oss", ("H100", "H200", "MI300X", "MI325X", "MI355X"), ("vllm", "trtllm"), ""),
    ("minimax-m2", ("H100", "H200", "MI300X", "MI325X"), ("vllm",), ""),
    ("minimax-m2", ("B200", "MI355X"), ("vllm",), "2026-04-05"),
    ("deepseek-v3", ("H200",), ("sglang",), ""),
    ("deepseek-v3", ("MI300X", "MI325X"), ("sglang",), "2026-01-22"),
    ("glm-5", ("H200",), ("sglang",), ""),
    ("glm-5", ("MI355X",), ("sglang",), "2026-04-17"),
    ("kimi-k2.5", ("MI355X",), ("vllm",), ""),
    ("qwen3.5", ("MI300X", "MI325X", "MI355X"), ("sglang",), ""),
)
STATES: dict[str, StateType] = {"qwen3.5-397b-a17b": "bfloat16"}
#: vLLM's rows of InferenceX state `{ tp: 4, ep: 4 }` as tp 4, attention dp 4 and ep 16, with and without `dp-attn`:
#: four devices (the table repeats some of those times as tp 4, ep 4). The models whose recipes there give requests
#: groups of their own at nearly all loads; others do at few (its nvidia-master.yaml)
GROUPS = "deepseek-v4"
MEASURED_ON = re.compile(r"measured=(20\d\d-\d\d-\d\d)")
#: requests a place: InferenceX sends ten times as many as run at once. NVIDIA's rows have equal lengths: SGLang runs
#: prompts before anything else, so that requests stay in step, and all prompts queue in every round
ROUNDS, IN_STEP_ROUNDS = 10, 1
#: TensorRT-LLM admits a request when its final length fits (GUARANTEED_NO_EVICT); the others when its prompt does, so
#: that requests run at their mean size
RESERVING = "trtllm"
#: recipes raise the share of the memory that a server may use where weights take more of the usual one than this: they
#: would leave no room for requests (a column gpu_memory_utilization says it otherwise)
TIGHT_WEIGHTS, TIGHT_SHARE = 0.95, 0.95
#: TensorRT-LLM in NVIDIA's images that are named by Dynamo's release (docs.nvidia.com/dynamo/getting-started/
#: support-matrix, read 2026-11)
DYNAMO = re.compile(r"ai-dynamo/tensorrtllm-runtime:(\S+)")
IN_DYNAMO = {
    "0.8.1": "1.2.0rc6.post1",
    "0.8.1.post1": "1.2.0rc6.post1",
    "0.8.1.post2": "1.2.0rc6.post2",
    "0.8.1.post3": "1.2.0rc6.post3",
}
#: `precision` -> format of dense models, of mixtures, of models that are published in it
_FORMATS = {
    "fp8": ("fp8", "fp8-block"),
    "fp4": ("nvfp4", "nvfp4-experts"),
    "int4": ("int4", "int4-experts"),
    "bf16": ("bf16", "bf16"),
    "fp16": ("bf16", "bf16"),
    "": ("bf16", "bf16"),
}
#: rows of recipes that draft (MTP), which they do not state: model, TensorRT-LLM's release, the day they were measured
#: on ("": any). One recipe of InferenceX runs `off: v1.2.0rc6.post2 / mtp: v1.2.0rc6.post3`, and began to draft on that
#: day (github.com/SemiAnalysisAI/InferenceX, perf-changelog.yaml, pull requests 392 and 1488, Apache-2.0)
DRAFTED = (("deepseek-v3", "1.2.0rc6.post3", ""), ("deepseek-v3", "1.1.0rc2.post2", "2026-01-14"))
DRAFTS = "the recipe of this row drafts (MTP), which is not modeled: predicted are servers of one token a step"
#: rows that are no measurement of what they state: model, release, why
SUSPECT = (
    ("qwen3-235b-a22b", "0.12.0", "three times the time beside kernels of any other release: not run as graphs"),
    ("qwen3-32b", "1.3.0rc1", "times fall and rise with the load, by a factor of five"),
    ("qwen3-32b", "1.2.0rc6.post1", "three rows, half of their time unexplained"),
)


@dataclass(frozen=True)
class ServerRow:
    """One measured server, or two pools of servers: the workload and its times in seconds; None where none was
    measured."""

    id: str
    line: int
    model: str
    system: str
    stack: str
    release: str
    precision: str
    concurrency: int
    n_devices: int
    device: HardwareSpec | None = None
    spec: ModelSpec | None = None
    work: Workload | None = None
    kv: str = "fp16"
    tpot_s: float | None = None
    ttft_s: float | None = None
    #: why nothing can be predicted; "" where it can
    reason: str = ""
    #: what a prediction takes from the nearest that was measured
    marks: str = ""
    #: the table itself calls it suspect
    is_marked: bool = False
    #: separate pools: the workload of a server that computes prompts, how many those are, and how many decode, of which
    #: each has `work`
    prompt_work: Workload | None = None
    n_prompt_servers: int = 0
    n_servers: int = 1
    #: the day, as the source of the row has it; "" where it does not
    measured_on: str = ""
    #: a recipe of InferenceX, whose lengths and types of the cache are known
    is_inferencex: bool = False

    def point(self, device: HardwareSpec | None = None, **changes: Any) -> Point:
        """The design point of the row, on another device or with another workload where given. Raises DseError where it
        cannot be split so."""
        assert self.work is not None
        return self._point(device, replace(self.work, **changes))

    def prompt_point(self, device: HardwareSpec | None = None) -> Point:
        """The design point of a server that computes prompts, of separate pools."""
        assert self.prompt_work is not None
        return self._point(device, self.prompt_work)

    def _point(self, device: HardwareSpec | None, work: Workload) -> Point:
        assert self.device is not None
        assert self.spec is not None
        quantizer = bits_from("closed", None).required(self.kv)
        return Point(device or self.device, kv_layout.build(self.spec, quantizer, quantizer), work)


def is_suspect(row: ServerRow) -> bool:
    """True for a row that is no measurement of what it states (SUSPECT), or that its table marks so."""
    name = row.spec.name if row.spec else ""
    return row.is_marked or any((name, row.release) == (model, release) for model, release, _ in SUSPECT)


def read(path: str, content: bytes | None = None) -> list[ServerRow]:
    """The rows of a table, whose `content` may be known already.

    Raises InputError with file, line and column for a cell that says nothing.
    """
    also = {"batch_size": (f"{DECODE}batch_size",)}
    return [
        (_pools if _is_apart(said) else _row)(path, line, said)
        for line, said in named_rows(path, NEEDED, content, _said, also)
    ]


def _said(cell: str) -> str:
    """The text of a cell; "" for nothing, or for the nan that tables write there."""
    return "" if cell.strip().lower() == "nan" else cell.strip()


def _is_apart(cells: dict[str, str]) -> bool:
    """True for a row of separate pools: as its mode says, or else its counts of servers."""
    mode = cells.get("mode", "").lower()
    return mode == APART or (not mode and any(cells.get(f"{pool}num_workers") for pool in (PREFILL, DECODE)))


def _pools(path: str, line: int, cells: dict[str, str]) -> ServerRow:
    """A row of separate pools: that of its servers that decode, with the workload of those that compute prompts."""
    if missing := [name for name in NEEDED_APART if name not in cells]:
        names = f"column {missing[0]} is" if len(missing) == 1 else f"columns {', '.join(missing)} are"
        raise InputError(f"{path}:{line}: mode = '{APART}': {names} missing: separate pools need servers and splits")
    counts = [int(number(path, line, name, cells[name] or "1", MAX_DEVICES, True)) for name in NEEDED_APART]
    splits = [{name: cells.get(pool + name, "") for name in SPLITS} for pool in (PREFILL, DECODE)]
    concurrency = _concurrency(path, line, cells)
    if concurrency is None:
        name = f"{DECODE}batch_size"
        batch = int(number(path, line, name, cells.get(name, ""), MAX_BATCH, True))
        concurrency = batch * counts[2] * _split(path, line, "attention_dp_size", splits[1]["attention_dp_size"])
    prompts, decoding = (
        _row(path, line, {**cells, **split}, concurrency, n)
        for split, n in zip(splits, (counts[0], counts[2]), strict=True)
    )
    row = replace(decoding, n_devices=prompts.n_devices + decoding.n_devices)
    if unsaid := [name for name in NEEDED_APART if not cells[name]]:
        reason = f"{', '.join(unsaid)}: not stated: a prediction needs the servers of both pools"
        return replace(row, n_devices=0, work=None, reason=reason)
    if reason := prompts.reason or decoding.reason:
        return replace(row, work=None, reason=reason)
    assert prompts.work is not None
    asked = replace(prompts.work, batch=None, max_num_seqs=None, output_tokens=1)
    return replace(row, prompt_work=asked, n_prompt_servers=counts[0], n_servers=counts[2])


def _concurrency(path: str, line: int, cells: dict[str, str]) -> int | None:
    """All requests at once as the source says them; None where it does not."""
    name = "silicon_concurrency"
    told = re.search(rf"{name}=(\d+)", cells.get("silicon_data_source", ""))
    return int(number(path, line, name, told.group(1), MAX_BATCH, True)) if told else None


def _row(path: str, line: int, cells: dict[str, str], concurrency: int | None = None, n_servers: int = 1) -> ServerRow:
    """One row, `n_servers` alike where its `concurrency` is of so many; what is known of nothing becomes its reason."""
    place = f"{path}:{line}"
    high = {name: most for name, most in NEEDED.items() if most and (concurrency is None or name != "batch_size")}
    whole = {name: int(number(path, line, name, cells.get(name, ""), most, True)) for name, most in high.items()}
    split = {name: _split(path, line, name, cells.get(name, "")) for name in SPLITS}
    source = cells.get("silicon_data_source", "")
    release, stack, precision = (
        cells.get("backend_version", ""),
        cells["backend"].lower(),
        cells.get("precision", "").lower(),
    )
    tp, n_groups, ep = _devices(split, stack == "vllm" and _is_inferencex(cells), GROUPS in cells["model_path"].lower())
    if concurrency is None:
        concurrency = _concurrency(path, line, cells) or whole["batch_size"] * max(split["attention_dp_size"], n_groups)
    batch = -(-concurrency // n_servers)
    if image := DYNAMO.search(source):
        release = IN_DYNAMO.get(image.group(1), release)
    near = stack if stack in catalog.servers() else DEFAULT_STACK
    blank = ServerRow(
        cells["id"],
        line=line,
        model=cells["model_path"],
        system=cells["system"],
        stack=stack,
        release=release,
        precision=precision,
        concurrency=concurrency,
        n_devices=n_servers * tp * n_groups * split["pp_size"],
        measured_on=day.group(1) if (day := MEASURED_ON.search(source)) else "",
        tpot_s=_seconds(path, line, TIMES[0], cells),
        ttft_s=_seconds(path, line, TIMES[1], cells),
        is_marked=bool(cells.get("suspect", "")),
        is_inferencex=_is_inferencex(cells),
    )
    try:
        device, spec = _device(cells["system"]), catalog.model(cells["model_path"])
        load = _load(cells, device, spec, blank.measured_on)
        work = Workload(
            batch=batch,
            input_tokens=max(1, round(load.length_share * whole["isl"])),
            output_tokens=max(1, round(load.length_share * whole["osl"])),
            admission="reserve" if stack == RESERVING else "paged",
            weights=_weights(place, cells, spec, precision),
            stack=f"{near}@{engines.release_named(release)}",
            tp=tp * n_groups,
            ep=ep,
            pp=split["pp_size"],
            dp_attention=n_groups > 1,
            model_kind="calibrated",
            rounds=load.rounds,
            max_num_seqs=max(batch - 1, 1) if load.leaves_one_slot else None,
            state_type=load.state_type,
        )
        marks = "" if near == stack else f"nearest_stack: {show(stack)} was not measured: that of {near}"
        row = replace(blank, device=device, spec=spec, work=work, kv=load.kv, marks=marks)
        if any(
            (spec.name, release) == (model, drafting) and row.measured_on.startswith(day)
            for model, drafting, day in DRAFTED
        ):
            return replace(row, work=None, reason=DRAFTS)
        return replace(row, work=replace(work, gpu_memory_utilization=_share(path, cells, row)))
    except DseError as error:
        return replace(blank, reason=str(error))


def _seconds(path: str, line: int, name: str, cells: dict[str, str]) -> float | None:
    """A measured time; None where none was."""
    cell = cells.get(name, "")
    return number(path, line, name, cell, MAX_MS, False) * units.to_base(1, "ms") if cell else None


class RowLoad(NamedTuple):
    """The load that a row leaves to those who know its source: share of the stated lengths, storage of keys and values,
    type of states, requests a place, and whether fewer requests than asked for run at once."""

    length_share: float
    kv: str
    state_type: StateType
    rounds: int
    leaves_one_slot: bool


def _is_inferencex(cells: dict[str, str]) -> bool:
    return bool(INFERENCEX.search(cells.get("silicon_data_source", "")))


def _load(cells: dict[str, str], device: HardwareSpec, spec: ModelSpec, measured_on: str) -> RowLoad:
    """The load of InferenceX's recipes, or of NVIDIA's own rows. Raises InputError for an unknown type of the cache."""
    told, stack, precision = (
        cells.get("kv_cache_dtype", ""),
        cells["backend"].lower(),
        cells.get("precision", "").lower(),
    )
    if not _is_inferencex(cells):
        in_step = IN_STEP_ROUNDS if stack == "sglang" else ROUNDS
        return RowLoad(1.0, _kv(told, precision, False), "auto", in_step, stack == RESERVING)
    kv = _kv(told, precision, not _is_plain(device, spec, stack, measured_on))
    if cells.get("mode", "") == APART:
        return RowLoad(INFERENCEX_LENGTHS, kv, "auto", ROUNDS, False)
    return RowLoad(INFERENCEX_LENGTHS, kv, STATES.get(spec.name, "auto") if kv == "fp8" else "auto", ROUNDS, False)


def _split(path: str, line: int, name: str, cell: str) -> int:
    """Devices along one way of splitting: 1 where nothing, or 0, is said."""
    return int(number(path, line, name, cell, MAX_DEVICES**2, True)) if cell.strip("0.") else 1


def _devices(split: dict[str, int], is_recipe: bool = False, has_groups: bool = False) -> tuple[int, int, int]:
    """(tp of a group, groups with requests of their own, expert parallel).

    Rows of recipes that split experts both ways state tp or attention dp as their product, 64 on 8 devices: the
    experts' own split says how many there are. vLLM's, `is_recipe`, state the devices twice where experts are whole,
    whether requests have groups of their own or not.
    """
    tp, n_groups, ep, moe_tp = (split[name] for name in ("tp_size", "attention_dp_size", "moe_ep_size", "moe_tp_size"))
    if is_recipe and tp == n_groups > 1 and ep == tp * n_groups:
        return (1, tp, tp) if has_groups else (tp, 1, tp)
    if ep > 1 and moe_tp > 1 and max(tp, n_groups) == ep * moe_tp:
        tp, n_groups = (1, ep) if n_groups > tp else (ep, 1)
    return tp, n_groups, ep if tp * n_groups % ep == 0 and tp * n_groups > 1 else 1


def _share(path: str, cells: dict[str, str], row: ServerRow) -> float:
    """Share of the memory for the server: as a column says, else the usual one, or more where weights fill that."""
    told = cells.get("gpu_memory_utilization", "")
    if told:
        return number(path, row.line, "gpu_memory_utilization", told, 1.0, False)
    point = row.point()
    usual = USUAL_SHARE * point.device.usable_frac.si * point.lowered.results["capacity_bytes"]
    return TIGHT_SHARE if point.weight_bytes > TIGHT_WEIGHTS * usual else USUAL_SHARE


def _device(system: str) -> HardwareSpec:
    """The device of a system as tables name it: h200_sxm, a100_sxm, or as we do."""
    names = catalog.device_files()
    plain = re.sub(r"_(sxm|pcie|server|nvl)$", "", system.strip().lower()).replace("_", "-")
    for name in (plain, f"{plain}-80gb"):
        if name in names:
            return catalog.device(name)
    raise InputError(f"system = {show(system)}: is not known: {did_you_mean(plain, names)}")


def _is_plain(device: HardwareSpec, spec: ModelSpec, stack: str, measured_on: str) -> bool:
    """True for a recipe of InferenceX that keeps keys and values in 16 bits whatever its weights are in."""
    return any(
        spec.name.startswith(model)
        and device.name in devices
        and stack in stacks
        and (not until or measured_on < until)
        for model, devices, stacks, until in PLAIN_KV
    )


def _kv(text: str, precision: str, is_inferencex: bool) -> str:
    """Storage of keys and values: as a column kv_cache_dtype says, in an engine's words or this tool's, else FP8 in
    InferenceX's recipes, else 16 bits. Raises InputError for a type that no quantizer here stores."""
    if not text:
        return "fp8" if is_inferencex and precision in ("fp8", "fp4") else "fp16"
    return quantizers.parse(text).name


def _weights(place: str, cells: dict[str, str], spec: ModelSpec, precision: str) -> str:
    """The format of weights that a row's precision stands for: mixtures keep what is no expert in 16 bits below 8."""
    if precision not in _FORMATS:
        raise InputError(f"{place}: precision = {show(precision)}: must be one of {', '.join(filter(None, _FORMATS))}")
    if not precision:  # the name of a checkpoint often says it
        precision = next((word for word in ("fp8", "fp4", "int4") if word in cells["model_path"].lower()), "")
    if spec.name.startswith("gpt-oss"):
        return "mxfp4-experts"
    return _FORMATS[precision][spec.n_experts > 1]
