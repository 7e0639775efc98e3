"""The quantizer lab: a KV dump, and what a quantizer does to it: bits, errors by head, values before and after.

The dump is the sample that ships, or the reader's own, held in this session's memory only.
"""

import ctypes
import gc
import hashlib
import shlex
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
import streamlit as st

from dse import quantizers
from dse.core.errors import DseError, InputError, clean, show
from dse.explorer import common_fields as shared
from dse.explorer import downloads as beside
from dse.explorer import figure, request, sidebar, state, tray, uploads, widgets
from dse.explorer.bench import Bench
from dse.explorer.downloads import MadeBy
from dse.explorer.fields import Field
from dse.explorer.uploads import Upload
from dse.figures.charts import lab as charts
from dse.figures.export.lab import MAX_CHANNELS, MAX_TOKENS
from dse.measure import kernels as measure
from dse.measure import lab as measure_view
from dse.measure.lab import ATTENTION, ERRORS, Held, How, Measured, View
from dse.report import present
from dse.specs import measurements
from dse.specs.measurements import MeasurementFile

PAGE = "lab"
#: the dump that ships among the names of loaded ones; files that can be loaded
SAMPLE, ENDINGS = "sample", (".npz", ".safetensors")
_MARK = " (loaded)"
_MAX_NAME = 60
#: seconds for which a browser may be away and find its session again: `server.disconnectedSessionTTL`
RETURN_S = 30
#: session keys: what the last load said, and how often one was tried
_SAID, _TRIES = "explorer dump said", "explorer dump tries"
#: session key: the path of a dump; bytes of tensors of such a one at most
_PATH, PATH_BYTES = "explorer dump path", 8 * 2**30


def _names() -> list[str]:
    return [SAMPLE, *_loaded()]


def _loaded() -> dict[str, Held]:
    try:
        found: dict[str, Held] = st.session_state.get(state.DUMP, {})
    except RuntimeError as error:  # no session: outside the app
        raise InputError("no session holds a dump") from error
    return found


DATA = Field(
    "lab_data",
    "KV dump",
    "choice",
    SAMPLE,
    choices=_names,
    titles=lambda name: "the sample that ships (synthetic)" if name == SAMPLE else name,
    help="Keys and values as a cache holds them. The sample is made up, no language model's.",
)
QUANTIZER = replace(
    shared.FAMILY,
    key="lab_quantizer",
    default=None,
    choices=lambda: list(measure.RUN),
    clears="lab_parameters",
    placeholder="the first compared",
    help="Run by its bit-exact kernel, on every layer.",
)
PARAMETERS = replace(
    shared.PARAMETERS,
    key="lab_parameters",
    check=lambda text, values: quantizers.parse(f"{closely(values).partition(':')[0]}:{text}"),
)
ERROR = Field(
    "lab_error",
    "Error shown",
    "choice",
    "sqnr_db",
    choices=lambda: list(ERRORS),
    titles=lambda name: ERRORS[name][0],
    help="Of the tensor as attention sees it, tokens kept in FP16 included. Attention: relative error of its output, "
    "share of its weights moved to other tokens, divergence of the weights.",
)


def _compared(text: str, values: Mapping[str, Any]) -> None:
    for name in compared_of(text):
        spec = quantizers.parse(name)
        measure.check(spec, measure.Settings(1, "raise", None))


def compared_of(text: str) -> list[str]:
    """The quantizers of the field "compared", with their parameters."""
    return [name.strip() for name in text.split(";") if name.strip()]


COMPARED = Field(
    "lab_compared",
    "Compared",
    "text",
    "fp8; int4_per_token_head; nqkv",
    check=_compared,
    may_be_empty=True,
    placeholder="fp8; kivi:bits=4,group=32",
    help="Quantizers with semicolons between, each with its parameters behind a colon. All run on the whole dump.",
)


