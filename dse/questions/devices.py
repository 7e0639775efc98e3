"""Fewest devices for a batch, and the best split of the model over them: every tp and pp, up to a number."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from dse.core import units
from dse.core.errors import InputError, show
from dse.model import evaluate, uncertainty
from dse.model.compare import Case, Comparison
from dse.model.kv_layout import KvPlan
from dse.model.uncertainty import Gain
from dse.questions.common import QuestionAnswer, sure_text
from dse.specs import collectives, deployment
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import MAX_DEVICES, Workload

#: devices at most, where none are asked for: two nodes of eight
MOST_DEVICES = 16
#: results that an answer tells of each split
TOLD = (
    "n_devices",
    "tp",
    "pp",
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
)


@dataclass(frozen=True, repr=False)
class Devices(QuestionAnswer):
    """Results by split, fewest devices first; of as many devices the fastest first, what does not fit last."""

    question: str
    splits: tuple[dict[str, Any], ...]
    #: how much faster the answer is than the next split on as many devices; None where there is none
    sure: Gain | None = None
    #: why no more devices are tried, where fewer than MOST_DEVICES are by the device's file; else ""
    note: str = ""

    @property
    def fewest(self) -> dict[str, Any] | None:
        """The fastest split on the fewest devices that hold the whole batch at once; None where none does."""
        return next((split for split in self.splits if split["fits_whole_batch"]), None)

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
            "sure_of_split": sure and sure.confidence,
            "note": self.note,
            "splits": told,
        }

    def text(self) -> str:
        """A table, and the answer."""
        lines = [self.question, "", "".join(f"{word:>14}" for word in _HEAD)]
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
            lines.append("".join(f"{cell:>14}" for cell in cells))
        if self.note:
            lines += ["", self.note]
        fewest = self.fewest
        if fewest is None:
            more = "" if self.note else ": ask for more with --most"
            return "\n".join([*lines, "", f"On none of them the whole batch fits at once{more}."])
        how = " ".join(f"--{name} {fewest[name]}" for name in ("tp", "pp") if fewest[name] > 1) or "as it is"
        answer = f"Fewest devices that hold the whole batch at once: {fewest['n_devices']} ({how})"
        if sure := self.sure:
            answer += f"; the fastest split of them, {sure_text(sure.confidence)} sure"
        return "\n".join([*lines, "", answer])


def _size(n_bytes: int) -> str:
    return units.human(n_bytes, "B", 4)


def devices(device: HardwareSpec, plan: KvPlan, work: Workload, most: int | None = None) -> Devices:
    """Every split of the model by tp and pp over up to `most` devices, with its results.

    None: up to MOST_DEVICES, or fewer where the device's file lets no more share work. The rest of the deployment is as
    in `work`. Raises InputError for `most`, and where it is given and the file does not let so many share work.
    """
    note = ""
    if most is None:
        most, lacks = collectives.most_devices(device, MOST_DEVICES)
        note = f"Up to {most} {'devices' if most > 1 else 'device'}: {lacks}." if lacks else ""
    elif isinstance(most, bool) or not 1 <= most <= MAX_DEVICES:
        raise InputError(f"most = {show(most)}: must be a whole number of devices from 1 to {MAX_DEVICES:,}")
    model, splits = plan.model, []
    # stages of as many layers each: others wait for the fullest
    for pp in (n for n in range(1, most + 1) if model.n_layers % n == 0):
        for tp in range(1, most // pp + 1):
            asked = replace(work, tp=tp, pp=pp, pp_batches=None)
            try:
                deployment.check(model, asked)
            except InputError:
                continue
            try:
                splits.append(evaluate.evaluate(device, plan, asked))
            except InputError as error:
                allowed, lacks = collectives.most_devices(device, most)
                raise InputError(f"{error}, or ask for --most {allowed}" if lacks else str(error)) from None
    splits.sort(key=lambda split: (split["n_devices"], -(split["throughput_tokens_per_s"] or 0.0), split["pp"]))
    many = f"{work.batch:,} requests" if work.batch else "as many requests as fit, at least one,"
    question = (
        f"How many {device.name} does {model.name} with {plan.quantizer_name} need for "
        f"{many} of {work.input_tokens:,} + {work.output_tokens:,} tokens?"
    )
    answer = Devices(question, tuple(splits), note=note)
    if (best := answer.fewest) is None:
        return answer
    same = [split for split in splits if split["feasible"] and split["n_devices"] == best["n_devices"]]
    cases = [Case(device, plan, replace(work, tp=split["tp"], pp=split["pp"], pp_batches=None)) for split in same]
    place = same.index(best)
    return replace(answer, sure=Comparison().gain(*cases[place : place + 2]) if same[place + 1 :] else None)
