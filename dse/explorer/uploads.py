"""Devices, models, plans and measurements of the reader's own: in memory, never on disk; the URL only names them.

Traces and tables, which may be large, are on disk while they are read.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import streamlit as st
from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx

from dse import quantizers
from dse.core import files, specfile
from dse.core.errors import MAX_LINE, DseError, InputError, LimitError, clean
from dse.explorer import kept, memory, state, tray
from dse.explorer.fields import MAX_TEXT, SEPARATOR
from dse.quantizers import QuantizerSpec, layered
from dse.report import listing
from dse.report.listing import Checked
from dse.specs import catalog, measurements
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.measurements import MeasurementFile

#: files that a session holds at once
MAX_UPLOADS = 8
#: the measurements that ship, among the names of loaded ones
SHIPPED = "shipped"
_MAX_NAME = 60
_NOT_TIMED = "no measured kernels in it: its data sheet stands in (estimated); stacks_of = 'h100' takes those of H100"


class FileText(NamedTuple):
    """Name and text of a loaded file; empty for what ships."""

    name: str = ""
    text: str = ""


NO_FILE = FileText()


@dataclass(frozen=True)
class Upload:
    """A checked file: kind "device", "model", "plan" or "measurement", the name for messages, and its text.

    Of measurements, which take long to check, what was read stands in place of the text.
    """

    kind: str
    name: str
    text: str
    measured: MeasurementFile | None = field(default=None, repr=False, compare=False)

    def document(self) -> specfile.Document:
        """Its document, parsed anew. Raises InputError."""
        return specfile.parse(self.name, self.text, self.name.lower().endswith(".json"))


def read(file_name: str, content: bytes) -> tuple[Upload, Checked]:
    """Check a file as `dse check` does: the file, and what it holds. Raises InputError or SpecError.

    The name is only shown, never used as a path.
    """
    name = clean(PurePosixPath(file_name.replace("\\", "/")).name, _MAX_NAME) or "file"
    is_json = name.lower().endswith(".json")
    most = specfile.MAX_JSON_BYTES if is_json else specfile.MAX_TOML_BYTES
    if len(content) > most:
        raise InputError(f"{name}: has {len(content):,} bytes: a spec file has at most {most:,}")
    if not content.strip():
        raise InputError(f"{name}: is empty: `dse show a100-80gb --toml` prints a file to start from")
    text = specfile.decoded(name, content)
    document = specfile.parse(name, text, is_json)
    if measurements.looks_like_measurement(document.data):
        measured = measurements.of(document)
        upload = Upload("measurement", name, hashlib.sha256(content).hexdigest(), measured)
        methods = ", ".join(method.quantizer for method in measured.methods)
        return upload, Checked(clean(f"measurements on {measured.data.name}: {methods}", MAX_LINE), [])
    kind, summary = listing.checked(document, _model_from)
    if kind == "device" and not catalog.device_from(document).stacks:
        summary = summary._replace(warnings=(*summary.warnings, _NOT_TIMED))
    return Upload(kind, name, text), summary


def keep(upload: Upload) -> str:
    """Put an upload into the session's lists, under the name returned; the oldest that no field chose makes room."""
    uploads = state.session().uploads
    label = kept.label(upload, uploads)
    uploads.pop(label, None)
    chosen = state.chosen()
    unused = [name for name in uploads if name not in chosen]
    for name in unused[: max(len(uploads) + 1 - MAX_UPLOADS, 0)]:
        del uploads[name]
    if len(uploads) >= MAX_UPLOADS:
        raise InputError(f"{upload.name}: {MAX_UPLOADS} files are in use: choose others in their place first")
    uploads[label] = upload
    kept.remember(upload)
    return label


def restore() -> None:
    """Put the files that the address names, loaded before a reload or in another tab, into this session's lists."""
    for upload in state.session().uploads.values():
        kept.remember(upload)  # in use
    held = set(state.uploaded().values())
    for key in st.query_params:
        for text in st.query_params.get_all(key):
            for part in tray.values_in(text) if key == state.DESIGNS else text[:MAX_TEXT].split(SEPARATOR):
                if part not in held and (upload := kept.file_of(part)) is not None:
                    with contextlib.suppress(InputError):  # the page will say that it is missing
                        keep(upload)