def closely(values: Mapping[str, Any]) -> str:
    """The quantizer of the field, or the first that is compared, with its parameters; "compared" may be empty."""
    compared = values.get(COMPARED.key) or COMPARED.default
    return values.get(QUANTIZER.key) or [*compared_of(compared), *compared_of(COMPARED.default)][0]


PATH = Field(
    "lab_path",
    "Path of a dump on this machine",
    "text",
    "",
    placeholder="/data/keys.safetensors",
    help="A file that is too large to load: it is read where it lies, a layer at a time. Only where the explorer "
    "serves this machine alone.",
)
SIDE = Field(
    "lab_side",
    "Keys or values",
    "choice",
    "key",
    choices=lambda: list(measure_view.SIDES),
    titles=lambda side: f"{side}s",
    help="Most quantizers store the two differently.",
)
LAYER = Field("lab_layer", "Layer", "whole", 0, high=999_999, help="Counted from 0, as the dump does.")
HEAD = Field("lab_head", "Head", "whole", 0, high=999_999, help="Head of the keys and values, counted from 0.")
FIRST = Field("lab_first", "First token shown", "whole", 0, high=2**30, step=256, help="Where the maps begin.")
HEADS = Field(
    "lab_heads",
    "Heads of flat tensors",
    "whole",
    None,
    low=1,
    high=2**20,
    placeholder="as the file says, else one",
    help="Only for tensors [tokens, channels], whose heads lie side by side.",
)
REPLACE = Field(
    "lab_replace",
    "Take NaN as 0 and infinities as 65,504",
    "switch",
    False,
    help="Else a dump that holds such values is refused.",
)
#: what the page asks for
FIELDS = (DATA, COMPARED, QUANTIZER, PARAMETERS, SIDE, LAYER, HEAD, FIRST, ERROR, HEADS, REPLACE)
#: room for the legend of the bits, which takes several lines on a phone
LEGEND_PX = 60
_WAIT = "Quantising every layer; on a new installation a quantizer compiles first, for up to a minute"


@dataclass(frozen=True)
class Asked:
    """A dump by its hash, a quantizer by its full name, and what of it is looked at."""

    sha256: str
    quantizer: str
    how: How
    side: Any = "key"
    layer: int = 0
    head: int = 0
    first: int = 0
    error: str = "sqnr_db"


def render(bench: Bench) -> None:
    """Draw the page."""
    values = dict(bench.values)
    st.title("Lab", anchor=False)
    st.caption("What does a quantizer really store for these keys and values, and what does it do to them?")
    places = st.columns(2)
    with places[0]:
        widgets.draw(DATA)
        load_dump()
    with places[1]:
        widgets.draw(COMPARED)
        with st.expander("How the dump is read"):
            for field in (HEADS, REPLACE):
                widgets.draw(field)
    with widgets.said():
        held, address = dump_of(values[DATA.key]), state.address(PAGE, values)
        show_data(held)
        names = tuple(dict.fromkeys(quantizers.parse(name).name for name in compared_of(values[COMPARED.key])))
        if names:
            show_compared(values[DATA.key], held.sha256, names, how_of(values), address)
    st.subheader("One of them, closely", anchor=False)
    thirds = st.columns(3)
    one = closely(values)
    named = replace(QUANTIZER, placeholder=f"{one}, {QUANTIZER.placeholder}")
    for i, field in enumerate((named, SIDE, LAYER, PARAMETERS, ERROR, HEAD, FIRST)):
        with thirds[i % 3]:
            widgets.draw(field)
            if field is PARAMETERS:
                st.caption(widgets.escaped(f"Defaults: {request.family_defaults(one.partition(':')[0])}"))
    with widgets.said():
        asked = of(values, held)
        show_measured(values[DATA.key], asked, address)
        show_view(values[DATA.key], asked, address)


def how_of(values: Mapping[str, Any]) -> How:
    """How the fields have the dump read."""
    return How(values[HEADS.key], "replace" if values[REPLACE.key] else "raise")


