"""The page Why without a browser: what binds, roofs by hand arithmetic, every number, one tab at a time."""

import shlex

import pytest

from dse.cli import main
from dse.explorer import request
from dse.explorer.uploads import NO_FILE, FileText
from dse.explorer.why import numbers, time
from dse.figures import FIGURES
from dse.figures.drawing import style
from dse.model import engine, kv_layout
from dse.model.point import Point
from dse.model.results import RESULTS
from dse.questions import operations
from dse.specs import catalog
from dse.specs.measurements import CLOSED
from dse.specs.workload import Workload
from explorer_page import asked, opened, plain, said, tab_of, wrong

FP16 = CLOSED.quantizer("fp16")
THREE = "quantizer.fp16~~quantizer.fp8~~quantizer.int4_per_token_head"
#: a figure, a field or a table that each tab has alone
TABS = {"time": {"step", "operations"}, "error": {"compared", "bits"}, "numbers": set(), "what-if": {"sensitivity-0"}}


def figures(app):
    return {chart.key for chart in app.get("plotly_chart")}


@pytest.mark.usefixtures("few_cells")
@pytest.mark.parametrize("tab", TABS)
def test_a_tab_draws_its_own_figures_alone(tab):
    app = opened("why", why=tab, designs="device.oaken-lpddr~model.llama2-7b~quantizer.nqkv", batch="4", input="64")
    assert not app.exception
    assert TABS[tab] <= figures(app)
    assert not figures(app) & set().union(*(names for other, names in TABS.items() if other != tab))
    assert bool([one for one in app.selectbox if one.key == "number"]) == (tab == "numbers")
    tab_of(app, "why").set_value("numbers").run()
    assert not app.exception
    assert "".join(app.query_params["why"]) == "numbers"


@pytest.mark.parametrize(("old", "tab"), [("roofline", "time"), ("lab", "error")])
def test_old_addresses_lead_to_their_tabs(old, tab, monkeypatch):
    from dse.explorer import app

    (page,) = [page for page in app.PAGES if page.path == "why"]
    (more,) = [former.partition("?")[2] for former in page.former if former.partition("?")[0] == old]
    left = []
    monkeypatch.setattr(app.st, "switch_page", lambda shown, query_params: left.append((shown, query_params)))
    monkeypatch.setattr(app.state, "session", lambda: app.state.Session(pages={"why": "the page"}))
    monkeypatch.setattr(app.st, "query_params", {})
    app._redirect("why", more)
    assert left == [("the page", {} if tab == "time" else {"why": [tab]})]


def printed_shares(command, capsys):
    """What `dse point --all` says of a bottleneck: by phase, in its own digits."""
    with pytest.raises(SystemExit):
        main.main([*shlex.split(command)[1:], "--all"])
    lines = capsys.readouterr().out.splitlines()
    bound = next(line for line in lines if line.startswith("Bound by "))
    shares = {}
    for line in lines[lines.index("Bottleneck") + 1 :]:
        if line.startswith("    of "):
            phase, _, parts = line.removeprefix("    of ").partition(" ")
            shares[phase] = dict(part.strip().split(" ", 1) for part in parts.split(","))
    return bound.removeprefix("Bound by ").partition(":")[0], shares


def test_the_verdict_has_the_shares_of_the_command_line(capsys):
    app = opened("why", designs=THREE)
    text = next(text.value for text in app.markdown if "binds" in text.value)
    verdict = plain(text.strip("*"))
    assert verdict.count(".") == 1
    for name in ("fp16", "fp8", "int4_per_token_head"):
        one = request.operation(request.point_request({"quantizer": name}))
        bound, shares = printed_shares(request.command_of(one), capsys)
        words = [f"{part[bound]} of {phase}" for phase, part in shares.items() if bound in part]
        assert f"{name} ({', '.join(words)})" in verdict
        clause = next(clause for clause in verdict.lower().split("; ") if name in clause)
        assert clause.startswith(bound)


