"""The text the language model is trained on: which files of one CPython release, and their SHA-256 in files.csv."""

import csv
import hashlib
import sys
from pathlib import Path

import numpy as np

CPYTHON = "3.11.7"
LIST = Path(__file__).parent / "files.csv"
# Whole modules kept apart for measuring: maths, text, data structures, dates, the network, tools and prose-heavy ones.
HELD_OUT = (
    "calendar.py",
    "difflib.py",
    "fractions.py",
    "ftplib.py",
    "heapq.py",
    "pprint.py",
    "statistics.py",
    "string.py",
    "textwrap.py",
    "timeit.py",
)
# Tables of code points, generated files, test suites and bundled packages teach a model little about Python text.
LEFT_OUT = ("/encodings/", "/test/", "/tests/", "/site-packages/", "/ensurepip/", "/lib2to3/", "/__pycache__/")
LEFT_OUT_FILES = ("html/entities.py", "_sysconfigdata__linux_x86_64-linux-gnu.py")


def chosen(library: Path) -> list[str]:
    """Relative paths of the library's files that are text for the model, sorted; held-out files included."""
    paths = []
    for path in library.rglob("*.py"):
        relative = path.relative_to(library).as_posix()
        if any(part in f"/{relative}" for part in LEFT_OUT) or relative in LEFT_OUT_FILES or "/config-" in relative:
            continue
        paths.append(relative)
    return sorted(paths)


def write_list(library: Path) -> None:
    """Write files.csv: path, bytes, SHA-256 and part (train or held_out) of every file."""
    with LIST.open("w", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(("path", "n_bytes", "sha256", "part"))
        for path in chosen(library):
            content = (library / path).read_bytes()
            if content:
                part = "held_out" if path in HELD_OUT else "train"
                writer.writerow((path, len(content), hashlib.sha256(content).hexdigest(), part))


def read(library: Path, part: str) -> np.ndarray:
    """All bytes of a part (train or held_out), files in the list's order, as uint8; SystemExit where a file differs."""
    texts = []
    with LIST.open(newline="") as handle:
        for row in csv.DictReader(handle):
            if row["part"] != part:
                continue
            path = library / row["path"]
            content = path.read_bytes() if path.is_file() else b""
            if hashlib.sha256(content).hexdigest() != row["sha256"]:
                sys.exit(
                    f"{path}: not the file of CPython {CPYTHON} that {LIST.name} lists: give its Lib with --library"
                )
            texts.append(content)
    return np.frombuffer(b"".join(texts), dtype=np.uint8)


if __name__ == "__main__":
    write_list(Path(sys.argv[1]))
