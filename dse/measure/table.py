"""The table and the summary of a measurement, as Parquet, JSON and text."""

import io
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import pandas as pd

from dse.core import units
from dse.core.columns import Column, aligned, cells
from dse.core.documents import json_text
from dse.measure.errors import ATTENTION_SUMS, TENSOR_SUMS, pooled, ratios
from dse.measure.source import About
from dse.specs.measurements import Data
from kernels_ref import PARTS

#: columns of the table in order; docs/reference/dumps.md says what each is
KEYS = ("method", "layer", "side", "head", "context_tokens")
RATIOS = ("stored_bits", "sqnr_db", "mse", "max_abs_error", "cosine", "output_error", "mass_moved", "kl_nats")
LEDGER = tuple(f"{part}_bits" for part in PARTS)
COLUMNS = (
    *KEYS,
    "n_elements",
    *RATIOS,
    "n_queries",
    "queries",
    *LEDGER,
    *TENSOR_SUMS,
    *ATTENTION_SUMS[:2],
    "data",
    "synthetic",
)


def of(rows: Iterable[dict[str, Any]], data: Data) -> pd.DataFrame:
    """The table: a row a method, layer, side, head and context; head is missing for all heads of a layer together.

    Bits are those of whole tensors, so they stand in the rows of all heads together; bits of the parts are a stored
    element's share.
    """
    records = []
    for row in rows:
        whole = {**row, **ratios(row), "data": data.name, "synthetic": data.synthetic}
        if "stored_bytes" in row:
            whole["stored_bits"] = units.BITS_PER_BYTE * row["stored_bytes"] / row["n_elements"]
            whole.update({f"{part}_bits": row["ledger"].get(part, 0) / row["n_elements"] for part in PARTS})
        records.append(tuple(whole.get(name) for name in COLUMNS))
    table = pd.DataFrame(records, columns=list(COLUMNS))
    numbers = [name for name in COLUMNS if name not in ("method", "side", "queries", "data", "synthetic")]
    whole_numbers = {"layer", "head", "context_tokens", "n_elements", "n_queries"}
    return table.astype({name: "Int64" if name in whole_numbers else "float64" for name in numbers})


def parquet(table: pd.DataFrame) -> bytes:
    """The table as a Parquet file."""
    content = io.BytesIO()
    table.to_parquet(content, index=False)
    return content.getvalue()


def summary(rows: list[dict[str, Any]], data: Data, about: About, lengths: list[int]) -> dict[str, Any]:
    """Per method, context and side, all layers pooled: bits and errors; with what was measured."""
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["head"] is None:
            groups.setdefault((row["method"], row["context_tokens"], row["side"]), []).append(row)
    pooled_rows = []
    for (method, n_tokens, side), group in groups.items():
        total = pooled(group)
        n = total["n_elements"]
        pooled_rows.append(
            {
                "method": method,
                "context_tokens": n_tokens,
                "side": side,
                "stored_bits": units.BITS_PER_BYTE * sum(row["stored_bytes"] for row in group) / n,
                **ratios(total),
                "ledger_bits": {
                    part: bits / n for part in PARTS if (bits := sum(r["ledger"].get(part, 0) for r in group))
                },
                "n_queries": total.get("n_queries", 0),
                "queries": total.get("queries"),
            }
        )
    return {
        "data": data.name,
        "sha256": data.sha256,
        "model": about.model,
        "rope": about.rope,
        "synthetic": data.synthetic,
        "note": data.note,
        "contexts": lengths,
        "rows": pooled_rows,
    }


def json_of(summary: dict[str, Any]) -> bytes:
    """A summary as JSON."""
    return (json_text(summary, 1) + "\n").encode()


_COLUMNS = (
    Column("method"),
    Column("side"),
    Column("context_tokens", title="tokens", form=","),
    Column("stored_bits", title="bits", form=".4g"),
    Column("sqnr_db", title="SQNR dB", form=".4g"),
    Column("mse", title="MSE", form=".4g"),
    Column("max_abs_error", title="largest", form=".4g"),
    Column("cosine", form=".5f"),
    Column("output_error", title="output error", form=".4g"),
    Column("mass_moved", title="moved", form=".4g"),
    Column("kl_nats", title="KL nats", form=".4g"),
)


def text(summary: dict[str, Any]) -> str:
    """The summary for the terminal: all at the longest context, then the output error by context."""
    longest = summary["contexts"][-1]
    about = ", ".join(part for part in (summary["model"], f"keys {summary['rope']} RoPE") if part)
    lines = [f"{summary['data']} ({about})" + ("  (synthetic)" if summary["synthetic"] else "")]
    lines += ["", *aligned(cells(_COLUMNS, [row for row in summary["rows"] if row["context_tokens"] == longest]), 2)]
    if len(summary["contexts"]) > 1:
        errors: dict[str, dict[Any, Any]] = {}
        for row in summary["rows"]:
            if row["side"] == "both":
                errors.setdefault(row["method"], dict(row))[row["context_tokens"]] = row["output_error"]
        at = [Column("", title=f"{n:,}", form=".4g", value=itemgetter(n)) for n in summary["contexts"]]
        lines += (
            ["", *aligned(cells([Column("method", title="output error at"), *at], errors.values()), 1)]
            if errors
            else []
        )
    drawn = {row["queries"] for row in summary["rows"] if row["queries"]}
    lines += ["", f"queries: {', '.join(sorted(drawn))}"] if drawn else []
    lines += [f"note: {note}" for note in summary["notes"]]
    return "\n".join(lines)
