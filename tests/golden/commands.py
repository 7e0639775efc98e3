"""Command lines for the golden tables, in groups: a later command of a group may read what an earlier one wrote."""

import contextlib
import difflib
import io
import json
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from dse import quantizers
from dse.cli import main as cli
from dse.core.errors import InputError
from dse.figures.export import image
from dse.model.results import RESULT_UNITS
from dse.questions import tables as report_tables
from dse.report import present, throughput
from dse.specs import catalog, tokens
from dse.specs.workload import ASKED
from golden import designs, tables

STORED = designs.GOLDEN / "commands.json.zst"
#: designs shown by `dse point --json`, and those of which every result is explained: the first of the table
N_POINTS, N_EXPLAINED = 60, 20
#: of a group, the changed commands that are shown, and the lines of each
N_SHOWN = 4


def point(row: dict[str, Any]) -> list[str]:
    """The command line of a design."""
    words = ["point"]
    for name, value in row.items():
        option = "--" + (ASKED[name].name if name in ASKED else name.replace("_", "-"))
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        else:
            words += [option, str(value)]
    return words


@cache
def drawn() -> list[dict[str, Any]]:
    """The first designs of the table of which something fits."""
    found = [row.design for row in tables.read(tables.DESIGNS) if row.results.get("feasible")]
    return found[: N_POINTS + N_EXPLAINED]


_A100 = "--device a100-80gb --model llama2-7b"
_H100 = "--device h100 --model llama3.1-8b"
_OAKEN = "--device oaken-hbm --model llama2-13b"
_SMALL = "kivi:group=32,residual=32"

