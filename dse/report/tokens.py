"""The published scores of dropping tokens and of dropping bits, as a table of a page (templates/tokens.html)."""

from typing import Any

from dse.core import units
from dse.validate import tokens

_HEAD = ("method", "tokens", "quantizer", "KV of a prompt (GB)", "FP16 over it", "mean score")


def table_7_text() -> dict[str, Any]:
    """SinkQ's Table 7 for its template: the head, and of each row the names and the numbers as text."""
    table = tokens.table_7()
    tasks = list(table.columns[table.columns.get_loc("mean_score") + 1 :])
    gb = units.to_base(1, "GB")
    lines = []
    for row in table.to_dict("records"):
        names = [str(row[name]) for name in ("method", "tokens", "quantizer")]
        numbers = [f"{row['kv_bytes'] / gb:.3f}", f"{row['compression']:.2f}"]
        numbers += [f"{row[name]:.2f}" for name in ("mean_score", *tasks)]
        lines.append((names, numbers))
    return {"prompt": f"{tokens.PROMPT_TOKENS:,}", "head": [*_HEAD, *tasks], "lines": lines}
