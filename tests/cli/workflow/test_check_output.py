"""What ``sfq`` prints where the encoding of its output lacks characters."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from sf_quantum import cli


@pytest.mark.parametrize("encoding", ["ascii", "iso8859-5", "utf-8"])
def test_a_name_that_the_output_lacks_is_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    file = tmp_path / "l\xe4ufe.yml"
    file.write_text("version: v1.0\n")
    output = io.BytesIO()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding))
    cli.main(["check", file.name])
    sys.stdout.flush()
    name = file.name if encoding == "utf-8" else "l\\xe4ufe.yml"
    assert output.getvalue().decode(encoding).startswith(f"{name}:")
