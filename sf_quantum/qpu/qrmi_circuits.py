"""QPUs that QRMI reaches, as the machines that the sampler ``qaoa`` runs its circuits on."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import qrmi

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu import qrmi_task
from sf_quantum.samplers.states import Bits

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from qiskit import QuantumCircuit
    from qiskit.primitives import BaseSamplerV2
    from qiskit.providers import BackendV2

Errors: TypeAlias = Callable[[], AbstractContextManager[None]]


class PrimitiveMachine:
    """A machine behind one of QRMI's own samplers, such as IBM's.

    :param errors: turns QRMI's errors into ours
    """

    def __init__(
        self, name: str, sampler: BaseSamplerV2, backend: BackendV2, errors: Errors
    ) -> None:
        self.name = name
        self.backend = backend
        self._sampler = sampler
        self._errors = errors

    def reads(
        self, circuit: QuantumCircuit, values: NDArray[np.float64], shots: int
    ) -> tuple[Bits, None]:
        """Run a circuit; interrupted, its job is stopped on the QPU.

        :raises QpuError: if the job fails or the QPU does not answer
        """
        with self._errors():
            job = self._sampler.run([(circuit, values)], shots=shots)
            try:
                data = job.result()[0].data
            except BaseException:
                with suppress(RuntimeError):
                    job.cancel()
                raise
        return np.asarray(data.meas.to_bool_array(order="little"), np.int8), None


class IqmMachine:
    """An IQM machine.

    QRMI's backend compiles for it and writes its requests. It is not given to Qiskit's
    ``BackendSamplerV2``, which takes the bits that it answers with for hexadecimal
    digits.

    :param client: of QRMI
    :param errors: turns QRMI's errors into ours
    """

    def __init__(self, name: str, client: qrmi_task.Machine, errors: Errors) -> None:
        from qrmi.qiskit_iqm import QRMIBackend

        self.name = name
        self._client = client
        self._errors = errors
        with errors():
            try:
                self.backend = QRMIBackend(client)
            except (ValueError, KeyError, TypeError) as error:
                raise QpuError(f"QPU {name!r}: its target is no machine") from error

    def reads(
        self, circuit: QuantumCircuit, values: NDArray[np.float64], shots: int
    ) -> tuple[Bits, dict[str, float]]:
        """Run a circuit; interrupted, its task is stopped on the QPU.

        :raises InputError: if the circuit does not suit the machine
        :raises QpuError: if the task fails, or its answer has no reads
        """
        from iqm.iqm_client import CircuitValidationError

        bound = circuit.assign_parameters(values)
        try:
            request = self.backend.create_run_request(bound, shots=shots)
        except CircuitValidationError as error:
            raise InputError(f"QPU {self.name!r}: {error}") from error
        payload = qrmi.Payload.IQMServer(
            iqmjson=request.model_dump_json(),
            job_type="circuit",
            use_timeslot=False,
            tag=None,
        )
        who = f"QPU {self.name!r}"
        with self._errors():
            answer, timing = qrmi_task.finished(self._client, payload, who)
        try:
            (measured,) = json.loads(answer)["measurements"]
            return _bits(measured, bound.num_clbits), timing
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise QpuError(f"{who}: its answer has no reads of the circuit") from error


def _bits(measured: dict[str, JSON], count: int) -> Bits:
    """Put the reads of qubits side by side.

    :param measured: by the name of a measurement, which ends with the number of its bit
    """
    columns = {
        int(key.rpartition("_")[2]): np.array(reads, np.int8)[:, 0]
        for key, reads in measured.items()
    }
    return np.stack([columns[number] for number in range(count)], axis=1)
