"""Every page without a browser: each of its widgets is moved once, and says what it is for."""

import importlib

import pytest

from dse.explorer import common_fields
from dse.explorer.app import PAGES
from dse.explorer.fields import sort_of
from dse.explorer.pages import why
from dse.explorer.why import form, numbers, what_if
from explorer_page import opened

pytestmark = pytest.mark.usefixtures("few_cells")
MODULES = {page.path: importlib.import_module(page.module) for page in PAGES}
#: texts that fields take, and choices that keep a test short
TEXTS = {"lab_compared": "int8; kivi:bits=4", "budget": "900/h", "price": "h100=2.5"}
CHOICES = {"size_devices": ["h100"], "engines": ["vllm"], "size_quantizers": ["fp8"]}
#: drawn as tabs; those at the end of whose key stands "tab" hide what is not chosen
TABS = ("trust_by", "trust_tab", "size_tab")
#: layers and heads that the dump has
NUMBERS = {"lab_layer": 1, "lab_head": 1}


def other(field):
    """A value of the field that is not its default, where it has one."""
    name = field.key
    if sort_of(field) == "text":
        return TEXTS[name]
    if sort_of(field) == "switch":
        return not field.default
    if sort_of(field) in ("whole", "number"):
        return NUMBERS.get(name, 32)
    if name in CHOICES:
        return CHOICES[name]
    found = [option for option in field.options() if option != field.default]
    return found[:1] if sort_of(field) == "choices" else (found or [field.default])[0]


def widget(app, field):
    if field.key in TABS:
        return app.button_group(key=field.key)
    kinds = {"choice": app.selectbox, "choices": app.multiselect, "switch": app.checkbox, "text": app.text_input}
    return kinds.get(sort_of(field), app.number_input)(key=field.key)


def is_drawn(app, field):
    try:
        return widget(app, field) is not None
    except KeyError:
        return False


def move(app, fields):
    for field in fields:
        widget(app, field).set_value(other(field))
    app.run()
    assert not app.exception
    for field in fields:
        assert widget(app, field).value == other(field), field.key


@pytest.mark.parametrize("path", [path for path in MODULES if MODULES[path].FIELDS and path != "why"])
@pytest.mark.slow
def test_each_widget_of_a_page_is_moved(path):
    app = opened(path)
    assert not app.exception
    fields = list(MODULES[path].FIELDS)
    hiding = next((field for field in fields if field.key.endswith("_tab")), None)
    left = [field for field in fields if field is not hiding]
    for tab in hiding.options() if hiding else [None]:
        if hiding:
            widget(app, hiding).set_value(tab).run()
        here = [field for field in left if is_drawn(app, field)]
        left = [field for field in left if field not in here]
        move(app, here)
        labelled(app)
    assert left == []


#: fields of the page Why by the tab, and what is chosen within it, that draws them
OF_WHY = {
    "numbers": {"": (numbers.NUMBER,)},
    "what-if": {"what_if=map": (what_if.MEASURE, what_if.AGAINST)},
    "error": {
        "": (form.COMPARED,),  # one sample, nothing to choose of dumps
        **{f"lab_view={view}": fields for view, fields in form.OF_VIEW.items() if fields},
    },
}


@pytest.mark.parametrize(("tab", "place"), [(tab, place) for tab, places in OF_WHY.items() for place in places])
@pytest.mark.slow
def test_each_widget_of_a_tab_is_moved(tab, place):
    app = opened("why", why=tab, **dict([place.split("=")] if place else []))
    assert not app.exception
    move(app, OF_WHY[tab][place])
    labelled(app)


def test_tabs_have_every_field_of_their_page():
    moved = {field.key for places in OF_WHY.values() for fields in places.values() for field in fields}
    not_moved = {field.key for field in (why.TAB, what_if.WHAT, form.VIEW, form.DATA)}
    assert {field.key for field in why.FIELDS} == moved | not_moved


@pytest.mark.parametrize("load", common_fields.AMOUNTS)
def test_each_load_has_its_amount_and_sessions_what_they_do(load):
    app = opened("answer", designs="quantizer.fp8")
    app.selectbox(key="load").select(load).run()
    amounts = [field for name, field in common_fields.AMOUNTS.items() if name == load]
    of_sessions = common_fields.OF_SESSIONS if load == "sessions" else ()
    drawn = {str(widget.key) for widget in (*app.number_input, *app.text_input)}
    wanted = {field.key for field in (*amounts, *of_sessions)}
    assert drawn & {field.key for field in (*common_fields.AMOUNTS.values(), *common_fields.OF_SESSIONS)} == wanted
    labelled(app)


#: their label says what they are for
PLAIN = ("add ", "find")


def labelled(app):
    """Each widget and each number has a label, and a tooltip or a glossary's word that says what it is."""
    widgets = [
        *app.selectbox,
        *app.multiselect,
        *app.number_input,
        *app.text_input,
        *app.checkbox,
        *app.metric,
        *app.file_uploader,
    ]
    assert widgets
    assert [w for w in widgets if not w.label] == []
    bare = [w.label for w in widgets if not w.help and not str(w.key).startswith(PLAIN)]
    assert bare == []


def test_every_field_that_pages_share_has_a_tooltip():
    assert [field.key for field in (*common_fields.DESIGN, *common_fields.SCENARIO) if not field.help] == []
