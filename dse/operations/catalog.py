"""The catalog of known names and the user's own files: list, show, check, device add, model add, model export."""

from __future__ import annotations

import dataclasses
import os
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.core.errors import InputError, did_you_mean, show
from dse.core.field import SWITCH, WHOLE
from dse.operations.declare import SILENT, Console, Operation, argument, flag_name, operation, option, option_of
from dse.operations.shared import AssumesLike, Printed, json_option

if TYPE_CHECKING:
    from dse.specs.device_and_model import HardwareSpec, ModelSpec
    from dse.specs.device_file import Borrowed


def new_file(out: str, force: bool) -> Path:
    """The .toml file that a command is to write. Raises InputError where it exists, unless by `force`."""
    if not out.lower().endswith(".toml") or "\0" in out:
        raise InputError(f"out = {show(out)}: must end in .toml")
    path = Path(out)
    if path.is_dir():
        raise InputError(f"out = {show(out)}: is a directory: give a file in it")
    if not force and os.path.lexists(path):
        raise InputError(f"out = {show(out)}: exists: give another --out, or --force to replace it")
    return path


def as_typed(path: Path) -> str:
    """A path as an option takes it, never to be taken for a name."""
    text = str(path)
    return shlex.quote(text if os.sep in text else f".{os.sep}{text}")


@operation("check", "Check a device file, a model file or a plan by layer.", function="check", positional=("file",))
class CheckFile(Operation):
    """Say all that is wrong with a device file, a model file or a plan by layer.

    >>> dse.check("h100").splitlines()[0]
    'device H100: no problem found'
    """

    file: str | Path = argument(help="A name or a file.")

    def run(self, console: Console = SILENT) -> str:
        """A text: every number with its source. A bad file raises SpecError, whose `lines()` have its problems."""
        from dse.report import listing

        return listing.check(str(self.file))


@operation("list", "Devices, models, quantizers, kernels, weight formats.")
class ListCatalog(Printed):
    """List what the tool knows by name: devices, models, quantizers, implementations of these, the KV types that
    releases of engines run, token policies, or formats of weights.

    PATTERN keeps those that have it in their name or title, in any case: `dse list models qwen3`. Devices come by
    vendor, with whose kernels they run.
    """

    kind: str = argument(metavar="devices|models|quantizers|implementations|kv-types|tokens|weights")
    pattern: str = argument("")
    vendor: str = option("", "Devices of one vendor alone.", shows_default=False)
    as_json: bool = json_option("Print as JSON.")

    def run(self, console: Console = SILENT) -> list[dict[str, Any]]:
        """A row an entry."""
        from dse.report import listing

        kinds = {
            "devices": lambda: listing.list_devices(self.vendor) if self.vendor else listing.list_devices(),
            "models": listing.list_models,
            "quantizers": listing.list_quantizers,
            "implementations": listing.list_implementations,
            "kv-types": listing.list_kv_types,
            "tokens": listing.list_tokens,
            "weights": listing.list_weights,
        }
        if self.kind not in kinds:
            raise InputError(f"unknown list {show(self.kind)}: {did_you_mean(self.kind, kinds)}")
        if self.vendor and self.kind != "devices":
            raise InputError(f"vendor = {show(self.vendor)}: {self.kind} have none: leave it out")
        rows = listing.matching(kinds[self.kind](), self.pattern)
        if self.pattern and not rows:
            rule = f"see `dse list {self.kind}`"
            raise InputError(f"no {self.kind} with {show(self.pattern)} in the name or title: {rule}")
        return rows

    def text(self, outcome: list[dict[str, Any]]) -> str:
        """The entries in their groups."""
        from dse.report import listing

        return listing.rows_text(listing.grouped(outcome))


@operation("show", "One device, model or format: every number, its source.")
class ShowEntry(Printed):
    """Show a device, model, quantizer, implementation or token policy with every number, unit and source."""

    name: str = argument()
    as_toml: bool = option(False, "Print the shipped file itself, to copy and edit.", SWITCH, name="toml")
    as_json: bool = json_option("Print as JSON.")

    def run(self, console: Console = SILENT) -> Any:
        """A row a number, or the text of the shipped file."""
        from dse.report import listing

        return listing.shipped_text(self.name).rstrip("\n") if self.as_toml else listing.show(self.name)

    def text(self, outcome: Any) -> str:
        """The rows or the file."""
        from dse.report import listing

        return outcome if self.as_toml else listing.rows_text(outcome)