def test_what_does_not_fit_or_cannot_be_computed_is_a_sentence():
    large = opened("why", designs="model.llama3.1-405b")
    assert not large.exception
    assert "Capacity (not all requests fit at once) binds" in said(large)
    assert any("no request of these designs fits" in line for line in wrong(large))
    none = opened("why", designs="tp.3")
    assert not none.exception
    assert any("No design has a result" in line for line in wrong(none))


@pytest.fixture(scope="module")
def table():
    kv = kv_layout.build(catalog.model("llama2-7b"), FP16, FP16)
    return operations.decode_step(catalog.device("a100-80gb"), [kv], Workload(16, 1024, 1024))


def test_intensity_and_ceiling_are_those_of_hand_arithmetic(table):
    ideal = table[table["model_kind"] == "ideal"].set_index("operation")
    # FP16 attention: 4 FLOP per K/V element pair of 4 bytes; QKV: 2 FLOP x 16 sequences per weight of 2 bytes
    assert ideal.loc["attention", "intensity_flops_per_byte"] == pytest.approx(1.0)
    assert ideal.loc["qkv", "intensity_flops_per_byte"] == pytest.approx(16.0)
    # below the ridge of 153 FLOP/B the ceiling is intensity x 2.039 TB/s (the device file's bandwidth)
    assert ideal.loc["qkv", "ceiling_flops_per_s"] == pytest.approx(16 * 2.039e12)
    assert ideal["flops_per_s"].to_list() == pytest.approx(ideal["ceiling_flops_per_s"].to_list())


def test_peaks_are_of_as_many_requests_as_the_stack_runs():
    """llama-server has four slots: a product with weights of 4.5 bits is as far to the right at peak rates."""
    kv = kv_layout.build(catalog.model("llama3.1-8b"), FP16, FP16)
    table = operations.decode_step(catalog.device("m4-max"), [kv], Workload(weights="q4_k_m"))
    assert set(table["model_kind"]) == {"ideal", "calibrated"}
    assert set(table["batch"]) == {4}


def test_a_design_that_does_not_fit_has_no_rows():
    kv = kv_layout.build(catalog.model("llama2-70b"), FP16, FP16)
    assert operations.decode_step(catalog.device("a100-40gb"), [kv], Workload(1, 128, 128)).empty


def test_operations_rest_on_no_number_of_energy_or_price(table):
    """Of an A100's assumed numbers FP16's step takes the peak rates (ideal) and what a server holds of memory alone."""
    assert set(table["assumptions"].str.split(", ").explode()) == {"peak_rates", "server_memory"}


