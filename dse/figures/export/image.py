"""A figure or its table as the bytes of a file that says what made it: PNG, SVG, PDF, HTML, CSV, Parquet.

The same chart, page and text give the same bytes: no date is in any of them.
"""

import io
from typing import Literal, get_args

import pandas as pd

from dse.core import files
from dse.core.errors import InputError, clean, did_you_mean, show
from dse.core.version import VERSION
from dse.figures.drawing import fit, page_layout, to_matplotlib
from dse.figures.drawing.chart import Chart
from dse.figures.drawing.layout import REPORT, Page
from dse.figures.export import web_page
from dse.model.results import RESULT_UNITS

Format = Literal["png", "svg", "pdf", "html", "csv", "parquet"]
FORMATS: tuple[str, ...] = get_args(Format)
#: formats that have the size of a page
SIZED = to_matplotlib.FORMATS
#: points of a millimetre
MM = 72 / 25.4
#: pages that figures are drawn for: a column of a paper, both of them, a slide of 16:9 (13.33 x 7.5 inches)
PRESETS = {
    "paper": Page("paper", width=85 * MM, title=8.0, panel=8.0, line=0.75, mark=0.8),
    "paper-wide": Page("paper-wide", width=178 * MM, title=8.0, panel=8.0, line=0.75, mark=0.8),
    "slide": Page(
        "slide",
        width=960.0,
        height=540.0,
        title=24.0,
        panel=18.0,
        text=18.0,
        note=18.0,
        line=2.2,
        mark=1.9,
        max_note_lines=2,
    ),
}
#: dots an inch of a preview
PREVIEW_DPI = 110
#: characters of a command that a file keeps
MAX_MADE_BY = 4000


def export(
    chart: Chart,
    format: str,
    made_by: str,
    table: pd.DataFrame | None = None,
    page: Page = REPORT,
    question: str = "",
    is_beside: bool = False,
) -> bytes:
    """The chart in one of FORMATS, drawn for `page`; CSV and Parquet hold the rows of `table` behind it.

    `made_by` is the command, or the state of the explorer, that makes it again; it stands with dse's version in PDF's
    Info, PNG's tEXt, SVG's metadata, Parquet's schema, and in the head and beneath the figure of HTML. CSV has no
    place for it. `question` stands above the figure of HTML, whose plotly.js may lie beside it (plotly.min.js).
    Raises InputError for an unknown format or one whose rows are missing, LimitError for a page that is too small.
    """
    made_by = clean(made_by, MAX_MADE_BY)
    if format in SIZED:
        return to_matplotlib.image(chart, format, page, metadata(chart, format, made_by))
    if format == "html":
        return web_page.figure_page(chart, made_by, question, is_beside).encode()
    if format not in FORMATS:
        raise InputError(f"format = {show(format)}: {did_you_mean(format, FORMATS)}")
    if table is None:
        raise InputError(f"format = {format}: needs the table behind the figure")
    return files.csv_of(table) if format == "csv" else parquet(table, made_by)


def images(chart: Chart, made_by: str) -> dict[str, bytes]:
    """The chart as PNG, SVG and PDF, by ending."""
    return {name: export(chart, name, made_by) for name in SIZED}


def preview(chart: Chart, page: Page) -> bytes:
    """The picture of `export` as a PNG for the screen. Raises LimitError for a page that is too small."""
    return to_matplotlib.image(chart, "png", page, dpi=PREVIEW_DPI)


def size_text(chart: Chart, page: Page) -> str:
    """Width and height of the picture, as 85 x 60 mm."""
    place = page_layout.on(fit.fitted(chart, page), page)
    return f"{place.width / MM:.0f} x {place.height / MM:.0f} mm"


def metadata(chart: Chart, format: str, made_by: str) -> dict[str, str]:
    """Metadata of an image under the names that its format knows."""
    notes, tool = " ".join(chart.notes), f"dse {VERSION}"
    if format == "pdf":
        return {"Title": chart.title, "Subject": f"Made by: {made_by}", "Keywords": notes, "Creator": tool}
    creator = {"Software": tool} if format == "png" else {"Creator": tool}
    return {"Title": chart.title, "Source": made_by, "Description": notes, **creator}


def parquet(table: pd.DataFrame, made_by: str = "") -> bytes:
    """Parquet with the unit of each column in its metadata, and what made it where that is given."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = pa.Table.from_pandas(table, preserve_index=False)
    fields = [field.with_metadata({"unit": RESULT_UNITS.get(field.name, "")}) for field in arrow.schema]
    about = {"made_by": made_by, "dse_version": VERSION} if made_by else {}
    buffer = io.BytesIO()
    pq.write_table(arrow.cast(pa.schema(fields, metadata={**(arrow.schema.metadata or {}), **about})), buffer)
    return buffer.getvalue()
