"""The validation page without a browser."""

import pytest

from dse.explorer.pages import validation
from dse.validate import verdicts
from explorer_page import opened, said


@pytest.fixture(scope="module")
def rows():
    return validation.cached_claims()


@pytest.mark.slow
def test_fields_leave_the_claims_they_name(rows):
    values = {field.key: field.default for field in validation.FIELDS}
    assert validation.chosen(rows, values) == rows
    missed = validation.chosen(rows, {**values, "validation_verdicts": ["missed"]})
    assert {row.verdict for row in missed} == {"missed"}
    assert len(missed) == verdicts.counts(rows)["missed"]
    sinkq = validation.chosen(rows, {**values, "validation_document": "SinkQ"})
    assert sinkq
    assert all(row.id.startswith("sinkq") for row in sinkq)
    assert [row.id for row in validation.chosen(rows, {**values, "validation_words": "sinkq max-gain"})] == [
        "sinkq-max-gain"
    ]
    assert {validation.short(row.source) for row in rows} | {"all"} == set(validation.DOCUMENTS)


def test_the_page_runs_and_follows_its_widgets(rows):
    app = opened("validation")
    assert not app.exception
    assert "Kernels of vllm on H200 err by up to" in said(app)  # of the current design
    assert "same model" in app.dataframe[0].value["how near"].tolist()
    # each verdict that occurs, with its count
    shown = {metric.label[2:]: metric.value for metric in app.metric}
    assert shown == {verdict: f"{n:,}" for verdict, n in verdicts.counts(rows).items() if n}
    app.selectbox(key="validation_document").select("Oaken")
    app.selectbox(key="validation_device").select("B200").run()
    assert not app.exception
    assert app.query_params["validation_device"] == "B200"
    assert app.query_params["validation_document"] == "Oaken"
    app.text_input(key="validation_words").set_value("no such claim").run()
    assert not app.exception
    assert "No claim is left" in app.info[0].value


def test_kernels_are_of_the_design_device_unless_another_is_chosen(rows):
    assert "choose a device" not in said(opened("validation"))
    other = opened("validation", designs="device.mi300x")
    assert "No times of MI300X were fitted: choose a device." in said(other)
    other.selectbox(key="validation_device").select("H200").run()
    assert not other.exception
    assert "choose a device" not in said(other)
