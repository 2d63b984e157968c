"""Random BQMs on every way, compared with rational arithmetic and exact distributions."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import ClassVar, cast

import numpy
import pytest
from dimod import BinaryQuadraticModel, SampleSet, Vartype
from dimod.core.sampler import Sampler

from sf_quantum import samplers
from sf_quantum.files import JSON
from sf_quantum.protocol.descriptions import Topology
from sf_quantum.protocol.tasks import Task
from sf_quantum.qpu.sampler import JobSampler, QpuSampler
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.qpu.vendors import ising
from sf_quantum.samplers import problem
from sf_quantum.samplers.energies import recompute
from sf_quantum.samplers.neal import NealSampler, beta_range
from sf_quantum.samplers.presolve import LeasedPresolve, Presolve
from sf_quantum.service.device.emulator.annealing_sampler import AnnealingSampler
from sf_quantum.service.device.emulator.annealing_schedules import Annealing
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.device_errors import Noise
from sf_quantum.service.device.processes import merging, verification
from sf_quantum.service.dialects.sapi import qp_format
from sf_quantum.service.dialects.sapi.parameters import ProblemParameters
from sf_quantum.service.dialects.sapi.solver import ProblemOptions
from tests.support.distributions import LEAST, p_value
from tests.support.random_bqms import (
    PENALTIES,
    boltzmann,
    exact,
    random_bqm,
    states,
    wrong_energies,
)
from tests.support.service import RunningService, running_service
from tests.support.waiting import until

NUMBERS = range(8)
READS = 50


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
    return min(map(exact(bqm), states(bqm)))


def share(bqm: BinaryQuadraticModel, samples: SampleSet) -> float:
    """Return the share of the reads that are optimal, by rational arithmetic."""
    least, names = ground(bqm), [*samples.variables]
    rows = [
        dict(zip(names, map(int, row), strict=True)) for row in samples.record.sample
    ]
    counts = samples.record.num_occurrences
    best = [energy == least for energy in map(exact(bqm), rows)]
    return float(counts[best].sum() / counts.sum())


@pytest.mark.parametrize("number", NUMBERS)
def test_a_job_has_the_energies_of_its_problem(
    service: RunningService, lease: str, number: int
) -> None:
    bqm = random_bqm(number, penalty=PENALTIES[number])
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
    bqms = [*penalized()]
    sampler = SfqQpu("q", service.url, lease=lease).sampler()
    assert isinstance(sampler, QpuSampler)
    found = [*sampler.sample_multiple(bqms, num_reads=50, seed=3)]
    assert len(found) == len(bqms)
    for bqm, samples in zip(bqms, found, strict=True):
        assert not wrong_energies(bqm, samples)


def test_a_client_has_the_energies_of_its_problem(
    service: RunningService, lease: str
) -> None:
    qpu = SfqQpu("q", service.url, lease=lease)
    for sampler in (qpu.sampler(), JobSampler(qpu), LeasedPresolve(qpu.sampler())):
        for number, bqm in enumerate(penalized()):
            samples = sampler.sample(bqm, num_reads=READS, seed=number)
            assert not wrong_energies(bqm, samples)


def added_up(bqm: BinaryQuadraticModel, seed: int = 5) -> SampleSet:
    """Return random samples, whose energies dimod adds up in double precision."""
    draws = numpy.random.default_rng(seed)
    rows = draws.integers(0, 2, (READS, len(bqm.variables)), numpy.int8)
    if bqm.vartype is Vartype.SPIN:
        rows = 2 * rows - 1
    labels = [*bqm.variables]
    return SampleSet.from_samples_bqm((rows, labels), bqm)  # type: ignore[no-untyped-call, no-any-return]


class Whole(Sampler):
    """A sampler whose energies are not doubles.

    :param dtype: of the energies
    """

    properties: ClassVar[dict[str, JSON]] = {}
    parameters: ClassVar[dict[str, list[str]]] = {}

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def sample(self, bqm: BinaryQuadraticModel) -> SampleSet:
        found = added_up(bqm)
        rows = found.record.sample, [*found.variables]
        energy = numpy.zeros(len(found), self._dtype)
        return SampleSet.from_samples(rows, bqm.vartype, energy=energy)  # type: ignore[no-untyped-call, no-any-return]


@pytest.mark.parametrize("dtype", ["int64", "float32"])
@pytest.mark.parametrize("seed", range(10))
def test_energies_of_any_type_become_doubles(dtype: str, seed: int) -> None:
    bqm = random_bqm(seed, penalty=1e6)
    sampler = Whole(dtype)
    for samples in (recompute(sampler.sample(bqm), bqm), Presolve(sampler).sample(bqm)):
        assert not wrong_energies(bqm, samples)


def serialized(samples: SampleSet) -> dict[str, JSON]:
    # with labels and numbers as JSON has them
    told: dict[str, JSON] = json.loads(json.dumps(problem.serialized(samples)))
    return told


class Adding(SfqQpu):
    """A QPU whose energies are sums in double precision."""

    def solve(
        self, bqm: Mapping[str, JSON], parameters: Mapping[str, int | None]
    ) -> dict[str, JSON]:
        return serialized(added_up(BinaryQuadraticModel.from_serializable(bqm)))


class Returning(Sampler):
    """A sampler whose energies are sums in double precision."""

    properties: ClassVar[dict[str, JSON]] = {}
    parameters: ClassVar[dict[str, list[str]]] = {}

    def sample(self, bqm: BinaryQuadraticModel) -> SampleSet:
        return added_up(bqm)


def of_spins(bqm: BinaryQuadraticModel) -> SampleSet:
    spins = added_up(bqm).record.sample > 0
    text = json.dumps(bqm.to_serializable())
    task = Task("tag", "problem", text, {"num_reads": READS})
    told: dict[str, JSON] = json.loads(ising.samples(task, (2 * spins - 1).tolist()))
    return read({**told, "info": {}})


def verified(bqm: BinaryQuadraticModel) -> SampleSet:
    text, told = json.dumps(bqm.to_serializable()), json.dumps(
        serialized(added_up(bqm))
    )
    checked = verification.verified("problem", text, told, READS)
    return read({**checked.content, "info": {}})


def misread(bqm: BinaryQuadraticModel) -> SampleSet:
    device = EmulatedDevice(seed=1, noise=1.0)
    noise = Noise(device.errors, device.calibrations.present, 1)
    told = serialized(added_up(bqm))
    return read(noise.run_problem(bqm.to_serializable(), lambda _: told))


def merged(bqm: BinaryQuadraticModel) -> SampleSet:
    slices = [AnnealingSampler(Annealing()).sample(bqm, seed=n) for n in range(3)]
    return read({**merging.merge([*map(serialized, slices)]), "info": {}})


def aggregated(bqm: BinaryQuadraticModel) -> SampleSet:
    samples = Adding("q", "http://127.0.0.1:1").sampler().sample(bqm)
    return cast("SampleSet", samples.aggregate())


def over_sapi(bqm: BinaryQuadraticModel) -> SampleSet:
    """Read an answer as SAPI has it, with the constant term added."""
    place = {label: number for number, label in enumerate(bqm.variables)}
    numbered = bqm.relabel_variables(place, inplace=False)  # type: ignore[no-untyped-call]
    params = ProblemParameters(num_reads=READS, answer_mode="raw")
    options = ProblemOptions(type="ising", params=params, offset=0.0, graph_id="")
    couplers = ((0, len(place) - 1),)
    graph = Topology("none", (), len(place), couplers)
    content = numbered.to_serializable() if bqm.offset else None
    samples = recompute(added_up(numbered), numbered)
    text = json.dumps(serialized(samples))
    told = qp_format.answer(text, options, graph, content)
    samples.record.energy[:] = numpy.frombuffer(base64.b64decode(str(told["energies"])))
    samples.record.energy[:] += float(str(told["offset"]))
    found = samples.relabel_variables(  # type: ignore[no-untyped-call]
        dict(enumerate(place)), inplace=False
    )
    return cast("SampleSet", found)


PATHS: Mapping[str, Callable[[BinaryQuadraticModel], SampleSet]] = {
    "client": lambda bqm: Adding("q", "http://127.0.0.1:1").sampler().sample(bqm),
    "aggregated": aggregated,
    "presolve": lambda bqm: Presolve(Returning()).sample(bqm),
    "annealing": lambda bqm: AnnealingSampler(Annealing()).sample(bqm, num_reads=9),
    "neal": lambda bqm: NealSampler().sample(bqm, num_reads=READS, num_sweeps=3),
    "spins": of_spins,
    "vendor": verified,
    "noise": misread,
    "slices": merged,
    "sapi": over_sapi,
}


def penalized() -> Iterator[BinaryQuadraticModel]:
    """Random BQMs with penalties from 1 to 1e18."""
    for number, penalty in enumerate(PENALTIES * 2):
        yield random_bqm(number, penalty=penalty)


@pytest.mark.parametrize("path", PATHS)
def test_every_path_rounds_energies_once(path: str) -> None:
    # sums in double precision are wrong for 40 of these 45
    for number in range(5):
        for penalty in PENALTIES:
            bqm = random_bqm(number, penalty=penalty)
            added = float(bqm.offset) if path == "sapi" else 0.0
            assert not wrong_energies(bqm, PATHS[path](bqm), added)


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float64])
def test_biases_of_any_precision_are_added_exactly(dtype: type) -> None:
    for number in range(20):
        narrow = BinaryQuadraticModel(random_bqm(number, penalty=1e9), dtype=dtype)
        samples = recompute(added_up(narrow), narrow)
        assert not wrong_energies(narrow, samples)


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
