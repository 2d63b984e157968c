"""Neutral atoms: independent sets with the Rydberg blockade.

Each candidate is an atom. Two atoms within the blockade radius are not excited together, so
atoms of overlapping candidates are placed within this radius. A slow pulse ends with each
atom detuned in proportion to its candidate's weight, so the heaviest independent set is the
state of lowest energy (H. Pichler et al., arXiv:1808.10816; local detuning: K. Goswami et al.,
Phys. Rev. Research 6, 023031, 2024).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

import numpy as np
from dimod import BinaryQuadraticModel, SampleSet
from numpy.typing import NDArray

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.samplers.defaults import ATOMS
from sf_quantum.samplers.parameters import CheckedSampler, check, seeded
from sf_quantum.samplers.reduction import exclusions
from sf_quantum.samplers.states import Bits, quadratic, sample_set

if TYPE_CHECKING:
    from pulser import Sequence
    from pulser.backend import Results
    from pulser.devices._device_datacls import BaseDevice

Doubles: TypeAlias = NDArray[np.float64]
Pairs: TypeAlias = list[tuple[int, int]]

READS = 1000
DURATION = 4000
MISSING = "the package pulser is not installed (pip install 'sf-quantum[pulser]')"
# Rabi frequency in rad/us, the maximum of usual devices. The blockade radius shrinks as the
# frequency grows, and must be at least _ROOM times the minimum distance of atoms.
_OMEGA = 4 * np.pi
_ROOM = 1.5
# Fraction of the weakest blockade, so that a blockaded pair costs more energy than its
# lighter atom gains.
_MARGIN = 0.8
# Largest final detuning of the heaviest atom, as a multiple of the Rabi frequency.
_STEEPEST = 4.0
# emu-mps's time step in nanoseconds
_STEP = 20
# random starts of the search for a register, and rounds of each start
STARTS = 20
ROUNDS = 4
# Multiples of the blockade radius. The blockade falls with the sixth power of the
# distance: at these distances it is 2.6 times and 1/5 of its value at the radius.
_NEAR = 0.85
_FAR = 1.3
# Weight of pairs that are closer than the device allows, and the factor by which the search
# keeps atoms farther apart than the device's minimum distance.
_DEMANDED = 100.0
_SAFE = 1.02
# Multiple of the radius: a pair whose distance is off by this much counts half in the next
# round.
_GIVEN_UP = 0.05


class SequenceRunner(Protocol):
    """A device that runs serialized Pulser sequences."""

    name: str

    def specs(self) -> str:
        """Return the current device specification, in Pulser's abstract representation."""

    def run(self, sequence: str, shots: int) -> tuple[Mapping[str, int], JSON]:
        """Run a sequence.

        :returns: counts by bit string, and the timing
        """


