"""Evaluate the designs of the tray under the common workload: the answers that the sidebar and every page show."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import streamlit as st

from dse.core.errors import DseError
from dse.explorer import common_fields, kept, request, tray
from dse.explorer.request import LoadRequest, PointAnswer, PointRequest
from dse.explorer.widgets import as_said
from dse.model.compare import Case
from dse.specs.weights import WIDE_BITS
from dse.specs.workload import ASKED, weights_text


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """A design: its place from 0, what it is called, and its answer, or what is wrong with it."""

    at: int
    name: str
    asked: PointRequest | None = None
    answer: PointAnswer | None = None
    wrong: DseError | None = None
    #: of the question and of the design
    values: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def load(self) -> LoadRequest:
        """Load and limits of the question, as the design meets them. Raises InputError."""
        return request.load_request(self.values)

    @property
    def result(self) -> dict[str, Any]:
        """Results by name, of a design that has an answer."""
        assert self.answer is not None
        return self.answer.result

    @property
    def request(self) -> PointRequest:
        """Request of a design that has an answer, with as many requests at once as its numbers are of."""
        assert self.answer is not None
        return self.answer.request

    @cached_property
    def refusals(self) -> Mapping[str, str]:
        """Parts of the design that its software does not run, each with the line that says so."""
        return self.request.point().lowered.refused

    @property
    def why_not(self) -> str:
        """Why the design does not run here, or that it does."""
        if self.wrong is not None:
            return self.wrong.lines()[0]
        if not self.result["feasible"]:
            return str(self.result["infeasible_reason"])
        return next(iter(self.refusals.values()), "it runs")

    @property
    def case(self) -> Case:
        """The design as a comparison evaluates it."""
        return Case(self.request.device_spec(), self.request.plan(), self.request.work)


@dataclass(frozen=True)
class Bench:
    """The values of a page and its designs, of which `current` is being changed."""

    values: Mapping[str, Any]
    rows: tuple[BenchRow, ...]
    at: int

    @property
    def current(self) -> BenchRow:
        """The design that is being changed."""
        return self.rows[self.at]

    @property
    def answered(self) -> list[BenchRow]:
        """The designs that have an answer."""
        return [row for row in self.rows if row.answer is not None]


def evaluate(values: Mapping[str, Any], designs: tray.Tray) -> Bench:
    """Evaluate the designs under the question's load and limits; one that cannot be says why."""
    found: list[dict[str, Any]] = []
    for design in designs.designs:
        row: dict[str, Any] = {"values": {**values, **tray.values_of(design, common_fields.DESIGN)}}
        found.append(row)
        try:
            row["asked"] = request.point_request(row["values"])
            row["answer"] = cached_answer(row["asked"], request.load_request(row["values"]))
        except Exception as error:
            row["wrong"] = as_said(error)
    names = _names(designs, [row.get("asked") for row in found])
    rows = (BenchRow(at=at, name=name, **row) for at, (name, row) in enumerate(zip(names, found, strict=True)))
    return Bench(values, tuple(rows), designs.at)


@st.cache_data(max_entries=512, ttl="1h", show_spinner=False, hash_funcs={PointRequest: repr, LoadRequest: repr})
def cached_answer(asked: PointRequest, load: LoadRequest) -> PointAnswer:
    """The answer to a request. Raises DseError."""
    return request.answer(asked, load)


def _names(designs: tray.Tray, requests: Sequence[PointRequest | None]) -> list[str]:
    """Each design's own name, else what tells it from the others; equal ones are numbered."""
    others = [other for other in requests if other is not None]
    names: list[str] = []
    for design, point in zip(designs.designs, requests, strict=True):
        stored = design.values.get("quantizer", common_fields.QUANTIZER.default)
        name = design.name or (differing(point, others) if point is not None else stored)
        number, plain = 2, name
        while name in names:
            name, number = f"{plain} ({number})", number + 1
        names.append(name)
    return names


#: fields of a workload that names say in words of their own, in this order before the others
_WORDED: dict[str, Callable[[Any], str]] = {
    "tp": "tp {}".format,
    "batch": lambda n: f"{n:,} at once" if n else "as many as fit",
    "input_tokens": "{:,} in".format,
    "output_tokens": "{:,} out".format,
    "admission": str,
    "weights_bits": "{}-bit weights".format,
    "weights": "{} weights".format,
    **dict.fromkeys(("model_kind", "stack", "tokens"), str),
}


def differing(asked: PointRequest, others: Sequence[PointRequest]) -> str:
    """Words that tell a design from the others; its KV format where all are alike."""
    ways: tuple[Callable[[PointRequest], str], ...] = (
        device_text,
        lambda r: kept.numbered(r.model_text, r.model),
        format_text,
        *(partial(_in_words, name) for name in (*_WORDED, *(name for name in ASKED if name not in _WORDED))),
        lambda r: r.measurements.partition(" (loaded")[0],
    )
    told = [way(asked) for way in ways if len({way(other) for other in others}) > 1]
    return ", ".join(text for text in told if text) or format_text(asked)


def _in_words(name: str, point: PointRequest) -> str:
    value = getattr(point.work, name)
    if name in _WORDED and (value is not None or name == "batch"):
        return _WORDED[name](value)
    if value is None:
        return ""
    if name == "speculative_config" and (draft := point.work.draft):
        return f"{draft.n_tokens} drafted by {draft.model or draft.method}"
    if isinstance(value, bool):
        return ASKED[name].label if value else f"no {ASKED[name].label}"
    return f"{ASKED[name].title or ASKED[name].label.lower()} {value}"


def device_text(asked: PointRequest) -> str:
    """The device, with its number."""
    return kept.numbered(asked.device_text, asked.device)


def format_text(asked: PointRequest) -> str:
    """KV format of keys and values."""
    keys = kept.numbered(asked.key_quantizer_text, asked.quantizer)
    values = kept.numbered(asked.value_quantizer_text, asked.value_quantizer or asked.quantizer)
    return keys if keys == values else f"{keys} / {values}"


def line(asked: PointRequest) -> str:
    """A design in a line, without the workload that all have."""
    device = asked.work.devices_text(device_text(asked))
    parts = [device, kept.numbered(asked.model_text, asked.model), f"KV {format_text(asked)}"]
    stored = [asked.work.weights_text] if asked.work.weights or asked.work.weights_bits != WIDE_BITS else []
    return ", ".join([*parts, *asked.work.split(), *stored])


#: in what designs may differ: what it is called, and a design's own in words
_WAYS: dict[str, Callable[[BenchRow], str]] = {
    "devices": lambda row: f"{row.request.work.n_devices:,} x {device_text(row.request)}",
    "models": lambda row: kept.numbered(row.request.model_text, row.request.model),
    "weights": lambda row: weights_text(row.result["weights"], row.result["weights_bits"]),
    "loads": lambda row: (
        f"{row.asked.work.batch:,} at once" if row.asked and row.asked.work.batch else "the question's"
    ),
    "KV allocation": lambda row: f"{row.result['admission']} KV",
    "timing model": lambda row: f"{row.result['model_kind']} times",
    "memory rule": lambda row: f"memory as a {row.result['memory']} counts",
}


def differences(rows: Sequence[BenchRow]) -> str:
    """Properties beside the KV format in which the designs differ, in words."""
    return ", ".join(what for what, words in _WAYS.items() if len({words(row) for row in rows}) > 1)
