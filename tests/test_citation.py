"""CITATION.cff: the keys that the Citation File Format 1.2.0 requires, and the version and date of this release."""

import datetime
import re
from pathlib import Path

import yaml

import dse

ROOT = Path(__file__).parents[1]


def cited():
    return yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def is_author(author):
    """A person has names, an entity one name (schema of CFF 1.2.0, definitions person and entity)."""
    return set(author) in ({"name"}, {"family-names", "given-names"})


def test_it_has_what_the_format_requires():
    found = cited()
    assert {"cff-version", "message", "title", "authors"} <= set(found)
    assert found["cff-version"] == "1.2.0"
    assert found["type"] == "software"
    assert isinstance(found["date-released"], datetime.date)
    assert found["authors"]
    assert all(map(is_author, found["authors"]))


def test_each_reference_has_a_type_a_title_and_authors():
    for reference in cited()["references"]:
        assert {"type", "title", "authors"} <= set(reference)
        assert all(map(is_author, reference["authors"]))
        assert reference["type"] in {"article", "conference-paper"}
        assert re.fullmatch(r"10\.\d{4,9}/\S+", reference.get("doi", "10.1145/1498765.1498785"))


def test_version_and_date_are_those_of_the_changelog():
    found, changes = cited(), (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert found["version"] == dse.__version__
    first = re.search(r"^## (\S+) \((\S+)\)$", changes, re.M)
    assert first.groups() == (dse.__version__, str(found["date-released"]))
