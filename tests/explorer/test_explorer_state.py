"""The state of the explorer in its address: hostile URLs are a notice, back and forward find what was there."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import quick_first
from dse.core import errors
from dse.core.field import WHOLE, Field
from dse.explorer import common_fields, fields, request, state
from explorer_page import address_of, command_of, opened, page

ALL = (*common_fields.DESIGN, *common_fields.SCENARIO)
FIELDS = {field.key: field for field in ALL}


def test_url_restores_the_page():
    app = page(device="h100", quantizer="sinkq", parameters="bits=4", batch="48", admission="paged", weights_bits="8")
    assert not app.exception
    assert not app.warning
    for part in ("--device h100", "--quantizer sinkq:bits=4", "--batch 48", "--admission paged", "--weights-bits 8"):
        assert part in command_of(app)


@quick_first(
    4,
    "key, value, limit",
    [
        ("batch", "nan", "1 to 16,777,216"),
        ("weights_bits", ["8", "4"], "given 2 times"),
        ("device", "../../etc/passwd", "known: "),
        ("<b>x</b>", "1", "unknown: known: "),
        ("batch", "1e400", "1 to 16,777,216"),
        ("batch", "9" * 5000, "1 to 16,777,216"),
        ("batch", "-1", "1 to 16,777,216"),
        ("batch", "٣", "1 to 16,777,216"),
        ("input", "0", "1 to 1,073,741,824"),
        ("output", "", "1 to 16,777,216"),
        ("model", "A" * 100_000, "known: "),
        ("quantizer", "![x](https://example.org/x.png)", "must be one of"),
        ("parameters", "bits=99", "unknown parameter"),
        ("\x00\u202ekey", "1", "unknown: known: "),
    ],
)
def test_bad_url_falls_back_with_one_notice(key, value, limit):
    app = opened("answer", **{key: value})
    assert not app.exception
    assert len(app.warning) == 1
    assert limit in app.code[0].value
    designs = 1 if key in (field.key for field in common_fields.DESIGN) else 3  # fields of a design are a tray of one
    assert len(app.sidebar.radio[0].options) == designs
    assert all(app.number_input(key=name).value == FIELDS[name].default for name in ("batch", "input", "output"))
    app.run()
    assert not app.warning  # said once


def test_a_value_that_a_run_put_into_a_field_is_put_again_by_the_next():
    """The browser may miss the first run, where the next overtakes it: its fields would show defaults."""
    app = page(batch="48")
    for puts in (True, True, False):
        field = app.number_input(key="batch")
        assert (field.value, field.proto.set_value) == (48, puts)
        app.run()
    app.number_input(key="input").set_value(7).run()
    assert not app.number_input(key="input").proto.set_value  # the reader's own is left alone


def test_the_page_that_opens_first_answers_at_its_own_name_too():
    app = opened("/answer", batch="48", quantizer="kivi")
    assert not app.exception
    assert not app.warning
    assert address_of(app) == {"batch": "48", "designs": "quantizer.kivi"}


@pytest.mark.parametrize("path", ["/compare", "/start", "/formats"])
def test_an_address_of_a_former_page_gives_its_design_under_the_question(path):
    """Devices and models were a design's own, a number of devices its tensor parallel size."""
    app = opened(path, device="h100", quantizer="kivi", tp="2", input="2048")
    assert not app.exception
    assert not app.warning
    assert address_of(app) == {"device": "h100", "devices": "2", "input": "2048", "designs": "quantizer.kivi"}
    assert "--device h100" in command_of(app)
    assert "--tp 2" in command_of(app)
    assert app.number_input(key="devices").value == 2
    assert app.number_input(key="tp").value is None


def test_designs_of_a_former_address_keep_what_differs():
    app = opened("/compare", designs="device.h100~model.llama3.1-8b~tp.2~~device.b200~model.llama3.1-8b", at="1")
    assert not app.exception
    assert not app.warning
    assert address_of(app) == {"model": "llama3.1-8b", "designs": "own_device.h100~tp.2~~own_device.b200"}
    assert "--device h100 --model llama3.1-8b" in command_of(app)
    assert "--tp 2" in command_of(app)
    app.sidebar.radio[0].set_value(1).run()
    assert "--tp" not in command_of(app)


