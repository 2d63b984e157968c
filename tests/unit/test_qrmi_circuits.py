"""QAOA on the machines that QRMI reaches: all but the machine is real.

IQM's is played by a client that simulates the requests as they go over the wire, on the
five qubits of IQM's own fake Adonis.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from dimod import BinaryQuadraticModel

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu import qrmi
from sf_quantum.samplers.presolve import LeasedPresolve
from sf_quantum.samplers.qaoa import QaoaSampler
from sf_quantum.testing.samplers import problem

if TYPE_CHECKING:
    from qrmi import Payload

    from sf_quantum.qpu.qrmi import IqmRunner

pytest.importorskip("qiskit", reason="qiskit is not installed")
pytest.importorskip("qrmi", reason="the package qrmi is not installed")


class Adonis:
    """What is used of ``qrmi.QuantumResource``."""

    def __init__(self) -> None:
        from iqm.qiskit_iqm.fake_backends.fake_adonis import IQMFakeAdonis

        self.architecture = IQMFakeAdonis().architecture
        self.words = ["Queued", "Running", "Completed"]
        self.stopped: list[str] = []
        self.requests: list[SimpleNamespace] = []
        self.answer: str | None = None

    def target(self) -> SimpleNamespace:
        """As QRMI puts it together of three answers of IQM's server."""
        identity = str(self.architecture.calibration_set_id)
        empty: dict[str, JSON] = {
            "observation_set_id": identity,
            "dut_label": None,
            "created_timestamp": "2026-01-01T00:00:00Z",
            "end_timestamp": None,
            "observations": [],
        }
        told = {
            "dynamic_quantum_architecture": json.loads(
                self.architecture.model_dump_json()
            ),
            "calibration_set": {"observation_set_type": "calibration-set", **empty},
            "quality_metrics": {"observation_set_type": "quality-metric-set", **empty},
        }
        return SimpleNamespace(value=json.dumps(told))

    def task_start(self, payload: Payload) -> str:
        """Keep the request."""
        text: str = getattr(payload, "iqmjson")  # noqa: B009
        self.requests.append(
            json.loads(text, object_hook=lambda found: SimpleNamespace(**found))
        )
        self._left = [*self.words]
        return "task"

    def task_status(self, task: str) -> str:
        """One word after the other."""
        word = self._left.pop(0)
        if word == "interrupt":
            raise KeyboardInterrupt
        return f"TaskStatus.{word}"

    def task_stop(self, task: str) -> None:
        """Remember it."""
        self.stopped.append(task)

    def task_logs(self, task: str) -> str:
        """Why it failed."""
        return "out of\nhelium"

    def task_result(self, task: str) -> SimpleNamespace:
        """Simulate what was asked for."""
        told = self.answer or json.dumps(simulated(self.requests[-1]))
        return SimpleNamespace(value=told)


def simulated(request: SimpleNamespace) -> JSON:
    """Answer a request as IQM's server does: reads by measurement, none in order."""
    from qiskit import QuantumCircuit
    from qiskit.primitives import StatevectorSampler

    (asked,) = request.circuits
    circuit = QuantumCircuit(5)
    keys: list[str] = []
    places: list[int] = []
    for operation in asked.instructions:
        qubits = [int(name.removeprefix("QB")) - 1 for name in operation.locus]
        match operation.name:
            case "prx":
                angle, phase = operation.args.angle, operation.args.phase
                circuit.r(angle, phase, *qubits)
            case "cz":
                circuit.cz(*qubits)
            case "measure":
                keys.append(operation.args.key)
                places += qubits
            case "barrier":
                pass
            case name:
                raise AssertionError(name)
    circuit.measure_all()
    job = StatevectorSampler(seed=1).run([circuit], shots=request.shots)
    bits = job.result()[0].data.meas.to_bool_array(order="little").astype(int)
    told = zip(keys, places, strict=True)
    columns: dict[str, JSON] = {key: bits[:, [place]].tolist() for key, place in told}
    return {"measurements": [dict(sorted(columns.items(), reverse=True))]}


@pytest.fixture
def adonis(monkeypatch: pytest.MonkeyPatch) -> Adonis:
    pytest.importorskip("iqm.qiskit_iqm", reason="install the extra iqm")
    monkeypatch.setattr(qrmi, "POLL_SECONDS", 0.0)
    return Adonis()


def made(client: Adonis) -> IqmRunner:
    from sf_quantum.qpu.qrmi import IqmRunner

    return IqmRunner("garnet", client, "QPU 'garnet'")


