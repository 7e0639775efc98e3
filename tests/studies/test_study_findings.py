"""Findings and ranks by hand on small tables, and the table that ships."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dse.core.errors import InputError
from dse.figures.plot import load as plot_load
from studies import experiments, findings, observations, ranking, studied
from studies import table as study_table
from studies.charts import study as plot_study

ROOT = Path(__file__).parents[2]


def score(series, x, off, bits=None, experiment="e", base=2.0):
    """Rows of one setting whose windows lose `off` nats."""
    off = np.asarray(off, float)
    found = {
        "perplexity": base * math.exp(off.mean()),
        "log_ratio": off.mean(),
        "log_ratio_se": off.std(ddof=1) / math.sqrt(len(off)),
    }
    found |= {f"log_ratio_{i}": value for i, value in enumerate(off)} | ({"stored_bits": bits} if bits else {})
    return [observations.row(experiment, metric, value, series, x) for metric, value in found.items()]


def test_differences_are_over_the_same_windows():
    table = pd.DataFrame([*score("a", 0, [0.1, 0.2, 0.3]), *score("b", 0, [0.2, 0.3, 0.5])])
    one, other = (study_table.setting(table, "e", name) for name in "ba")
    # window by window 0.1, 0.1, 0.2: mean 0.4 / 3, deviation 0.1 / sqrt(3), error a third of 0.1
    assert studied.difference(one, other) == pytest.approx((0.4 / 3, 0.1 / 3))
    assert studied.is_sure(0.4 / 3, 0.1 / 3)
    # each by itself is known to 0.058 and 0.088 only: together 0.105, and nothing could be said
    assert not studied.is_sure(0.4 / 3, math.hypot(one["log_ratio_se"], other["log_ratio_se"]))
    with pytest.raises(KeyError, match="0 settings"):
        study_table.setting(table, "e", "c")


@pytest.mark.parametrize(
    ("value", "error", "wanted", "verdict"),
    [
        (0.03, 0.01, 1, "agrees"),
        (0.03, 0.01, -1, "contradicts"),
        (0.03, 0.02, 1, "undecided"),
        (-0.03, 0.01, -1, "agrees"),
        (0.03, 0.01, 0, "contradicts"),
        (0.019, 0.01, 0, "agrees"),
    ],
)
def test_judged(value, error, wanted, verdict):
    assert findings.judged(value, error, wanted) == verdict


def test_a_little_is_up_to_one_percent():
    # 0.9 % and two errors of 0.04 %; of 0.06 % it may be more; 1.2 % less two errors of 0.05 % surely is
    assert findings.little((0.009, 0.0004)) == "agrees"
    assert findings.little((0.009, 0.0006), (0.001, 0.0001)) == "undecided"
    assert findings.little((0.012, 0.0005), (0.001, 0.0001)) == "contradicts"


def test_most_blocks():
    # NQKV's 16 of 16 leave open that 0.05 ** (1 / 16) = 0.829 of all blocks are normal
    for share, verdict in ((0.9, "agrees"), (0.6, "undecided"), (0.4, "contradicts")):
        table = pd.DataFrame([look("not_rejected", share, layer, "normality", x=256) for layer in (0, 1)])
        assert findings.normal_keys(table)[1] == verdict


def layers_with_sinks(*losses):
    """SinkQ with sinks from layer 0 on, from layer 2 on, and in none of three."""
    return pd.DataFrame(
        [
            r
            for x, off in zip((0, 2, 3), losses, strict=True)
            for r in score("layers", x, off, experiment="sinkq-layers")
        ]
    )


def test_shallow_layers_say_something_only_where_sinks_help():
    with_sinks, same = [0.01, 0.02, 0.03], [0.011, 0.019, 0.03]
    assert findings.shallow(layers_with_sinks(with_sinks, same, [0.05, 0.06, 0.08]))[1] == "agrees"
    assert findings.shallow(layers_with_sinks(with_sinks, same, same))[1] == "undecided"
    assert findings.shallow(layers_with_sinks(with_sinks, [0.02, 0.03, 0.041], same))[1] == "contradicts"


def test_group_sizes_over_all_residuals():
    # G = 128 less 32: windows (0.02 + 0.00) / 2 and (0.03 + 0.00) / 2: 0.0125, error 0.0025
    table = pd.DataFrame(
        [
            r
            for g, x, off in (
                (32, 0, [0.01, 0.02]),
                (32, 8, [0.01, 0.02]),
                (128, 0, [0.03, 0.05]),
                (128, 8, [0.01, 0.02]),
            )
            for r in score(f"G = {g}", x, off, experiment="sinkq-sizes")
        ]
    )
    assert findings.group_sizes(table) == ("G = 128 over 32, mean over R: +1.25 ± 0.25 %", "contradicts")


def ratios(losses):
    """Oaken's settings of 10 % outliers and one of 2 %; `losses` of 2/90/8, 4/90/6 and 0.4/98/1.6."""
    parts = zip(("10 %", "10 %", "2 %"), (2.0, 4.0, 0.4), losses, (5.31, 5.30, 4.66), strict=True)
    return pd.DataFrame([r for series, x, off, bits in parts for r in score(series, x, off, bits, "oaken-ratios")])


