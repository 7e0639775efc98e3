"""The papers' experiments on a language model (`dse study`): perplexity by the settings of Oaken, NQKV, KIVI, SinkQ."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd

from dse.figures.drawing import axes, marks
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.figures.drawing.style import BLACK, VERMILLION, Style
from dse.quantizers.base import N_SHALLOW_LAYERS
from dse.quantizers.methods import sinkq
from studies.charts.study import BARS, LOOKS, bars, layer_axis, line, study
from studies.observations import FIRST, SINK, eliminated_by_chance
from studies.studied import rows, scores
from studies.table import OAKEN, SIGNED, Tables, fp16, front

#: from this ratio of largest to smallest on, an axis of perplexities is logarithmic: one that fails would hide the rest
WIDE = 8.0


def _texts(df: pd.DataFrame, name: str) -> tuple[str, ...]:
    return tuple(
        f"{name}: {row.series}, {row.x:g}\nperplexity {row.perplexity:.4f}\n"
        f"ln(perplexity / FP16's) {row.log_ratio:.4f} ± {row.log_ratio_se:.4f}"
        for row in df.itertuples()
    )


def _points(name: str, df: pd.DataFrame, place: Sequence[float], look: Style, lie: bool, joined: bool) -> list[Series]:
    """Perplexities at their places with bars; `lie`: the places are along y."""
    values, at = list(map(float, df["perplexity"])), list(map(float, place))
    x, y = (values, at) if lie else (at, values)
    draw, size = (marks.line, 1.0) if joined else (marks.points, 0.8)
    shown = draw(name, x, y, look, _texts(df, name), size=size)
    return [*bars(name, x, y, list(df["error"]), look, lie), shown]


def _axis(table: pd.DataFrame, df: pd.DataFrame) -> Axis:
    ends = [float(v) for v in (*(df["perplexity"] - df["error"]), *(df["perplexity"] + df["error"]), fp16(table))]
    is_wide = min(ends) > 0 and max(ends) > WIDE * min(ends)
    return axes.log2("perplexity", "1", ends) if is_wide else axes.around("perplexity", "1", ends)


def _lines(
    tables: Tables, experiment: str, x_axis: Callable[[list[float]], Axis], place: Callable[[list[float]], list[float]]
) -> list[Panel]:
    """A panel a model, a line a series over x."""
    panels = []
    for model, table in tables.items():
        data = scores(table, experiment).sort_values("x", kind="stable")
        places = sorted(set(data["x"]))
        x, y, series = x_axis(places), _axis(table, data), []
        for i, name in enumerate(dict.fromkeys(scores(table, experiment)["series"])):
            part = data[data["series"] == name]
            at = [place(places)[places.index(value)] for value in part["x"]]
            spread = [v * 1.04**i if x.log else v + 0.05 * i for v in at]
            series += _points(name, part, spread, LOOKS[i % len(LOOKS)], False, True)
        panels.append(Panel(model, x, y, (*series, marks.rule("FP16", x, fp16(table)))))
    return panels


def _dots(tables: Tables, experiment: str, axis: str, names: Callable[[pd.DataFrame], pd.DataFrame]) -> list[Panel]:
    """A panel a model, a row a setting; `names` gives each setting its `row` and its `group`."""
    panels = []
    for model, table in tables.items():
        data = names(scores(table, experiment))
        labels = list(dict.fromkeys(data["row"]))[::-1]
        groups = list(dict.fromkeys(data["group"]))
        series: list[Series] = []
        for i, group in enumerate(groups):
            part = data[data["group"] == group]
            at = [labels.index(name) + 0.16 * ((len(groups) - 1) / 2 - i) for name in part["row"]]
            series += _points(group, part, at, LOOKS[i], True, False)
        y = axes.categories(axis, labels)
        panels.append(Panel(model, _axis(table, data), y, (*series, marks.rule("FP16", y, fp16(table), upright=True))))
    return panels


def _counted(name: str, unit: str) -> Callable[[list[float]], Axis]:
    return lambda places: axes.categories(name, [f"{place:g}" for place in places], unit)


def _in_order(places: list[float]) -> list[float]:
    return [float(i) for i in range(len(places))]


@study(
    "study_oaken_ratios", "oaken-ratios", "Perplexity against stored bits over Oaken's group ratios, the front marked."
)
def oaken_ratios(tables: Tables) -> Chart:
    """Oaken Figure 12(a)."""
    panels = []
    for model, table in tables.items():
        ratios, y = front(table), _axis(table, front(table))
        best = ratios[ratios["on_front"]].sort_values("stored_bits")
        hull = Style(VERMILLION, marker="")
        series = [marks.line("Pareto front", best["stored_bits"], best["perplexity"], hull)]
        for i, (name, look) in enumerate(zip(dict.fromkeys(ratios["series"]), LOOKS, strict=False)):
            foot = y.low - (0.04, 0.09)[i % 2] * (y.high - y.low)
            part = ratios[ratios["series"] == name]
            shift = [0.05 * (k - (len(part) - 1) / 2) for k in range(len(part))]
            place = [bits + by for bits, by in zip(part["stored_bits"], shift, strict=True)]
            series += _points(f"{name} outliers", part, place, look, False, False)
            names = [groups for groups, on_front in zip(part["groups"], part["on_front"], strict=True) if on_front]
            middle = float(part["stored_bits"].mean())
            plain = Style(BLACK, marker="")
            series += [
                marks.points("groups", [middle], [foot], plain, labels=(text,), is_note=True, in_legend=False)
                for text in names
            ]
            for at, value in zip(place, part["perplexity"].where(part["groups"] == OAKEN), strict=True):
                if value == value:
                    star = Style(BLACK, marker="star")
                    series.append(marks.points(f"{OAKEN}, the paper's", [at], [value], star, size=1.4))
        bits = (float(ratios["stored_bits"].min()) - 0.3, float(ratios["stored_bits"].max()) + 0.3)
        ticks = tuple((n / 2, f"{n / 2:g}") for n in range(32) if bits[0] < n / 2 < bits[1])
        x = Axis("stored bits", unit="bit/element", low=bits[0], high=bits[1], ticks=ticks)
        y = replace(y, low=y.low - 0.14 * (y.high - y.low))
        panels.append(Panel(model, x, y, (*series, marks.rule("FP16", x, fp16(table)))))
    return Chart(
        "Which shares of outliers give the least perplexity for their bits? (Oaken Figure 12(a))",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=230,
        notes=(
            "Names: outer/middle/inner group, % of the elements, of the settings on the front. Points of one share "
            f"of outliers have the same bits and are drawn beside each other. {BARS}",
        ),
    )


_OUTLIERS = {"5 bit": "5-bit outliers", "4 bit": "4-bit, sign and 3 bits", SIGNED: "4-bit, signed code"}


@study("study_oaken_groups", "oaken-groups", "Perplexity by number of Oaken's groups.")
def oaken_groups(tables: Tables) -> Chart:
    """Oaken Table 3."""

    def names(data: pd.DataFrame) -> pd.DataFrame:
        parts = data["series"].str.split(", ", expand=True)
        labels = [f"{row.series.split(',')[0]}, {row.stored_bits:.2f} bit" for row in data.itertuples()]
        return data.assign(row=labels, group=parts[1].map(_OUTLIERS))

    return Chart(
        "How many groups, and how many bits for outliers? (Oaken Table 3)",
        panels=tuple(_dots(tables, "oaken-groups", "groups", names)),
        n_columns=2,
        panel_height_pt=210,
        notes=(f"Groups from the outermost in, % of the elements; stored bits an element beside them. {BARS}",),
    )


_TEXTS = {"calibration": "another text", "scored": "the scored texts", "random": "random tokens"}


@study("study_oaken_texts", "oaken-texts", "Perplexity by the text that Oaken's thresholds come from.")
def oaken_texts(tables: Tables) -> Chart:
    """Oaken 4.3: thresholds from another text."""

    def names(data: pd.DataFrame) -> pd.DataFrame:
        return data.assign(row=[_TEXTS.get(name, name) for name in data["series"]], group="Oaken 4/90/6")

    return Chart(
        "Does it matter which text Oaken's thresholds come from? (Oaken 4.3)",
        panels=tuple(_dots(tables, "oaken-texts", "thresholds from", names)),
        n_columns=2,
        panel_height_pt=130,
        notes=(BARS,),
    )


@study("study_nqkv_blocks", "nqkv-blocks", "Perplexity by size of NQKV's blocks.")
def nqkv_blocks(tables: Tables) -> Chart:
    """NQKV: sizes of blocks."""
    panels = _lines(tables, "nqkv-blocks", lambda at: axes.log2_at("block", "elements", at), list)
    return Chart(
        "What does NQKV's size of blocks cost? (NQKV 3.2)",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=170,
        notes=(f"Stored bits: 4 + 16 / block. {BARS}",),
    )


@study("study_kivi_axes", "kivi-axes", "Perplexity by what shares a scale in KIVI.")
def kivi_axes(tables: Tables) -> Chart:
    """KIVI's choice: keys share a scale along a channel, values along a token."""

    def names(data: pd.DataFrame) -> pd.DataFrame:
        pairs = data["series"].str.split("/", expand=True)
        return data.assign(row=pairs[0] + " / " + pairs[1], group=[f"{n:g} bit" for n in data["x"]])

    return Chart(
        "What should share a scale: a channel's tokens or a token's channels? (KIVI)",
        panels=tuple(_dots(tables, "kivi-axes", "of keys / of values", names)),
        n_columns=2,
        panel_height_pt=130,
        notes=(f"Of keys / of values. Groups of 32, the last 32 tokens exact. KIVI's is the topmost. {BARS}",),
    )


