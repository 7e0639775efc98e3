"""Fewest devices for a batch, and the best split of the model over them: by tp and pp, up to a number, each with
experts whole or in slices, and with KV heads that would be copied shared by requests or by tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from dse.core import units
from dse.core.errors import InputError, show
from dse.model import engine, uncertainty
from dse.model.compare import Case, Comparison
from dse.model.kv_layout import KvPlan
from dse.model.point import Point
from dse.model.uncertainty import Gain
from dse.questions import layouts
from dse.questions.common import (
    NAMED_FROM,
    NONE_RUNS,
    THROUGHPUT,
    QuestionAnswer,
    age_text,
    assumption_text,
    competes,
    crowned,
    options,
    refused_text,
    sure_text,
)
from dse.questions.measured_fronts import MeasuredFront, measured_front
from dse.questions.two_runs import TwoRuns, two_runs
from dse.specs import collectives
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import MAX_DEVICES, MOST_DEVICES, Workload

#: results that an answer tells of each split
TOLD = (
    "n_devices",
    *layouts.SPLIT,
    "runs",
    "runs_why",
    "weight_bytes",
    "kv_bytes",
    "max_batch",
    "fits_whole_batch",
    "decode_step_s",
    "collective_s",
    "throughput_tokens_per_s",
    "usd_per_million_tokens",
)
_HEAD = (
    "devices",
    "tp",
    "pp",
    "weights each",
    "KV each",
    "largest batch",
    "step",
    "throughput",
    "80 % interval",
    "a device",
    "price",
    "layout",
)


@dataclass(frozen=True, repr=False)
class Devices(QuestionAnswer):
    """Results by split, fewest devices first; of as many devices the fastest first, what does not fit last: the answer
    before any that it is likelier than not to beat."""

    question: str
    splits: tuple[dict[str, Any], ...]
    #: how much faster the answer is than the likeliest rival split on as many devices; None where there is none
    sure: Gain | None = None
    #: why no more devices are tried, where fewer than `MOST_DEVICES` are by the device's file; else ""
    note: str = ""
    #: the split on as many devices that is likeliest to be faster after all, where the chance is not small
    runner_up: dict[str, Any] | None = None
    #: the runs that would tell the answer from it
    two_runs: TwoRuns | None = None
    age: str = ""

    @property
    def fewest(self) -> dict[str, Any] | None:
        """The fastest split on the fewest devices that runs and holds the whole batch at once; None where none does."""
        return next((split for split in self.splits if competes(split) and split["fits_whole_batch"]), None)

    @cached_property
    def measured_front(self) -> MeasuredFront | None:
        """Measured servers beside the answer, on as many devices at about as many requests."""
        return measured_front(self.fewest) if self.fewest else None

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a split, in SI base units; the ends of the throughput's interval (80 %) as _low and _high."""
        return pd.DataFrame(
            [
                {
                    **{name: split[name] for name in TOLD},
                    f"{uncertainty.RATE}_low": ends[0] if ends else None,
                    f"{uncertainty.RATE}_high": ends[1] if ends else None,
                }
                for split in self.splits
                for ends in (uncertainty.ends(split) if split["feasible"] else None,)
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """All of it, in SI base units."""
        told = [
            {
                **{name: split[name] for name in TOLD},
                "intervals": {name: ends for name, ends in uncertainty.as_numbers(split).items() if name in TOLD},
            }
            for split in self.splits
        ]
        fewest, sure = self.fewest, self.sure
        return {
            "fewest_devices": fewest["n_devices"] if fewest else None,
            "sure_of_split": sure and sure.sure,
            "runner_up": self.runner_up and {name: self.runner_up[name] for name in TOLD},
            "two_runs": self.two_runs and self.two_runs.to_json(),
            "measured_front": self.measured_front and self.measured_front.to_json(),
            "note": self.note,
            "age": self.age,
            "splits": told,
        }

    def text(self) -> str:
        """A table, and the answer."""
        heads = _HEAD if any(options(split, layouts.SHARED) for split in self.splits) else _HEAD[:-1]
        lines = [self.question, "", "".join(f"{word:>14}" for word in heads)]
        for split in self.splits:
            n, rate = split["n_devices"], split["throughput_tokens_per_s"]
            cells = [
                str(n),
                str(split["tp"]),
                str(split["pp"]),
                _size(split["weight_bytes"]),
                _size(split["kv_bytes"]),
                f"{split['max_batch']:,}",
            ]
            if rate is None:
                cells += ["does not fit", "", "", "", ""]
            else:
                low, high = uncertainty.ends(split)
                cells += [
                    units.human(split["decode_step_s"], "s", 3),
                    f"{rate:,.0f} tok/s",
                    f"{low:,.0f}-{high:,.0f}",
                    f"{rate / n:,.0f} tok/s",
                ]
                usd = split["usd_per_million_tokens"]
                cells.append(f"{usd:,.2f} USD/M" if usd is not None else "")
            shared = options(split, layouts.SHARED)
            lines.append("".join([*(f"{cell:>14}" for cell in cells), f"  {shared}"]).rstrip())
        notes = filter(None, [self.note, refused_text(self.splits)])
        lines += ["", *notes, assumption_text(self.splits, THROUGHPUT), *filter(None, [self.age])]
        fewest = self.fewest
        if fewest is None and not any(map(competes, self.splits)):
            return "\n".join([*lines, "", f"{NONE_RUNS}."])
        if fewest is None:
            more = "" if self.note else ": ask for more with --most"
            return "\n".join([*lines, "", f"On none of them the whole batch fits at once{more}."])
        answer = f"Fewest devices that hold the whole batch at once: {fewest['n_devices']} ({split_text(fewest)})"
        front = self.measured_front
        if sure := self.sure:
            computed = " as computed" if front and front.contradicts else ""
            answer += f"; the fastest split of them{computed}, {sure_text(sure.sure)} sure"
        if self.runner_up:
            answer += f"; runner-up: {split_text(self.runner_up)}"
        if front:
            answer += f"\n{front.text()}"
        if self.two_runs:
            answer += f"\n{self.two_runs.text()}"
        return "\n".join([*lines, "", answer])


def split_text(split: Mapping[str, Any]) -> str:
    """A split by the options that ask for it."""
    return options(split, layouts.SPLIT) or "as it is"


def _size(n_bytes: int) -> str:
    return units.human(n_bytes, "B", 4)


def _rank(split: Mapping[str, Any]) -> tuple[bool, bool, float, int, int]:
    """Layouts of one split in order: what runs, what holds the whole batch, then what is faster, holds more or takes
    less."""
    size = split["weight_bytes"] + split["kv_bytes"]
    refused = not competes(split)
    return refused, not split["fits_whole_batch"], -(split["throughput_tokens_per_s"] or 0.0), -split["max_batch"], size


def devices(
    device: HardwareSpec, plan: KvPlan, work: Workload, most: int | None = None, any_size: bool = False
) -> Devices:
    """Splits of the model by tp and pp over up to `most` devices, each in its best layout, with its results: over 1, 2,
    4 or 8 devices and whole servers, or over `any_size`.

    The best layout holds the whole batch, and of those gives most tokens a second; where `work` says how experts,
    requests or tokens are shared, it is that one. `most` None: up to `MOST_DEVICES`, or fewer where the device's file
    lets no more share work. The rest of the deployment is as in `work`. Raises InputError for `most`, and where it is
    given and the file does not let so many share work.
    """
    note = ""
    if most is None:
        most, lacks = collectives.most_devices(device, MOST_DEVICES)
        note = f"Up to {most} {'devices' if most > 1 else 'device'}: {lacks}." if lacks else ""
    elif isinstance(most, bool) or not 1 <= most <= MAX_DEVICES:
        raise InputError(f"most = {show(most)}: must be a whole number of devices from 1 to {MAX_DEVICES:,}")
    splits = []
    for tp, pp in layouts.sizes(plan.model, most, any_size):
        try:
            tried = [engine.evaluate(Point(device, plan, way)) for way in layouts.layouts(plan.model, work, tp, pp)]
        except InputError as error:
            allowed, lacks = collectives.most_devices(device, most)
            raise InputError(f"{error}, or ask for --most {allowed}" if lacks else str(error)) from None
        splits += sorted(tried, key=_rank)[:1]
    splits.sort(key=lambda split: (split["n_devices"], -(split["throughput_tokens_per_s"] or 0.0), split["pp"]))
    many = f"{work.batch:,} requests" if work.batch else "as many requests as fit, at least one,"
    question = (
        f"How many {device.name} does {plan.model.name} with {plan.quantizer_name} need for "
        f"{many} of {work.input_tokens:,} + {work.output_tokens:,} tokens?"
    )
    age = age_text(Point(device, plan, layouts.on_one_device(work)))
    answer = Devices(question=question, splits=tuple(splits), note=note, age=age)
    if (best := answer.fewest) is None:
        return answer
    whole = [i for i, split in enumerate(splits) if split["fits_whole_batch"] and competes(split)]
    same = [i for i in whole if splits[i]["n_devices"] == best["n_devices"]]
    works = {i: replace(work, pp_batches=None, **{name: splits[i][name] for name in layouts.SPLIT}) for i in same}
    cases = {i: Case(device, plan, split_work) for i, split_work in works.items()}
    compared = Comparison()

    def gain(index: int, other: int) -> Gain:
        advantage = compared.gain(cases[index], cases[other])
        assert advantage is not None  # both hold the whole batch
        return advantage

    (first, *_), gains = crowned(same, gain)
    splits_by_place = list(splits)
    splits.insert(same[0], splits.pop(first))  # it goes before what is as likely slower
    sure = min(gains.values(), key=lambda gain: gain.sure, default=None)
    rivals = {index: gain.sure for index, gain in gains.items() if 1 - gain.sure >= NAMED_FROM}
    answer = replace(answer, splits=tuple(splits), sure=sure)
    if not rivals:
        return answer
    second = min(rivals, key=rivals.__getitem__)
    pair = splits_by_place[first], splits_by_place[second]
    runs = two_runs(*pair, (split_text(pair[0]), split_text(pair[1])), gains[second])
    return replace(answer, runner_up=pair[1], two_runs=runs)
