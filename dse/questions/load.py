"""What requests wait at a load: time per output token and to the first, as a server is asked for more a second."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from dse.model.kv_layout import KvPlan
from dse.serving.at_rate import at_rate
from dse.serving.steady_state import FixedLengths, steady
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import Workload

#: shares of what a server that is always full serves; above the last the closed form does not hold
LOADS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
COLUMNS = (
    "load", "requests_per_s", "tokens_per_s", "tpot_s", "ttft_s", "running_requests", "prompt_share",
)  # fmt: skip


def under_load(device: HardwareSpec, plan: KvPlan, work: Workload, loads: Sequence[float] = LOADS) -> pd.DataFrame:
    """Means over requests of the workload's lengths that come at random, a row a load.

    A load is the share of the requests per second that the server serves when it is always full
    (`dse.serving.steady_state.steady`); times are those of `dse.serving.at_rate.at_rate`, with its errors. Rates that
    do not hold have no row. `attrs["full_requests_per_s"]` is the rate of a full server, None where nothing fits.
    Raises InputError for a prefix or a token policy.
    """
    moments = FixedLengths(work.input_tokens, work.output_tokens)
    full = steady(device, plan, work, moments)["requests_per_s"]
    rows: list[dict[str, Any]] = []
    for load in loads if full else ():
        rate = load * full
        found = at_rate(device, plan, work, moments, rate)
        if found is not None:
            values = (load, rate, rate * work.output_tokens, found.tpot_s, found.ttft_s, found.running)
            rows.append(dict(zip(COLUMNS, (*values, found.prompt_share), strict=True)))
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    table.attrs["full_requests_per_s"] = full
    return table
