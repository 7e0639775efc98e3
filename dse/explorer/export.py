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
                value = _field(field, f"export {full_name}", kept.get(full_name, getattr(START, field)), chart)
                kept[full_name] = said[field] = value
                try:
                    check(field, value)
                except DseError as error:
                    is_bad = True
                    lines(error.lines()[:1])
    return None if is_bad else replace(START, **said)


def _field(field: str, key: str, start: Any, chart: Chart) -> Any:
    """The widget of a field; a text or number left open means what stands in it in gray."""
    spec = ASKED[field]
    if key not in st.session_state:
        st.session_state[key] = start
    if spec.kind is SWITCH:
        return st.checkbox(spec.label, key=key)
    if isinstance(spec.choices, dict):
        return st.selectbox(
            spec.label, list(spec.choices), key=key, format_func=spec.choices.__getitem__, help=spec.help
        )
    if spec.kind is NUMBER:  # its range is checked with the rest: a widget's own would change what was typed
        return st.number_input(
            spec.label, key=key, value=None, step=1.0, format="%g", help=spec.help, placeholder=_measure(field)
        )
    return st.text_input(spec.label, key=key, placeholder=_default(field, chart), help=spec.help) or None


def _measure(field: str) -> str:
    """Number of the chosen size, shown where the field is empty."""
    from dse.figures.export.image import MM
    from dse.figures.export.look import SIZES

    page = SIZES[st.session_state["export preset"]]
    points = {"width": page.width / MM, "height": page.height and page.height / MM, "font": page.text}[field]
    return f"{points:.0f}" if points else "free"


def _default(field: str, chart: Chart) -> str:
    """The words of the chart that a text replaces."""
    if field == "title":
        return chart.title
    known = {getattr(panel, field[0]).label for panel in chart.panels}
    return known.pop() if len(known) == 1 else "as each panel has"
