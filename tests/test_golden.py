"""Golden tables: today's numbers are those that tests/golden/make.py stored before the model was rewritten.

Whole numbers, names and texts are equal; floats agree to 1e-12 where the model is ideal and to 1e-9 where kernels are
calibrated. `tests/golden/adapter.py` is all that these tests know of the code.
"""

import io
import json
import re
from functools import lru_cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cases import quick_first
from dse.report import present
from golden import adapter, commands

#: relative error of floats, by model kind; and what rounding to 44 bits of mantissa adds to it
TOLERANCE = {"ideal": 1e-12, "calibrated": 1e-9}
ROUNDED = 3e-14
#: designs come in so many tests, so that processes share them
N_PARTS = 10
#: rows that a failure shows, and differences of a row
SHOWN_ROWS, SHOWN_RESULTS = 4, 12


#: results of several devices, of servers and of formats of weights: designs here are kernels alone on one device, and
#: these have tests of their own (tests/model/test_deployed.py, test_step.py)
SINGLE = {
    "collective_s",
    "dcp",
    "dp_attention",
    "ep",
    "expert_skew",
    "gpu_memory_utilization",
    "host_s",
    "max_num_seqs",
    "memory",
    "n_devices",
    "pp",
    "pp_batches",
    "prompt_budget_tokens",
    "rounds",
    "strict_kernels",
    "tp",
    "weights",
}


@lru_cache(maxsize=1)
def designs():
    """The rows of the table: inputs by name and results by name, as evaluate_row takes and gives them."""
    table = pq.read_table(adapter.GOLDEN / "designs.parquet")
    kinds = json.loads(table.schema.metadata[b"kinds"])
    values = {name: restored(table[name].to_pylist(), kinds[name]) for name in table.column_names}
    names = list(values)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*values.values(), strict=True)]
    return [
        (
            {name.removeprefix("in."): row[name] for name in names if name.startswith("in.")},
            {name: row[name] for name in names if not name.startswith("in.")},
        )
        for row in rows
    ]


def restored(column, kind):
    """Numbers that are stored as text: whole ones exactly."""
    if kind != "number":
        return column
    return [text if text is None else int(text) if text.lstrip("-").isdigit() else float(text) for text in column]


def same(expected, actual, tolerance):
    """Whole numbers, texts and None equal, floats close."""
    if isinstance(expected, float) and isinstance(actual, int | float) and not isinstance(actual, bool):
        return expected == actual or abs(expected - actual) <= tolerance * max(abs(expected), abs(actual))
    return type(expected) is type(actual) and expected == actual


def wrong(expected, actual, tolerance):
    """Results that differ, each as a line; those that came later have tests of their own."""
    return [
        f"  {name}: {expected[name]!r} expected, {actual.get(name)!r} found"
        for name in expected
        if not same(expected[name], actual.get(name), tolerance)
    ]


def asked(row):
    """The inputs of a design, but for those that are usual."""
    usual = {
        "bits": "closed",
        "admission": "reserve",
        "page_tokens": 16,
        "prefix_tokens": 0,
        "weights_bits": 16,
        "tokens": "full",
        "activation_bits": 16,
        "prompt_chunk_tokens": 1,
        "kv_cache": True,
    }
    return ", ".join(f"{name}={v}" for name, v in row.items() if v is not None and v != usual.get(name))


@quick_first(1, "part", range(N_PARTS))
def test_every_result_of_a_design_is_as_it_was(part):
    found, places = [], range(part, len(designs()), N_PARTS)
    for i in places:
        row, expected = designs()[i]
        tolerance = TOLERANCE[expected["model_kind"] or "ideal"] + ROUNDED
        lines = wrong(expected, adapter.evaluate_row(row), tolerance)
        if lines:
            more = [f"  and {len(lines) - SHOWN_RESULTS} more"] if len(lines) > SHOWN_RESULTS else []
            found.append("\n".join([f"design {i}: {asked(row)}", *lines[:SHOWN_RESULTS], *more]))
    assert not found, f"{len(found)} of {len(places)} designs differ\n" + "\n".join(found[:SHOWN_ROWS])


