"""Results of `vllm bench serve` (JSON), SGLang's `bench_serving` (a line of JSON a run), and lines of numbers
("tpot=21.3ms concurrency=64 input=4096 output=512") as rows of a table of benchmarks, in the columns of `dse validate
speed`."""

import re
from collections.abc import Mapping
from typing import Any

from dse.core import units
from dse.core.errors import InputError, did_you_mean, show
from dse.core.specfile import load_json
from dse.specs.quantity import named_quantity
from dse.validate import startup_log

#: other names of the columns: of tables that people keep, of results of benchmarks, and of `--metadata` in these
ALSO = {
    "engine": ("backend", "framework", "endpoint_type"),
    "version": ("engine_version", "backend_version", "release"),
    "model": ("model_id", "model_path", "served_model_name"),
    "device": ("gpu", "hardware", "system"),
    "weights": ("quantization",),
    "kv_dtype": ("kv_cache_dtype", "kv"),
    "tp": ("tensor_parallel_size", "tp_size"),
    "pp": ("pipeline_parallel_size", "pp_size"),
    "ep": ("expert_parallel_size", "ep_size"),
    "dp_attention": ("enable_dp_attention", "dpa"),
    "concurrency": ("max_concurrency", "conc"),
    "requests": ("num_prompts", "completed"),
    "requests_per_s": ("request_rate", "rate"),
    "input_tokens": ("input_len", "random_input_len", "isl", "input", "inp"),
    "output_tokens": ("output_len", "random_output_len", "osl", "output", "out"),
    "measured_tpot_ms": ("mean_tpot_ms", "tpot_ms", "tpot"),
    "measured_ttft_ms": ("mean_ttft_ms", "ttft_ms", "ttft"),
    "measured_output_tok_s": ("output_throughput", "output_tok_s", "ots"),
}
#: protocols of clients, and other spellings, -> the engine; an API that several speak is taken as vLLM's
_ENGINES = {
    "openai": "vllm",
    "openai-chat": "vllm",
    "vllm-chat": "vllm",
    "sglang-oai": "sglang",
    "sglang-oai-chat": "sglang",
    "sglang-native": "sglang",
    "trt": "trtllm",
    "tensorrt-llm": "trtllm",
}
#: a result, and no other JSON, has these
MARKS = ("completed", "output_throughput")
#: settings of a server that SGLang keeps with its results, as its command takes them
_SETTINGS = (
    "mem_fraction_static",
    "max_running_requests",
    "chunked_prefill_size",
    "context_length",
    "speculative_algorithm",
)
#: results of servers that draft have these
_DRAFTED = ("accept_length", "spec_decode_acceptance_length")
_ENDLESS = ("", "inf", "Infinity", "None")
#: columns of settings that tables have, as engines' commands take them
_COLUMN_SETTINGS = {
    "util": "--gpu-memory-utilization",
    "mml": "--max-model-len",
    "seqs": "--max-num-seqs",
    "budget": "--max-num-batched-tokens",
}
#: requests at once of a server that takes all that come at a rate, unless its own setting is less
_ALL_THAT_COME = "1024"
#: columns of a line that are times, which need a unit there
_TIMES = ("measured_tpot_ms", "measured_ttft_ms")
_LINE = re.compile(r"\s*[A-Za-z_]+=\S.*")
_PART = re.compile(r"([A-Za-z_]+)=(.*?)(?=[\s,]+[A-Za-z_]+=|$)")


def engine_of(name: str) -> str:
    """The engine behind a benchmark's name of a backend."""
    return _ENGINES.get(name.strip().lower(), name.strip().lower())


def renamed(said: Mapping[str, str]) -> dict[str, str]:
    """A row with the columns' own names where it has other ones for them."""
    row = dict(said)
    for name, others in ALSO.items():
        if not row.get(name) and (value := next(filter(None, map(row.get, others)), None)):
            row[name] = value
    if "kind" in said:
        row |= _of_kind(said, row)
    return row


def _of_kind(said: Mapping[str, str], row: Mapping[str, str]) -> dict[str, str]:
    """Columns of a table that says by a `kind` how its rows were measured, and settings of their servers in columns."""
    kind, requests = said["kind"].lower(), row.get("concurrency", "")
    if said.get("rounds", "").isdecimal() and requests.isdecimal():
        requests = str(int(said["rounds"]) * int(requests))
    options = [f"{option} {said[name]}" for name, option in _COLUMN_SETTINGS.items() if said.get(name)]
    return {
        "decode": "true" if "decode" in kind else "",
        "all_at_once": "true" if kind == "burst" else "",
        "requests": requests,
        "concurrency": _ALL_THAT_COME if kind.startswith("rate") else row.get("concurrency", ""),
        "server": " ".join([row.get("server", ""), *options]),
    }


