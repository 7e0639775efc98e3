"""Find a device or a language model by name or by file: shipped data, the user's own, Hugging Face configs."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import hwspecs
from dse.core import files, specfile
from dse.core.errors import InputError, did_you_mean, show
from dse.core.units import BETWEEN
from dse.specs import device_names, model_file, model_names, weight_names
from dse.specs.device_and_model import HardwareSpec, ModelFile, ModelSpec, flat, load
from dse.specs.implementation import ANY_GPU, ENDS, GENERIC, Implementation, unknown
from dse.specs.shared_errors import SharedErrors
from dse.specs.stack import KINDS, BackendsSpec, Benchmarked, Kind, ServerSpec, UnmeasuredKernels

_DEVICES = Path(hwspecs.__file__).parent / "devices"
_CALIBRATIONS = Path(hwspecs.__file__).parent / "calibrations"
_MODELS = Path(hwspecs.__file__).parent / "models"
_BACKENDS = Path(hwspecs.__file__).parent / "backends"
_STACKS = Path(hwspecs.__file__).parent / "stacks"
_BENCHMARKED = Path(hwspecs.__file__).parent / "benchmarked"
_SHARED_ERRORS = Path(hwspecs.__file__).parent / "shared_errors.toml"
_IMPLEMENTATIONS = Path(hwspecs.__file__).parent / "implementations"
#: the memory of a shipped device in GB or GiB, which people write alike
_MEMORY = re.compile(r"^memory_capacity = \{ value = (\d+)", re.MULTILINE)
#: a name on a hub of models, without and with the type of a GGUF file
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*\w")
_ASKED = re.compile(rf"{_REPOSITORY.pattern}(:\w+)?")
_ALIASES = re.compile(r"^aliases = .*$", re.MULTILINE)


@cache
def device_files() -> dict[str, Path]:
    """Shipped device files by lower-case name."""
    return {path.stem.lower(): path for path in sorted(_DEVICES.glob("*.toml"))}


def calibration_file(device: str) -> Path:
    """Where the fitted numbers of a shipped device lie, or would."""
    return _CALIBRATIONS / f"{device.lower()}.toml"


def device_text(path: Path) -> str:
    """A shipped device's data sheet and, after it, what was fitted: one device file."""
    fitted = calibration_file(path.stem)
    parts = [path, fitted] if fitted.is_file() else [path]
    return "\n".join(files.read_bytes(part).decode() for part in parts)


@cache
def model_files() -> dict[str, Path]:
    """Shipped model files by lower-case name."""
    return {path.stem.lower(): path for path in sorted(_MODELS.glob("*.toml"))}


@cache
def device_aliases() -> device_names.Names:
    """Names of shipped devices, each with the lower-case name of its file; with the memory behind too: MI300X 192GB."""
    named = _with_aliases(device_files())
    known = {device_names.plain(name) for name, _ in named}
    sized = [(f"{name}-{_memory_gb(device_files()[device])}gb", device) for name, device in named if name[-2:] != "gb"]
    return (*(item for item in sized if device_names.plain(item[0]) not in known), *named)


@cache
def model_aliases() -> device_names.Names:
    """Names of shipped models, each with the lower-case name of its file."""
    return _with_aliases(model_files())


def _memory_gb(path: Path) -> str:
    line = _MEMORY.search(files.read_bytes(path).decode())
    return line[1] if line else ""


def _with_aliases(paths: Mapping[str, Path]) -> device_names.Names:
    """Other names first, read from the one line that has them: a hundred files parsed whole take 0.2 s."""
    aliases: list[tuple[str, str]] = []
    for name, path in paths.items():
        if line := _ALIASES.search(files.read_bytes(path).decode()):
            aliases += [(alias, name) for alias in tomllib.loads(line[0])["aliases"]]
    return (*aliases, *((name, name) for name in paths))


@cache
def servers() -> Mapping[str, ServerSpec]:
    """Serving software that was measured whole, by name; each file is read when it is asked for."""
    return _Servers()


