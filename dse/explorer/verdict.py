"""The page's one verdict: which design to take under the question's load and limits, of those that are shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import streamlit as st

from dse.core.errors import DseError, InputError
from dse.explorer import request
from dse.explorer.bench import Bench, BenchRow
from dse.explorer.cards import loss, shown
from dse.explorer.request import LoadRequest, PointAnswer, PointRequest
from dse.model import uncertainty
from dse.model.compare import Comparison
from dse.questions import recommend
from dse.questions.common import competes, ends_text, limits_text, sure_text
from dse.questions.grid import Grid
from dse.questions.interactivity import ALIKE
from dse.questions.server_design import Demand
from dse.report import answers
from dse.report.design import as_said
from dse.report.present import fits_text
from dse.specs import prices


@dataclass(frozen=True)
class Verdict:
    """A sentence, what it says in numbers, the design that it takes, if any, and else the one that comes nearest."""

    head: str
    said: str = ""
    taken: BenchRow | None = None
    nearest: BenchRow | None = None


def is_enough(answer: PointAnswer, asked: PointRequest, limits: Mapping[str, float]) -> bool:
    """Whether a design runs, fits and surely keeps the limits at its load."""
    result, n_asked = answer.result, asked.work.batch
    if not result["feasible"] or not competes(result):
        return False
    if n_asked is not None:
        return bool(result["fits_whole_batch"]) and (not limits or answer.holds >= n_asked)
    return answer.holds > 0


def keeps(row: BenchRow, limits: Mapping[str, float]) -> bool:
    """`is_enough` of a row; not of one without an answer."""
    return row.answer is not None and row.asked is not None and is_enough(row.answer, row.asked, limits)


def verdict(bench: Bench) -> Verdict:
    """The verdict on the designs of a bench."""
    limits = request.limits_s(bench.values)
    within = f" {limits_text(limits)}" if limits else " what is asked"
    kept = [row for row in bench.answered if keeps(row, limits)]
    if not kept:
        return _none(bench, within)
    if len({row.request.model for row in kept}) > 1:
        return Verdict(f"{len(kept)} of {len(bench.rows)} designs keep{within}.", "Models differ: the table says how.")
    if bench.values["load"] != "batch":
        return _of_load(bench, kept)
    best = {row.name: row.result for row in kept}
    head, taken = answers.decided(best, {row.name: float(row.result["stored_bits"]) for row in kept}, limits)
    row = next(row for row in kept if row.name == taken)
    first = kept[0] if kept[0] is not row else None
    ahead = f"{over}. " if first is not None and (over := lead(row, first)) else ""
    usd = row.result["usd_per_million_tokens"]
    said = [answers.server_text(row.result, usd)["text"], fits_text(row.result, _is_most(row)), _scores(row)]
    return Verdict(f"{head}.", ahead + " ".join(filter(None, said)), row)


def _none(bench: Bench, within: str) -> Verdict:
    """The design that comes nearest where nothing surely keeps what is asked; its row says what would."""
    running = [row for row in bench.answered if row.result["feasible"] and competes(row.result)]
    if not running:
        return Verdict("No design runs here.", f"{bench.current.name}: {bench.current.why_not}.", nearest=bench.current)
    limits = request.limits_s(bench.values)
    row = min(running, key=lambda row: (not row.result["fits_whole_batch"], _excess(row, limits)))
    assert row.answer is not None
    times = []
    for name, key in (("TPOT", "tpot_s"), ("TTFT", "ttft_s")):
        ends = ends_text(row.result, key, row.answer.late_s.get(key))
        times.append(f"{name} {shown(key, as_said(row.result))}" + (f" ({ends})" if ends else ""))
    said = [
        f"{row.name} comes nearest: {', '.join(times)}.",
        *([] if row.result["fits_whole_batch"] else [fits_text(row.result)]),
    ]
    return Verdict(f"No design surely keeps{within}.", " ".join([*said, "Its row says what would."]), nearest=row)


def _excess(row: BenchRow, limits: Mapping[str, float]) -> float:
    """The time over its limit that a design misses most, at the upper end of the interval."""
    late_s = row.answer.late_s if row.answer else {}
    timed = [name for name in limits if row.result[name] is not None]
    high = {name: late_s.get(name) or uncertainty.ends(row.result, name)[1] for name in timed}
    return max((high[name] / limits[name] for name in timed), default=0.0)


def _is_most(row: BenchRow) -> bool:
    return row.asked is not None and row.asked.work.batch is None and row.result["batch"] == row.result["max_batch"]


def _scores(row: BenchRow) -> str:
    text = loss(row)
    return f"Accuracy loss: {text}." if text != "-" else ""


def lead(row: BenchRow, other: BenchRow) -> str:
    """By how much a design gives more tokens a device than another, and how sure that is; "" for the same."""
    if row is other or not all(design.result["feasible"] and competes(design.result) for design in (row, other)):
        return ""
    gain = Comparison().gain(row.case, other.case)
    if not gain or gain.ratio == 1:
        return ""
    more = "more" if gain.ratio > 1 else "less"
    text = answers.gain_text(answers.gain(row.result, other.result))
    return f"Throughput a device {text} against {other.name}, {sure_text(gain.sure_of_side)} sure to be {more}"


def _of_load(bench: Bench, kept: Sequence[BenchRow]) -> Verdict:
    """The design that holds a rate, or sessions, for the least money: what `dse recommend` says of these servers."""
    kind = bench.values["load"]
    asked = [(row.name, row.asked or row.request, request.load_request(row.values)) for row in kept]
    alike = tuple(one for one in asked if one[2].kind == kind)  # not those with requests at once of their own
    try:
        answer, is_priced = recommended(alike)
    except DseError as error:
        return Verdict(error.lines()[0])
    row = next(row for row in kept if row.name == answer.first.server.asked)
    said = (
        answer.verdict if is_priced else f"Run {recommend.words(answer.first)}: the fewest devices; no price is known."
    )
    return Verdict(f"Take {row.name}.", f"{said} {_scores(row)}", row)


# kept as it is, not copied: its servers know what was computed of them
@st.cache_resource(max_entries=64, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr, LoadRequest: repr})
def recommended(asked: tuple[tuple[str, PointRequest, LoadRequest], ...]) -> tuple[recommend.Recommendation, bool]:
    """The search's answer among named designs, and whether all have a price: else the fewest devices are best.

    Raises DseError.
    """
    if not asked:
        raise InputError("each design has requests at once of its own: empty that field of one, or ask for no rate")
    servers = tuple(request.server_of(point, load, name) for name, point, load in asked)
    demand: Demand = servers[0].demand
    devices = {name: point.device_spec() for name, point, _ in asked}
    is_priced = all(device.usd_per_hour for device in devices.values())
    priced = prices.prices_of(devices) if is_priced else dict.fromkeys(devices, ALIKE)
    grid = Grid(servers, devices=tuple(devices), engines=(), formats=(), splits=(), is_fixed=True)
    return recommend.recommend(grid, demand, priced, "cost" if is_priced else "devices"), is_priced