#: headings of the table of compared quantizers, and the units of its columns
_COLUMNS = {
    "quantizer": "quantizer",
    "stored_bits": "stored bits",
    "effective_bits": "effective bits (paper)",
    "key_sqnr_db": "SQNR of keys (dB)",
    "value_sqnr_db": "SQNR of values (dB)",
    "max_abs_error": "largest error",
    "output_error": "attention error (%)",
}


@st.fragment(parallel=True)
def show_compared(name: str, sha256: str, names: tuple[str, ...], how: How, address: str) -> None:
    """What each quantizer does to the dump, and a button that takes some of them into the tray."""
    with widgets.said():
        held, found = dump_of(name), {}
        bar = st.progress(0.0, text=_WAIT) if len(names) > 1 else None
        for i, one in enumerate(names):
            if bar is not None:
                bar.progress(i / len(names), text=f"{one}: {_WAIT}")
            found[one] = cached_measured(held, Asked(sha256, one, how))
        if bar is not None:
            bar.empty()
        table = measure_view.compared(found)
        shown = table.assign(output_error=100 * table["output_error"])[list(_COLUMNS)].rename(columns=_COLUMNS)
        event: Any = st.dataframe(
            shown.round(4), hide_index=True, key="lab-compared", on_select="rerun", selection_mode="multi-row"
        )
        picked = [names[at] for at in event["selection"]["rows"]] or list(names)
        content = measure_view.measurement_of(held, found)
        file = f"{PurePosixPath(held.name).stem}.lab.json"
        with st.container(horizontal=True):
            st.button(
                f"Add {', '.join(picked)} to the tray",
                on_click=partial(_add, file, content, picked),
                key="lab add",
                help="As the current design, with bits and errors as measured here.",
            )
            st.download_button(
                "Measurement file",
                partial(measurements.to_json, content),
                file,
                "application/json",
                on_click="ignore",
                help="What commands take as --measurements.",
                key="lab file",
            )
        if table["output_error"].notna().any():
            made = MadeBy(
                "\n".join(command(held, Asked(sha256, one, how)) for one in names),
                "\n\n".join(python(held, Asked(sha256, one, how), "measured") for one in names),
                address,
            )
            chart = charts.compared(table, f"Error over bits, {held.name}")
            beside.show("compared", chart, lambda: table, made, drawn=figure.fitted(chart, 300))


def _add(file: str, content: MeasurementFile, picked: Sequence[str]) -> None:
    """A design a quantizer, as the current one, with what was measured here."""
    text = hashlib.sha256(measurements.to_json(content)).hexdigest()
    try:
        label = uploads.keep(Upload("measurement", file, text, content))
    except InputError as error:
        st.toast(widgets.escaped(error.lines()[0]))
        return
    sidebar.add_all(designs_of(tray.values_of(state.tray().current, shared.DESIGN), picked, label))


def designs_of(values: Mapping[str, Any], picked: Sequence[str], label: str) -> list[tray.Design]:
    """A design a quantizer, else as `values`, with the measurements of that name."""
    plain = {**values, "value_quantizer": None, "value_parameters": "", "measurements": label}
    split = (name.partition(":") for name in picked)
    each = ({**plain, "quantizer": family, "parameters": parameters} for family, _, parameters in split)
    return [tray.design_of(one, shared.DESIGN) for one in each]


def of(values: dict[str, Any], held: Held) -> Asked:
    """What the fields ask of a dump. Raises InputError."""
    text, name = values[PARAMETERS.key].strip(), closely(values)
    spec = quantizers.parse(f"{name.partition(':')[0]}:{text}" if text else name)
    return Asked(
        held.sha256,
        spec.name,
        how_of(values),
        values[SIDE.key],
        values[LAYER.key],
        values[HEAD.key],
        values[FIRST.key],
        values[ERROR.key],
    )