@study("study_sinkq_sizes", "sinkq-sizes", "Perplexity by SinkQ's groups and recent tokens.")
def sinkq_sizes(tables: Tables) -> Chart:
    """SinkQ Table 3."""
    panels = _lines(tables, "sinkq-sizes", _counted("R, recent tokens kept exact at least", "tokens"), _in_order)
    return Chart(
        "How large a group, how many recent tokens exact? (SinkQ Table 3)",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=190,
        notes=(f"SinkQ, 2 bits, 3 sinks. {BARS}",),
    )


@study("study_sinkq_sinks", "sinkq-sinks", "Perplexity by SinkQ's number of sinks and layers.")
def sinkq_sinks(tables: Tables) -> Chart:
    """SinkQ Table 4, left and right."""
    panels = []
    for experiment, name, unit in (
        ("sinkq-sinks", "sinks kept exact", "tokens"),
        ("sinkq-layers", "first layer that keeps sinks", "index"),
    ):
        panels += [
            Panel(f"{panel.title}: {name}", panel.x, panel.y, panel.series)
            for panel in _lines(tables, experiment, _counted(name, unit), _in_order)
        ]
    return Chart(
        "How many sinks, and in which layers? (SinkQ Table 4)",
        panels=tuple(panels),
        n_columns=len(tables),
        panel_height_pt=140,
        notes=(f"SinkQ, 2 bits, G = 128, R = 32; left out of layers: none to all. {BARS}",),
    )


