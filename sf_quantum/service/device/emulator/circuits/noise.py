"""Aer's model of the gate errors and read-out errors of circuits."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from sf_quantum.service.device.emulator.technologies import (
    ONE_QUBIT_SECONDS,
    TWO_QUBITS_SECONDS,
)

if TYPE_CHECKING:
    from qiskit_aer.noise import NoiseModel

# Gates that have an error. Gates that only shift the phase of later gates have none, as
# IBM's and IQM's QPUs perform them without a pulse (McKay et al., "Efficient Z gates for
# quantum computing", arXiv:1612.00858).
ONE_QUBIT = frozenset("h r rx ry sx sxdg u u2 u3 x y".split())
TWO_QUBITS = frozenset("cp cx cy cz ecr rxx ryy rzx rzz swap".split())
NOISY = ONE_QUBIT | TWO_QUBITS


@lru_cache(maxsize=100)
def noise_model(
    names: frozenset[str], errors: frozenset[tuple[str, float]], kraus: bool
) -> NoiseModel:
    """Build the model of gate errors and read-out errors.

    As in IQM's fake backends, a gate has a depolarising error and, for its duration, the
    relaxation of its qubits; idle qubits have no errors.

    :param names: names of the gates that need errors; each gate costs Aer some time
    :param kraus: whether to write errors as Kraus matrices, which are faster to apply to
        density matrices
    """
    from qiskit.quantum_info import Kraus, SuperOp
    from qiskit_aer.noise import (
        NoiseModel,
        QuantumError,
        ReadoutError,
        depolarizing_error,
        thermal_relaxation_error,
    )

    rates = dict(errors)
    zeros = rates.get("readout_false_one", 0.0)
    ones = rates.get("readout_false_zero", 0.0)

    def relaxation(seconds: float) -> QuantumError:
        # A qubit without known times does not relax.
        t1, t2 = rates.get("t1_seconds", math.inf), rates.get("t2_seconds", math.inf)
        return thermal_relaxation_error(t1, min(t2, 2 * t1), seconds)

    one, two = relaxation(ONE_QUBIT_SECONDS), relaxation(TWO_QUBITS_SECONDS)
    channels = (
        one.compose(depolarizing_error(rates.get("gate_error_one_qubit", 0.0), 1)),
        two.tensor(two).compose(
            depolarizing_error(rates.get("gate_error_two_qubits", 0.0), 2)
        ),
    )
    if kraus:
        channels = tuple(QuantumError(Kraus(SuperOp(each))) for each in channels)
    model = NoiseModel()
    for channel, gates in zip(channels, (ONE_QUBIT, TWO_QUBITS), strict=True):
        if noisy := sorted(names & gates):
            model.add_all_qubit_quantum_error(channel, noisy)
    read = ReadoutError([[1 - zeros, zeros], [ones, 1 - ones]])
    model.add_all_qubit_readout_error(read)
    return model
