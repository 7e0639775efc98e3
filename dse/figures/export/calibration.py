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
                        "part": outcome.part,
                        "measured_s": outcome.measured_s,
                        "predicted_s": outcome.predicted_s,
                        "held_out": outcome.held_out,
                    }
                )
                for outcome in outcomes
            ]
        )
    )
    return export(chart, "html", made_by), export(chart, "png", made_by)
