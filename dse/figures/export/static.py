"""PNG, SVG and PDF of the figures: by matplotlib, or by kaleido (plotly in a browser) where that is asked for."""

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any, Literal

from dse.core.errors import InputError, install, show
from dse.figures.drawing.chart import Chart
from dse.figures.export.image import export

Static = Literal["auto", "kaleido", "matplotlib"]
FORMATS = ("png", "svg", "pdf")
#: seconds for a single image; a browser that hangs must not hang the report
TIMEOUT_S = 60
#: a PNG of 2,000 pixels across
PNG_SCALE = 2


def check(static: str) -> None:
    """Raises InputError for anything but the three choices, and for kaleido where it cannot run."""
    if static not in ("auto", "kaleido", "matplotlib"):
        raise InputError(f"static = {show(static)}: must be one of auto, kaleido, matplotlib")
    if static == "kaleido" and (missing := kaleido_missing()):
        raise InputError(f"static = kaleido: {missing}: use --static matplotlib")


def kaleido_missing() -> str:
    """Part that kaleido lacks to run, empty for none."""
    if importlib.util.find_spec("kaleido") is None:
        return f"kaleido is not installed ({install('export')})"
    try:
        from choreographer.browsers.chromium import Chromium

        browser = Chromium.find_browser(skip_local=False)
    except Exception as error:  # choreographer's own search differs between versions
        return f"no browser found ({type(error).__name__})"
    return "" if browser else "no Chrome or Chromium found"


class Painter:
    """Draws charts as static files; `name` says with what."""

    def __init__(self, static: str) -> None:
        self.name = "kaleido" if static == "kaleido" else "matplotlib"

    def images(self, chart: Chart, made_by: str) -> dict[str, bytes]:
        """The chart in every format of FORMATS. What `made_by` says stands in matplotlib's files (`export.image`)."""
        if self.name == "matplotlib":
            return {name: export(chart, name, made_by) for name in FORMATS}
        try:
            return _by_kaleido(chart)
        except Exception as error:  # whatever a browser may do wrong
            raise InputError(f"kaleido could not draw ({type(error).__name__}): use --static matplotlib") from error


def _by_kaleido(chart: Chart) -> dict[str, bytes]:
    import kaleido

    from dse.figures.drawing import to_plotly

    figure: dict[str, Any] = to_plotly.figure(chart).to_dict()
    size = {"width": figure["layout"]["width"], "height": figure["layout"]["height"]}
    images = {}
    for name in FORMATS:
        options = {"format": name, **size, "scale": PNG_SCALE if name == "png" else 1}
        images[name] = kaleido.calc_fig_sync(figure, opts=options)
        if not images[name]:
            raise RuntimeError("empty image")
    return images


@contextlib.contextmanager
def painter(static: str) -> Iterator[Painter]:
    """A Painter whose browser, if any, runs as long as the block. No network: plotly.js comes from the package."""
    brush = Painter(static)
    server = False
    if brush.name == "kaleido":
        try:
            import kaleido

            kaleido.start_sync_server(n=1, timeout=TIMEOUT_S, mathjax=False, silence_warnings=True)
            server = True
        except Exception as error:
            raise InputError(f"kaleido did not start ({type(error).__name__}): use --static matplotlib") from error
    try:
        yield brush
    finally:
        if server:
            with contextlib.suppress(Exception):
                kaleido.stop_sync_server(silence_warnings=True)
