"""Random BQMs on every way, compared with rational arithmetic and exact distributions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import numpy
import pytest
from dimod import BinaryQuadraticModel, SampleSet, Vartype

from sf_quantum import samplers
from sf_quantum.files import JSON
from sf_quantum.qpu.sampler import QpuSampler
from sf_quantum.qpu.sfq import SfqQpu
from sf_quantum.samplers import problem
from sf_quantum.samplers.neal import beta_range
from sf_quantum.service.device.emulator.annealing import Annealing, AnnealingSampler
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.distributions import LEAST, p_value
from tests.random_bqms import boltzmann, energy, random_bqm, states, wrong_energies
from tests.service import RunningService, running_service
from tests.waiting import until

NUMBERS = range(8)


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["ideal", "noisy"])
def service(request: pytest.FixtureRequest) -> Iterator[RunningService]:
    """Noise changes what is found, and no energy of it."""
    device = EmulatedDevice(time_scale=0, qubits=20, noise=request.param, seed=1)
    with running_service(device) as running:
        yield running


@pytest.fixture(scope="module")
def lease(service: RunningService) -> str:
    return service.acquire()


def read(serialized: dict[str, JSON]) -> SampleSet:
    found: SampleSet = SampleSet.from_serializable(serialized)  # type: ignore[no-untyped-call]
    return found


def ground(bqm: BinaryQuadraticModel) -> Fraction:
    return min(energy(bqm, state) for state in states(bqm))


def share(bqm: BinaryQuadraticModel, samples: SampleSet) -> float:
    """Return the share of the reads that are optimal, by rational arithmetic."""
    least, names = ground(bqm), [*samples.variables]
    rows = [dict(zip(names, row, strict=True)) for row in samples.record.sample]
    counts = samples.record.num_occurrences
    best = [energy(bqm, row) == least for row in rows]
    return float(counts[best].sum() / counts.sum())


@pytest.mark.parametrize("number", NUMBERS)
def test_a_job_has_the_energies_of_its_problem(
    service: RunningService, lease: str, number: int
) -> None:
    bqm = random_bqm(number)
    body: dict[str, JSON] = {
        "problem": bqm.to_serializable(),
        "parameters": {"num_reads": 100, "seed": number},
        "idempotency_key": f"one-{number}",
    }
    answer = service.ask("POST", "/v1/jobs", body, lease=lease)
    assert answer.status == 201, answer.body
    path = f"/v1/jobs/{answer.json()['id']}"
    until(
        lambda: service.ask("GET", f"{path}?wait=5", lease=lease).json()["ended"], path
    )
    result = service.ask("GET", f"{path}/result", lease=lease).json()
    samples = read(result)
    assert int(samples.record.num_occurrences.sum()) == 100
    assert not wrong_energies(bqm, samples)


def test_a_list_has_the_energies_of_each(service: RunningService, lease: str) -> None:
    bqms = [random_bqm(number) for number in NUMBERS]
    sampler = SfqQpu("q", service.url, lease=lease).sampler()
    assert isinstance(sampler, QpuSampler)
    found = [*sampler.sample_multiple(bqms, num_reads=50, seed=3)]
    assert len(found) == len(bqms)
    for bqm, samples in zip(bqms, found, strict=True):
        assert not wrong_energies(bqm, samples)


@pytest.mark.parametrize("name", ["exact", "neal", "qaoa"])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_sampler_has_the_energies_of_its_problem(name: str, number: int) -> None:
    if why := samplers.obstacle(name):
        pytest.skip(why)
    bqm = random_bqm(number, 5)
    parameters: dict[str, JSON] = {} if name == "exact" else {"seed": 2}
    if name == "qaoa":
        parameters |= {"num_reads": 50}
    serialized: dict[str, JSON] = json.loads(json.dumps(bqm.to_serializable()))
    samples = read(problem.sample(samplers.load(name)(), serialized, parameters))
    assert not wrong_energies(bqm, samples)
    if name == "exact":
        assert share(bqm, samples) == 1.0
    if name == "neal":
        # of 64 states; a random one is optimal in less than a tenth of the reads
        assert share(bqm, samples) > 0.2


@pytest.mark.parametrize("number", NUMBERS[:3])
def test_an_annealing_that_pauses_has_boltzmanns_distribution(number: int) -> None:
    bqm, reads, s = random_bqm(number, 4), 20_000, 0.3
    hot, cold = beta_range(bqm.change_vartype(Vartype.SPIN, inplace=False))
    # from the first sweep on at one fraction of the annealing
    how = Annealing(schedule=[[0.0, s], [200.0, s]])
    found = AnnealingSampler(how).sample(bqm, num_reads=reads, num_sweeps=300, seed=9)
    assert not wrong_energies(bqm, found)
    columns = [found.variables.index(name) for name in bqm.variables]
    rows = numpy.asarray(found.record.sample)[:, columns] > 0
    counts = Counter("".join("01"[int(bit)] for bit in row) for row in rows)
    assert sum(counts.values()) == reads
    assert p_value(counts, boltzmann(bqm, hot * (cold / hot) ** s)) > LEAST