def test_compiled_code_gives_every_design_the_numbers_of_the_table():
    """All in one call. What it leaves to the interpreter, as whole numbers might not fit int64, is below 3 %."""
    left, found, each = 0, [], adapter.evaluate_compiled([row for row, _ in designs()])
    for i, ((row, expected), actual) in enumerate(zip(designs(), each, strict=True)):
        if expected["error"] is not None:  # refused as it is read, or left and refused then
            assert actual in (None, {"error": expected["error"]}), f"design {i}: {asked(row)}"
            continue
        if actual is None:
            left += 1
            continue
        tolerance = TOLERANCE[expected["model_kind"]] + ROUNDED
        lines = wrong({name: expected[name] for name in actual if name in expected}, actual, tolerance)
        if lines:
            found.append("\n".join([f"design {i}: {asked(row)}", *lines[:SHOWN_RESULTS]]))
    assert not found, f"{len(found)} of {len(each)} designs differ\n" + "\n".join(found[:SHOWN_ROWS])
    assert left < 0.03 * len(each)


def test_a_point_by_compiled_code_is_bit_for_bit_that_by_the_interpreter():
    rows = [row for row, expected in designs()[::20] if expected["error"] is None and expected["feasible"]]
    left = 0
    for row in rows:
        quick, interpreted = adapter.evaluate_quick(row)
        left += quick is None
        assert quick in (None, interpreted), asked(row)
        assert quick is None or {name: type(value) for name, value in quick.items()} == {
            name: type(value) for name, value in interpreted.items()
        }, asked(row)
    assert left < 0.05 * len(rows)


def test_the_table_has_every_result_and_input_and_all_that_there_is_by_name():
    rows, known = designs(), adapter.names()
    fits = [(row, result) for row, result in rows if result["feasible"]]
    assert len(rows) == 5000
    # results, fields and names that came later have tests of their own
    results = sorted(rows[0][1].keys() - {"error"})
    assert set(results) <= set(adapter.result_names())
    fields = sorted(rows[0][0].keys() - set(adapter.INPUTS))
    assert set(fields) <= set(known["workload"])
    assert sum(result["error"] is not None for _, result in rows) <= 0.10 * len(rows)
    assert sum(result["feasible"] is False for _, result in rows) <= 0.20 * len(rows)

    def base(text):
        return text.partition(":")[0]

    # each occurs often where something fits, so that its times are in the table
    counted = {
        "devices": [base(row["device"]) for row, _ in fits],
        "models": [row["model"] for row, _ in fits],
        "quantizers": [base(row[side]) for row, _ in fits for side in ("key_quantizer", "value_quantizer")],
        "tokens": [base(row["tokens"]) for row, _ in fits],
        "stacks": [f"{base(row['device'])} {result['stack']}" for row, result in fits],
    }
    often = {kind: sum(names.count(name) >= 25 for name in known[kind]) for kind, names in counted.items()}
    assert often == {"devices": 13, "models": 15, "quantizers": 13, "tokens": 7, "stacks": 19}
    constant = {name for name in results if len({result[name] for _, result in rows} - {None}) <= 1}
    assert constant == SINGLE, "results that have one value only"
    for name in ("key_quantizer", "value_quantizer"):
        assert sum(row[name].startswith("plan:") for row, _ in fits) > 100
    for name in fields:
        assert len({row[name] for row, _ in fits}) > 1, f"{name} is never varied"
    assert sum(result["kv_bytes"] > 2**53 for _, result in fits) > 25
    assert any(result["kv_bytes"] > 2**63 for _, result in rows if result["kv_bytes"])


#: words of outputs, as they were and as they are: a heading that was respelled, a question that has another name
RENAMED = {"Dequantisation": "Dequantization", r"\"question\": \"sensitivity\"": r"\"question\": \"doubt\""}
#: labels of a point's lines, as they were and as they are
LABELS = {
    "longest context, all requests at once": "longest context at this batch",
    "decode step (mean): time per token": "decode step, mean",
    "prefill": "prefill of the running batch",
    "time to first token, no queue": "time to first token (TTFT), no queue",
    "prompt of a running batch": "prefill of the running batch",
}


