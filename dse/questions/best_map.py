"""Best quantizer map: which of several quantizers is best at each batch and prompt length on a device."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from dse.core.columns import aligned
from dse.core.errors import InputError, LimitError
from dse.core.progress import Progress, each
from dse.model.compare import Comparison
from dse.model.uncertainty import Gain, gain_within
from dse.questions import engine_formats
from dse.questions.common import (
    THROUGHPUT,
    Candidate,
    Measure,
    QuestionAnswer,
    assumption_text,
    competes,
    context,
    crowned,
    sure_text,
)
from dse.specs.workload import Workload

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
INPUTS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
#: chance from which on a winner counts as sure
SURE = 0.8
#: evaluations of one map, about a millisecond each
MAX_POINTS = 100_000


@dataclass(frozen=True)
class Cell:
    """One batch and prompt length: the best quantizers (several where they tie) and the measure of each that runs."""

    batch: int
    input_tokens: int
    best: tuple[str, ...]
    values: dict[str, float]
    bounds: dict[str, str]
    #: how many times as good the best is as each other that runs, and how sure that is
    gains: dict[str, Gain]
    #: of those that it beats the one that it gains least over; "" where none other runs
    next_best: str = ""

    @property
    def sure(self) -> float | None:
        """The chance that the best really is better than the next best; None where none other runs."""
        return self.gains[self.next_best].sure if self.next_best else None


@dataclass(frozen=True, repr=False)
class BestMap(QuestionAnswer):
    """The answer: a cell for each batch and prompt length, batches fastest."""

    measure: Measure
    context: str
    quantizers: tuple[str, ...]
    cells: tuple[Cell, ...]
    assumptions: str
    #: on formats that the engine does not run
    note: str = ""

    @property
    def over(self) -> str:
        """The quantizer that gains are told over: FP16 where it is among them, else the first."""
        return told_over(self.quantizers)

    @property
    def verdict(self) -> list[str]:
        """In how many cells each is best, the most first, and how many of all are not sure."""
        counts = Counter(" = ".join(cell.best) or "none" for cell in self.cells)
        parts = [f"{name} in {n:,}" for name, n in counts.most_common()]
        unsure = sum(cell.sure is not None and cell.sure < SURE for cell in self.cells)
        said = [f"Best of {len(self.cells):,} batches and prompts: {', '.join(parts)}"]
        return (
            [*said, f"In {unsure:,} of them less than {100 * SURE:.0f} % sure to beat the next best"]
            if unsure
            else said
        )

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per cell: batch, input_tokens, best (ties joined by " = "), its measure, its gain and the ends of the
        interval of that, the next best and the chance that the best really is better, then every one's measure."""
        column = self.measure.column
        return pd.DataFrame(
            [
                {
                    "batch": cell.batch,
                    "input_tokens": cell.input_tokens,
                    "best": " = ".join(cell.best),
                    column: cell.values[cell.best[0]] if cell.best else None,
                    f"gain_over_{self.over}": gain and gain.ratio,
                    "gain_low": gain and gain.low,
                    "gain_high": gain and gain.high,
                    "next_best": cell.next_best,
                    "sure": cell.sure,
                    "bound": cell.bounds[cell.best[0]] if cell.best else "capacity",
                    **{f"{column} {name}": cell.values.get(name) for name in self.quantizers},
                }
                for cell in self.cells
                for gain in (cell.gains.get(self.over),)
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data in base units."""
        return {
            "question": "map",
            "context": self.context,
            "quantizers": list(self.quantizers),
            "measure": self.measure.column,
            "gain_over": self.over,
            "cells": [
                {
                    "batch": cell.batch,
                    "input_tokens": cell.input_tokens,
                    "best": list(cell.best),
                    "gain": gain and gain.ratio,
                    "gain_interval": [gain.low, gain.high] if gain else None,
                    "next_best": cell.next_best or None,
                    "sure": cell.sure,
                    "values": cell.values,
                }
                for cell in self.cells
                for gain in (cell.gains.get(self.over),)
            ],
            "assumptions": self.assumptions,
            "note": self.note,
        }

    def text(self) -> str:
        """A grid of names, prompts down and batches across; gains over FP16 beside the names."""
        batches = sorted({cell.batch for cell in self.cells})
        inputs = sorted({cell.input_tokens for cell in self.cells})
        at = {(cell.batch, cell.input_tokens): cell for cell in self.cells}
        rows = [["prompt", *(f"batch {batch:,}" for batch in batches)]]
        for n in inputs:
            rows.append([f"{n:,}", *(self._cell_text(at[batch, n]) for batch in batches)])
        head = f"Which quantizer is best?  ({self.measure.title}; gain over {self.over}; chance to beat the next best)"
        said = [f"  {line}" for line in self.verdict]
        return "\n".join(
            [head, self.context, "", *said, "", *aligned(rows), "", *filter(None, [self.note]), self.assumptions]
        )

    def _cell_text(self, cell: Cell) -> str:
        if not cell.best:
            return "none runs"
        gain, sure = cell.gains.get(self.over), cell.sure
        text = " = ".join(cell.best) + (f" {gain.ratio:.2f}x" if gain else f" ({self.over} does not run)")
        return text if sure is None else f"{text} {sure_text(sure)}"


def told_over(names: Sequence[str]) -> str:
    """Baseline of gains: FP16 where it is among the names, else the first."""
    return "fp16" if "fp16" in names else names[0]


def best_map(
    designs: Sequence[Candidate],
    work: Workload,
    measure: Measure = THROUGHPUT,
    batches: Sequence[int] = BATCHES,
    inputs: Sequence[int] = INPUTS,
    progress: Progress | None = None,
) -> BestMap:
    """The best of the designs (one device and model) at each batch and prompt length; ties (to 1e-9) name all.

    A step time counts only where the whole batch runs at once. Raises InputError for an empty list or two equal
    designs, LimitError above MAX_POINTS evaluations.
    """
    for name, values in (("quantizers", designs), ("batches", batches), ("inputs", inputs)):
        if not values:
            raise InputError(f"{name} = []: must name at least one")
    names = [design.name for design in designs]
    if len(set(names)) < len(names):
        raise InputError(f"quantizers = {', '.join(names)}: names one twice: leave it out")
    batches, inputs = sorted(set(batches)), sorted(set(inputs))
    n_points = len(designs) * len(batches) * len(inputs)
    if n_points > MAX_POINTS:
        raise LimitError(f"map of {n_points:,} points: at most {MAX_POINTS:,}: take fewer batches or inputs")
    works = [replace(work, batch=batch, input_tokens=n) for n in inputs for batch in batches]
    cells, results = [], []
    by_name, compared = dict(zip(names, designs, strict=True)), Comparison(measure.column)
    for cell_work in each(works, progress, "cells"):
        results = [design.evaluate(cell_work) for design in designs]
        cells.append(_cell(cell_work, measure, dict(zip(names, results, strict=True)), by_name, compared))
    return BestMap(
        measure,
        context=context(designs[0].device, designs[0].plan.model, work, results[0]),
        quantizers=tuple(names),
        cells=tuple(cells),
        assumptions=assumption_text(results, measure),
        note=engine_formats.other_software(designs, works[0]),
    )


def _cell(
    work: Workload,
    measure: Measure,
    results: dict[str, dict[str, Any]],
    designs: dict[str, Candidate],
    compared: Comparison,
) -> Cell:
    values = {name: value for name, r in results.items() if (value := measure.value(r)) is not None}
    sign = -1 if measure.sense == "max" else 1
    rivals = [name for name in values if competes(results[name])]

    def gain(name: str, other: str) -> Gain:
        advantage = compared.gain(designs[name].at(work), designs[other].at(work))
        assert advantage is not None  # both have a value
        return advantage

    best: tuple[str, ...] = ()
    gains: dict[str, Gain] = {}
    if rivals:
        best, gains = crowned(sorted(rivals, key=lambda name: sign * values[name]), gain)
        gains[best[0]] = gain_within(1.0, 1.0)
    next_best = min((name for name in gains if name not in best), key=lambda name: gains[name].ratio, default="")
    over = told_over(tuple(designs))
    if best and over in values and over not in gains:  # what gains are told over may be what does not run
        gains[over] = gain(best[0], over)
    bounds = {name: str(results[name]["bound"]) for name in values}
    assert work.batch is not None
    return Cell(
        batch=work.batch,
        input_tokens=work.input_tokens,
        best=best,
        values=values,
        bounds=bounds,
        gains=gains,
        next_best=next_best,
    )
