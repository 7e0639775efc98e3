"""The roofline page: the operations of a step where hand arithmetic puts them, and the page without a browser."""

import pytest
from streamlit.testing.v1 import AppTest

from dse.explorer import request
from dse.explorer.pages import roofline
from dse.figures import FIGURES
from dse.model import kv_layout as plan
from dse.questions import operations as tables_operations
from dse.specs import catalog
from dse.specs.measurements import CLOSED
from dse.specs.workload import Workload

FP16 = CLOSED.quantizer("fp16")


@pytest.fixture(scope="module")
def table():
    kv = plan.build(catalog.model("llama2-7b"), FP16, FP16)
    return tables_operations.decode_step(catalog.device("a100-80gb"), [kv], Workload(16, 1024, 1024))


def test_intensity_and_ceiling_are_those_of_hand_arithmetic(table):
    ideal = table[table["model_kind"] == "ideal"].set_index("operation")
    # FP16 attention: 4 FLOP per K/V element pair of 4 bytes; QKV: 2 FLOP x 16 sequences per weight of 2 bytes
    assert ideal.loc["attention", "intensity_flops_per_byte"] == pytest.approx(1.0)
    assert ideal.loc["qkv", "intensity_flops_per_byte"] == pytest.approx(16.0)
    # below the ridge of 156 FLOP/B the ceiling is intensity x 2 TB/s (the device file's bandwidth)
    assert ideal.loc["qkv", "ceiling_flops_per_s"] == pytest.approx(16 * 2e12)
    assert ideal["flops_per_s"].to_list() == pytest.approx(ideal["ceiling_flops_per_s"].to_list())


def test_measured_kernels_stay_below_the_ceiling(table):
    fitted = table[table["model_kind"] == "calibrated"]
    assert len(fitted) == len(table) / 2
    assert (fitted["flops_per_s"] < fitted["ceiling_flops_per_s"]).all()


def test_a_design_that_does_not_fit_has_no_rows():
    kv = plan.build(catalog.model("llama2-70b"), FP16, FP16)
    assert tables_operations.decode_step(catalog.device("a100-40gb"), [kv], Workload(1, 128, 128)).empty


def test_operations_rest_on_no_number_of_energy_or_price(table):
    """Of an A100's assumed numbers FP16's step takes the peak rates (ideal) and what a server holds of memory alone."""
    assert set(table["assumptions"].str.split(", ").explode()) == {"peak_rates", "server_memory"}


def test_every_operation_of_the_table_is_drawn(table):
    drawn = FIGURES["operations"].chart(table).panels[0].series[1:]
    assert sum(len(series.x) for series in drawn) == len(table)


PLAN = "".join(f'[[layers]]\nlayer = {i}\nkey = "kivi"\nvalue = "{"oaken" if i < 9 else "fp16"}"\n' for i in range(32))


def test_the_python_shown_gives_the_table_shown_with_a_loaded_plan_too(tmp_path, monkeypatch):
    space = {}
    files = {"fp16": ("", ""), "kivi:bits=4": ("", ""), "p.toml (loaded plan)": ("p.toml", PLAN)}
    each = tuple(request.with_quantizer(request.DEFAULT, name, file) for name, file in files.items())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(PLAN)
    exec(roofline.python(request.DEFAULT, each), space)
    found = roofline.cached_table(each)
    assert space["result"].equals(found)
    assert set(found["quantizer"]) == {"fp16", "kivi:bits=4", "plan:p.toml"}
    assert "--quantizer plan:p.toml" in roofline.command(each)


def test_the_page_runs_and_follows_its_widgets():
    app = AppTest.from_string("from dse.explorer.pages import roofline; roofline.render()", default_timeout=60).run()
    assert not app.exception
    app.number_input(key="batch").set_value(8)
    app.multiselect(key="roofline_quantizers").set_value(["nqkv"])
    app.selectbox(key="device").select("oaken-lpddr").run()
    assert not app.exception
    assert app.query_params["roofline_quantizers"] == "nqkv"
    assert "No kernels of this device were measured" in " ".join(caption.value for caption in app.caption)
    app.text_input(key="edits").set_value("memory_bandwidth=0").run()
    assert not app.exception
    assert any("memory_bandwidth" in text.value for text in app.text)
