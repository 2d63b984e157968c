"""A fork does what Python itself does with the same arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forking

pytestmark = pytest.mark.process

PROGRAM = """
import sys

def name():
    return __name__

print(name(), sys.argv, sys.path[0], sys.modules["__main__"].name is name)
sys.exit(3)
"""


@pytest.mark.parametrize("form", ["file", "code"])
def test_a_fork_and_python_run_a_program_alike(form: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = [str(program)] if form == "file" else ["-c", PROGRAM]
    real, forked = (
        subprocess.run(
            [python, *words, "-c", "a b"], cwd=tmp_path, capture_output=True, text=True
        )
        for python in (sys.executable, forking.python())
    )
    assert real.returncode == 3
    assert (forked.stdout, forked.returncode) == (real.stdout, 3), forked.stderr


@pytest.mark.parametrize("name", ["-c", "program.py"])
def test_a_program_runs_in_a_fork(name: str, tmp_path: Path) -> None:
    program = "print(open('/proc/self/cmdline').read())"
    (tmp_path / "program.py").write_text(program)
    words = [forking.python(), name, program]
    command = subprocess.check_output(words, cwd=tmp_path, text=True)
    assert forking.__name__ in command


@pytest.mark.parametrize("form", ["file", "code"])
def test_a_fork_imports_what_pythonpath_has(form: str, tmp_path: Path) -> None:
    (tmp_path / "of_this_test.py").write_text("print('imported')")
    program = tmp_path / "folder" / "program.py"
    program.parent.mkdir()
    program.write_text("import of_this_test")
    words = [str(program)] if form == "file" else ["-c", "import of_this_test"]
    done = subprocess.run(
        [forking.python(), *words],
        cwd=program.parent,
        env={**os.environ, "PYTHONPATH": "..:missing"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("imported\n", 0), done.stderr
