"""Compare KV formats with 16 bits: memory, time, error and energy of each that a device and stack can run."""

import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd

from dse.core.columns import Column, aligned, cells
from dse.core.errors import InputError
from dse.core.progress import Progress, each
from dse.model import quality, starts, uncertainty
from dse.model.compare import Comparison
from dse.model.generation import MANY_GROUPS
from dse.model.point import Point
from dse.model.results import assumed_title, title
from dse.model.uncertainty import Gain
from dse.questions import common, crossing, engine_formats
from dse.questions.common import NAMED_FROM, THROUGHPUT, Candidate, QuestionAnswer, Result, competes, sure_text
from dse.questions.two_runs import TwoRuns, two_runs
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.engines import DOUBTFUL, Support
from dse.specs.measurements import CLOSED, Bits
from dse.specs.oaken_grid import SAMPLE
from dse.specs.workload import Workload

#: what every format is told over
PLAIN = engine_formats.PLAIN
#: every batch up to this one, and every prompt, are searched for where the best format begins to pay
LAST_BATCH, LAST_INPUT = 256, 32_768
#: assumptions under which the kernels of a format's keys and values are not measured ones
UNMEASURED = (
    "no_kernel",
    "implementation",
    "kernel_launch",
    "stacks_of",
    "nearest_kernels",
    "peak_rates",
    "reached_rates",
)
#: what a format brings at the batch and prompt asked for
VERDICTS = {
    "pays": "pays",
    "open": "may pay",
    "room": "fits more, no faster",
    "no": "does not pay",
    "drops": "drops scores too far",
    "errs": "errs too far",
    "untold": "cannot be told",
    "alone": "runs where 16 bits do not",
    "out": "does not run",
    "refused": "other software",
    "base": "baseline",
}
#: the same in a narrow table, where it is shorter
_SHORT_VERDICTS = {
    **VERDICTS,
    "room": "fits more",
    "no": "no gain",
    "drops": "drops",
    "errs": "errs",
    "untold": "cannot tell",
    "alone": "alone",
    "out": "no fit",
    "refused": "not run",
    "base": "-",
}
#: why a format is left out that is compared where it is named
TAKES_LONG = f"more than {MANY_GROUPS:,} groups to pack, counted where named"
#: formats that a sentence names
MAX_NAMED = 4
#: letters of a line of words
TEXT_WIDTH = 120
_MEASURED, _ASSUMED = "measured", "assumed"
#: surest that a gain by kernels that nobody measured is told to be, either way
UNMEASURED_CHANCE = 0.95


@dataclass(frozen=True)
class Format:
    """One format: its results at the workload, and how many times the throughput of 16 bits it gives."""

    name: str
    result: Result
    #: None of 16 bits themselves, and where one of both does not run
    gain: Gain | None
    #: a key of `VERDICTS`
    verdict: str
    #: why the engine of the workload does not run it, so that other software would have to; "" where it runs
    elsewhere: str = ""
    #: what the engine's table tells of it
    support: Support | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """Assumptions about its kernels; none where they were measured."""
        return unmeasured(self.result["assumptions"])

    @property
    def sure(self) -> float | None:
        """The chance of more throughput than 16 bits; never near certainty where kernels were not measured."""
        if self.gain is None or not self.marks:
            return self.gain and self.gain.sure
        return min(max(self.gain.sure, 1 - UNMEASURED_CHANCE), UNMEASURED_CHANCE)

    @property
    def kernels(self) -> str:
        """Whether its kernels were measured, in a word."""
        return _ASSUMED if self.marks else _MEASURED

    @property
    def implementation(self) -> str:
        """The implementation that runs it; for 16 bits the stack."""
        return self.result["implementation"] or self.result["stack"] or "-"


def unmeasured(assumptions: str | Iterable[str]) -> tuple[str, ...]:
    """Assumptions about the kernels of keys and values, from those of a result or of a table's row."""
    names = assumptions.split(", ") if isinstance(assumptions, str) else assumptions
    return tuple(assumed_title(name) for name in names if name in UNMEASURED)


