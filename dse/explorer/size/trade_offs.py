"""Best trade-offs: a sweep around the current design, or a table of one, with the best of each format within limits."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

import pandas as pd
import streamlit as st

from dse import quantizers
from dse.core import toml
from dse.core.errors import DseError, InputError, LimitError, clean
from dse.core.field import Field
from dse.core.units import human
from dse.explorer import common_fields, downloads, names, request, sidebar, state, tray, uploads, widgets
from dse.explorer.bench import Bench
from dse.explorer.downloads import MadeBy
from dse.explorer.request import PointRequest
from dse.explorer.size.axis_texts import axis_problem, more_axes, values_of
from dse.explorer.widgets import escaped
from dse.figures.charts import design_front
from dse.figures.charts.design_front import QUALITY, RATES
from dse.figures.drawing.chart import Chart, hover_box
from dse.model.results import RESULT_UNITS, shown_unit
from dse.operations.declare import words_of
from dse.operations.face import Name, call_of, script
from dse.operations.sweeps import FindFront, RunSweep
from dse.quantizers import layered
from dse.questions.common import limits_text
from dse.questions.limits import LIMITS
from dse.specs import catalog
from dse.specs.measurements import Bits
from dse.specs.workload import ASKED
from dse.sweep import run, spec
from dse.sweep.pareto import designs, limits
from dse.sweep.pareto.designs import DesignFront
from dse.sweep.spec import Sweep

#: designs that the page evaluates; more is for the command line
MAX_POINTS = 20_000
#: bytes of a table of the reader's own, and rows that the browser gets
MAX_BYTES, MAX_ROWS = 16 * 2**20, 500
_MAX_NAME, _LOADED = 60, " (loaded)"
#: session key: the table that was loaded last, by its name
_HELD = "size table"
FILE, FOLDER = "sweep.toml", "sweep-result"
#: columns that a sweep does not have: what each is of those that it has
PER = {"tokens_per_s_a_device": ("throughput_tokens_per_s", "n_devices"), "tokens_per_s_a_user": ("", "tpot_s")}
_WORDS = {name: words for name, (words, _) in RATES.items()}
_UNITS = {name: unit for name, (_, unit) in RATES.items()}
#: what can be an axis of the figure, and whether more or less of it is better
SENSES = {
    **dict.fromkeys((*PER, "throughput_tokens_per_s", "max_batch", "max_context_tokens"), "max"),
    **dict.fromkeys(
        ("tpot_s", "ttft_s", "decode_step_s", "usd_per_million_tokens", "joules_per_token", "kv_bytes_per_token"), "min"
    ),
    **dict.fromkeys(("sample_perplexity_frac", "score_drop_frac", "measured_error"), "min"),
}
_HOW = "Values with commas between, or a range: `1 to 256 factor 2`, `16 to 64 step 16`."


def _check_axis(name: str) -> Any:
    def check(text: str, values: Mapping[str, Any]) -> None:
        if problem := axis_problem(name, text):
            raise InputError(problem)

    return check


def _check_more(text: str, values: Mapping[str, Any]) -> None:
    for name, raw in more_axes(text, TAKEN):
        _check_axis(name)(raw, values)


def _limits(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";") if part.strip())


@lru_cache(maxsize=1)
def _axes() -> dict[str, str]:
    return {name: _heading(name) for name in SENSES}


def _listed() -> dict[str, str]:
    held = _held()
    return {"sweep": "a sweep around the design", **({held[0]: held[0]} if held else {})}


SOURCE = Field(
    name="front_table",
    label="Designs",
    default="sweep",
    listed=_listed,
    help="Evaluated here, or read from a table of `dse sweep` that you load.",
)
QUANTIZERS = Field(
    name="front_quantizers",
    label="KV formats",
    default=["fp16", "fp8", "int8_per_token_head", "int4_per_token_head", "kivi"],
    listed=lambda: [*quantizers.FAMILIES, *uploads.names("plan")],
    help="As they stand; the design's own too. Their parameters are varied under More axes: kivi.bits = 2, 4.",
)
DEVICES = Field(
    name="front_devices",
    label="Devices",
    default=[],
    listed=lambda: [*catalog.device_files(), *uploads.names("device")],
    open_means="the design's",
    help="Shipped devices, and files of your own.",
)
BATCHES = Field(
    name="front_batches",
    label="Requests at once",
    default="1 to 256 factor 2",
    accepts=_check_axis("batch"),
    help=f"Requests that are served together. {_HOW}",
)
TPS = Field(
    name="front_tps",
    label="Tensor parallel (devices)",
    default="1, 2, 4, 8",
    accepts=_check_axis("tp"),
    open_means="as the design",
    may_be_empty=True,
    help=f"Devices that every layer is split over. {_HOW}",
)
MORE = Field(
    name="front_axes",
    label="More axes",
    default="",
    accepts=_check_more,
    open_means="weights = bf16, fp8; kivi.bits = 2, 4",
    help="Anything else that a sweep can vary, with semicolons between: lengths, weights, numbers of a device.",
)
AT_MOST = Field(
    name="front_at_most",
    label="At most",
    default="",
    accepts=lambda text, values: limits.parse(_limits(text)),
    open_means="measured_error=0.1; batch=64",
    help="Limits on columns beside those of the question, in base units, as `dse pareto --at-most` takes them.",
)
X, Y = (
    Field(name=name, label=label, default=default, listed=_axes, help="An axis of the figure, and what counts.")
    for name, label, default in (
        ("front_x", "Across", "tokens_per_s_a_user"),
        ("front_y", "Upward", "tokens_per_s_a_device"),
    )
)
FIELDS = (SOURCE, QUANTIZERS, DEVICES, BATCHES, TPS, X, Y, MORE, AT_MOST)
#: axes with fields of their own
TAKEN = {"device", "model", "quantizer", "batch", "tp"}


@dataclass(frozen=True, kw_only=True)
class AskedSweep:
    """A sweep around a design, with files of the reader's own by their names, and what a front of it depends on."""

    point: PointRequest
    devices: tuple[str, ...]
    quantizers: tuple[str, ...]
    axes: tuple[tuple[str, str], ...]
    #: what the files of the lists hold: a sweep is of these, not of their names
    files: tuple[tuple[str, uploads.FileText], ...]
    keep: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The sweep as a file holds it. Raises InputError."""
        files = dict(self.files)
        axes: dict[str, Any] = {
            "device": [self._text(name) for name in self.devices],
            "model": [self.point.model_text],
            "quantizer": [layered.PREFIX + files[name].name if name in files else name for name in self.quantizers],
        }
        axes |= {name: values_of(text) for name, text in self.axes}
        measured = {"measurements": file.name} if (file := self.point.measurements_file) else {}
        return {"axes": axes, **measured, "keep": list(self.keep)}

    def _text(self, name: str) -> str:
        files = dict(self.files)
        return self.point.device_text if name == self.point.device else files[name].name if name in files else name

    def sweep(self) -> Sweep:
        """The sweep, ready to run. Raises InputError, SpecError, LimitError."""
        document, files = self.document(), dict(self.files)
        axes = document["axes"]
        if self.point.model_file.text:
            axes["model"] = [self.point.model_spec()]
        for i, name in enumerate(self.devices):
            if name in files or name == self.point.device:
                edits = self.point.edits if name == self.point.device else ""
                axes["device"][i] = uploads.device(name, edits, files.get(name, uploads.NO_FILE))
        for i, name in enumerate(self.quantizers):
            if name in files:
                axes["quantizer"][i] = uploads.quantizer(name, files[name])
        document.pop("measurements", None)  # a name of the session's, not of a file here
        measured = self.point.measurements_file
        return replace(spec.from_dict(document), bits=Bits(file=measured.measured if measured else None))


def asked_of(values: Mapping[str, Any]) -> AskedSweep:
    """The sweep of the page's values around the current design. Raises InputError."""
    point = request.point_request(values)
    stored = list(values[QUANTIZERS.key])
    own = point.quantizer if point.quantizer_file.text else point.key_quantizer_text
    if stored == QUANTIZERS.default and own not in stored:  # an engine's that has others, say
        stored.append(own)
    axes = [(name, values[field.key]) for name, field in (("batch", BATCHES), ("tp", TPS)) if values[field.key].strip()]
    axes += more_axes(values[MORE.key], TAKEN)
    given = dict(axes)
    for name, field in ASKED.items():
        if name not in given and (value := getattr(point.work, name)) != field.default:
            axes.append((name, str(value).lower() if isinstance(value, bool) else str(value)))
    devices = tuple(values[DEVICES.key]) or (point.device,)
    at_most = [limit.column for limit in limits.parse(_limits(values[AT_MOST.key]))]
    columns = [values[X.key], values[Y.key], *at_most, QUALITY, "tpot_s", "ttft_s", "n_devices"]
    results = [name for name in columns if name in RESULT_UNITS and name not in dict(axes)]
    return AskedSweep(
        point=point,
        devices=devices,
        quantizers=tuple(stored),
        axes=tuple(axes),
        files=tuple((name, file) for name in (*devices, *stored) if (file := uploads.text_of(name)).text),
        keep=tuple(dict.fromkeys((*spec.DEFAULT_KEEP, *results))),
    )


