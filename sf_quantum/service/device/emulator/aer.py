"""Circuits simulated by Aer.

Only separate processes import Qiskit and Aer, which take half a second.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu.jobs import JobParameters
from sf_quantum.service.device.emulator.circuit import ARCHITECTURE
from sf_quantum.service.device.emulator.noise import Noise
from sf_quantum.service.device.emulator.openqasm import PLAIN, batch
from sf_quantum.text import described

if TYPE_CHECKING:
    from qiskit import QuantumCircuit

# with more qubits, a circuit is simulated by matrix-product states
MOST_QUBITS = 28
AMPLITUDE_BYTES = 16


def size(payload: JSON, architecture: JSON) -> dict[str, JSON]:
    """Refuse circuits that a device cannot run.

    :returns: the fields of their :class:`~sf_quantum.service.domain.jobs.Size`
    :raises InputError: with the reason
    """
    circuits = batch(payload, ARCHITECTURE.validate_python(architecture)).circuits
    gates = [sum(1 for _ in circuit.data) for circuit in circuits]
    shots = amplitudes = 0
    for circuit, count in zip(circuits, gates, strict=True):
        work = count << min(_used(circuit), MOST_QUBITS)
        if _sampled(circuit):
            amplitudes += work
        else:
            shots += work
    return {
        "values": sum(circuit.num_clbits for circuit in circuits),
        "circuits": len(circuits),
        "gates": sum(gates),
        "amplitudes": amplitudes,
        "shot_amplitudes": shots,
    }


def simulate(
    content: JSON, parameters: JobParameters, noise: Noise | None, bond_dimension: int
) -> dict[str, JSON]:
    """Return the counts of the bit strings, the last bit of the last register first.

    :raises InputError: if a circuit cannot be simulated
    """
    job = batch(content)
    seed = parameters.get("seed") or 0
    shots = parameters.get("num_reads") or 1
    counters: list[JSON] = []
    for number, circuit in enumerate(job.circuits):
        counter = _counter(circuit, shots, seed + number, bond_dimension)
        counters.append(noise.misread(counter) if noise else {**counter})
    return {"counter": counters[0]} if job.single else {"counters": counters}


def _counter(
    circuit: QuantumCircuit, shots: int, seed: int, bond_dimension: int
) -> Mapping[str, int]:
    from qiskit_aer import AerSimulator
    from qiskit_aer.aererror import AerError

    simulator = AerSimulator(
        method=_method(circuit),
        max_parallel_threads=1,
        matrix_product_state_max_bond_dimension=bond_dimension,
    )
    try:
        result = simulator.run(circuit, shots=shots, seed_simulator=seed).result()
    except AerError as error:
        raise InputError(described(error)) from error
    if not result.success:
        raise InputError(
            f"Aer: {result.results[0].status if result.results else result.status}"[
                :300
            ]
        )
    width = circuit.num_clbits
    told = result.data(0)["counts"]
    return {
        f"{int(word, 16):0{width}b}": int(count)
        for word, count in sorted(told.items(), key=lambda one: int(one[0], 16))
    }


def _method(circuit: QuantumCircuit) -> str:
    """Choose the method by the memory that this process may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _used(circuit)
    fits = limit == resource.RLIM_INFINITY or 2 * AMPLITUDE_BYTES << used <= limit
    return "statevector" if fits and used <= MOST_QUBITS else "matrix_product_state"


def _used(circuit: QuantumCircuit) -> int:
    """Count the qubits that a circuit uses; Aer simulates no others."""
    return len({qubit for one in circuit.data for qubit in one.qubits})


def _sampled(circuit: QuantumCircuit) -> bool:
    """Tell whether one run of a circuit suffices for all shots: it measures at its end."""
    measured = set()
    for one in circuit.data:
        name = one.operation.name
        if name == "measure":
            measured.update(one.qubits)
        elif name in ("reset", "if_else") or (
            name not in PLAIN and not measured.isdisjoint(one.qubits)
        ):
            return False
    return True