class _Servers(Mapping[str, ServerSpec]):
    def __init__(self) -> None:
        self._files = {path.stem: path for path in sorted(_STACKS.glob("*.toml"))}
        self._read: dict[str, ServerSpec] = {}

    def __getitem__(self, name: str) -> ServerSpec:
        if name not in self._read:
            self._read[name] = load(specfile.read(self._files[name]), ServerSpec)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@cache
def backends() -> Mapping[str, BackendsSpec]:
    """Programs whose kernels were measured across devices, by name."""
    return {path.stem: load(specfile.read(path), BackendsSpec) for path in sorted(_BACKENDS.glob("*.toml"))}


@cache
def benchmarked(stack: str) -> Mapping[Kind, Benchmarked]:
    """Read what public benchmarks say of releases of a serving software, by kind of models."""
    path = _BENCHMARKED / f"{stack}.toml"
    if not path.is_file():
        return {}
    data = specfile.read(path).data
    return {kind: load(specfile.Document(str(path), data[kind]), Benchmarked) for kind in KINDS if kind in data}


@cache
def unmeasured_kernels() -> UnmeasuredKernels:
    """Read what is taken of kernels that no kernel benchmark has."""
    kernels: UnmeasuredKernels = load(specfile.read(_BENCHMARKED / "kernels.toml"), UnmeasuredKernels)
    return kernels


@cache
def shared_errors() -> SharedErrors:
    """Read what errors of two predicted servers have in common."""
    return load(specfile.read(_SHARED_ERRORS), SharedErrors)


def implementation_folder() -> Path:
    """Where the files of implementations lie."""
    return _IMPLEMENTATIONS


@cache
def implementations() -> tuple[Implementation, ...]:
    """All implementations of quantized caches, by name."""
    shipped = [load(specfile.read(path), Implementation) for path in sorted(_IMPLEMENTATIONS.glob("*.toml"))]
    return tuple(sorted(shipped, key=lambda impl: (impl.name, impl.methods)))


@cache
def generic_implementation() -> Implementation:
    """The implementation assumed for a quantizer without a known GPU kernel."""
    return next(impl for impl in implementations() if impl.name == GENERIC)


@cache
def implementations_of(family: str) -> dict[str, Implementation]:
    """The implementations of a quantizer family by name; the one that runs by default where several do comes first."""
    matching = [impl for impl in implementations() if family in impl.methods and impl.name != GENERIC]
    return {impl.name: impl for impl in sorted(matching, key=lambda impl: -impl.rank)}


def known_implementation(asked: str) -> None:
    """Raises InputError for a name that no implementation has, whatever method it is asked for."""
    name = asked.partition(":")[0].strip().lower()
    if name and name not in (known := {impl.name for impl in implementations()}):
        raise InputError(
            f"implementation = {show(name)}: is not known: {did_you_mean(name, known)} (`dse list implementations`)"
        )


def implementation(device: HardwareSpec, family: str, stack: str | None, asked: str) -> Implementation | None:
    """Choose the implementation of a quantizer family on a device: as asked, else as its file says, else of the stack.

    `asked` is "", NAME (any case), or one of both with `:slowest`, `:fastest` (all numbers at that end of their ranges)
    or `:FIELD=VALUE,...` behind. On a GPU of which no kernel is known the generic one; None on what is no GPU. Raises
    InputError for an implementation of other methods, or for other GPUs.
    """
    name, _, changes = asked.partition(":")
    name = name.strip().lower() or device.implementations.get(family, "").lower()
    is_gpu = (device.architecture or ANY_GPU).startswith(ANY_GPU)
    if name == GENERIC:
        return _with_changes(generic_implementation(), changes)
    known = implementations_of(family)
    usable = {impl.name: impl for impl in known.values() if impl.runs_on(device.architecture)}
    if name and name not in known:
        runs = [method for impl in implementations() if impl.name == name for method in impl.methods]
        of = f"{name} runs {', '.join(runs)}; {family}" if runs else family
        raise InputError(unknown(name, list(known), of))
    if name and name not in usable:
        entry = known[name]
        raise InputError(
            f"implementation = {show(name)}: has kernels for {', '.join(entry.architectures)}, not for {device.name} "
            f"({device.architecture or 'no architecture in its file'}); {entry.elsewhere or 'nothing else is known'}"
        )
    # without a rank it is code of its stack alone, or as asked by name
    offered = [impl for impl in usable.values() if impl.rank or (stack is not None and impl.stack == stack)]
    ranked = sorted(offered, key=lambda c: (stack is not None and c.stack == stack, c.rank), reverse=True)
    chosen = usable.get(name) or (ranked[0] if ranked else generic_implementation() if is_gpu else None)
    return chosen and _with_changes(chosen, changes)


