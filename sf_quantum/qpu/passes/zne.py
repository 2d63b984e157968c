"""Zero-noise extrapolation with Mitiq, if it is installed.

R. LaRose et al., Mitiq: a software package for error mitigation on noisy quantum
computers, Quantum 6, 774 (2022). A circuit runs unchanged, and folded (followed by its
inverse and itself) so that it has three and five times as many gates. The counts are then
extrapolated to no noise. The result is linear in the counts: extrapolating the counts also
extrapolates each expectation value of measured bits.

Mitiq converts Qiskit's circuits to OpenQASM 2, which has no ``r``, and so returns other gates
than the QPU's. So Mitiq gets Cirq's circuits instead, which can have the QPU's gates.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sf_quantum.errors import InputError
from sf_quantum.protocol.descriptions import Description
from sf_quantum.qpu.native_circuits import NativeCircuit, read
from sf_quantum.qpu.passes import Counts, Pass
from sf_quantum.samplers.problem import FieldError

if TYPE_CHECKING:
    from cirq import Circuit
    from cirq import Operation as CirqOperation

# Factors by which the noise is scaled.
SCALES = (1.0, 3.0, 5.0)
NEEDED = "mitiq", "cirq"
R = "gate r(p0, p1) q { U(p0, p1 - pi/2, pi/2 - p1) q; }"


class Zne(Pass):
    """Extrapolates to zero noise, with a parabola through the values at three noise scales."""

    quasi = True

    def __init__(self, described: Description) -> None:
        super().__init__(described)
        if not all(map(importlib.util.find_spec, NEEDED)):
            raise InputError(
                "mitigation zne: the package mitiq is not installed "
                "(pip install 'sf-quantum[mitigation]')"
            )
        from mitiq.zne.inference import RichardsonFactory

        # The result is linear in the values, so each value has a fixed weight.
        self.weights = [
            float(
                RichardsonFactory.extrapolate(SCALES, [float(s == t) for t in SCALES])
            )
            for s in SCALES
        ]

    def circuits(self, circuit: str) -> Sequence[str]:
        """Return the circuit in native gates at each noise scale.

        :raises InputError: if the circuit uses a qubit after its measurement, or has gates
            that cannot be inverted
        """
        from mitiq.zne.scaling import fold_global

        native = self._native(circuit)
        whole = _cirq(native)
        return [
            _openqasm(native, fold_global(whole, scale) if whole else whole)
            for scale in SCALES
        ]

    def counts(self, counts: Sequence[Counts]) -> Counts:
        """See :meth:`Pass.counts`."""
        words = dict.fromkeys(word for one in counts for word in one)
        pairs = [*zip(self.weights, counts, strict=True)]
        return {
            word: sum(weight * one.get(word, 0) for weight, one in pairs)
            for word in words
        }

    def _native(self, circuit: str) -> NativeCircuit:
        try:
            try:
                return read(circuit)[0]
            except FieldError:
                if self.described.native_gates:
                    raise
                return read(_translated(circuit))[0]
        except FieldError as error:
            raise InputError(f"mitigation zne: {error}") from error


def _translated(circuit: str) -> str:
    """Translate a circuit with any gates to ``r`` and ``cz``."""
    try:
        from qiskit import qasm3, transpile
        from qiskit.exceptions import QiskitError

        loaded = qasm3.loads(circuit)
    except ImportError as error:
        detail = "reading the circuit needs pip install 'sf-quantum[circuits]'"
        raise InputError(f"mitigation zne: {detail}") from error
    try:
        text: str = qasm3.dumps(transpile(loaded, basis_gates=["r", "cz"]))
        return text
    except QiskitError as error:
        detail = "the circuit has more than gates and measurements at its end"
        raise InputError(f"mitigation zne: {detail}") from error


def _cirq(circuit: NativeCircuit) -> Circuit:
    """Convert the gates; final measurements and barriers are left out."""
    from cirq import CZ, Circuit, LineQubit, PhasedXPowGate

    def gates() -> Iterator[CirqOperation]:
        measured: set[int] = set()
        for one in circuit.operations:
            if one.name == "barrier":
                continue
            if measured.intersection(one.qubits):
                qubit = min(measured.intersection(one.qubits))
                detail = f"qubit {qubit} is used again after its measurement"
                raise InputError(f"mitigation zne: {detail}")
            if one.name == "measure":
                measured.update(one.qubits)
                continue
            qubits = [LineQubit(qubit) for qubit in one.qubits]
            if one.name == "cz":
                yield CZ(*qubits)
            else:
                angle, phase = (value / math.pi for value in one.values)
                yield PhasedXPowGate(exponent=angle, phase_exponent=phase)(*qubits)

    return Circuit(gates())


def _openqasm(circuit: NativeCircuit, folded: Circuit) -> str:
    """Write a folded circuit in OpenQASM 3, with the measurements of the original."""
    from cirq import CZPowGate

    lines = [
        "OPENQASM 3.0;",
        'include "stdgates.inc";',
        R,
        f"bit[{circuit.bits}] c;",
        f"qubit[{circuit.qubits}] q;",
    ]
    for one in folded.all_operations():
        operands = ", ".join(f"q[{qubit.x}]" for qubit in one.qubits)
        if isinstance(one.gate, CZPowGate):
            lines.append(f"cz {operands};")
        else:
            angle = one.gate.exponent * math.pi
            phase = one.gate.phase_exponent * math.pi
            lines.append(f"r({angle!r}, {phase!r}) {operands};")
    lines += [
        f"c[{one.bit}] = measure q[{one.qubits[0]}];"
        for one in circuit.operations
        if one.name == "measure"
    ]
    return "\n".join([*lines, ""])
