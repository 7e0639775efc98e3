"""A language model's own keys and values (`dse study`): ranges, outlier channels, normality, sinks."""

from typing import Any

from dse.figures.drawing import axes, marks
from dse.figures.drawing.chart import Axis, Chart, Panel
from dse.figures.drawing.style import BLACK, GRAY, Style
from studies.charts.study import LOOKS, by_layer, layer_axis, line, study
from studies.studied import rows
from studies.table import Tables

SIDES = (("key", "keys"), ("value", "values"))
_TESTED = (*SIDES, ("key before RoPE", "keys before RoPE"))
_TEXT = Style(GRAY)


@study("study_ranges", "ranges", "How far a model's keys and values reach, by layer and text.")
def ranges(tables: Tables) -> Chart:
    """Oaken, observations 1 and 2: how far keys and values reach, layer by layer, and in each text."""
    panels = []
    for model, table in tables.items():
        for side, name in SIDES:
            data = rows(table, "ranges", side=side)
            series = []
            for metric, shown, look, fold in (
                ("greatest", "largest and smallest value", LOOKS[4], "max"),
                ("least", "largest and smallest value", LOOKS[4], "min"),
                ("high", "limits of the outer 4 %", LOOKS[0], "mean"),
                ("low", "limits of the outer 4 %", LOOKS[0], "mean"),
            ):
                subset = data[data["metric"] == metric]
                places, values = list(subset["layer"] + 0.13), list(subset["value"])
                series += [
                    line("one text", places, values, _TEXT, kind="scatter", size=0.35),
                    by_layer(subset, shown, look, fold),
                ]
            reach = float(data["value"].abs().max())
            panels.append(Panel(f"{model}, {name}", layer_axis(table), _signed(reach), tuple(series)))
    n_texts = len(set(rows(next(iter(tables.values())), "ranges")["series"]))
    return Chart(
        "How far do keys and values reach, by layer and text? (Oaken Figure 6)",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=130,
        notes=(f"Gray: each of {n_texts} texts. Lines: extremes over all, mean limits.",),
    )


def _signed(reach: float) -> Axis:
    """From -reach to reach, ticks on both sides of zero."""
    half = axes.linear("value", "", [reach], n_ticks=3)
    ticks = (*((-at, f"-{text}") for at, text in half.ticks[:0:-1]), *half.ticks)
    return Axis("value", unit="1", low=-half.high, high=half.high, ticks=ticks)


@study("study_channels", "channels", "Outlier channels of a model's keys and values, by layer.")
def channels(tables: Tables) -> Chart:
    """Oaken, observation 3: outlier channels."""
    kinds = (
        ("largest_over_median", "Largest over median channel", "ratio", "1", 1.0),
        ("top_in_as_many_channels", "Of the top 4 %, in the 4 % of channels with most", "share", "%", axes.PERCENT),
    )
    panels = []
    for metric, title, name, unit, size in kinds:
        series, values = [], []
        for m, (model, table) in enumerate(tables.items()):
            for s, (side, shown) in enumerate(SIDES):
                data = rows(table, "channels", metric, side)
                look = Style(LOOKS[m].color, ("solid", "dash")[s], ("circle", "square")[s])  # type: ignore[arg-type]
                series.append(
                    line(f"{model}, {shown}", list(data["layer"]), list(data["value"]), look, unit, per_unit=size)
                )
                values += list(data["value"])
        axis, x = axes.linear(name, unit, values, size), layer_axis(next(iter(tables.values())))
        series.append(marks.rule("no outlier channel", x, 1.0 if metric == "largest_over_median" else 0.04))
        panels.append(Panel(title, x, axis, tuple(series)))
    return Chart(
        "Do a few channels hold the largest values? (Oaken Figure 6(c))",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=170,
        notes=("A channel's size is its largest magnitude over all tokens of all texts.",),
    )


@study("study_normality", "normality", "Share of blocks that a test does not tell from normal.")
def normality(tables: Tables) -> Chart:
    """NQKV Table 1: the share of blocks that a test does not tell from normal, by size of the block."""
    panels = []
    for model, table in tables.items():
        data = rows(table, "normality", "not_rejected")
        x = axes.log2_at("block", "elements", list(map(float, data["x"])))
        series = []
        for (side, shown), look in zip(_TESTED, LOOKS, strict=False):
            part = data[data["side"] == side]
            mean = part.groupby("x")["value"].mean()
            series.append(
                line(f"{shown}, mean of layers", list(mean.index), list(mean), look, "%", per_unit=axes.PERCENT)
            )
            places = [at * {"key": 1.04, "value": 1.08}.get(side, 1.12) for at in part["x"]]
            dots: Any = {"kind": "scatter", "size": 0.5, "opened": (True,) * len(part)}
            name, values = f"{shown}, a layer", list(part["value"])
            series.append(line(name, places, values, look, "%", per_unit=axes.PERCENT, **dots))
        y = axes.linear("blocks not told from normal", "%", [0.95], axes.PERCENT)
        series.append(marks.rule("were all normal", x, 0.95))
        panels.append(Panel(model, x, y, tuple(series)))
    return Chart(
        "Are blocks of a token's keys and values normal? (NQKV Table 1)",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=190,
        notes=("D'Agostino-Pearson test, p > 0.05: of normal blocks 95 % pass.",),
    )