def number_option(name: str, example: str, help: str, without: str = "") -> Any:
    """The field of a number of a device, given as text with its unit."""
    text = f'{help}, such as "{example}".'
    return option(None, text, name=name, metavar="NUMBER", example=example, without=without)


#: the question of how fast a chip unpacks formats, and the answer of who does not know
_UNPACK = "Elements of fewer bits than 16 that it unpacks in a second, such as 4 Telement/s"
_IDEAL = "ideal"


@operation("device add", "A device file from a few numbers.")
class AddDevice(Printed):
    """Write a device file that --device takes, from numbers with their units.

    --memory, --bandwidth and --flops are needed; a terminal is asked for those not given.
    """

    name: str = argument()
    memory_capacity: str | None = number_option("memory", "80 GB", "Memory")
    memory_bandwidth: str | None = number_option("bandwidth", "3.35 TB/s", "Peak bandwidth of the memory")
    peak_flops: str | None = number_option("flops", "989 TFLOP/s", "Peak rate of dense FP16 products")
    peak_flops_fp8: str | None = number_option("flops-fp8", "1979 TFLOP/s", "The same in FP8, if it has it")
    peak_flops_fp4: str | None = number_option("flops-fp4", "4500 TFLOP/s", "The same in FP4, if it has it")
    peak_ops_int8: str | None = number_option("ops-int8", "1979 TOP/s", "The same in INT8, if it has it")
    n_cores: str | None = number_option("cores", "132", "Cores (a GPU's SMs)")
    engine_rate: str | None = number_option(
        "unpack",
        "4 Telement/s",
        "Elements of fewer bits than 16 that it unpacks in a second",
        "every format is unpacked as fast as the memory gives it",
    )
    core_clock: str | None = number_option("clock", "1.98 GHz", "Boost clock of a core")
    board_power: str | None = number_option("power", "700 W", "Power of the whole board", "no energy")
    link_bandwidth: str | None = number_option("link", "450 GB/s", "Bandwidth to other devices, one direction")
    reported_memory: str | None = number_option(
        "reported-memory", "79.2 GiB", "Memory as torch.cuda.mem_get_info reports it"
    )
    usd_per_hour: str | None = number_option("price", "3 USD/h", "Price of an hour", "no costs")
    like: str | None = option(
        None, "Shipped device whose fitted kernels and other numbers are borrowed.", metavar="DEVICE"
    )
    datasheet: str | None = option(
        None, "Data sheet that the numbers are from; default: they are assumed.", metavar="TEXT"
    )
    out: str | None = option(None, "Device file to write; default: the name, in this directory.", metavar="FILE.toml")
    force: bool = option(False, "Replace a file that is there.", SWITCH)
    as_json: bool = json_option("Print what was written as JSON.")

    def run(self, console: Console = SILENT) -> AddedDevice:
        """The file, and what it holds."""
        from dse.core import files, specfile
        from dse.specs import catalog, device_file

        if self.datasheet is not None and not 0 < len(self.datasheet.strip()) <= 300:
            raise InputError("datasheet: must have 1 to 300 letters, such as its title and date")
        device_file.check_name(self.name)
        path = new_file(self.out or f"{self.name.lower()}.toml", self.force)
        texts = {field: getattr(self, field.name) for field in numbers()}
        given = {field.name: self._number(field, text) for field, text in texts.items() if text is not None}
        missing = [field for field in numbers() if device_file.is_needed(field.name) and field.name not in given]
        if missing and console.ask is None:
            options = " ".join(f'--{flag_name(field)} "{option_of(field).example}"' for field in missing)
            raise InputError(f"{', '.join(map(flag_name, missing))}: not given: add {options}")
        borrowed = device_file.borrow(self.like, given) if self.like is not None else None  # refused before a question
        for field in missing:
            assert console.ask is not None
            question = option_of(field).help.replace('"', "").rstrip(".")
            given[field.name] = console.ask(question, partial(self._number, field))
        if missing and console.ask is not None and self.like is None and "engine_rate" not in given:
            rate = console.ask(f"{_UNPACK}, or {_IDEAL}", self._unpack_rate)
            given |= {"engine_rate": rate} if rate else {}
        given = {field.name: given[field.name] for field in numbers() if field.name in given}
        if self.like is not None:  # in proportion to what was answered
            borrowed = device_file.borrow(self.like, given)
        content = device_file.text(self.name, given, borrowed)
        device = catalog.device_from(specfile.parse(str(path), content))
        files.write(path, content.encode())
        return AddedDevice(path, device, given, borrowed)

    def _unpack_rate(self, text: str) -> Any:
        """The rate of unpacking in an answer; None for as fast as the memory."""
        field = next(field for field in numbers() if field.name == "engine_rate")
        return None if text.strip().lower() == _IDEAL else self._number(field, text)

    def _number(self, field: dataclasses.Field[Any], text: str) -> Any:
        from dse.specs import device_file

        try:
            return device_file.number(field.name, text, self.datasheet)
        except InputError as error:
            raise InputError(f"{flag_name(field)} = {error}") from None

    def text(self, outcome: AddedDevice) -> str:
        """The numbers, what was borrowed and what is missing, and the file."""
        given, borrowed = outcome.given, outcome.borrowed
        lines = [f"{self.name}: " + ", ".join(f"{field} {_shown(number)}" for field, number in given.items())]
        if borrowed:
            kernels = "no fitted kernels: it has none"
            if borrowed.stacks_of:
                kernels = f"fitted kernels of {borrowed.stacks_of}"
            lines.append(f"borrowed from {borrowed.name}, assumed here: {kernels}; {', '.join(borrowed.fields)}")
        lines += [f"without --{flag_name(field)}: {option_of(field).without}" for field in outcome.left_out]
        lines += [f"Warning: {warning}" for warning in outcome.warnings(self.name)]
        return "\n".join([*lines, f"device file: {outcome.path}", f"next: {outcome.following}"])

    def document(self, outcome: AddedDevice) -> dict[str, Any]:
        """Return the added device as a JSON object."""
        lent = outcome.borrowed
        return {
            "device": self.name,
            "file": str(outcome.path),
            "given": {field: _shown(number) for field, number in outcome.given.items()},
            "borrowed": lent and {"from": lent.name, "stacks_of": lent.stacks_of, "fields": list(lent.fields)},
            "left_out": [field.name for field in outcome.left_out],
            "warnings": outcome.warnings(self.name),
            "next": outcome.following,
        }


