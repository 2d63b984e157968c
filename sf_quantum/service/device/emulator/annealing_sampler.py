"""Simulated annealing, in parts, that follows :mod:`.annealing_schedules`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dimod import BinaryQuadraticModel, SampleSet, Vartype

from sf_quantum.samplers.defaults import SEEDS, SWEEPS
from sf_quantum.samplers.energies import exact_energies
from sf_quantum.samplers.neal import NealSampler, anneal, beta_range
from sf_quantum.samplers.parameters import CheckedSampler
from sf_quantum.service.device.emulator.annealing_schedules import (
    Annealing,
    Points,
    strength,
)
from sf_quantum.service.device.emulator.technologies import ANNEALING_SECONDS

if TYPE_CHECKING:
    from numpy import float64, int8
    from numpy.random import Generator
    from numpy.typing import NDArray

# Number of parts of an annealing; gain and offsets are constant in each.
PARTS = 32
# linear bias equivalent to a flux bias of one flux quantum: -2 Ip / B(s), with the values
# of Advantage in dwave.system.temperatures (B(1) = 1.391 GHz h, MAFM = 1.647 pH)
FLUX = -2373.48


class AnnealingSampler(CheckedSampler):
    """Anneals problems as ``how`` describes; reports energies of the unchanged problem."""

    checks = NealSampler.checks

    def __init__(self, how: Annealing) -> None:
        self._how = how

    def sample(
        self,
        bqm: BinaryQuadraticModel,
        *,
        num_reads: int = 1,
        num_sweeps: int = SWEEPS,
        seed: int = 0,
    ) -> SampleSet:
        """See :meth:`.NealSampler.sample`."""
        import numpy

        draws = numpy.random.default_rng(seed)
        run = _Run.of(bqm, self._how, num_sweeps)
        start = run.start(self._how)
        if self._how.reinitialize_state or start is None:
            tiled = None if start is None else numpy.repeat(start, num_reads, axis=0)
            rows = run.anneal(tiled, num_reads, draws)
        else:
            read, reads = start, []
            for _ in range(num_reads):
                read = run.anneal(read, 1, draws)
                reads.append(read)
            rows = numpy.concatenate(reads)
        states = rows if run.spins else (rows + 1) // 2
        info = {"sampler": "neal", "seed": seed}
        info |= {"reads": num_reads, "num_sweeps": num_sweeps}
        # untyped in dimod
        labelled = states.astype("int8"), [*bqm.variables]
        samples: SampleSet = SampleSet.from_samples(  # type: ignore[no-untyped-call]
            labelled, bqm.vartype, energy=exact_energies(bqm, *labelled), info=info
        )
        return samples


@dataclass(frozen=True)
class _Part:
    """A model, and the inverse temperatures at which it is swept."""

    model: BinaryQuadraticModel
    betas: NDArray[float64]

    def anneal(
        self, reads: int, draws: Generator, rows: NDArray[int8] | None
    ) -> NDArray[int8]:
        return anneal(self.model, self.betas, reads, int(draws.integers(SEEDS)), rows)


@dataclass(frozen=True)
class _Run:
    labels: list[int]
    spins: bool
    parts: list[_Part]

    @classmethod
    def of(cls, bqm: BinaryQuadraticModel, how: Annealing, sweeps: int) -> _Run:
        """Plan the sweeps: the model and the inverse temperatures of each part."""
        import numpy

        ising = bqm.change_vartype(Vartype.SPIN, inplace=False)
        largest = strength(ising)
        hot, cold = beta_range(ising)
        if not how.auto_scale:
            hot, cold = largest * hot, largest * cold
        duration = sweeps * ANNEALING_SECONDS / SWEEPS * 1e6
        schedule = how.schedule or [[0.0, 0.0], [duration, 1.0]]
        # The times are computed backwards from the end, so that a single sweep is at the
        # end.
        times = numpy.linspace(schedule[-1][0], 0.0, sweeps)[::-1]
        s = _values(schedule, times)
        ratio = cold / hot if hot else 1.0
        betas = hot * ratio**s
        unit = largest if how.auto_scale and largest else 1.0
        varies = how.gains is not None or how.offsets is not None
        cuts = numpy.array_split(numpy.arange(sweeps), PARTS if varies else 1)
        parts = []
        for cut in [cut for cut in cuts if len(cut)]:
            gain = 1.0
            if how.gains is not None:
                gain = float(_values(how.gains, times[cut]).mean())
            fraction = float(s[cut].mean())
            model = _model(
                ising, how, gain=gain, s=fraction, ratio=ratio, flux=FLUX * unit
            )
            parts.append(_Part(model, betas[cut]))
        return cls([*bqm.variables], bqm.vartype.name == "SPIN", parts)

    def start(self, how: Annealing) -> NDArray[int8] | None:
        import numpy

        if how.initial_state is None:
            return None
        state = numpy.array([how.initial_state[label] for label in self.labels], "int8")
        return (state if self.spins else 2 * state - 1)[numpy.newaxis]

    def anneal(
        self, rows: NDArray[int8] | None, reads: int, draws: Generator
    ) -> NDArray[int8]:
        """Anneal from the given rows of spins, or from random spins if ``None``."""
        first, *others = self.parts
        annealed = first.anneal(reads, draws, rows)
        for part in others:
            annealed = part.anneal(reads, draws, annealed)
        return annealed


def _model(
    ising: BinaryQuadraticModel,
    how: Annealing,
    *,
    gain: float,
    s: float,
    ratio: float,
    flux: float,
) -> BinaryQuadraticModel:
    """Return the problem at a fraction ``s`` of its annealing.

    :param ratio: ratio of the last inverse temperature to the first
    :param flux: linear bias equivalent to a flux bias of one flux quantum
    """

    def scale(qubit: int) -> float:
        ahead = s + (how.offsets[qubit] if how.offsets else 0.0)
        return float(ratio ** (min(1.0, max(0.0, ahead)) - s))

    def field(qubit: int, bias: float) -> float:
        fixed = flux * how.flux_biases[qubit] if how.flux_biases else 0.0
        return (gain * bias + fixed) * scale(qubit)

    linear = {qubit: field(qubit, bias) for qubit, bias in ising.linear.items()}
    quadratic = {
        (one, other): bias * (scale(one) * scale(other)) ** 0.5
        for (one, other), bias in ising.quadratic.items()
    }
    # These calls keep the order of the variables; the constructor would not.
    changed = BinaryQuadraticModel(Vartype.SPIN)
    changed.add_linear_from(linear)
    changed.add_quadratic_from(quadratic)
    return changed


def _values(points: Points, times: NDArray[float64]) -> NDArray[float64]:
    import numpy

    return numpy.interp(times, [t for t, _ in points], [value for _, value in points])
