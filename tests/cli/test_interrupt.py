"""Ctrl-C ends ``sfq`` without a traceback."""

from __future__ import annotations

import importlib

import pytest

from sf_quantum import cli


def test_ctrl_c_during_imports_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert cli.main(["run", "sf.yml"]) == 130
    assert capsys.readouterr().err == ""