QUESTIONS = f"""
ask cross {_A100} --quantizer kivi:bits=4 --batches 1,16 --inputs 1024 --json
ask cross {_A100} --quantizer oaken --batches 64 --inputs 512,4096 --model-kind ideal --json
ask cross {_H100} --quantizer fp8 --measure step --batches 8 --inputs 2048 --output 128 --json
ask cross {_OAKEN} --quantizer oaken --batches 16 --inputs 1024 --json
ask cross {_H100} --quantizer nqkv --against fp8 --batches 4,32 --inputs 8192 --admission paged --json
ask cross {_A100} --quantizer sinkq --batches 1 --inputs 4096 --stack sglang --json
ask need bandwidth {_A100} --batch 16 --throughput 1000 --json
ask need bandwidth {_A100} --batch 16 --throughput 800 --model-kind ideal --quantizer oaken --json
ask need bandwidth {_OAKEN} --batch 64 --step-ms 40 --quantizer oaken --json
ask need capacity {_A100} --batch 64 --throughput 1200 --json
ask need capacity {_H100} --batch 128 --throughput 3000 --quantizer kivi:bits=4 --admission paged --json
ask need capacity {_OAKEN} --batch 32 --step-ms 60 --json
ask need flops {_A100} --batch 16 --throughput 500 --model-kind ideal --json
ask need flops {_H100} --batch 256 --input 8192 --throughput 1000 --model-kind ideal --json
ask need bits {_A100} --batch 64 --throughput 1000 --json
ask need bits {_H100} --batch 64 --input 16384 --throughput 800 --json
ask need bits {_OAKEN} --batch 64 --step-ms 50 --quantizers fp16,oaken,kivi:bits=4,qserve --json
ask need bits {_A100} --batch 256 --throughput 100000 --json
ask doubt {_A100} --batch 64 --quantizer oaken --json
ask doubt {_A100} --batch 64 --quantizer oaken --model-kind ideal --json
ask doubt {_A100} --batch 16 --quantizer kivi --against fp16 --json
ask doubt {_OAKEN} --batch 32 --quantizer oaken --against fp16 --measure energy --json
ask doubt {_H100} --batch 32 --quantizer fp8 --measure cost --json
ask doubt {_H100} --batch 8 --measure step --range memory_bandwidth=2TB/s:5TB/s --json
ask doubt {_A100} --batch 8 --quantizer sinkq --bits measured --json
ask map {_A100} --batches 1,16,128 --inputs 512,4096 --json
ask map {_A100} --batches 1,16,128 --inputs 512,4096 --model-kind ideal --json
ask map {_OAKEN} --batches 4,64 --inputs 1024,8192 --quantizers fp16,oaken,int4 --measure step --json
ask map {_H100} --batches 4,64 --inputs 1024 --measure energy --admission paged --json
ask map {_H100} --batches 8 --inputs 1024,32768 --measure cost --stack trtllm --tokens streaming --json
"""
SERVING = f"""
simulate {_A100} --requests 200 --rate 2 --json
simulate {_A100} --requests 200 --rate 2 --model-kind ideal --json
simulate {_A100} --trace azure-conv --requests 150 --rate 70% --json
simulate {_A100} --trace azure-code --requests 100 --rate full --seed 7 --json
simulate {_A100} --trace inputs/trace.csv --rate trace --json
simulate {_A100} --trace inputs/trace.csv --rate 3 --quantizer kivi:bits=4 --json
simulate {_H100} --requests 120 --rate 10 --batching chunked --prompt-budget 256 --json
simulate {_H100} --requests 120 --rate 10 --batching static --admission reserve --batch 16 --json
simulate {_H100} --requests 120 --batch 32 --quantizer fp8 --weights-bits 8 --activation-bits 8 --json
simulate {_H100} --requests 60 --input 8000 --output 200 --rate full --page 32 --prompt-batch 8192 --json
simulate {_OAKEN} --requests 80 --quantizer oaken --rate 1 --json
simulate {_OAKEN} --requests 80 --key-quantizer int8 --value-quantizer int4 --rate full --admission reserve --json
simulate --device h100 --model mistral-7b --requests 60 --input 6000 --output 300 --rate 1 --stack sglang --json
simulate --device l40s --model llama3.1-8b --requests 60 --bits measured --quantizer kivi:bits=4 --json
traffic azure-conv --json
traffic azure-code --json
traffic inputs/trace.csv --json
traffic azure-conv {_A100} --json
traffic azure-conv {_A100} --quantizer kivi:bits=4 --batch 8,16 --page 64 --json
traffic azure-code {_H100} --quantizer fp8 --model-kind ideal --max-tokens 16384 --json
traffic azure-code {_OAKEN} --quantizer oaken --json
traffic inputs/trace.csv {_A100} --key-quantizer int8 --value-quantizer nqkv --json
traffic inputs/trace.csv --device h100 --model mixtral-8x7b-oaken --weights-bits 4 --stack trtllm --json
ring {_H100} --json
ring {_H100} --devices 4 --batch 2 --quantizer kivi:bits=4 --json
ring {_H100} --devices 16 --link '100 GB/s' --input 1000000 --json
ring {_H100} --model-kind ideal --quantizer fp8 --json
ring {_A100} --devices 2 --input 4096 --output 128 --json
ring {_A100} --devices 3 --quantizer oaken --json
ring {_OAKEN} --devices 8 --quantizer oaken --json
ring --device b200 --model llama3.1-70b --devices 8 --weights-bits 8 --stack sglang --json
ring --device h200 --model mistral-7b --devices 3 --input 9000 --json
ring --device h100 --model hf_configs/gemma-2-9b.json --devices 7 --input 20001 --output 77 --model-kind ideal --json
ring --device h200 --model mistral-7b --devices 4 --quantizer sinkq --json
ring --device h100 --model hf_configs/gemma-3-4b.json --devices 4 --json
ring --device h100 --model hf_configs/deepseek-v2-lite.json --devices 4 --json
"""
_SHOWN = (
    "a100-80gb",
    "2xa100-80gb",
    "a100-40gb",
    "a800-80gb",
    "b200",
    "h100",
    "h200",
    "l40s",
    "lpu-hbm",
    "lpu-lpddr",
    "oaken-hbm",
    "oaken-lpddr",
    "tender-a100",
    "llama2-7b",
    "llama3.1-405b",
    "mixtral-8x7b-oaken",
    "opt-175b",
    "hf_configs/gemma-3n-e4b.json",
    "hf_configs/deepseek-v3.json",
    "hf_configs/gpt-oss-20b.json",
    "hf_configs/llama-4-scout.json",
    "kivi",
    "sinkq",
    "oaken",
    "kvquant",
    "nqkv",
    "snapkv",
    "sparse",
    "inputs/devices/small-gpu.toml",
)
LISTS = "\n".join(
    [
        *(f"list {kind} --json" for kind in ("devices", "models", "quantizers", "tokens")),
        *(f"show {name} --json" for name in _SHOWN),
        "check inputs/devices/small-gpu.toml",
        "check inputs/plans/32-1.toml",
        "check hf_configs/gemma-2-9b.json",
        "predict attention inputs/attention.csv --device h100 --out predicted.csv --json",
        "predict attention inputs/attention.csv --device b200 --stack sglang --out sglang.csv --json",
    ]
)
SWEEPS = """
sweep inputs/sweep-quantizers.toml --out s1 --json
pareto s1 --maximize throughput_tokens_per_s --minimize effective_bits --json
pareto s1 --maximize throughput_tokens_per_s --minimize joules_per_token --by model,device --json
pareto s1 --maximize max_batch --minimize decode_step_s --at-most effective_bits=5 --json
pareto s1 --minimize stored_bits --maximize throughput_tokens_per_s,usd_per_million_tokens --drop-missing --json
sweep inputs/sweep-policies.toml --out s2 --json
pareto s2 --maximize throughput_tokens_per_s,stored_tokens --by model,prefix_tokens,batch --json
pareto s2 --minimize kv_bytes,ttft_s --by quantizer,tokens --json
pareto s2 --minimize decode_step_s --by tokens,prefix_tokens,quantizer,model,batch --json
sweep inputs/sweep-devices.toml --out s3 --json
pareto s3 --maximize throughput_tokens_per_s --minimize memory_capacity --by stack,key_quantizer,admission --json
pareto s3 --minimize total_s,memory_bandwidth --by device,value_quantizer,batch --json
pareto s3 --minimize usd_per_million_tokens --by stack,device,memory_bandwidth,batch --json
sweep inputs/sweep-devices.toml --out s4 --keep front --maximize throughput_tokens_per_s --minimize kv_bytes --json
sweep inputs/sweep-large.toml --out s5 --json
pareto s5 --maximize throughput_tokens_per_s --by model_kind,device,model,quantizer --json
pareto s5 --minimize compute_joules_per_token,prefill_s --by model_kind,device,quantizer,admission --json
pareto s5 --minimize usd_per_request --by admission,quantizer,batch --json
sweep --verify s1 --json
"""
MEASURING = f"""
synthesize --layers 2 --heads 2 --tokens 160 --head-dim 32 --queries 8 --out dump.npz --json
thresholds dump.npz --out thresholds.toml --json
quantize dump.npz --method {_SMALL} --method int8 --json
quantize dump.npz --method oaken --method fp8 --thresholds thresholds.toml --out quantized --json
point {_A100} --quantizer oaken --bits measured --measurements quantized/measurement.json --json
mix inputs/measured.parquet --budget-bits 5.5 --json
mix inputs/measured.parquet --budget-bits 6 --figure mixed_plans.csv --out mixed.toml --json
mix inputs/measured.parquet --max-error 0.1 --json
mix inputs/measured.parquet --budget-bits 7 --objective mse --context 64 --methods int8,{_SMALL} --json
lab dump.npz --method {_SMALL} --out lab-kivi --json
lab dump.npz --method oaken --side value --layer 1 --head 1 --out lab-oaken --json
"""
REPORT_FIGURES = (
    "throughput_capacity",
    "throughput_batch",
    "memory_batch",
    "weights_or_kv",
    "throughput_length",
    "throughput_trace",
    "trace_lengths",
    "tokens_bits",
    "latency_breakdown",
    "bit_ledger",
    "roofline",
)
LAB_FIGURES = ("lab_bits", "lab_heads", "lab_histogram", "lab_before", "lab_error")
PAPER_FIGURES = (
    "claims",
    "accuracy_perplexity",
    "accuracy_zero_shot_oaken",
    "accuracy_zero_shot_nqkv",
    "accuracy_zero_shot_nqkv_alone",
    "accuracy_generation_sinkq",
    "accuracy_longbench_sinkq",
    "servers_errors",
    "servers_accuracy",
)


