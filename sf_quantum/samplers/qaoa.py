"""QAOA: a circuit whose angles are tuned until its reads are low, on any Qiskit sampler.

E. Farhi, J. Goldstone, S. Gutmann, A quantum approximate optimization algorithm,
arXiv:1411.4028. The first angles are a linear ramp, which needs no tuning to be useful (J. A.
Montanez-Barrera, K. Michielsen, npj Quantum Information 11, 2025); what is tuned is the mean
of the lowest reads (CVaR: P. Barkoutsos et al., Quantum 4, 256, 2020).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from dimod import BinaryQuadraticModel, SampleSet
from dimod.core.sampler import Sampler
from numpy.typing import NDArray

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, write_json
from sf_quantum.samplers.angles import check_writable, first, given, told
from sf_quantum.samplers.ising import Ising
from sf_quantum.samplers.parameters import check, check_choice, seeded
from sf_quantum.samplers.states import Bits, sample_set

if TYPE_CHECKING:
    from qiskit import QuantumCircuit
    from qiskit.primitives import BaseSamplerV2
    from qiskit.providers import BackendV2
    from scipy.optimize._minimize import _MinimizeOptions as _Options

Doubles: TypeAlias = NDArray[np.float64]
Vector: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]

READS = 1000
DEPTH = 8
SHOTS = 500
EVALUATIONS = 40
#: what ``optimiser`` may be: SciPy's methods that need no gradient, or to take the angles
#: as they are
OPTIMISERS = ("cobyla", "nelder-mead", "none")
MISSING = "the package qiskit is not installed (pip install 'sf-quantum[qaoa]')"
# The state of n qubits has 2^n amplitudes: tuning takes a minute or two on one core with 16
# qubits of Qiskit's own simulation, and with 22 of Aer's.
QUBITS = {"statevector": 16, "aer": 22}
# of the reads that an evaluation's angles are judged by
_LOWEST = 0.25
_STEP = 0.5
# COBYLA warns below that
_LEAST = 4


class Machine(Protocol):
    """What runs circuits."""

    @property
    def name(self) -> str:
        """What ``info`` calls it."""

    @property
    def backend(self) -> BackendV2 | None:
        """What circuits have to be compiled for."""

    def reads(
        self, circuit: QuantumCircuit, values: Doubles, shots: int
    ) -> tuple[Bits, Mapping[str, float] | None]:
        """Run a circuit.

        :param values: of its parameters, in the order of their names
        :returns: shots by qubits; seconds by what they were spent on, if it tells
        """


class QaoaSampler(Sampler):
    """QAOA on a gate-based machine, emulated unless one is given.

    :param sampler: a Qiskit ``SamplerV2``; emulation without one
    :param backend: what circuits are compiled for, and run on where no sampler is given
    :param machine: instead of both
    """

    def __init__(
        self,
        sampler: BaseSamplerV2 | None = None,
        backend: BackendV2 | None = None,
        machine: Machine | None = None,
    ) -> None:
        self._sampler = sampler
        self._backend = backend
        self._given = machine
        #: the size of the problem whose angles are in a file
        self._written: dict[str, int] = {}

    @classmethod
    def problem(cls) -> str | None:
        """Why it cannot be used here."""
        known = (importlib.util.find_spec(name) for name in ("qiskit", "scipy"))
        return None if all(known) else MISSING

    @property
    def parameters(self) -> dict[str, list[str]]:
        """The keywords :meth:`sample` takes, as dimod wants them."""
        names = "num_reads seed depth optimiser shots evaluations angles".split()
        return {name: [] for name in names}

    @property
    def properties(self) -> dict[str, JSON]:
        """The defaults; how many variables can be emulated; what a next time starts from.

        ``carried`` names keys of ``info`` that may be given as parameters again.
        """
        return {
            "num_reads": READS,
            "depth": DEPTH,
            "optimiser": "cobyla",
            "shots": SHOTS,
            "evaluations": EVALUATIONS,
            "qubits": {**QUBITS},
            "carried": ["angles"],
        }

    @staticmethod
    def check_parameters(
        *,
        num_reads: JSON = READS,
        depth: JSON = DEPTH,
        optimiser: JSON = "cobyla",
        shots: JSON = SHOTS,
        evaluations: JSON = EVALUATIONS,
        angles: JSON = None,
    ) -> None:
        """Refuse values that :meth:`sample` would refuse, the seed's apart.

        :raises InputError: if a parameter is out of its range, or the file wrong
        """
        for name, value in (("num_reads", num_reads), ("depth", depth)):
            check(name, value, 1)
        for name, value in (("shots", shots), ("evaluations", evaluations)):
            check(name, value, 1)
        check_choice("optimiser", optimiser, OPTIMISERS)
        given(angles)
        if isinstance(angles, str):
            check_writable(Path(angles))

    def sample(
        self,
        bqm: BinaryQuadraticModel,
        *,
        num_reads: int = READS,
        seed: int | None = None,
        depth: int = DEPTH,
        optimiser: str = "cobyla",
        shots: int = SHOTS,
        evaluations: int = EVALUATIONS,
        angles: str | dict[str, JSON] | None = None,
    ) -> SampleSet:
        """Tune the angles, then read the circuit.

        ``info`` has the machine, the angles first and last, how many were evaluated, and
        the two-qubit gates of a circuit.

        :param num_reads: samples to return (default 1000)
        :param seed: of the reads, if they are emulated
        :param depth: layers of the circuit, p (default 8)
        :param optimiser: ``cobyla``, ``nelder-mead``, or ``none`` to take the first angles
        :param shots: reads per evaluation of angles (default 500)
        :param evaluations: of angles, at most (default 40)
        :param angles: to start from, gamma and beta (those of another depth are
            stretched); or a JSON file of them, to start from if it is there, and to which
            the angles found are written: of several problems, as a presolve's parts are,
            those of the largest
        :raises InputError: if a parameter is wrong, the problem is too large to emulate,
            or Qiskit is missing
        """
        self.check_parameters(
            num_reads=num_reads,
            depth=depth,
            optimiser=optimiser,
            shots=shots,
            evaluations=evaluations,
            angles=angles,
        )
        seed = seeded(seed)
        if (missing := self.problem()) is not None:
            raise InputError(f"sampler 'qaoa': {missing}")
        ising = Ising.of(bqm)
        machine = self._machine(len(ising.fields), seed)
        run = _Run(machine, ising, _circuit(ising, depth), shots)
        start = first(depth, given(angles))
        found = run.tuned(start, optimiser, evaluations)
        rows = run.reads(found, num_reads)
        if isinstance(angles, str):
            self._write(angles, len(ising.fields), found)
        samples = sample_set(rows, bqm)
        samples.info.update(
            sampler="qaoa",
            machine=machine.name,
            seed=seed,
            reads=len(rows),
            depth=depth,
            optimiser=optimiser,
            shots=shots,
            evaluations=run.count - 1,
            two_qubit_gates=run.two_qubit_gates,
            first_angles=told(start),
            angles=told(found),
        )
        if run.timing:
            samples.info["timing"] = run.timing
        return samples

    def _write(self, path: str, size: int, found: Doubles) -> None:
        if size >= self._written.get(path, 0):
            self._written[path] = size
            write_json(path, told(found))

    def _machine(self, qubits: int, seed: int) -> Machine:
        if self._given is not None:
            return self._given
        if self._sampler is not None:
            return _Primitive("given", self._sampler, self._backend)
        if self._backend is not None:
            from qiskit.primitives import BackendSamplerV2

            own = BackendSamplerV2(
                backend=self._backend, options={"seed_simulator": seed}
            )
            return _Primitive(self._backend.name, own, self._backend)
        return _emulated(qubits, seed)


@dataclass(frozen=True)
class _Primitive:
    """A Qiskit sampler.

    :param backend: what circuits have to be compiled for
    """

    name: str
    sampler: BaseSamplerV2
    backend: BackendV2 | None = None

    def reads(
        self, circuit: QuantumCircuit, values: Doubles, shots: int
    ) -> tuple[Bits, None]:
        """See :meth:`Machine.reads`."""
        job = self.sampler.run([(circuit, values)], shots=shots)
        bits = job.result()[0].data.meas.to_bool_array(order="little")
        return np.asarray(bits, np.int8), None


class _Enough(Exception):
    """As many evaluations as there may be."""


class _Run:
    """A circuit on a machine.

    :param shots: reads per evaluation of angles
    """

    def __init__(
        self, machine: Machine, ising: Ising, circuit: QuantumCircuit, shots: int
    ) -> None:
        from qiskit.transpiler import generate_preset_pass_manager

        if (backend := machine.backend) is not None:
            size, most = len(ising.fields), backend.num_qubits
            if most is not None and size > most:
                what = f"{size} variables interact, {machine.name} has {most} qubits"
                raise InputError(f"sampler 'qaoa': {what}")
            compiler = generate_preset_pass_manager(1, backend=backend)
            circuit = compiler.run(circuit)
        self.count = 0
        self.timing: dict[str, float] = {}
        self.two_qubit_gates = circuit.num_nonlocal_gates()
        self._machine = machine
        self._ising = ising
        self._circuit = circuit
        self._shots = shots

    def reads(self, angles: Doubles, shots: int) -> Bits:
        """Run it once.

        :param angles: two by layers: gamma, of the energy, and beta, of the mixing
        """
        self.count += 1
        # the parameters are in the order of their names: beta before gamma
        values = np.concatenate([angles[1], angles[0]])
        rows, timing = self._machine.reads(self._circuit, values, shots)
        for name, seconds in (timing or {}).items():
            self.timing[name] = self.timing.get(name, 0.0) + seconds
        return rows

    def tuned(self, first: Doubles, method: str, evaluations: int) -> Doubles:
        """Tune the angles: how steep gamma's ramp is, and how steep beta's.

        Two factors are found with few circuits, which angles one by one are not: their
        gradients drown in the noise of the reads.

        :param method: one of :data:`OPTIMISERS`
        """
        if method == "none":
            return first
        from scipy.optimize import minimize

        best = (float("inf"), first)

        def judge(factors: Vector) -> float:
            nonlocal best
            if self.count == evaluations:
                raise _Enough
            angles = first * np.exp(factors)[:, np.newaxis]
            energies = np.sort(self._ising.energies(self.reads(angles, self._shots)))
            value = float(energies[: max(1, int(self._shots * _LOWEST))].mean())
            if value < best[0]:
                best = value, angles
            return value

        start: Vector = np.zeros(2)
        # their own limits let a few more pass
        with suppress(_Enough):
            if method == "cobyla":
                near: _Options = {"maxiter": max(evaluations, _LEAST), "rhobeg": _STEP}
                minimize(judge, start, method="COBYLA", options=near)
            else:
                corners = _STEP * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
                wide: _Options = {"maxfev": evaluations, "initial_simplex": corners}
                minimize(judge, start, method="Nelder-Mead", options=wide)
        return best[1]


def _circuit(ising: Ising, depth: int) -> QuantumCircuit:
    from qiskit import QuantumCircuit
    from qiskit.circuit import ParameterVector

    count = len(ising.fields)
    beta, gamma = ParameterVector("beta", depth), ParameterVector("gamma", depth)
    circuit = QuantumCircuit(count)
    circuit.h(range(count))
    for layer in range(depth):
        for i, field in enumerate(ising.fields.tolist()):
            circuit.rz(2 * field * gamma[layer], i)
        for i, j, coupling in ising.couplings:
            circuit.rzz(2 * coupling * gamma[layer], i, j)
        # the state of the Hadamards is the ground state of minus the mixing
        circuit.rx(-2 * beta[layer], range(count))
    circuit.measure_all()
    return circuit


def _emulated(qubits: int, seed: int) -> Machine:
    name = "aer" if importlib.util.find_spec("qiskit_aer") else "statevector"
    if qubits > QUBITS[name]:
        more = (
            "" if name == "aer" else f", or {QUBITS['aer']} with qiskit-aer installed"
        )
        raise InputError(
            f"sampler 'qaoa': {qubits} variables interact, and {QUBITS[name]} qubits can "
            f"be emulated here{more}: use a QPU or another sampler"
        )
    if name == "aer":
        from qiskit_aer.primitives import SamplerV2

        return _Primitive(name, SamplerV2(seed=seed))
    from qiskit.primitives import StatevectorSampler

    return _Primitive(name, StatevectorSampler(seed=seed))
