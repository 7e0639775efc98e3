"""Rows of text in aligned columns, for the terminal."""

from collections.abc import Collection, Sequence


def aligned(rows: Sequence[Sequence[str]], left: int | Collection[int] | None = None, indent: str = "") -> list[str]:
    """Lines of the rows, columns two spaces apart.

    Args:
        rows: Cells, as many in each row; a head is the first row.
        left: Columns that are aligned to the left: so many first ones, or their indices; all where None.
        indent: Text before each line.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    on_left = range(len(widths) if left is None else left) if left is None or isinstance(left, int) else left

    def padded(row: Sequence[str]) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(
            cell.ljust(width) if i in on_left else cell.rjust(width) for i, (cell, width) in enumerate(cells)
        )

    return [indent + padded(row).rstrip() for row in rows]
