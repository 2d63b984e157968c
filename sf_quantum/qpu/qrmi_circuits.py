"""QPUs behind QRMI on which the sampler ``qaoa`` runs its circuits."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import qrmi

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu import qrmi_client
from sf_quantum.qpu.qrmi_client import Tasks
from sf_quantum.samplers.states import Bits

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from qiskit import QuantumCircuit
    from qiskit.primitives import BaseSamplerV2
    from qiskit.providers import BackendV2


class PrimitiveRunner:
    """A QPU behind one of QRMI's own samplers, such as IBM's.

    :param who: names the QPU, in error messages
    """

    def __init__(
        self, name: str, sampler: BaseSamplerV2, backend: BackendV2, who: str
    ) -> None:
        self.name = name
        self.backend = backend
        self._sampler = sampler
        self._who = who

    def reads(
        self, circuit: QuantumCircuit, values: NDArray[np.float64], shots: int
    ) -> tuple[Bits, None]:
        """Run a circuit; interrupted, its job is stopped on the QPU.

        :raises QpuError: if the job fails or the QPU does not answer
        """
        with qrmi_client.errors(self._who):
            job = self._sampler.run([(circuit, values)], shots=shots)
            try:
                data = job.result()[0].data
            except BaseException:
                with suppress(RuntimeError):
                    job.cancel()
                raise
        return np.asarray(data.meas.to_bool_array(order="little"), np.int8), None


class IqmRunner:
    """An IQM QPU.

    QRMI's backend compiles for it and writes its requests. Qiskit's ``BackendSamplerV2``
    is not used, since it would read the answered bits as hexadecimal digits.

    :param client: QRMI's
    :param who: names the QPU, in error messages
    """

    def __init__(self, name: str, client: Tasks, who: str) -> None:
        from qrmi.qiskit_iqm import QRMIBackend

        self.name = name
        self._client = client
        self._who = who
        with qrmi_client.errors(who):
            try:
                self.backend = QRMIBackend(client)
            except (ValueError, KeyError, TypeError) as error:
                raise QpuError(f"{who}: its target is not a QPU") from error

    def reads(
        self, circuit: QuantumCircuit, values: NDArray[np.float64], shots: int
    ) -> tuple[Bits, dict[str, float]]:
        """Run a circuit; interrupted, its task is stopped on the QPU.

        :raises InputError: if the circuit does not suit the QPU
        :raises QpuError: if the task fails, or its answer has no reads
        """
        from iqm.iqm_client import CircuitValidationError

        bound = circuit.assign_parameters(values)
        try:
            request = self.backend.create_run_request(bound, shots=shots)
        except CircuitValidationError as error:
            raise InputError(f"{self._who}: {error}") from error
        payload = qrmi.Payload.IQMServer(
            iqmjson=request.model_dump_json(),
            job_type="circuit",
            use_timeslot=False,
            tag=None,
        )
        with qrmi_client.errors(self._who):
            answer, timing = qrmi_client.run(self._client, payload, self._who)
        try:
            (measured,) = json.loads(answer)["measurements"]
            return _bits(measured, bound.num_clbits), timing
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise QpuError(
                f"{self._who}: its answer has no reads of the circuit"
            ) from error


def _bits(measured: dict[str, JSON], count: int) -> Bits:
    """Combine the reads of single qubits.

    :param measured: by the name of the measurement, which ends with its bit's number
    """
    columns = {
        int(key.rpartition("_")[2]): np.array(reads, np.int8)[:, 0]
        for key, reads in measured.items()
    }
    return np.stack([columns[number] for number in range(count)], axis=1)
