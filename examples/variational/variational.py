"""The lowest energy of an Ising model by QAOA or a VQE, on the QPU in the environment.

The model is H = sum J_ij Z_i Z_j - h sum X_i. Without the field h, its ground states are
the maximum cuts of a graph, and this is QAOA; with it, this is a VQE with the same circuit.

Three commands: ``next`` has SciPy choose the next angles, ``measure`` measures the energy
there, and ``session`` does both in turn until the end. SciPy's optimisers cannot be stopped
and resumed, but they draw no random numbers either. So ``next`` starts the optimiser again,
gives it the energies that are known, and ends where it asks for another.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from sf_quantum.files import JSON
from sf_quantum.qpu.environment import from_environment

if TYPE_CHECKING:
    import numpy as np
    from qiskit import QuantumCircuit
    from qiskit.providers import BackendV2
    from scipy.optimize._minimize import _MinimizeOptions as _Options

    Vector: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]

#: all angles, at first: linear ramps up to and down from it
RAMP = 0.6
#: of the optimiser's trust region, at first and at the end
RADII = (0.2, 0.02)


@dataclass(frozen=True)
class Problem:
    """What is minimised, and how.

    :param couplings: the names of two spins, and their J
    :param transverse: the field h
    :param layers: of the circuit, with two angles each
    :param shots: of each circuit
    :param evaluations: at most, before the last one
    """

    couplings: list[tuple[str, str, float]]
    transverse: float = 0.0
    layers: int = 2
    shots: int = 4000
    evaluations: int = 40
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before a QPU is held."""
        numbers = {"layers": self.layers, "shots": self.shots}
        for name, value in {**numbers, "evaluations": self.evaluations}.items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: {value!r}: expected a whole number from 1")
        if not self.couplings:
            raise ValueError("couplings: none")
        for one in self.couplings:
            match [*one]:
                case [
                    str(a),
                    str(b),
                    int() | float() as weight,
                ] if a != b and math.isfinite(weight):
                    continue
            raise ValueError(f"couplings: {one}: expected two spins and a number")
        if not math.isfinite(self.transverse):
            raise ValueError(f"transverse: {self.transverse}: expected a number")

    @classmethod
    def read(cls, path: Path) -> Problem:
        """Read it from a file."""
        content = json.loads(path.read_text(encoding="utf-8"))
        known = [one.name for one in fields(cls)]
        for key in content:
            if key not in known:
                raise ValueError(f"unknown key {key!r} (known: {', '.join(known)})")
        return cls(**content)

    @property
    def names(self) -> list[str]:
        """The spins, in the order of the qubits."""
        return sorted({name for a, b, _ in self.couplings for name in (a, b)})

    def diagonal(self, spins: list[int]) -> float:
        """Compute the energy of spins of -1 or 1, without the field."""
        at = dict(zip(self.names, spins, strict=True))
        return sum(weight * at[a] * at[b] for a, b, weight in self.couplings)


@dataclass(frozen=True)
class Evaluation:
    """A measured energy.

    :param spins: the best that were read, without a field
    """

    angles: list[float]
    energy: float
    qpu: str
    spins: list[int] | None = None


@dataclass(frozen=True)
class State:
    """What an iteration passes on to the next.

    :param angles: where to measure next; ``None`` once the optimiser has ended
    """

    problem: Problem
    evaluations: list[Evaluation] = field(default_factory=list)
    angles: list[float] | None = None

    @classmethod
    def read(cls, path: Path) -> State:
        """Read what :meth:`write` has written."""
        content = json.loads(path.read_text(encoding="utf-8"))
        known = [Evaluation(**one) for one in content["evaluations"]]
        return cls(Problem(**content["problem"]), known, content["angles"])

    def measured(self, evaluation: Evaluation) -> State:
        """Add an evaluation."""
        return replace(self, evaluations=[*self.evaluations, evaluation], angles=None)

    def write(self, path: str) -> None:
        """Write it to a file."""
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")


class Measure:
    """Measures energies on a QPU, which it compiles the circuit for once."""

    def __init__(self, problem: Problem) -> None:
        from qiskit.circuit.library import qaoa_ansatz
        from qiskit.quantum_info import SparsePauliOp

        self._problem = problem
        self._backend = _backend()
        names, size = problem.names, len(problem.names)
        if size > (qubits := self._backend.num_qubits):
            raise SystemExit(f"{size} spins do not fit on the QPU's {qubits} qubits")
        pairs = [
            ("ZZ", [names.index(a), names.index(b)], weight)
            for a, b, weight in problem.couplings
        ]
        cost = SparsePauliOp.from_sparse_list(pairs, size)
        # minus, since the circuit starts in the ground state of this
        mixer = SparsePauliOp.from_sparse_list(
            [("X", [i], -1) for i in range(size)], size
        )
        circuit = qaoa_ansatz(cost, reps=problem.layers, mixer_operator=mixer)
        self._hamiltonian = None
        if problem.transverse:
            self._hamiltonian = cost + problem.transverse * mixer
        else:
            circuit.measure_all()
        self._circuit = _compiled(circuit, self._backend)

    def __call__(self, angles: list[float], number: int) -> Evaluation:
        """Measure the energy at angles.

        :param number: of the evaluation; an emulated QPU takes its seed from it
        """
        from qiskit.primitives import BackendEstimatorV2, BackendSamplerV2

        problem, backend = self._problem, self._backend
        options = {"seed_simulator": problem.seed + number}
        if self._hamiltonian is not None:
            estimator = BackendEstimatorV2(backend=backend, options=options)
            observable = self._hamiltonian.apply_layout(self._circuit.layout)
            job = estimator.run(
                [(self._circuit, observable, angles)],
                precision=1 / math.sqrt(problem.shots),
            )
            return Evaluation(angles, float(job.result()[0].data.evs), backend.name)
        sampler = BackendSamplerV2(backend=backend, options=options)
        answer = sampler.run([(self._circuit, angles)], shots=problem.shots).result()
        reads = [
            ([1 - 2 * int(bit) for bit in reversed(bits)], count)
            for bits, count in answer[0].data.meas.get_counts().items()
        ]
        energies = [problem.diagonal(spins) for spins, _ in reads]
        total = sum(e * count for e, (_, count) in zip(energies, reads, strict=True))
        best = min(zip(energies, reads, strict=True))[1][0]
        return Evaluation(angles, total / problem.shots, backend.name, best)