def numbers() -> list[dataclasses.Field[Any]]:
    """The fields of a device that are numbers."""
    return [field for field in dataclasses.fields(AddDevice) if option_of(field).example]


def _shown(number: Any) -> str:
    return f"{number.value:g} {number.unit}"


@dataclasses.dataclass(frozen=True)
class AddedDevice:
    """A device file that was written."""

    path: Path
    device: HardwareSpec
    given: dict[str, Any]
    borrowed: Borrowed | None

    @property
    def left_out(self) -> list[dataclasses.Field[Any]]:
        """Numbers that the device lacks, and without which something is not computed."""
        return [field for field in numbers() if option_of(field).without and getattr(self.device, field.name) is None]

    @property
    def following(self) -> str:
        """A command that uses the file."""
        return f"dse point --device {as_typed(self.path)} --model llama3.1-8b"

    def warnings(self, name: str) -> list[str]:
        """Unusual numbers, and a name that means another device."""
        from dse.specs import catalog

        warnings = [*self.device.warnings(), *(self.borrowed.warnings if self.borrowed else ())]
        if name.lower() in catalog.device_files():
            warnings.append(f"a device {name.lower()} ships: --device {name.lower()} still means that one")
        return warnings


@operation("model export", "A model file from a config.json.")
class ExportModel(AssumesLike):
    """Write what the reader finds in CONFIG (a config.json, or any name of a model) as a model file.

    The file holds the layers and the counted parameters alone, and reads back as the same model.
    """

    config: str = argument()
    name: str | None = option(None, "Name of the model; default: as the file's.")
    title: str | None = option(None, "Title in lists.")
    source: str | None = option(None, "Where the config comes from, such as the repository's name.", metavar="TEXT")
    revision: str = option("", "The revision of that source.", metavar="TEXT", shows_default=False)
    published: int | None = option(None, "Published number of parameters.", WHOLE, metavar="N")
    published_source: str | None = option(None, "Where that is published.", metavar="TEXT")
    out: str = option(help="Model file to write.", metavar="FILE.toml")
    force: bool = option(False, "Replace a file that is there.", SWITCH)

    def run(self, console: Console = SILENT) -> Path:
        """The file that was written."""
        from dse.core import files, specfile
        from dse.specs import catalog, model_file
        from dse.specs.quantity import Quantity

        if (self.published is None) != (self.published_source is None):
            raise InputError("published: a number needs its source, and a source its number: give both or neither")
        if self.published is not None and not 1 <= self.published <= 10**15:
            raise InputError(f"published = {self.published}: must be 1 to 10**15 parameters")
        path = new_file(self.out, self.force)
        model = catalog.model(self.config)
        changes = {"name": self.name, "title": self.title or self.name, "source": self.source}
        model = model.model_copy(update={key: value for key, value in changes.items() if value})
        count = None
        if self.published and self.published_source:
            count = Quantity(value=self.published, unit="parameter", source=self.published_source, kind="published")
        text = model_file.text(model, self.revision, count)
        catalog.model_from(specfile.parse(self.out, text))  # refuses a name or a number that no file may have
        files.write(path, text.encode())
        return path

    def text(self, outcome: Path) -> str:
        """The file that was written."""
        return f"model file: {outcome}"


