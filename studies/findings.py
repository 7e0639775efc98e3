"""Verdicts on the papers' observations for a language model, computed from the tables of `dse study`."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dse.quantizers.base import N_SHALLOW_LAYERS
from dse.quantizers.methods import sinkq
from studies.observations import FIRST, SINKQ_SINKS, eliminated_by_chance
from studies.studied import SHIPPED, SURE, WINDOW, difference, is_sure, rows, scores, shipped
from studies.table import OAKEN, SIGNED, Tables, front, setting

AGREES, CONTRADICTS, UNDECIDED = "agrees", "contradicts", "undecided"
#: a loss of perplexity that still counts as little: Oaken's Table 3 calls 0.9 % slight; assumed for other papers
LITTLE = 0.01
#: share of normal blocks that 16 of 16 passing ones (NQKV Table 1) leave open: 0.05 ** (1 / 16)
OPEN = 0.83
#: a text and a verdict
Found = tuple[str, str]


@dataclass(frozen=True)
class PaperFinding:
    """A statement of a paper, and its test on a table; `find` returns the numbers in words and the verdict."""

    name: str
    where: str
    says: str
    find: Callable[[pd.DataFrame], Found]


def judged(value: float, error: float, wanted: int) -> str:
    """A difference whose sign the paper tells (`wanted`: 1, -1; 0: none): undecided where it is not sure."""
    if wanted == 0:
        return CONTRADICTS if is_sure(value, error) else AGREES
    return UNDECIDED if not is_sure(value, error) else AGREES if value * wanted > 0 else CONTRADICTS


def little(*losses: tuple[float, float]) -> str:
    """Losses (value, error) that a paper calls little: undecided where one may be more or less than LITTLE."""
    if any(value - SURE * error > LITTLE for value, error in losses):
        return CONTRADICTS
    return AGREES if all(value + SURE * error < LITTLE for value, error in losses) else UNDECIDED


def percent(value: float, error: float) -> str:
    """A difference of ln perplexity in words: "+1.20 ± 0.30 %"."""
    return f"{100 * value:+.2f} ± {100 * error:.2f} %"


def _limits(table: pd.DataFrame, side: str) -> pd.DataFrame:
    """Width between the limits of the outer 4 %: layers by texts."""
    data = rows(table, "ranges", side=side)
    high, low = (
        data[data["metric"] == name].pivot_table(index="layer", columns="series", values="value")
        for name in ("high", "low")
    )
    return high - low


def _over_layers(width: pd.DataFrame) -> float:
    means = width.mean(axis=1)
    return float(means.max() / means.min())


def _over_texts(width: pd.DataFrame) -> float:
    return float((width.max(axis=1) / width.min(axis=1)).max())


def layers(table: pd.DataFrame) -> Found:
    """Oaken, observation 1: more between layers than between texts."""
    widths = [_limits(table, side) for side in ("key", "value")]
    spans = [_over_layers(width) for width in widths]
    text = f"widest over narrowest layer: keys {spans[0]:.1f} times, values {spans[1]:.1f} times"
    return text, AGREES if all(
        a > max(1.5, _over_texts(w)) for a, w in zip(spans, widths, strict=True)
    ) else CONTRADICTS


def texts(table: pd.DataFrame) -> Found:
    """Oaken, observation 2: the same in every text: within a tenth of what tells the layers apart."""
    widths = [_limits(table, side) for side in ("key", "value")]
    spans = [_over_texts(width) - 1 for width in widths]
    text = (
        f"widest over narrowest text, at most in a layer: keys +{100 * spans[0]:.0f} %, values +{100 * spans[1]:.0f} %"
    )
    small = [a < 0.1 * (_over_layers(w) - 1) or a < 0.1 for a, w in zip(spans, widths, strict=True)]
    return text, AGREES if all(small) else CONTRADICTS


def channels(table: pd.DataFrame) -> Found:
    """Oaken, observation 3: the top 4 % of keys lie in a few channels, but not all of them."""
    top = rows(table, "channels", "top_in_as_many_channels", "key")["value"]
    text = f"{100 * top.min():.0f} to {100 * top.max():.0f} % of the top 4 % of keys in 4 % of the channels (even: 4 %)"
    return text, AGREES if top.min() > 0.2 and top.max() < 0.95 else CONTRADICTS


def _passing(table: pd.DataFrame, side: str) -> Found:
    data = rows(table, "normality", "not_rejected", side)
    largest = data[data["x"] == data["x"].max()]["value"]
    text = f"{100 * largest.mean():.0f} % of blocks of {data['x'].max():.0f} (by layer {100 * largest.min():.0f} to "
    share = largest.mean()
    verdict = AGREES if share >= OPEN else UNDECIDED if share > 0.5 else CONTRADICTS
    return f"{text}{100 * largest.max():.0f} %; normal ones: 95 %)", verdict


def normal_keys(table: pd.DataFrame) -> Found:
    """NQKV Table 1, keys: "most blocks", there 16 of 16; most, but fewer than those leave open, decides nothing."""
    return _passing(table, "key")


def normal_keys_before(table: pd.DataFrame) -> Found:
    """NQKV Table 1, keys before RoPE, as in OPT, which has none."""
    return _passing(table, "key before RoPE")


def normal_values(table: pd.DataFrame) -> Found:
    """NQKV Table 1, values."""
    return _passing(table, "value")


def quantiles(table: pd.DataFrame) -> Found:
    """NQKV Figure 4: mean quantiles on the line, as the eye sees it: within a fifth of a deviation inside +-2."""
    data = rows(table, "quantiles")
    data = data[data["x"].abs() < 2]
    off = (
        data.groupby(["layer", "side", "series", "x"])["value"]
        .mean()
        .reset_index()
        .groupby(["side", "series", "x"])["value"]
        .mean()
        .reset_index()
    )
    worst = float((off["value"] - off["x"]).abs().max())
    return f"mean quantiles within {worst:.2f} deviations of the line", AGREES if worst < 0.2 else CONTRADICTS


def sink(table: pd.DataFrame) -> Found:
    """SinkQ 3.1: tokens that draw much more than their share have a small key: half the median one."""
    heads = rows(table, "sinks").pivot_table(index=["layer", "x"], columns="metric", values="value")
    drawn = heads[heads["first_over_even"] >= 10]
    n, least = len(drawn), drawn["first_key_over_median"].min() if len(drawn) else float("nan")
    most = heads["first_over_even"].max()
    text = f"the first token draws 10 times its share or more in {n} of {len(heads)} heads, {most:.0f} at most"
    if n == 0:
        return text, CONTRADICTS
    return f"{text}; its key there at least {least:.2f} of the median", AGREES if least < 0.5 else CONTRADICTS


def half(table: pd.DataFrame) -> Found:
    """SinkQ Appendix D: a few of the first 300 tokens draw most of the attention: at most 5 of them half of it."""
    num = rows(table, "accumulated", "half")["value"]
    few = int((num <= 5).sum())
    text = f"1 to 5 of 300 tokens draw half of it in {few} of {len(num)} layers (one alone in {int((num == 1).sum())})"
    return text, AGREES if few > len(num) / 2 else CONTRADICTS


def overlap(table: pd.DataFrame) -> Found:
    """SinkQ Figure 1(c): for small N the smallest keys draw the most, far above chance (N / 300)."""
    data = rows(table, "overlap", "both")
    small = data[data["x"] == 4]["value"]
    chance = 4 / 300
    text = f"of the 4 smallest keys {100 * small.mean():.1f} % are among the 4 highest (chance: {100 * chance:.1f} %)"
    return text, AGREES if small.mean() > 5 * chance else CONTRADICTS


def kept(table: pd.DataFrame) -> Found:
    """SinkQ Figure 1(f): keeping the smallest keys exact helps most, the largest least."""
    data = rows(table, "kept", "l1_loss")
    mean = data[data["x"] == 8].groupby("series")["value"].mean()
    text = "loss with 8 kept: " + ", ".join(f"{name} {100 * value:.1f} %" for name, value in mean.sort_values().items())
    best, worst = str(mean.idxmin()), str(mean.idxmax())
    return text, AGREES if best.startswith("smallest") and worst.startswith("largest") else CONTRADICTS


def ratios(table: pd.DataFrame) -> Found:
    """Oaken Figure 12(a): 4/90/6 is on the front; off it is contradicted where something of as few bits surely is
    better."""
    points = front(table)
    ours = points[points["groups"] == OAKEN].iloc[0]
    fewer = points[(points["stored_bits"] <= ours["stored_bits"] + 0.05) & (points["groups"] != OAKEN)]
    off = {row["groups"]: difference(row, ours) for _, row in fewer.iterrows()}
    better = [name for name, (value, error) in off.items() if value < 0 and is_sure(value, error)]
    name, (value, error) = min(off.items(), key=lambda item: item[1][0])
    text = f"{'on' if ours['on_front'] else 'not on'} the front of the means; best of as few bits, {name}: "
    return (
        f"{text}{percent(value, error)}; surely better: {', '.join(better) or 'none'}",
        CONTRADICTS if better else AGREES if ours["on_front"] else UNDECIDED,
    )


def _groups(table: pd.DataFrame, series: str, reference: str) -> tuple[float, float]:
    return difference(setting(table, "oaken-groups", series), setting(table, "oaken-groups", reference))


def two_groups(table: pd.DataFrame) -> Found:
    """Oaken Table 3: two groups are worse than three."""
    off = {name: _groups(table, f"{name}, 5 bit", f"{OAKEN}, 5 bit") for name in ("90/10", "10/90")}
    verdicts = {judged(*gap, 1) for gap in off.values()}
    verdict = verdicts.pop() if len(verdicts) == 1 else CONTRADICTS if CONTRADICTS in verdicts else UNDECIDED
    return ", ".join(f"{name} {percent(*gap)}" for name, gap in off.items()), verdict


def more_groups(table: pd.DataFrame) -> Found:
    """Oaken Table 3: four and five groups of 5-bit outliers are better than three."""
    off = {name: _groups(table, f"{name}, 5 bit", f"{OAKEN}, 5 bit") for name in ("4/90/3/3", "2/2/90/6", "2/2/90/3/3")}
    verdicts = [judged(*gap, -1) for gap in off.values()]
    verdict = AGREES if verdicts.count(AGREES) == 3 else CONTRADICTS if CONTRADICTS in verdicts else UNDECIDED
    return ", ".join(f"{name} {percent(*gap)}" for name, gap in off.items()), verdict


def _four_bits(table: pd.DataFrame, series: str, name: str) -> Found:
    off = [
        _groups(table, f"{groups}, {series}", f"{groups}, 5 bit") for groups in ("4/90/3/3", "2/2/90/6", "2/2/90/3/3")
    ]
    return f"{name} over 5 bits: {percent(*min(off))} to {percent(*max(off))}", little(*off)


def four_bits(table: pd.DataFrame) -> Found:
    """Oaken Table 3: 4-bit outliers cost little: in the paper 0.3 to 0.9 %."""
    return _four_bits(table, "4 bit", "a sign and 3 bits")


def four_bits_signed(table: pd.DataFrame) -> Found:
    """Oaken's 4-bit outliers by the other reading, `outlier_code=signed`."""
    return _four_bits(table, SIGNED, "a signed code of 4")


