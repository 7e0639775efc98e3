"""The published scores of dropping tokens and of dropping bits, as a table of a page."""

import html

from dse import units, validate_tokens

_HEAD = ("method", "tokens", "quantizer", "KV of a prompt (GB)", "FP16 over it", "mean score")


def table_7() -> str:
    """SinkQ's Table 7 as HTML: scores as printed, bytes as this tool computes them."""
    found = validate_tokens.table_7()
    tasks = list(found.columns[found.columns.get_loc("mean_score") + 1 :])
    marks = "".join(
        f'<th scope="col"{" class=n" if i > 2 else ""}>{html.escape(cell)}</th>'
        for i, cell in enumerate((*_HEAD, *tasks))
    )
    gb = units.to_base(1, "GB")
    lines = []
    for row in found.to_dict("records"):
        texts = [html.escape(str(row[name])).replace(",", ",<wbr>") for name in ("method", "tokens", "quantizer")]
        numbers = [f"{row['kv_bytes'] / gb:.3f}", f"{row['compression']:.2f}"]
        numbers += [f"{row[name]:.2f}" for name in ("mean_score", *tasks)]
        cells = "".join(f"<td>{text}</td>" for text in texts) + "".join(f"<td class=n>{text}</td>" for text in numbers)
        lines.append(f"<tr>{cells}</tr>")
    return (
        '<p class="soft">LongBench scores (0 to 100) of Llama2-7B-chat as SinkQ prints them (Table 7): 84 % of the '
        "prompt's tokens evicted, or 2-bit keys and values. Bytes are ours, of a request after a prompt of "
        f"{validate_tokens.PROMPT_TOKENS:,} tokens; StreamingLLM with as many tokens as SnapKV keeps.</p>\n"
        f'<div class="scroll"><table id="sinkq-table-7" class="tight">\n<tr>{marks}</tr>\n'
        f"{chr(10).join(lines)}\n</table></div>"
    )