def is_result(content: bytes) -> bool:
    """Whether a file is JSON, and so no table."""
    start = content.lstrip()
    return (start[1:].lstrip() if start.startswith(b"[") else start).startswith(b"{")


def is_line(text: str) -> bool:
    """Whether a text is a line of numbers (tpot=21.3ms concurrency=64), and no path."""
    return bool(_LINE.fullmatch(text))


def line_row(text: str) -> dict[str, str]:
    """A line of numbers as a row of a table. Raises InputError for a name that no column has, one that is given twice,
    and a time without its unit."""
    said: dict[str, str] = {"id": text}
    for name, value in _PART.findall(text.strip()):
        column = next((known for known, others in ALSO.items() if name in others), name)
        if column not in ALSO:
            known = [*ALSO, *(other for others in ALSO.values() for other in others)]
            raise InputError(f"{show(text)}: {name}: {did_you_mean(name, known)}")
        if column in said:
            raise InputError(f"{show(text)}: {name} = {show(value)}: is given twice")
        if column in _TIMES:
            value = repr(named_quantity(f"{show(text)}: {name}", value, "s", 1e-6, 1e5).si / units.to_base(1, "ms"))
        said[column] = value
    return said


def rows(path: str, content: bytes) -> list[dict[str, str]]:
    """Rows of one result, or of a line of JSON a run, in the columns of a table. Raises InputError."""
    text = content.decode("utf-8", "replace")
    try:
        whole = load_json(text)
        documents = whole if isinstance(whole, list) else [whole]
    except (ValueError, RecursionError):
        lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
        documents = [_document(path, i, line) for i, line in lines]
    return [_row(f"{path}:{i}", document) for i, document in enumerate(documents, 1)]


def _document(path: str, line: int, text: str) -> Any:
    try:
        return load_json(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}:{line}: is no JSON of a benchmark (cut off?): {str(error)[:80]}") from error


def _row(place: str, document: Any) -> dict[str, str]:
    """A run as a row: mean lengths from the totals, a burst where all requests were sent at once."""
    if not isinstance(document, dict) or not all(name in document for name in MARKS):
        raise InputError(
            f"{place}: is no result of `vllm bench serve` or `sglang.bench_serving`: {' and '.join(MARKS)} are missing"
        )
    info = document.get("server_info")
    whole = {**(info if isinstance(info, dict) else {}), **document}
    said = {name: str(value) for name, value in whole.items() if isinstance(value, str | int | float | bool)}
    n = _number(place, "completed", said)
    said = {name: value for name, value in said.items() if value not in ("None", "auto")}
    if "max_concurrency" in said or not said.get("concurrency", "").isdecimal():
        said.pop("concurrency", None)  # of SGLang: the mean that ran
    if "quantization" in said:
        said["quantization"] = startup_log.QUANTIZATIONS.get(said["quantization"], "")
    row = renamed(said)
    row["requests"] = str(int(n))
    for name, total in (("input_tokens", "input"), ("output_tokens", "output")):
        key = f"total_{total}_tokens" if f"total_{total}_tokens" in said else f"total_{total}"
        row[name] = str(max(round(_number(place, key, said) / n), 1))
    is_endless = row.get("requests_per_s", "") in _ENDLESS
    if is_endless:
        row["requests_per_s"] = ""
        row.setdefault("all_at_once", "" if row.get("concurrency") else "true")
    if not row.get("concurrency"):
        row["concurrency"] = row["requests"]
    options = [f"--{name.replace('_', '-')} {said[name]}" for name in _SETTINGS if said.get(name)]
    options += ["--speculative-num-draft-tokens"] if any(map(said.get, _DRAFTED)) else []
    row["server"] = " ".join(filter(None, (row.get("server"), *options)))
    return row


def _number(place: str, name: str, said: Mapping[str, str]) -> float:
    """A positive number of a result."""
    if not re.fullmatch(r"\d{1,15}(\.\d{1,15})?", said.get(name, "")) or float(said[name]) <= 0:
        value = show(said[name]) if name in said else "missing"
        raise InputError(f"{place}: {name} = {value}: must be more than 0: did any request end?")
    return float(said[name])