class Tolerance(NamedTuple):
    """The largest loss that is recommended; None: any."""

    #: accuracy loss, a share
    drop_frac: float | None = None
    #: relative error of the attention output
    error: float | None = None

    def exceeded_by(self, result: Result) -> str:
        """Verdict on a result that loses more, or of which nobody knows; empty where it is good enough."""
        error = result["measured_error"]
        if self.error is not None and error is not None and error > self.error:
            return "errs"
        is_kept = self.drop_frac is None or quality.judged(result, self.drop_frac)
        if is_kept is False:
            return "drops"
        return "" if is_kept and (self.error is None or error is not None) else "untold"


ANY_LOSS = Tolerance()


@dataclass(frozen=True, repr=False)
class Formats(QuestionAnswer):
    """The answer: 16 bits first, then every other format, those with most throughput first."""

    device: str
    model: str
    context: str
    stack: str
    batch: int
    input_tokens: int
    formats: tuple[Format, ...]
    #: reason -> names of formats that are left out for it
    left_out: dict[str, tuple[str, ...]]
    #: from which batch at this prompt, and which prompt at this batch, `best` gives more throughput; None: from none
    from_batch: int | None
    from_input: int | None
    assumptions: str
    age: str = ""
    #: the largest accuracy loss that is recommended, a share; None: any
    max_drop_frac: float | None = None
    #: the largest relative error of the attention output; None: any
    max_error: float | None = None
    #: the shortest prompt searched
    first_input: int = 1
    #: the format that is likeliest to give more than `best` after all, and the chance; None where that is small
    runner_up: tuple[str, float] | None = None
    #: the runs that would tell `best` from it
    two_runs: TwoRuns | None = None

    @property
    def best(self) -> Format | None:
        """The format with the largest gain over 16 bits, of those that pay; of measured kernels where any does."""
        return _best(self.formats)

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a format in SI base units, with intervals (80 %) as _low and _high; empty where there is none."""
        return pd.DataFrame(map(_row, self.formats))

    def to_json(self) -> dict[str, Any]:
        """Plain data in base units."""
        return {
            "question": "formats",
            "context": self.context,
            "batch": self.batch,
            "input_tokens": self.input_tokens,
            "max_drop_frac": self.max_drop_frac,
            "max_error": self.max_error,
            "answer": self.answer(),
            "best": self.best and self.best.name,
            "runner_up": self.runner_up and {"name": self.runner_up[0], "sure": self.runner_up[1]},
            "two_runs": self.two_runs and self.two_runs.to_json(),
            "from_batch": self.from_batch,
            "from_input": self.from_input,
            "formats": [*map(_row, self.formats)],
            "left_out": {reason: list(names) for reason, names in self.left_out.items()},
            "assumptions": self.assumptions,
            "age": self.age,
        }

    def answer(self) -> str:
        """The formats that pay, from where on, those that would by assumed rates, and those that only save memory."""
        best, others = self.best, [fmt for fmt in self.formats[1:] if competes(fmt.result)]
        named: dict[str, list[str]] = {}
        for fmt in sorted(others, key=lambda fmt: fmt.verdict == "room" and not self._is_own(fmt)):
            named.setdefault(fmt.verdict, []).append(fmt.name)
        ahead = []
        if best and best.gain and not best.marks:
            ahead = [fmt.name for fmt in others if fmt.marks and fmt.gain and fmt.gain.ratio > best.gain.ratio]
        untold = [fmt for fmt in others if fmt.verdict == "untold"]
        is_limited = self.max_error is not None
        unmeasured = [fmt.name for fmt in untold if is_limited and fmt.result["measured_error"] is None]
        noisy = [f"{fmt.name} ({quality.drop_text(fmt.result)})" for fmt in untold if fmt.name not in unmeasured]
        sentences = {
            "By rates that nobody measured {} would give more.": ahead,
            "Fits more requests, no more tok/s: {}.": named.get("room"),
            f"Errors above {100 * (self.max_error or 0):.3g} %: {{}}.": named.get("errs"),
            f"Scores drop by more than {self._most_drop()}: {{}}.": named.get("drops"),
            "Errors not measured: {}.": unmeasured,
            f"Whether scores drop by more than {self._most_drop()} cannot be told: {{}}.": noisy,
        }
        return " ".join(
            [*self._first_words(best, others), *(text.format(_several(of)) for text, of in sentences.items() if of)]
        )

    def _first_words(self, best: Format | None, others: list[Format]) -> list[str]:
        """Sentences for the best format, or for the one that comes nearest to being worth its while."""
        if best and best.gain:
            by = " by other software" if best.elsewhere else ""
            said = f"{best.name}{by} pays: {_gain(best.gain)} the throughput of {PLAIN}{self._from()}."
            if self.runner_up:
                name, chance = self.runner_up
                said += f" Runner-up, {sure_text(chance)} sure to give more: {name}."
            return [said, *self._drops(best)]
        if alone := [fmt.name for fmt in others if fmt.verdict == "alone"]:
            return [f"{PLAIN} does not run here; {_several(alone)} {'do' if len(alone) > 1 else 'does'}."]
        if open_ := [fmt for fmt in others if fmt.verdict == "untold" and fmt.gain and fmt.gain.low > 1]:
            most = _nearest(open_) or open_[0]
            return [
                f"{most.name} gives {_gain(most.gain)} the throughput of {PLAIN}, but not surely within the limits."
            ]
        if near := _likeliest(others):
            return [self._unsure(near)]
        if self.formats[0].verdict == "out":
            return [f"No format runs here: {self.formats[0].result['infeasible_reason']}."]
        return ["There is no format to compare."]

    def _unsure(self, near: Format) -> str:
        """Sentence for the likeliest format, where none surely pays."""
        gain = near.gain
        assert gain
        if gain.ratio <= 1:
            return (
                f"No format pays here: {near.name} comes nearest with {_gain(gain)} the throughput of {PLAIN}, "
                f"{sure_text(near.sure or 0.0)} sure to give more{self._from()}."
            )
        by = ", by kernels that nobody measured here" if near.marks else ""
        return (
            f"No format surely pays here: {near.name} may, with {_gain(gain)} the throughput of {PLAIN}{by}, "
            f"{sure_text(near.sure or 0.0)} sure{self._from()}."
        )

    def _most_drop(self) -> str:
        return f"{100 * (self.max_drop_frac or 0):.3g} %"

    def _is_own(self, fmt: Format) -> bool:
        """True for a format whose kernel the chosen stack has."""
        return bool(self.stack) and fmt.implementation.startswith(self.stack.partition("@")[0])

    def _drops(self, best: Format) -> list[str]:
        """Accuracy loss of the best format, or where none was published the rise of perplexity; and the format that
        surely drops less, of those that pay."""
        said, result = [], best.result
        if result["score_drop_frac"] is not None:
            said.append(f"Accuracy loss: {quality.drop_text(result)} ({result['score_drop_of']}).")
        elif result["sample_perplexity_frac"] is not None:
            said.append(f"Rise of perplexity: {quality.rise_text(result)} (of {SAMPLE}); no scores were published.")
        if result["score_drop_low_frac"] is None:
            return said
        pay = [fmt.result for fmt in self._own() if fmt.verdict == "pays"]
        less = [r for r in pay if r["score_drop_high_frac"] is not None]
        least = min(less, key=lambda r: float(r["score_drop_high_frac"]), default=result)
        if least is not result and least["score_drop_high_frac"] < result["score_drop_low_frac"]:
            said.append(f"Of those that pay {least['quantizer']} surely drops less: {quality.drop_text(least)}.")
        return said

    def _from(self) -> str:
        parts = []
        for start, first, last, name, other in (
            (self.from_batch, 1, max(self.batch, LAST_BATCH), "batch", "prompt"),
            (self.from_input, self.first_input, max(self.input_tokens, LAST_INPUT), "prompt", "batch"),
        ):
            if start is not None:
                where = f"at every {name}" if start <= first else f"from a {name} of {start:,} on"
                parts.append(f"{where} at this {other} (up to {last:,})")
        return f"; it is ahead {' and '.join(parts)}" if parts else ""

    def text(self) -> str:
        """The table, then the answer."""
        return self._text(SHORT, range(1))

    def wide_text(self) -> str:
        """The answer with all that is known of each format, in lines as long as that takes."""
        shown = self.columns()
        return self._text(shown, [i for i, column in enumerate(shown) if column.name in _WORDS])

    def _text(self, columns: Sequence[Column], left: Collection[int]) -> str:
        lines = [
            f"Which KV format pays on {self.device}?",
            f"{self.context}, batch {self.batch:,}, {self.input_tokens:,} in",
            "",
        ]
        runs = self._own()
        rows = aligned(cells(columns, (*runs, *self.elsewhere())), left)
        lines += rows[: len(runs) + 1]
        told = [textwrap.fill(text, TEXT_WIDTH, break_on_hyphens=False) for text in (self.answer(), *self.notes())]
        lines += ["", told[0], *([self.two_runs.text()] if self.two_runs else []), ""]
        if others := self.elsewhere():
            lines += [f"Other software, which {self.engine_text()} does not run:", rows[0], *rows[len(runs) + 1 :], ""]
            lines += [f"  {fmt.name}: {fmt.elsewhere}; {fmt.implementation}" for fmt in others] + [""]
        return "\n".join([*lines, *told[1:]])

    def _own(self) -> list[Format]:
        """Formats that the engine runs, 16 bits first."""
        return [fmt for fmt in self.formats if not fmt.elsewhere]

    def elsewhere(self) -> list[Format]:
        """Formats that other software runs, not the engine."""
        return [fmt for fmt in self.formats if fmt.elsewhere]

    def engine_text(self) -> str:
        """The engine with the release whose table tells what it runs; else the stack, or the device."""
        told = next((fmt.support for fmt in self.formats if fmt.support), None)
        return f"{told.engine} {told.release}" if told else self.stack or self.device

    def _plain_text(self) -> str:
        """Note where the engine does not run the 16 bits that others are compared with."""
        told = self.formats[0].support
        if told is None or starts.is_plain(told):
            return ""
        if told.runs:
            return f"{PLAIN} is compared with, not run: {self.engine_text()} stores it as {told.stored_as}."
        return f"{PLAIN} is compared with, not run: {told.text()}."

    def columns(self) -> tuple[Column, ...]:
        """Columns that people read: of several devices the bytes of a token are one device's share."""
        if self.formats[0].result["n_devices"] == 1:
            return SHOWN
        shared = "kv_bytes_per_token"
        return tuple(replace(col, title=f"{col.title}, a device") if col.name == shared else col for col in SHOWN)

    def notes(self) -> tuple[str, ...]:
        """Notes on intervals and errors, formats left out, assumptions."""
        within = "80 % intervals"
        if self.formats[0].result["model_kind"] == "ideal":
            within = "from the peak rates to what devices likely reach of them (80 %)"
        lines = [
            f"In brackets: {within}. Gain: the middle of its interval. Sure: the chance of more tok/s than {PLAIN}. "
            "TTFT and TPOT: of a server at this concurrency. Fits more: more requests at once, no more tok/s."
        ]
        if any(fmt.result["score_drop_frac"] is not None for fmt in self.formats[1:]):
            lines.append("Drop: largest published accuracy loss, ± half of a 95 % interval (dse scores).")
        if any(fmt.result["sample_perplexity_frac"] for fmt in self.formats):
            lines.append(f"Ppl: rise of perplexity, on {SAMPLE}.")
        if any(fmt.marks for fmt in self.formats):
            lines.append("Kernels assumed: of rates that nobody measured, with a wide range.")
        if not_run := self._plain_text():
            lines.append(not_run)
        if doubtful := [fmt for fmt in self.formats if fmt.support and fmt.support.status == DOUBTFUL]:
            why = dict.fromkeys(fmt.support.why for fmt in doubtful if fmt.support)
            lines.append(
                f"In doubt under {self.engine_text()}: {', '.join(o.name for o in doubtful)} ({'; '.join(why)})."
            )
        if self.left_out:
            reasons = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in self.left_out.items())
            lines.append(f"Left out: {reasons}.")
        return (*lines, *filter(None, [self.assumptions, self.age]))


