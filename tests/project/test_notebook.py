"""The notebook of the examples, run as Jupyter would run it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support import forking
from tests.support.folders import EXAMPLES
from tests.support.forking import BIN
from tests.support.waiting import SECONDS

pytestmark = pytest.mark.process

nbclient = pytest.importorskip("nbclient", reason="the package nbclient is missing")
nbformat = pytest.importorskip("nbformat", reason="the package nbformat is missing")

NOTEBOOK = EXAMPLES / "notebook" / "hybrid.ipynb"


def test_the_notebook_in_the_repository_has_no_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in code] == [[] for _ in code]
    assert {cell.execution_count for cell in code} == {None}


async def test_the_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{forking.stand_ins()}:{BIN}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    for name in ("TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    file = tmp_path / shutil.copy(NOTEBOOK, tmp_path)
    notebook = nbformat.read(file, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=SECONDS, resources={"metadata": {"path": str(tmp_path)}}
    )
    await client.async_execute()
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    _, checked, ran, report, table, sampled = (
        "".join(map(shown, output)) for output in outputs
    )
    assert "OK (1 workflow" in checked
    assert "run completed: " in ran
    assert "'conflicts': []" in ran
    assert "<table>" in report
    assert "data:image/png" in report
    assert "qpu_seconds" in table
    assert "-1.0" in sampled


def shown(output: dict[str, dict[str, str]]) -> str:
    """The text or the HTML of an output of a cell."""
    data = output.get("data", {})
    return str(data.get("text/html", data.get("text/plain", output.get("text", ""))))
