"""Data that ships with the tool: what the papers claim. See README.md in this directory."""

import csv
import io
from pathlib import Path

FOLDER = Path(__file__).parent


def text(name: str) -> str:
    """The text of a file that ships."""
    return (FOLDER / name).read_text(encoding="utf-8")


def rows(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a CSV file that ships, fields as text."""
    return tuple(csv.DictReader(io.StringIO(text(name), newline="")))
