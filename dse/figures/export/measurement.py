"""The files of a measurement for people: a page with its figures, and the figures as PNG, SVG and PDF."""

import pandas as pd

from dse.core import files
from dse.figures import FIGURES
from dse.figures.export import image, web_page
from dse.figures.source import Source
from dse.measure import table
from dse.measure.parts import PAGE, TABLE
from dse.measure.run import FinishedMeasurement

#: whose figures stand on the page
COMMAND = "dse measure SOURCE --out DIR"


def write(finished: FinishedMeasurement, command: str) -> str:
    """Write figures and page into the measurement's directory; the path of the page. Raises OutputError."""
    tables = {"summary.json": pd.DataFrame(finished.summary["rows"]), "measured": finished.table}
    about = {"synthetic": finished.file.data.synthetic}
    drawn = {
        name: figure.drawn(Source(tables[figure.written.stems[0]], about=about))
        for name, figure in FIGURES.items()
        if figure.written.command == COMMAND
    }
    charts = {name: chart for name, chart in drawn.items() if chart}
    with files.publishing(str(finished.folder)) as published:
        for name, chart in charts.items():
            for kind, content in image.images(chart, command).items():
                published.write(f"{name}.{kind}", content)
        page = web_page.render(
            "measurement.html",
            title=_title(finished),
            charts=charts,
            formats=image.SIZED,
            table=TABLE,
            text=table.text(finished.summary),
            made_by=command,
        )
        return str(published.write(PAGE, page.encode()))


def _title(finished: FinishedMeasurement) -> str:
    return f"Measured errors on {finished.file.data.name}" + (" (synthetic)" if finished.file.data.synthetic else "")
