"""Mistakes in the files of a folder, and what ``sfq check`` says of them."""

from __future__ import annotations

from pathlib import Path

from sf_quantum.checking import check_file
from sf_quantum.cli import parser_for


def edited(name: str, old: str, new: str) -> None:
    """Replace a text that a file of the current folder has once."""
    text = Path(name).read_text()
    assert text.count(old) == 1
    Path(name).write_text(text.replace(old, new))


def found() -> list[str]:
    """The problems of the folder's ``sf.yml``, a line each."""
    return [str(problem) for problem in check_file("sf.yml", parser_for).problems]
