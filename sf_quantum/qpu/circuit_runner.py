"""Runs the circuits of the sampler ``qaoa`` on a QPU, with passes."""

from __future__ import annotations

import json
import secrets
from copy import copy
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from qiskit import qasm3

from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Task
from sf_quantum.protocol.values import counters
from sf_quantum.qpu.passes import Counts, Passes, whole
from sf_quantum.qpu.running import JobSide
from sf_quantum.qpu.sdks.qiskit import QpuBackend
from sf_quantum.samplers.defaults import SEEDS

if TYPE_CHECKING:
    from qiskit import QuantumCircuit

    from sf_quantum.samplers.qaoa import Doubles
    from sf_quantum.samplers.states import Bits

# Keys that are copied from the info of a job's result.
PASSED_ON = ("technology", "calibration")


class JobRunner:
    """Runs circuits as jobs on a QPU.

    :param qpu: job's side of a QPU that accepts circuits
    :param passes: names of passes, separated by commas
    """

    def __init__(self, qpu: JobSide, passes: str = "") -> None:
        self.name = qpu.name
        self.backend = QpuBackend(qpu)
        self._qpu = qpu
        self._passes = Passes(passes, self.backend.described)
        self._passes.check_shots()
        self._draws: Random | None = None
        self.info: dict[str, JSON] = {}

    def seeded(self, seed: int) -> JobRunner:
        """See :meth:`~sf_quantum.samplers.qaoa.CircuitRunner.seeded`."""
        runner = copy(self)
        runner._draws, runner.info = Random(seed), {}
        return runner

    def mitigated(self, passes: str) -> JobRunner:
        """See :meth:`~sf_quantum.samplers.qaoa.CircuitRunner.mitigated`."""
        return JobRunner(self._qpu, passes)

    def reads(
        self, circuit: QuantumCircuit, values: Doubles, shots: int
    ) -> tuple[Bits, dict[str, float]]:
        """Run a circuit; an interrupt cancels its job on the QPU."""
        text = qasm3.dumps(circuit.assign_parameters(values))
        circuits, combine = self._passes.expanded(text)
        payload = json.dumps(circuits[0] if len(circuits) == 1 else circuits)
        tag = f"sfq-{secrets.token_hex(8)}"
        # each circuit has its own seed, so the reads of circuits are independent
        seed = None if self._draws is None else self._draws.randrange(SEEDS)
        task = Task(tag, "circuit", payload, {"num_reads": shots, "seed": seed})
        outcome = self._qpu.run_job(task)
        who = f"QPU {self.name!r}"
        if outcome.result is None:
            raise QpuError(f"{who}: {outcome.failure or 'the job was cancelled'}")
        counts = counters(who, outcome.result.text, len(circuits))
        info = outcome.result.info
        self.info = {name: info[name] for name in PASSED_ON if name in info}
        seconds = outcome.qpu_seconds
        times = {} if seconds is None else {"qpu_seconds": seconds}
        return bits(combine(iter(counts))), times


def bits(counts: Counts) -> Bits:
    """Return the bits of each shot, first bit first, in an array of shape (shots, bits)."""
    counted = whole(counts)
    rows = [[int(bit) for bit in reversed(word)] for word in counted]
    return np.repeat(np.array(rows, np.int8), [*counted.values()], axis=0)
