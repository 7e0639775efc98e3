"""The dialog that draws a figure otherwise: title, size, texts, legend and notes, with a preview, and its files."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st

from dse.core.errors import DseError
from dse.core.field import NUMBER, SWITCH
from dse.explorer.widgets import lines, problem
from dse.figures.drawing.chart import Chart
from dse.figures.drawing.layout import Page
from dse.specs.look import ASKED, Look

#: format of a download -> its media type
FORMATS = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
}
#: of these, what has the numbers alone
TABLES = ("csv", "parquet")
#: what a figure is exported as, where the reader says nothing else
START = Look(preset="report")
#: fields of a figure's own words; the others are the same for all figures of a session
_OWN = ("title", "x_label", "y_label")
#: session key: the fields as the reader left them, which Streamlit forgets with the dialog
_KEPT = "export kept"
#: fields a row of the dialog
_ROWS = (
    ("title",),
    ("preset", "legend"),
    ("width", "height", "font"),
    ("x_label", "y_label"),
    ("shows_title", "shows_notes"),
)
#: what makes a file of a chart on a page, and says in it how it was made
Content = Callable[[Chart, Page | None, str, str], bytes]


@st.dialog("Export a figure", width="large")
def show(name: str, chart: Chart, content: Content) -> None:
    """The fields, the picture that they give, and a button for each file.

    `content` makes a file of the chart, its page, the format, and the options of `dse plot` that look the same.
    """
    from dse.figures.export.image import preview, size_text
    from dse.figures.export.look import applied

    asking, seeing = st.columns([2, 3], gap="medium")
    with asking:
        look = _fields(name, chart)
    with seeing:
        page: Page | None = None
        options, drawn = "", chart
        if look is None:
            st.info("The picture comes back when the fields in red are mended.")
        else:
            try:
                drawn, page = applied(look, chart)
                st.image(preview(drawn, page), alt=f"Preview: {drawn.title}")
            except DseError as error:
                page = None
                problem(error)
            else:
                options = look.options
                st.caption(f"{size_text(drawn, page)}. " + ("As options of `dse plot`:" if options else ""))
                if options:
                    st.code(options, language="bash", wrap_lines=True)
        file_buttons(name, f"{name} export", lambda kind: content(drawn, page, kind, options), page is not None)


def file_buttons(name: str, key: str, content: Callable[[str], bytes], has_picture: bool = True) -> None:
    """A button for each file of a figure, which `content` makes when it is pressed."""
    with st.container(horizontal=True):
        for kind, media in FORMATS.items():
            st.download_button(
                "Parquet" if kind == "parquet" else kind.upper(),
                partial(content, kind),
                f"{name}.{kind}",
                media,
                key=f"{key} {kind}",
                on_click="ignore",
                disabled=not has_picture and kind not in TABLES,
            )


def _fields(name: str, chart: Chart) -> Look | None:
    """The look that the fields say; None where one of them cannot be used, which stands beside it."""
    from dse.figures.export.look import check

    kept = st.session_state.setdefault(_KEPT, {})
    said: dict[str, Any] = {}
    is_bad = False
    for row in _ROWS:
        for place, field in zip(st.columns(len(row)), row, strict=True):
            with place:
                full_name = f"{name} {field}" if field in _OWN else field
                value = _field(field, f"export {full_name}", kept.get(full_name, getattr(START, field)), chart.title)
                kept[full_name] = said[field] = value
                try:
                    check(field, value)
                except DseError as error:
                    is_bad = True
                    lines(error.lines()[:1])
    return None if is_bad else replace(START, **said)


def _field(field: str, key: str, start: Any, title: str) -> Any:
    """The widget of a field; one left open leaves the chart as it is."""
    spec = ASKED[field]
    st.session_state.setdefault(key, start)
    if spec.kind is SWITCH:
        return st.checkbox(spec.label, key=key)
    if isinstance(spec.choices, dict):
        words = spec.choices.__getitem__
        return st.selectbox(spec.label, list(spec.choices), key=key, format_func=words, help=spec.help)
    if spec.kind is NUMBER:  # its range is checked with the rest: a widget's own would change what was typed
        return st.number_input(spec.label, key=key, value=None, step=1.0, format="%g", help=spec.help)
    return st.text_input(spec.label, key=key, placeholder=title if field == "title" else None, help=spec.help) or None
