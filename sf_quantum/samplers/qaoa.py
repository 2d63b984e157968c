"""QAOA on any Qiskit sampler: a circuit whose angles are tuned for low energies.

E. Farhi, J. Goldstone, S. Gutmann, A quantum approximate optimization algorithm,
arXiv:1411.4028. The initial angles are linear ramps, which are useful even without
tuning (J. A. Montanez-Barrera, K. Michielsen, npj Quantum Information 11, 2025). The
objective of the tuning is the mean of the lowest reads (CVaR: P. Barkoutsos et al.,
Quantum 4, 256, 2020).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

import numpy as np
from dimod import SPIN, BinaryQuadraticModel, SampleSet
from numpy.typing import NDArray

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, check_writable, read_json, write_json
from sf_quantum.samplers.parameters import (
    CheckedSampler,
    check,
    check_choice,
    seeded,
)
from sf_quantum.samplers.states import Bits, sample_set

if TYPE_CHECKING:
    from qiskit import QuantumCircuit
    from qiskit.primitives import BaseSamplerV2
    from qiskit.providers import BackendV2
    from scipy.optimize._minimize import _MinimizeOptions as _Options

Doubles: TypeAlias = NDArray[np.float64]
Vector: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]

# Smallest scaled bias that is used: smaller biases turn no spin, and give angles that Aer
# fails to hash.
NEGLIGIBLE = 1e-14
READS = 1000
DEPTH = 8
SHOTS = 500
EVALUATIONS = 40
#: values of ``optimiser``: SciPy's gradient-free methods, or no tuning
OPTIMISERS = ("cobyla", "nelder-mead", "none")
MISSING = "the package qiskit is not installed (pip install 'sf-quantum[qaoa]')"
# Limits of emulation. Tuning takes a minute or two on one core with 16 qubits in
# Qiskit's own simulator, and with 22 in Aer.
QUBITS = {"statevector": 16, "aer": 22}
# share of the reads whose mean energy is the objective
_LOWEST = 0.25
# first change of the factors, which are exponents
_STEP = 0.5
# minimum for COBYLA, which warns about fewer evaluations
_LEAST = 4
# End values of the ramps of gamma and beta. On 12 parts of real clusterings with 7 to
# 12 variables, 1 % of the reads are optimal with these values, 7 % after tuning both ramps,
# and 8 % with the best possible end values.
_RAMPS = (2.0, 0.6)


class CircuitRunner(Protocol):
    """A gate-based QPU or simulator."""

    @property
    def name(self) -> str:
        """The name reported in ``info``."""

    @property
    def backend(self) -> BackendV2 | None:
        """The backend that circuits are compiled for."""

    def reads(
        self, circuit: QuantumCircuit, values: Doubles, shots: int
    ) -> tuple[Bits, Mapping[str, float] | None]:
        """Run a circuit.

        :param values: values of the circuit's parameters, in the order of their names
        :returns: bits of shape (shots, qubits), and seconds by kind, if known
        """

    def mitigated(self, passes: str) -> CircuitRunner:
        """Return a runner whose reads are mitigated.

        :param passes: names of passes, separated by commas
        :raises InputError: if a pass is unknown, or cannot be used with this runner
        """

    def seeded(self, seed: int) -> CircuitRunner:
        """Return a runner with a seed, which determines the reads of an emulated QPU."""

    @property
    def info(self) -> Mapping[str, JSON]:
        """Technology and calibration that the QPU reported with the last circuit, if any."""


def _given_angles(angles: JSON) -> Doubles | None:
    """Read the parameter ``angles``: the angles themselves, or the name of a file.

    :returns: shape (2, layers): gamma (cost layers) and beta (mixer layers); ``None`` if
        the file does not exist yet
    :raises InputError: if the content is not angles
    """
    where = "angles"
    if isinstance(angles, str):
        where = angles
        angles = read_json(where, "angles") if Path(where).exists() else None
    if angles is None:
        return None
    if not isinstance(angles, dict):
        raise InputError(f"angles: {angles!r:.40}: expected a file name, or angles")
    with suppress(TypeError, ValueError):
        rows = np.array([angles.get("gamma"), angles.get("beta")], float)
        if rows.ndim == 2 and rows.size and np.isfinite(rows).all():
            return rows
    raise InputError(
        f"{where}: expected angles as qaoa writes them: gamma and beta, two lists with "
        "one number per layer"
    )


def _check_angles(_: str, angles: JSON) -> None:
    _given_angles(angles)
    if isinstance(angles, str):
        check_writable(angles)


def _check_names(name: str, names: JSON) -> None:
    if not isinstance(names, str):
        raise InputError(f"{name}: {names!r:.40}: expected names of passes")


def _initial_angles(depth: int, earlier: Doubles | None) -> Doubles:
    """Choose the initial angles; the angles of an earlier problem are interpolated."""
    along = (np.arange(depth) + 0.5) / depth
    if earlier is None:
        return np.array([_RAMPS[0] * along, _RAMPS[1] * (1 - along)])
    before = (np.arange(earlier.shape[1]) + 0.5) / earlier.shape[1]
    return np.array([np.interp(along, before, row) for row in earlier])


def _angles_as_json(angles: Doubles) -> dict[str, JSON]:
    """Convert angles to the form that :func:`_given_angles` reads."""
    return {"gamma": angles[0].tolist(), "beta": angles[1].tolist()}


class QaoaSampler(CheckedSampler):
    """QAOA, emulated unless a sampler, backend or runner is given.

    :param sampler: a Qiskit ``SamplerV2``
    :param backend: Qiskit backend for which circuits are compiled, and on which they run
        without ``sampler``
    :param runner: runner to use instead of both
    """

    checks: ClassVar[dict[str, Callable[[str, JSON], None]]] = {
        **dict.fromkeys(
            ("num_reads", "depth", "shots", "evaluations"), partial(check, least=1)
        ),
        "optimiser": partial(check_choice, allowed=OPTIMISERS),
        "angles": _check_angles,
        "mitigation": _check_names,
    }
    #: limits of emulation, and the keys of ``info`` from which a later call can start
    more: ClassVar[dict[str, JSON]] = {"qubits": {**QUBITS}, "carried": ["angles"]}
    packages = ("qiskit", "scipy")
    missing = MISSING

    def __init__(
        self,
        sampler: BaseSamplerV2 | None = None,
        backend: BackendV2 | None = None,
        runner: CircuitRunner | None = None,
    ) -> None:
        self._sampler = sampler
        self._backend = backend
        self._given = runner
        #: Sizes of the problems for which angles were tuned, by file of angles.
        self._written: dict[str, int] = {}

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
        mitigation: str = "",
    ) -> SampleSet:
        """Tune the angles, then sample the circuit.

        ``info`` contains the runner, the first and last angles, the number of evaluations,
        and the number of two-qubit gates in the circuit.

        :param num_reads: number of samples
        :param seed: seed of emulated reads
        :param depth: number of layers, p
        :param optimiser: ``cobyla``, ``nelder-mead``, or ``none`` to keep the first
            angles
        :param shots: reads per evaluation of angles
        :param evaluations: maximum number of evaluations
        :param angles: initial gamma and beta (interpolated to another depth if necessary),
            or the name of a JSON file. Angles are read from the file if it exists, and the
            tuned angles (if a problem has several parts, those of the largest part) are
            written to it
        :param mitigation: names of passes (:mod:`sf_quantum.qpu.passes`), separated by
            commas, for the circuits of a QPU
        :raises InputError: if a parameter is invalid, the problem is too large to
            emulate, or Qiskit is not installed
        """
        self.check_parameters(
            num_reads=num_reads,
            depth=depth,
            optimiser=optimiser,
            shots=shots,
            evaluations=evaluations,
            angles=angles,
            mitigation=mitigation,
        )
        seed = seeded(seed)
        if (missing := self.problem()) is not None:
            raise InputError(f"sampler 'qaoa': {missing}")
        ising = _ising(bqm)
        size = ising.num_variables
        runner = self._runner(size, seed)
        if mitigation:
            runner = runner.mitigated(mitigation)
        runner = runner.seeded(seed)
        run = _Run(runner, ising, _circuit(ising, depth, runner), shots)
        start = _initial_angles(depth, _given_angles(angles))
        tuned = run.tuned(start, optimiser, evaluations)
        rows = run.reads(tuned, num_reads)
        # If a problem is solved in parts, the file keeps the angles of the largest
        # part.
        if isinstance(angles, str) and size >= self._written.get(angles, 0):
            self._written[angles] = size
            write_json(angles, _angles_as_json(tuned))
        samples = sample_set(rows, bqm)
        samples.info.update(
            sampler="qaoa",
            machine=runner.name,
            seed=seed,
            reads=len(rows),
            depth=depth,
            optimiser=optimiser,
            shots=shots,
            evaluations=run.count - 1,
            two_qubit_gates=run.circuit.num_nonlocal_gates(),
            first_angles=_angles_as_json(start),
            angles=_angles_as_json(tuned),
            mitigation=[name.strip() for name in mitigation.split(",") if name.strip()],
        )
        samples.info.update(runner.info)
        if run.timing:
            samples.info["timing"] = run.timing
        return samples

    def _runner(self, qubits: int, seed: int) -> CircuitRunner:
        if self._given is not None:
            return self._given
        if self._sampler is not None:
            return _Primitive("given", self._sampler, self._backend)
        if self._backend is not None:
            from qiskit.primitives import BackendSamplerV2

            primitive = BackendSamplerV2(
                backend=self._backend, options={"seed_simulator": seed}
            )
            return _Primitive(self._backend.name, primitive, self._backend)
        return _emulated(qubits, seed)


@dataclass(frozen=True)
class _Primitive:
    """A Qiskit sampler as a runner."""

    name: str
    sampler: BaseSamplerV2
    backend: BackendV2 | None = None
    info: Mapping[str, JSON] = field(default_factory=dict)

    def seeded(self, seed: int) -> CircuitRunner:
        """Return the runner unchanged: its sampler was made with a seed."""
        return self

    def reads(
        self, circuit: QuantumCircuit, values: Doubles, shots: int
    ) -> tuple[Bits, None]:
        """See :meth:`CircuitRunner.reads`."""
        job = self.sampler.run([(circuit, values)], shots=shots)
        bits = job.result()[0].data.meas.to_bool_array(order="little")
        return np.asarray(bits, np.int8), None

    def mitigated(self, passes: str) -> CircuitRunner:
        """See :meth:`CircuitRunner.mitigated`."""
        detail = f"passes are for a QPU's circuits, and {self.name} is no QPU's runner"
        raise InputError(f"mitigation {passes}: {detail}")


class _Enough(Exception):
    """The evaluations are used up."""


@dataclass
class _Run:
    """A compiled circuit on a runner.

    :param shots: reads per evaluation of angles
    :param count: number of times that the circuit has run
    :param timing: seconds by kind, in total
    """

    runner: CircuitRunner
    ising: BinaryQuadraticModel
    circuit: QuantumCircuit
    shots: int
    count: int = 0
    timing: dict[str, float] = field(default_factory=dict)

    def reads(self, angles: Doubles, shots: int) -> Bits:
        """Run the circuit with angles of the shape that :func:`_given_angles` returns."""
        self.count += 1
        # parameters are ordered by name: beta before gamma
        values = np.concatenate([angles[1], angles[0]])
        rows, timing = self.runner.reads(self.circuit, values, shots)
        for name, seconds in (timing or {}).items():
            self.timing[name] = self.timing.get(name, 0.0) + seconds
        return rows

    def tuned(self, first: Doubles, method: str, evaluations: int) -> Doubles:
        """Tune two factors, which scale gamma and beta.

        Two factors need few circuits, while the gradients of single angles would be lost in
        the noise of the reads.

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
            spins = 2 * self.reads(angles, self.shots) - 1
            states = (spins, range(self.ising.num_variables))
            energies = np.sort(self.ising.energies(states))
            value = float(energies[: max(1, int(self.shots * _LOWEST))].mean())
            if value < best[0]:
                best = value, angles
            return value

        start: Vector = np.zeros(2)
        # SciPy's own limits allow a few more evaluations
        with suppress(_Enough):
            if method == "cobyla":
                near: _Options = {"maxiter": max(evaluations, _LEAST), "rhobeg": _STEP}
                minimize(judge, start, method="COBYLA", options=near)
            else:
                corners = _STEP * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
                wide: _Options = {"maxfev": evaluations, "initial_simplex": corners}
                minimize(judge, start, method="Nelder-Mead", options=wide)
        return best[1]


