"""The plot that `dse calibrate` writes beside a device file."""

import pandas as pd

from dse.calibrate.fit import Outcome
from dse.figures import FIGURES
from dse.figures.export.image import export


def plots(outcomes: list[Outcome], device: str, stack: str, made_by: str) -> tuple[bytes, bytes]:
    """A page and a picture of predicted against measured times."""
    chart = FIGURES["predicted_measured"].chart(
        pd.concat(
            [
                pd.DataFrame(
                    {
                        "device": device,
                        "stack": stack,
                        "part": one.part,
                        "measured_s": one.measured_s,
                        "predicted_s": one.predicted_s,
                        "held_out": one.held_out,
                    }
                )
                for one in outcomes
            ]
        )
    )
    return export(chart, "html", made_by), export(chart, "png", made_by)
