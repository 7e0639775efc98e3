"""KV-cache types that a release of an engine runs: by architecture of the device and kind of attention of the model.

Tables of hwspecs/engines, one a release, read from the engine's code; each row names its file and lines.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import hwspecs
from dse.core import files
from dse.core.errors import InputError, show
from dse.specs.device_and_model import HardwareSpec, LayerKV, ModelSpec
from dse.specs.releases import NEWEST, release_of

_TABLES = Path(hwspecs.__file__).parent / "engines"
#: what an engine does with a type: takes it, refuses it, starts and fails, or may do either
RUNS, REFUSED, FAILS, DOUBTFUL = "runs", "refused", "fails", "doubtful"
#: engines by the stack whose kernels they are, as their names of types have them
ENGINES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "trtllm": "TensorRT-LLM",
    "llama.cpp": "llama.cpp",
    "lmdeploy": "LMDeploy",
}
#: the type that stores what the model computes with
AUTO = "auto"
#: the release of measurements that do not say it
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Support:
    """Whether a release runs a KV-cache type on an architecture for a kind of attention."""

    engine: str
    release: str
    #: of the engine, as its option takes it
    kv_dtype: str
    status: str
    #: the type that is stored, where it runs
    stored_as: str
    #: kernels that the engine chooses, first its choice
    backend: str
    why: str
    #: file and lines of the engine's code
    source: str

    @property
    def runs(self) -> bool:
        """Whether it may be recommended: what is doubtful may be, with a note."""
        return self.status in (RUNS, DOUBTFUL)

    def text(self) -> str:
        """The row in a line, for a reason or a note."""
        name = f"{self.engine} {self.release}"
        told = f": {self.why}" if self.why else ""
        if self.status == RUNS:
            return f"{name} runs it by {self.backend or 'its own kernels'}{told}"
        said = {REFUSED: "refuses it", FAILS: "takes it and fails as it starts", DOUBTFUL: "may run it"}[self.status]
        return f"{name} {said}{told}"


@cache
def releases() -> dict[str, dict[str, str]]:
    """Releases with a table, by stack, newest first, each with the name of its file."""
    tables: dict[str, dict[str, str]] = {}
    for path in _TABLES.glob("*.csv"):
        stack, _, release = path.stem.rpartition("-")
        tables.setdefault(stack, {})[release] = path.name
    return {
        stack: dict(sorted(known.items(), key=lambda item: release_of(item[0]), reverse=True))
        for stack, known in sorted(tables.items())
    }


def release_for(stack: str, asked: str) -> str | None:
    """The release whose table answers for the one asked for: the same, else the newest; None for other stacks."""
    known = releases().get(stack)
    return None if not known else asked if asked in known else next(iter(known))


@cache
def _rows(stack: str, release: str) -> Mapping[tuple[str, str, str], Support]:
    """Support by type, architecture and kind."""
    rows = {}
    text = files.read_bytes(_TABLES / releases()[stack][release]).decode()
    for row in csv.DictReader(io.StringIO(text, newline="")):
        entry = Support(
            engine=ENGINES.get(stack, stack),
            release=release,
            kv_dtype=row["kv_dtype"],
            status=row["status"],
            stored_as=row["stored_as"],
            backend=row["backend"],
            why=row["why"],
            source=row["file_line"],
        )
        for architecture in row["architectures"].split():
            for kind in row["kinds"].split():
                rows[row["kv_dtype"], architecture, kind] = entry
    return rows


@cache
def types(stack: str, release: str) -> tuple[str, ...]:
    """KV-cache types of a release's table."""
    return tuple(dict.fromkeys(name for name, _, _ in _rows(stack, release)))


@cache
def every() -> tuple[tuple[str, str, Support], ...]:
    """All rows of the tables, each with its architectures and kinds of attention."""
    supported = []
    for stack, tables in releases().items():
        for release in tables:
            rows: dict[Support, tuple[dict[str, None], dict[str, None]]] = {}
            for (_, architecture, kind), row in _rows(stack, release).items():
                names, kinds_of_row = rows.setdefault(row, ({}, {}))
                names[architecture], kinds_of_row[kind] = None, None
            supported += [(" ".join(names), " ".join(of), row) for row, (names, of) in rows.items()]
    return tuple(supported)


@cache
def architectures(stack: str, release: str) -> frozenset[str]:
    """Architectures of a release's table."""
    return frozenset(name for _, name, _ in _rows(stack, release))


def kinds(model: ModelSpec, shows_images: bool = True) -> list[str]:
    """Kinds of attention of a model's layers, as the tables name them: grouped, hybrid (beside layers of a constant
    state), window or latent, each with the dimension of a head, and what not every kernel takes.

    An image mask counts only where images are shown.
    """
    with_heads = [layer for layer in model.layers if layer.key_dim and layer.stored and not layer.joined]
    if any(layer.tokens_per_entry > 1 for layer in model.layers):
        return ["compressed"]
    dims = sorted({layer.key_dim for layer in with_heads})
    has_windows = any(layer.window for layer in with_heads)
    if has_windows and not model.is_latent:
        sinks = "_sinks" if any(layer.sinks for layer in with_heads) else ""
        image = "_image" if model.image_mask and shows_images else ""
        if image:
            return ["window_256_image"]
        return [f"window_{'_'.join(map(str, dims))}{sinks}"]
    has_states = any(layer.state_bytes for layer in model.layers)
    return list(dict.fromkeys(_kind(layer, has_states) for layer in with_heads))


def _kind(layer: LayerKV, has_states: bool) -> str:
    if layer.is_latent:
        return f"{'sparse_' * bool(layer.read_limit_tokens)}latent_{layer.key_dim}"
    if layer.read_limit_tokens:
        return f"sparse_{layer.key_dim}"
    return f"{'hybrid' if has_states else 'grouped'}_{layer.key_dim}"


def support(
    stack: str, asked: str, device: HardwareSpec, model: ModelSpec, kv_dtype: str, shows_images: bool = True
) -> Support | None:
    """Whether the engine of a stack, in the release asked for or the newest, runs one of its KV-cache types on a
    device for a model; None where its table does not tell: another architecture or kind of attention, no table."""
    release = release_for(stack, asked)
    if release is None:
        return None
    rows = _rows(stack, release)
    entries = [rows.get((kv_dtype, device.architecture or "", kind)) for kind in kinds(model, shows_images)]
    known = [entry for entry in entries if entry]
    if not known or len(known) < len(entries):
        return None
    return min(known, key=lambda entry: (RUNS, DOUBTFUL, FAILS, REFUSED)[::-1].index(entry.status))


def release_named(text: str) -> str:
    """The release that a table names, UNKNOWN where it names none: a nightly build, a branch."""
    word = text.partition(" ")[0]
    return UNKNOWN if release_of(word) == NEWEST else word


def check_release(stack: str, asked: str) -> None:
    """Raises InputError for a release that looks like none."""
    if asked not in ("", UNKNOWN) and release_of(asked) == NEWEST:
        known = list(releases().get(stack, {}))
        told = f"use one as {stack}@{known[0]}, or {stack} for the newest" if known else f"leave it out: {stack}"
        raise InputError(f"stack = {show(f'{stack}@{asked}')}: is no release: {told}")