class NeutralAtomSampler(CheckedSampler):
    """Independent sets on neutral atoms, emulated unless a runner is given."""

    checks: ClassVar[dict[str, Callable[[str, JSON], None]]] = {
        "num_reads": partial(check, least=1),
        "duration": partial(check, least=100),
    }
    #: limits of emulation; parts of a problem are better sent one at a time
    more: ClassVar[dict[str, JSON]] = {"atoms": {**ATOMS}, "together": False}
    packages = ("pulser", "pulser_simulation")
    missing = MISSING

    def __init__(self, runner: SequenceRunner | None = None) -> None:
        self._runner = runner

    def sample(
        self,
        bqm: BinaryQuadraticModel,
        *,
        num_reads: int = READS,
        seed: int | None = None,
        duration: int = DURATION,
    ) -> SampleSet:
        """Find a register, run the pulse, and read the atoms ``num_reads`` times.

        ``info`` contains the device, the register, the overlaps that the register lacks
        (``missing``), the pairs that it blocks without an overlap (``extra``), and whether
        atoms have individual weights (``local_detuning``): without these, a device finds
        the largest set, not the heaviest. If the register is not exact, the reads are
        repaired: from each missing overlap, the lighter candidate is removed; then candidates
        that an extra blockade may have excluded are added where possible, the heaviest
        first. ``repaired_reads`` is the number of reads that this repair changed.

        :param num_reads: number of samples
        :param seed: seed of the search for positions, and of emulated reads
        :param duration: duration of the pulse in nanoseconds
        :raises InputError: if the problem is not an independent set, no register
            represents it, a parameter is invalid, or Pulser is not installed
        :raises QpuError: if the QPU fails, or returns no valid reads
        """
        self.check_parameters(num_reads=num_reads, duration=duration)
        seed = seeded(seed)
        if (missing := self.problem()) is not None:
            raise InputError(f"sampler 'neutral-atom': {missing}")
        graph = _OverlapGraph.of(bqm)
        reads, more = np.zeros((num_reads, 0), np.int8), dict[str, JSON]()
        if graph.atoms:
            reads, more = self._reads(graph, num_reads, seed, duration)
        # a QPU may return fewer reads than requested
        rows = np.zeros((len(reads), len(bqm.variables)), np.int8)
        rows[:, graph.atoms] = reads
        samples = sample_set(rows, bqm)
        samples.info.update(
            sampler="neutral-atom",
            seed=seed,
            reads=len(rows),
            duration=duration,
            atoms=len(graph.atoms),
            **more,
        )
        return samples

    def _reads(
        self, graph: _OverlapGraph, shots: int, seed: int, duration: int
    ) -> tuple[Bits, dict[str, JSON]]:
        """Run the problem on a register; return the repaired reads and the ``info``."""
        device, count = _device(self._runner), len(graph.atoms)
        machine = self._runner.name if self._runner else _emulator(count)
        radius, omega = _blockade(device)
        limits = RegisterLimits(
            radius, device.min_atom_distance, device.max_radial_distance or 50.0
        )
        embedding = embed(count, graph.edges, limits, seed)
        if embedding is None:
            raise InputError(
                f"sampler 'neutral-atom': no register of {device.name} holds {count} "
                "atoms with these overlaps"
            )
        detuning = _detuning(graph, embedding, omega, device)
        sequence = _sequence(
            device, embedding, graph.weights, omega, detuning, duration
        )
        timing: JSON = None
        if self._runner:
            counts, timing = self._runner.run(sequence.to_abstract_repr(), shots)
        else:
            counts = _emulate(sequence, machine, shots, seed)
        rows = _rows(counts, count, machine)
        repaired = _repaired(rows, graph, embedding)
        positions = embedding.positions.tolist()
        info: dict[str, JSON] = {
            "machine": machine,
            "device": device.name,
            "local_detuning": bool(device.dmm_channels),
            "register": dict(zip(map(str, graph.labels), positions, strict=True)),
            "missing": graph.named(embedding.missing),
            "extra": graph.named(embedding.extra),
            "repaired_reads": int((repaired != rows).any(axis=1).sum()),
        }
        return repaired, info | ({} if timing is None else {"timing": timing})


@dataclass(frozen=True)
class _OverlapGraph:
    """A weighted independent set problem.

    :param atoms: positions of the variables with a positive weight; the other fields
        describe only these
    :param weights: weights relative to the heaviest, at most 1
    :param edges: pairs of overlapping atoms, by position in ``atoms``
    """

    atoms: list[int]
    labels: list[Hashable]
    weights: list[float]
    edges: Pairs

    @classmethod
    def of(cls, bqm: BinaryQuadraticModel) -> _OverlapGraph:
        labels = [*bqm.variables]
        problem = quadratic(bqm)
        excluded = {*exclusions(problem)}
        for i, j, _ in problem.interactions:
            if (i, j) not in excluded:
                raise InputError(
                    f"sampler 'neutral-atom': variables {labels[i]!r} and {labels[j]!r} "
                    "interact without excluding each other; this sampler finds "
                    "independent sets only"
                )
        atoms = [i for i, bias in enumerate(problem.linear) if bias < 0]
        place = {i: number for number, i in enumerate(atoms)}
        heaviest = max((-problem.linear[i] for i in atoms), default=1)
        weights = [-problem.linear[i] / heaviest for i in atoms]
        inside = (pair for pair in sorted(excluded) if {*pair} <= place.keys())
        edges = [(place[i], place[j]) for i, j in inside]
        return cls(atoms, [labels[i] for i in atoms], weights, edges)

    def named(self, pairs: Pairs) -> JSON:
        """Replace positions with labels."""
        return [[str(self.labels[i]), str(self.labels[j])] for i, j in pairs]


