"""Rows as text: how wide a table gets where its last column is long."""

from dse.report import listing


def test_a_long_last_column_is_wrapped_within_the_width_of_a_file():
    """Columns stand two spaces apart: of 160 characters 20 and 30 leave 106 to words of a letter and a space."""
    text = listing.rows_text([{"a": "x" * 20, "b": "y" * 30, "c": "a " * 300}])
    lines = text.splitlines()
    assert max(map(len, lines)) == 20 + 2 + 30 + 2 + 53 * 2 - 1 <= 160
    assert sum(line.split().count("a") for line in lines[1:]) == 300
    assert [line[:54].strip() for line in lines[2:]] == [""] * (len(lines) - 2)
