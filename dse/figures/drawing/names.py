"""Names as people print them: what figures call models, devices, quantizers, token policies, software and results.

Tables keep their keys (`llama2-7b`, `fp8`, `memory_bandwidth`); every text of a chart has the title that the spec, the
family or the column declares (Llama 2 7B, FP8, memory bandwidth).
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from dse import quantizers
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.model.results import title
from dse.specs import catalog, tokens

#: a key with its parameters and its implementation: kivi:bits=4,group=64@generic
_KEY = re.compile(
    r"(?<![\w.=/@:-])[A-Za-z0-9](?:[\w.+-]*\w)?"
    r"(?::\w+=[\w.+*-]*\w(?:,\w+=[\w.+*-]*\w)*)?(?:@[\w.-]*\w)?(?![\w=/])"
)
#: commands and names of files stay as they are typed
_TYPED = re.compile(r"(`[^`]*`)")
#: titles that are too long beside a line, or that say more than the name
_SHORT = {
    "mixtral-8x7b-oaken": "Mixtral 8x7B (Oaken)",
    "smollm2": "SmolLM2 135M",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "trtllm": "TensorRT-LLM",
}
#: a name of a column or of a number of a device, whose words are printed apart
_SNAKE = re.compile(r"[a-z0-9]+(_[a-z0-9]+)+")
_SPELLED = {"kv": "KV", "fp8": "FP8", "fp16": "FP16", "fp4": "FP4", "int8": "INT8", "frac": "share", "usd": "USD"}
#: a release of a model that answers questions, as papers name it: mistral-7b-instruct-v0.2
_TUNED = re.compile(r"(.+?)-(chat|instruct)(?:-(v[\d.]+))?")
#: keys that are words of English too: names only with parameters
_WORDS = {"rotated", "gear", "full", "window", "constant", "sparse"}


@lru_cache(maxsize=50_000)
def printed(text: str) -> str:
    """A text with the printed name in place of each key."""
    if "`" in text:
        return "".join(part if part.startswith("`") else printed(part) for part in _TYPED.split(text))
    return _KEY.sub(lambda found: found[0] if found[0] in _WORDS else _name(found[0]) or found[0], text)


def of_chart(chart: Chart) -> Chart:
    """The chart with printed names in all of its texts."""
    return replace(
        chart,
        title=printed(chart.title),
        panels=tuple(_of_panel(panel) for panel in chart.panels),
        keys=tuple(map(_of_series, chart.keys)),
        notes=tuple(map(printed, chart.notes)),
        colors=chart.colors and replace(chart.colors, axis=_of_axis(chart.colors.axis)),
    )


def _of_panel(panel: Panel) -> Panel:
    series = tuple(map(_of_series, panel.series))
    return replace(panel, title=printed(panel.title), x=_of_axis(panel.x), y=_of_axis(panel.y), series=series)


def _of_axis(axis: Axis) -> Axis:
    ticks = tuple((at, printed(text)) for at, text in axis.ticks)
    return replace(axis, name=printed(axis.name), ticks=ticks)


def _of_series(series: Series) -> Series:
    hover, labels = tuple(map(printed, series.hover)), tuple(map(printed, series.labels))
    return replace(series, name=printed(series.name), hover=hover, labels=labels)


@cache
def _name(key: str) -> str | None:
    """The printed name of a key; None for any other word."""
    if key in _SHORT:
        return _SHORT[key]
    method, at, implementation = key.partition("@")
    family = method.partition(":")[0]
    if family in quantizers.FAMILIES:
        return _with_parameters(method, quantizers.FAMILIES) + f" {at}{implementation}".rstrip()
    if family in tokens.FAMILIES:
        return _with_parameters(method, tokens.FAMILIES)
    if "_" in key and (words := title(key)) != key:
        return words
    if key in catalog.model_files():
        return catalog.model(key).title.split(", ")[0]
    if (tuned := _TUNED.fullmatch(key)) and tuned[1] in catalog.model_files():
        return " ".join([catalog.model(tuned[1]).title, tuned[2].capitalize(), *(filter(None, [tuned[3]]))])
    if key in catalog.device_files():
        return catalog.device(key).name
    return " ".join(_SPELLED.get(word, word) for word in key.split("_")) if _SNAKE.fullmatch(key) else None


def _with_parameters(text: str, families: Mapping[str, Any]) -> str:
    """A family's title and what differs from its defaults: KIVI 4-bit, group 64."""
    family, _, rest = text.partition(":")
    words = []
    for part in filter(None, rest.split(",")):
        name, _, value = part.partition("=")
        words.append(f"{value}-bit" if name == "bits" else f"{name.replace('_', ' ')} {value}")
    return " ".join([_plain(families[family].title), ", ".join(words)]).rstrip()


def _plain(name: str) -> str:
    """A family's title without underscores, but for those of GGML's types, which are printed with them: Q4_0."""
    return name if re.fullmatch(r"Q\d_\d", name) else name.replace("_", " ")
