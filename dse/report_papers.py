"""The part of the validation page with the papers' experiments: NQKV Table 4, Figures 8 and 9; Oaken Figure 3."""

import html

import pandas as pd

from dse import units, validate_papers, web_page
from dse.plots import memory_limit, utilisation_batch
from dse.plots.chart import Chart


def tables() -> dict[str, pd.DataFrame]:
    """Every table of this part by name, as it is written beside the page."""
    return {
        "nqkv_table_4": validate_papers.nqkv_table_4(),
        "nqkv_figure_8": validate_papers.nqkv_memory("batch"),
        "nqkv_figure_9": validate_papers.nqkv_memory("input_tokens"),
        "oaken_figure_3": validate_papers.oaken_utilisation(),
    }


_WHOLE = (
    "SmoothQuant and NQKV run W8A8. Weights, keys and values, activations of the whole prompt (logits included), FP16 "
    "workspace of one layer."
)


FIGURES = ("nqkv_figure_8", "nqkv_figure_9", "oaken_figure_3")


def chart(name: str, table: pd.DataFrame) -> Chart:
    """The figure of that name in FIGURES, of its table in `tables`."""
    model, length = validate_papers.FIGURE_MODEL, validate_papers.FIGURE_INPUT_TOKENS
    if name == "nqkv_figure_8":
        return memory_limit.chart(
            f"Memory against batch, {model} on an A100, {length} tokens in (NQKV Figure 8)", "batch", "sequences",
            table, _WHOLE,
        )  # fmt: skip
    if name == "nqkv_figure_9":
        return memory_limit.chart(
            f"Memory against prompt length, {model} on an A100, batch {validate_papers.FIGURE_LENGTH_BATCH} "
            "(NQKV Figure 9)", "input_tokens", "tokens", table,
            f"{_WHOLE} The paper does not state the batch.",
        )  # fmt: skip
    return utilisation_batch.chart(
        f"Use of the peaks, {validate_papers.UTILISATION_MODEL} FP16 on an A100, 1K in, 1K out (Oaken Figure 3)",
        table, "Kernels as measured (vLLM); the paper shows busy cores. Each operation over its own time.",
    )  # fmt: skip


def parts(found: dict[str, pd.DataFrame]) -> list[str]:
    """HTML: the table with published numbers beside ours, then the figures."""
    drawn = [
        f'<div class="scroll"><div class="paper">{web_page.fragment(chart(name, found[name]), name)}</div></div>'
        for name in FIGURES
    ]
    links = ", ".join(f'<a href="tables/{name}.csv">{name}</a>' for name in found)
    return [
        "<h3>NQKV Table 4: throughput and peak memory</h3>",
        '<p class="soft">SmoothQuant is W8A8 on the INT8 peak. The paper\'s times hold its PyTorch framework, several '
        f"times the kernels', so the ratios compare better than the speeds. {_WHOLE} Tables: {links}.</p>",
        _table_4(found["nqkv_table_4"]), *drawn,
    ]  # fmt: skip


def _table_4(found: pd.DataFrame) -> str:
    head = ("model", "batch", "in", "system", "token/s, paper", "ideal", "calibrated", "NQKV over it, paper", "ideal",
            "calibrated", "peak GB, paper", "ours")  # fmt: skip
    cells = "".join(
        f'<th scope="col"{" class=n" if i not in (0, 3) else ""}>{cell}</th>' for i, cell in enumerate(head)
    )
    lines = []
    for _, row in found.iterrows():
        speeds = [_shown(row[f"{kind}_tokens_per_s"], 1) for kind in ("published", "ideal", "calibrated")]
        ratios = [_shown(row[f"{kind}_ratio"], 2) for kind in ("published", "ideal", "calibrated")]
        sizes = [_shown(row[name] / units.to_base(1, "GB"), 1) for name in ("published_bytes", "ours_bytes")]
        lines.append(
            f"<tr><td class=name>{html.escape(row['model'])}</td><td class=n>{row['batch']}</td>"
            f"<td class=n>{row['input_tokens']}</td><td class=name>{html.escape(row['system'])}</td>"
            + "".join(f"<td class=n>{text}</td>" for text in (*speeds, *ratios, *sizes))
            + "</tr>"
        )
    body = "\n".join(lines)
    return (
        f'<div class="scroll"><table class="tight"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _shown(value: float, digits: int) -> str:
    return "out of memory" if pd.isna(value) else f"{value:,.{digits}f}"
