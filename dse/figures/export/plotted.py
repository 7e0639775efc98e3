"""The plotly figure that `dse.plot` gives."""

from typing import Any

import plotly.graph_objects as go

from dse.core.errors import InputError
from dse.figures.export.static import kaleido_missing


class PlottedFigure(go.Figure):  # type: ignore[misc]
    """A plotly figure that says in a line what its images lack."""

    def write_image(self, *args: Any, **options: Any) -> None:
        """Write an image by kaleido. Raises InputError where that cannot run."""
        if missing := kaleido_missing():
            raise InputError(f"write_image: {missing}: or give plot(out='figure.png'), which needs none")
        super().write_image(*args, **options)