@st.cache_resource(show_spinner=False)
def sample() -> Held:
    """The sample, read once a process."""
    return measure_view.sample()


def dump_of(name: str) -> Held:
    """The dump of that name."""
    return sample() if name == SAMPLE else _loaded()[name]


def load_dump() -> None:
    """Where a dump is given; one at a time is held, and Streamlit forgets the file at once."""
    with st.expander("Load a KV dump"):
        tries = st.session_state.get(_TRIES, 0)
        file = st.file_uploader(
            "KV dump, .npz or .safetensors",
            type=[ending[1:] for ending in ENDINGS],
            key=f"load dump {tries}",
            help="Tensors layer0.key, layer0.value, ...: [batch, heads, tokens, head_dim] or [tokens, channels], in "
            "FP16, BF16 or FP32. It stays in this session on this machine.",
        )
        st.caption("A loaded dump is part of this session only: the address names it, and does not carry it.")
        if file is not None:
            try:
                _loaded().clear()  # make room first
                label, found = read_dump(file.name, file.getbuffer())
                st.session_state[state.DUMP] = dumps = {label: found}
                threading.Thread(target=free_when_left, args=(dumps, uploads.session_lives()), daemon=True).start()
                del found
                state.put({DATA.key: label})
                st.session_state[_SAID] = []
            except DseError as error:
                state.put({DATA.key: SAMPLE})
                st.session_state[_SAID] = error.lines()
            except OSError as error:  # no room to put the bytes
                state.put({DATA.key: SAMPLE})
                st.session_state[_SAID] = [f"cannot be read: {(error.strerror or type(error).__name__).lower()}"]
            uploads.let_go(file)
            st.session_state[_TRIES] = tries + 1  # another key: an empty uploader
            file = None
            free_memory()
            st.rerun()
        if serves_this_machine_alone():
            st.text_input(
                PATH.label,
                key=_PATH,
                placeholder=PATH.placeholder,
                help=PATH.help,
                max_chars=4000,
                on_change=_take_path,
            )
        widgets.lines(st.session_state.get(_SAID, []))


def serves_this_machine_alone() -> bool:
    """Whether nobody else reaches the explorer: who could would read files of this machine by their paths."""
    return st.get_option("server.address") in ("127.0.0.1", "localhost", "::1")


def _take_path() -> None:
    """Hold the dump that lies at the path of the field."""
    path = Path(st.session_state[_PATH].strip())
    if not str(path).strip(".") or not serves_this_machine_alone():
        return
    try:
        if path.suffix.lower() not in ENDINGS:
            raise InputError(f"{show(str(path))}: must end in {' or '.join(ENDINGS)}")
        if not path.is_file():
            raise InputError(f"{show(str(path))}: is no file of this machine: give the whole path")
        name = clean(path.name, _MAX_NAME)
        held = measure_view.hold(path, name, PATH_BYTES, on_disk=True)
    except (DseError, OSError) as error:
        lines = (
            error.lines() if isinstance(error, DseError) else [f"{show(str(path))}: cannot be read: {error.strerror}"]
        )
        st.session_state[_SAID] = lines
        return
    st.session_state[state.DUMP] = {name + _MARK: held}
    st.session_state[_SAID] = []
    state.put({DATA.key: name + _MARK})


def read_dump(file_name: str, content: Any) -> tuple[str, Held]:
    """A dump from the bytes of a file: its name in the list, and itself. Raises InputError and LimitError.

    The name is only shown, never used as a path; the bytes lie on disk while they are read.
    """
    last = PurePosixPath(file_name.replace("\\", "/"))
    name, ending = clean(last.name, _MAX_NAME) or "file", last.suffix.lower()
    if ending not in ENDINGS:
        raise InputError(f"{name}: must end in {' or '.join(ENDINGS)}")
    with tempfile.TemporaryDirectory(prefix="dse-dump-") as folder:
        path = Path(folder) / f"dump{ending}"
        path.write_bytes(content)
        return name + _MARK, measure_view.hold(path, name)