def _plots(names: tuple[str, ...], source: str, prefix: str = "") -> str:
    return "\n".join(f"plot {prefix}{name} {source} --out figure-{prefix}{name}.csv" for name in names)


FIGURES = f"""
point {_A100} --batch 16 --quantizer kivi --out design
point {_OAKEN} --batch 16 --quantizer oaken --out other
{_plots(("design_memory", "design_step", "operations"), "design")}
plot design_memory other --out other-memory.csv
{_plots(REPORT_FIGURES, "report")}
"""
PAPERS = f"validate report --out papers\n{_plots(PAPER_FIGURES, 'papers')}"

GROUPS: dict[str, list[list[str]]] = {
    "points": [],
    **{
        name: [shlex.split(line) for line in text.strip().splitlines()]
        for name, text in (
            ("questions", QUESTIONS),
            ("serving", SERVING),
            ("lists", LISTS),
            ("sweeps", SWEEPS),
            (
                "measuring",
                f"{MEASURING}\n{_plots(LAB_FIGURES, 'lab-kivi')}\nplot mixed_plans mixed_plans.csv --out "
                "figure-mixed_plans.csv".replace("\n\n", "\n"),
            ),
            ("figures", FIGURES),
            ("papers", PAPERS),
        )
    },
}
#: of what commands write, the tables that are kept; those of measured kernels depend on a package that may be there
KEPT_FILES = (".csv", ".toml")
LEFT_OUT = ("silicon", "figure-silicon")
REPORT = ["--devices", "a100-80gb,oaken-hbm", "--models", "llama2-7b,mistral-7b", "--batches", "16,256"]


