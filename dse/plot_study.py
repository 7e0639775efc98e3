"""The figures of `dse study`, of one model's table or of several beside each other."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from dse.errors import InputError, show
from dse.lm.study_table import Tables
from dse.lm.weights import SHIPPED
from dse.plot_read import Source
from dse.plots import study_looks, study_scores, to_plotly
from dse.plots.chart import Chart

COMMAND = "dse study MODEL --out DIR"
COLUMNS = ("experiment", "series", "layer", "side", "x", "metric", "value")

#: (chart, the experiment that it shows, what it shows)
CHARTS: dict[str, tuple[Callable[[Tables], Chart], str, str]] = {
    "study_ranges": (study_looks.ranges, "ranges", "How far a model's keys and values reach, by layer and text."),
    "study_channels": (study_looks.channels, "channels", "Outlier channels of a model's keys and values, by layer."),
    "study_normality": (study_looks.normality, "normality", "Share of blocks that a test does not tell from normal."),
    "study_quantiles": (study_looks.quantiles, "quantiles", "Quantiles of blocks against those of a normal one."),
    "study_sinks": (study_looks.sinks, "sinks", "Attention to BOS and to the smallest key, a point a head."),
    "study_overlap": (study_looks.overlap, "overlap", "Smallest keys against highest attention, by layer."),
    "study_kept": (study_looks.kept, "kept", "Error of attention by which tokens a 2-bit cache keeps exact."),
    "study_oaken_ratios": (study_scores.oaken_ratios, "oaken-ratios",
                           "Perplexity against stored bits over Oaken's group ratios, the front marked."),
    "study_oaken_groups": (study_scores.oaken_groups, "oaken-groups", "Perplexity by number of Oaken's groups."),
    "study_oaken_texts": (study_scores.oaken_texts, "oaken-texts",
                          "Perplexity by the text that Oaken's thresholds come from."),
    "study_nqkv_blocks": (study_scores.nqkv_blocks, "nqkv-blocks", "Perplexity by size of NQKV's blocks."),
    "study_kivi_axes": (study_scores.kivi_axes, "kivi-axes", "Perplexity by what shares a scale in KIVI."),
    "study_sinkq_sizes": (study_scores.sinkq_sizes, "sinkq-sizes", "Perplexity by SinkQ's groups and recent tokens."),
    "study_sinkq_sinks": (study_scores.sinkq_sinks, "sinkq-sinks", "Perplexity by SinkQ's number of sinks and layers."),
}  # fmt: skip


def chart(name: str, tables: Tables) -> Chart:
    """The chart of that name in CHARTS, a panel or more a model. Raises InputError where a table lacks its rows."""
    draw, experiment, _ = CHARTS[name]
    for model, table in tables.items():
        if not (table["experiment"] == experiment).any():
            raise InputError(f"{show(model)}: no row of experiment {experiment}: is this a table of `{COMMAND}`?")
    return draw(tables)


def figure(name: str, tables: Tables) -> Any:
    """The same as a plotly figure."""
    return to_plotly.figure(chart(name, tables))


def _draw(name: str) -> Callable[[Source], Chart]:
    def draw(source: Source) -> Chart:
        model = source.path.name.split(".")[0] if source.path else "model"
        table: pd.DataFrame = source.table
        return chart(name, {model: table})

    return draw


#: name, what it shows, command, names of the table, columns, what draws it
KINDS = tuple(
    (name, shows, COMMAND, tuple(f"{model}.study" for model in SHIPPED), COLUMNS, _draw(name))
    for name, (_, _, shows) in CHARTS.items()
)