def _device(runner: SequenceRunner | None) -> BaseDevice:
    import pulser
    from pulser.abstract_repr import deserialize_device
    from pulser.exceptions.serialization import DeserializeDeviceError

    if runner is None:
        return pulser.DigitalAnalogDevice
    try:
        return deserialize_device(runner.specs())
    except DeserializeDeviceError as error:
        raise InputError(f"{runner.name}: invalid device specification") from error


def tensor_networks() -> bool:
    """Return whether emu-mps is installed; does not import it."""
    return importlib.util.find_spec("emu_mps") is not None


def _emulator(atoms: int) -> str:
    installed = tensor_networks()
    name = "emu-mps" if installed and atoms > ATOMS["qutip"] else "qutip"
    if atoms > ATOMS[name]:
        more = "" if installed else f", or {ATOMS['emu-mps']} with emu-mps installed"
        raise InputError(
            f"sampler 'neutral-atom': {atoms} variables interact, and {ATOMS[name]} atoms "
            f"can be emulated here{more}: use a QPU or another sampler"
        )
    return name


def _blockade(device: BaseDevice) -> tuple[float, float]:
    channel = device.channels["rydberg_global"]
    omega = min(_OMEGA, channel.max_amp or _OMEGA)
    if device.min_atom_distance:
        room = (_ROOM * device.min_atom_distance) ** 6
        omega = min(omega, device.interaction_coeff / room)
    return float(device.rydberg_blockade_radius(omega)), float(omega)


def _detuning(
    graph: _OverlapGraph, embedding: Embedding, omega: float, device: BaseDevice
) -> float:
    # at the end of the pulse, an edge must cost more than its lighter atom gains
    distances = embedding.distances()
    most = _STEEPEST * omega
    for i, j in {*graph.edges} - {*embedding.missing}:
        blockade = device.interaction_coeff / distances[i, j] ** 6
        most = min(most, _MARGIN * blockade / min(graph.weights[i], graph.weights[j]))
    limit = device.channels["rydberg_global"].max_abs_detuning
    return float(most if limit is None else min(most, limit))


def _sequence(
    device: BaseDevice,
    embedding: Embedding,
    weights: list[float],
    omega: float,
    detuning: float,
    duration: int,
) -> Sequence[BaseDevice]:
    """Build the sequence that anneals the atoms to the ground state.

    :param omega: Rabi frequency in rad/us
    :param detuning: final detuning of the heaviest atom in rad/us
    :param duration: length of the sequence in nanoseconds
    """
    from pulser import InterpolatedWaveform, Pulse, Register, Sequence
    from pulser.devices import Device
    from pulser.waveforms import CompositeWaveform, ConstantWaveform, RampWaveform

    register = Register.from_coordinates(embedding.positions, center=False, prefix="q")
    step = device.channels["rydberg_global"].clock_period
    duration -= duration % step
    try:
        if isinstance(device, Device) and device.requires_layout:
            register = register.with_automatic_layout(device)
        sequence = Sequence(register, device)
        sequence.declare_channel("global", "rydberg_global")
        lighter = {f"q{i}": 1 - weight for i, weight in enumerate(weights)}
        if device.dmm_channels and any(lighter.values()):
            dmm = next(iter(device.dmm_channels))
            sequence.config_detuning_map(register.define_detuning_map(lighter), dmm)
            # while positive, each atom's detuning is its weight times the detuning of the
            # heaviest atom
            flat = duration // (2 * step) * step
            falling = CompositeWaveform(
                ConstantWaveform(flat, 0.0),
                RampWaveform(duration - flat, 0.0, -detuning),
            )
            sequence.add_dmm_detuning(falling, dmm)
        rise_and_fall = InterpolatedWaveform(
            duration, [0.0, omega, omega, 0.0], times=[0.0, 0.2, 0.8, 1.0]
        )
        rising = RampWaveform(duration, -detuning, detuning)
        sequence.add(Pulse(rise_and_fall, rising, 0.0), "global", protocol="no-delay")
        sequence.measure("ground-rydberg")
    except (ValueError, TypeError, RuntimeError) as error:
        line = " ".join(str(error).split())[:300]
        raise InputError(f"sampler 'neutral-atom': {device.name}: {line}") from error
    return sequence


