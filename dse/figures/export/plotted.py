"""The plotly figure that `dse.plot` gives."""

import importlib.util
from typing import Any

import plotly.graph_objects as go

from dse.core.errors import InputError, install


class PlottedFigure(go.Figure):  # type: ignore[misc]
    """A plotly figure that says in a line what its images lack."""

    def write_image(self, *args: Any, **options: Any) -> None:
        """Write an image by kaleido. Raises InputError where that cannot run."""
        if missing := _kaleido_lacks():
            raise InputError(f"write_image: {missing}: or give plot(out='figure.png'), which needs none")
        super().write_image(*args, **options)


def _kaleido_lacks() -> str:
    """Part that kaleido (plotly in a browser) lacks to run, empty for none."""
    if importlib.util.find_spec("kaleido") is None:
        return f"kaleido is not installed ({install('export')})"
    try:
        from choreographer.browsers.chromium import Chromium

        browser = Chromium.find_browser(skip_local=False)
    except Exception as error:  # choreographer's own search differs between versions
        return f"no browser found ({type(error).__name__})"
    return "" if browser else "no Chrome or Chromium found"
