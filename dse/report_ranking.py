"""The part of the validation page that says where our language models rank quantizers as the papers do."""

import html
from functools import cache

import pandas as pd

from dse.lm import ranking
from dse.lm.study_table import SURE

#: pairs in the other order that the page names
MAX_PAIRS = 8


@cache
def table() -> pd.DataFrame:
    """A row a published table and model, as it is written beside the page."""
    return ranking.table()


def parts() -> list[str]:
    """HTML: what is compared, a row a paper's table and a model of ours, and the pairs that are surely unlike."""
    shown = ranking.summary(table())
    names = [str(name) for name in shown.columns]
    right = {"paper's models", "pairs", "same order", "surely the same", "surely other", "undecided", "mean tau"}
    head = "".join(f'<th scope="col"{" class=n" if name in right else ""}>{html.escape(name)}</th>' for name in names)
    lines = "\n".join(
        "<tr>" + "".join(
            f"<td{' class=n' if name in right else ''}>{html.escape(str(cell))}</td>"
            for name, cell in zip(names, row, strict=True)
        ) + "</tr>"
        for row in shown.to_numpy(dtype=object)
    )  # fmt: skip
    return [
        '<h3 id="ranking">Where the small language models that ship rank alike</h3>',
        '<p class="soft">Perplexity of mha and gqa (docs/language_model.md) under the same methods, beside the order '
        "of each published table; nothing is claimed for the papers' models. Of the pairs that a table ranks: in the "
        f"same order here; of these, and of the others, those that differ here by more than {SURE:g} standard errors "
        "(of the difference, window by window); those that do not (undecided). FP16 counts as a method. Kendall's tau: "
        "1 the same order, -1 the reverse, 0 by "
        "chance. Oaken Table 3 and SinkQ Tables 3 and 4 compare settings of one method. Table: <a "
        'href="tables/ranking.csv">CSV</a>.</p>',
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>',
        f'<p class="soft">{html.escape(unlike())}</p>',
    ]  # fmt: skip


def unlike() -> str:
    """The pairs of methods that are surely in the other order, with how often, as a sentence."""
    found = ranking.unlike(table())
    if not found:
        return "No pair of methods is surely in the other order."
    named = [f"{pair} ({n})" for pair, n in list(found.items())[:MAX_PAIRS]]
    rest = f" and {len(found) - MAX_PAIRS} more" if len(found) > MAX_PAIRS else ""
    return (
        "Surely in the other order, the paper's better method first, with the number of the paper's and our models: "
        f"{', '.join(named)}{rest}."
    )
