"""Sweeps that keep a front: what they store is the front of the whole table, however the run went."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dse
from cases import each
from dse.core.errors import InputError
from dse.figures.export import front as report_front
from dse.model import engine
from dse.model.results import INTEGERS, RESULT_UNITS
from dse.sweep import columns as sweep_columns
from dse.sweep import compiled as sweep_fast
from dse.sweep import count as sweep_count
from dse.sweep import grid as sweep_digits
from dse.sweep import pareto, sweeps
from dse.sweep import points as sweep_points
from dse.sweep import run as sweep_run
from dse.sweep import sift as sweep_sift
from dse.sweep import spec as sweep_spec
from dse.sweep import store as sweep_store
from dse.sweep.pareto import designs as pareto_designs
from dse.sweep.pareto import limits as pareto_limits

SPEC = {
    "axes": {
        "device": ["a100-80gb", "h100"],
        "model": ["llama2-7b", "llama2-13b"],
        "quantizer": ["fp16", "oaken", "kivi"],
        "oaken.outer": [0.0, 0.05, 0.1],
        "input_tokens": [512, 1024, 4096],
        "batch": {"from": 1, "to": 20, "step": 1},
    },
    "where": ["batch * input_tokens <= 32768", "input_tokens < 4096 or device == 'h100'"],
    "keep": ["throughput_tokens_per_s", "joules_per_token", "kv_bytes", "bound"],
}
WANTED = {"maximize": ["throughput_tokens_per_s"], "minimize": ["kv_bytes", "joules_per_token"]}
OBJECTIVES = {"throughput_tokens_per_s": "max", "kv_bytes": "min", "joules_per_token": "min"}


def scattered(found, digits, check=None):
    """Results with many ties, groups and holes, which depend on the point alone and cost nothing."""
    total = sum((7 * i + 3) * (digits[axis.name].astype(np.int64) + 1) ** 2 for i, axis in enumerate(found.axes))
    codes = (total % 5 == 0).astype(np.int8)
    columns = {"feasible": codes == 0, "infeasible_code": codes, "runs": codes < 2}
    for name in found.keep:
        # the same numbers whichever other columns are kept
        seed = sum(map(ord, name))
        if name in INTEGERS:
            columns[name] = np.where(codes, sweep_columns.MISSING, total * seed % 11)
        elif RESULT_UNITS[name]:
            columns[name] = np.where(codes, np.nan, (total * seed % 13) / 4)
        else:
            columns[name] = sweep_points.Names((total % 4).astype(np.int32) - 1, ("bandwidth", "compute", "latency"))
    return columns


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(sweep_spec, "MIN_PART_POINTS", 64)
    monkeypatch.setattr(sweep_run, "MANIFEST_S", 0.0)
    monkeypatch.setattr(sweep_points, "evaluate_points", scattered)
    monkeypatch.setattr(sweep_sift, "sifted", lambda *points: None)
    return sweep_spec.from_dict(SPEC)


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def naive_front(table, objectives, by):
    """Places of the rows that no other feasible row of the same group beats, compared pair by pair."""
    signs = np.array([1.0 if sense == "min" else -1.0 for sense in objectives.values()])
    values = table[list(objectives)].to_numpy(dtype=float) * signs
    groups = list(zip(*(table[name].astype(object) for name in by), strict=True)) if by else [()] * len(table)
    found = []
    for i in np.flatnonzero(table["feasible"]):
        rivals = [j for j in np.flatnonzero(table["feasible"]) if groups[j] == groups[i] or groups[j] is groups[i]]
        if not any((values[j] <= values[i]).all() and (values[j] < values[i]).any() for j in rivals):
            found.append(i)
    return np.array(found, dtype=np.int64)


@pytest.mark.parametrize("by", [[], ["model"], ["quantizer", "device"]])
def test_the_front_is_that_of_the_whole_table(small, tmp_path, by):
    table = dse.sweep(small)
    done = dse.sweep(small, tmp_path / "front", threads=2, keep="front", by=by, **WANTED)
    places = naive_front(table, OBJECTIVES, by)
    expected = table.iloc[places].reset_index(drop=True)
    found = done.read()
    assert 0 < len(expected) < len(table)
    pd.testing.assert_frame_equal(
        found.drop(columns="point").astype({"bound": object}),
        expected.astype({"bound": object}),
        check_exact=True,
        check_categorical=False,
    )
    again = sweeps.rows(small, found["point"].tolist())
    pd.testing.assert_frame_equal(again, found.drop(columns="point"), check_exact=True, check_categorical=False)
    assert sum(done.manifest.codes) == len(table)
    assert done.manifest.codes[0] == table["feasible"].sum()
    assert pd.read_parquet(tmp_path / "front").equals(pq.read_table(tmp_path / "front" / "front.parquet").to_pandas())


@pytest.mark.parametrize("place", [-1, 10**6, 1.5, 2.0, True, "1", "x", None, float("nan"), [1]])
def test_places_that_the_grid_has_not(small, place):
    with pytest.raises(InputError, match=r"^point = .*: must be a whole number from 0 to [0-9,]+$"):
        sweeps.rows(small, [0, place])


@pytest.mark.parametrize("points", [1, "12", None])
def test_places_are_a_list(small, points):
    with pytest.raises(InputError, match=r"^points = .*: must be a list of whole numbers"):
        sweeps.rows(small, points)


def test_places_may_be_numpy_numbers(small):
    table = sweeps.rows(small, np.array([3, 0], np.uint8))
    pd.testing.assert_frame_equal(table, sweeps.rows(small, [3, 0]))


def test_pareto_of_a_kept_front_is_that_of_all_rows(small, tmp_path):
    dse.sweep(small, tmp_path / "all")
    dse.sweep(small, tmp_path / "front", keep="front", by=["model", "device"], **WANTED)
    for by in ([], ["model"], ["device", "model"]):
        whole = pareto_designs.of_file(tmp_path / "all", OBJECTIVES, by)
        kept = pareto_designs.of_file(tmp_path / "front", OBJECTIVES, by)
        pd.testing.assert_frame_equal(kept.table, whole.table, check_exact=True, check_dtype=False)
        assert (kept.n_rows, kept.n_feasible, kept.design) == (whole.n_rows, whole.n_feasible, whole.design)
        assert kept.knee.tolist() == whole.knee.tolist()
    for objectives, by in (
        ({"throughput_tokens_per_s": "max"}, []),
        ({**OBJECTIVES, "kv_bytes": "max"}, []),
        (OBJECTIVES, ["quantizer"]),
    ):
        with pytest.raises(InputError, match=r"keeps the front of .* alone: ask for it"):
            pareto_designs.of_file(tmp_path / "front", objectives, by)


@pytest.mark.slow
def test_same_bytes_however_it_runs(small, tmp_path, monkeypatch):
    asked = {"keep": "front", "by": ["model"], **WANTED}
    dse.sweep(small, tmp_path / "one", threads=1, **asked)
    whole = contents(tmp_path / "one")
    for threads, block in ((2, 3), (4, 1000)):
        monkeypatch.setattr(sweep_points, "BLOCK_POINTS", block)
        dse.sweep(small, tmp_path / f"t{threads}", threads=threads, **asked)
        assert contents(tmp_path / f"t{threads}") == whole
    parts = sorted(name for name in whole if name.endswith(".parquet"))
    assert len(parts) > 3
    for name in {*whole} - {".lock", *parts[1:-1]}:
        folder = tmp_path / f"without {name}"
        folder.mkdir()
        for other, content in whole.items():
            if other != name:
                (folder / other).write_bytes(content)
        if name == "_spec.json":
            (folder / "_manifest.json").unlink()  # all lost but files of no known origin
            with pytest.raises(InputError, match="holds files such as"):
                dse.sweep(small, folder, **asked)
            continue
        if name != "_manifest.json":
            assert sweep_store.verify(folder)[1]
        dse.sweep(small, folder, **asked)
        left = {n: c for n, c in contents(folder).items() if not n.endswith(".bad")}
        assert left == whole


LIMITS = {"at_most": ["batch=16", "effective_bits=2.5"], "at_least": ["joules_per_token=0.5"]}


def within_limits(table):
    """Rows within LIMITS, compared by hand; a missing number is beyond."""
    inside = (table["batch"] <= 16) & (table["effective_bits"] <= 2.5) & (table["joules_per_token"] >= 0.5)
    return table["feasible"] & inside.fillna(False).astype(bool)


def test_a_front_within_limits(small, tmp_path, monkeypatch):
    """The front of the rows within: a limit on an axis, on a column that is not kept, and on the wrong side."""
    table = dse.sweep(sweep_spec.from_dict({**SPEC, "keep": [*SPEC["keep"], "effective_bits"]}))
    inside = within_limits(table)
    places = naive_front(table.assign(feasible=inside), OBJECTIVES, ["model"])
    asked = {"keep": "front", "by": ["model"], **WANTED, **LIMITS}
    done = dse.sweep(small, tmp_path / "one", threads=1, **asked)
    expected = table.iloc[places].reset_index(drop=True)
    pd.testing.assert_frame_equal(
        done.read()[[*expected]].astype({"bound": object}),
        expected.astype({"bound": object}),
        check_exact=True,
        check_categorical=False,
    )
    n_beyond = int(table["feasible"].sum() - inside.sum())
    assert 0 < len(expected) < inside.sum() < table["feasible"].sum()
    assert sum(part.n_beyond for part in done.manifest.parts.values()) == n_beyond
    assert {tuple(limit) for limit in done.front["limits"]} == {
        ("batch", "at most", 16.0),
        ("effective_bits", "at most", 2.5),
        ("joules_per_token", "at least", 0.5),
    }
    # the same bytes for other threads, blocks and order of the limits, and where parts were lost
    whole = contents(tmp_path / "one")
    monkeypatch.setattr(sweep_points, "BLOCK_POINTS", 3)
    other_order = {**asked, "at_most": LIMITS["at_most"][::-1]}
    dse.sweep(small, tmp_path / "two", threads=3, **other_order)
    assert contents(tmp_path / "two") == whole
    for name in ("_front-000003.parquet", "front.parquet", "_manifest.json"):
        (tmp_path / "two" / name).unlink()
        dse.sweep(small, tmp_path / "two", **asked)
        assert contents(tmp_path / "two") == whole
    with pytest.raises(InputError, match="holds another sweep"):
        dse.sweep(small, tmp_path / "two", keep="front", by=["model"], **WANTED)


def test_pareto_of_a_front_within_limits(small, tmp_path):
    keep = [*SPEC["keep"], "effective_bits"]
    dse.sweep(sweep_spec.from_dict({**SPEC, "keep": keep}), tmp_path / "all")
    dse.sweep(small, tmp_path / "front", keep="front", by=["model"], **WANTED, **LIMITS)
    limits = pareto_limits.parse(**LIMITS)
    closer = pareto_limits.parse(["kv_bytes=5"])  # an objective's own better side
    for more in ((), closer):
        asked = (OBJECTIVES, ["model"], False, (*limits, *more))
        whole, kept = (pareto_designs.of_file(tmp_path / name, *asked) for name in ("all", "front"))
        pd.testing.assert_frame_equal(kept.table[[*whole.table]], whole.table, check_exact=True, check_dtype=False)
        assert (kept.n_rows, kept.n_feasible) == (whole.n_rows, whole.n_feasible)
        assert kept.knee.tolist() == whole.knee.tolist()
        assert len(kept.table) > 0
        assert (kept.n_beyond is None) == bool(more)  # of those not stored nobody knows
        assert ("beyond the limits" in report_front.text(kept)) == (not more)
    n_beyond = pareto_designs.of_file(tmp_path / "all", OBJECTIVES, ["model"], limits=limits).n_beyond
    assert pareto_designs.of_file(tmp_path / "front", OBJECTIVES, ["model"], limits=limits).n_beyond == n_beyond > 0
    for other in ((), limits[1:], pareto_limits.parse(["batch=17", "effective_bits=2.5"], ["joules_per_token=0.5"])):
        with pytest.raises(
            InputError, match=r"keeps the front of .* --at-most effective_bits=2\.5 .* alone: ask for it"
        ):
            pareto_designs.of_file(tmp_path / "front", OBJECTIVES, ["model"], limits=other)
    # neither of these says what is on the front of fewer designs
    for tighter in (["batch=8"], ["effective_bits=2"]):
        with pytest.raises(InputError, match=r"keeps the front of designs within .* alone, which does not tell"):
            pareto_designs.of_file(
                tmp_path / "front", OBJECTIVES, ["model"], limits=(*limits, *pareto_limits.parse(tighter))
            )


def test_limits_that_leave_nothing(small, tmp_path):
    done = dse.sweep(small, tmp_path / "out", keep="front", at_most=["batch=0"], **WANTED)
    assert done.n_rows == len(done.read()) == 0
    found = pareto_designs.of_file(tmp_path / "out", OBJECTIVES, limits=pareto_limits.parse(["batch=0"]))
    assert (len(found.table), found.n_beyond) == (0, found.n_feasible)


def test_a_directory_of_another_kind_is_refused(small, tmp_path):
    dse.sweep(small, tmp_path / "all")
    with pytest.raises(InputError, match="holds another sweep"):
        dse.sweep(small, tmp_path / "all", keep="front", **WANTED)


def test_missing_objectives_are_named_or_left_out(small, tmp_path, monkeypatch):
    def with_holes(found, digits, check=None):
        columns = scattered(found, digits)
        for name in found.keep:
            if name == "joules_per_token":
                columns[name][digits["batch"] == 1] = np.nan
        return columns

    monkeypatch.setattr(sweep_points, "evaluate_points", with_holes)
    with pytest.raises(InputError, match="joules_per_token is missing: leave such points out with --drop-missing"):
        dse.sweep(small, tmp_path / "a", keep="front", **WANTED)
    assert not (tmp_path / "a" / "front.parquet").exists()
    done = dse.sweep(small, tmp_path / "b", keep="front", drop_missing=True, **WANTED)
    dse.sweep(small, tmp_path / "all")
    whole = pareto_designs.of_file(tmp_path / "all", OBJECTIVES, drop_missing=True)
    kept = pareto_designs.of_file(tmp_path / "b", OBJECTIVES)
    pd.testing.assert_frame_equal(kept.table, whole.table, check_exact=True, check_dtype=False)
    assert kept.n_missing == whole.n_missing > 0
    assert done.n_rows == len(whole.table)


@pytest.mark.parametrize(("energy", "n_missing"), [([1.0, np.nan, 3.0, 4.0], 2), ([1.0, 2.0, 3.0, 4.0], 1)])
def test_points_without_one_objective_or_the_other_are_left_out_and_counted(
    run, tmp_path, monkeypatch, energy, n_missing
):
    """Batches of 1, 2, 4 and 8: of the first the throughput is missing, of the second the energy or nothing is."""
    columns = {"throughput_tokens_per_s": np.array([np.nan, 2.0, 3.0, 4.0]), "joules_per_token": np.array(energy)}

    def with_holes(found, digits, check=None):
        n = len(digits["batch"])
        codes = {"feasible": np.ones(n, bool), "infeasible_code": np.zeros(n, np.int8), "runs": np.ones(n, bool)}
        return codes | {name: columns[name][digits["batch"]] for name in found.keep}

    monkeypatch.setattr(sweep_points, "evaluate_points", with_holes)
    axes = {"device": ["h100"], "model": ["llama2-7b"], "quantizer": ["fp16"], "batch": [1, 2, 4, 8]}
    (tmp_path / "spec.json").write_text(json.dumps({"axes": axes, "keep": list(columns)}))
    wanted = ["--maximize", "throughput_tokens_per_s", "--minimize", "joules_per_token", "--drop-missing"]
    status, out, err = run("sweep", tmp_path / "spec.json", "--out", tmp_path / "out", "--keep", "front", *wanted)
    assert (status, err) == (0, "")
    points = "1 point" if n_missing == 1 else f"{n_missing} points"
    assert f"\n  {points} left out: an objective is unknown" in out
    # what is faster takes more energy: no other is beaten
    assert pq.read_table(tmp_path / "out" / "front.parquet")["point"].to_pylist() == list(range(n_missing, 4))


@each(
    ("words", "text"),
    [
        ({}, "objectives: none given"),
        ({"maximize": ["throughput"]}, "unknown column 'throughput': did you mean"),
        ({"maximize": ["model"]}, "objective model: is not a column of numbers"),
        ({"minimize": ["bound"]}, "objective bound: is not a column of numbers"),
        ({"maximize": ["batch"], "minimize": ["batch"]}, "is given twice"),
        ({"maximize": ["batch"], "by": ["colour"]}, "unknown column 'colour'"),
        ({"maximize": ["batch"], "at_most": ["error=1"]}, "unknown column 'error'"),
        ({"maximize": ["batch"], "at_most": ["model=1"]}, "limit model: is not a column of numbers"),
        ({"maximize": ["batch"], "at_least": ["bound=1"]}, "limit bound: is not a column of numbers"),
        ({"maximize": ["batch"], "at_least": ["batch"]}, "must be COLUMN=NUMBER"),
    ],
)
def test_objectives_that_are_refused(tmp_path, words, text):
    with pytest.raises(InputError, match=text):
        dse.sweep(SPEC, tmp_path / "out", keep="front", **words)
    assert not (tmp_path / "out").exists()


def test_the_command(small, tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    Path("spec.json").write_text(json.dumps(SPEC))
    wanted = ["--maximize", "throughput_tokens_per_s", "--minimize", "kv_bytes"]
    status, out, err = run("sweep", "spec.json", "--out", "out", "--keep", "front", *wanted)
    assert (status, err) == (0, "")
    n_rows = len(dse.sweep(small))
    assert re.search(rf"front: out/front.parquet \(\d+ of {n_rows} designs", out)
    assert run("sweep", "spec.json", "--out", "out", "--keep", "front", *wanted)[0] == 0
    assert run("sweep", "--verify", "out")[0] == 0
    assert run("pareto", "out", *wanted)[1].startswith(f"front: {pq.read_table('out/front.parquet').num_rows} of ")
    for words in (wanted, ["--at-most", "batch=2"]):
        status, out, err = run("sweep", "spec.json", "--out", "new", *words)
        assert (status, len(err.splitlines())) == (2, 1)
    limits = ["--at-most", "batch=8", "--at-least", "input_tokens=1024"]
    status, out, err = run("sweep", "spec.json", "--out", "few", "--keep", "front", *wanted, *limits)
    assert (status, err) == (0, "")
    assert "; within batch <= 8, input_tokens >= 1024\n" in out
    assert re.search(r"\n  [\d,]+ points left out: beyond the limits", out)
    assert run("pareto", "few", *wanted, *limits)[0] == 0
    assert run("pareto", "few", *wanted)[0] == 2
    Path("out/front.parquet").write_bytes(b"")
    assert run("sweep", "--verify", "out")[0] == 4
    assert run("sweep", "spec.json", "--out", "out", "--keep", "front", *wanted)[0] == 0
    assert run("sweep", "--verify", "out")[0] == 0


def grids(lengths_last):
    sizes = st.integers(1, 4)

    @st.composite
    def draw_axes(draw):
        axes = {
            "device": ["h100", "a100-80gb"][: draw(st.integers(1, 2))],
            "quantizer": ["oaken", "fp16", "kivi"][: draw(st.integers(1, 3))],
            "input_tokens": [64 * i for i in range(1, draw(sizes) + 1)],
            "output_tokens": [16 * i for i in range(1, draw(sizes) + 1)],
            "batch": list(range(1, draw(sizes) + 1)),
            "model": ["llama2-7b"],
        }
        names = draw(st.permutations(list(axes)))
        if lengths_last:
            names = sorted(names, key=lambda name: name == "batch")
        where = draw(
            st.sampled_from(
                [
                    [],
                    ["batch > 2"],
                    ["device == 'h100'"],
                    ["batch * 64 >= input_tokens"],
                    ["quantizer != 'oaken'", "output_tokens > 16"],
                    ["batch > 100"],
                ]
            )
        )
        return sweep_spec.from_dict({"axes": {name: axes[name] for name in names}, "where": where})

    return draw_axes()


@given(st.booleans().flatmap(grids), st.data())
def test_points_in_runs_are_those_of_the_grid(found, data):
    first = data.draw(st.integers(0, found.n_points))
    last = data.draw(st.integers(first, found.n_points))
    digits, points = sweep_digits.kept(found, first, last)
    plain = sweep_digits.decode_places(found, np.arange(first, last))
    keep = np.ones(last - first, bool)
    for condition in found.where:
        keep &= condition.keep(plain)
    assert points.tolist() == [first + i for i in np.flatnonzero(keep)]
    assert {name: digits[name].tolist() for name in digits} == {name: plain[name][keep].tolist() for name in plain}
    assert sweep_count.rows_left(found) == (sum(1 for _ in sweep_digits.kept(found, 0, found.n_points)[1]), True)


@each(
    ("changes", "where", "words"),
    [
        ({}, [], {}),
        ({"model_kind": "calibrated"}, [], {"by": ["model", "input_tokens"]}),
        ({}, [], {"maximize": ["batch", "memory_bandwidth"], "minimize": ["kv_bytes", "joules_per_token"]}),
        ({}, [], {"by": ["batch"]}),
        ({}, ["batch % 3 == 1", "input_tokens < 4000 or batch < 20"], {"at_most": ["batch=30", "max_batch=100"]}),
        ({"batch": [4], "output_tokens": [1, 5, 90]}, [], {"at_least": ["effective_bits=3"]}),
    ],
)
def test_fronts_of_sifted_points_have_the_bytes_of_fronts_of_all(tmp_path, monkeypatch, changes, where, words):
    """Compiled code drops what a few rivals beat; here they are looked for in every stretch, however short."""
    axes = {
        "device": ["h100", "a100-80gb"],
        "model": ["llama2-7b", "mixtral-8x7b-oaken"],
        "quantizer": ["fp16", "kivi"],
        "input_tokens": [128, 4000],
        "memory_bandwidth": [1e12, 3e12],
        "batch": {"from": 1, "to": 600, "step": 13},
    }
    found = {"axes": {**axes, **changes}, "where": where}
    asked = {"maximize": ["throughput_tokens_per_s"], "minimize": ["decode_step_s"], **words}
    monkeypatch.setattr(engine, "COMPILED_POINTS", 1)
    monkeypatch.setattr(sweep_sift, "FEW_POINTS", 64)
    dse.sweep(found, tmp_path / "sifted", keep="front", **asked)
    monkeypatch.setattr(sweep_sift, "sifted", lambda *points: None)
    dse.sweep(found, tmp_path / "all", keep="front", **asked)
    assert contents(tmp_path / "sifted") == contents(tmp_path / "all")


def test_columns_in_runs_have_the_same_bits():
    spec = {**SPEC, "axes": {**SPEC["axes"], "model_kind": "ideal", "output_tokens": [1, 64, 128]}, "keep": "all"}
    order = ["device", "model", "quantizer", "oaken.outer", "model_kind", "output_tokens", "input_tokens", "batch"]
    found = sweep_spec.from_dict({**spec, "axes": {n: spec["axes"][n] for n in order}})
    digits, _ = sweep_digits.kept(found, 100, 1500)
    assert isinstance(digits, sweep_digits.Runs)
    assert set(found.keep) == set(RESULT_UNITS) - set(spec["axes"]) - set(sweep_spec.ALWAYS)
    (in_runs, left), (plain, left_alike) = sweep_fast.evaluate(found, digits), sweep_fast.evaluate(found, dict(digits))
    assert np.array_equal(left, left_alike)
    for name, column in plain.items():
        if isinstance(column, sweep_points.Names):
            assert np.array_equal(in_runs[name].normal().codes, column.normal().codes), name
            assert in_runs[name].normal().names == column.normal().names
        else:
            assert in_runs[name].tobytes() == column.tobytes(), name


def test_rows_left_of_many_combinations_are_estimated(monkeypatch):
    spec = {
        "axes": {
            "device": "h100",
            "model": "llama2-7b",
            "input_tokens": {"from": 1, "to": 2000, "step": 1},
            "batch": {"from": 1, "to": 2000, "step": 1},
            "output_tokens": [1, 2, 3],
        },
        "where": ["batch <= 500 and input_tokens > 1000"],
    }
    found = sweep_spec.from_dict(spec)
    # 3 x 1000 x 500
    n, is_exact = sweep_count.rows_left(found)
    assert not is_exact
    assert n == pytest.approx(1_500_000, rel=0.1)
    monkeypatch.setattr(sweep_count, "MAX_LOOKED_AT", 2**22)
    assert sweep_count.rows_left(found) == (1_500_000, True)


def test_other_sources_do_not_finish_a_sweep(small, tmp_path, monkeypatch):
    dse.sweep(small, tmp_path / "out")
    monkeypatch.setattr(sweep_store, "code_sha256", lambda: "other")
    with pytest.raises(InputError, match="begun with other sources of dse"):
        dse.sweep(small, tmp_path / "out")


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40), st.integers(1, 10))
def test_rejection_on_one_thread_finds_the_same(rows, times):
    table = np.repeat(np.array(rows, dtype=float), times, axis=0)
    columns = [np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])]
    for signs in itertools.product((1.0, -1.0), repeat=2):
        assert np.array_equal(pareto.front_rows(columns, signs, alone=True), pareto.front_rows(columns, signs))


def test_rejection_of_many_rows_on_one_thread():
    rng = np.random.default_rng(6)
    columns = [rng.random(150_000) for _ in range(3)]
    found = pareto.front_rows(columns, [1.0, -1.0, 1.0], alone=True)
    assert np.array_equal(found, pareto.front_rows(columns, [1.0, -1.0, 1.0]))
    assert 10 < len(found) < 5000


def test_columns_that_may_not_be_written():
    rng = np.random.default_rng(7)
    columns = [rng.random(120_000) for _ in range(2)]
    expected = pareto.front_rows(columns, [1.0, 1.0])
    columns[0].flags.writeable = False
    assert np.array_equal(pareto.front_rows(columns, [1.0, 1.0]), expected)
