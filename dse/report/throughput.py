"""The throughput-versus-capacity report: one HTML page, the tables behind it, every figure in four formats."""

from collections.abc import Sequence

import pandas as pd

from dse.core import files
from dse.core.errors import InputError, did_you_mean, show
from dse.core.progress import Progress, each
from dse.figures import FIGURES, REPORT, Figure
from dse.figures.drawing.chart import Chart
from dse.figures.export import image, web_page
from dse.figures.export.image import export, parquet
from dse.figures.plot.answer import chart_of
from dse.questions import systems, tables
from dse.questions.systems import ReportRequest
from dse.report import formats, gains, page
from dse.specs import catalog
from dse.specs.measurements import CLOSED, Bits
from dse.specs.tokens import parse
from dse.specs.workload import ASKED, DEPLOYMENT, TIMING, Workload

INDEX = "index.html"
#: what a report is about where no device is named
PRESETS = ("today", "oaken")
#: the fields of a deployment and of what its times rest on, which the papers' devices have of their own
_USUAL = Workload()
_OF_DEVICES = [name for name in (*DEPLOYMENT, *TIMING) if name not in ("model_kind", "stack")]


def write(out: str, made_by: str, request: ReportRequest, progress: Progress | None = None) -> str:
    """Write the report into directory `out` and return the path of its page.

    The number of points (LimitError) and the directory (OutputError) are checked before the first file is written.
    Each file appears complete or not at all, the page last. `made_by`: the command that makes this report again.
    """
    tables.check(request)
    with files.publishing(out) as published:
        frames = tables.build(request, progress)
        pays, why_not = formats.answer(request)
        if pays:
            frames["formats"] = pays.table
        first = None
        if request.memory is None:  # of today
            first = gains.gains(request, formats.batch_of(request), formats.input_of(request), progress)
            frames["gains"] = first.table
        for name, content in table_files(frames).items():
            published.write(name, content)
        fragments: dict[str, str] = {}
        for name in each(list(REPORT), progress, "figures"):
            figure = REPORT[name]
            images, fragments[name] = _drawn(figure, figure.chart(frames[figure.table]), made_by)
            _write_images(published, images)
        if pays:
            images, fragments["formats"] = _drawn(FIGURES["formats"], chart_of(pays), made_by)
            _write_images(published, images)
        published.write("figures/plotly.min.js", web_page.plotly_js().encode())
        document = page.page(request, frames, fragments, made_by, (pays, why_not), first)
        return str(published.write(INDEX, document.encode()))


def ask(
    devices: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    quantizers: Sequence[str] | None = None,
    batches: Sequence[int] | None = None,
    work: Workload = _USUAL,
    bits: Bits = CLOSED,
    tokens: Sequence[str] | None = None,
    preset: str | None = None,
) -> ReportRequest:
    """The request behind the options, every name resolved and every number checked: InputError, SpecError.

    Where no device is named, `preset` says what it is about, but for models and quantizers that are named: `today`:
    models and GPUs of today with the formats that engines ship, memory counted as servers do; `oaken`, and by default:
    the systems and models of Oaken's Figure 11. `work`: lengths, how the model lies on several devices, what
    times rest on.
    """
    if preset not in (None, *PRESETS):
        raise InputError(f"preset = {show(preset)}: {did_you_mean(preset, PRESETS)}")
    if preset == "oaken" and devices is not None:
        raise InputError("preset = oaken: has no effect with --devices: leave one out")
    first_device, first_model = (names[0] if names else None for names in (devices, models))
    is_today = preset == "today" and devices is None
    if is_today:
        devices = systems.TODAY_DEVICES
        models = systems.TODAY_MODELS if models is None else models
        quantizers = systems.TODAY_QUANTIZERS if quantizers is None else quantizers
    split = {name: value for name in _OF_DEVICES if (value := getattr(work, name)) != ASKED[name].default}
    if split and devices is None:
        name = next(iter(split))
        raise InputError(
            f"{ASKED[name].name} = {show(split[name])}: the papers' devices are as the papers have them: name your "
            "own with --devices"
        )
    policies = tuple(dict.fromkeys(parse(name).name for name in tokens)) if tokens else None
    for option, values in (("devices", devices), ("models", models), ("quantizers", quantizers), ("batches", batches)):
        if values is not None and not values:
            raise InputError(f"{option} = []: must name at least one")
    sizes = tuple(dict.fromkeys(batches or systems.BATCHES))
    for size in sizes:
        Workload(batch=size, input_tokens=work.input_tokens, output_tokens=work.output_tokens)
    specs = {spec.name: spec for spec in map(catalog.model, models or systems.MODELS)}
    return ReportRequest(
        systems.chosen(devices, quantizers),
        models=tuple(specs.values()),
        batches=tuple(sorted(sizes)),
        input_tokens=work.input_tokens,
        output_tokens=work.output_tokens,
        is_default=devices is None and quantizers is None,
        bits=bits,
        model_kind="ideal" if work.model_kind == "ideal" else "auto",
        stack=work.stack,
        deployment=split,
        tokens=policies,
        memory=None if is_today else "paper",
        first_device=first_device,
        first_model=first_model,
    )


def table_files(frames: dict[str, pd.DataFrame]) -> dict[str, bytes]:
    """CSV and Parquet of every table; the results are report.csv and report.parquet."""
    content = {}
    for name, table in frames.items():
        stem = "report" if name == "results" else f"tables/{name}"
        content[f"{stem}.csv"] = files.csv_of(table)
        content[f"{stem}.parquet"] = parquet(table)
    return content


def _write_images(published: files.Publication, images: dict[str, bytes]) -> None:
    for name, content in images.items():
        published.write(f"figures/{name}", content)


def _drawn(figure: Figure, chart: Chart, made_by: str) -> tuple[dict[str, bytes], str]:
    """The files of a chart by name, and its part of the page."""
    files = {f"{figure.name}.{kind}": content for kind, content in image.images(chart, made_by).items()}
    fragment = web_page.fragment(chart, f"figure-{figure.name}")
    files[f"{figure.name}.html"] = export(chart, "html", made_by, question=figure.shows, is_beside=True)
    return files, fragment