def test_a_qubo_on_iqms_is_compiled_run_and_read(adonis: Adonis) -> None:
    sampler = QaoaSampler(runner=made(adonis))
    # no two candidates alike, so that bits out of order would show
    bqm = BinaryQuadraticModel(
        {"a": -1.0, "b": -0.9, "c": -1.0, "d": -0.5},
        {"ab": 1.2, "bc": 1.3, "cd": 1.1},
        0.0,
        "BINARY",
    )
    samples, here = (
        one.sample(bqm, num_reads=400, optimiser="none", depth=6, seed=1)
        for one in (sampler, QaoaSampler())
    )
    assert samples.record.energy == pytest.approx(bqm.energies(samples))
    assert (samples.info["machine"], samples.info["reads"]) == ("garnet", 400)
    # the same circuit, up to compilation and luck
    for label in bqm.variables:
        shares = [
            found.record.sample[:, found.variables.index(label)].mean()
            for found in (samples, here)
        ]
        assert shares[0] == pytest.approx(shares[1], abs=0.12)
    timing = samples.info["timing"]
    assert timing["qpu_seconds"] == timing["seconds"] > 0 <= timing["queued_seconds"]
    (request,) = adonis.requests
    assert request.shots == 400
    assert not adonis.stopped


def test_what_iqms_cannot_hold_is_refused(adonis: Adonis) -> None:
    bqm = BinaryQuadraticModel("BINARY")
    bqm.add_linear_from((i, -1.0) for i in range(7))
    bqm.add_quadratic_from((i, (i + 1) % 7, 2.0) for i in range(7))
    with pytest.raises(InputError, match="7 variables interact, garnet has 5 qubits"):
        LeasedPresolve(QaoaSampler(runner=made(adonis))).sample(bqm, num_reads=5)
    assert not adonis.requests


@pytest.mark.parametrize(
    ("words", "answer", "expected"),
    [
        (["Failed"], None, "QPU 'garnet': the task ended Failed: out of helium"),
        (["Completed"], "{}", "QPU 'garnet': its answer has no reads of the circuit"),
        (
            ["Completed"],
            '{"measurements": [{"meas_4_0_0": [[1]]}]}',
            "QPU 'garnet': its answer has no reads of the circuit",
        ),
    ],
)
def test_trouble_on_iqms_is_told(
    adonis: Adonis, words: list[str], answer: str | None, expected: str
) -> None:
    sampler = QaoaSampler(runner=made(adonis))
    adonis.words, adonis.answer = words, answer
    with pytest.raises(QpuError, match=expected):
        sampler.sample(problem(), num_reads=5, optimiser="none", depth=1)


def test_interrupted_a_task_on_iqms_is_stopped(adonis: Adonis) -> None:
    sampler = QaoaSampler(runner=made(adonis))
    adonis.words = ["Queued", "interrupt"]
    with pytest.raises(KeyboardInterrupt):
        sampler.sample(problem(), num_reads=5, optimiser="none", depth=1)
    assert adonis.stopped == ["task"]


def test_a_target_that_is_none_is_told(
    adonis: Adonis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adonis, "target", lambda: SimpleNamespace(value="{}"))
    with pytest.raises(QpuError, match="QPU 'garnet': its target is not a QPU"):
        made(adonis)


class Job:
    """A job of a SamplerV2 that never gives anything."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self.cancelled = False

    def result(self) -> None:
        """Fail."""
        raise self._error

    def cancel(self) -> None:
        """Remember it."""
        self.cancelled = True


@pytest.mark.parametrize(
    ("error", "expected"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (RuntimeError("lost"), QpuError)],
)
def test_a_job_of_ibms_that_is_not_waited_for_is_cancelled(
    error: BaseException, expected: type[BaseException]
) -> None:
    from qiskit.providers.fake_provider import GenericBackendV2

    from sf_quantum.qpu.qrmi import PrimitiveRunner

    job = Job(error)
    backend = GenericBackendV2(5, seed=1)
    sampler = SimpleNamespace(run=lambda pubs, shots: job)
    machine = PrimitiveRunner("torino", sampler, backend, "QPU 'torino'")
    with pytest.raises(expected):
        QaoaSampler(runner=machine).sample(problem(), depth=1, optimiser="none")
    assert job.cancelled


def test_ibms_samplers_reads_are_taken_as_they_come() -> None:
    from qiskit.primitives import StatevectorSampler
    from qiskit.providers.fake_provider import GenericBackendV2

    from sf_quantum.qpu.qrmi import PrimitiveRunner

    line = GenericBackendV2(5, coupling_map=[[i, i + 1] for i in range(4)], seed=1)
    machine = PrimitiveRunner(
        "torino", StatevectorSampler(seed=1), line, "QPU 'torino'"
    )
    samples = QaoaSampler(runner=machine).sample(
        problem(), seed=1, num_reads=200, optimiser="none"
    )
    assert samples.info["machine"] == "torino"
    assert "timing" not in samples.info
    assert len(samples) == 200
    assert np.mean(samples.record.energy < -1.4) > 0.3