def contract(
    sequence: Sequence[BaseDevice],
    shots: int,
    seed: int,
    *,
    step: float,
    bond_dimension: int | None = None,
) -> Mapping[str, int]:
    """Emulate a sequence with matrix-product states, and count its bit strings.

    :param step: time step in nanoseconds
    :param bond_dimension: largest bond dimension; by default emu-mps's default
    """
    import torch
    from emu_mps import MPSBackend, MPSConfig
    from pulser.backend import BitStrings

    torch.manual_seed(seed)
    most = {} if bond_dimension is None else {"max_bond_dim": bond_dimension}
    config = MPSConfig(
        dt=step,
        observables=[BitStrings(evaluation_times=[1.0], num_shots=shots)],
        gpu=False,
        log_level=40,
        **most,
    )
    return _counted(MPSBackend(sequence, config=config).run())


def _emulate(
    sequence: Sequence[BaseDevice], emulator: str, shots: int, seed: int
) -> Mapping[str, int]:
    if emulator == "emu-mps":
        return contract(sequence, shots, seed, step=_STEP)
    from pulser.backend import BitStrings, EmulationConfig
    from pulser_simulation import QutipBackendV2

    observed = BitStrings(evaluation_times=[1.0], num_shots=shots)
    # Pulser draws from numpy's global state, which a sampler must not change
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        backend = QutipBackendV2(
            sequence, config=EmulationConfig(observables=[observed])
        )
        return _counted(backend.run())
    finally:
        np.random.set_state(state)


def _counted(results: Results | Iterable[Results]) -> Mapping[str, int]:
    # the declared type includes results of remote backends, which lack the attribute
    counts = getattr(results, "final_bitstrings")  # noqa: B009
    return {str(word): int(count) for word, count in sorted(counts.items())}


def _rows(counts: Mapping[str, int], atoms: int, machine: str) -> Bits:
    for word, count in counts.items():
        if len(word) != atoms or count < 0:
            detail = f"{count} times {word!r:.40} for {atoms} atoms"
            raise QpuError(f"QPU {machine!r} returned {detail}")
    if not any(counts.values()):
        raise QpuError(f"QPU {machine!r} returned no reads")
    rows = np.array([[int(bit) for bit in word] for word in counts], np.int8)
    return np.repeat(rows, [*counts.values()], axis=0)


def _repaired(rows: Bits, graph: _OverlapGraph, embedding: Embedding) -> Bits:
    """Correct reads for the pairs in which the register differs from the graph."""
    rows = rows.copy()
    weights = np.array(graph.weights)
    for i, j in sorted(embedding.missing, key=lambda pair: weights[[*pair]].min()):
        lighter, other = (i, j) if weights[i] <= weights[j] else (j, i)
        rows[:, lighter] &= 1 - rows[:, other]
    near = _adjacency(len(weights), graph.edges).astype(np.int8)
    kept_out = {i for pair in [*embedding.extra, *embedding.missing] for i in pair}
    for i in sorted(kept_out, key=lambda i: (-weights[i], i)):
        rows[:, i] |= ~(rows @ near[i]).astype(bool)
    return rows


@dataclass(frozen=True)
class RegisterLimits:
    """Geometric limits of a device, in micrometres.

    :param radius: the blockade radius
    :param apart: the minimum distance of two atoms
    :param reach: the maximum distance from the centre
    """

    radius: float
    apart: float
    reach: float


@dataclass(frozen=True)
class Embedding:
    """A register, and the differences of its blockade graph from the requested graph.

    :param positions: shape (atoms, 2), in micrometres
    :param missing: edges whose atoms are too far apart
    :param extra: pairs without an edge whose atoms are too close
    """

    positions: Doubles
    missing: Pairs
    extra: Pairs

    def distances(self) -> Doubles:
        """Compute the distance matrix, in micrometres."""
        across = self.positions[:, np.newaxis] - self.positions
        return np.asarray(np.hypot(across[..., 0], across[..., 1]))


