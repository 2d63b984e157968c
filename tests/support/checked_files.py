"""Mistakes in the files of a folder, and what ``sfq check`` says of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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


def sinfo(*rows: tuple[str, int], gres: str = "(null)", limit: str = "infinite") -> str:
    """Return a script that prints partitions and numbers of nodes as ``sinfo`` does."""
    lines = [
        f"{name}|{nodes}|8|16000|{gres}|(null)|{limit}|{name.rstrip('*')}[1-{nodes}]"
        for name, nodes in rows
    ]
    return "\n".join(f"echo '{line}'" for line in lines)


def slurm_lists(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str = "exit 1"
) -> Path:
    """Have a script in place of this host's ``sinfo``, and something to submit jobs with.

    :param script: by default, as without a controller
    """
    folder.mkdir(exist_ok=True)
    for name, text in (("sinfo", script), ("sbatch", "exit 1")):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "sinfo"
