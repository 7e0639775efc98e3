"""Quantities as people write them: one parser for files, options and fields, and no comma that changes a number."""

import re
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from dse.cli import main
from dse.core.errors import InputError, SpecError
from dse.core.field import parse_bytes
from dse.core.units import number_and_unit
from dse.specs import catalog
from dse.specs.quantity import named_quantity
from explorer_page import opened, wrong


@each(
    ("text", "value"),
    [
        ("3.35 TB/s", (3.35, "TB/s")),
        ("3.35TB/s", (3.35, "TB/s")),
        (" 1,024 GB ", (1024.0, "GB")),
        ("1,234,567.5", (1234567.5, "")),
        ("1_024", (1024.0, "")),
        ("12,5x", None),
        ("1,0244", None),
        ("1e3 s", (1000.0, "s")),
        ("80 %", (80.0, "%")),
        ("fast", None),
        ("1 024 GB", None),
    ],
)
def test_a_number_and_its_unit(text, value):
    if value is None:
        with pytest.raises(ValueError, match="decimal comma") if "," in text else nullcontext():
            assert number_and_unit(text) is None
    else:
        assert number_and_unit(text) == value


@each("text", ["9,6 TB/s", "9,65 TB/s", "0,123 TB/s", "-9,6", "1,0244 TB/s", "12,34,56 TB/s", "9,6"])
def test_a_decimal_comma_is_never_another_number(text):
    """Neither 96 TB/s nor 9.6: a line, in every place that takes a number with a unit."""
    with pytest.raises(InputError, match="link = "):
        named_quantity("link", text, "B/s", 1e6, 1e15)
    with pytest.raises(InputError, match="memory = "):
        parse_bytes("memory", text.replace("TB/s", "GB"))
    with pytest.raises((InputError, SpecError)):
        catalog.device(f"h100:memory_bandwidth={text}")


@given(st.integers(0, 999), st.integers(0, 10**6), st.sampled_from(["TB/s", "GB", ""]))
def test_a_comma_groups_thousands_or_is_refused(whole, part, unit):
    """Three digits behind a comma are thousands if there is a whole part before; all else is refused."""
    text = f"{whole},{part} {unit}"
    if whole and len(str(part)) == 3:
        assert number_and_unit(text) == (whole * 1000 + part, unit)
    else:
        with pytest.raises(ValueError, match="decimal comma"):
            number_and_unit(text)


@each(
    "words",
    [
        ("point", "--device", "h100:memory_bandwidth=9,6 TB/s", "--model", "llama3.1-8b"),
        ("point", "--device", "h100", "--model", "llama3.1-8b", "--kv-cache-memory", "9,6GB"),
        ("ask", "doubt", "--device", "h100", "--model", "llama3.1-8b", "--range", "memory_bandwidth=1,5TB/s:4TB/s"),
    ],
)
def test_the_command_line_says_it_in_a_line(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main.main([*words])
    lines = capsys.readouterr().err.strip().splitlines()
    assert stopped.value.code == 2
    assert len(lines) == 1
    assert "decimal comma" in lines[0]


def test_a_device_file_says_it(tmp_path):
    path = tmp_path / "own.toml"
    text = catalog.device_files()["h100"].read_text()
    path.write_text(re.sub(r"^memory_bandwidth = .*$", 'memory_bandwidth = "9,6 TB/s"', text, flags=re.M))
    with pytest.raises(SpecError, match=r"memory_bandwidth.*decimal comma"):
        catalog.device(str(path))


def test_thousands_stay_as_they_were_in_a_field():
    assert catalog.device("h100:memory_capacity=1,024 GB").memory_capacity.si == 1024e9
    both = catalog.device("h100:memory_capacity=1,024 GB,memory_bandwidth=3 TB/s")
    assert (both.memory_capacity.si, both.memory_bandwidth.si) == (1024e9, 3e12)


def test_a_field_of_a_page_refuses_a_decimal_comma():
    app = opened("answer", device="h200")
    app.session_state["device numbers"] = True
    app.run()
    app.text_input(key="edits").set_value("memory_bandwidth=9,6 TB/s").run()
    assert not app.exception
    assert any("decimal comma: write 9.6" in line for line in wrong(app))