def test_front_of_group_ratios():
    found = study_table.front(ratios([[0.02, 0.03], [0.01, 0.02], [0.04, 0.05]]))
    assert found["groups"].tolist() == ["2/90/8", "4/90/6", "0.4/98/1.6"]
    # 2/90/8 loses more than 4/90/6 at the same bits; 2 % of outliers lose most but take fewer bits
    assert found["on_front"].tolist() == [False, True, True]


def test_the_papers_ratio_is_beaten_only_where_that_is_sure():
    text, verdict = findings.ratios(ratios([[0.008, 0.021], [0.01, 0.02], [0.04, 0.05]]))
    assert text.startswith("not on the front of the means; ")
    text = text.removeprefix("not on the front of the means; ")
    # windows: -0.002, +0.001: mean -0.0005, error 0.0015
    assert (text, verdict) == ("best of as few bits, 2/90/8: -0.05 ± 0.15 %; surely better: none", "undecided")
    assert findings.ratios(ratios([[0.02, 0.03], [0.01, 0.02], [0.04, 0.05]]))[1] == "agrees"
    _, verdict = findings.ratios(ratios([[0.004, 0.013], [0.01, 0.02], [0.04, 0.05]]))
    assert verdict == "contradicts"  # -0.006, -0.007: -0.0065 ± 0.0005


def look(metric, value, layer, experiment, series="", side="key", x=0.0):
    return observations.row(experiment, metric, value, series, x, layer, side)


def test_ranges_and_channels():
    # widths: layer 0: 2 and 2.1, layer 1: 6 and 6.3: layers differ 3 times, texts by 5 %
    table = [
        look(metric, sign * half, layer, "ranges", text, side)
        for side in ("key", "value")
        for layer, text, half in ((0, "a", 1), (0, "b", 1.05), (1, "a", 3), (1, "b", 3.15))
        for metric, sign in (("high", 1), ("low", -1))
    ]
    table += [look("top_in_as_many_channels", share, layer, "channels") for layer, share in ((0, 0.3), (1, 0.6))]
    table = pd.DataFrame(table)
    assert findings.layers(table) == ("widest over narrowest layer: keys 3.0 times, values 3.0 times", "agrees")
    assert findings.texts(table)[0].endswith("keys +5 %, values +5 %")
    assert findings.texts(table)[1] == "agrees"
    assert findings.channels(table)[1] == "agrees"
    even = table.assign(value=table["value"].where(table["experiment"] != "channels", 0.05))
    assert findings.channels(even)[1] == "contradicts"


