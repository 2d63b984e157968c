"""The ground state of a transverse-field Ising chain by Ocean, on a quantum annealer.

H = -sum Z_i Z_i+1 - sum X_i, four qubits in an open chain; its least energy is -4.75877.
An annealer finds the ground states of Z Z couplings only. Here it finds the amplitudes
of H's ground state, as in Teplukhin, Kendrick and Babikov, J. Chem. Theory Comput. 15,
4555 (2019): it minimises v (H - E) v for the present energy E, where each amplitude of v
takes one of three values (two spins); with the new v and E, this is repeated.
"""

import dimod
import numpy as np
from dwave.system import DWaveCliqueSampler

QUBITS, EXACT, READS = 4, -4.75877, 100
# H does not change if all spins are flipped, nor does its ground state: the first spin of
# a basis state can be up, and X of the first qubit is X of all the others
STATES = 2 ** (QUBITS - 1)
spins = [[1, *(1 - 2 * (s >> i & 1) for i in range(QUBITS - 1))] for s in range(STATES)]
H = np.diag([-float(np.dot(spin[1:], spin[:-1])) for spin in spins])
for state in range(STATES):
    for flipped in (STATES - 1, *(1 << i for i in range(QUBITS - 1))):
        H[state, state ^ flipped] -= 1.0

# an amplitude changes by the step times (s + t) / 2
steps = np.kron(np.eye(STATES), [[0.5, 0.5]])
sampler = DWaveCliqueSampler()
v, step = np.full(STATES, STATES**-0.5), 0.2
for _ in range(12):
    shifted = H - (v @ H @ v) * np.eye(STATES)
    couplings = step**2 * steps.T @ shifted @ steps
    fields = 2 * step * v @ shifted @ steps
    problem = dimod.BQM(fields, 2 * np.triu(couplings, 1), "SPIN")
    best = sampler.sample(problem, num_reads=READS).first.sample
    change = step * steps @ [best[i] for i in range(2 * STATES)]
    if not change.any():
        step /= 2
    v = (v + change) / np.linalg.norm(v + change)
print(f"energy {v @ H @ v:.3f}, exact {EXACT}")
