"""A problem as QAOA's circuits have it: spins instead of bits, and energies of one size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from dimod import SPIN, BinaryQuadraticModel
from numpy.typing import NDArray

from sf_quantum.samplers.states import Bits


@dataclass(frozen=True)
class Ising:
    """An energy of spins, scaled to one unit per spin, so that angles carry over.

    Bit 1 is spin -1, as Qiskit measures it; the constant is left out.
    """

    fields: NDArray[np.float64]
    couplings: list[tuple[int, int, float]]

    @classmethod
    def of(cls, bqm: BinaryQuadraticModel) -> Ising:
        """Take a problem's, the variables in its order."""
        spin = bqm.change_vartype(SPIN, inplace=False)
        vectors = spin.to_numpy_vectors(variable_order=[*bqm.variables])
        rows, columns, couplings = vectors.quadratic
        biases = np.concatenate([vectors.linear_biases, couplings])
        scale = float(np.sqrt((biases**2).sum() / len(vectors.linear_biases))) or 1.0
        # dimod's spin +1 is bit 1
        return cls(
            np.asarray(-vectors.linear_biases / scale, float),
            [
                (int(i), int(j), float(c) / scale)
                for i, j, c in zip(rows, columns, couplings, strict=True)
                if c
            ],
        )

    def energies(self, rows: Bits) -> NDArray[np.float64]:
        """Evaluate it, by read."""
        spins = 1.0 - 2.0 * rows
        energies = spins @ self.fields
        for i, j, coupling in self.couplings:
            energies += coupling * spins[:, i] * spins[:, j]
        return np.asarray(energies)
