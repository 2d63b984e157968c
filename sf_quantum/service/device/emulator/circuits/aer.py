"""Circuits simulated by Aer.

Only separate processes import Qiskit and Aer, which take half a second.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import JobParameters, shots_of
from sf_quantum.samplers.defaults import SEEDS
from sf_quantum.service.device.emulator.circuits.batches import Group, batch
from sf_quantum.service.device.emulator.circuits.circuit import ARCHITECTURE
from sf_quantum.service.device.emulator.circuits.noise import NOISY, noise_model
from sf_quantum.service.device.emulator.circuits.openqasm import PLAIN
from sf_quantum.service.device.emulator.device_errors import Noise
from sf_quantum.text import described

if TYPE_CHECKING:
    from qiskit import QuantumCircuit
    from qiskit.circuit import Qubit
    from qiskit_aer import AerSimulator

# Circuits with more qubits are simulated with matrix-product states.
MOST_QUBITS = 28
# Memory of an amplitude.
AMPLITUDE_BYTES = 16
# Circuits with errors and more qubits than this are simulated shot by shot.
MOST_DENSITY_QUBITS = 10
EXACT, DENSITY, BONDS = "statevector", "density_matrix", "matrix_product_state"
# Number of times each amplitude is changed: by a gate with its error, by a measurement or
# reset if each shot is simulated, and by the sampling of all shots if one run suffices.
ERROR_WORK, MEASURE_WORK, SAMPLING_WORK = 2, 10, 50
# Additional work, in amplitudes: per shot (0.1 ms), per gate on matrix-product states (10 us),
# and per such gate and cube of the bond dimension.
SHOT_AMPLITUDES, BOND_AMPLITUDES, BOND_CUBE_AMPLITUDES = 50_000, 5000, 12
# A call of Aer gets no further circuit once it has this many gates and measurements.
MOST_STEPS = 100_000


def size(
    payload: JSON, architecture: JSON, noisy: bool, bond_dimension: int
) -> dict[str, JSON]:
    """Reject circuits that a device cannot run.

    :param noisy: whether the device has errors
    :returns: the fields of the circuits' :class:`~sf_quantum.service.domain.jobs.Size`
    :raises InputError: if a device cannot run a circuit; the message says why
    """
    groups = batch(payload, ARCHITECTURE.validate_python(architecture)).groups
    shots = amplitudes = gates = bits = qubits = 0
    for group in groups:
        circuit, circuits = group.circuit, len(group.numbers)
        gates += circuits * _count_operations(circuit)
        bits += circuits * circuit.num_clbits
        qubits = max(qubits, used := len(_used(circuit)))
        method = _method(circuit, noisy)
        once = method == DENSITY or (_sampled(circuit) and not noisy)
        if method == BONDS:
            work = _bond_work(circuit, bond_dimension)
        else:
            amplitudes_of = 2 * used if method == DENSITY else used
            work = _work(circuit, noisy=noisy, once=once) << amplitudes_of
        if once:
            amplitudes += circuits * work
        else:
            shots += circuits * (work + SHOT_AMPLITUDES)
    return {
        "values": bits,
        "qubits": qubits,
        "circuits": sum(len(group.numbers) for group in groups),
        "gates": gates,
        "amplitudes": amplitudes,
        "shot_amplitudes": shots,
    }


def _work(circuit: QuantumCircuit, *, noisy: bool, once: bool) -> int:
    """Estimate how many times each amplitude is changed.

    :param once: whether one run of the circuit suffices for all shots
    """
    counts = Counter(name for name, _ in _operations(circuit))
    with_errors = sum(counts[name] for name in NOISY) if noisy else 0
    work = counts.total() + with_errors * (ERROR_WORK - 1)
    if once:
        return work + SAMPLING_WORK
    return work + (counts["measure"] + counts["reset"]) * (MEASURE_WORK - 1)


def _bond_work(circuit: QuantumCircuit, bond_dimension: int) -> int:
    """Estimate the work on matrix-product states, in amplitudes that are changed.

    This is the worst case, in which every second two-qubit gate on a qubit doubles the bond
    dimension.
    """
    gates_on: Counter[Qubit] = Counter()
    work, most = 0, (bond_dimension - 1).bit_length()
    for name, qubits in _operations(circuit):
        bonds = 0
        if len(qubits) > 1 and name != "if_else":
            gates_on.update(qubits)
            bonds = min(-(-min(gates_on[qubit] for qubit in qubits) // 2), most)
        work += BOND_AMPLITUDES + (BOND_CUBE_AMPLITUDES << 3 * bonds)
    return work


def simulate(
    content: JSON,
    parameters: JobParameters,
    noise: Noise | None,
    bond_dimension: int,
    *,
    architecture: JSON = None,
) -> dict[str, JSON]:
    """Return the counts of bit strings that begin with the last bit of the last register.

    :param architecture: architecture against which the job was checked; ``None`` for any
    :raises InputError: if a circuit cannot be simulated
    """
    native = architecture and ARCHITECTURE.validate_python(architecture)
    job = batch(content, native or None)
    seed = parameters.get("seed") or 0
    shots = shots_of(parameters)
    # errors change with each attempt
    seed = (seed + (noise.seed if noise else 0)) % SEEDS
    by_simulator: dict[tuple[str, frozenset[str], bool], list[Group]] = {}
    for group in job.groups:
        method = _method(group.circuit, noise is not None)
        names = frozenset(name for name, _ in _operations(group.circuit))
        if is_branched := "if_else" in names:
            group = replace(group, circuit=_without_idle(group.circuit))
        kind = method, names & NOISY if noise else frozenset(), is_branched
        by_simulator.setdefault(kind, []).append(group)
    counters: dict[int, JSON] = {}
    for (method, names, is_branched), groups in by_simulator.items():
        simulator = _simulator(method, names, noise, bond_dimension)
        # Aer 0.18 leaves out qubits that no measurement depends on, and then fails if a
        # branch has such a qubit.
        simulator.set_options(enable_truncation=not is_branched)
        own_seed = seed + groups[0].numbers[0]
        counters.update(_counters(simulator, groups, shots, own_seed))
    if job.single:
        return {"counter": counters[0]}
    return {"counters": [counters[number] for number in range(len(counters))]}


def _simulator(
    method: str, names: frozenset[str], noise: Noise | None, bond_dimension: int
) -> AerSimulator:
    from qiskit_aer import AerSimulator

    model = None
    if noise is not None:
        # The age is rounded, so that a cached model can be used for several jobs.
        present = replace(noise.calibration, age=round(noise.calibration.age, 2))
        errors = frozenset(noise.errors.aged(present.age, present.excess).items())
        model = noise_model(names, errors, method == DENSITY)
    return AerSimulator(
        method=method,
        noise_model=model,
        max_parallel_threads=1,
        matrix_product_state_max_bond_dimension=bond_dimension,
    )


def _counters(
    simulator: AerSimulator, groups: Sequence[Group], shots: int, seed: int
) -> Iterator[tuple[int, dict[str, JSON]]]:
    """Yield the counts of circuits, each with its number in the job."""
    numbered = (
        one
        for group in groups
        for one in zip(group.numbers, group.bound(), strict=True)
    )
    for part in _parts(numbered):
        counts = _counts(simulator, [circuit for _, circuit in part], shots, seed)
        yield from zip((number for number, _ in part), counts, strict=True)
        # Aer derives the seed of each circuit of a part from the seed of the part.
        seed = (seed + len(part)) % SEEDS


def _parts(
    circuits: Iterable[tuple[int, QuantumCircuit]],
) -> Iterator[list[tuple[int, QuantumCircuit]]]:
    """Yield circuits in parts of limited size, since Aer copies all circuits of a call."""
    part: list[tuple[int, QuantumCircuit]] = []
    steps = 0
    for one in circuits:
        part.append(one)
        steps += 1 + _count_operations(one[1])
        if steps > MOST_STEPS:
            yield part
            part, steps = [], 0
    if part:
        yield part


def _counts(
    simulator: AerSimulator, circuits: list[QuantumCircuit], shots: int, seed: int
) -> Iterator[dict[str, JSON]]:
    from qiskit_aer.aererror import AerError

    try:
        result = simulator.run(circuits, shots=shots, seed_simulator=seed).result()
    except AerError as error:
        raise InputError(described(error)) from error
    if not result.success:
        failed = (one.status for one in result.results if not one.success)
        raise InputError(f"Aer: {next(failed, result.status)}"[:300])
    for place, circuit in enumerate(circuits):
        width, counts = circuit.num_clbits, result.data(place)["counts"]
        by_number = sorted(
            (int(word, 16), int(count)) for word, count in counts.items()
        )
        yield {f"{word:0{width}b}": count for word, count in by_number}


def _method(circuit: QuantumCircuit, noisy: bool) -> str:
    """Choose the method, considering the memory limit of this process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = len(_used(circuit))
    if noisy and used <= MOST_DENSITY_QUBITS and _sampled(circuit):
        return DENSITY
    fits = limit == resource.RLIM_INFINITY or 2 * AMPLITUDE_BYTES << used <= limit
    return EXACT if fits and used <= MOST_QUBITS else BONDS


