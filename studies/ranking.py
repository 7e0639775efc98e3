"""A small model's ranking of quantizers beside the papers' accuracy tables: no claim about the papers' models."""

import math
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import pandas as pd

from dse import quantizers
from dse.validate import accuracy
from studies.studied import SHIPPED, difference, is_sure, scores, shipped

#: what stands in where a small model has too few channels or tokens for the paper's own setting
STAND_INS = {"atom": "atom:group=64", "nqkv": "nqkv:block=64"}
#: tables whose settings `dse study` repeats: source, table -> experiment
STUDIED = {
    ("Oaken", "Table 3"): "oaken-groups",
    ("SinkQ", "Table 3"): "sinkq-sizes",
    ("SinkQ", "Table 4"): "sinkq-sinks",
}


#: what a setting of them is called: series, x
_NAMES = {"methods": "{}", "oaken-groups": "{}", "sinkq-sizes": "{}, R = {:g}", "sinkq-sinks": "{} {:g}"}


@dataclass(frozen=True)
class RankedPair:
    """Two methods of a paper's table and two of ours: 1 where the first is better, -1 the second, 0 equal.

    `ours` goes by the perplexity alone; `sure` tells whether that difference is more than its error (studied.SURE).
    """

    first: str
    other: str
    paper: int
    ours: int
    sure: bool


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def pairs_of(paper: dict[str, float], ours: dict[str, dict[str, tuple[float, float]]], lower: bool) -> list[RankedPair]:
    """Every pair of methods that both have. `paper`: values; `ours[a][b]`: (ln perplexity a over b, its error)."""
    pairs = []
    for method, other in combinations([name for name in paper if name in ours], 2):
        value, error = ours[method][other]
        better = _sign(paper[other] - paper[method]) * (1 if lower else -1)
        pairs.append(RankedPair(method, other, better, -_sign(value), is_sure(value, error)))
    return pairs


def tau(pairs: list[RankedPair]) -> float:
    """Kendall's tau-a: pairs in the same order less those in the other one, over all pairs.

    scipy's `kendalltau` is tau-b or tau-c, and takes ranks, not the pairs that the table counts by sureness anyway.
    """
    return sum(pair.paper * pair.ours for pair in pairs) / len(pairs) if pairs else math.nan


def _differences(named: dict[str, pd.Series]) -> dict[str, dict[str, tuple[float, float]]]:
    """Compare every two rows window by window, as methods lose on the same windows."""
    return {name: {other: difference(a, b) for other, b in named.items()} for name, a in named.items()}


@cache
def _studied(model: str, experiment: str) -> dict[str, dict[str, tuple[float, float]]]:
    """Differences of an experiment's settings."""
    settings = scores(shipped(model), experiment)
    named = {_NAMES[experiment].format(row["series"], row["x"]): row for _, row in settings.iterrows()}
    if experiment == "methods":
        named = {quantizers.parse(name).name: row for name, row in named.items()}
    return _differences(named)


def _method(quantizer: str) -> str:
    name = quantizers.parse(quantizer).name
    return STAND_INS.get(name, name)


def _setting(source: str, config: str) -> str:
    """A setting of STUDIED as the study calls it; empty where it has none."""
    quantizer = accuracy.quantizer_of(source, "", config)
    if quantizer is None:
        return ""
    values = dict(quantizers.parse(quantizer).values)
    if source == "Oaken":
        return f"{values['groups']}, {values['outlier_bits']} bit"
    return f"G = {values['group']}, R = {values['residual']}" if values["sinks"] == 3 else f"sinks {values['sinks']}"


