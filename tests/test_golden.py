"""Golden tables: today's numbers are those that were stored last; one that changes is a new table in its commit.

Whole numbers, names and texts are equal; floats agree to 1e-12 at peak rates and to 1e-9 where kernels are calibrated
or estimated. `python tests/golden/make.py --diff` says by result what changed.
"""

import io
import json
import re
from functools import lru_cache

import numpy as np
import pandas as pd
import pytest

from cases import quick_first
from dse.model.engine import compiled_results, evaluate
from dse.model.results import RESULT_UNITS
from golden import commands, designs, tables
from golden.tables import CALIBRATED, IDEAL, Row, asked_text, same

#: designs come in so many tests, so that processes share them
N_PARTS = 10
#: rows that a failure shows, and differences of a row
SHOWN_ROWS, SHOWN_RESULTS = 4, 12
SAY = "`python tests/golden/make.py --diff` says what changed; where it is meant to, record it and say why"
#: the stored tables with the size of each
STORED = {tables.DESIGNS: designs.N_DESIGNS, tables.PAPERS: designs.N_PAPERS}


@lru_cache(maxsize=1)
def rows():
    """The designs of both tables with their results."""
    return [row for path in STORED for row in tables.read(path)]


def wrong(row, actual):
    """Results that differ, each as a line."""
    return [
        f"  {name}: {value!r} expected, {actual.get(name)!r} found"
        for name, value in row.results.items()
        if not same(value, actual.get(name), row.tolerance)
    ]


@quick_first(1, "part", range(N_PARTS))
def test_every_result_of_a_design_is_as_it_was(part):
    found, each = [], rows()[part::N_PARTS]
    for row in each:
        if lines := wrong(row, designs.evaluated(row.design)):
            more = [f"  and {len(lines) - SHOWN_RESULTS} more"] if len(lines) > SHOWN_RESULTS else []
            found.append([asked_text(row.design), *lines[:SHOWN_RESULTS], *more])
    assert not found, shown(found, len(each))


def test_compiled_code_gives_every_design_the_numbers_of_the_table():
    """All in one call. What it leaves to the interpreter, as whole numbers might not fit int64, is below 3 %."""
    left, found, each = 0, [], rows()
    for row, actual in zip(each, designs.compiled([row.design for row in each]), strict=True):
        if "error" in row.results:  # refused as it is read, or left and refused then
            assert actual in (None, row.results), asked_text(row.design)
        elif actual is None:
            left += 1
        elif lines := wrong(Row(row.design, {n: row.results[n] for n in actual} | _kind(row)), actual | _kind(row)):
            found.append([asked_text(row.design), *lines])
    assert not found, shown(found, len(each))
    assert left < 0.03 * len(each)


def _kind(row):
    return {"model_kind": row.results["model_kind"]}


def test_a_point_by_compiled_code_is_bit_for_bit_that_by_the_interpreter():
    each, left = [row.design for row in rows()[::20] if row.results.get("feasible")], 0
    for design in each:
        point = designs.inside(design)
        quick, interpreted = compiled_results(point), evaluate(point)
        left += quick is None
        assert quick in (None, interpreted), asked_text(design)
        assert quick is None or {name: type(value) for name, value in quick.items()} == {
            name: type(value) for name, value in interpreted.items()
        }, asked_text(design)
    assert left < 0.05 * len(each)


def test_the_tables_have_every_result_and_every_input_in_many_values():
    for path, n in STORED.items():
        each = tables.read(path)
        assert len(each) == n
        assert sum("error" in row.results for row in each) <= designs.MAX_REFUSED * n
        assert sum(row.results.get("feasible") is False for row in each) <= designs.MAX_INFEASIBLE * n
    each = tables.read(tables.DESIGNS)
    fits = [row for row in each if row.results.get("feasible")]
    assert set(fits[0].results) == set(RESULT_UNITS)
    constant = [name for name in RESULT_UNITS if len({row.results.get(name) for row in each} - {None}) <= 1]
    # of devices whose energy is measured and whose kernels are not: tests/model/test_energy.py
    assert constant == ["power_s"], "results that have one value only"
    for name in designs.FIELDS:
        assert sum(name in row.design for row in fits) > 20, f"{name} is hardly ever varied"
    # each occurs where something fits, so that its times are in the table; of what came after the draw few do
    with commands.as_recorded(stored()["groups"]):
        known = designs.known.__wrapped__()
    for kind, names in known.items():
        sides = ("key_quantizer", "value_quantizer") if kind == "quantizer" else (kind,)
        said = [str(row.design.get(side)) for row in fits for side in sides]
        found = {text if kind == "model" else text.partition(":")[0] for text in said}
        assert len(set(names) - found - {"full"}) <= 0.05 * len(names), sorted(set(names) - found)
    assert sum(row.design["key_quantizer"].startswith("plan:") for row in fits) > 20
    assert sum(row.results["kv_bytes"] > 2**53 for row in fits) > 5
    assert all(row.results["memory"] == "paper" and row.results["model_kind"] == "ideal" for row in papers_that_fit())


