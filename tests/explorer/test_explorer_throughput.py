"""The throughput page without a browser: its points are those of the report, and a click gives the fields of one."""

import pytest
from streamlit.testing.v1 import AppTest

from dse.explorer import request
from dse.explorer.pages import throughput
from dse.specs import catalog

ASKED = request.of({"quantizer": "nqkv", "admission": "paged"})
LABELS = ("A100 KIVI 4-bit", "Oaken-HBM")


@pytest.fixture(scope="module")
def results():
    return throughput.cached_table("results", ASKED, LABELS)


def test_published_systems_and_the_own_design_share_every_batch(results):
    assert results.groupby("system")["batch"].apply(list).to_dict() == {
        name: list(request.CURVE) for name in (*LABELS, throughput.OWN)
    }


def test_the_python_shown_gives_the_systems_points(results):
    space = {}
    exec(throughput.python(ASKED, LABELS), space)
    shown = results[results["system"] != throughput.OWN]["throughput_tokens_per_s"]
    assert space["result"]["throughput_tokens_per_s"].to_list() == shown.to_list()


def test_a_click_on_a_point_gives_its_design(results):
    row = results[(results["system"] == "A100 KIVI 4-bit") & (results["batch"] == 32)].iloc[0]
    found = throughput.row_at(results, "throughput", 32.0, row["throughput_tokens_per_s"])
    fields = throughput.loaded(found, ASKED)
    assert fields["device"] in catalog.device_files()
    asked = request.of({"model": ASKED.model, **fields})
    assert request.answer(asked).result["throughput_tokens_per_s"] == row["throughput_tokens_per_s"]
    assert throughput.row_at(results, "throughput", 33.0, 1.0) is None


def test_a_large_model_is_loaded_on_two_devices():
    large = request.of({"model": "llama2-70b"})
    table = throughput.cached_table("results", large, ("A100 QServe",))
    row = table[table["system"] == "A100 QServe"].iloc[0].to_dict()
    assert throughput.loaded(row, large)["device"] == "2xa100-80gb"


def test_the_page_runs_and_follows_its_widgets():
    app = AppTest.from_string(
        "from dse.explorer.pages import throughput; throughput.render()", default_timeout=60
    ).run()
    assert not app.exception
    app.multiselect(key="throughput_systems").set_value(["Tender"])
    app.selectbox(key="model").select("llama3-8b")
    app.selectbox(key="model_kind").select("calibrated")
    app.number_input(key="batch").set_value(8).run()
    assert not app.exception
    assert app.query_params["throughput_systems"] == "Tender"
    app.multiselect(key="throughput_systems").set_value([]).run()
    assert not app.exception