def _tables() -> list[tuple[str, str, str, bool, str, dict[str, float]]]:
    """(source, table, model, whether lower is better, experiment or "", values by our names) of published tables."""
    tables = []
    for view in accuracy.VIEWS:
        kept = [row for row in accuracy.published() if view.wanted(row) and row["value"] not in accuracy.NO_NUMBER]
        first = kept[0]
        table = accuracy.table(view)
        for model in dict.fromkeys(table["model"]):
            rows = table[(table["model"] == model) & ~table["config"].str.startswith("groups ")]
            values = {_method(name): float(value) for name, value in zip(rows["quantizer"], rows["value"], strict=True)}
            task = "perplexity" if view.name == "perplexity" else "accuracy"
            name = f"{first['table']}, {task}"
            tables.append((first["source"], name, str(model), view.axis == "perplexity", "", values))
    for (source, table_name), experiment in STUDIED.items():
        sums: dict[str, list[float]] = {}
        rows = [
            row
            for row in accuracy.published()
            if (row["source"], row["table"]) == (source, table_name)
            and row["metric"] in ("perplexity", "accuracy_percent")
        ]
        for row in rows:
            name = _setting(source, row["config"])
            if experiment == "sinkq-sinks" and name == "G = 128, R = 32":
                name = "sinks 3"
            if name and not (experiment == "sinkq-sizes" and name.startswith("sinks")):
                sums.setdefault(name, []).append(float(row["value"]))
        values = {name: sum(values) / len(values) for name, values in sums.items()}
        task = "perplexity" if source == "Oaken" else "accuracy"
        tables.append((source, f"{table_name}, {task}", rows[0]["model"], source == "Oaken", experiment, values))
    return tables


def table() -> pd.DataFrame:
    """A row a published table, a model of the paper and one of ours.

    Columns: source, table, paper_model, model, n_methods, n_pairs (pairs that the paper ranks), n_same (in the same
    order here), n_same_sure, n_other_sure (by more than the error), n_unsure, tau, unlike (pairs surely in the other
    order, the paper's better one first).
    """
    rows = []
    for source, name, paper_model, lower, experiment, values in _tables():
        for model in SHIPPED:
            ours = _studied(model, experiment or "methods")
            pairs = [pair for pair in pairs_of(values, ours, lower) if pair.paper]
            if not pairs:
                continue
            same = [pair for pair in pairs if pair.ours == pair.paper]
            other = [pair for pair in pairs if pair.ours == -pair.paper and pair.sure]
            named = [(p.first, p.other) if p.paper > 0 else (p.other, p.first) for p in other]
            rows.append(
                {
                    "source": source,
                    "table": name,
                    "paper_model": paper_model,
                    "model": model,
                    "n_methods": len({n for p in pairs for n in (p.first, p.other)}),
                    "n_pairs": len(pairs),
                    "n_same": len(same),
                    "n_same_sure": sum(pair.sure for pair in same),
                    "n_other_sure": len(other),
                    "n_unsure": sum(not pair.sure for pair in pairs),
                    "tau": round(tau(pairs), 3),
                    "unlike": "; ".join(f"{a} over {b}" for a, b in named),
                }
            )
    return pd.DataFrame(rows)


def summary(pairs: pd.DataFrame) -> pd.DataFrame:
    """`summary` with the paper's models of a table together: shares of pairs, and mean tau."""
    lines = []
    for (source, name, model), group in pairs.groupby(["source", "table", "model"], sort=False):
        n = int(group["n_pairs"].sum())
        lines.append(
            {
                "paper": source,
                "table": name,
                "model": model,
                "paper's models": len(group),
                "pairs": n,
                "same order": f"{100 * group['n_same'].sum() / n:.0f} %",
                "surely the same": int(group["n_same_sure"].sum()),
                "surely other": int(group["n_other_sure"].sum()),
                "undecided": int(group["n_unsure"].sum()),
                "mean tau": f"{group['tau'].mean():.2f}",
            }
        )
    return pd.DataFrame(lines)


def unlike(pairs: pd.DataFrame) -> dict[str, int]:
    """Pairs of methods surely in the other order, the paper's better one first, by in how many rows.

    Settings of one method (STUDIED) are left out.
    """
    places = zip(pairs["source"], pairs["table"].str.split(",").str[0], pairs["unlike"], strict=True)
    parts = [
        part for source, name, text in places if (source, name) not in STUDIED for part in str(text).split("; ") if part
    ]
    return dict(pd.Series(parts, dtype=object).value_counts(sort=True, ascending=False))
