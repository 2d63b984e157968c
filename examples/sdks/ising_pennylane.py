"""The ground state of a transverse-field Ising chain by PennyLane: VQE on the job's QPU.

H = -sum Z_i Z_i+1 - sum X_i, four qubits in an open chain; its least energy is -4.75877.
The best state of these two layers has -4.73527.
"""

import pennylane as qml
from pennylane import numpy as np

from sf_quantum.qpu.environment import leased

QUBITS, EXACT, STEPS = 4, -4.75877, 15
hamiltonian = -qml.sum(
    *(qml.Z(i) @ qml.Z(i + 1) for i in range(QUBITS - 1)),
    *(qml.X(i) for i in range(QUBITS)),
)


@qml.set_shots(2000)
@qml.qnode(leased().device(wires=QUBITS))
def energy(angles: np.tensor) -> np.tensor:
    """Measure the energy of the state with these angles."""
    for i in range(QUBITS):
        qml.Hadamard(i)
    for zz, x in (angles[:2], angles[2:]):
        for i in range(QUBITS - 1):
            qml.IsingZZ(-2 * zz, [i, i + 1])
        for i in range(QUBITS):
            qml.RX(-2 * x, i)
    return qml.expval(hamiltonian)


angles = np.array([0.2, 0.6, 0.4, 0.3], requires_grad=True)
optimizer = qml.SPSAOptimizer(maxiter=STEPS, a=0.03, c=0.1)
for _ in range(STEPS):
    angles = optimizer.step(energy, angles)
print(f"energy {energy(angles):.3f}, exact {EXACT}")