@st.cache_data(
    max_entries=16, ttl="1h", show_spinner="Evaluating designs…", show_time=True, hash_funcs={AskedSweep: repr}
)
def cached_table(asked: AskedSweep) -> pd.DataFrame:
    """The table of the sweep, as `dse sweep` writes it. Raises DseError."""
    return run.in_memory(asked.sweep(), MAX_POINTS)


def with_rates(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the columns of PER, where it has what they are made of; without a layout it is of one device."""
    if "n_devices" not in table:
        layout = [table[name].astype(float) for name in ("tp", "pp") if name in table]
        table = table.assign(n_devices=math.prod(layout, start=1.0))
    more = {
        name: (table[over].astype(float) if over else 1.0) / table[under].astype(float)
        for name, (over, under) in PER.items()
        if name not in table and under in table and (not over or over in table)
    }
    return table.assign(**more)


def with_axes(values: Mapping[str, Any], table: pd.DataFrame) -> Mapping[str, Any]:
    """The values with axes that a table has in place of those that it has not. Raises InputError."""
    for field, other in ((X, Y), (Y, X)):
        if values[field.key] not in table:
            there = [name for name in SENSES if name in table and name != values[other.key]]
            if not there:
                raise InputError(f"{values[field.key]}: is no column of the table, nor is another that can be an axis")
            values = {**values, field.key: next((name for name in there if SENSES[name] == "min"), there[0])}
    return values


def at_most_of(values: Mapping[str, Any], table: pd.DataFrame) -> tuple[str, ...]:
    """The limits of the question and of the page, as options: those of the question on columns that the table has."""
    own = limits.parse(_limits(values[AT_MOST.key]))
    taken = {limit.column for limit in own}
    of_question = {name: most for name, most in request.limits_s(values).items() if name in table and name not in taken}
    return tuple(f"{name}={most:.12g}" for name, most in [*of_question.items(), *((n, v) for n, _, v in own)])


def front_of(designs_of: Any, values: Mapping[str, Any], at_most: Sequence[str], by: Sequence[str]) -> FindFront:
    """The front of a table of designs, as an operation."""
    senses = {values[field.key]: SENSES[values[field.key]] for field in (X, Y)}
    units = {name: unit for name, unit in _UNITS.items() if name in senses} or None
    return FindFront(
        designs=designs_of, objectives=senses, by=tuple(by), at_most=tuple(at_most), drop_missing=True, units=units
    )


def best_of(front: DesignFront, whole: DesignFront, upward: str) -> pd.Series | None:
    """The one design that is named: within limits the most upward, without any the knee of all formats together."""
    if front.table.empty:
        return None
    if not front.limits:
        return whole.table[whole.knee].iloc[0]
    ordered = whole.table.sort_values(upward, ascending=SENSES[upward] == "min", kind="stable")
    return ordered.iloc[0]


def show(page: str, bench: Bench) -> None:
    """The fields, the figure with its best, and the table."""
    values = bench.values
    wrong = _ask(values)
    widgets.lines(wrong)
    asked, held = None, _held()
    try:
        if values[SOURCE.key] != "sweep" and held:
            table = held[1]
        else:
            asked = asked_of(values)
            if (n := asked.sweep().n_points) > MAX_POINTS:
                st.info(f"{n:,} designs: this page evaluates up to {MAX_POINTS:,}; the command line takes any number:")
                _show_file(asked)
                return
            table = cached_table(asked)
        table = with_rates(table)
        values = with_axes(values, table)
        at_most = at_most_of(values, table)
        by = ["quantizer"] if "quantizer" in table else []
        fronts, whole = (front_of(table, values, at_most, groups).run() for groups in (by, []))
    except DseError as error:
        widgets.problem(error)
        return
    best = best_of(fronts, whole, values[Y.key])
    if best is None:
        why = "allow more, or vary more" if fronts.n_feasible else f"none fits: {bench.current.why_not}"
        st.info(f"No design is left: {why}.")
        return
    said = _verdict(fronts, best, values)
    st.markdown(f"**{escaped(said)}**")
    if missing := [bench.values[field.key] for field in (X, Y) if bench.values[field.key] != values[field.key]]:
        st.caption(escaped(f"Not in the table: {', '.join(map(_heading, missing)).lower()}. Other axes stand in."))
    chart = chart_of(fronts, best, values, request.limits_s(values))
    made = MadeBy(*_made(asked, values, at_most, by, held), state.address(page, values))
    figures, side = st.columns([3, 2], gap="medium")
    with figures:
        downloads.show("front", chart, lambda: fronts.table, made, titled=False, verdict=lambda: said)
    with side:
        st.caption(_counted(fronts))
        st.dataframe(_rows(fronts, values), hide_index=True)
        if asked:
            design, changed = added(best, asked, values)
            st.button("Add the best to the designs", key="front add", on_click=sidebar.add, args=(design, changed))
    if asked:
        with st.expander("As a sweep file, for any number of designs"):
            _show_file(asked)


def _ask(values: Mapping[str, Any]) -> list[str]:
    """The fields; returns what is wrong with a file."""
    for place, field in zip(st.columns(3), (QUANTIZERS, BATCHES, TPS), strict=True):
        with place:
            widgets.draw(field)
    places = st.columns(3, vertical_alignment="bottom")
    for place, field in zip(places, (X, Y), strict=False):
        with place:
            widgets.draw(field)
    with places[-1]:
        box = st.popover("More, a table of your own", key="front more", on_change="rerun")
    if not box.open:
        return []
    with box:
        for field in (DEVICES, MORE, AT_MOST, SOURCE):
            widgets.draw(field)
        return uploads.take(
            "front file",
            "A table of `dse sweep` (.csv, .parquet)",
            ["csv", "parquet"],
            f"At most {MAX_BYTES // 2**20} MiB. It stays in the memory of this session.",
            _keep,
            max_mib=MAX_BYTES // 2**20,
        )


def _keep(file: Any) -> None:
    """Hold a table of designs. Raises InputError and LimitError as `dse pareto` does."""
    name = clean(PurePosixPath(file.name.replace("\\", "/")).name, _MAX_NAME)
    content = file.getvalue()
    if len(content) > MAX_BYTES:
        raise LimitError(f"{name}: has {len(content):,} bytes: at most {MAX_BYTES:,}: `dse pareto` takes any size")
    with uploads.on_disk(name, content) as path:
        table = designs.read_table(path)
    if not any(column in with_rates(table) for column in SENSES):
        raise InputError(f"{name}: has none of the columns {', '.join(SENSES)}: give a table of `dse sweep`")
    st.session_state[_HELD] = (name + _LOADED, table)
    state.put({SOURCE.key: name + _LOADED})


def _held() -> tuple[str, pd.DataFrame] | None:
    try:
        held: tuple[str, pd.DataFrame] | None = st.session_state.get(_HELD)
    except RuntimeError:  # no session: outside the app
        held = None
    return held


def _heading(name: str) -> str:
    return f"{_WORDS[name][:1].upper()}{_WORDS[name][1:]} (tok/s)" if name in PER else names.titled(name)


def _number(name: str, value: Any) -> str:
    """A value of a column as people read it."""
    unit = _UNITS.get(name) or RESULT_UNITS.get(name, "")
    shown, size = shown_unit(name, unit)
    return human(float(value) / size, "" if shown in ("sequence", "1") else shown)


def _verdict(front: DesignFront, best: pd.Series, values: Mapping[str, Any]) -> str:
    """The best, in a sentence."""
    label = _label(front, best)
    numbers = ", ".join(
        f"{(_WORDS.get(name) or names.words(name)).lower()} {_number(name, best[name])}"
        for name in (values[Y.key], values[X.key])
    )
    times = {limit.column: limit.value for limit in front.limits if limit.column in LIMITS}
    others = [str(limit) for limit in front.limits if limit.column not in LIMITS]
    within = " and ".join(filter(None, [limits_text(times), *others]))
    head = f"Best within {within}" if within else "Closest to best in both"
    return f"{head}: {label}: {numbers}."


def _counted(front: DesignFront) -> str:
    """The number of designs on the fronts, of all, and of those that do not count."""
    beyond = f", {front.n_beyond:,} beyond the limits" if front.limits else ""
    refused = f", {front.n_refused:,} not run by their software" if front.n_refused else ""
    return f"{len(front.table):,} of {front.n_rows:,} designs are on a front{beyond}{refused}."


def _label(front: DesignFront, row: pd.Series) -> str:
    """A design by what tells it from the others."""
    columns = [name for name in front.design if name != "n_devices"]  # as its layout says
    return designs.label(row, columns=columns, units=front.units)


def _rows(front: DesignFront, values: Mapping[str, Any]) -> pd.DataFrame:
    """The designs of the fronts, as people read them."""
    table = front.table.sort_values(values[Y.key], ascending=SENSES[values[Y.key]] == "min").head(MAX_ROWS)
    shown: dict[str, Any] = {}
    for name in dict.fromkeys((*front.design, values[Y.key], values[X.key], "bound")):
        if name not in table:
            continue
        _, size = shown_unit(name, _UNITS.get(name) or RESULT_UNITS.get(name, ""))
        is_sized = size != 1 and pd.api.types.is_numeric_dtype(table[name])
        shown[_heading(name)] = table[name].astype(float) / size if is_sized else table[name]
    return pd.DataFrame(shown)


def chart_of(front: DesignFront, best: pd.Series, values: Mapping[str, Any], wanted: Mapping[str, float]) -> Chart:
    """The figure of the fronts."""
    x, y = values[X.key], values[Y.key]
    table = front.table if "quantizer" in front.by else front.table.drop(columns="quantizer", errors="ignore")
    title = f"Best trade-offs: {_heading(y).lower()} against {_heading(x).lower()}"
    return design_front.trade_offs(table, best, x, y, wanted, title, lambda row: _hover(front, row, (x, y)))


def _hover(front: DesignFront, row: pd.Series, shown: Sequence[str]) -> str:
    return hover_box(_label(front, row), [f"{_heading(name)}: {_number(name, row[name])}" for name in shown])


def _made(
    asked: AskedSweep | None, values: Mapping[str, Any], at_most: Sequence[str], by: Sequence[str], held: Any
) -> tuple[str, str]:
    """The commands and the Python that give the same front; columns of PER are made in Python alone."""
    place = FOLDER if asked else held[0].removesuffix(_LOADED)
    sweep = [shlex.join(words_of(RunSweep(axes=FILE, out=FOLDER)))] if asked else []
    front = front_of(Name("table"), values, at_most, by)
    made = [name for name in (values[X.key], values[Y.key]) if name in PER]
    of_columns = {
        name: (f'table["{over}"]' if over else "1") + f' / table["{under}"]' for name, (over, under) in PER.items()
    }
    rates = [f"table[{name!r}] = {of_columns[name]}" for name in made]
    if held and not asked and "tokens_per_s_a_device" in made and "n_devices" not in held[1]:
        layout = " * ".join(f'table["{name}"]' for name in ("tp", "pp") if name in held[1])
        rates.insert(0, f'table["n_devices"] = {layout or 1}')
    if not made:
        senses = front.objectives or {}
        most, least = (tuple(name for name, sense in senses.items() if sense == way) for way in ("max", "min"))
        plain = replace(front, designs=place, objectives=None, maximize=most, minimize=least)
        sweep.append(shlex.join(words_of(plain)))
    reader = "read_parquet" if place.lower().endswith(".parquet") else "read_csv"
    source = call_of(RunSweep(axes=asked.document())) if asked else f"pandas.{reader}({place!r})"
    imports = [] if asked else ["import pandas", ""]
    return "\n".join(sweep), script(*imports, f"table = {source}", *rates, f"result = {call_of(front)}")


def added(best: pd.Series, asked: AskedSweep, values: Mapping[str, Any]) -> tuple[tray.TrayDesign, dict[str, Any]]:
    """A row of the sweep as a design, and what of the workload of all it changes."""
    sweep = asked.sweep()
    work, params = dict[str, Any](), list[str]()
    for axis in sweep.axes:
        value = best.get(axis.name)
        if axis.role == "workload" and value is not None and not pd.isna(value):
            work[common_fields.WORK[axis.name].key] = axis.items[axis.values.index(value)]
        elif axis.role == "parameter" and value is not None and not pd.isna(value):
            params.append(f"{axis.name.partition('.')[2]}={axis.items[axis.values.index(value)]}")
    name = asked.quantizers[list(sweep.axis["quantizer"].values).index(best["quantizer"])]
    family, _, parameters = (name, "", "") if uploads.text_of(name).text else name.partition(":")
    device = asked.devices[list(sweep.axis["device"].values).index(best["device"])]
    design = {
        **{field.key: values.get(field.key, field.default) for field in common_fields.DESIGN},
        **work,
        common_fields.OWN_DEVICE.key: None if device == values[common_fields.DEVICE.key] else device,
        "edits": asked.point.edits if device == asked.point.device else "",
        "quantizer": family,
        "parameters": ",".join(filter(None, [parameters, *params])),
        "value_quantizer": None,
        "value_parameters": "",
        common_fields.OWN_BATCH.key: work.get("batch"),
    }
    changed = {
        field.key: work[field.key]
        for field in common_fields.SCENARIO
        if field.key in work and field.key != "batch" and work[field.key] != values[field.key]
    }
    return tray.design_of(design, common_fields.DESIGN), changed


def _show_file(asked: AskedSweep) -> None:
    """The sweep as a file and the command that runs it: for any number of points."""
    text = sweep_toml(asked.document())
    st.code(text, language="toml", wrap_lines=True)
    st.download_button(f"Download {FILE}", text, FILE, "application/toml", key="front file", on_click="ignore")
    st.code(shlex.join(words_of(RunSweep(axes=FILE, out=FOLDER))), language="bash", wrap_lines=True)


def sweep_toml(document: Mapping[str, Any]) -> str:
    """The sweep file of a document: `dse sweep` reads it."""
    head = {key: item for key, item in document.items() if key != "axes"}
    axes = [f"{toml.key(name)} = {toml.value(item)}\n" for name, item in document["axes"].items()]
    return "".join([toml.dumps(head), "\n[axes]\n", *axes])
