"""The runner of pulse sequences, which are in Pulser's abstract representation.

This module does not import Pulser: separate processes check and simulate the sequences.
"""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Callable
from functools import cache
from typing import ClassVar

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Result
from sf_quantum.samplers.defaults import ATOMS
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.emulator.computation import (
    Computation,
    SeparateRunner,
    evolution,
)
from sf_quantum.service.device.processes import process_pool
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.service.device.processes.process_pool import ask
from sf_quantum.service.domain.jobs import Kind, Size

# Maximum CPU time of a check. The check of a sequence with many pulses takes a second.
MAX_CHECK_CPU_SECONDS = 30
# Maximum length of a sequence.
MAX_CHARACTERS = 4 * 2**20
# Error if a sequence is submitted to an installation without Pulser.
MISSING_PULSER = (
    "this service cannot run sequences: pulser-simulation is not installed "
    "(pip install 'sf-quantum[pulser]')"
)
_specs_lock = threading.Lock()


class SequenceSimulator(SeparateRunner):
    """Simulates sequences; see :class:`.runners.Runner`."""

    kind: ClassVar[Kind] = "sequence"

    def check(self, content: JSON, *, qubits: int) -> Size:
        """See :meth:`.runners.Runner.check`; takes about a second."""
        if not isinstance(content, str):
            raise FieldError("sequence", "expected text")
        if not available():
            raise FieldError("sequence", MISSING_PULSER)
        if len(content) > MAX_CHARACTERS:
            detail = f"{len(content):,} characters; at most {MAX_CHARACTERS:,}"
            raise FieldError("sequence", detail)
        payload, limits = json.dumps(content), ComputeLimits(
            cpu_seconds=MAX_CHECK_CPU_SECONDS
        )
        try:
            answer = process_pool.check("check", {"qubits": qubits}, payload, limits)
        except InputError as error:
            raise FieldError("sequence", str(error)) from error
        report = json.loads(answer.text)
        atoms, nanoseconds = report["atoms"], report["nanoseconds"]
        if atoms > ATOMS["qutip"]:
            # emu-mps simulates so many atoms; its work is estimated differently.
            return Size(atoms, sites=atoms * nanoseconds, qubits=atoms)
        radians, levels = report["radians"], report["levels"]
        evolved = evolution(atoms, nanoseconds, radians=radians, levels=levels)
        return Size(atoms, evolution=evolved, qubits=atoms)

    def run(self, computation: Computation, interrupted: Callable[[], bool]) -> Result:
        """See :meth:`.runners.Runner.run`.

        The result contains ``counter``, as in Pasqal's cloud service.
        """
        if not available():
            raise InputError(MISSING_PULSER)
        return super().run(computation, interrupted)

    def arguments(self, computation: Computation) -> dict[str, JSON]:
        """See :meth:`SeparateRunner.arguments`."""
        bond = computation.limits.bond_dimension
        return {**super().arguments(computation), "bond_dimension": bond}


def specs(name: str, qubits: int) -> str:
    """Return Pulser's abstract representation of a device as JSON; may take a second.

    :param name: name of the device; without Pulser, the result contains only the name
    :param qubits: maximum number of atoms
    """
    with _specs_lock:  # so that concurrent calls start a single process
        return _specs(name, qubits)


def available() -> bool:
    """Return whether Pulser and its simulator are installed; imports neither of them."""
    names = ("pulser", "pulser_simulation")
    return all(importlib.util.find_spec(name) is not None for name in names)


@cache
def _specs(name: str, qubits: int) -> str:
    if available():
        answer = ask("specs", {"qubits": qubits}, "", lambda: False)
        specs = json.loads(answer.text)["specs"] if answer else None
        if isinstance(specs, str):
            return specs
    return json.dumps({"name": name})
