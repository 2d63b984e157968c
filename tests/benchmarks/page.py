"""Blocks of a page of the documentation that benchmarks write."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

_WIDTH = 118


def wrapped(text: str) -> list[str]:
    """Wrap a paragraph; no line begins with a percent sign, which would be a comment."""
    together = text.replace(" %", "\0%")
    return [line.replace("\0", " ") for line in textwrap.wrap(together, _WIDTH)]


class Block:
    """What is between the comments ``begin NAME`` and ``end NAME`` of a page.

    :raises SystemExit: if the page has no such block
    """

    def __init__(self, page: Path, name: str) -> None:
        self._page = page
        self._begin, self._end = f"<!-- begin {name} -->\n", f"\n<!-- end {name} -->\n"
        self._around()

    def write(self, lines: Sequence[str]) -> None:
        """Replace the lines of the block."""
        before, after = self._around()
        text = "\n".join(lines)
        written = self._page.with_name(f"{self._page.name}.new")
        written.write_text(f"{before}{self._begin}\n{text}\n{self._end}{after}")
        os.replace(written, self._page)

    def _around(self) -> tuple[str, str]:
        before, found, rest = self._page.read_text().partition(self._begin)
        _, found_end, after = rest.partition(self._end)
        if not (found and found_end):
            lines = f"{self._begin.strip()!r} and {self._end.strip()!r}"
            raise SystemExit(f"{self._page}: expected the lines {lines}")
        return before, after