def _backend() -> BackendV2:
    """Find the QPU of the environment, or else simulate one."""
    if (remote := from_environment()) is not None:
        return remote.backend()
    from qiskit_aer import AerSimulator

    return AerSimulator()


def _compiled(circuit: QuantumCircuit, backend: BackendV2) -> QuantumCircuit:
    """Compile a circuit.

    Qiskit's ``transpile`` would do it too, but it imports the plug-ins of all installed
    packages, which takes seconds; and here, each iteration is a process of its own.
    """
    from qiskit.circuit.equivalence_library import SessionEquivalenceLibrary as library
    from qiskit.transpiler import PassManager, passes

    target = backend.target
    made = PassManager()
    if (couplings := backend.coupling_map) is not None:
        made.append(
            passes.SabreLayout(couplings, seed=0, swap_trials=8, layout_trials=8)
        )
    made.append(passes.BasisTranslator(library, None, target))
    made.append(passes.Optimize1qGatesDecomposition(target=target))
    return made.run(circuit)


class _Ended(Exception):
    """The optimiser has used up its evaluations."""


class _Unknown(Exception):
    """An energy is neither known, nor is there anything to measure it with."""


def optimise(
    state: State, measure: Callable[[list[float], int], Evaluation] | None = None
) -> State:
    """Have the optimiser ask for energies, of which the first are known.

    :param measure: measures the others; without it, this ends at the first of them
    """
    import numpy as np
    from scipy.optimize import minimize

    problem, known = state.problem, state.evaluations
    state = replace(state, evaluations=[], angles=None)

    def energy(angles: list[float]) -> float:
        nonlocal state
        count = len(state.evaluations)
        if count < len(known):
            found = known[count]
            there = len(angles) == len(found.angles)
            if not (there and np.allclose(angles, found.angles)):
                raise SystemExit(f"evaluation {count + 1} is of another optimiser")
        elif measure is not None:
            found = measure(angles, count)
        else:
            state = replace(state, angles=angles)
            raise _Unknown
        state = state.measured(found)
        return found.energy

    def bounded(point: Vector) -> float:
        if len(state.evaluations) == problem.evaluations:
            raise _Ended
        return energy(point.tolist())

    along = (np.arange(problem.layers) + 0.5) / problem.layers
    # in the order of the circuit's parameters: beta before gamma
    start = RAMP * np.concatenate([1 - along, along])
    radii: _Options = {"initial_tr_radius": RADII[0], "final_tr_radius": RADII[1]}
    with suppress(_Unknown):
        with suppress(_Ended):
            minimize(bounded, start, method="COBYQA", options=radii)
        # the lowest of many measured energies is too low, so it is measured once more
        energy(min(state.evaluations, key=lambda one: one.energy).angles)
    return state


def result(state: State) -> dict[str, JSON]:
    """Say what was found."""
    problem, best = state.problem, state.evaluations[-1]
    found: dict[str, JSON] = {
        "energy": best.energy,
        "angles": [*best.angles],
        "evaluations": len(state.evaluations),
        "qpu": best.qpu,
    }
    read = [one.spins for one in state.evaluations if one.spins is not None]
    if read:
        lowest = min(read, key=problem.diagonal)
        found["lowest"] = problem.diagonal(lowest)
        found["up"] = [
            name for name, spin in zip(problem.names, lowest, strict=True) if spin > 0
        ]
    return found


def main() -> None:
    """Run a command; its outputs are files in the working directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("next", "session"):
        command = commands.add_parser(name)
        given = command.add_mutually_exclusive_group(required=True)
        given.add_argument("--problem", type=Path, help="to start with")
        given.add_argument("--previous", type=Path, help="state of the last iteration")
    commands.add_parser("measure").add_argument("--previous", type=Path, required=True)
    args = parser.parse_args()
    path: Path = args.previous or args.problem
    try:
        state = State.read(path) if args.previous else State(Problem.read(path))
    except (OSError, ValueError, TypeError, KeyError) as error:
        parser.error(f"{path}: {error}")
    if args.command == "measure":
        if state.angles is None:
            parser.error(f"{path}: nothing to measure, the optimiser has ended")
        measure = Measure(state.problem)
        evaluation = measure(state.angles, len(state.evaluations))
        state.measured(evaluation).write("state.json")
        return
    state = optimise(
        state, Measure(state.problem) if args.command == "session" else None
    )
    state.write("state.json")
    # what the engine reads, so that it needs no JavaScript
    outputs: dict[str, JSON] = {
        "go_on": state.angles is not None,
        "state": _file("state"),
    }
    if state.evaluations:
        Path("result.json").write_text(json.dumps(result(state), indent=1) + "\n")
        outputs["result"] = _file("result")
    Path("cwl.output.json").write_text(json.dumps(outputs))


def _file(name: str) -> dict[str, JSON]:
    return {"class": "File", "path": f"{name}.json"}


if __name__ == "__main__":
    main()
