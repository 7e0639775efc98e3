"""Run the checks of every file of a manifest, and say how many values of each were compared and differ."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from conformance.checks import INFORMATIVE, Method, method_of
from conformance.compare import KINDS, Pair, kind_of
from conformance.vectors import MANIFEST, Damaged, Entry, Vectors, load, read_manifest, shown


@dataclass
class Row:
    """Result of one file and one kind of oracle. `problem` is "" where every value is equal."""

    file: str
    method: str
    kind: str
    compared: int = 0
    mismatched: int = 0
    problem: str = ""


@dataclass
class Report:
    """Result of a directory: rows of compared values, and what was not compared and why."""

    folder: str
    n_files: int
    rows: list[Row] = field(default_factory=list)
    #: file, or file and arrays -> why it is not compared
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every file is whole and covered and every value equal."""
        return not any(row.problem or row.mismatched for row in self.rows)

    def of_kind(self, kind: str) -> list[Row]:
        """The rows of one kind of oracle, in the order of the manifest."""
        return [row for row in self.rows if row.kind == kind]


def run(folder: Path) -> Report:
    """Compare every file of `folder`'s manifest. Raises Unusable where there is no usable manifest."""
    entries = read_manifest(folder)
    report = Report(str(folder), len(entries))
    for entry in entries:
        _run_file(folder, entry, report)
    listed = {entry.file for entry in entries}
    for path in sorted(folder.glob("*.np[yz]")):
        if path.name not in listed:
            report.left_out[path.name] = f"not in {MANIFEST}"
    return report


def _run_file(folder: Path, entry: Entry, report: Report) -> None:
    stem = Path(entry.file).stem
    method = method_of(stem)
    informative = INFORMATIVE.get(stem, entry.note or entry.oracle if _says_informative(entry) else "")
    kind = kind_of(entry.oracle)
    name = method.label if method else "?"
    try:
        vectors = load(folder, entry)
    except Damaged as error:
        report.rows.append(Row(entry.file, name, kind, problem=str(error)))
        return
    if informative and not (method and method.informative_too):
        report.left_out[entry.file] = f"informative: {informative}"
    elif method is None:
        report.rows.append(Row(entry.file, name, kind, problem="no method here is checked with files of this name"))
    else:
        rows = compare(vectors, method, kind)
        report.rows += rows
        unread = sorted(set(vectors) - vectors.read)
        if unread and not any(row.problem for row in rows):
            report.left_out[f"{entry.file}: {', '.join(unread)}"] = method.unread


def _says_informative(entry: Entry) -> bool:
    return "informative" in f"{entry.oracle} {entry.note}"


def compare(vectors: Vectors, method: Method, kind: str) -> list[Row]:
    """A row for each kind of oracle that the file's check compares with; `kind` is the file's."""
    rows: dict[str, Row] = {}
    file = vectors.entry.file
    current = rows[kind] = Row(file, method.label, kind)
    for pair in _pairs(vectors, method):
        if isinstance(pair, str):
            current.problem = current.problem or pair
            continue
        current = rows.setdefault(pair.kind or kind, Row(file, method.label, pair.kind or kind))
        current.compared += pair.compared
        current.mismatched += int(pair.mismatches().sum())
        current.problem = current.problem or pair.first_mismatch()
    if not any(row.compared or row.problem for row in rows.values()):
        rows[kind].problem = "holds no array that is compared"
    return [row for row in rows.values() if row.compared or row.problem]


def _pairs(vectors: Vectors, method: Method) -> Iterator[Pair | str]:
    """The pairs of a file; one line of text where its check fails, since that is a finding like any other."""
    try:
        yield from method.check(vectors)
    except Exception as error:
        what = f"array {error} is missing" if isinstance(error, KeyError) else shown(str(error))
        yield f"cannot be compared: {type(error).__name__}: {what}"


def totals(report: Report) -> dict[str, tuple[int, int, int]]:
    """(files, values compared, values that differ) by kind of oracle, in the order of KINDS."""
    found = {}
    for kind in KINDS:
        rows = report.of_kind(kind)
        if rows:
            found[kind] = (len(rows), sum(row.compared for row in rows), sum(row.mismatched for row in rows))
    return found
