"""The workflow runs under ``cwltool --enable-ext``, without Node.js."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sf_quantum import samplers
from sf_quantum.files import JSON
from tests.support.clustering_runs import cwltool, outputs, write_inputs

pytestmark = pytest.mark.process


def test_the_outputs_are_labels_summary_and_picture(twice: list[Path]) -> None:
    names = {path.name for path in twice[0].iterdir()}
    assert names == {"labels.csv", "summary.json", "clusters.png"}
    header, *labels = (twice[0] / "labels.csv").read_text().splitlines()
    assert header == "label"
    assert len(labels) == 600
    # five blobs far apart: the consensus finds them, in the order of the points
    truth = np.repeat(np.arange(5), 120)
    assert (np.array(labels, int) == truth).mean() > 0.98
    assert (twice[0] / "clusters.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_the_loop_carries_state_and_seed(twice: list[Path]) -> None:
    summary = json.loads((twice[0] / "summary.json").read_text())
    assert (summary["iterations"], summary["reached"]) == (2, False)
    assert [i["seed"] for i in summary["per_iteration"]] == [3, 4]
    assert {i["sampler"] for i in summary["per_iteration"]} == {"neal"}
    assert summary["score"] == max(i["score"] for i in summary["per_iteration"])
    assert (summary["points"], summary["features"]) == (600, 2)
    methods = [c["method"] for c in summary["per_iteration"][0]["clusterings"]]
    assert methods == ["kmeans", "dbscan", "single-linkage"]


def test_the_same_seed_gives_the_same_labels(twice: list[Path]) -> None:
    first, second = ((out / "labels.csv").read_bytes() for out in twice)
    assert first == second
    records = [
        json.loads((out / "summary.json").read_text())["per_iteration"] for out in twice
    ]
    for one, other in zip(*records, strict=True):
        assert one.pop("timing") != other.pop("timing")
        assert one == other


@pytest.mark.parametrize("name", sorted({*samplers.names()} - {"neal"}))
def test_it_runs_with_each_sampler(tmp_path: Path, name: str) -> None:
    if (why := samplers.obstacle(name)) is not None:
        pytest.skip(why)
    # weights by size leave the sampler something to decide, few clusterings few atoms
    few: dict[str, JSON] = {"clusters": "4:6", "limit": 1, "reads": 1000}
    write_inputs(tmp_path, **few, sampler=name, weights="size")
    answer = outputs(cwltool(tmp_path, "--target", "summary"))
    (iteration,) = json.loads(answer["summary"].read_text())["per_iteration"]
    assert iteration["sampler"] == name
    assert iteration["optimal_share"] > 0
    assert iteration["lowest_energy"] == pytest.approx(iteration["optimum"])


def test_the_second_iteration_starts_from_the_firsts_angles(
    tmp_path: Path,
) -> None:
    if (why := samplers.obstacle("qaoa")) is not None:
        pytest.skip(why)
    settings: list[JSON] = ["depth=1", "evaluations=12", "shots=100"]
    few: dict[str, JSON] = {"clusters": "3:8", "sampler": "qaoa", "weights": "size"}
    write_inputs(tmp_path, **few, settings=settings)
    # the cache keeps what each step wrote
    outputs(cwltool(tmp_path, "--target", "summary", "--cachedir", "cache"))
    found = [json.loads(p.read_text()) for p in tmp_path.glob("cache/*/samples.json")]
    infos = sorted((samples["info"] for samples in found), key=lambda one: one["seed"])
    assert [info["seed"] for info in infos] == [3, 4]
    # what the first part tells by itself is beside what all tell alike
    first, second = (info | info.get("parts", [{}])[0] for info in infos)
    assert first["depth"] == second["depth"] == 1
    assert first["angles"] != first["first_angles"]
    assert second["first_angles"] == infos[0]["angles"]