def papers_that_fit():
    return [row for row in tables.read(tables.PAPERS) if row.results.get("feasible")]


def test_a_difference_says_which_results_changed_and_how_far():
    before = [
        Row({"device": "a"}, {"step_s": 1.0, "bound": "bandwidth", "model_kind": "ideal"}),
        Row({"device": "b"}, {"step_s": 2.0, "bound": "compute", "model_kind": "ideal"}),
        Row({"device": "c"}, {"error": "no such device"}),
    ]
    after = [
        Row({"device": "a"}, {"step_s": 1.5, "bound": "bandwidth", "model_kind": "ideal"}),
        Row({"device": "b"}, {"step_s": 2.0 + 1e-13, "bound": "latency", "model_kind": "ideal"}),
        Row({"device": "c"}, {"error": "no device"}),
    ]
    assert list(tables.difference(before, before)) == ["0 of 3 designs changed"]
    assert list(tables.difference(before, after)) == [
        "3 of 3 designs changed",
        "  refusal: no such device -> no device",
        "      device=c",
        "  step_s: 1 designs, ratio 1.5 in the median; 1.5 either way in the median, 1.5 in the 90th percentile",
        "    1.0 -> 1.5: device=a",
        "  bound: 1 designs",
        "    'compute' -> 'latency': device=b",
    ]
    other = [Row({"device": "a"}, {"other_s": 1.0, "bound": "bandwidth", "model_kind": "ideal"})]
    assert list(tables.difference(before[:1], other))[1:] == ["  step_s: is no result any more", "  other_s: is new"]
    assert "drawn anew" in next(tables.difference(before, before[:1]))


def test_a_table_is_read_as_it_was_written(tmp_path):
    kept = [rows()[i] for i in (0, 1, 2, len(rows()) - 1)]
    tables.write(tmp_path / "some.parquet", kept)
    assert tables.read(tmp_path / "some.parquet") == kept


@lru_cache(maxsize=1)
def stored():
    """What commands printed and wrote, by group, and the numbers of explanations."""
    return commands.unpacked(commands.STORED.read_bytes())


def tolerance_of(text, name=""):
    """As tight as at peak rates, but where kernels are calibrated or estimated, or measured data are summed."""
    loose = name in ("measuring", "papers") or "calibrated" in text or "estimated" in text
    return CALIBRATED if loose else IDEAL


def different(expected, actual, tolerance, at="output"):
    """Where two documents differ, each place as a line; what is new beside what was there does not count."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        missing = [f"  {at}.{key}: is missing" for key in expected.keys() - actual.keys()]
        both = [key for key in expected if key in actual]
        return missing + [d for key in both for d in different(expected[key], actual[key], tolerance, f"{at}.{key}")]
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
    return f"{len(found)} of {total} differ: {SAY}\n" + "\n".join("\n".join(lines) for lines in cut)


@pytest.mark.parametrize("name", commands.GROUPS)
def test_commands_print_and_write_what_they_did(name, tmp_path):
    expected, found = stored()["groups"][name], []
    with commands.as_recorded(stored()["groups"]):
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
    found, each = [], stored()["explained"][part::4]
    for old in each:
        numbers, actual = old["numbers"], commands.explained(old["design"])
        tolerance = IDEAL if "ideal" in numbers["model_kind"] else CALIBRATED
        assert numbers.keys() <= actual.keys()
        lines = [
            f"  {name}: {', '.join(map(repr, gone))} not shown"
            for name in numbers
            if (gone := missing(numbers[name], actual[name], tolerance))
        ]
        if lines:
            found.append([asked_text(old["design"]), *lines])
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
    assert len(stored()["explained"]) == commands.N_EXPLAINED
    assert all(set(one["numbers"]) <= set(RESULT_UNITS) for one in stored()["explained"])


def test_the_golden_files_are_at_most_2_mb():
    files = [*STORED, commands.STORED, *(path for path in (designs.GOLDEN / "inputs").rglob("*") if path.is_file())]
    assert sum(path.stat().st_size for path in files) <= 2_000_000
