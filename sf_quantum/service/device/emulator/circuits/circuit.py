"""Circuits in OpenQASM: the service's checks before a separate process reads them.

Neither Qiskit nor Aer is imported here; see :mod:`.openqasm` and :mod:`.aer`.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from pydantic import TypeAdapter

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.protocol.descriptions import Description
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.circuits import texts
from sf_quantum.service.device.emulator.computation import Computation, SeparateRunner
from sf_quantum.service.device.processes import process_pool
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.service.domain.jobs import Kind, Size

#: Largest number of characters in all texts of a job.
MAX_CHARACTERS = 4 * 2**20
MAX_STATEMENTS = 100_000
#: Largest numbers of classical bits and of qubits in a circuit.
MAX_BITS = MAX_QUBITS = 10_000
#: Largest number of gates, measurements and resets, with the circuit's own gates expanded.
MAX_STEPS = 100_000
# Limits of the CPU time of a check, in seconds; usually a check takes a quarter of its limit.
LEAST_SECONDS, CHARACTERS_PER_SECOND, CHECK_SECONDS = 10, 20_000, 60
PACKAGES = {
    "qiskit": "qiskit",
    "qiskit_aer": "qiskit-aer",
    "qiskit_qasm3_import": "qiskit-qasm3-import",
}


@dataclass(frozen=True)
class Architecture:
    """The qubits and gates that a circuit may use on a device.

    :param qubits: number of qubits, including those out of service if there are native gates
    :param couplers: pairs of qubits for native gates, lower number first
    :param gates: names of the native gates; empty if any gate may act on any qubits
    """

    qubits: int
    couplers: Sequence[tuple[int, int]] = ()
    gates: Sequence[str] = ()
    out_of_service: Sequence[int] = ()

    @classmethod
    def of(cls, description: Description) -> Self:
        """Return the architecture of a device."""
        if not description.native_gates or (graph := description.topology) is None:
            return cls(description.qubits)
        broken = sorted(description.out_of_service)
        return cls(graph.labels, graph.couplers, description.native_gates, broken)


ARCHITECTURE: TypeAdapter[Architecture] = TypeAdapter(Architecture)


@dataclass(frozen=True)
class CircuitSimulator(SeparateRunner):
    """Simulates circuits; see :class:`.runners.Runner`.

    :param architecture: architecture of the device; by default, all gates on any qubits
    :param noisy: whether the device has errors
    """

    kind: ClassVar[Kind] = "circuit"
    architecture: Architecture | None = None
    limits: ComputeLimits = field(default_factory=ComputeLimits)
    noisy: bool = False

    def check(self, content: JSON, *, qubits: int) -> Size:
        """See :meth:`.runners.Runner.check`; takes milliseconds for small circuits."""
        given, circuits = texts(content)
        if circuits > (most := self.limits.circuits):
            raise FieldError("circuit", f"{circuits} circuits; at most {most} per job")
        if (long := sum(map(len, given))) > MAX_CHARACTERS:
            detail = f"{long:,} characters; at most {MAX_CHARACTERS:,} per job"
            raise FieldError("circuit", detail)
        # counted before parsing, as the parser needs time for each statement
        if sum(text.count(";") for text in given) > MAX_STATEMENTS:
            detail = f"more than {MAX_STATEMENTS:,} statements per job"
            raise FieldError("circuit", detail)
        if problem := installation_problem():
            raise FieldError("circuit", problem)
        architecture = self.architecture or Architecture(qubits)
        architecture_json = ARCHITECTURE.dump_python(architecture, mode="json")
        arguments: dict[str, JSON] = {
            "architecture": architecture_json,
            "noisy": self.noisy,
        }
        arguments["bond_dimension"] = self.limits.bond_dimension
        seconds = LEAST_SECONDS + long // CHARACTERS_PER_SECOND
        seconds = min(seconds, CHECK_SECONDS, self.limits.cpu_seconds)
        limits = self.limits.model_copy(update={"cpu_seconds": seconds})
        try:
            answer = process_pool.check("size", arguments, json.dumps(content), limits)
        except InputError as error:
            raise FieldError("circuit", str(error)) from error
        return Size(**json.loads(answer.text))

    def arguments(self, computation: Computation) -> dict[str, JSON]:
        """See :meth:`SeparateRunner.arguments`.

        :raises InputError: if a package is missing
        """
        if problem := installation_problem():
            raise InputError(problem)
        given = super().arguments(computation)
        bond = computation.limits.bond_dimension
        architecture: JSON = None
        if self.architecture is not None:
            architecture = ARCHITECTURE.dump_python(self.architecture, mode="json")
        return {**given, "bond_dimension": bond, "architecture": architecture}


def installation_problem() -> str | None:
    """Return a message if a package is missing, else ``None``; imports nothing."""
    missing = [
        PACKAGES[name] for name in PACKAGES if importlib.util.find_spec(name) is None
    ]
    if not missing:
        return None
    what = f"{missing[0]} is not installed (pip install 'sf-quantum[circuits]')"
    return f"this service cannot run circuits: {what}"