def other_texts(table: pd.DataFrame) -> Found:
    """Oaken 4.3: thresholds need not come from the text that is read."""
    off = {
        name: difference(setting(table, "oaken-texts", key), setting(table, "oaken-texts", "scored"))
        for key, name in (("calibration", "another text"), ("random", "random tokens"))
    }
    worse = [value > 0 and is_sure(value, error) for value, error in off.values()]
    text = "over the scored text's own: " + ", ".join(f"{name} {percent(*gap)}" for name, gap in off.items())
    return text, CONTRADICTS if worse[0] else AGREES


def runs(table: pd.DataFrame) -> Found:
    """Oaken 4.2: thresholds are means over about a hundred runs; off by little with as many, and on every text."""
    data, of_text = rows(table, "oaken-runs", "off"), rows(table, "oaken-runs", "off text")["value"]
    off = {n: float(data[data["x"] == n]["value"].mean()) for n in (1, 10, 50)}
    text = ", ".join(f"{n} run{'s' * (n > 1)} {100 * value:.2f} %" for n, value in off.items())
    verdict = AGREES if off[50] < 0.01 and of_text.max() < 0.05 else CONTRADICTS
    return f"off the mean of all, over the outer width: {text}; a text at most {100 * of_text.max():.1f} %", verdict


