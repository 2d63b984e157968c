"""QAOA on IBM's machines, through QRMI: all but the machine is real."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from sf_quantum.errors import InputError, QpuError
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description
from sf_quantum.qpu import passes
from sf_quantum.qpu.passes import Counts, Pass
from sf_quantum.samplers.qaoa import QaoaSampler
from sf_quantum.testing.samplers import problem

pytest.importorskip("qiskit", reason="qiskit is not installed")
pytest.importorskip("qrmi", reason="the package qrmi is not installed")


def described(false: float = 0.0) -> Description:
    errors = {"readout_false_one": false, "readout_false_zero": false}
    return Description(
        "superconducting", 5, ("circuit",), calibration=CalibrationData(values=errors)
    )


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

    from sf_quantum.qpu.vendors.qrmi import PrimitiveRunner

    job = Job(error)
    backend = GenericBackendV2(5, seed=1)
    sampler = SimpleNamespace(run=lambda pubs, shots: job)
    machine = PrimitiveRunner("torino", sampler, backend, "QPU 'torino'", described)
    with pytest.raises(expected):
        QaoaSampler(runner=machine).sample(problem(), depth=1, optimiser="none")
    assert job.cancelled


def test_ibms_samplers_reads_are_taken_as_they_come() -> None:
    from qiskit.primitives import StatevectorSampler
    from qiskit.providers.fake_provider import GenericBackendV2

    from sf_quantum.qpu.vendors.qrmi import PrimitiveRunner

    line = GenericBackendV2(5, coupling_map=[[i, i + 1] for i in range(4)], seed=1)
    machine = PrimitiveRunner(
        "torino", StatevectorSampler(seed=1), line, "QPU 'torino'", described
    )
    samples = QaoaSampler(runner=machine).sample(
        problem(), seed=1, num_reads=200, optimiser="none"
    )
    assert samples.info["machine"] == "torino"
    assert "timing" not in samples.info
    assert len(samples) == 200
    assert np.mean(samples.record.energy < -1.4) > 0.3
    mitigated = QaoaSampler(runner=machine).sample(
        problem(), seed=1, num_reads=200, optimiser="none", mitigation="readout"
    )
    assert mitigated.info["mitigation"] == ["readout"]
    assert mitigated.record.num_occurrences.sum() == 200
    assert np.mean(mitigated.record.energy < -1.4) > 0.3
    with pytest.raises(InputError, match="unknown pass 'readuot', did you mean 'rea"):
        QaoaSampler(runner=machine).sample(problem(), mitigation="readuot")


class Renaming(Pass):
    """Writes circuits with another name of the bits."""

    def circuits(self, circuit: str) -> Sequence[str]:
        return [circuit.replace("meas[", "c[").replace("] meas;", "] c;")]

    def counts(self, counts: Sequence[Counts]) -> Counts:
        return counts[0]


def test_passes_may_write_circuits_of_their_own_for_ibms_sampler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("qiskit_qasm3_import", reason="the extra circuits is missing")
    from qiskit import QuantumCircuit
    from qiskit.primitives import StatevectorSampler
    from qiskit.providers.fake_provider import GenericBackendV2

    from sf_quantum.qpu.vendors.qrmi import PrimitiveRunner

    monkeypatch.setattr(passes._registry, "load", lambda name: Renaming)
    runner = PrimitiveRunner(
        "torino", StatevectorSampler(), GenericBackendV2(2), "QPU 'torino'", described
    ).mitigated("renaming")
    circuit = QuantumCircuit(2)
    circuit.x(1)
    circuit.measure_all()
    bits, _ = runner.reads(circuit, np.array([]), 3)
    assert bits.tolist() == [[0, 1]] * 3