def _with_changes(impl: Implementation, changes: str) -> Implementation:
    if changes.strip() in ENDS:
        return impl.at(changes.strip())
    changed_fields: set[str] = set()
    for change in filter(None, changes.split(",")):
        field, _, value = (part.strip() for part in change.partition("="))
        if field in changed_fields:
            raise InputError(f"implementation: {field} = {show(value)}: {field} is given twice")
        changed_fields.add(field)
        if field not in impl.numbers():
            numbers = ", ".join(impl.numbers()) or "no number of its own"
            raise InputError(
                f"implementation = {show(impl.name + ':' + change)}: {impl.name} has {numbers}, or {ENDS[0]}, {ENDS[1]}"
            )
        try:
            number = float(value)
        except ValueError:
            raise InputError(f"implementation: {field} = {show(value)}: must be a number, such as 8") from None
        try:
            impl = impl.with_number(field, number)
        except ValueError as error:
            raise InputError(f"implementation: {field} = {show(value)}: {error}") from None
    return impl


def _is_path(name: str) -> bool:
    return name.lower().endswith((".toml", ".json")) or os.sep in name or os.path.exists(name)


def _file_like(name: str) -> str:
    """The existing file that a mistyped path means, but for capitals and a missing ending; else ""."""
    folder, wanted = os.path.split(name)
    if not wanted or os.path.exists(name):
        return ""
    try:
        names = sorted(os.listdir(folder or "."))
    except (OSError, ValueError):
        return ""
    meant = [f"{wanted}{ending}".lower() for ending in ("", ".toml", ".json")]
    like = (file for file in names if file.lower() in meant and file.lower().endswith((".toml", ".json")))
    return next((os.path.join(folder, file) for file in like), "")


def _find_device(name: str) -> str | Path:
    shipped = device_files().get(name.strip().lower())
    if shipped:
        return shipped
    known = device_aliases()
    meant = None if os.path.isfile(name) else device_names.meant(name, known)
    if meant:
        return device_files()[meant]
    if here := _file_like(name):
        raise InputError(f"unknown device {show(name)}: did you mean the file {here}?")
    if (counted := device_names.counted(name)) and (nearest := device_names.meant(counted[1], known)):
        raise InputError(f"device = {show(name)}: is {counted[0]} devices: name {nearest}, with --tp where it is taken")
    if name and _is_path(name):
        return name
    raise InputError(f"unknown device {show(name)}: {device_names.near(name, known)}; or give the path of a file")


@cache
def shipped_device(path: Path) -> specfile.Document:
    """The document of a shipped device."""
    return specfile.parse(str(path), device_text(path))


@cache
def _shipped_device(path: Path) -> HardwareSpec:
    return device_from(shipped_device(path))


def device(name: str) -> HardwareSpec:
    """The device of that name, as people write it, or in that file; `NAME:FIELD=VALUE,...` changes numbers of it.

    A changed number is `assumed`, its source the text itself. Raises InputError or SpecError.
    """
    base, colon, changes = name.partition(":")
    if colon and changes and not os.path.exists(name):
        return _changed(base, changes)
    source = _find_device(name)
    return _shipped_device(source) if isinstance(source, Path) else device_from(specfile.read(source))