def any_position(table: pd.DataFrame) -> Found:
    """SinkQ 3.2: sinks stand at any position: in some layers in most heads, behind the first tokens too."""
    places = rows(table, "places").pivot_table(index="layer", columns="metric", values="value")
    there = places[places["heads_elsewhere"] > 0.5]
    text = f"sinks behind the first {FIRST} tokens in most heads of {len(there)} of {len(places)} layers"
    if there.empty:
        return text, CONTRADICTS
    drawn = f"{100 * there['share_elsewhere'].min():.0f} to {100 * there['share_elsewhere'].max():.0f} %"
    first = f"{100 * there['share_first'].min():.0f} to {100 * there['share_first'].max():.0f} %"
    which = f"{there.index.min()} to {there.index.max()}"
    return f"{text} ({which}), with {drawn} of the attention there (those {FIRST}: {first})", AGREES


def first_or_smallest(table: pd.DataFrame) -> Found:
    """SinkQ 3.2: sinks found by their keys, against as many first tokens kept and excluded alike; it keeps 3."""
    off = {
        n: difference(*(setting(table, "sinkq-places", name, n) for name in ("first tokens", "smallest keys")))
        for n in (SINKQ_SINKS, 8, 16)
    }
    text = "first tokens over smallest keys: " + ", ".join(f"{n} kept {percent(*gap)}" for n, gap in off.items())
    return text, judged(*off[SINKQ_SINKS], 1)