@pytest.mark.parametrize(
    "query",
    [
        {"devices": "8", "designs": "tp.4"},
        {"device": "h100", "designs": "own_device.b200~quantizer.fp8"},
        {"designs": "tp.1024~pp.1024"},  # more devices than the question may have
        {"load": "rate", "rate": "12.5", "ttft_limit": "2", "tpot_limit": "50"},
        {"load": "sessions", "sessions": "50", "turns": "5", "growth": "500", "think": "2 s", "shared": "100"},
    ],
)
def test_an_address_stays_as_it_is(query):
    """What a design has of its own beside what the question says is not taken for the question's."""
    app = opened("answer", **query)
    assert not app.exception
    assert not app.warning
    assert address_of(app) == query


def test_good_part_of_a_bad_url_is_kept():
    app = opened("answer", batch="32", input="x", nonsense="1")
    assert app.number_input(key="batch").value == 32
    assert address_of(app) == {"batch": "32"}
    assert len(app.code[0].value.splitlines()) == 2


def test_many_problems_are_counted():
    app = page(**{f"k{i}": "1" for i in range(20)})
    assert app.code[0].value.splitlines()[-1] == "and 15 more"


KEYS = st.one_of(st.sampled_from(list(FIELDS)), st.text(max_size=60))
VALUES = st.one_of(st.text(max_size=300), st.integers().map(str), st.floats().map(str), st.just("16"))


@given(st.dictionaries(KEYS, st.lists(VALUES, min_size=1, max_size=3), max_size=6))
def test_any_url_is_split_into_usable_and_named_problems(query):
    values, problems = fields.check_query(ALL, query)
    assert values.keys() == FIELDS.keys()
    assert all(len(line) <= errors.MAX_LINE and line.isprintable() for line in problems)
    changed = [key for key in query if key in FIELDS and values[key] != FIELDS[key].default]
    assert len(changed) + len(problems) <= len(query)
    written = fields.query_of(ALL, values)
    assert fields.check_query(ALL, {key: [text] for key, text in written.items()}) == (values, [])
    with contextlib.suppress(errors.InputError):  # values that cannot stand together
        request.answer(request.point_request(values), request.load_request(values))


def test_back_across_pages_finds_what_each_address_stood_for():
    """Between two pages the browser keeps, by chance, the new page without its query or the old with the new query."""
    small, large, own = {"batch": ["48"]}, {"batch": ["96"]}, {"batch": ["96"], "pareto_batches": ["4"]}
    trail = state.Trail()
    trail.goes_to("what-if", {})
    trail.goes_to("what-if", small)
    trail.goes_to("roofline", small)
    trail.goes_to("roofline", large)
    trail.goes_to("what-if", large)
    assert trail.returns_to("what-if", {}) == large  # on the way here, not the first page of all
    trail.stands_at(large)
    assert trail.returns_to("roofline", large) == large
    assert trail.returns_to("roofline", small) == small
    assert trail.returns_to("what-if", small) == small
    assert trail.returns_to("what-if", {}) == {}
    assert trail.returns_to("what-if", small) == small  # forward
    trail.goes_to("pareto", own)
    assert trail.returns_to("what-if", own) == small  # the old page with the query of the new
    trail.stands_at(small)
    assert trail.returns_to("pareto", own) == own
    assert trail.returns_to("lab", large) == large  # from before a reload
    for n in range(2 * state._MOST):
        trail.goes_to("lab", {"batch": [str(n)]})
    assert len(trail.entries) == state._MOST
    assert trail.returns_to("lab", {"batch": [str(2 * state._MOST - 2)]})


@pytest.mark.parametrize(("value", "is_bad"), [(0, True), (1, False), (8, False), (9, True)])
def test_numbers_may_be_as_small_and_as_large_as_said(value, is_bad):
    field = Field(name="n", kind=WHOLE, default=1, low=1, high=8)
    assert fields.problem_of(field, value, {}) == (f"n = {value}: must be a whole number from 1 to 8" if is_bad else "")


def test_an_address_takes_models_and_devices_by_other_names():
    """As the command line does; a misspelled one says what was meant."""
    named = (common_fields.MODEL, common_fields.DEVICE)
    values, problems = fields.check_query(named, {"model": ["gemma3-12b"], "device": ["H100 SXM"]})
    assert (values, problems) == ({"model": "gemma-3-12b", "device": "h100"}, [])
    _, problems = fields.check_query(named, {"model": ["gemma-3-21b"]})
    assert "did you mean gemma-3-12b" in problems[0]