#: results that the columns of `SHOWN` show
SHOWN_RESULTS = (
    "stored_bits",
    "kv_bytes_per_token",
    "max_batch",
    "max_context_tokens",
    "ttft_s",
    "tpot_s",
    "throughput_tokens_per_s",
    "joules_per_token",
    "score_drop_frac",
    "sample_perplexity_frac",
)


def chance_text(fmt: Format) -> str:
    """`Format.sure` in percent."""
    chance = fmt.sure
    return "-" if chance is None else sure_text(chance).replace("over ", ">").replace("under ", "<").replace(" ", "")


def _result(name: str) -> Column:
    """A result under its declared title."""
    return Column(name, title=title(name), form=lambda fmt: _cell(fmt.result, name))


def _short(name: str, head: str, form: str = "", times: float = 1) -> Column:
    """A result under a short head, without its unit."""
    return Column(name, title=head, form=form, times=times, value=lambda fmt: fmt.result[name])


def _rate(fmt: Format) -> str:
    if not fmt.result["feasible"]:
        return "-"
    low, high = uncertainty.ends(fmt.result)
    return f"{fmt.result[uncertainty.RATE]:.0f} ({low:.0f}-{high:.0f})"


#: columns that people read
SHOWN = (
    Column("name", title="format"),
    Column("implementation", title="runs by"),
    *map(_result, SHOWN_RESULTS),
    Column("gain", form="{gain.ratio:.2f}x ({gain.low:.2f} to {gain.high:.2f})"),
    Column("sure", form=chance_text),
    Column("kernels"),
    Column("verdict", form=lambda fmt: VERDICTS[fmt.verdict]),
)
_WORDS = ("name", "implementation", "kernels", "verdict")
#: columns of the table that fits 100 letters
SHORT = (
    Column("name", title="format"),
    _short("stored_bits", "bits", ".3g"),
    _short("max_batch", "fits"),
    _short("ttft_s", "TTFT s", ".3g"),
    _short("tpot_s", "TPOT ms", ".1f", 1e3),
    Column("tok/s", form=_rate),
    Column("gain", form="{gain.ratio:.2f}x"),
    Column("sure", form=chance_text),
    Column("drop", form=lambda fmt: quality.drop_text(fmt.result).replace(" ", "")),
    Column("ppl", form=lambda fmt: quality.rise_text(fmt.result).replace(" ", "")),
    Column("verdict", form=lambda fmt: _SHORT_VERDICTS[fmt.verdict]),
)


