"""The directory of a measurement: a part a layer and method that appears whole or not at all, so that it can go on.

_measure.json    what is measured, with its hash; written first
parts/layer00000.<method>.json   the sums of one layer and method, with their SHA-256
measured.parquet, measurement.json, summary.json, measure.html, figures   written at the end
.lock            held by the process that writes
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dse.core import files
from dse.core.errors import InputError, LimitError, show
from dse.specs.measurements import TensorMeasurement
from dse.sweep import store

FORMAT = 1
SPEC, FOLDER = "_measure.json", "parts"
TABLE, MEASUREMENT, SUMMARY, PAGE = "measured.parquet", "measurement.json", "summary.json", "measure.html"


def digest(data: Any) -> str:
    """SHA-256 of plain data as JSON."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


class Store:
    """The parts in a directory whose measurement is `identity`."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder, self.sha256 = folder, digest(identity)
        self.written: list[Path] = []

    def path(self, layer: int, method: str) -> Path:
        """The file of a part."""
        return self.folder / FOLDER / f"layer{layer:05d}.{digest(method)[:16]}.json"

    def load(self, layer: int, method: str) -> dict[str, Any] | None:
        """A part of this measurement: {"rows", "tensors"}; None where it is missing, damaged or of another one."""
        part = store.load_json(self.path(layer, method))
        content = (part or {}).get("content")
        if not isinstance(content, dict) or digest(content) != (part or {}).get("sha256"):
            return None
        if [content.get(name) for name in ("identity", "layer", "method")] != [self.sha256, layer, method]:
            return None
        with contextlib.suppress(KeyError, TypeError, ValidationError):
            return {"rows": content["rows"], "tensors": [TensorMeasurement(**t) for t in content["tensors"]]}
        return None

    def save(self, layer: int, method: str, rows: list[dict[str, Any]], tensors: list[TensorMeasurement]) -> None:
        """Put a part in place. Raises OutputError."""
        content = {
            "identity": self.sha256,
            "layer": layer,
            "method": method,
            "rows": rows,
            "tensors": [t.model_dump(mode="json", exclude_none=True) for t in tensors],
        }
        path = self.path(layer, method)
        files.write(path, (json.dumps({"sha256": digest(content), "content": content}) + "\n").encode())
        files.sync(path.parent)
        self.written.append(path)


@contextlib.contextmanager
def opened(out: str, identity: dict[str, Any]) -> Iterator[Store]:
    """The directory, held by this process alone, ready for parts of this measurement.

    A bad dump takes with it all that this run wrote; an interrupt or a full disk leaves finished parts, so that the
    same command goes on. Raises InputError where the directory holds something else, BusyError and OutputError as a
    sweep does.
    """
    existed = store.is_folder(out)
    if existed:
        _check(Path(out), identity)
    with store.locked(out, "measurement") as folder:
        _check(folder, identity)
        begun = (folder / SPEC).exists()
        opened_store = Store(folder, identity)
        try:
            if not begun:
                content = {"format": FORMAT, "sha256": digest(identity), "measures": identity}
                files.write(folder / SPEC, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())
            yield opened_store
        except (InputError, LimitError):
            for path in opened_store.written:
                path.unlink(missing_ok=True)
            if not begun:
                (folder / SPEC).unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    (folder / FOLDER).rmdir()
                if not existed:
                    (folder / store.LOCK).unlink(missing_ok=True)
                    with contextlib.suppress(OSError):
                        folder.rmdir()
            raise


def _check(folder: Path, identity: dict[str, Any]) -> None:
    """Raises InputError where the directory holds something else than this measurement."""
    where, written = f"out = {show(str(folder))}", store.load_json(folder / SPEC)
    if written is not None:
        if written.get("sha256") != digest(identity):
            held = written.get("measures")
            before = held if isinstance(held, dict) else {}
            names = [name for name in identity if before.get(name) != identity[name]]
            raise InputError(f"{where}: was begun with another {', '.join(names) or 'version'}: give another directory")
        return
    others = sorted(
        path.name for path in folder.iterdir() if path.name != store.LOCK and not files.TEMPORARY.fullmatch(path.name)
    )
    if others:
        raise InputError(f"{where}: holds files such as {show(others[0])}: give another directory")
