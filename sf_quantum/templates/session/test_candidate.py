"""The quantum candidate gives the same kind of answer on all its targets."""

import json
from pathlib import Path

from sf_quantum.testing.candidates import assert_candidate

HERE = Path(__file__).parent


def energy(outputs):
    answer = json.loads(Path(outputs["answer"]["path"]).read_text("utf-8"))
    return -len(answer["chosen"])


def test_search_is_a_candidate():
    graph = {"class": "File", "path": str(HERE / "graph.json")}
    inputs = {"graph": graph, "penalty": 0.4}
    file = HERE / "streamflow.yml"
    assert_candidate(file, "$SOLVE", inputs, tolerance=0.01, energy=energy)
