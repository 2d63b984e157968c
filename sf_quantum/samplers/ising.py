"""The Ising form of a problem, normalized for QAOA circuits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from dimod import SPIN, BinaryQuadraticModel
from numpy.typing import NDArray

from sf_quantum.samplers.states import Bits


@dataclass(frozen=True)
class Ising:
    """An Ising energy, scaled to about one per spin so that angles carry over.

    Bit 1 is spin -1, as in Qiskit's measurements. The constant term is dropped.

    :param fields: one per spin
    :param couplings: (spin, spin, coupling)
    """

    fields: NDArray[np.float64]
    couplings: list[tuple[int, int, float]]

    @classmethod
    def of(cls, bqm: BinaryQuadraticModel) -> Ising:
        """Convert a model; spins are in the order of its variables."""
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
        """Compute the energy of each read."""
        spins = 1.0 - 2.0 * rows
        energies = spins @ self.fields
        for i, j, coupling in self.couplings:
            energies += coupling * spins[:, i] * spins[:, j]
        return np.asarray(energies)