def free_when_left(dumps: dict[str, Held], lives: Callable[[], bool], look_s: float = 5.0) -> None:
    """Empty `dumps` when the session has been away for longer than it may come back; ends when they are gone.

    Streamlit keeps what a session that was left held until others come and go.
    """
    away_s = 0.0
    while dumps and away_s <= RETURN_S:
        time.sleep(look_s)
        away_s = 0.0 if lives() else away_s + look_s
    dumps.clear()
    free_memory()


def free_memory() -> None:
    """Return freed memory to the operating system, which the C library keeps for later by itself (malloc_trim)."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU C library
    if trim is not None:
        trim(0)


def show_data(held: Held) -> None:
    """What the dump is of."""
    if held.about.synthetic:
        st.warning("Synthetic data: no language model's keys and values. Load a dump to see your own.", icon="⚠️")
    words = [held.name, held.about.model, f"{len(held.layers):,} layers", held.about.note]
    st.text(", ".join(word for word in words if word))


@st.fragment(parallel=True)
def show_measured(name: str, asked: Asked, address: str) -> None:
    """Bits by part and errors by layer and head, of all layers.

    The dump by its name: a fragment's arguments stay in memory until the session's next run.
    """
    with widgets.said(), st.spinner(_WAIT):
        held = dump_of(name)
        everywhere = Asked(asked.sha256, asked.quantizer, asked.how)
        found = cached_measured(held, everywhere)
        made = MadeBy(command(held, asked), python(held, asked, "measured"), address)
        show_numbers(found, asked)
        source = (found.thresholds,) if found.thresholds else ()
        chart = charts.bits(found.ledger, "Bits an element as stored", source)
        beside.show("bits", chart, lambda: found.ledger, made, figure.tall(chart, LEGEND_PX))
        own = found.errors[found.errors["side"] == asked.side]
        error, unit, more = ERRORS[asked.error]
        if own[asked.error].notna().any():
            title = f"{error[0].upper()}{error[1:]} by layer and head, {asked.side}s"
            notes = (f"{'More' if more else 'Less'} is better.", *([found.queries] if asked.error in ATTENTION else []))
            chart = charts.heads(own, asked.error, error, unit, title, notes)
            beside.show("errors", chart, lambda: found.errors, made, figure.map_of(chart))
        else:
            st.info("This error is not there: attention needs keys and values, and a ratio needs something to divide.")


def show_numbers(found: Measured, asked: Asked) -> None:
    """The numbers of the whole dump."""
    bits = found.ledger.set_index("quantizer").loc[f"{asked.side}s"]
    whole = found.errors[found.errors["layer"].isna() & (found.errors["side"] == asked.side)].iloc[0]
    shown = {
        f"Stored, {asked.side}s": (bits["stored_bits"], "bit", "Bits an element of the packed bytes."),
        "Effective bits (paper)": (bits["effective_bits"], "bit", "Without counts, padding and tokens kept in FP16."),
        "By formula, both": (found.nominal_bits, "bit", "Stored bits by the closed form with nominal shares."),
        "Signal to noise": (whole["sqnr_db"], "dB", "Of all layers and heads together."),
        "Largest error": (whole["max_abs_error"], "1", "Of any element."),
    }
    with st.container(horizontal=True):
        for label, (number, unit, meaning) in shown.items():
            text = "-" if pd.isna(number) else present.number(float(number), unit)
            st.metric(label, text, border=True, help=meaning)


@st.fragment(parallel=True)
def show_view(name: str, asked: Asked, address: str) -> None:
    """One head: its tokens before, drawn at once; after, their difference, and its histogram as the quantizer ends."""
    place = f"layer {asked.layer:,}, head {asked.head:,}, {asked.side}s"
    with widgets.said():
        held = dump_of(name)
        made = MadeBy(command(held, asked), python(held, asked, "view"), address)
        before = measure_view.before(held, quantizers.parse(asked.quantizer), *_place(asked))[:, :MAX_CHANNELS]
        colours = charts.scale("value", "", before)

        def draw(when: str, part: Any, what: str, colours: Any) -> None:
            chart = charts.values(part, asked.first, what, colours, f"{when[0].upper()}{when[1:]}, {place}")
            beside.show(f"map-{when}", chart, partial(frame, part, asked.first), made, figure.map_of(chart))

        draw("before", before, "value", colours)
        with st.spinner(_WAIT):
            found = cached_view(held, replace(asked, error=ERROR.default))
        last = asked.first + len(before) - 1
        st.caption(
            f"Tokens {asked.first:,} to {last:,} of {found.n_tokens:,}; colours of both maps span the values before."
        )
        after = found.after[:, :MAX_CHANNELS]
        draw("after", after, "value", colours)
        off = abs(after - before)
        draw("error", off, "absolute error", charts.scale("absolute error", "", off, 0))
        chart = charts.histogram(found.histogram, found.marks, f"Values before and after, {place}")
        beside.show("histogram", chart, lambda: found.histogram, made, figure.fitted(chart))


def _place(asked: Asked) -> tuple[How, int, Any, int, int, int]:
    """What of a dump is looked at closely, as `dse.measure.lab` takes it."""
    return asked.how, asked.layer, asked.side, asked.head, asked.first, MAX_TOKENS


def frame(part: Any, first_token: int) -> pd.DataFrame:
    """A map as a table: a row a token, a column a channel."""
    found = pd.DataFrame(part, columns=[f"channel_{i}" for i in range(part.shape[1])])
    found.insert(0, "token", range(first_token, first_token + len(found)))
    return found


_HASHES: dict[str | type[Any], Callable[[Any], Any]] = {Asked: repr}


@st.cache_data(max_entries=32, ttl="1h", show_spinner=False, hash_funcs=_HASHES)
def cached_measured(_held: Held, asked: Asked) -> Measured:
    """The quantizer on the whole dump. Raises DseError."""
    return measure_view.measured(_held, quantizers.parse(asked.quantizer), asked.how)


@st.cache_data(max_entries=32, ttl="1h", show_spinner=False, hash_funcs=_HASHES)
def cached_view(_held: Held, asked: Asked) -> View:
    """One head of the dump. Raises DseError."""
    return measure_view.view(_held, quantizers.parse(asked.quantizer), *_place(asked))


def command(held: Held, asked: Asked) -> str:
    """The command line that writes the same tables."""
    words = ["dse", "lab", *([] if held.thresholds is not None else [held.name]), "--method", asked.quantizer]
    words += ["--layer", str(asked.layer), "--side", asked.side, "--head", str(asked.head)]
    words += ["--first", str(asked.first), "--error", asked.error]
    words += ["--heads", str(asked.how.n_heads)] if asked.how.n_heads else []
    words += ["--nonfinite", asked.how.nonfinite] if asked.how.nonfinite != "raise" else []
    return shlex.join([*words, "--out", "lab"])


def python(held: Held, asked: Asked, what: str) -> str:
    """The same in Python: a script that ends with `result`."""
    place = f"{asked.layer}, {asked.side!r}, {asked.head}, {asked.first}, {MAX_TOKENS}"
    dump = "measure_view.sample()" if held.thresholds is not None else f"measure_view.hold({held.name!r})"
    return "\n".join(
        [
            "from dse import quantizers\nfrom dse.measure import lab as measure_view",
            "",
            f"dump = {dump}",
            f"spec = quantizers.parse({asked.quantizer!r})",
            f"how = measure_view.{asked.how!r}",
            "result = measure_view.measured(dump, spec, how)"
            if what == "measured"
            else f"result = measure_view.view(dump, spec, how, {place})",
        ]
    )
