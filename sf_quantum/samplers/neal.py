"""Simulated annealing with dwave-samplers, with the interface of this package's samplers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from dimod import BinaryQuadraticModel, SampleSet
from dwave.samplers.sa.sampler import SimulatedAnnealingSampler, default_beta_range

from sf_quantum.files import JSON
from sf_quantum.samplers.defaults import READS, SEEDS, SWEEPS
from sf_quantum.samplers.energies import recompute
from sf_quantum.samplers.parameters import CheckedSampler, check, seeded

if TYPE_CHECKING:
    from numpy import float64, int8
    from numpy.typing import NDArray

# Range of the inverse temperature if all biases are zero, for which neal would warn, since it
# derives the range from the biases. Any range works, since all states have the same energy.
FLAT = (0.1, 1.0)


class NealSampler(CheckedSampler):
    """Simulated annealing, also the sampler of the emulated QPU.

    :param interrupted: function that is called after every read; once it returns true,
        sampling stops and the completed reads are returned
    """

    checks = dict.fromkeys(("num_reads", "num_sweeps"), partial(check, least=1))
    more: ClassVar[dict[str, JSON]] = {"seeds": SEEDS}

    def __init__(self, interrupted: Callable[[], bool] | None = None) -> None:
        self._interrupted = interrupted
        self._annealer = SimulatedAnnealingSampler()

    def sample(
        self,
        bqm: BinaryQuadraticModel,
        *,
        num_reads: int = READS,
        seed: int | None = None,
        num_sweeps: int = SWEEPS,
    ) -> SampleSet:
        """Anneal from ``num_reads`` independent random states.

        The same model, seed, reads and sweeps give the same sample set, including
        ``info``, on every machine and through the service.

        :param num_reads: number of samples, 1 or more
        :param seed: 0 to 2**31 - 1; drawn if omitted, and always reported in ``info``
        :param num_sweeps: Metropolis sweeps over all variables per read
        :raises InputError: if a parameter is out of range
        """
        self.check_parameters(num_reads=num_reads, num_sweeps=num_sweeps)
        seed = seeded(seed)
        samples: SampleSet = self._annealer.sample(
            bqm,
            beta_range=FLAT if _is_flat(bqm) else None,
            num_reads=num_reads,
            num_sweeps=num_sweeps,
            seed=seed,
            interrupt_function=self._interrupted,
        )
        samples = recompute(samples, bqm)
        # neal's own info contains wall-clock times, which differ between runs
        samples.info.clear()
        samples.info.update(
            sampler="neal", seed=seed, reads=num_reads, num_sweeps=num_sweeps
        )
        return samples


def beta_range(ising: BinaryQuadraticModel) -> tuple[float, float]:
    """Return the first and the last inverse temperature of an annealing."""
    if _is_flat(ising):
        return FLAT
    hot, cold = default_beta_range(ising)
    return float(hot), float(cold)


def anneal(
    ising: BinaryQuadraticModel,
    betas: NDArray[float64],
    num_reads: int,
    seed: int,
    rows: NDArray[int8] | None = None,
) -> NDArray[int8]:
    """Sweep once at each of the inverse temperatures, and return rows of spins.

    :param betas: inverse temperatures, in order
    :param rows: states from which the reads start, shape (num_reads, variables); random
        states by default
    """
    import numpy

    labels = [*ising.variables]
    samples: SampleSet = SimulatedAnnealingSampler().sample(
        ising,
        num_reads=num_reads,
        beta_schedule_type="custom",
        beta_schedule=betas,
        initial_states=None if rows is None else (rows, labels),
        seed=seed,
    )
    columns = [samples.variables.index(label) for label in labels]
    annealed: NDArray[int8] = numpy.asarray(samples.record.sample)[:, columns]
    return annealed


def _is_flat(bqm: BinaryQuadraticModel) -> bool:
    return not any(bqm.linear.values()) and not any(bqm.quadratic.values())