def window(table: pd.DataFrame) -> Found:
    """SinkQ 4.1: a window of 32 keeps all sinks that later ones have eliminated from the pool."""
    data = rows(table, "sinkq-eliminated")
    data = data[(data["layer"] >= N_SHALLOW_LAYERS) & (data["x"] == data["x"].max())]
    n_tokens, most = data["x"].max(), data[data["metric"] == "most"]["value"].max()
    mean = data[data["metric"] == "mean"]["value"].mean()
    value, error = difference(*(setting(table, "sinkq-window", "window", n) for n in (0, 32)))
    text = (
        f"after {n_tokens:,.0f} tokens {mean:.1f} eliminated a head, {most:.0f} at most (keys in random order: "
        f"{eliminated_by_chance(n_tokens):.1f}); in 512 no window over 32: {percent(value, error)}"
    )
    return text, AGREES if most <= sinkq.WINDOW else CONTRADICTS


def blocks(table: pd.DataFrame) -> Found:
    """NQKV 4.1: large blocks cost next to nothing."""
    sizes = rows(table, "nqkv-blocks", "perplexity")["x"]
    largest, least = (setting(table, "nqkv-blocks", "NQKV", x) for x in (sizes.max(), sizes.min()))
    value, error = difference(largest, least)
    lost, lost_error = float(largest["log_ratio"]), float(largest["log_ratio_se"])
    over = f"{percent(value, error)} over blocks of {sizes.min():.0f}"
    return f"blocks of {sizes.max():.0f}: {percent(lost, lost_error)} over FP16, {over}", little((lost, lost_error))


