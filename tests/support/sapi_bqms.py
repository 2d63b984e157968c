"""Random BQMs of an annealer's qubits, by D-Wave's client, compared with exact references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING

import numpy
from dimod import BinaryQuadraticModel, Vartype

from sf_quantum.files import JSON
from sf_quantum.samplers.defaults import SWEEPS
from sf_quantum.samplers.neal import beta_range
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support.distributions import p_value
from tests.support.random_bqms import PENALTIES, annealed, random_bqm, wrong_energies
from tests.support.service import running_service

if TYPE_CHECKING:
    from dwave.cloud.solver import StructuredSolver

# of an annealing with SWEEPS sweeps
MICROSECONDS = 20.0
READS = 10_000


@contextmanager
def solver(noise: float = 0.0) -> Iterator[StructuredSolver]:
    """The stock client's solver: an annealer behind SAPI."""
    from dwave.cloud import Client

    device = EmulatedDevice(time_scale=0, qubits=100, noise=noise, seed=1)
    with (
        running_service(device, tcp=True) as service,
        Client(endpoint=f"{service.url}/sapi/v2", token="none") as client,
    ):
        yield client.get_solver()


def wrong_over_sapi(annealer: StructuredSolver, number: int) -> list[str]:
    """Return the samples of a random BQM whose energy is not that of the problem."""
    penalty = PENALTIES[number % len(PENALTIES)]
    bqm = random_bqm(number, graph=_neighbours(annealer), penalty=penalty)
    mode = ("histogram", "raw")[number // 2 % 2]
    sent = annealer.sample_bqm(bqm, num_reads=100, answer_mode=mode)
    # D-Wave's client adds the constant term, which is no part of SAPI's energies
    return wrong_energies(bqm, sent.sampleset, added=float(bqm.offset))


def schedule_p_value(annealer: StructuredSolver, number: int) -> float:
    """Anneal a random BQM with a random schedule, forward or from a random state.

    :returns: p value of the states against those of as many Metropolis sweeps
    """
    random = Random(number)
    bqm = random_bqm(number, 4, _neighbours(annealer))
    # the emulated annealer sweeps over the qubits in ascending order
    order = sorted(int(str(qubit)) for qubit in bqm.variables)
    begin, pause = random.randrange(2), random.uniform(0.1, 0.6)
    times = [0.0, 5.0, random.uniform(6.0, 18.0), MICROSECONDS]
    fractions = [float(begin), pause, pause, 1.0]
    points: list[JSON] = [[*point] for point in zip(times, fractions, strict=True)]
    parameters: dict[str, JSON] = {"anneal_schedule": points}
    start: dict[str | int, int] | None = None
    if begin:
        values = (-1, 1) if bqm.vartype is Vartype.SPIN else (0, 1)
        start = {qubit: random.choice(values) for qubit in order}
    found = annealer.sample_bqm(
        bqm,
        num_reads=READS,
        **parameters,
        **({"initial_state": start} if start else {}),
    ).sampleset
    columns = [found.variables.index(qubit) for qubit in order]
    counts: Counter[str] = Counter()
    for row, occurrences in zip(
        found.record.sample[:, columns], found.record.num_occurrences, strict=True
    ):
        counts["".join("01"[int(value > 0)] for value in row)] += int(occurrences)
    hot, cold = beta_range(bqm.change_vartype(Vartype.SPIN, inplace=False))
    at = numpy.interp(numpy.linspace(0.0, MICROSECONDS, SWEEPS), times, fractions)
    betas = (hot * (cold / hot) ** at).tolist()
    return p_value(counts, annealed(_reordered(bqm, order), betas, start))


def _neighbours(annealer: StructuredSolver) -> Mapping[int, set[int]]:
    graph: dict[int, set[int]] = {qubit: set() for qubit in annealer.nodes}
    for one, other in annealer.undirected_edges:
        graph[one].add(other)
        graph[other].add(one)
    return graph


def _reordered(bqm: BinaryQuadraticModel, order: list[int]) -> BinaryQuadraticModel:
    ordered = BinaryQuadraticModel(bqm.vartype)
    ordered.add_linear_from((qubit, bqm.linear[qubit]) for qubit in order)
    ordered.add_quadratic_from(bqm.quadratic)
    return ordered