def _ising(bqm: BinaryQuadraticModel) -> BinaryQuadraticModel:
    """Convert to spins, scaled to about 1 per spin so that angles fit other problems.

    The spins are numbered in the order of the variables; the constant term is dropped.
    """
    spin = bqm.change_vartype(SPIN, inplace=False)
    fields, (rows, columns, couplings), *_ = spin.to_numpy_vectors(
        variable_order=[*bqm.variables]
    )
    biases = np.concatenate([fields, couplings])
    scale = float(np.sqrt((biases**2).sum() / len(fields))) or 1.0
    return BinaryQuadraticModel.from_numpy_vectors(
        fields / scale, (rows, columns, couplings / scale), 0.0, SPIN
    )


def _circuit(
    ising: BinaryQuadraticModel, depth: int, runner: CircuitRunner
) -> QuantumCircuit:
    """Build the circuit of QAOA, compiled for the runner's backend."""
    from qiskit import QuantumCircuit
    from qiskit.circuit import ParameterVector
    from qiskit.transpiler import generate_preset_pass_manager

    count = ising.num_variables
    beta, gamma = ParameterVector("beta", depth), ParameterVector("gamma", depth)
    circuit = QuantumCircuit(count)
    circuit.h(range(count))
    for layer in range(depth):
        # minus, since spin +1 is bit 1 in dimod and bit 0 in Qiskit
        for i, bias in ising.iter_linear():
            # A negligible bias becomes a rotation by 0: without any rotation, the circuit
            # would lack the parameter.
            turn = bias if abs(float(bias)) >= NEGLIGIBLE else 0.0
            circuit.rz(-2 * turn * gamma[layer], i)
        for i, j, coupling in ising.iter_quadratic():
            if abs(float(coupling)) >= NEGLIGIBLE:
                circuit.rzz(2 * coupling * gamma[layer], i, j)
        # minus, since the Hadamards prepare the ground state of the negated mixer
        circuit.rx(-2 * beta[layer], range(count))
    circuit.measure_all()
    if (backend := runner.backend) is None:
        return circuit
    if backend.num_qubits is not None and count > backend.num_qubits:
        raise InputError(
            f"sampler 'qaoa': {count} variables interact, {runner.name} has "
            f"{backend.num_qubits} qubits"
        )
    return generate_preset_pass_manager(1, backend=backend).run(circuit)


def _emulated(qubits: int, seed: int) -> CircuitRunner:
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
