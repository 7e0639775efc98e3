"""One design point written down: its result and the operations of its decode step as tables, for `dse plot`."""

from typing import Any

import pandas as pd

from dse.core import files
from dse.model.kv_layout import KvPlan
from dse.questions.operations import decode_step
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import Workload


def write(out: str, device: HardwareSpec, plan: KvPlan, work: Workload, result: dict[str, Any]) -> None:
    """Write point.csv, and operations.csv where the design runs, into directory `out`. Raises OutputError."""
    row = {**result, "assumptions": ", ".join(result["assumptions"])}
    operations = decode_step(device, [plan], work)
    with files.publishing(out) as published:
        published.write("point.csv", files.csv_of(pd.DataFrame([row])))
        if len(operations):
            published.write("operations.csv", files.csv_of(operations))
        else:
            published.remove("operations.csv")  # of another point