def take(
    key: str,
    label: str,
    types: Sequence[str],
    tip: str,
    keep_file: Callable[[Any], object],
    *,
    max_mib: int | None = None,
) -> list[str]:
    """A place for a file, which `keep_file` takes; the place is empty again then, and Streamlit forgets the file.

    Returns what was wrong with the last file, in lines to be drawn where the caller has room.
    """
    tries, said = f"{key} tries", f"{key} said"
    n = st.session_state.get(tries, 0)
    file = st.file_uploader(label, type=list(types), key=f"{key} {n}", help=tip, max_upload_size=max_mib)
    if file is not None:
        st.session_state[said] = []
        try:
            keep_file(file)
        except DseError as error:
            st.session_state[said] = error.lines()
        let_go(file)
        file = None
        memory.free()
        st.session_state[tries] = n + 1  # another key: an empty place
        st.rerun()
    wrong: list[str] = st.session_state.get(said, [])
    return wrong


@contextlib.contextmanager
def on_disk(name: str, content: bytes) -> Iterator[str]:
    """The path of a file with that content while it is read, by what takes a path; errors call it by its name."""
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        files.write(path, content)
        try:
            yield str(path)
        except (InputError, LimitError) as error:
            raise type(error)(str(error).replace(str(path), name)) from None


def let_go(file: Any) -> None:
    """Free the memory of a file that a `st.file_uploader` gave; Streamlit would keep it until the session ends."""
    context = get_script_run_ctx()
    manager: Any = context.uploaded_file_mgr if context is not None else None
    if context is not None and hasattr(manager, "remove_file"):  # a method of the manager in memory only
        manager.remove_file(context.session_id, file.file_id)


def session_lives() -> Callable[[], bool]:
    """Whether the browser of this session is still connected."""
    context = get_script_run_ctx()
    if context is None or not runtime.exists():
        return lambda: True
    return partial(runtime.get_instance().is_active_session, context.session_id)


def names(kind: str) -> list[str]:
    """Files of a kind that the session holds."""
    return [label for label, upload in _held().items() if upload.kind == kind]


def text_of(label: str) -> FileText:
    """Name and text of an upload for a cache key; empty for a shipped name."""
    upload = _held().get(label)
    return FileText(upload.name, upload.text) if upload else NO_FILE


def measurement(label: str) -> Upload | None:
    """The loaded measurements of that name; None for those that ship. Raises InputError."""
    return _held().get(label) if label != SHIPPED else None


def device(label: str, edits: str = "", file: FileText | None = None) -> HardwareSpec:
    """A shipped or uploaded device with its changed numbers. Raises InputError or SpecError."""
    name, text = text_of(label) if file is None else file
    if not text:
        return catalog.device(f"{label}:{edits}" if edits.strip() else label)
    document = Upload("device", name, text).document()
    return catalog.changed(document, name, edits) if edits.strip() else catalog.device_from(document)


def model(label: str, file: FileText | None = None) -> ModelSpec:
    """A shipped or uploaded model. Raises InputError or SpecError."""
    name, text = text_of(label) if file is None else file
    return _model_from(Upload("model", name, text).document()) if text else catalog.model(label)


def _model_from(document: specfile.Document) -> ModelSpec:
    """The model of an upload, which has no folder to be named for: a config.json is "config"."""
    spec = catalog.model_from(document)
    stem = PurePosixPath(document.path).stem
    return spec.model_copy(update={"name": stem, "title": stem}) if stem == "config" else spec


def quantizer(text: str, file: FileText) -> QuantizerSpec:
    """A quantizer as the command line takes it, or the uploaded plan by layer in `file`. Raises InputError."""
    return layered.of(Upload("plan", *file).document(), quantizers.parse) if file.text else quantizers.parse(text)


def _held() -> dict[str, Any]:
    try:
        return state.session().uploads
    except RuntimeError as error:  # no session: outside the app
        raise InputError("no session holds files") from error