@study("study_quantiles", "quantiles", "Quantiles of blocks against those of a normal one.")
def quantiles(tables: Tables) -> Chart:
    """NQKV Figure 4: quantiles of standardised blocks against those of a normal distribution."""
    panels = []
    for model, table in tables.items():
        for side, shown in _TESTED:
            data = rows(table, "quantiles", side=side)
            ticks = tuple((float(n), f"{n}") for n in range(-2, 3))
            x, y = (
                Axis(name, unit="standard deviations", low=-2.6, high=2.6, ticks=ticks)
                for name in ("normal quantile", "block")
            )
            sizes = sorted(set(data["series"]), key=int)
            series = []
            for size, look in zip(sizes, LOOKS, strict=False):
                mean = data[data["series"] == size].groupby("x")["value"].mean()
                name, places = f"blocks of {size}", list(mean.index)
                series.append(line(name, places, list(mean), look, kind="scatter", size=0.5))
            dashed = Style(BLACK, "dash", "")
            series.append(marks.line("normal", (-2.4, 2.4), (-2.4, 2.4), dashed, is_note=True))
            panels.append(Panel(f"{model}, {shown}", x, y, tuple(series)))
    return Chart(
        "How do a block's quantiles lie against normal ones? (NQKV Figure 4)",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=150,
        notes=("Means over all blocks and layers; a block has mean 0 and deviation 1.",),
    )


#: what is shown of a head's attention: metric, name
_DRAWN = (
    ("first_over_even", "first token"),
    ("smallest_key_over_even", "token with the smallest key"),
    ("highest_over_even", "token with the highest attention"),
)


@study("study_sinks", "sinks", "Attention to the first token and to the smallest key, a point a head.")
def sinks(tables: Tables) -> Chart:
    """SinkQ 3.1: attention to the first token and to the smallest key, and the first key, a point a head."""
    panels = []
    for model, table in tables.items():
        x, data = layer_axis(table), rows(table, "sinks")
        shares, keys = data[data["metric"] != "first_key_over_median"], data[data["metric"] == "first_key_over_median"]
        series = []
        for i, (metric, shown) in enumerate(_DRAWN):
            part = shares[shares["metric"] == metric]
            series.append(
                line(
                    shown,
                    list(part["layer"] + 0.16 * (i - 1)),
                    list(part["value"].clip(lower=1e-3)),
                    LOOKS[(4, 0, 5)[i]],
                    kind="scatter",
                )
            )
        y = axes.log10("attention over its even share", "1", shares["value"].clip(lower=1e-3))
        panels.append(Panel(f"{model}: attention", x, y, (*series, marks.rule("even share, median key", x, 1.0))))
        sizes = line("first token", list(keys["layer"]), list(keys["value"]), LOOKS[4], kind="scatter")
        y = axes.linear("L1 norm over the median key's", "1", [*keys["value"], 1.0])
        panels.append(
            Panel(f"{model}: key of the first token", x, y, (sizes, marks.rule("even share, median key", x, 1.0)))
        )
    return Chart(
        "Is there a sink: one token that draws the attention, with a small key? (SinkQ 3.1)",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=150,
        notes=("A point a head of keys; of the first 300 tokens, by the queries behind them. At least 0.001.",),
    )


@study("study_overlap", "overlap", "Smallest keys against highest attention, by layer.")
def overlap(tables: Tables) -> Chart:
    """SinkQ Figure 1(c): smallest keys against highest attention."""
    panels = []
    for model, table in tables.items():
        data = rows(table, "overlap", "both")
        x = axes.log2_at("N", "tokens", list(map(float, data["x"])))
        y = axes.linear("both", "%", [*data["value"], 0.45], axes.PERCENT)
        layers = sorted(set(data["layer"]))
        series = []
        for layer, look in zip(layers, LOOKS, strict=False):
            part = data[data["layer"] == layer]
            series.append(
                line(f"layer {layer}", list(part["x"]), list(part["value"]), look, "%", per_unit=axes.PERCENT)
            )
        counts = sorted(set(data["x"]))
        dashed = Style(BLACK, "dash", "")
        chance = marks.line("by chance", counts, (n / 300 for n in counts), dashed, is_note=True)
        panels.append(Panel(model, x, y, (*series, chance)))
    return Chart(
        "Are the N smallest keys those with the highest attention? (SinkQ Figure 1(c))",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=180,
        notes=("Of the first 300 tokens, mean over heads and texts; by chance: N / 300.",),
    )