def lines_of(name: str) -> list[list[str]]:
    """The command lines of a group."""
    return [[*point(row), "--json"] for row in drawn()[:N_POINTS]] if name == "points" else GROUPS[name]


def listed(groups: dict[str, Any], kind: str) -> set[str]:
    """Names of a kind of thing when the groups were recorded, as `dse list` had them."""
    (output,) = (one["output"] for one in groups["lists"] if one["argv"] == ["list", kind, "--json"])
    return {row["name"].lower() for row in json.loads(output)}


@contextlib.contextmanager
def as_recorded(groups: dict[str, Any]) -> Iterator[None]:
    """Hide devices, models, quantizers and token policies that came later: a new one changes no command's answer."""
    known = {
        "devices": catalog.device_files(),
        "models": catalog.model_files(),
        "quantizers": quantizers.FAMILIES,
        "tokens": tokens.FAMILIES,
    }
    with contextlib.ExitStack() as stack:
        for kind, found in known.items():
            names = listed(groups, kind)
            then = {name: one for name, one in found.items() if name in names}
            stack.enter_context(mock.patch.dict(found, then, clear=True))
        yield


def run_group(name: str, folder: Path) -> list[dict[str, Any]]:
    """Run the commands of a group in an empty `folder`: what each printed, and the tables that it wrote."""
    for inputs in ("inputs", "hf_configs"):
        shutil.copytree(designs.GOLDEN / inputs, folder / inputs)
    done = []
    # pictures are not among the files that are kept
    with contextlib.chdir(folder), mock.patch.object(image, "images", return_value={}):
        if name == "figures":
            written = _tables_of_report()
            for path, text in written.items():
                Path("report", path).parent.mkdir(parents=True, exist_ok=True)
                Path("report", path).write_text(text)
            done.append({"argv": ["report", *REPORT], "output": "", "files": written})
        before = _files()
        for argv in lines_of(name):
            output = _output_of(argv)
            after = _files()
            changed = [path for path in sorted(after) if after[path] != before.get(path)]
            done.append({"argv": argv, "output": output, "files": {path: Path(path).read_text() for path in changed}})
            before = after
    return done


