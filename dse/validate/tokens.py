"""SinkQ's Table 7: scores of dropping tokens and of dropping bits, beside the KV bytes that this tool computes."""

import pandas as pd

from dse import quantizers
from dse.core import units
from dse.model import kv_layout
from dse.model.kv_bytes import entered_tokens, limits_for
from dse.model.lower import policy_of
from dse.specs import catalog, tokens
from dse.validate.accuracy import published, quantizer_of

#: Llama 2's context: LongBench prompts fill it
PROMPT_TOKENS = 4096
#: 84 % of the prompt's tokens are evicted after the prompt, none while decoding (SinkQ B.2); H2O in equal halves.
#: StreamingLLM's budget is not printed: its 4 sinks and the last tokens, together as many as SnapKV keeps.
_SHARE, _SINKS = 0.16, 4
POLICIES = {
    "SnapKV": f"snapkv:share={_SHARE}",
    "H2O": f"h2o:heavy={_SHARE / 2},recent={_SHARE / 2},evict=prompt",
    "StreamingLLM": f"streaming:sinks={_SINKS},window={int(_SHARE * PROMPT_TOKENS) - _SINKS}",
}
_MODEL = "llama2-7b"


def table_7() -> pd.DataFrame:
    """One row a method: tokens, quantizer, kv_bytes of one prompt, compression against FP16, mean score, and by task.

    Scores as printed (LongBench, Llama2-7B-chat, 0 to 100 each); bytes are ours, after a prompt of PROMPT_TOKENS.
    """
    scores: dict[str, dict[str, float]] = {}
    for row in published():
        if row["source"] == "SinkQ" and row["table"] == "Table 7":
            scores.setdefault(row["method"], {})[row["task"].removeprefix("longbench_")] = float(row["value"])
    model, fp16_bytes, rows = catalog.model(_MODEL), 0.0, []
    for method, task_scores in scores.items():
        policy = POLICIES.get(method, "full")
        name = "fp16" if method in POLICIES else quantizer_of("SinkQ", method, "") or "fp16"
        side = quantizers.parse(name)
        kv, limits = kv_layout.build(model, side, side), limits_for(policy_of(tokens.parse(policy)), PROMPT_TOKENS)
        entered = entered_tokens(limits, PROMPT_TOKENS)
        bits = sum(g.n_stored_layers * g.bits(min(entered, g.window_tokens, limits.window_tokens)) for g in kv.groups)
        kv_bytes = bits / (units.BITS_PER_BYTE * kv.den)
        fp16_bytes = fp16_bytes or kv_bytes
        rows.append(
            {
                "method": method,
                "tokens": policy,
                "quantizer": side.name,
                "kv_bytes": kv_bytes,
                "compression": fp16_bytes / kv_bytes,
                "mean_score": sum(task_scores.values()) / len(task_scores),
                **task_scores,
            }
        )
    return pd.DataFrame(rows)
