"""The tray: what is done with its designs, its text in an address, undo; and the sidebar of a page that shows it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.core.errors import InputError
from dse.explorer import common_fields, fields, presets, question, request, tray
from dse.explorer.fields import problem_of
from dse.explorer.tray import History, Tray, TrayDesign
from dse.specs.workload import ASKED
from explorer_page import address_of, opened, press, said

A, B, C = (TrayDesign(values={"quantizer": name}) for name in ("fp8", "kivi", "nvfp4"))


def names(now):
    return [design.values.get("quantizer", "fp16") for design in now.designs], now.at


def test_designs_are_added_copied_moved_and_deleted():
    now = Tray((A, B))
    assert names(now.added(C)) == (["fp8", "kivi", "nvfp4"], 2)
    assert names(now.duplicated()) == (["fp8", "fp8", "kivi"], 1)
    assert names(now.first()) == (["fp8", "kivi"], 0)  # already
    assert names(Tray((A, B, C), 1).first()) == (["kivi", "fp8", "nvfp4"], 0)
    assert names(now.chosen(1).deleted()) == (["fp8"], 0)
    assert names(Tray((A, B, C), 1).deleted()) == (["fp8", "nvfp4"], 1)  # the next one is being changed
    assert names(Tray((A, B, C), 2).deleted()) == (["fp8", "kivi"], 1)
    assert [names(now.chosen(at))[1] for at in (-1, 0, 1, 2)] == [0, 0, 1, 1]
    assert names(Tray((A,)).deleted()) == (["fp8"], 0)  # the last one stays
    assert Tray((TrayDesign("Mine", {}),)).duplicated().current.name == "Mine copy"


def test_a_change_of_all_designs_leaves_what_was_not_changed():
    now = Tray(
        (
            TrayDesign("One", {"quantizer": "fp8"}),
            TrayDesign(values={"quantizer": "kivi", "tp": 2, "own_device": "b200"}),
        )
    )
    after = now.changed(TrayDesign("One", {"quantizer": "fp8", "tp": 4}), is_for_all=True)
    assert [dict(each.values) for each in after.designs] == [
        {"quantizer": "fp8", "tp": 4},
        {"quantizer": "kivi", "own_device": "b200", "tp": 4},
    ]
    back = after.changed(TrayDesign("One", {"quantizer": "fp8"}), is_for_all=True)  # to the default
    assert dict(back.designs[1].values) == {"quantizer": "kivi", "own_device": "b200"}
    assert now.changed(TrayDesign(), is_for_all=False).designs[1] == now.designs[1]


def test_a_full_tray_takes_no_more():
    full = Tray((A,) * tray.MAX_DESIGNS)
    with pytest.raises(InputError, match="40 are compared, which is as many as there can be: delete one first"):
        full.duplicated()


def test_an_address_holds_what_differs_from_the_defaults():
    now = Tray((TrayDesign(), TrayDesign("Mine, 2~x", {"own_device": "b200", "tp": 2}), B))
    text = tray.text_of(now, common_fields.DESIGN, {})
    assert text == "-~~own_device.b200~tp.2~name.Mine, 2%7Ex~~quantizer.kivi"
    assert tray.read(text, "2", common_fields.DESIGN, {}) == (Tray(now.designs, 1), [])


def test_what_an_address_says_wrongly_is_named_and_the_rest_kept():
    found, problems = tray.read("device.h1000~tp.2~~nonsense~~quantizer.fp8", "7", common_fields.DESIGN, {})
    assert found == Tray((TrayDesign(values={"tp": 2}), TrayDesign(), A))
    assert [line.partition(" = ")[0].partition(": unknown")[0] for line in problems] == [
        "design 1: own_device",
        "design 2: nonsense",
        "at",
    ]
    assert problems[-1] == "at = '7': must be a whole number from 1 to 3"
    assert tray.read("x" * 20_000, "", common_fields.DESIGN, {}) == (None, ["designs: longer than 16,000 characters"])
    many = tray.read("~~".join(["-"] * 50), "", common_fields.DESIGN, {})
    assert (len(many[0].designs), many[1]) == (40, ["designs: 50 are given: the first 40 are taken"])


def test_a_file_of_another_session_is_asked_for():
    text = "device.mine.toml@0123456789abcdef~tp.2"
    found, problems = tray.read(text, "", common_fields.DESIGN, {})
    assert found == Tray((TrayDesign(values={"tp": 2}),))
    assert problems == ["design 1: own_device: mine.toml was loaded in another session: load it again"]
    labels = {"mine.toml@0123456789abcdef": "h100"}  # as this session calls it
    assert tray.read(text, "", common_fields.DESIGN, labels)[0].current.values == {"own_device": "h100", "tp": 2}
    assert "mine.toml@0123456789abcdef" in tray.values_in(text)


DESIGNS = st.builds(
    TrayDesign,
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=tray.MAX_NAME),
    st.fixed_dictionaries(
        {},
        optional={
            "own_device": st.sampled_from(["b200", "a100-80gb"]),
            "own_model": st.sampled_from(["llama2-7b"]),
            "pp": st.integers(2, 4),
            "quantizer": st.sampled_from(["fp8", "kivi"]),
            "tp": st.integers(2, 64),
            "own_batch": st.integers(1, 999),
            "weights": st.sampled_from(["fp8", "a~~b.c%7E"]),
        },
    ),
)


@given(st.lists(DESIGNS, min_size=1, max_size=5))
def test_any_tray_comes_back_from_its_address(designs):
    ordered = [tray.design_of(design.values, common_fields.DESIGN, design.name) for design in designs]
    text = tray.text_of(Tray(tuple(ordered)), common_fields.DESIGN, {})
    assert tray.read(text, "", common_fields.DESIGN, {}) == (Tray(tuple(ordered)), [])


@pytest.mark.parametrize(
    ("text", "question", "left"),
    [
        ("device.h100~tp.2", {"device": "h100", "devices": 2}, "-"),
        ("tp.2~pp.3~~tp.2~pp.3~quantizer.fp8", {"devices": 6}, "pp.3~~quantizer.fp8~pp.3"),
        ("tp.2~~tp.2~pp.2", {}, "tp.2~~tp.2~pp.2"),
        ("model.llama2-7b~device.h100~~model.llama2-7b", {"model": "llama2-7b"}, "own_device.h100~~-"),
        ("-~~device.b200", {}, "-~~own_device.b200"),
    ],
)
def test_what_all_designs_of_a_former_address_have_alike_is_of_the_question(text, question, left):
    now, problems = tray.read(text, "", common_fields.DESIGN, {})
    found, plain = now.hoisted()
    assert (found, tray.text_of(plain, common_fields.DESIGN, {}), problems) == (question, left, [])
    assert now.hoisted(tray.OWN) == ({}, now)


@given(st.lists(DESIGNS, min_size=1, max_size=3))
def test_a_question_with_what_designs_have_alike_asks_for_the_same(designs):
    question, left = Tray(tuple(designs)).hoisted()
    for before, after in zip(designs, left.designs, strict=True):
        wanted = request.point_request({**common_fields.DEFAULTS, **before.values, "weights": None})
        assert request.point_request({**common_fields.DEFAULTS, **question, **after.values, "weights": None}) == wanted


@given(st.text(max_size=300), st.text(max_size=5))
def test_any_text_of_an_address_gives_a_tray_or_lines(text, at):
    found, problems = tray.read(text, at, common_fields.DESIGN, {})
    assert found is None or 0 <= found.at < len(found.designs)
    assert all(line.isprintable() and len(line) <= 300 for line in problems)


def test_undo_goes_back_and_a_new_choice_forgets_what_was_undone():
    history = History()
    for state, at in ((1, 0), (2, 0), (2, 5), (3, 1)):
        history.goes_to(state, at)
    assert not history.can(1)
    assert history.step(-1) == (2, 5)  # to choose another design is nothing to undo
    history.goes_to(2, 5)  # the run after: what was returned to
    assert history.step(1) == (3, 1)
    assert [history.step(-1)[0], history.step(-1)[0]] == [2, 1]
    assert not history.can(-1)
    history.goes_to(9)
    assert [state for state, _ in history.states] == [1, 9]


def test_the_workload_and_the_designs_share_every_field_of_a_workload_among_them():
    """Nothing that the command line can say of a workload is without a field."""
    of_design, of_all = ({field.key for field in fields} for fields in (common_fields.DESIGN, common_fields.SCENARIO))
    assert not of_design & of_all
    own_file = {"calibrated", "speculative_config"}  # a page reads no files of the machine that it runs on
    assert {asked.key for asked in ASKED.values()} - own_file <= of_design | of_all


@pytest.mark.parametrize("name", presets.PRESETS)
def test_a_preset_is_a_workload(name):
    fields = {field.key: field for field in common_fields.SCENARIO}
    values = presets.PRESETS[name].values
    assert [problem_of(fields[key], value, {}) for key, value in values.items()] == [""] * len(values)
    assert values["prefix"] <= values["input"]


def designs_of(app):
    return app.sidebar.radio[0].options


#: the address of a first visit: its limits
FIRST = fields.query_of(common_fields.SCENARIO, question.OPENING)


def test_the_sidebar_changes_the_tray_and_takes_it_back():
    app = opened("answer")
    assert address_of(app) == FIRST  # what is at its default costs nothing
    assert designs_of(app) == ["fp16", "fp8", r"int4\_per\_token\_head"]
    press(app, "Duplicate")
    app.selectbox(key="quantizer").select("kivi").run()
    assert designs_of(app) == ["fp16", "kivi", "fp8", r"int4\_per\_token\_head"]
    assert address_of(app) == FIRST | {
        "designs": "-~~quantizer.kivi~~quantizer.fp8~~quantizer.int4_per_token_head",
        "at": "2",
    }
    app.text_input(key="tray name").set_value("Two bits").run()
    assert designs_of(app)[1] == "Two bits"
    press(app, "First")
    assert designs_of(app)[0] == "Two bits"
    for _ in range(2):  # the move, the name
        press(app, "Undo")
    assert designs_of(app)[1] == "kivi"
    press(app, "Redo")
    assert designs_of(app)[1] == "Two bits"
    assert app.sidebar.radio[0].value == 1
    press(app, "Delete")
    assert designs_of(app) == ["fp16", "fp8", r"int4\_per\_token\_head"]
    app.sidebar.radio[0].set_value(1).run()
    assert app.selectbox(key="quantizer").value == "fp8"
    app.number_input(key="batch").set_value(8).run()
    assert address_of(app) == FIRST | {"at": "2", "batch": "8"}
    app.selectbox(key="device").select("h100").run()
    press(app, "Undo")  # of the question, as of a design
    assert address_of(app) == FIRST | {"at": "2", "batch": "8"}
    assert app.selectbox(key="device").value == "h200"
    press(app, "Redo")
    assert (address_of(app)["device"], app.selectbox(key="device").value) == ("h100", "h100")
    press(app, "Reset")
    assert address_of(app) == FIRST


def test_a_design_keeps_its_fields_while_another_is_changed():
    app = opened("answer")
    app.sidebar.radio[0].set_value(1).run()
    app.number_input(key="tp").set_value(2).run()
    app.sidebar.radio[0].set_value(0).run()
    assert app.number_input(key="tp").value is None  # all devices
    app.number_input(key="pp").set_value(2).run()
    assert address_of(app)["designs"].split("~~") == ["pp.2", "quantizer.fp8~tp.2", "quantizer.int4_per_token_head"]


def test_one_device_for_all_designs_at_once():
    app = opened("answer")
    app.checkbox(key="tray all").check().run()
    app.selectbox(key="own_device").select("b200").run()
    assert address_of(app)["designs"] == "~~".join(
        ["own_device.b200", "own_device.b200~quantizer.fp8", "own_device.b200~quantizer.int4_per_token_head"]
    )
    app.sidebar.radio[0].set_value(1).run()  # to choose another design changes none
    assert address_of(app)["designs"].count("fp8") == 1


def test_many_designs_are_a_list_to_choose_from_and_a_table():
    text = "~~".join(f"own_batch.{n}" for n in range(1, 11))
    app = opened("answer", designs=text)
    assert not app.exception
    assert len(app.sidebar.radio) == 0
    assert app.selectbox(key="tray at").label == "Designs (10)"
    assert len(app.dataframe[0].value) == 10


def test_a_preset_sets_the_question_of_all():
    app = opened("answer", load="rate")
    app.selectbox(key="use").select("Chat").run()
    assert not app.exception
    assert (app.number_input(key="input").value, app.number_input(key="tpot_limit").value) == (1024, 50.0)
    assert (app.selectbox(key="load").value, app.number_input(key="batch").value) == ("batch", 64)
    assert app.selectbox(key="use").value is None  # what was chosen can be changed on
    assert "64 requests at once" in said(app)
    press(app, "Undo")
    assert address_of(app) == {"load": "rate"}