@study(
    "study_sinkq_window", "sinkq-eliminated", "Sinks eliminated from SinkQ's pool by length, and perplexity by window."
)
def sinkq_window(tables: Tables) -> Chart:
    """SinkQ 4.1: a window of 32 keeps the sinks that later ones have eliminated from the pool."""
    panels = []
    for model, table in tables.items():
        data = rows(table, "sinkq-eliminated")
        data = data[data["layer"] >= N_SHALLOW_LAYERS]
        lengths = sorted(set(data["x"]))
        found = {
            "most of any head": data[data["metric"] == "most"].groupby("x")["value"].max(),
            "mean of heads": data[data["metric"] == "mean"].groupby("x")["value"].mean(),
        }
        x = axes.log2_at("text", "tokens", lengths)
        y = axes.linear("eliminated", "tokens", [sinkq.WINDOW, *found["most of any head"]])
        series = [
            line(name, lengths, list(part), look) for (name, part), look in zip(found.items(), LOOKS, strict=False)
        ]
        chance = [eliminated_by_chance(n) for n in lengths]
        series.append(marks.line("mean by chance", lengths, chance, Style(BLACK, "dash", ""), is_note=True))
        panels.append(Panel(f"{model}: eliminated", x, y, (*series, marks.rule("window of 32", x, sinkq.WINDOW))))
    panels += [
        Panel(f"{panel.title}: perplexity", panel.x, panel.y, panel.series)
        for panel in _lines(tables, "sinkq-window", _counted("window", "tokens"), _in_order)
    ]
    return Chart(
        "How many sinks are eliminated from the pool, and what keeps them? (SinkQ 4.1)",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=150,
        notes=(
            "SinkQ, 2 bits, G = 128, R = 32, 3 sinks, layers from the third on. By chance: keys in random order. "
            f"Where the window is full, the pool stays as it is. Perplexity: windows of 512 tokens. {BARS}",
        ),
    )


@study("study_sinkq_places", "sinkq-places", "Where sinks are, and sinks by their keys against the first tokens.")
def sinkq_places(tables: Tables) -> Chart:
    """SinkQ 3.2: sinks at any position; found by their keys, against as many first tokens."""
    panels = []
    for model, table in tables.items():
        x, series, values = layer_axis(table), [], [0.0]
        names = (("share_first", f"the first {FIRST} tokens"), ("share_elsewhere", "sinks behind them"))
        for (metric, name), look in zip(names, LOOKS, strict=False):
            data = rows(table, "places", metric)
            values += list(data["value"])
            series.append(line(name, list(data["layer"]), list(data["value"]), look, "%", per_unit=axes.PERCENT))
        panels.append(Panel(f"{model}: attention", x, axes.linear("drawn", "%", values, axes.PERCENT), tuple(series)))
    panels += [
        Panel(f"{panel.title}: perplexity", panel.x, panel.y, panel.series)
        for panel in _lines(tables, "sinkq-places", _counted("tokens kept exact", "tokens"), _in_order)
    ]
    return Chart(
        "Are sinks at any position, and is it worth finding them? (SinkQ 3.2)",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=150,
        notes=(
            f"Sinks draw {SINK} times the even share or more, of the first 300 tokens by the queries behind them. "
            f"Perplexity: SinkQ, 2 bits, G = 128, R = 32; both kinds are left out of their groups' scales. {BARS}",
        ),
    )