def axes(table: pd.DataFrame) -> Found:
    """KIVI: with 2 bits keys by channel and values by token are best."""
    kivi = setting(table, "kivi-axes", "channel/token", 2)
    off = {
        name: difference(setting(table, "kivi-axes", name, 2), kivi)
        for name in ("channel/channel", "token/token", "token/channel")
    }
    verdicts = [judged(*gap, 1) for gap in off.values()]
    verdict = CONTRADICTS if CONTRADICTS in verdicts else AGREES if verdicts.count(AGREES) == 3 else UNDECIDED
    return "over channel/token: " + ", ".join(f"{name} {percent(*gap)}" for name, gap in off.items()), verdict


def recent(table: pd.DataFrame) -> Found:
    """SinkQ Table 3: more recent tokens exact, less loss, for every group size."""
    off = {g: difference(*(setting(table, "sinkq-sizes", f"G = {g}", r) for r in (128, 0))) for g in (32, 64, 128)}
    verdicts = [judged(*gap, -1) for gap in off.values()]
    verdict = AGREES if verdicts.count(AGREES) == 3 else CONTRADICTS if CONTRADICTS in verdicts else UNDECIDED
    return "R = 128 over 0: " + ", ".join(f"G = {g} {percent(*gap)}" for g, gap in off.items()), verdict


def group_sizes(table: pd.DataFrame) -> Found:
    """SinkQ Table 3: with as many recent tokens exact, the size of groups shows no pattern; mean over their numbers."""
    scored = scores(table, "sinkq-sizes")
    names = ["log_ratio", *(name for name in scored.columns if WINDOW.fullmatch(str(name)))]
    value, error = difference(*(scored.loc[scored["series"] == f"G = {g}", names].mean() for g in (128, 32)))
    return f"G = 128 over 32, mean over R: {percent(value, error)}", judged(value, error, 0)


def one_sink(table: pd.DataFrame) -> Found:
    """SinkQ Table 4: one sink already helps much: here half a percent would be."""
    value, error = difference(*(setting(table, "sinkq-sinks", "sinks", n) for n in (1, 0)))
    verdict = judged(value, error, -1)
    return f"1 sink over none: {percent(value, error)}", CONTRADICTS if SURE * error - value < 0.005 else verdict


def zip_cache(table: pd.DataFrame) -> Found:
    """SinkQ Table 8: ZipCache with 20 % of the tokens in 4 bits is weaker than KIVI and SinkQ with 2 bits."""
    ours = setting(table, "methods", "zipcache:salient=0.2")
    off = {name: difference(ours, setting(table, "methods", f"{name}:bits=2")) for name in ("kivi", "sinkq")}
    verdicts = {judged(*gap, 1) for gap in off.values()}
    verdict = verdicts.pop() if len(verdicts) == 1 else UNDECIDED
    return "ZipCache over " + ", ".join(f"{name} {percent(*gap)}" for name, gap in off.items()), verdict


def shallow(table: pd.DataFrame) -> Found:
    """SinkQ Table 4: none in the first two layers costs nothing; undecided where sinks gain nothing in any layer."""
    last = scores(table, "sinkq-layers")["x"].max()
    value, error = difference(*(setting(table, "sinkq-layers", "layers", n) for n in (2, 0)))
    whole, whole_error = difference(*(setting(table, "sinkq-layers", "layers", n) for n in (last, 0)))
    text = (
        f"none in layers 0 and 1 over all layers: {percent(value, error)}; none at all: {percent(whole, whole_error)}"
    )
    if value > 0 and is_sure(value, error):
        return text, CONTRADICTS
    return text, AGREES if whole > 0 and is_sure(whole, whole_error) else UNDECIDED