def _operations(
    circuit: QuantumCircuit, places: Sequence[Qubit] | None = None
) -> Iterator[tuple[str, Sequence[Qubit]]]:
    """Yield the name and the qubits of each operation, in branches as well.

    :param places: for a branch, the qubits of the whole circuit that it has
    """
    place = dict(zip(circuit.qubits, places or circuit.qubits, strict=True))
    for one in circuit.data:
        qubits = [place[qubit] for qubit in one.qubits]
        yield one.operation.name, qubits
        for block in getattr(one.operation, "blocks", ()):
            yield from _operations(block, qubits)


def _count_operations(circuit: QuantumCircuit) -> int:
    """Count the operations of a circuit, in branches as well."""
    if not circuit.has_control_flow_op():
        return len(circuit.data)  # without a visit to each operation
    return sum(1 for _ in _operations(circuit))


def _used(circuit: QuantumCircuit) -> set[Qubit]:
    """Return the qubits that a circuit uses; no others are simulated."""
    return {qubit for one in circuit.data for qubit in one.qubits}


def _without_idle(circuit: QuantumCircuit) -> QuantumCircuit:
    """Return a circuit without the qubits that it does not use."""
    from qiskit import QuantumCircuit

    used = _used(circuit)
    qubits = [qubit for qubit in circuit.qubits if qubit in used]
    compact = QuantumCircuit(qubits, circuit.clbits, global_phase=circuit.global_phase)
    for register in circuit.cregs:
        compact.add_register(register)
    for one in circuit.data:
        compact.append(one, copy=False)
    return compact


def _sampled(circuit: QuantumCircuit) -> bool:
    """Return whether a circuit measures only at its end: one run suffices for all shots."""
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
