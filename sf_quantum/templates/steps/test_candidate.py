"""The quantum candidate gives the same kind of answer on all its targets."""

import subprocess
import sys
from pathlib import Path

from sf_quantum.testing.candidates import assert_candidate

HERE = Path(__file__).parent


def test_solve_is_a_candidate(tmp_path):
    generate = [sys.executable, HERE / "generate.py", HERE / "graph.json", "2"]
    subprocess.run(generate, cwd=tmp_path, check=True)
    problem = {"class": "File", "path": str(tmp_path / "problem.json")}
    inputs = {"problem": problem}
    assert_candidate(HERE / "streamflow.yml", "$SOLVE", inputs, tolerance=0.01)