FINDINGS = (
    PaperFinding("ranges by layer", "Oaken, observation 1", "ranges differ from layer to layer", layers),
    PaperFinding("ranges by text", "Oaken, observation 2", "ranges stay the same from text to text", texts),
    PaperFinding(
        "outlier channels", "Oaken, observation 3", "the largest keys lie in few channels, but not all", channels
    ),
    PaperFinding("normal blocks, keys", "NQKV Table 1", "most blocks of keys pass a test of normality", normal_keys),
    PaperFinding(
        "normal blocks, keys before RoPE", "NQKV Table 1", "the same, without RoPE as in its OPT", normal_keys_before
    ),
    PaperFinding(
        "normal blocks, values", "NQKV Table 1", "most blocks of values pass a test of normality", normal_values
    ),
    PaperFinding("quantiles", "NQKV Figure 4", "quantiles of blocks lie on the normal line", quantiles),
    PaperFinding("a sink", "SinkQ 3.1", "tokens that draw the attention have small keys", sink),
    PaperFinding("few tokens", "SinkQ Appendix D", "a few tokens draw most of the attention", half),
    PaperFinding("smallest keys", "SinkQ Figure 1(c)", "the few smallest keys draw the highest attention", overlap),
    PaperFinding("tokens to keep", "SinkQ Figure 1(f)", "keep the smallest keys exact; the largest help least", kept),
    PaperFinding("group ratios", "Oaken Figure 12(a)", f"{OAKEN} is on the front of perplexity and bits", ratios),
    PaperFinding("two groups", "Oaken Table 3", "two groups are worse than three", two_groups),
    PaperFinding("four and five groups", "Oaken Table 3", "more groups are a little better", more_groups),
    PaperFinding("4-bit outliers", "Oaken Table 3", "4 bits for outliers cost little (0.3 to 0.9 %)", four_bits),
    PaperFinding("4-bit outliers, signed code", "Oaken Table 3", "the same, as one signed code", four_bits_signed),
    PaperFinding("runs", "Oaken 4.2", "about a hundred runs give the thresholds of all texts", runs),
    PaperFinding("thresholds", "Oaken 4.3", "thresholds may come from another text", other_texts),
    PaperFinding("block size", "NQKV 4.1", "large blocks (256) have almost no impact", blocks),
    PaperFinding("axes", "KIVI", "keys by channel, values by token", axes),
    PaperFinding("recent tokens", "SinkQ Table 3", "more recent tokens exact, less loss", recent),
    PaperFinding("group size", "SinkQ Table 3", "the size of groups shows no clear pattern", group_sizes),
    PaperFinding("number of sinks", "SinkQ Table 4", "one sink kept exact improves much", one_sink),
    PaperFinding("ZipCache", "SinkQ Table 8", "ZipCache is weaker than KIVI and SinkQ", zip_cache),
    PaperFinding("any position", "SinkQ 3.2", "sinks stand at any position, not only at the first ones", any_position),
    PaperFinding(
        "sinks by keys", "SinkQ 3.2", "keep the smallest keys rather than the first tokens", first_or_smallest
    ),
    PaperFinding("window", "SinkQ 4.1", "a window of 32 keeps all sinks eliminated from the pool", window),
    PaperFinding("shallow layers", "SinkQ Table 4", "sinks are not needed in the first two layers", shallow),
)


def table(tables: Tables) -> pd.DataFrame:
    """A row a finding: observation, paper, says, and for each model what it shows and the verdict."""
    lines = []
    for finding in FINDINGS:
        line: dict[str, str] = {"observation": finding.name, "paper": finding.where, "says": finding.says}
        for model, model_table in tables.items():
            line[model], line[f"{model} verdict"] = finding.find(model_table)
        lines.append(line)
    return pd.DataFrame(lines)


def counts(found: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Verdicts of each model by how often they were given."""
    models = [str(name).removesuffix(" verdict") for name in found.columns if str(name).endswith(" verdict")]
    return {m: {v: int(np.sum(found[f"{m} verdict"] == v)) for v in (AGREES, CONTRADICTS, UNDECIDED)} for m in models}


def shown(found: pd.DataFrame) -> str:
    """Such a table as Markdown, a row an observation with verdict and numbers of each model."""
    models = list(counts(found))
    lines = ["| paper | it says | " + " | ".join(models) + " |", "|---|---|" + "---|" * len(models)]
    for row in found.to_dict("records"):
        cells = [f"**{row[f'{model} verdict']}**: {row[model]}" for model in models]
        lines.append("| " + " | ".join((row["paper"], row["says"], *cells)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(shown(table({model: shipped(model) for model in SHIPPED})))
