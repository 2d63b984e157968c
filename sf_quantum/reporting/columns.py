"""Text in columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def align(lines: Sequence[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """Pad cells so that those of a column stand below each other.

    :param lines: the header and the rows, with the same number of cells
    :param right: the header's words for the columns of numbers, aligned on the right
    :returns: one text per line
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(lines[0], line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]