def test_sinks_need_small_keys():
    def table(size):
        values = {"first_over_even": 40.0, "first_key_over_median": size, "smallest_key_over_even": 1.0}
        other = {"first_over_even": 0.5, "first_key_over_median": 0.1, "smallest_key_over_even": 1.0}
        return pd.DataFrame(
            [
                look(name, value, 0, "sinks", side="", x=head)
                for head, one in enumerate((values, other))
                for name, value in one.items()
            ]
        )

    assert findings.sink(table(0.3))[1] == "agrees"
    assert findings.sink(table(0.9)) == (
        "the first token draws 10 times its share or more in 1 of 2 heads, 40 at most; "
        "its key there at least 0.90 of the median",
        "contradicts",
    )


def test_sinks_elsewhere():
    def table(heads):
        metrics = {"heads_elsewhere": heads, "share_elsewhere": 0.4, "share_first": 0.1}
        return pd.DataFrame(
            [
                look(name, value * (layer == 1), layer, "places", side="")
                for layer in (0, 1)
                for name, value in metrics.items()
            ]
        )

    assert findings.any_position(table(0.9)) == (
        "sinks behind the first 4 tokens in most heads of 1 of 2 layers (1 to 1), with 40 to 40 % of the attention "
        "there (those 4: 10 to 10 %)",
        "agrees",
    )
    assert findings.any_position(table(0.4))[1] == "contradicts"


def test_the_window_holds_what_is_eliminated():
    """Layers 0 and 1 keep no sinks, so that theirs do not count; no window costs 1 % here."""

    def table(most):
        scored = [*score("window", 0, [0.02, 0.03]), *score("window", 32, [0.01, 0.02])]
        values = {"mean": 3.0, "most": most}
        counted = [
            look(m, 99 if layer < 2 else v, layer, "e", x=4096) for layer in (1, 2, 3) for m, v in values.items()
        ]
        return pd.DataFrame(
            [{**r, "experiment": "sinkq-window"} for r in scored]
            + [{**r, "experiment": "sinkq-eliminated"} for r in counted]
        )

    text, verdict = findings.window(table(32))
    assert text.startswith("after 4,096 tokens 3.0 eliminated a head, 32 at most (keys in random order: 9.1); ")
    assert text.endswith("no window over 32: +1.00 ± 0.00 %")
    assert verdict == "agrees"
    assert findings.window(table(33))[1] == "contradicts"


@pytest.mark.parametrize(
    ("first", "verdict"), [([0.03, 0.04], "agrees"), ([0.01, 0.04], "undecided"), ([0.0, 0.01], "contradicts")]
)
def test_sinks_by_keys_against_the_first_tokens(first, verdict):
    # at 3 kept, as SinkQ keeps: 0.02 ± 0, 0.01 ± 0.01 and -0.01 ± 0
    parts = [
        score(name, n, off)
        for n in (3, 8, 16)
        for name, off in (("first tokens", first), ("smallest keys", [0.01, 0.02]))
    ]
    table = pd.DataFrame([{**r, "experiment": "sinkq-places"} for part in parts for r in part])
    assert findings.first_or_smallest(table)[1] == verdict


def test_pairs_and_tau_by_hand():
    ours = {"a": 0.01, "b": 0.02, "c": 0.05}
    ours = {one: {other: (a - b, 0.01) for other, b in ours.items()} for one, a in ours.items()}
    # perplexities a < c < b; ours a < b < c: a-b and a-c alike, b-c not; a-b differs by one error only
    pairs = ranking.pairs_of({"a": 5.0, "b": 6.0, "c": 5.5, "unknown": 1.0}, ours, lower=True)
    assert [(p.first, p.other, p.paper, p.ours, p.sure) for p in pairs] == [
        ("a", "b", 1, 1, False),
        ("a", "c", 1, 1, True),
        ("b", "c", -1, 1, True),
    ]
    assert ranking.tau(pairs) == pytest.approx(1 / 3)
    # the same numbers as accuracies: the other way round
    assert ranking.tau(ranking.pairs_of({"a": 5.0, "b": 6.0, "c": 5.5}, ours, lower=False)) == pytest.approx(-1 / 3)


