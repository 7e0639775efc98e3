"""The look of a figure: title, size, texts, legend, notes. One declaration gives options and fields.

`dse.figures.export.look` applies it to a chart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from dse.core.errors import InputError, did_you_mean, show


@dataclass(frozen=True)
class LookField:
    """One field of a look: its option and its label.

    `option` is its name on the command line, without dashes (of a switch, what turns it off), `label` its name beside
    a figure. `choices` maps a value to what the explorer calls it; numbers lie between `low` and `high`, texts have
    `high` characters at most.
    """

    option: str
    label: str
    kind: Literal["text", "number", "choice", "switch"]
    help: str
    choices: Mapping[str, str] = field(default_factory=dict)
    low: float = 0.0
    high: float = 0.0
    unit: str = ""

    def check(self, value: Any) -> None:
        """Raises InputError for a value that no figure can have."""
        if value is None or self.kind == "switch":
            return
        if self.kind == "choice" and value not in self.choices:
            raise InputError(f"{self.option} = {show(value)}: {did_you_mean(value, self.choices)}")
        if self.kind == "number" and not self.low <= value <= self.high:
            raise InputError(f"{self.option} = {value:g}: must be {self.low:g} to {self.high:g} ({self.unit})")
        if self.kind == "text":
            if len(value) > self.high:
                raise InputError(f"{self.option} = {show(value)}: must have at most {self.high:g} characters")
            if not value.isprintable():
                raise InputError(f"{self.option} = {show(value)}: must be one line of letters that can be printed")


def _asked(default: Any, option: str, **more: Any) -> Any:
    return field(default=default, metadata={"asked": LookField(option, **more)})


@dataclass(frozen=True)
class Look:
    """Choices for a figure; None keeps what its chart, or its size, has."""

    preset: str = _asked(
        "paper",
        "preset",
        label="Size",
        kind="choice",
        help="A column of 85 mm, both of 178 mm, 16:9 of 339 x 190 mm, or as the report (183 mm).",
        choices={"report": "as the report", "paper": "single column", "paper-wide": "double column", "slide": "slide"},
    )
    width: float | None = _asked(
        None,
        "width",
        label="Width (mm)",
        kind="number",
        help="Another width than the preset's.",
        low=40.0,
        high=1200.0,
        unit="mm",
    )
    height: float | None = _asked(
        None,
        "height",
        label="Height (mm)",
        kind="number",
        help="A height; default: what a column needs, a slide's own.",
        low=40.0,
        high=1200.0,
        unit="mm",
    )
    font: float | None = _asked(
        None,
        "font",
        label="Font size (pt)",
        kind="number",
        help="Size of the texts at axes and in the legend; the others follow.",
        low=4.0,
        high=60.0,
        unit="pt",
    )
    title: str | None = _asked(None, "title", label="Title", kind="text", help="Another title.", high=200)
    shows_title: bool = _asked(
        True,
        "no-title",
        label="Title in the picture",
        kind="switch",
        help="No title in the picture: it stands in the file's properties.",
    )
    x_label: str | None = _asked(
        None, "x-label", label="Label of the x axis", kind="text", help="Another name of the x axis.", high=100
    )
    y_label: str | None = _asked(
        None, "y-label", label="Label of the y axis", kind="text", help="Another name of the y axis.", high=100
    )
    legend: str = _asked(
        "above",
        "legend",
        label="Legend",
        kind="choice",
        help="Place of the legend.",
        choices={"above": "above", "right": "right", "below": "below", "none": "none"},
    )
    shows_notes: bool = _asked(
        True,
        "no-notes",
        label="Notes in the picture",
        kind="switch",
        help="No notes in the picture: they stand in the file's properties.",
    )

    def check(self) -> None:
        """Raises InputError for the first value that no figure can have."""
        for name, asked in ASKED.items():
            asked.check(getattr(self, name))

    @property
    def options(self) -> str:
        """Options of `dse plot` for what differs from the default."""
        import shlex

        words: list[str] = []
        for name, asked in ASKED.items():
            value = getattr(self, name)
            if value != getattr(Look, name):
                shown = [] if asked.kind == "switch" else [f"{value:g}" if asked.kind == "number" else value]
                words += [f"--{asked.option}", *shown]
        return shlex.join(words)


#: field of a look -> how it is asked for
ASKED: dict[str, LookField] = {one.name: one.metadata["asked"] for one in fields(Look)}
