"""The workflow runs under ``cwltool --enable-ext``, without Node.js."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from sf_quantum import samplers

WORKFLOW = Path(__file__).parents[2] / "workflows" / "clustering-aggregation.cwl"
CENTRES = [[0, 0], [9, 0], [0, 9], [9, 9], [5, 20]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 points in five blobs, and a job whose loop takes two iterations."""
    folder = tmp_path_factory.mktemp("cwl")
    random = np.random.default_rng(0)
    points = np.repeat(CENTRES, 120, axis=0) + random.normal(size=(600, 2))
    kinds = np.repeat(["a", "b", "c", "d", "e"], 120)
    lines = [f"{x},{y},{kind}" for (x, y), kind in zip(points, kinds, strict=True)]
    (folder / "points.csv").write_text("\n".join(["x,y,kind", *lines, ""]))
    job = {
        "points": {"class": "File", "path": "points.csv"},
        "label": "kind",
        "sampler": "neal",
        "reads": 100,
        "seed": 3,
        "threshold": 1.0,
        "limit": 2,
    }
    (folder / "job.json").write_text(json.dumps(job))
    return folder


def start(
    folder: Path, name: str, job: str = "job.json", *options: str
) -> subprocess.Popen[str]:
    """Start cwltool in a home of its own, with nothing on the PATH but our tools."""
    path = str(Path(sys.executable).parent)
    assert not shutil.which("node", path=path)
    assert not shutil.which("nodejs", path=path)
    home = folder / name
    home.mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "cwltool", "--enable-ext", "--quiet", "--outdir",
         str(home / "out"), *options, str(WORKFLOW), str(folder / job)],
        env={"PATH": path, "HOME": str(home), "TMPDIR": str(home),
             "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "")},
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def outputs(folder: Path) -> list[dict[str, Path]]:
    """The outputs of two runs of the same job."""
    runs = [start(folder, "first"), start(folder, "second")]
    outputs = []
    try:
        for run in runs:
            out, err = run.communicate(timeout=120)
            assert run.returncode == 0, err
            answer = cast("dict[str, Any]", json.loads(out))
            outputs.append({key: Path(file["path"]) for key, file in answer.items()})
    finally:
        for run in runs:
            if run.poll() is None:
                run.kill()
                run.communicate()
    return outputs


def test_the_outputs_are_labels_summary_and_picture(
    outputs: list[dict[str, Path]],
) -> None:
    assert set(outputs[0]) == {"labels", "summary", "picture"}
    header, *labels = outputs[0]["labels"].read_text().splitlines()
    assert header == "label"
    assert len(labels) == 600
    # five blobs far apart: the consensus finds them, in the order of the points
    truth = np.repeat(np.arange(5), 120)
    assert (np.array(labels, int) == truth).mean() > 0.98
    assert outputs[0]["picture"].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_the_loop_carries_state_and_seed(outputs: list[dict[str, Path]]) -> None:
    summary = json.loads(outputs[0]["summary"].read_text())
    assert (summary["iterations"], summary["reached"]) == (2, False)
    assert [i["seed"] for i in summary["per_iteration"]] == [3, 4]
    assert summary["score"] == max(i["score"] for i in summary["per_iteration"])
    assert (summary["points"], summary["features"]) == (600, 2)
    methods = [c["method"] for c in summary["per_iteration"][0]["clusterings"]]
    assert methods == ["kmeans", "dbscan", "single-linkage"]


def test_the_same_seed_gives_the_same_labels(outputs: list[dict[str, Path]]) -> None:
    first, second = outputs
    assert first["labels"].read_bytes() == second["labels"].read_bytes()
    records = [
        json.loads(run["summary"].read_text())["per_iteration"] for run in outputs
    ]
    for one, other in zip(*records, strict=True):
        assert one.pop("timing") != other.pop("timing")
        assert one == other


@pytest.mark.parametrize("name", sorted({*samplers.names()} - {"neal"}))
def test_it_runs_with_each_sampler(folder: Path, name: str) -> None:
    if (why := samplers.obstacle(name)) is not None:
        pytest.skip(why)
    # weights by size leave the sampler something to decide, few clusterings few atoms
    few = {"clusters": "4:6", "limit": 1, "reads": 1000}
    changed = {"sampler": name, "weights": "size", **few}
    job = json.loads((folder / "job.json").read_text()) | changed
    (folder / f"{name}.json").write_text(json.dumps(job))
    with start(folder, name, f"{name}.json") as run:
        out, err = run.communicate(timeout=120)
        assert run.returncode == 0, err
    answer = cast("dict[str, Any]", json.loads(out))
    summary = json.loads(Path(answer["summary"]["path"]).read_text())
    (iteration,) = summary["per_iteration"]
    assert iteration["sampler"] == name
    assert iteration["optimal_share"] > 0
    assert iteration["lowest_energy"] == pytest.approx(iteration["optimum"])


def test_the_second_iteration_starts_from_the_angles_of_the_first(folder: Path) -> None:
    if (why := samplers.obstacle("qaoa")) is not None:
        pytest.skip(why)
    settings = ["depth=1", "evaluations=12", "shots=100"]
    few = {"clusters": "4:6", "limit": 2, "settings": settings}
    job = json.loads((folder / "job.json").read_text())
    job |= {"sampler": "qaoa", "weights": "size", **few}
    (folder / "warm.json").write_text(json.dumps(job))
    # which keeps what each step wrote
    cache = folder / "cache"
    with start(folder, "warm", "warm.json", "--cachedir", str(cache)) as run:
        _, err = run.communicate(timeout=120)
        assert run.returncode == 0, err
    found = [json.loads(path.read_text()) for path in cache.glob("*/samples.json")]
    infos = sorted((samples["info"] for samples in found), key=lambda one: one["seed"])
    assert [info["seed"] for info in infos] == [3, 4]
    # what the first part tells by itself is beside what all tell alike
    first, second = (info | info.get("parts", [{}])[0] for info in infos)
    assert first["depth"] == second["depth"] == 1
    assert first["angles"] != first["first_angles"]
    assert second["first_angles"] == infos[0]["angles"]