def _changed(base: str, changes: str) -> HardwareSpec:
    source = _find_device(base)
    return changed(shipped_device(source) if isinstance(source, Path) else specfile.read(source), base, changes)


def changed(document: specfile.Document, base: str, changes: str) -> HardwareSpec:
    """A device with numbers given on the spot, in the short form of files: usable_frac=0.9, memory_bandwidth=3 TB/s.

    `base` names the document in messages and sources. Raises InputError or SpecError.
    """
    data, parts = dict(flat(document.data)), []
    for change in BETWEEN.split(changes):
        field, equals, value = (part.strip() for part in change.partition("="))
        if not equals or not value:
            raise InputError(
                f"device = {show(base + ':' + changes)}: {show(change)} must be FIELD=VALUE: see `dse show`"
            )
        data[field] = value
        parts.append(re.sub(r"[^A-Za-z0-9._-]+", "", field + value))
    data["name"] = "+".join([str(data.get("name", base)), *parts])[:64]
    spec = device_from(specfile.Document(f"{base}:{changes}", data))
    same = {name for name, value in data.items() if value is document.data.get(name)}
    if "memory_capacity" in same or "reported_memory" not in same:
        return spec
    fields = {name: getattr(spec, name) for name in type(spec).model_fields}
    return device_from(document).model_copy(update=fields)  # what the driver reports follows


def device_from(document: specfile.Document) -> HardwareSpec:
    """The device that a file describes."""
    spec: HardwareSpec = load(document, HardwareSpec)
    if spec.stacks_of is None:
        return spec
    other = device_files().get(spec.stacks_of.lower())
    stacks = load(shipped_device(other), HardwareSpec).stacks if other else {}
    if not stacks:
        known = ", ".join(name for name, path in device_files().items() if "stacks" in shipped_device(path).data)
        raise InputError(
            f"{document.where(('stacks_of',))}: stacks_of = {show(spec.stacks_of)}: must be one of {known}"
        )
    return spec.model_copy(update={"stacks": stacks})


@cache
def _shipped_model(path: Path) -> ModelSpec:
    return _own_model(specfile.read(path))


def shipped_model_file(name: str) -> Path | None:
    """The shipped file of a model by its name, or by one that means it; None for a file."""
    match = _shipped_meaning(name)
    return match and match[0]


def _shipped_meaning(name: str) -> tuple[Path, str] | None:
    """The shipped file that a name means, and what is taken on top of its words."""
    files = model_files()
    if exact := files.get(name.strip().lower()):
        return exact, ""
    if os.path.exists(name) or name.lower().endswith((".toml", ".json")):
        return None
    names = model_aliases()
    if meant := model_names.meant(name, names):
        return files[meant], ""
    nearly = model_names.meant_but_for(name, names)
    return (files[nearly[0]], nearly[1]) if nearly else None


def model(name: str) -> ModelSpec:
    """The model of that name, as people write it, or in that model file, config.json or directory with one.

    Its weights are as the name says, else as released. Raises InputError or SpecError.
    """
    if meaning := _shipped_meaning(name):
        path, taken = meaning
        return _as_named(_shipped_model(path), name, taken)
    if here := _file_like(name):
        raise InputError(f"unknown model {show(name)}: did you mean the file {here}?")
    if os.path.isdir(name):
        config = os.path.join(name, "config.json")
        if not os.path.isfile(config):
            raise InputError(f"model = {show(name)}: the directory has no config.json: name one that has, or a file")
        return model_from(_config_at(config))
    if name and (os.path.exists(name) or name.lower().endswith((".toml", ".json")) or name[0] in f"~.{os.sep}"):
        return model_from(_config_at(name))
    raise InputError(f"unknown model {show(name)}: {near_models(name)}")


