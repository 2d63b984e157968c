"""Every sampler on QUBOs of real clusterings, and the command that lists them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from dimod import BinaryQuadraticModel, SampleSet

from sf_quantum import samplers
from sf_quantum.cli import main
from sf_quantum.clustering.consensus_qubo import overlaps
from sf_quantum.clustering.methods import METHODS, Ranges, apply, draw
from sf_quantum.clustering.result import Clustering, assess
from sf_quantum.samplers.exact import ExactSampler
from sf_quantum.samplers.presolve import Presolve
from sf_quantum.testing import samplers as contract
from tests.support import qubos

pytestmark = pytest.mark.process


def model(seed: int, weights: str, penalty: str) -> BinaryQuadraticModel:
    """The QUBO of three clusterings of four blobs that run into each other."""
    random = np.random.default_rng(seed)
    centres = np.array([[0, 0], [4, 0], [0, 4], [5, 5]])
    points = np.repeat(centres, 60, axis=0) + random.normal(size=(240, 2))
    ranges = Ranges(clusters=(3, 5), radius=(0.5, 0.9), least=5)
    found = []
    for method in METHODS:
        parameters = draw(method, len(points), ranges, seed)
        labels = apply(method, points, parameters)
        clusters, _ = assess(points, labels, len(points))
        found.append(Clustering(method, parameters, seed, True, clusters, labels))
    return qubos.model(overlaps(found), weights, penalty)


@pytest.mark.parametrize("name", samplers.names())
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("weights", "penalty"),
    [("quality", "tight"), ("size", "tight"), ("quality", "candidates")],
)
def test_up_to_14_candidates_each_finds_what_exact_proves(
    name: str, seed: int, weights: str, penalty: str
) -> None:
    if (why := samplers.obstacle(name)) is not None:
        pytest.skip(why)
    bqm = model(seed, weights, penalty)
    assert 8 <= len(bqm.variables) <= 14
    # the whole problem, without the help of the presolve
    proof = ExactSampler().sample(bqm, seed=1)
    assert proof.info["proven"] is True
    found = Presolve(samplers.load(name)()).sample(bqm, num_reads=1000, seed=1)
    assert found.first.energy == pytest.approx(proof.first.energy)
    assert found.info["optimum"] == pytest.approx(proof.first.energy)
    assert found.info["optimal_share"] > 0


def test_the_contract_asks_a_sampler_once_a_problem() -> None:
    """It may be slow."""
    asked: list[BinaryQuadraticModel] = []

    class Counting(samplers.load("neal")):  # type: ignore[misc]
        def sample(self, bqm: BinaryQuadraticModel, **options: int) -> SampleSet:
            asked.append(bqm)
            samples: SampleSet = super().sample(bqm, **options)
            return samples

    answers = contract.Answers(Counting())
    assert [*answers] == [*answers]
    assert answers.first
    assert asked == answers.problems


def test_the_list_says_what_is_usable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["samplers"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["sampler", "usable", "description"]
    assert [row.split()[0] for row in rows] == samplers.names()
    (neal,) = (row for row in rows if row.startswith("neal"))
    assert neal.split()[1] == "yes"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["samplers"]) == 0
    assert "no: the package qiskit is not installed" in capsys.readouterr().out


def test_one_sampler_tells_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["samplers", "neal"]) == 0
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == [
        ["parameter", "default", "description"],
        ["num_reads", "1000", "number of samples, 1 or more"],
        ["num_sweeps", "100", "Metropolis sweeps over all variables per read"],
    ]
    assert lines[3][:2] == ["seed", "-"]
    for name in samplers.names():
        assert main(["samplers", name]) == 0
        rows = capsys.readouterr().out.splitlines()
        assert all(len(row.split()) > 2 for row in rows)
    assert main(["samplers", "neal", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert (first["parameter"], first["default"]) == ("num_reads", "1000")
    assert main(["samplers", "nael"]) == 2
    assert "did you mean 'neal'?" in capsys.readouterr().err
