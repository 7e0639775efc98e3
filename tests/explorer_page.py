"""The explorer without a browser, for its tests: the page run with a query, and what it shows."""

import json
import re
from functools import cache

from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from dse.explorer import bench, common_fields, request, tray
from dse.explorer.why.numbers import HEAD

#: seconds until a page counts as stuck: the first run of a quantizer may compile for a minute and more
TIMEOUT_S = 600
#: AppTest reads the metadata of all installed packages for each app, which takes longer than most pages: once will do
manifest_scanner.scan_component_manifests = cache(manifest_scanner.scan_component_manifests)


#: a design and a workload that tests change: one of the first generation's, whose numbers they know
BASE = {
    "device": "a100-80gb",
    "model": "llama2-7b",
    "quantizer": "oaken",
    "batch": "64",
    "input": "1024",
    "admission": "reserve",
}


#: what is drawn only while it is open
BOXES = ("design more", "question more", "question files", "device numbers", "size more", "front more")


def _app(path):
    app = AppTest.from_string(f"from dse.explorer.app import main; main({path!r})", default_timeout=TIMEOUT_S)
    for box in BOXES:
        app.session_state[box] = True
    return app


def opened(path, **query):
    """A page with its boxes open, run once with that query in its URL; "/path" is an address below the host."""
    app = _app("answer" if path.startswith("/") else path)
    for key, value in query.items():
        app.query_params[key] = value
    app._page_hash = calc_hash(path[1:]) if path.startswith("/") else ""
    app.run()
    app._page_hash = ""
    return app


def page(**query):
    """The answer with one design, `BASE` changed by the query."""
    return opened("answer", **{**BASE, **query})


def wrong(app):
    """What the page says in red, as plain text."""
    found = [text.value for text in app.markdown if text.value.startswith(":red[")]
    return [plain(text[5:-1]) for text in found]


def plain(text):
    """Markdown as a reader sees it, without what only escapes."""
    return re.sub(r"\\(.)", r"\1", text).replace("\u2060", "")


def said(app):
    """All that the page says in Markdown and captions, as plain text."""
    return plain("\n".join(text.value for text in (*app.markdown, *app.caption)))


def values_of(**changed):
    """The values of `BASE` and of all that it leaves open, as fields have them."""
    defaults = {field.key: field.default for field in (*common_fields.DESIGN, *common_fields.SCENARIO)}
    return {**defaults, **BASE, "batch": 64, "input": 1024, **changed}


def of(*designs, **workload):
    """The bench of designs, each what differs from the defaults, under a question."""
    values = {field.key: field.default for field in (*common_fields.DESIGN, *common_fields.SCENARIO)} | workload
    own = (
        {{"device": "own_device", "model": "own_model"}.get(key, key): of for key, of in one.items()} for one in designs
    )
    return bench.evaluate(values, tray.Tray(tuple(tray.TrayDesign(values=each) for each in own)))


def asked(**changed):
    """The request of `BASE` with some fields changed."""
    return request.point_request(values_of(**changed))


def command_of(app):
    """The command of the opened design."""
    return next(code.value for code in app.code if code.value.startswith(("dse point", "dse recommend")))


def press(app, label):
    """Press a button of the sidebar."""
    next(button for button in app.sidebar.button if button.label == label).click().run()
    assert not app.exception


def numbers(app):
    """The numbers of the opened design by what the page calls them."""
    rows = (line for text in app.markdown for line in plain(text.value).splitlines() if line.startswith("- "))
    pairs = (row[2:].partition(": **") for row in rows)
    return {name: rest.partition("**")[0] for name, _, rest in pairs}


def every_number(app):
    """Every number of the page Why by what it calls it, of the one design that it shows."""
    tables = [frame.value for frame in app.dataframe if HEAD in frame.value]
    return dict(zip(tables[0][HEAD], tables[0].iloc[:, 1], strict=True)) if tables else {}


def tab_of(app, key):
    """The tabs of a field."""
    return next(group for group in app.get("button_group") if group.key == key)


def address_of(app):
    return {key: "".join(text) for key, text in app.query_params.items()}


def measured_file():
    """A measurement file whose tensors take 4 bits and whose attention output is off by 3/4."""
    tensors = [
        {
            "name": f"layer0.{which}",
            "layer": 0,
            "which": which,
            "n_heads": 1,
            "head_dim": 2,
            "n_tokens": 4,
            "n_elements": 8,
            "stored_bytes": 4,
            "ledger": {"payload": 32},
            "counts": {},
            "squared_error": 1.0,
            "squared_signal": 100.0,
            "max_abs_error": 1.0,
            "output": {"squared": 16.0, "squared_error": 9.0, "squared_error_both": 9.0},
        }
        for which in ("key", "value")
    ]
    data = {"name": "own.npz", "sha256": "0" * 64, "synthetic": False}
    return json.dumps(
        {"format": 1, "data": data, "methods": [{"quantizer": "oaken", "tensors": tensors}]}, indent=1
    ).encode()