def hub_name(model_spec: ModelSpec) -> str:
    """The name on a hub of the checkpoint of a model in its released format: as it was asked for, as its file has it,
    or the first in the sources of its numbers that means this model and format; of another checkpoint of this shape,
    asked for by an alias, as hwspecs/hubs.toml has it; "" where none is known."""
    published = model_spec.numbers.get("published_parameters")
    names = _REPOSITORY.findall(f"{model_spec.source} {published.source if published else ''}")
    found = model_spec.hub or next((name for name in names if _is_released(name, model_spec)), "")
    is_other = model_spec.alias and model_names.plain(found) != model_names.plain(model_spec.alias)
    return _hubs().get(model_names.plain(model_spec.alias), "") if is_other else found


@cache
def _hubs() -> dict[str, str]:
    """Names on a hub by the plain name of an alias."""
    named: dict[str, str] = specfile.read(Path(hwspecs.__file__).parent / "hubs.toml").data["hubs"]
    return {model_names.plain(alias): name for alias, name in named.items()}


def _is_released(name: str, model_spec: ModelSpec) -> bool:
    """Whether a name of a repository means a model in its released format."""
    path = shipped_model_file(name)
    is_same = path.stem == model_spec.name.lower() if path else model_spec.source.startswith(f"config.json of {name} ")
    said = weight_names.format_in(name)
    return is_same and (not said.name or weight_names.of_model(said, model_spec) == model_spec.released)


def near_models(name: str) -> str:
    """Words on the shipped models nearest to a name that none has."""
    if why := model_names.without_file(name):
        return why
    known, typed = dict(model_aliases()), name.rpartition("/")[2]
    spelled = (re.sub(r"[\s_-]+", by, typed).lower() for by in ("-", " ", ""))
    near = did_you_mean(next((word for word in spelled if any(k.startswith(word) for k in known)), typed), known)
    return f"{'see `dse list models`' if near.startswith('known') else near}; or give the path of a file"


def _as_named(model_spec: ModelSpec, name: str, taken: str) -> ModelSpec:
    """A shipped model with the weights that a name says; a note says what is taken on top of its words."""
    said = weight_names.format_in(name)
    notes = list(model_spec.notes)
    if taken:
        notes.append(f"{show(name)}: {taken}: taken as {model_spec.name}")
    if said.is_open:
        usual = weight_names.usual_file(model_spec)
        said = replace(said, name=usual, words="gguf")
        notes.append(f"{show(name)}: GGUF without its type: taken as {usual}, as llama.cpp does; else add it (:Q8_0)")
    change: dict[str, Any] = {}
    plain = re.sub(r"[\s._]+", "-", name.strip().lower().rpartition("/")[2])
    other = next((to for known, to in model_names.RELEASED_IN.items() if plain.startswith(known)), "")
    if other:
        change = {"released": other, "released_source": f"its config.json: {other}"}
        model_spec = model_spec.model_copy(update=change)
    if said.name:
        change = {"released": weight_names.of_model(said, model_spec), "released_source": f"the name: {said.words}"}
    if _ASKED.fullmatch(name):
        change["hub"] = name
    elif not taken and model_names.plain(name) != model_names.plain(model_spec.name):
        change["alias"] = name
    if len(notes) > len(model_spec.notes):
        change["notes"] = tuple(notes)
    return model_spec.model_copy(update=change) if change else model_spec


def _config_at(path: str) -> specfile.Document:
    from dse.specs.huggingface import released

    return released.read_config(path) if path.lower().endswith(".json") else specfile.read(path)


def model_from(document: specfile.Document) -> ModelSpec:
    """The model that a file describes: our own formats, or a Hugging Face config.json."""
    from dse.specs.huggingface import config

    if config.looks_like_config(document.data):
        return config.from_document(document)
    return _own_model(document)


def _own_model(document: specfile.Document) -> ModelSpec:
    """The model of a file in one of our own formats."""
    kind = model_file.CountedModelFile if model_file.looks_counted(document.data) else ModelFile
    spec: ModelSpec = load(document, kind).to_model()
    return spec


def looks_like_device(data: dict[str, object]) -> bool:
    """True for a device file, told from a model file by the keys only a device has."""
    return bool({"memory_capacity", "memory_bandwidth", "peak_flops"} & data.keys())