def test_ranks_of_the_papers_tables():
    found = ranking.table().set_index(["source", "table", "paper_model", "model"])
    # Oaken Table 2: 7 methods, 21 pairs; KVQuant and KIVI tie for Llama2-70B; Tender lacks Mixtral: 15 pairs, one tie
    names = [("Oaken", "Table 2, perplexity", name, "smollm2") for name in ("llama2-7b", "llama2-70b", "mixtral-8x7b")]
    assert found.loc[names, "n_pairs"].tolist() == [21, 20, 14]
    # Oaken Table 3: 9 settings, two of which print 5.516; SinkQ Table 4: 7 numbers of sinks
    assert found.loc[("Oaken", "Table 3, perplexity", "llama2-7b", "smollm2"), "n_pairs"] == 35
    assert found.loc[("SinkQ", "Table 4, accuracy", "llama3-8b-instruct", "smollm2"), "n_methods"] == 7
    assert (found["n_same_sure"] + found["n_other_sure"] + found["n_unsure"] == found["n_pairs"]).all()


@pytest.mark.parametrize("model", studied.SHIPPED)
def test_the_table_that_ships_is_whole(model):
    about, table = study_table.about(f"{model}.study"), studied.shipped(model)
    assert all(len(sha256) == 64 for sha256 in about["weights_sha256"])
    assert studied.rows(table, "methods", "log_ratio_se")["value"].notna().all()
    n_windows = {name for name in table["metric"] if studied.WINDOW.fullmatch(name)}
    assert len(n_windows) == about["n_windows"] * len(about["texts"])
    assert {point.experiment for point in experiments.points(Model(), 192, about["texts"])} <= set(table["experiment"])


class Model:
    """As much of SmolLM2-135M as the points of a study ask for."""

    name, n_layers = "smollm2", 30


def test_every_text_is_in_the_table():
    for model in studied.SHIPPED:
        series = set(studied.rows(studied.shipped(model), "ranges")["series"])
        assert series == set(study_table.about(f"{model}.study")["texts"])


def test_ratios_are_named_below_all_points_of_their_figure():
    panel = plot_load.load("study_oaken_ratios", str(ROOT / "dse" / "data" / "lm" / "smollm2.study.csv"))[0].panels[0]
    named = [y for one in panel.series if one.name == "groups" for y in one.y]
    assert named
    points = [y for one in panel.series if one.name.endswith(" outliers") for y in one.y]
    assert panel.y.low < max(named) < min(points)


@pytest.mark.parametrize("name", plot_study.CHARTS)
def test_figures(name):
    table = studied.shipped("smollm2")
    two = plot_study.chart(name, {"smollm2": table, "other": table})
    one, _ = plot_load.load(name, str(ROOT / "dse" / "data" / "lm" / "smollm2.study.csv"))
    assert len(two.panels) in (len(one.panels), 2 * len(one.panels))
    titles = [panel.title for panel in one.panels]
    assert [t for t in titles if t.startswith("SmolLM2 135M")] == titles or name == "study_channels"
    with pytest.raises(InputError, match=f"no row of experiment {plot_study.CHARTS[name][1]}"):
        plot_study.chart(name, {"smollm2": table.iloc[:0]})


def test_bars_are_one_standard_error():
    table = pd.DataFrame(
        [*score("fp16", 0, [0.0, 0.0], experiment="methods"), *score("NQKV", 16, [0.0, 0.02], experiment="nqkv-blocks")]
    )
    panel = plot_study.chart("study_nqkv_blocks", {"toy": table}).panels[0]
    bar, line, level = panel.series
    # 2 e^0.01 = 2.0201; error 0.01 of it
    assert line.y == pytest.approx((2.0201,), abs=1e-4)
    assert bar.y == pytest.approx((2.0201 * 0.99, 2.0201 * 1.01), abs=1e-4)
    assert level.y == (2.0, 2.0)


def test_docs_show_the_findings_of_the_tables_that_ship():
    """Where this fails: `python -m studies.findings` prints the table anew."""
    found = findings.table({model: studied.shipped(model) for model in studied.SHIPPED})
    assert findings.shown(found) in (ROOT / "docs" / "explanation" / "language_model.md").read_text()
    assert len(found) == len(findings.FINDINGS)