@operation("model add", "A model file from a directory, the Hugging Face cache or the hub.")
class AddModel(AssumesLike, Printed):
    """Read the config.json of a model and write a model file that --model takes.

    Looks at a local path, then in the Hugging Face cache, and with --from-hub at the hub: one file of plain JSON,
    nothing in it is run. Models behind a login need HF_TOKEN.
    """

    config: str = argument(metavar="ORG/NAME|DIR|config.json")
    name: str | None = option(None, "Name of the model; default: that of the repository or the directory.")
    out: str | None = option(None, "Model file to write; default: the name, in this directory.", metavar="FILE.toml")
    force: bool = option(False, "Replace a file that is there.", SWITCH)
    from_hub: bool = option(False, "Fetch config.json from the hub where neither path nor cache has it.", SWITCH)
    revision: str | None = option(None, "Branch, tag or commit of the repository; default: main.", metavar="R")
    hub: str | None = option(
        None, "Address of the hub; default: HF_ENDPOINT, else https://huggingface.co.", metavar="URL"
    )
    as_json: bool = json_option("Print what was read as JSON.")

    def run(self, console: Console = SILENT) -> dict[str, Any]:
        """The model and its file."""
        from dse.core import files, specfile
        from dse.report import listing
        from dse.specs import catalog, hub, model_file

        if self.hub is not None and not self.from_hub:
            raise InputError(f"hub = {show(self.hub)}: has no effect without --from-hub: add it, or leave this out")
        if self.out:
            new_file(self.out, self.force)  # refused before anything is fetched
        try:
            source = hub.find(self.config, self.revision, self.from_hub, self.hub)
        except hub.NotThereError:
            if catalog.shipped_model_file(self.config):
                rule = "ships with the tool: give it to --model as it is, or fetch its config.json with --from-hub"
                raise InputError(f"{self.config}: {rule}") from None
            raise
        model = catalog.model_from(source.document)
        mark = f"-as-{self.assume_like}"
        name = source.name + (mark if model.name.endswith(mark) else "") if self.name is None else self.name
        path = new_file(self.out or f"{name.lower()}.toml", self.force)
        model = model.model_copy(update={"name": name, "title": name, "source": source.source})
        text = model_file.text(model, source.revision, by="dse model add")
        read_back: ModelSpec = catalog.model_from(specfile.parse(str(path), text))  # refuses a name that no file has
        files.write(path, text.encode())
        names = ("parameters", "active_parameters", "kv_bytes_per_token")
        return {
            "model": name,
            "file": str(path),
            "source": read_back.source,
            "n_layers": read_back.n_layers,
            **{row["name"]: row["value"] for row in listing.show(str(path)) if row["name"] in names},
            "layers": listing.layers_by_kind(read_back),
            "notes": read_back.notes,
            "next": f"dse point --device h100 --model {as_typed(path)}",
        }

    def text(self, outcome: dict[str, Any]) -> str:
        """The model as people read it, and the file."""
        active, parameters = outcome["active_parameters"], outcome["parameters"]
        some = f", {active:,.0f} of them active" if active != parameters else ""
        return "\n".join(
            [
                f"{outcome['model']}: {outcome['n_layers']} layers, from {outcome['source']}",
                f"{parameters:,} parameters{some}; {outcome['kv_bytes_per_token']:,} B of KV cache a token (FP16)",
                *outcome["layers"],
                *(f"note: {note}" for note in outcome["notes"]),
                f"model file: {outcome['file']}",
                f"next: {outcome['next']}",
            ]
        )
