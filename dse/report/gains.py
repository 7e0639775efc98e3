"""The report's first page: which KV format pays, each over 16 bits with all else equal, and what that rests on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from dse import quantizers
from dse.core.errors import DseError
from dse.core.progress import Progress, each
from dse.core.units import to_base
from dse.model import quality
from dse.questions import systems
from dse.questions.common import THROUGHPUT, assumption_text, sure_text
from dse.questions.formats import PLAIN, VERDICTS, Format, Formats, formats
from dse.questions.systems import ReportRequest
from dse.specs import catalog
from dse.specs.oaken_grid import SAMPLE
from dse.specs.workload import Workload

#: heads of the table of the first page
HEAD = (
    "model",
    "device",
    "best format",
    "verdict",
    "tok/s over 16 bits",
    "sure",
    "requests at once",
    "ms/token",
    "J/token",
    "accuracy loss",
    "rise of perplexity",
    "kernels",
)


@dataclass(frozen=True)
class Gains:
    """The formats of every model on every device of a report."""

    cases: tuple[Formats, ...]
    #: model on device -> why it is left out
    left_out: dict[str, str]

    @property
    def best(self) -> str:
        """The format that pays in most cases; "" where none pays in any."""
        named = Counter(case.best.name for case in self.cases if case.best)
        return named.most_common(1)[0][0] if named else ""

    def answer(self) -> list[str]:
        """The answer in plain sentences: speed, room, energy, error, and what other formats do."""
        if not self.cases:
            return ["No format is compared: no model runs on any device."]
        name, n = self.best, len(self.cases)
        if not name:
            return [f"No KV format surely pays in any of {n} cases (a model on a device)."]
        cases = [(case, fmt) for case in self.cases for fmt in case.formats if fmt.name == name]
        paying = [(case, fmt) for case, fmt in cases if fmt.verdict == "pays"]
        said = [
            f"{name} keys and values pay in {len(paying)} of {n} cases (a model on a device): {_gains(paying)} the "
            "tokens a second of 16 bits, all 80 % intervals above 1."
        ]
        rest = [(case, fmt) for case, fmt in cases if fmt.verdict == "open"]
        if rest:
            where = ", ".join(f"{case.model} on {case.device}" for case, _ in rest)
            said.append(f"It may pay in {len(rest)} more ({where}): {_gains(rest)}, with intervals that hold 1.")
        both = [(case.formats[0].result, fmt.result) for case, fmt in paying if case.formats[0].result["feasible"]]
        if both:
            said.append(
                f"Where it pays: {_times(both, 'max_batch')} the concurrency, {_times(both, 'decode_step_s')} the "
                f"TPOT and {_times(both, 'joules_per_token')} the energy per token."
            )
        drops = [fmt.result for _, fmt in cases if fmt.result["score_drop_frac"] is not None]
        if drops:
            worst = max(drops, key=lambda result: float(result["score_drop_frac"]))
            drop, of, model = quality.drop_text(worst), worst["score_drop_of"], worst["model"]
            said.append(f"Largest accuracy loss: {drop}, of {model} ({of}): measure your own before you rely on it.")
        return said + self._others(name)

    def _others(self, best: str) -> list[str]:
        """Verdicts on the other formats, a sentence each."""
        said = []
        for name in dict.fromkeys(fmt.name for case in self.cases for fmt in case.formats[1:] if fmt.name != best):
            pairs = [(case, fmt) for case in self.cases for fmt in case.formats if fmt.name == name and fmt.gain]
            if not pairs:
                continue
            verdicts = Counter(VERDICTS[fmt.verdict] for _, fmt in pairs)
            told = ", ".join(f"{verdict} in {n}" for verdict, n in verdicts.most_common())
            marks = " (kernels assumed)" if any(fmt.marks for _, fmt in pairs) else ""
            said.append(f"{name}{marks}: {told} of {len(pairs)} cases, {_gains(pairs)}.")
        return said

    def lines(self) -> list[list[str]]:
        """The cells of `HEAD`, a case a line."""
        return [self._line(case) for case in self.cases]

    def _line(self, case: Formats) -> list[str]:
        plain = case.formats[0]
        fmt = case.best or next((fmt for fmt in case.formats if fmt.name == self.best), plain)
        cells = [case.model, case.device, fmt.name, VERDICTS[fmt.verdict]]
        gain = fmt.gain
        cells += (
            [f"{gain.ratio:.2f}x ({gain.low:.2f} to {gain.high:.2f})", sure_text(fmt.sure or 0.0)]
            if gain
            else (["-", "-"])
        )
        for column, size, how in (
            ("max_batch", 1.0, ",.0f"),
            ("decode_step_s", to_base(1, "ms"), ".1f"),
            ("joules_per_token", 1.0, ".2f"),
        ):
            pair = [
                format(r[column] / size, how) if r["feasible"] and r[column] is not None else "-"
                for r in (plain.result, fmt.result)
            ]
            cells.append(" → ".join(pair))
        return [*cells, quality.drop_text(fmt.result), quality.rise_text(fmt.result), fmt.kernels]

    def limits(self) -> list[str]:
        """Assumptions and omissions of the answer."""
        results = [fmt.result for case in self.cases for fmt in case.formats]
        notes = [
            "In brackets 80 % intervals: 8 of 10 measurements should lie inside. Sure: the chance that the "
            "format is faster than FP16, or slower, as the gain says.",
            "Kernels assumed: nobody measured their rates; the range taken is wide.",
            "Quality: the largest accuracy loss published of the model or models like it; ppl: rise of the perplexity "
            f"of {SAMPLE}.",
        ]
        notes.append(f"{assumption_text(results, THROUGHPUT)} Their sources: dse show DEVICE.")
        return notes + [f"Not told: {name}: {why}" for name, why in self.left_out.items()]

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a model, device and format, as `Formats.table` has them."""
        return pd.concat([case.table for case in self.cases], ignore_index=True) if self.cases else pd.DataFrame()


def gains(request: ReportRequest, batch: int, input_tokens: int, progress: Progress | None = None) -> Gains:
    """Every format of the request over 16 bits: same device, model, weights, memory rule and timing model."""
    names = list(dict.fromkeys(quantizers.parse(system.quantizer).name for system in request.systems))
    names = [name for name in names if name != PLAIN]
    devices = list(dict.fromkeys(system.device for system in request.systems))
    cases, left_out = [], {}
    pairs = [(model, catalog.device(device)) for model in request.models for device in devices]
    for model, device in each(pairs, progress, "formats"):
        work = Workload(
            batch,
            input_tokens=input_tokens,
            output_tokens=request.output_tokens,
            admission=systems.admission_of(device),
            model_kind=request.model_kind,
            stack=request.stack,
            **request.deployment,
        )
        try:
            cases.append(formats(device, model, work, names, request.bits, has_starts=False))
        except DseError as error:
            left_out[f"{model.name} on {device.name}"] = error.lines()[0]
    return Gains(tuple(cases), left_out)


def _gains(of: Sequence[tuple[Formats, Format]]) -> str:
    """The gains of a format as a range of times."""
    ratios = [fmt.gain.ratio for _, fmt in of if fmt.gain]
    return _range(ratios) if ratios else "not to compare with"


def _times(pairs: Sequence[tuple[dict, dict]], column: str) -> str:
    return _range([new[column] / old[column] for old, new in pairs if old[column] and new[column]])


def _range(ratios: Sequence[float]) -> str:
    low, high = (f"{end:.2f}" for end in (min(ratios), max(ratios)))
    return f"{low} times" if low == high else f"{low} to {high} times"