@pytest.mark.parametrize("weights", [None, "fp8"])
@pytest.mark.parametrize("model", ["qwen3-32b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("device", ["h200", "b200", "oaken-lpddr"])
def test_every_operation_is_drawn_below_a_roof_that_is_drawn(device, model, weights):
    """Attention with its dequantizing below the device's roof; 8-bit products below that of their peak."""
    for name in ("fp16", "fp8", "int4_per_token_head", "oaken"):
        stored = CLOSED.quantizer(name)
        kv = kv_layout.build(catalog.model(model), stored, stored)
        table = operations.decode_step(catalog.device(device), [kv], Workload(weights=weights))
        drawn = FIGURES["operations"].chart(table).panels[0].series
        dots = [dot for series in drawn if not series.is_note for dot in zip(series.x, series.y, strict=True)]
        assert len(dots) == len(table)
        assert (table["flops_per_s"] <= table["ceiling_flops_per_s"] * (1 + 1e-9)).all()
        lines = [series for series in drawn if series.is_note]
        for row in table.to_dict("records"):
            ceiling, at = row["ceiling_flops_per_s"], row["intensity_flops_per_byte"]
            reached = [min(line.y[1], line.y[1] * at / line.x[1]) for line in lines]  # through the ridge
            assert any(roof == pytest.approx(ceiling, rel=1e-5) for roof in reached), (name, row["operation"])


def test_dequantizing_counts_in_the_dot():
    """Of attention alone: what of it does not hide is in the seconds; the roof is the device's."""
    one = asked(device="h200", model="qwen3-32b", quantizer="int4_per_token_head")
    table = time.cached_table((("int4", one),))
    result = engine.evaluate(Point(one.device_spec(), one.plan(), one.work))
    row = table[(table["model_kind"] == "calibrated") & (table["operation"] == "attention")].iloc[0]
    assert row["seconds"] == pytest.approx(result["attention_s"] + result["dequantize_s"])
    assert row["ceiling_flops_per_s"] == pytest.approx(
        row["bandwidth_bytes_per_s"] * row["intensity_flops_per_byte"], rel=1e-9
    )
    notes = [each for each in FIGURES["operations"].chart(table).panels[0].series if each.is_note]
    assert {each.color for each in notes} == {style.BLACK}


@pytest.mark.parametrize(("n", "named"), [(1, 0), (6, 6), (7, 0)])
def test_up_to_six_designs_are_named_at_their_marks(n, named):
    names = [f"design {i}" for i in range(n)]
    table = time.cached_table(tuple((name, asked(batch=i + 1)) for i, name in enumerate(names)))
    series = FIGURES["operations"].chart(table).panels[0].series
    assert sorted(text for each in series for text in each.labels if text) == names[:named]


PLAN = "".join(f'[[layers]]\nlayer = {i}\nkey = "kivi"\nvalue = "{"oaken" if i < 9 else "fp16"}"\n' for i in range(32))


def test_the_python_shown_gives_the_table_shown_with_a_loaded_plan_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(PLAN)
    for name, file in {"fp16": NO_FILE, "p.toml (loaded plan)": FileText("p.toml", PLAN)}.items():
        one, space = request.with_quantizer(asked(), name, file), {}
        exec(time.python(one), space)
        shown = time.cached_table((("mine", one),))
        assert space["result"].drop(columns="quantizer").equals(shown.drop(columns="quantizer"))
        assert set(shown["quantizer"]) == {"mine"}


def test_the_roofline_is_of_one_device_and_names_the_other_designs():
    app = opened("why", designs="device.oaken-lpddr~model.llama2-7b~quantizer.nqkv~~device.b200", batch="8")
    assert not app.exception
    captions = plain(" ".join(caption.value for caption in app.caption))
    assert "No kernels of this device were measured" in captions
    assert "not in this figure: b200" in captions


def test_every_result_is_shown_and_explained():
    assert set(numbers.SHOWN) == {name for name, result in RESULTS.items() if not result.chosen}
    texts = {name: numbers.cached_explanation(asked(), name) for name in numbers.SHOWN}
    assert [name for name, text in texts.items() if f"{name} = " not in text] == []


def test_a_number_is_explained_as_its_command_prints_it(capsys):
    app = opened("why", why="numbers", number="tpot_s", designs=THREE)
    text, command = (code.value for code in app.code)
    with pytest.raises(SystemExit):
        main.main(shlex.split(command)[1:])
    assert capsys.readouterr().out.strip() == text.strip()
    app.selectbox(key="number").select("kv_bytes").run()
    assert app.code[0].value.startswith("kv_bytes = ")
    assert "".join(app.query_params["number"]) == "kv_bytes"


def test_a_row_that_is_pressed_is_explained(monkeypatch):
    taken = []
    monkeypatch.setattr(numbers.state, "put", taken.append)
    monkeypatch.setattr(numbers.st, "session_state", {"numbers": {"selection": {"rows": [1]}}})
    numbers._take(["a", "b"])
    numbers.st.session_state["numbers"]["selection"]["rows"] = []
    numbers._take(["a", "b"])
    assert taken == [{"number": "b"}]
