"""A page that answers without an install: does it fit, which format, and throughput against the speed of each user.

Its numbers are computed when it is built (`dse docs`), for named models, devices, formats and lengths; a script in the
page chooses among them, and the address says the choice. It needs no network.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from operator import itemgetter
from typing import Any, NamedTuple

from dse.core.errors import DseError, InputError, show
from dse.core.field import TOKENS
from dse.core.progress import Progress
from dse.core.units import plain
from dse.figures.export import web_page
from dse.model import quality, uncertainty
from dse.model.uncertainty import Gain
from dse.questions import common, engine_formats, interactivity, layouts
from dse.questions.common import Result
from dse.questions.grid import Choices, grid_of
from dse.questions.search import Fleet
from dse.questions.server_design import Demand, RequestsAtOnce
from dse.questions.two_runs import RERUN_90
from dse.report import servers
from dse.specs import catalog
from dse.specs.deployment import USUAL_SIZES
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.measurements import CLOSED
from dse.specs.workload import Workload

_three, _split = partial(plain, digits=3), itemgetter(*layouts.SPLIT)
PAGE = "answers.html"
MODELS = ("llama3.1-8b", "qwen3-32b", "llama3.1-70b", "gpt-oss-120b", "deepseek-v3")
DEVICES = ("h200", "h100", "b200", "a100-80gb", "mi300x")
FORMATS = (engine_formats.PLAIN, "fp8", "nvfp4", "int4_per_token_head")
#: prompt and answer, in tokens -> a use that has such lengths
LENGTHS = {(1024, 1024): "chat: ", (8192, 1024): "documents: ", (32768, 512): "long documents: "}
#: limits that a reader chooses among, in seconds by column; None: no limit
LIMITS = {"tpot_s": (0.020, 0.050, 0.100, None), "ttft_s": (1.0, 5.0, None)}


class PageChoices(NamedTuple):
    """Models, devices, formats and lengths (prompt, answer) of a page."""

    models: Sequence[ModelSpec]
    devices: Sequence[HardwareSpec]
    formats: Sequence[str]
    lengths: Sequence[tuple[int, int]]


def choices(
    models: Iterable[str] = MODELS,
    devices: Iterable[str] = DEVICES,
    formats: Iterable[str] = FORMATS,
    lengths: Iterable[str] = (),
) -> PageChoices:
    """Models, devices and formats by names or files; lengths as 8192+1024, or 8k+1k. Raises InputError, SpecError."""
    of_models = {model.name: model for model in map(catalog.model, models)}
    of_devices = {device.name: device for device in map(catalog.device, devices)}
    names = [CLOSED.required(name).name for name in formats]
    pairs = list(map(_lengths, lengths)) or list(LENGTHS)
    return PageChoices([*of_models.values()], [*of_devices.values()], [*dict.fromkeys(names)], [*dict.fromkeys(pairs)])


def _lengths(text: str) -> tuple[int, int]:
    prompt, plus, answer = text.partition("+")
    if not plus:
        raise InputError(f"lengths = {show(text)}: must be tokens of prompt and answer, such as 8192+1024 or 8k+1k")
    work = Workload(input_tokens=TOKENS.parse("lengths", prompt), output_tokens=TOKENS.parse("lengths", answer))
    return work.input_tokens, work.output_tokens


def tables(asked: PageChoices, progress: Progress | None = None) -> dict[str, Any]:
    """Model -> device -> lengths -> what `answers_of` gives. JSON-ready."""
    pairs = list(product(asked.models, asked.devices))
    found: dict[str, Any] = {}
    with progress(pairs, label="answers", length=len(pairs)) if progress else nullcontext(pairs) as shown:
        for model, device in shown:
            here = {
                f"{prompt}+{answer}": answers_of(model, device, asked.formats, prompt, answer)
                for prompt, answer in asked.lengths
            }
            found.setdefault(model.name, {})[device.name] = here
    return found


def answers_of(
    model: ModelSpec, device: HardwareSpec, names: Sequence[str], input_tokens: int, output_tokens: int
) -> dict[str, Any]:
    """The part of a page on a model, a device and lengths.

    formats: of each its quality, the most requests at once by devices, and its front, or why it does not run. servers:
    those that answers name. answers: for each pair of limits the verdict, the format to take, and of each format the
    index of its best server and its gain over 16 bits.
    """
    work = Workload(input_tokens=input_tokens, output_tokens=output_tokens)
    formats: dict[str, Any] = {}
    served: dict[str, ServedFormat] = {}
    if (positions := model.max_position_tokens) and input_tokens + output_tokens > positions:
        formats, names = {name: {"why": f"the model has {positions:,} positions"} for name in names}, ()
    for name in names:
        try:
            design = common.design(device, model, name)
            result = design.speed(work)
            formats[name] = {"why": _reason(result["runs_why"] or "")}
            if common.competes(result):
                served[name] = ServedFormat(device, model, name, work)
                formats[name] |= served[name].shown()
        except DseError as error:  # not for this model's heads, or split over no number of devices
            formats[name] = {"why": _reason(str(error))}
    servers: dict[tuple[Any, ...], dict[str, Any]] = {}
    answers = {}
    for seconds in product(*LIMITS.values()):
        limits = {column: most for column, most in zip(LIMITS, seconds, strict=True) if most is not None}
        fleets = {name: fleet for name, of in served.items() if (fleet := of.best(limits))}
        best = {name: fleet.results for name, fleet in fleets.items()}
        base, of_formats = best.get(engine_formats.PLAIN), {}
        for name, row in best.items():
            key = name, row["batch"], *_split(row)
            if key not in servers:
                servers[key] = told(fleets[name])
            against = "-" if base is None or row is base else gain_text(gain(row, base))
            of_formats[name] = [list(servers).index(key), against]
        verdict, take = decided(best, {name: of.bits for name, of in served.items()}, limits)
        if not served:
            verdict = f"Nothing runs: {next(iter(formats.values()))['why']}."
        elif not any(of.answer.rows for of in served.values()):
            verdict = f"It does not fit on up to {USUAL_SIZES[-1]} of these devices."
        place = "|".join(_limit(*limit) for limit in zip(LIMITS, seconds, strict=True))
        answers[place] = {"verdict": verdict, "take": take, "of": of_formats}
    return {"formats": formats, "servers": [*servers.values()], "answers": answers}


class ServedFormat:
    """A format that a server runs on a device, over layouts and requests at once; at most as many as the server takes.

    Raises DseError where the model is not split so.
    """

    def __init__(self, device: HardwareSpec, model: ModelSpec, name: str, work: Workload) -> None:
        choices = Choices(engines=(None,), quantizers=(name,), most=USUAL_SIZES[-1])
        grid = grid_of({device.name: device}, model, work, Demand(RequestsAtOnce(None), {}), choices, {})
        self.answer = interactivity.interactivity(grid, Demand(RequestsAtOnce(None), {}))
        self.bits = float(grid.servers[0].design.evaluate(replace(work, batch=1))["stored_bits"])

    def best(self, limits: Mapping[str, float]) -> Fleet | None:
        """The server that `dse ask interactivity` names within the limits."""
        asked = self.answer.grid
        grid = replace(asked, servers=tuple(server.under(limits) for server in asked.servers))
        return interactivity.best_of(grid, Demand(RequestsAtOnce(None), dict(limits)))

    def shown(self) -> dict[str, Any]:
        """Accuracy loss and rise of perplexity, the most requests at once on so many devices, and the front: layout,
        requests, tok/s a user, tok/s a device, TTFT in s, ends of the 80 % interval of tok/s a device over it."""
        holds: dict[int, int] = {}
        for row in self.answer.rows:
            holds[row["n_devices"]] = max(holds.get(row["n_devices"], 0), row["batch"])
        first = self.answer.rows[0] if self.answer.rows else None
        drop, rise = ("-", "-") if first is None else (quality.drop_text(first), quality.rise_text(first))
        rows = [_row(row) for own_rows in self.answer.fronts.values() for row in own_rows]
        return {"drop": drop, "rise": rise, "holds": list(holds.items()), "rows": rows}


def told(fleet: Fleet) -> dict[str, Any]:
    """A server in words, as cells of the table, and the command that starts it."""
    command = fleet.server.command
    text = server_text(fleet.results, fleet.results[common.COST])
    return {**text, "command": "\n".join(command.lines) if command.line else ""}


def server_text(row: Result, usd: float | None) -> dict[str, Any]:
    """A server that a format takes within limits: a sentence, and its cells between gain and accuracy loss."""
    user, rate = interactivity.speeds(row)
    low, high, _ = interactivity.interval(row)
    n, ways = int(row["batch"]), layouts.words(row)
    server = f"{row['n_devices']} x {row['device']}{f' ({ways})' if ways else ''}, {n:,} request{'s' * (n > 1)} at once"
    ends, cost = f"{_three(rate * low)} to {_three(rate * high)}", "-" if usd is None else _three(usd)
    first = common.seconds_text(float(f"{row['ttft_s']:.3g}"))
    price = "" if usd is None else f"{cost} USD per million output tokens, "
    text = (
        f"{server}: {_three(rate)} tok/s a device (8 of 10 measurements: {ends}), {price}{_three(user)} tok/s a "
        f"user, first token after {first}."
    )
    cells = [f"{_three(rate)} ({ends})", cost, _three(user), first, f"{ways or '1 device'}, {n:,} at once"]
    return {"text": text, "cells": cells}


def decided(best: Mapping[str, Result], bits: Mapping[str, float], limits: Mapping[str, float]) -> tuple[str, str]:
    """The verdict on the best server of each format within limits, and the format to take; "" for none.

    Formats tie that no other surely beats: by an interval of the gain above 1, and by more than two runs of one server
    differ. Of these the one of most bits is taken.
    """
    if not best:
        return f"Nothing surely keeps {common.limits_text(limits)}: allow more time, or take another device.", ""
    order = sorted(best, key=lambda name: (bits[name], interactivity.middle_speed(best[name])), reverse=True)
    tied = [name for name in order if not any(_beats(best[other], best[name]) for other in order if other != name)]
    tied = tied or [max(order, key=lambda name: interactivity.middle_speed(best[name]))]
    if len(tied) == 1:
        return f"Take {tied[0]}", tied[0]
    return f"{', '.join(tied[:-1])} and {tied[-1]} tie within what is known: take {tied[0]}", tied[0]


def gain(row: Result, other: Result) -> Gain:
    """By how much a server gives more tokens a device than another."""
    of_all, devices = uncertainty.gain(row, other), other["n_devices"] / row["n_devices"]
    return uncertainty.gain_within(devices * of_all.low, devices * of_all.high)


def _beats(row: Result, other: Result) -> bool:
    ahead = gain(row, other)
    return ahead.low > 1 and ahead.ratio > 1 + RERUN_90


def gain_text(ahead: Gain) -> str:
    """A gain as people read it: -0.7 % (-9.0 to +8.3)."""
    ratio, low, high = (f"{round(100 * (number - 1), 1) + 0.0:+.1f}" for number in ahead[:3])
    return f"{ratio} % ({low} to {high})"


def _reason(text: str) -> str:
    """Why a format does not run, without its name before it."""
    return text.partition(": ")[2] or text


def _limit(column: str, seconds: float | None) -> str:
    """A limit as the address says it: TPOT in ms, TTFT in s."""
    return "none" if seconds is None else f"{seconds * (1e3 if column == 'tpot_s' else 1):g}"


def _row(row: dict[str, Any]) -> list[Any]:
    user, device = interactivity.speeds(row)
    low, high, _ = interactivity.interval(row)
    numbers = (user, device, row["ttft_s"], low, high)
    return [layouts.words(row) or "1 device", row["batch"], *(float(f"{number:.4g}") for number in numbers)]


def page(numbers: Mapping[str, Any], asked: PageChoices, home: str = "") -> str:
    """The page for these tables; beside it belong plotly.min.js and the page of accuracy. `home`: a page to link."""
    usd = {device.name: device.usd_per_hour for device in asked.devices}
    prices = {name: f"{of.value:g} {of.unit} ({of.source})" if of else "no known price" for name, of in usd.items()}
    lengths = {f"{n}+{m}": f"{LENGTHS.get((n, m), '')}{n:,} in, {m:,} out" for n, m in asked.lengths}
    limits = {
        name.removesuffix("_s"): {_limit(name, s): "no limit" if s is None else common.seconds_text(s) for s in seconds}
        for name, seconds in LIMITS.items()
    }
    data = {"tables": numbers, "lengths": lengths, "formats": asked.formats, "prices": prices, "limits": limits}
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return web_page.render(
        "answers.html",
        "dse.report",
        title="Which KV format, on how many devices?",
        accuracy=servers.PAGE,
        home=home,
        data=web_page.trusted(text),
        js_beside=True,
    )


def pages(asked: PageChoices, progress: Progress | None = None, home: str = "") -> dict[str, str]:
    """The page of answers, that of accuracy, and the script that both load, by file name."""
    made = page(tables(asked, progress), asked, home)
    return {PAGE: made, servers.PAGE: servers.page(PAGE, home), "plotly.min.js": web_page.plotly_js()}