@study("study_kept", "kept", "Error of attention by which tokens a 2-bit cache keeps exact.")
def kept(tables: Tables) -> Chart:
    """SinkQ Figure 1(f): which tokens to keep exact."""
    panels = []
    for model, table in tables.items():
        data = rows(table, "kept", "l1_loss")
        counts = sorted(set(data["x"]))
        x = axes.categories("tokens kept exact", [f"{n:g}" for n in counts], "tokens")
        mean = data.groupby(["series", "x"], sort=False)["value"].mean()
        series = [
            line(str(name), list(range(len(counts))), list(part), look, "%", per_unit=axes.PERCENT)
            for (name, part), look in zip(mean.groupby(level="series", sort=False), LOOKS, strict=False)
        ]
        y = axes.around("loss", "%", [value / axes.PERCENT for value in mean])
        y = Axis(
            "L1 loss of the attention output",
            unit="%",
            low=y.low * axes.PERCENT,
            high=y.high * axes.PERCENT,
            ticks=tuple((at * axes.PERCENT, text) for at, text in y.ticks),
            per_unit=axes.PERCENT,
        )
        panels.append(Panel(model, x, y, tuple(series)))
    return Chart(
        "Which tokens should a 2-bit cache keep exact? (SinkQ Figure 1(f))",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=190,
        notes=(
            "Mean over layers, relative; KIVI, 2 bits, groups of 128. Excluded: also from the groups' scales. "
            "Axes do not start at 0.",
        ),
    )


@study("study_accumulated", "accumulated", "Attention drawn by the tokens that draw most, by rank.")
def accumulated(tables: Tables) -> Chart:
    """SinkQ Figures 8 and 9: accumulated attention of the tokens in falling order, both axes as powers of 2."""
    panels = []
    for model, table in tables.items():
        data = rows(table, "accumulated", "share")
        layers = sorted(set(data["layer"]))
        chosen = [layers[round(i * (len(layers) - 1) / (len(LOOKS) - 1))] for i in range(len(LOOKS))]
        x = axes.log2_at("rank of the token", "index", sorted(set(data["x"])))
        y = axes.log10("share of the attention", "1", data["value"].clip(lower=1e-5))
        series = []
        for layer, look in zip(dict.fromkeys(chosen), LOOKS, strict=False):
            part = data[data["layer"] == layer]
            series.append(line(f"layer {layer}", list(part["x"]), list(part["value"].clip(lower=1e-5)), look))
        panels.append(Panel(model, x, y, (*series, marks.rule("even share", x, 1 / 300))))
    return Chart(
        "How much of the attention do the first few tokens draw? (SinkQ Figures 8 and 9)",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=190,
        notes=("Of the first 300 tokens, by the queries behind them; mean over heads and texts of each rank's share.",),
    )


@study("study_oaken_runs", "oaken-runs", "Distance of Oaken's thresholds from those of all runs.")
def oaken_runs(tables: Tables) -> Chart:
    """Oaken 4.2: thresholds as means over runs."""
    panels = []
    for model, table in tables.items():
        data, of_text = rows(table, "oaken-runs", "off"), rows(table, "oaken-runs", "off text")
        x = axes.log2_at("runs that a threshold is the mean of", "1", sorted(set(data["x"])))
        y = axes.linear("off", "%", [*data["value"], *of_text["value"]], axes.PERCENT)
        series = []
        for (side, shown), look in zip(SIDES, LOOKS, strict=False):
            part = data[data["side"] == side].groupby("x")["value"]
            for fold, how in (("mean", "mean of layers"), ("max", "worst layer")):
                folded = part.agg(fold)
                dashed = look if fold == "mean" else Style(look.color, "dot", look.marker)
                name = f"{shown}, {how}"
                series.append(line(name, list(folded.index), list(folded), dashed, "%", per_unit=axes.PERCENT))
        series.append(marks.rule("worst layer of a text", x, float(of_text["value"].max())))
        panels.append(Panel(model, x, y, tuple(series)))
    return Chart(
        "How many runs do Oaken's thresholds need? (Oaken 4.2)",
        panels=tuple(panels),
        n_columns=2,
        panel_height_pt=190,
        notes=("Mean distance of the four thresholds of 4/90/6 from those of all runs, over the outer group's width.",),
    )
