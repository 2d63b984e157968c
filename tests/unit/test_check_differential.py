"""``sfq check`` and StreamFlow give one verdict on generated CWL, and on mutants of it.

``tests.benchmarks.check_differential`` compares them on many more, and on files of others.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from tests import cwl_documents as documents


def write(folder: Path, content: JSON) -> Path:
    settings = documents.values(content, folder)
    (folder / "main.cwl").write_text(json.dumps(content))
    path = folder / "sf.yml"
    file = documents.streamflow_file(folder / "main.cwl", settings)
    path.write_text(json.dumps(file))
    return path


@pytest.mark.parametrize("seed", range(8))
def test_no_valid_workflow_is_refused(seed: int, tmp_path: Path) -> None:
    path = write(tmp_path, documents.workflow(random.Random(seed)))
    assert documents.rejected(path) == ""
    assert [*map(str, documents.checked(path))] == []


@pytest.mark.parametrize("seed", range(24))
def test_no_mutant_passes_that_streamflow_rejects(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    path = write(tmp_path, documents.mutated(documents.workflow(rng), rng))
    problems = documents.checked(path)
    if why := documents.rejected(path):
        assert problems, why
