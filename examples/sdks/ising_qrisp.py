"""The ground state of a transverse-field Ising chain by Qrisp: VQE on the job's QPU.

H = -sum Z_i Z_i+1 - sum X_i, four qubits in an open chain; its least energy is -4.75877.
The best state of these two layers has -4.73527.
"""

from collections.abc import Sequence

from qrisp import QuantumVariable, h, rx, rzz
from qrisp.interface import QiskitBackend
from qrisp.operators import X, Z
from scipy.optimize import minimize

from sf_quantum.qpu.environment import leased

QUBITS, EXACT = 4, -4.75877
hamiltonian = -1 * sum(Z(i) * Z(i + 1) for i in range(QUBITS - 1))
hamiltonian -= sum(X(i) for i in range(QUBITS))
backend = QiskitBackend(leased().backend())


def state(*angles: float) -> QuantumVariable:
    """Prepare the state with these angles."""
    qubits = QuantumVariable(QUBITS)
    h(qubits)
    for zz, x in (angles[:2], angles[2:]):
        for i in range(QUBITS - 1):
            rzz(-2 * zz, qubits[i], qubits[i + 1])
        rx(-2 * x, qubits)
    return qubits


measured = hamiltonian.expectation_value(state, precision=0.05, backend=backend)


def energy(angles: Sequence[float]) -> float:
    """Measure the energy of the state with these angles."""
    return float(measured(*angles))


options = {"rhobeg": 0.1, "maxiter": 15}
best = minimize(energy, [0.2, 0.6, 0.4, 0.3], method="COBYLA", options=options)
print(f"energy {energy(best.x):.3f}, exact {EXACT}")
