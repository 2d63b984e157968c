"""Text in columns, for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sf_quantum.text import escaped


def align(lines: Sequence[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """Pad cells so that columns line up, and escape them.

    :param lines: header and rows, with the same number of cells
    :param right: headers of the columns that are aligned on the right
    """
    lines = [[*map(escaped, line)] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(lines[0], line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]