def embed(
    count: int, edges: Pairs, limits: RegisterLimits, seed: int
) -> Embedding | None:
    """Find positions in which exactly the edges are shorter than the blockade radius.

    Not every graph has such positions (one atom cannot block six others that do not
    block each other). Positions are optimized from several random starts; pairs that
    are wrong after a round get less weight in the next round, so that a few pairs are
    given up instead of all pairs being slightly wrong. The result has the fewest wrong
    pairs; the search ends early once a result has no wrong pairs.

    :param count: number of atoms
    :param seed: seed of the random starts
    :returns: ``None`` if no result respects the device's limits
    """
    from scipy.optimize import minimize

    near = _adjacency(count, edges)
    random = np.random.default_rng(seed)
    best, fewest = None, np.inf
    for _ in range(STARTS):
        spread = min(limits.reach, limits.radius * np.sqrt(count)) / 2
        flat = random.normal(0.0, spread, 2 * count)
        target = _Target(near, limits)
        for _ in range(ROUNDS):
            flat = minimize(target.error, flat, jac=True, method="L-BFGS-B").x
            latest = _embedding(flat.reshape(count, 2), near, limits)
            wrong = len(latest.missing) + len(latest.extra) if latest else np.inf
            if wrong < fewest:
                best, fewest = latest, wrong
            if not fewest:
                return best
            target.distrust(flat)
    return best


class _Target:
    """The objective: the deviation of positions from the requested distances."""

    def __init__(self, near: NDArray[np.bool_], limits: RegisterLimits) -> None:
        self._limits = limits
        self._rows, self._columns = np.triu_indices(len(near), 1)
        edges = near[self._rows, self._columns]
        self._least = np.where(edges, limits.apart * _SAFE, _FAR * limits.radius)
        self._most = np.where(edges, _NEAR * limits.radius, np.inf)
        self._trust = np.ones(len(edges))

    def distrust(self, flat: Doubles) -> None:
        """Reduce the weight of pairs that are wrong at these positions."""
        _, _, deviations = self._deviations(flat.reshape(-1, 2))
        self._trust = 1 / (1 + (deviations / (_GIVEN_UP * self._limits.radius)) ** 2)

    def _deviations(self, positions: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        across = positions[self._rows] - positions[self._columns]
        distances = np.hypot(across[:, 0], across[:, 1]) + 1e-9
        deviations = np.maximum(distances - self._most, 0)
        deviations -= np.maximum(self._least - distances, 0)
        return across, distances, deviations

    def error(self, flat: Doubles) -> tuple[float, Doubles]:
        """Compute the sum of squared errors, and its gradient."""
        positions = flat.reshape(-1, 2)
        across, distances, deviations = self._deviations(positions)
        # the device's limits take precedence over the graph
        too_close = distances < self._limits.apart * _SAFE
        weight = np.where(too_close, _DEMANDED, self._trust)
        pull = (2 * weight * deviations / distances)[:, np.newaxis] * across
        gradient = np.zeros_like(positions)
        np.add.at(gradient, self._rows, pull)
        np.add.at(gradient, self._columns, -pull)
        radii = np.hypot(positions[:, 0], positions[:, 1]) + 1e-9
        excess = np.maximum(radii - 0.98 * self._limits.reach, 0)
        gradient += (2 * excess / radii)[:, np.newaxis] * positions
        return (
            float((weight * deviations**2).sum() + (excess**2).sum()),
            gradient.ravel(),
        )


def _embedding(
    positions: Doubles, near: NDArray[np.bool_], limits: RegisterLimits
) -> Embedding | None:
    """Return the embedding; ``None`` if the device's limits are violated."""
    # Pulser rounds to picometres; rounding here keeps positions exact when re-read
    positions = np.round(positions - positions.mean(axis=0), 4)
    distances = Embedding(positions, [], []).distances()
    np.fill_diagonal(distances, np.inf)
    out = np.hypot(*positions.T).max(initial=0.0)
    if distances.min(initial=np.inf) < limits.apart or out > limits.reach:
        return None
    close = distances < limits.radius
    return Embedding(positions, _pairs(near & ~close), _pairs(close & ~near))


def _pairs(matrix: NDArray[np.bool_]) -> Pairs:
    rows, columns = np.nonzero(np.triu(matrix, 1))
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True)]


def _adjacency(count: int, pairs: Pairs) -> NDArray[np.bool_]:
    matrix = np.zeros((count, count), bool)
    for i, j in pairs:
        matrix[i, j] = matrix[j, i] = True
    return matrix