def _output_of(argv: list[str]) -> str:
    """What a command prints, with its exit status where that is not 0 and its complaint; runs in this process."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(argv)
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 1
    return out.getvalue() if status == 0 else f"exit status {status}\n{err.getvalue()}"


def _tables_of_report() -> dict[str, str]:
    """The tables of a report as CSV by file name, without its pictures, which take long."""
    given = dict(zip(REPORT[::2], REPORT[1::2], strict=True))
    lists = [given[name].split(",") for name in ("--devices", "--models")]
    sizes = [int(size) for size in given["--batches"].split(",")]
    found = report_tables.build(throughput.ask(*lists, None, sizes), None)
    return {name: text.decode() for name, text in throughput.table_files(found).items() if name.endswith(".csv")}


def _files() -> dict[str, int]:
    """The tables in the working directory, each with the time of its last change."""
    found = (path for path in Path().rglob("*") if path.suffix in KEPT_FILES and path.parts[0] not in ("inputs",))
    return {str(path): path.stat().st_mtime_ns for path in found if not path.stem.startswith(LEFT_OUT)}


def explained(row: dict[str, Any]) -> dict[str, Any]:
    """The numbers behind every result of a design: by result, those of each formula and of its terms, in order."""
    with contextlib.chdir(designs.GOLDEN):
        one = designs.point(row)
        known = present.explained(one)  # of all results at once
        with mock.patch.object(present, "explained", return_value=known):
            return {name: _explained(name, one) for name in RESULT_UNITS}


def _explained(name: str, one: designs.Point) -> Any:
    try:
        return json.loads(json.dumps(_numbers(present.explain(name, one))))
    except InputError as error:
        return str(error)


def _numbers(node: Any) -> list[Any]:
    """Every `value` in a document, in its order."""
    if isinstance(node, list):
        return [value for part in node for value in _numbers(part)]
    if not isinstance(node, dict):
        return []
    own = [node["value"]] if "value" in node and not isinstance(node["value"], list) else []
    return own + [value for part in node.values() for value in _numbers(part)]


def recorded() -> dict[str, Any]:
    """What commands print and which tables they write, by group; and the numbers of explanations."""
    found: dict[str, Any] = {"groups": {}}
    for name in GROUPS:
        with tempfile.TemporaryDirectory() as folder:
            found["groups"][name] = run_group(name, Path(folder))
    found["explained"] = [{"design": row, "numbers": explained(row)} for row in drawn()[N_POINTS:]]
    return found


def packed(found: dict[str, Any]) -> bytes:
    """What was recorded, as it is stored."""
    content = json.dumps(found, separators=(",", ":")).encode()
    return pa.Codec("zstd", compression_level=19).compress(content, asbytes=True)


def unpacked(content: bytes) -> Any:
    """What was recorded, as it was stored."""
    with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
        return json.loads(stream.read())


def difference(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """By group how many commands changed; of the first, the first changed lines."""
    for name, found in after["groups"].items():
        old = {shlex.join(one["argv"]): one for one in before["groups"].get(name, [])}
        changed = [one for one in found if old.get(shlex.join(one["argv"])) != one]
        yield f"{name}: {len(changed)} of {len(found)} changed"
        for one in changed[:N_SHOWN]:
            yield f"  dse {shlex.join(one['argv'])}"
            known = old.get(shlex.join(one["argv"]), {"output": "", "files": {}})
            texts = [(known["output"], one["output"])]
            texts += [(known["files"].get(path, ""), text) for path, text in one["files"].items()]
            lines = [line for a, b in texts for line in difflib.unified_diff(a.splitlines(), b.splitlines(), n=0)]
            shown = [line.rstrip()[:120] for line in lines if line[:3] not in ("---", "+++") and line[:2] != "@@"]
            yield from (f"    {line}" for line in shown[:N_SHOWN])
    pairs = zip(before.get("explained", []), after["explained"], strict=False)
    yield f"explained: {sum(old != new for old, new in pairs)} of {len(after['explained'])} changed"
