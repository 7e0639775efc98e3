"""Best trade-offs without a browser: the front is that of the commands, and one design is named."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import dse
from dse.cli import main
from dse.core import specfile
from dse.core.errors import DseError, InputError
from dse.explorer import common_fields, names, request, uploads
from dse.explorer.fields import problem_of, read
from dse.explorer.size import axis_texts, trade_offs
from dse.explorer.size.trade_offs import AT_MOST, FIELDS, MORE, asked_of, cached_table, with_rates
from dse.explorer.uploads import FileText
from dse.model import results
from dse.model.results import RESULT_UNITS
from dse.specs import catalog
from dse.sweep import spec
from explorer_page import opened, said, wrong

SMALL = {
    "front_devices": "oaken-lpddr;a100-80gb",
    "front_quantizers": "fp16;oaken",
    "front_batches": "16, 256",
    "model": "llama2-7b",
    "front_tps": "",
    "admission": "reserve",
    "output": "512",
    "model_kind": "ideal",
    "front_axes": "oaken.outer = 0.02, 0.04; weights_bits = 16, 8; tokens = full, h2o:heavy=0.2",
}
#: axes that the command line has too
PLAIN = {"front_x": "measured_error", "front_y": "throughput_tokens_per_s"}


def field_values(query):
    fields = (*common_fields.DESIGN, *common_fields.SCENARIO, *FIELDS)
    found = {field.key: field.default for field in fields}
    by_key = {field.key: field for field in fields}
    for key, value in query.items():
        found[key] = read(by_key[key], value, found)
    return found


@pytest.fixture(scope="module")
def values():
    return field_values({**SMALL, "tpot_limit": "100", "front_at_most": "kv_bytes=3e10"})


@pytest.fixture(scope="module")
def asked(values):
    return asked_of(values)


@pytest.fixture(scope="module")
def table(asked):
    return cached_table(asked)


def fronts_of(values, table):
    at_most = trade_offs.at_most_of(values, table)
    return [trade_offs.front_of(with_rates(table), values, at_most, by).run() for by in (["quantizer"], [])]


def test_ranges_are_written_as_people_say_them():
    assert axis_texts.values_of("1, 2,4") == [1, 2, 4]
    assert axis_texts.values_of("1 to 256 factor 2") == {"from": 1, "to": 256, "factor": 2}
    assert axis_texts.values_of("1 TB/s to 4 TB/s count 7 log") == {
        "from": "1 TB/s",
        "to": "4 TB/s",
        "count": 7,
        "scale": "log",
    }
    for bad in ("1 to 4", "1 to step 2", "1 to 4 step 2 3 4"):
        with pytest.raises(InputError, match="a range is"):
            axis_texts.values_of(bad)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("batch = 1", "has a field of its own"),
        ("bacth = 1", "unknown axis"),
        ("weights_bits", "must be NAME = VALUES"),
        ("weights_bits = 5", "weights_bits"),
        ("prefix_tokens = 0; prefix_tokens = 1", "given twice"),
        ("prefix_tokens = 0 to 20000 step 1", "at most 10,000 here"),
        ("key_quantizer = plan:/etc/plan.toml", "no file is read"),
        ("value_quantizer = fp16, PLAN:x.toml", "no file is read"),
    ],
)
def test_bad_axes_are_said_in_a_line(text, wrong):
    problem = problem_of(MORE, text, {})
    assert wrong in problem
    assert "\n" not in problem


@pytest.mark.parametrize("text", ["sped", "measured_error=much", "=1"])
def test_bad_limits_are_said_in_a_line(text):
    assert "must be COLUMN=NUMBER in base units" in problem_of(AT_MOST, text, {})


def test_the_table_is_that_of_the_sweep(asked, table):
    pd.testing.assert_frame_equal(dse.sweep(asked.document()), table)
    document = specfile.parse("sweep.toml", trade_offs.sweep_toml(asked.document()), False)
    assert spec.of_document(document).sha256 == asked.sweep().sha256


def test_rates_are_a_device_and_a_user(table):
    rated = with_rates(table)
    pd.testing.assert_series_equal(
        rated["tokens_per_s_a_device"],
        table["throughput_tokens_per_s"] / table["n_devices"],
        check_names=False,
        check_dtype=False,
    )
    pd.testing.assert_series_equal(rated["tokens_per_s_a_user"], 1 / table["tpot_s"], check_names=False)


def test_the_python_shown_gives_the_front_of_the_page(values, asked, table):
    at_most = trade_offs.at_most_of(values, table)
    assert at_most == ("tpot_s=0.1", "kv_bytes=30000000000")
    fronts, _ = fronts_of(values, table)
    space = {}
    exec(trade_offs._made(asked, values, at_most, ["quantizer"], None)[1], space)
    pd.testing.assert_frame_equal(space["result"].table[list(fronts.table)], fronts.table, check_dtype=False)
    assert space["result"].n_beyond == fronts.n_beyond
    assert 0 < fronts.n_beyond < fronts.n_feasible
    assert fronts.table["tpot_s"].max() <= 0.1


def test_the_commands_shown_give_the_front_of_the_page(values, asked, table, tmp_path, monkeypatch):
    """Of axes that `dse sweep` writes; rates of a device and of a user are made in Python."""
    values = {**values, **PLAIN}
    asked = asked_of(values)
    at_most = trade_offs.at_most_of(values, table)
    fronts = trade_offs.front_of(cached_table(asked), values, at_most, ["quantizer"]).run()
    sweep, pareto = trade_offs._made(asked, values, at_most, ["quantizer"], None)[0].splitlines()
    monkeypatch.chdir(tmp_path)
    (tmp_path / trade_offs.FILE).write_text(trade_offs.sweep_toml(asked.document()))
    found = []
    for line in (sweep, pareto + " --json"):
        outcome = CliRunner().invoke(main.cli, line.split()[1:])
        assert outcome.exit_code == 0, outcome.output
        found.append(outcome.stdout)
    rows = pd.DataFrame(json.loads(found[1])["front"])
    assert rows["throughput_tokens_per_s"].tolist() == fronts.table["throughput_tokens_per_s"].tolist()
    assert rows["quantizer"].tolist() == fronts.table["quantizer"].tolist()


def test_the_best_within_the_limits_has_the_most_of_all_designs_that_keep_them(values, table):
    """By hand: of the rows that run, fit and keep the limits, the one with most tokens a device."""
    fronts, whole = fronts_of(values, table)
    best = trade_offs.best_of(fronts, whole, "tokens_per_s_a_device")
    rows = with_rates(table)
    kept_rows = rows[rows["feasible"] & rows["runs"] & (rows["tpot_s"] <= 0.1) & (rows["kv_bytes"] <= 3e10)]
    assert best["tokens_per_s_a_device"] == kept_rows["tokens_per_s_a_device"].max()
    fronts, whole = fronts_of(field_values(SMALL), table)
    knee = trade_offs.best_of(fronts, whole, "tokens_per_s_a_device")
    pd.testing.assert_series_equal(knee, whole.table[whole.knee].iloc[0])  # without limits


def test_formats_are_colored_by_what_they_lose(values, table):
    fronts, whole = fronts_of(values, table)
    best = trade_offs.best_of(fronts, whole, "tokens_per_s_a_device")
    chart = trade_offs.chart_of(fronts, best, values, {"tpot_s": 0.1})
    lines = [series for series in chart.panels[0].series if series.kind == "line" and not series.is_note]
    assert [series.color for series in lines] == ["#0072B2", "#D55E00"]
    assert lines[0].name.startswith("fp16 (0.0 %)")
    (star,) = [series for series in chart.panels[0].series if series.name == "best"]
    assert (star.x[0], star.y[0]) == (best["tokens_per_s_a_user"], best["tokens_per_s_a_device"])
    (limit,) = [series for series in chart.panels[0].series if series.name == "limit"]
    assert limit.x == (10.0, 10.0)


def test_every_design_of_the_front_has_its_result_among_the_designs(values, asked, table):
    fronts, _ = fronts_of(values, table)
    assert "oaken" in set(fronts.table["quantizer"])
    for _, row in fronts.table.iterrows():
        design, changed = trade_offs.added(row, asked, values)
        point = request.point_request({**values, **changed, **design.values})
        result = request.answer(point, request.LoadRequest(amount=point.work.batch)).result
        assert result["throughput_tokens_per_s"] == row["throughput_tokens_per_s"], design.values
        assert result["tpot_s"] == row["tpot_s"]


#: of two formats that vLLM keeps side by side
PLAN = "".join(
    f'[[layers]]\nlayer = {i}\nkey = "{name}"\nvalue = "{name}"\n'
    for i in range(32)
    for name in ("fp8" if i < 9 else "fp16",)
)


def test_files_of_the_reader_are_swept_and_join_the_designs(asked, values, tmp_path, monkeypatch):
    files = (
        (
            "mine.toml (loaded)",
            FileText("mine.toml", catalog.device_files()["h100"].read_text().replace('name = "H100"', 'name = "Mine"')),
        ),
        ("p.toml (loaded)", FileText("p.toml", PLAN)),
    )
    by_name = dict(files)
    monkeypatch.setattr(uploads, "text_of", lambda label: by_name.get(label, uploads.NO_FILE))
    model = FileText("m.toml", catalog.model_files()["llama2-7b"].read_text())
    own = replace(
        asked,
        point=replace(asked.point, model="m.toml (loaded)", model_file=model),
        devices=("mine.toml (loaded)", "h100"),
        quantizers=("p.toml (loaded)",),
        axes=(("batch", "16, 64"),),
        files=files,
    )
    table = cached_table(own)
    assert set(table["device"]) == {"Mine", "H100"}
    row = table[table["device"] == "Mine"].iloc[0]
    design, _ = trade_offs.added(row, own, {**values, "model": "m.toml (loaded)"})
    fields = (design.values["own_device"], design.values["quantizer"])
    assert fields == ("mine.toml (loaded)", "p.toml (loaded)")
    # the script and the command lines take the files from the folder they are run in
    monkeypatch.chdir(tmp_path)
    for name, content in (*by_name.values(), model):
        (tmp_path / name).write_text(content)
    pd.testing.assert_frame_equal(dse.sweep(own.document()), table)


def test_own_measurements_are_swept(asked, tmp_path, monkeypatch):
    content = (Path(__file__).parents[2] / "dse" / "data" / "smollm2.measured.json").read_bytes()
    content = content.replace(b'"SmolLM2-135M, not your model"', b'"own.npz"')
    content = content.replace(b'"stored_bytes": 50025', b'"stored_bytes": 50026', 1)
    content = content.replace(b'"outliers": 59208', b'"outliers": 59216', 1)  # that byte more
    upload = uploads.read("m.json", content)[0]
    own = replace(
        asked,
        devices=("oaken-hbm",),
        quantizers=("oaken",),
        axes=(("batch", "16, 64"),),
        keep=(*asked.keep, "measured_bits"),
    )
    measured = replace(own, point=replace(own.point, measurements_file=upload))
    ours, shipped = cached_table(measured), cached_table(own)
    assert ours["measured_bits"].iloc[0] > shipped["measured_bits"].iloc[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.json").write_bytes(content)
    pd.testing.assert_frame_equal(dse.sweep(measured.document()), ours)
    assert 'measurements = "m.json"' in trade_offs.sweep_toml(measured.document())


def test_every_column_has_words_and_a_unit():
    assert set(RESULT_UNITS) <= set(results.RESULTS)
    assert names.titled("decode_step_s") == "Decode step (ms)"
    assert names.titled("measured_error") == "Error of the attention output (%)"
    words = [names.words(name) for name in RESULT_UNITS]
    assert len(set(words)) == len(words)


def test_what_is_left_open_is_the_current_designs_and_the_workloads():
    """The workload is no axis that a front would make smaller unasked, and limits of the workload are limits."""
    values = field_values({}) | {
        "device": "h100",
        "edits": "usd_per_hour=3 USD/h",
        "weights": "fp8",
        "tpot_limit": 30.0,
        "input": 8192,
        "admission": "reserve",
    }
    own = asked_of(values)
    axes = own.document()["axes"]
    assert (axes["device"], axes["model"]) == (["h100:usd_per_hour=3 USD/h"], ["qwen3-32b"])
    assert {name: axes[name] for name in ("input_tokens", "weights", "admission")} == {
        "input_tokens": [8192],
        "weights": ["fp8"],
        "admission": ["reserve"],
    }
    sweep = own.sweep()
    assert [len(sweep.axis[name]) for name in ("batch", "tp", "quantizer", "input_tokens")] == [9, 4, 5, 1]
    assert sweep.axis["device"].items[0].usd_per_hour.value == 3


def test_the_page_names_one_best_and_says_what_is_wrong():
    app = opened("size", size_tab="trade_offs", **SMALL, tpot_limit="100")
    assert not app.exception
    assert wrong(app) == []
    assert "Best within TPOT 100 ms: " in said(app)
    n = len(app.dataframe[0].value)
    assert f"{n:,} of 48 designs are on a front" in said(app)
    app.number_input(key="tpot_limit").set_value(0.001).run()
    assert any("No design is left: allow more, or vary more." in text.value for text in app.info)
    app.text_input(key="front_batches").set_value("1 to 60000 step 1").run()
    assert any("this page evaluates up to 20,000" in text.value for text in app.info)
    assert "step = 1" in app.code[0].value
    app.text_input(key="front_batches").set_value("16").run()
    app.selectbox(key="front_x").set_value("measured_error").run()
    assert not app.exception


class File:
    """A file as Streamlit gives it."""

    file_id = "1"

    def __init__(self, name, content):
        self.name, self.content = name, content

    def getvalue(self):
        return self.content


def test_a_table_of_a_sweep_is_loaded(monkeypatch, tmp_path, values, table):
    state = {}
    monkeypatch.setattr(trade_offs.st, "session_state", state)
    for name, content in (("t.csv", table.to_csv(index=False).encode()), ("t.parquet", _parquet(table))):
        trade_offs._keep(File(name, content))
        label, read_table = trade_offs._held()
        assert label == f"{name} (loaded)"
        loaded, own = (fronts_of(values, rows)[0].table for rows in (read_table, table))
        assert loaded["tokens_per_s_a_device"].tolist() == own["tokens_per_s_a_device"].tolist()
        monkeypatch.chdir(tmp_path)
        (tmp_path / name).write_bytes(content)
        space = {}
        at_most = trade_offs.at_most_of(values, table)
        exec(trade_offs._made(None, values, at_most, ["quantizer"], (label, table))[1], space)
        assert space["result"].table["batch"].tolist() == own["batch"].tolist()


def test_a_table_without_the_axes_chosen_is_drawn_by_others(monkeypatch, tmp_path):
    """As `dse sweep` writes it by default: without TPOT, and, of one device, without its number."""
    table = dse.sweep({"device": "h200", "model": "qwen3-32b", "quantizer": ["fp16", "fp8"], "batch": [1, 64]})
    values = field_values({})
    shown = trade_offs.with_axes(values, with_rates(table))
    assert (shown["front_x"], shown["front_y"]) == ("decode_step_s", "tokens_per_s_a_device")
    fronts, whole = fronts_of(shown, table)
    best = trade_offs.best_of(fronts, whole, "tokens_per_s_a_device")
    assert best["tokens_per_s_a_device"] in table["throughput_tokens_per_s"].tolist()
    assert trade_offs.chart_of(fronts, best, shown, {}).panels[0].series
    monkeypatch.chdir(tmp_path)
    table.to_csv("t.csv", index=False)
    space = {}
    exec(trade_offs._made(None, shown, (), ["quantizer"], ("t.csv (loaded)", table))[1], space)
    assert space["result"].table["batch"].tolist() == fronts.table["batch"].tolist()
    with pytest.raises(InputError, match="nor is another that can be an axis"):
        trade_offs.with_axes(values, table[["device", "max_batch"]].assign(tokens_per_s_a_device=1.0)[["device"]])


def _parquet(table):
    content = io.BytesIO()
    table.to_parquet(content)
    return content.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", b"a,b\n1,2\n", "t.csv: has none of the columns"),
        ("t.parquet", b"PK", "t.parquet"),
        ("t.txt", b"x", "t.txt"),
        ("t.csv", b"0" * (trade_offs.MAX_BYTES + 1), "has 16,777,217 bytes: at most 16,777,216"),
    ],
)
def test_another_file_is_refused_in_a_line_by_its_name(name, content, said):
    with pytest.raises(DseError, match=said) as caught:
        trade_offs._keep(File(name, content))
    assert "/tmp" not in str(caught.value)
    assert "\n" not in str(caught.value)
