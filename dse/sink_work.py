"""SinkQ's own work beside that of KIVI, whose core it shares: scores of the pool, and choosing sinks every G steps."""

from dataclasses import dataclass

from dse import packing
from dse.formulas import attention, sink_work
from dse.plan import KvPlan
from dse.workload import Workload

#: times that choosing sinks reads a group: keys for magnitude and mean, values for their mean (SinkQ 3.2, Appendix C)
CHOICE_READS = {"key": 2, "value": 1}


@dataclass(frozen=True)
class SinkSeconds:
    """Mean seconds of a decode step: moving the pool's scores, and the 1/G of a choice of sinks."""

    scores_s: float
    choice_s: float


def seconds(plan: KvPlan, work: Workload, n_sequences: int, bandwidth_bytes_per_s: float) -> SinkSeconds:
    """Traffic over bandwidth, for `n_sequences`; 0 where no method keeps a pool. Launches are counted elsewhere."""
    scores = chosen = 0.0
    for g in plan.groups:
        rows = float(g.layout.pool_rows)
        if rows:
            n_steps = packing.steps_with_packed(g, work.input_tokens + 1, work.final_tokens)
            scores += n_steps * g.n_read_layers * sink_work.sink_score_bytes(plan.model.n_q_heads, rows)
            n_packed = packing.packed_ever(g, work.final_tokens) - packing.packed_ever(g, work.input_tokens)
            each = sink_work.sink_choice_bytes(CHOICE_READS[g.which], n_packed, g.n_elements)
            chosen += g.n_stored_layers * each
    scale = n_sequences / work.output_tokens
    return SinkSeconds(*(attention.time_at_rate(scale * n, bandwidth_bytes_per_s) for n in (scores, chosen)))