@lru_cache(maxsize=1)
def stored():
    """What commands printed and wrote, by group, and the numbers of explanations."""
    with pa.input_stream(str(adapter.GOLDEN / "commands.json.zst")) as packed:
        text = io.TextIOWrapper(packed, encoding="utf-8").read()
    lines = {present.line(old, ""): present.line(new, "") for old, new in LABELS.items()}
    for old, new in {**RENAMED, **lines}.items():
        text = text.replace(old, new)
    return json.loads(text)


def tolerance_of(text, name=""):
    """As tight as the ideal model's, but where kernels are calibrated or measured data are summed."""
    loose = name in ("measuring", "papers") or "calibrated" in text
    return TOLERANCE["calibrated" if loose else "ideal"]


def different(expected, actual, tolerance, at="output"):
    """Where two documents differ, each place as a line; what is new beside what was there does not count."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        missing = [f"  {at}.{key}: is missing" for key in expected.keys() - actual.keys()]
        both = [key for key in expected if key in actual]
        return missing + [d for key in both for d in different(expected[key], actual[key], tolerance, f"{at}.{key}")]
    if (
        isinstance(expected, list)
        and isinstance(actual, list)
        and all(isinstance(row, dict) and "name" in row for row in [*expected, *actual])
    ):
        # a server's memory is tested against start-up logs (tests/model/test_server_memory.py)
        expected, actual = ([row for row in rows if row["name"][:7] != "server."] for rows in (expected, actual))
        names = {row.get("name") for row in expected if isinstance(row, dict)}
        if len(names) == len(expected):  # of `dse list`: what came later stands between
            actual = [row for row in actual if row["name"] in names]
        actual = actual[: len(expected)]  # rows of `dse show` that came later stand below
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        return [
            d
            for i, pair in enumerate(zip(expected, actual, strict=True))
            for d in different(*pair, tolerance, f"{at}[{i}]")
        ]
    if same(expected, actual, tolerance) or same_simulation(expected, actual):
        return []
    return [f"  {at}: {str(expected)[:200]!r} expected, {str(actual)[:200]!r} found"]


def same_simulation(expected, actual):
    """The sentence on a simulation of mixed lengths, whose numbers hang on what plans kept before: its words, and each
    number within a tenth; that its relation holds is tested with the claims."""
    if not (isinstance(expected, str) and expected.startswith("P99 between tokens") and isinstance(actual, str)):
        return False
    numbers = zip(NUMBER.findall(expected), NUMBER.findall(actual), strict=False)
    words = NUMBER.split(expected) == NUMBER.split(actual)
    return words and all(float(x) == pytest.approx(float(y), abs=0.11) for x, y in numbers)


NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.])")


def different_text(expected, actual, tolerance, at="output"):
    """The same of two texts: JSON by its places, others by lines, whose words are equal and whose numbers are close."""
    if expected == actual:
        return []
    if expected[:1] in ("{", "[") and actual[:1] in ("{", "["):
        return different(json.loads(expected), json.loads(actual), tolerance, at)
    if at.endswith(".csv"):
        old, new = (pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False) for text in (expected, actual))
        return (
            []
            if len(old) == len(new) == 0
            else different(
                *({name: [read_cell(cell) for cell in table[name]] for name in table} for table in (old, new)),
                tolerance,
                at,
            )
        )
    old, new = expected.splitlines(), actual.splitlines()
    if len(old) != len(new):
        return [f"  {at}: {len(old)} lines expected, {len(new)} found"]
    return [
        f"  {at}, line {i}:\n    {a[:400]} expected\n    {b[:400]} found"
        for i, (a, b) in enumerate(zip(old, new, strict=True), 1)
        if a != b
        and not (
            NUMBER.split(a) == NUMBER.split(b)
            and all(
                same(read(x), read(y), tolerance) for x, y in zip(NUMBER.findall(a), NUMBER.findall(b), strict=True)
            )
        )
    ]


def read_cell(text):
    """A number, or a text."""
    return read(text) if NUMBER.fullmatch(text) else text


def read(number):
    """A number in a text: whole, or a float."""
    return int(number) if number.lstrip("-").isdigit() else float(number)


def shown(found, total):
    """The first of what differs, for the message of a failure."""
    cut = [lines[: SHOWN_RESULTS + 1] for lines in found[:SHOWN_ROWS]]
    return f"{len(found)} of {total} differ\n" + "\n".join("\n".join(lines) for lines in cut)


@pytest.mark.parametrize("name", commands.GROUPS)
def test_commands_print_and_write_what_they_did(name, tmp_path):
    expected, found = stored()["groups"][name], []
    actual = commands.run_group(name, tmp_path)
    assert [one["argv"] for one in actual] == [one["argv"] for one in expected]
    for old, new in zip(expected, actual, strict=True):
        lines = different_text(old["output"], new["output"], tolerance_of(old["output"], name))
        # of a file that numpy has just written, whose bytes are not the same under every release of Python
        lines = [line for line in lines if "output.data.sha256" not in line]
        # files that came later are tested where they are made
        lines += [f"  {path}: is not written" for path in old["files"].keys() - new["files"].keys()]
        for path in old["files"].keys() & new["files"].keys():
            text = old["files"][path]
            lines += different_text(text, new["files"][path], tolerance_of(text, name), path)
        if lines:
            found.append(["dse " + " ".join(old["argv"]), *lines])
    assert not found, shown(found, len(expected))


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def missing(expected, actual, tolerance):
    """The numbers of an explanation that are no longer among those of today's; its first, the result, stays first."""
    if isinstance(expected, str):
        return [] if expected == actual else [expected]
    numbers = np.array(sorted(float(value) for value in actual if is_number(value)) or [np.nan])
    gone = [] if same(expected[0], actual[0], tolerance) else expected[:1]
    for value in {value for value in expected if is_number(value)}:
        at = np.searchsorted(numbers, value)
        near = numbers[max(at - 1, 0) : at + 1]
        if not any(same(float(value), float(one), tolerance) for one in near):
            gone.append(value)
    return gone