def _cell(result: Result, name: str) -> str:
    """A result as all pages show it; "any" context where windows of all layers leave it without a limit."""
    if name == "score_drop_frac":
        return quality.drop_text(result)
    if name == "sample_perplexity_frac":
        return quality.rise_text(result)
    if name == "max_context_tokens" and result[name] is None:
        return "any" if result["feasible"] else "-"
    return common.value_text(result, name) if result[name] is not None else "-"


def _several(names: Sequence[str]) -> str:
    """The first few of a list, and how many more there are."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def _gain(gain: Gain | None) -> str:
    assert gain
    return f"{gain.ratio:.2f} times (80 % interval {gain.low:.2f} to {gain.high:.2f})"


def _row(fmt: Format) -> dict[str, Any]:
    r, gain = fmt.result, fmt.gain
    row: dict[str, Any] = {
        "device": r["device"],
        "model": r["model"],
        "format": fmt.name,
        "implementation": fmt.implementation,
        **{name: r[name] for name in ("batch", "input_tokens", *SHOWN_RESULTS[:4], "running_batch", "feasible")},
    }
    for column in ("decode_step_s", "tpot_s", "ttft_s", "throughput_tokens_per_s", "joules_per_token"):
        value = r[column] if r["feasible"] else None
        low, high = (None, None) if value is None else uncertainty.ends(r, column)
        row |= {column: value, f"{column}_low": low, f"{column}_high": high}
    return row | {
        "gain": gain and gain.ratio,
        "gain_low": gain and gain.low,
        "gain_high": gain and gain.high,
        "sure": fmt.sure,
        **{name: r[name] for name in ("measured_error", "measured_on", *quality.NAMES)},
        "kernels": fmt.kernels,
        "assumed_of_kernels": "; ".join(fmt.marks),
        "verdict": VERDICTS[fmt.verdict],
        "elsewhere": fmt.elsewhere,
        "assumptions": ", ".join(r["assumptions"]),
    }


def _nearest(formats: Iterable[Format]) -> Format | None:
    """The format with the largest gain."""
    return max((fmt for fmt in formats if fmt.gain), key=lambda fmt: fmt.gain.ratio if fmt.gain else 0.0, default=None)


def _likeliest(formats: Sequence[Format]) -> Format | None:
    """The format that is surest to give more, of those that do as computed; else the one with the largest gain."""
    ahead = [fmt for fmt in formats if fmt.gain and fmt.gain.ratio > 1]
    return max(ahead, key=lambda fmt: fmt.sure or 0.0) if ahead else _nearest(formats)


def _best(formats: Iterable[Format]) -> Format | None:
    """The format with the largest gain of those that pay; of measured kernels where any does."""
    paying = [fmt for fmt in formats if fmt.verdict == "pays"]
    return _nearest([fmt for fmt in paying if not fmt.marks] or paying)


def _reasons(served: Iterable[engine_formats.EngineFormat]) -> dict[str, tuple[str, ...]]:
    """Names of formats by the reason that leaves them out."""
    by_reason: dict[str, list[str]] = {}
    for fmt in served:
        by_reason.setdefault(fmt.reason, []).append(fmt.name)
    return {reason: tuple(names) for reason, names in by_reason.items()}


def candidates(
    device: HardwareSpec, model: ModelSpec, work: Workload, bits: Bits = CLOSED
) -> tuple[list[Candidate], dict[str, tuple[str, ...]]]:
    """Every family of fewer bits that the engine of the workload runs on the device for the model; and the others by
    the reason that leaves them out (`engine_formats.each`)."""
    served = engine_formats.each(device, model, work, bits)
    designs = [fmt.design for fmt in served if not fmt.reason and fmt.design]
    return designs, _reasons(fmt for fmt in served if fmt.reason)


def formats(
    device: HardwareSpec,
    model: ModelSpec,
    work: Workload,
    names: Sequence[str] | None = None,
    bits: Bits = CLOSED,
    progress: Progress | None = None,
    has_starts: bool = True,
    tolerance: Tolerance = ANY_LOSS,
) -> Formats:
    """Every format on a device at one workload, over 16 bits: those named, else those that the engine runs and that
    take no seconds to count; with the workload's `other_software` those too that other code runs.
    A batch that is not given is the most that fits in any of them: each runs as many as it can.

    Batches to LAST_BATCH and prompts to LAST_INPUT (or those asked for) are searched for where the best one begins to
    give more throughput, but where `has_starts` is False. None that loses more than `tolerance` is recommended, nor any
    of which that is not known then. Raises InputError for a name that is unknown, not for the model, or given twice.
    """
    designs = [] if names is None else _named(names, device, model, bits)
    served = {fmt.name: fmt for fmt in engine_formats.each(device, model, work, bits)}
    left_out: dict[str, tuple[str, ...]] = {}
    if names is None:
        designs, left_out = _offered(served.values(), work)
    plain = common.design(device, model, PLAIN)
    batch = work.batch or max(Point(design.device, design.plan, work).batch for design in (plain, *designs))
    is_full, work = work.batch is None, replace(work, batch=batch)
    base = plain.evaluate(work)
    compared, others = Comparison(THROUGHPUT.column), []
    for design in each(designs, progress, "formats"):
        result = design.evaluate(work)
        gain = compared.gain(design.at(work), plain.at(work))
        told = served.get(design.plan.key_quantizer.family.name)
        others.append(
            Format(
                name=design.name,
                result=result,
                gain=gain,
                verdict=_verdict(result, base, gain, tolerance),
                elsewhere=((told and told.reason) or result["runs_why"]) if result["runs_why"] else "",
                support=told.support if told else None,
            )
        )
    others.sort(key=lambda fmt: (bool(fmt.elsewhere), -float(THROUGHPUT.value(fmt.result) or 0.0)))
    first = Format(
        name=PLAIN,
        result=base,
        gain=None,
        verdict="base" if base["feasible"] else "out",
        support=starts.plain_support(device, model, work, base["stack"] or ""),
    )
    running = [fmt for fmt in others if competes(fmt.result)]
    best, by_name = _best(running), {design.name: design for design in designs}
    near = best or _likeliest(running)
    rival = None
    if best:
        winner = by_name[best.name].at(work)
        rival = _rival(best, running, lambda fmt: compared.gain(winner, by_name[fmt.name].at(work)))
    runs = None
    if best and rival and not best.elsewhere:
        runs = two_runs(best.result, rival[0].result, (best.name, rival[0].name), rival[1])
    from_batch, from_input = (None, None)
    if near and has_starts and near.gain and (near.gain.ratio > 1) == _is_faster(near.result, base):
        from_batch, from_input = _starts(by_name[near.name], plain, work, batch)
    results = [base, *(fmt.result for fmt in others)]
    return Formats(
        device.name,
        model=model.name,
        context=common.context(device, model, work, base, is_full),
        stack=base["stack"] or "",
        batch=batch,
        input_tokens=work.input_tokens,
        formats=(first, *others),
        left_out=left_out,
        from_batch=from_batch,
        from_input=from_input,
        assumptions=common.assumption_text(results, THROUGHPUT),
        age=common.age_text(Point(device, plain.plan, work)),
        max_drop_frac=tolerance.drop_frac,
        max_error=tolerance.error,
        first_input=max(1, work.prefix_tokens),
        runner_up=(rival[0].name, 1 - rival[1].sure) if rival else None,
        two_runs=runs,
    )


def _rival(
    best: Format, running: Iterable[Format], gain: Callable[[Format], Gain | None]
) -> tuple[Format, Gain] | None:
    """The format that is likeliest to give more than the best after all, with the best's gain over it; None where the
    chance is small."""
    rivals = [
        (fmt, advantage)
        for fmt in running
        if fmt is not best and fmt.verdict in ("pays", "open") and (advantage := gain(fmt))
    ]
    rival = min(rivals, key=lambda pair: pair[1].sure, default=None)
    return rival if rival and 1 - rival[1].sure >= NAMED_FROM else None


def _named(names: Sequence[str], device: HardwareSpec, model: ModelSpec, bits: Bits) -> list[Candidate]:
    """The formats of these names, but for 16 bits. Raises InputError."""
    if not names:
        raise InputError("formats = []: must name at least one")
    designs = [design for name in names if (design := common.design(device, model, name, bits=bits)).name != PLAIN]
    if len({design.name for design in designs}) < len(designs):
        raise InputError(f"formats = {', '.join(names)}: names one twice: leave it out")
    return designs


def _offered(
    served: Collection[engine_formats.EngineFormat], work: Workload
) -> tuple[list[Candidate], dict[str, tuple[str, ...]]]:
    """The formats that are compared where none is named, and the names of the others by what leaves them out."""
    taken = [fmt for fmt in served if fmt.design and (not fmt.reason or (work.other_software and fmt.elsewhere))]
    left_out = _reasons(fmt for fmt in served if fmt not in taken)
    designs = [fmt.design for fmt in taken if fmt.design]
    if long := [design for design in designs if design.takes_long(work)]:
        left_out[TAKES_LONG] = tuple(design.name for design in long)
    return [design for design in designs if design not in long], left_out


def _verdict(result: Result, base: Result, gain: Gain | None, tolerance: Tolerance) -> str:
    """Verdict on a format, a key of `VERDICTS`."""
    if not result["feasible"]:
        return "out"
    if not competes(result):
        return "refused"
    if loss := tolerance.exceeded_by(result):
        return loss
    if gain is None:
        return "alone"
    if gain.ratio > 1 + common.TIE:
        return "pays" if gain.low > 1 else "open"
    return "room" if result["max_batch"] > base["max_batch"] else "no"


def _is_faster(result: Result, base: Result) -> bool:
    """Whether a format is faster than 16 bits as computed, which is what `_starts` searches by."""
    return THROUGHPUT.is_better(THROUGHPUT.value(result), THROUGHPUT.value(base))


def _starts(new: Candidate, old: Candidate, work: Workload, asked: int) -> tuple[int | None, int | None]:
    """From which batch at the prompt, and which prompt at the batch `asked`, the new design gives more throughput.

    Prompts are not searched where packing in groups would make that long (`crossing.period_of`).
    """
    pair = crossing.DesignPair(new, old, work, THROUGHPUT)
    batch, prompt = min(asked, crossing.MAX_BATCH), min(work.input_tokens, crossing.MAX_INPUT)
    last = max(batch, LAST_BATCH)
    along = crossing.runs(lambda b: pair.verdict(b, prompt), lambda a, b: False, 1, last)
    from_batch = crossing.CrossingLine("batch", prompt, tuple(along)).pays_from
    if crossing.period_of(new, work) > 1:
        return from_batch, None
    shortest, longest = max(1, work.prefix_tokens), max(prompt, LAST_INPUT)
    along = crossing.runs(
        lambda n: pair.verdict(batch, n), lambda first, last: pair.is_sure(batch, first, last), shortest, longest
    )
    return from_batch, crossing.CrossingLine("input_tokens", batch, tuple(along)).pays_from
