"""The look of a figure: title, size, texts, legend, notes. One declaration gives options and fields.

`dse.figures.export.look` applies it to a chart.
"""

from dataclasses import dataclass

from dse.core.field import LINE, NUMBER, SWITCH, TEXT, declarations, declared


@dataclass(frozen=True)
class Look:
    """Choices for a figure; None keeps what its chart, or its size, has."""

    preset: str = declared(
        "paper",
        label="Size",
        kind=TEXT,
        help="A column of 85 mm, both of 178 mm, 16:9 of 339 x 190 mm, or as the report (183 mm).",
        choices={"report": "as the report", "paper": "single column", "paper-wide": "double column", "slide": "slide"},
    )
    width: float | None = declared(
        None, label="Width (mm)", kind=NUMBER, help="Another width than the preset's.", low=40, high=1200, unit="mm"
    )
    height: float | None = declared(
        None,
        label="Height (mm)",
        kind=NUMBER,
        help="A height; default: what a column needs, a slide's own.",
        low=40,
        high=1200,
        unit="mm",
    )
    font: float | None = declared(
        None,
        label="Font size (pt)",
        kind=NUMBER,
        help="Size of the texts at axes and in the legend; the others follow.",
        low=4,
        high=60,
        unit="pt",
    )
    title: str | None = declared(None, label="Title", kind=LINE, help="Another title.", high=200)
    shows_title: bool = declared(
        True,
        name="no-title",
        label="Title in the picture",
        kind=SWITCH,
        help="No title in the picture: it stands in the file's properties.",
    )
    x_label: str | None = declared(
        None, label="Label of the x axis", kind=LINE, help="Another name of the x axis.", high=100
    )
    y_label: str | None = declared(
        None, label="Label of the y axis", kind=LINE, help="Another name of the y axis.", high=100
    )
    legend: str = declared(
        "above",
        label="Legend",
        kind=TEXT,
        help="Place of the legend.",
        choices={"above": "above", "right": "right", "below": "below", "none": "none"},
    )
    shows_notes: bool = declared(
        True,
        name="no-notes",
        label="Notes in the picture",
        kind=SWITCH,
        help="No notes in the picture: they stand in the file's properties.",
    )

    def check(self) -> None:
        """Raises InputError for the first value that no figure can have."""
        for name, field in ASKED.items():
            field.check(getattr(self, name))

    @property
    def options(self) -> str:
        """Options of `dse plot` for what differs from the default."""
        import shlex

        words: list[str] = []
        for name, field in ASKED.items():
            value = getattr(self, name)
            if value != field.default:
                words += [f"--{field.name}", *([] if field.kind is SWITCH else [field.kind.write(value)])]
        return shlex.join(words)


#: fields of a look by name
ASKED = declarations(Look)