@quick_first(1, "part", range(4))
def test_explanations_show_every_number_that_they_did(part):
    """Numbers equal, words free: whatever order and kind (whole or not) they have now, and what else is shown."""
    found, each = [], list(zip(stored()["explained"], commands.EXPLAINED, strict=True))[part::4]
    for old, argv in each:
        assert old["argv"] == argv
        numbers = old["numbers"]
        tolerance = TOLERANCE["calibrated" if "calibrated" in numbers["model_kind"] else "ideal"]
        actual = commands.explained(argv)
        assert numbers.keys() <= actual.keys()
        lines = [
            f"  {name}: {', '.join(map(repr, gone))} not shown"
            for name in numbers
            if (gone := missing(numbers[name], actual[name], tolerance))
        ]
        if lines:
            found.append(["dse " + " ".join(argv), *lines])
    assert not found, shown(found, len(each))


def test_two_hundred_commands_are_stored_and_thirty_tables_of_figures():
    groups = stored()["groups"]
    each = [one for group in groups.values() for one in group]
    assert sum(one["output"][:1] in ("{", "[") for one in each) >= 175
    assert sum(not one["output"].startswith("exit status") for one in each) >= 200
    figures = [path for one in each if one["argv"][0] == "plot" for path in one["files"]]
    assert len(figures) >= 30
    names = (
        "point ask simulate traffic ring list show check predict sweep pareto synthesize thresholds quantize mix lab"
    )
    assert {one["argv"][0] for one in each} >= {*names.split(), "plot", "validate"}
    assert len(stored()["explained"]) == 20
    assert all(set(one["numbers"]) <= set(adapter.result_names()) for one in stored()["explained"])


def test_the_golden_files_are_at_most_2_mb():
    tables = [adapter.GOLDEN / "designs.parquet", adapter.GOLDEN / "commands.json.zst"]
    files = [*tables, *(path for path in (adapter.GOLDEN / "inputs").rglob("*") if path.is_file())]
    assert sum(path.stat().st_size for path in files) <= 2_000_000
