"""The roofline page: the operations of a step where hand arithmetic puts them, and the page without a browser."""

import pytest

from dse.explorer import request
from dse.explorer.pages import roofline
from dse.explorer.uploads import NO_FILE, FileText
from dse.figures import FIGURES
from dse.model import kv_layout
from dse.questions import operations
from dse.specs import catalog
from dse.specs.measurements import CLOSED
from dse.specs.workload import Workload
from explorer_page import asked, opened, plain

FP16 = CLOSED.quantizer("fp16")


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


def test_measured_kernels_stay_below_the_ceiling(table):
    fitted = table[table["model_kind"] == "calibrated"]
    assert len(fitted) == len(table) / 2
    assert (fitted["flops_per_s"] < fitted["ceiling_flops_per_s"]).all()


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


def test_every_operation_of_the_table_is_drawn(table):
    drawn = [each for each in FIGURES["operations"].chart(table).panels[0].series if not each.is_note]
    assert sum(len(series.x) for series in drawn) == len(table)


def test_dequantizing_is_a_ceiling_of_its_own():
    """Of attention alone: its stored bytes over the seconds that dequantizing them takes, whatever it hides behind."""
    one = asked(device="h200", model="qwen3-32b", quantizer="int4_per_token_head")
    table = roofline.cached_table((("int4", one),))
    rates = table.set_index(["model_kind", "operation"])["dequantize_bytes_per_s"]
    result = request.answer(one).result
    row = table[(table["model_kind"] == "calibrated") & (table["operation"] == "attention")].iloc[0]
    assert rates["calibrated", "attention"] == pytest.approx(row["n_bytes"] / result["dequantize_busy_s"])
    assert rates.drop("attention", level="operation").isna().all()
    notes = [each for each in FIGURES["operations"].chart(table).panels[0].series if each.is_note]
    line = next(each for each in notes if each.name == "dequantizing, INT4")
    assert line.y[0] == pytest.approx(rates["calibrated", "attention"] * line.x[0])
    assert roofline.cached_table((("fp16", asked(quantizer="fp16")),))["dequantize_bytes_per_s"].isna().all()


PLAN = "".join(f'[[layers]]\nlayer = {i}\nkey = "kivi"\nvalue = "{"oaken" if i < 9 else "fp16"}"\n' for i in range(32))


def test_the_python_shown_gives_the_table_shown_with_a_loaded_plan_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(PLAN)
    for name, file in {"fp16": NO_FILE, "p.toml (loaded plan)": FileText("p.toml", PLAN)}.items():
        one, space = request.with_quantizer(asked(), name, file), {}
        exec(roofline.python(one), space)
        shown = roofline.cached_table((("mine", one),))
        assert space["result"].drop(columns="quantizer").equals(shown.drop(columns="quantizer"))
        assert set(shown["quantizer"]) == {"mine"}


def test_the_page_shows_the_designs_of_one_device_and_names_the_others():
    app = opened("roofline", designs="device.oaken-lpddr~model.llama2-7b~quantizer.nqkv~~device.b200", batch="8")
    assert not app.exception
    captions = plain(" ".join(caption.value for caption in app.caption))
    assert "No kernels of this device were measured" in captions
    assert "not in this figure: b200" in captions
    assert set(app.dataframe[0].value["design, timing model"]) == {"oaken-lpddr, llama2-7b, nqkv, ideal"}
