"""QAOA beyond the contract: angles that carry over, other machines, sizes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dimod import BinaryQuadraticModel
from dimod.core.sampler import Sampler

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers import qaoa
from sf_quantum.samplers.qaoa import QaoaSampler
from sf_quantum.testing.samplers import problem

pytest.importorskip("qiskit", reason=qaoa.MISSING)


def uneven() -> BinaryQuadraticModel:
    """A path of six candidates with one optimum, ace, of 64 states."""
    model = BinaryQuadraticModel("BINARY")
    model.add_linear_from({"a": -1.0, "b": -0.9, "c": -1.0}.items())
    model.add_linear_from({"d": -0.7, "e": -1.0, "f": -0.4}.items())
    model.add_quadratic_from(
        (*pair, 1.1) for pair in zip("abcde", "bcdef", strict=True)
    )
    return model


def share(found: list[float], optimum: float) -> float:
    return float(np.mean(np.array(found) < optimum + 1e-9))


def test_it_does_better_than_chance_and_tuning_better_still() -> None:
    sampler = QaoaSampler()
    first = sampler.sample(uneven(), seed=1, optimiser="none")
    tuned = sampler.sample(uneven(), seed=1)
    chance = 1 / 64
    assert share(first.record.energy, -3.0) > 5 * chance
    assert share(tuned.record.energy, -3.0) > share(first.record.energy, -3.0)
    assert first.info["evaluations"] == 0
    assert 0 < tuned.info["evaluations"] <= qaoa.EVALUATIONS
    assert tuned.info["two_qubit_gates"] == 5 * qaoa.DEPTH


def test_the_second_time_starts_where_the_first_ended(tmp_path: Path) -> None:
    file = str(tmp_path / "angles.json")
    sampler = QaoaSampler()
    tuned = sampler.sample(uneven(), seed=1, angles=file)
    assert json.loads(Path(file).read_text()) == tuned.info["angles"]
    warm = sampler.sample(uneven(), seed=2, angles=file, optimiser="none")
    assert warm.info["angles"] == tuned.info["angles"]
    cold = sampler.sample(uneven(), seed=2, optimiser="none")
    assert share(warm.record.energy, -3.0) > share(cold.record.energy, -3.0)
    deeper = sampler.sample(uneven(), seed=2, angles=file, optimiser="none", depth=12)
    assert len(deeper.info["angles"]["gamma"]) == 12


def test_of_several_problems_the_angles_of_the_largest_are_kept(tmp_path: Path) -> None:
    file, sampler = tmp_path / "angles.json", QaoaSampler()
    largest = sampler.sample(uneven(), seed=1, angles=str(file)).info["angles"]
    smaller = sampler.sample(problem(), seed=2, angles=str(file), depth=2).info[
        "angles"
    ]
    assert len(smaller["gamma"]) == 2
    assert json.loads(file.read_text()) == largest


def test_a_missing_folder_is_reported_before_a_circuit_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QaoaSampler, "_runner", None)
    for file in (tmp_path / "none" / "angles.json", tmp_path / "file" / "angles.json"):
        (tmp_path / "file").touch()
        with pytest.raises(InputError, match=rf"{file}: cannot be written"):
            QaoaSampler().sample(problem(), angles=str(file))
        assert not file.exists()


class Counted:
    """A sampler that counts the circuits it ran."""

    def __init__(self) -> None:
        from qiskit.primitives import StatevectorSampler

        self._own = StatevectorSampler(seed=1)
        self.shots: list[int] = []

    def run(self, pubs: list[object], *, shots: int) -> object:
        """As Qiskit's."""
        self.shots.append(shots)
        return self._own.run(pubs, shots=shots)


@pytest.mark.parametrize("optimiser", ["cobyla", "nelder-mead"])
@pytest.mark.parametrize("evaluations", [1, 2, 3, 7, 60])
def test_no_more_angles_are_evaluated_than_may_be(
    optimiser: str, evaluations: int
) -> None:
    counted = Counted()
    samples = QaoaSampler(counted).sample(
        uneven(),
        num_reads=9,
        depth=2,
        shots=20,
        optimiser=optimiser,
        evaluations=evaluations,
    )
    run = samples.info["evaluations"]
    assert counted.shots == [20] * run + [9]
    # few are all used, and of many an optimiser may need less
    assert run == evaluations or 7 < run < evaluations


@pytest.mark.parametrize(
    "content",
    ["{}", '{"gamma": [1], "beta": []}', '{"gamma": ["x"], "beta": [1]}', "["],
)
def test_a_file_without_angles(tmp_path: Path, content: str) -> None:
    file = tmp_path / "angles.json"
    file.write_text(content)
    with pytest.raises(InputError, match=r"angles\.json.*angles"):
        QaoaSampler().sample(problem(), angles=str(file))


@pytest.mark.filterwarnings("ignore:Aer not found:RuntimeWarning")
def test_a_given_backend_is_compiled_for_and_run() -> None:
    from qiskit.providers.fake_provider import GenericBackendV2

    line = GenericBackendV2(6, coupling_map=[[i, i + 1] for i in range(5)], seed=1)
    samples = QaoaSampler(backend=line).sample(
        uneven(), seed=1, num_reads=200, depth=2, optimiser="none"
    )
    assert samples.info["machine"] == line.name
    assert samples.first.energy == -3.0
    assert len(samples) == 200


def test_too_large_for_the_machine_is_said() -> None:
    from qiskit.providers.fake_provider import GenericBackendV2

    small = GenericBackendV2(3, seed=1)
    with pytest.raises(InputError, match=r"4 variables interact, \S+ has 3 qubits"):
        QaoaSampler(backend=small).sample(problem())


def test_too_large_to_emulate_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qaoa, "QUBITS", {"statevector": 3, "aer": 3})
    with pytest.raises(InputError, match="4 variables interact, and 3 qubits can be"):
        QaoaSampler().sample(problem())


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"depth": 0}, "depth: 0 is out of range"),
        ({"shots": 1.5}, "shots: 1.5: expected a whole number"),
        ({"optimiser": "spsa"}, "optimiser: 'spsa': expected cobyla or"),
        ({"evaluations": True}, "evaluations: True: expected a whole number"),
    ],
)
def test_wrong_parameters(parameters: dict[str, JSON], words: str) -> None:
    sampler: Sampler = QaoaSampler()
    with pytest.raises(InputError, match=words):
        sampler.sample(problem(), **parameters)


def test_without_qiskit_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'sf-quantum\[qaoa\]'"):
        QaoaSampler().sample(problem())


@pytest.mark.parametrize("exponent", range(12, 19))
def test_biases_of_all_sizes_side_by_side_are_sampled(exponent: int) -> None:
    large = 10.0**exponent
    couplings = {"ab": -large, "bc": large, "ac": -1.3}
    fields = dict.fromkeys("abc", 1.0)
    bqm = BinaryQuadraticModel.from_ising(fields, couplings)
    found = QaoaSampler().sample(bqm, num_reads=50, seed=1)
    assert min(found.record.energy) < -1.5 * large
