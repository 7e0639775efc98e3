"""The part of the validation page that says where our language models rank quantizers as the papers do."""

from functools import cache

import pandas as pd

from dse.validate import ranking

#: pairs in the other order that the page names
MAX_PAIRS = 8
#: columns of numbers
NUMBERS = ("paper's models", "pairs", "same order", "surely the same", "surely other", "undecided", "mean tau")


@cache
def ranking_table() -> pd.DataFrame:
    """A row a published table and model, as it is written beside the page."""
    return ranking.table()


def unlike() -> str:
    """The pairs of methods that are surely in the other order, with how often, as a sentence."""
    pairs = ranking.unlike(ranking_table())
    if not pairs:
        return "No pair of methods is surely in the other order."
    named = [f"{pair} ({n})" for pair, n in list(pairs.items())[:MAX_PAIRS]]
    rest = f" and {len(pairs) - MAX_PAIRS} more" if len(pairs) > MAX_PAIRS else ""
    return (
        "Surely in the other order, the paper's better method first, with the number of the paper's and our models: "
        f"{', '.join(named)}{rest}."
    )
