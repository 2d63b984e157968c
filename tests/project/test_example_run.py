"""Tests of the example's ``run.py``, as ``make run`` starts it."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.journals import a_run, write

RUN = Path(__file__).parents[2] / "examples/clustering-aggregation/run.py"


@pytest.mark.process
def test_example_begins_its_check_without_importing_matplotlib() -> None:
    code = (
        "import runpy, sys\n"
        f"runpy.run_path({str(RUN)!r})\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"numpy", "matplotlib", "streamflow"} & set(done.stderr.split())


@pytest.mark.process
def test_the_example_draws_the_timeline_of_a_run(tmp_path: Path) -> None:
    path = write(tmp_path / "1.jsonl", a_run())
    draw, picture = runpy.run_path(str(RUN))["DRAW"], tmp_path / "timeline.png"
    command = [sys.executable, "-c", draw, str(picture)]
    subprocess.run(command, input=str(path), text=True, check=True)
    assert picture.stat().st_size > 0


@pytest.mark.process
def test_refused_file_ends_the_example_without_a_timeline(tmp_path: Path) -> None:
    """Its drawing process reads no file, and ends with it."""
    folder = tmp_path / "examples" / "example"
    folder.mkdir(parents=True)
    (folder / "points.csv").touch()  # it would be made otherwise
    script = shutil.copy(RUN, folder)
    (tmp_path / "wrong.yml").write_text("version: v1.0\n")
    command = [sys.executable, script, "wrong.yml", "--outdir", "results"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "wrong.yml" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()
