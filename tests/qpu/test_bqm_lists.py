"""Jobs with a list of BQMs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from dimod import BinaryQuadraticModel, SampleSet
from dimod.generators import ran_r

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Outcome, Result, Task
from sf_quantum.qpu.sampler import JobSampler, QpuSampler
from sf_quantum.qpu.sfq.problems import Problems
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device import problems
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.processes.merging import merge
from tests.support.service import RunningService, example_bqm, running_service


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with running_service(EmulatedDevice(time_scale=0, qubits=20, noise=1)) as running:
        yield running


@pytest.fixture(scope="module")
def lease(service: RunningService) -> str:
    return service.acquire()


@pytest.fixture(scope="module")
def qpu(service: RunningService, lease: str) -> SfqQpu:
    return SfqQpu("q", service.url, lease=lease)


def sampler(qpu: SfqQpu) -> QpuSampler:
    found = qpu.sampler()
    assert isinstance(found, QpuSampler)
    return found


def sample_set(serialized: dict[str, JSON]) -> SampleSet:
    found: SampleSet = SampleSet.from_serializable(serialized)  # type: ignore[no-untyped-call]
    return found


def last_job(service: RunningService, lease: str) -> dict[str, JSON]:
    answer = service.ask("GET", "/v1/jobs?limit=1", lease=lease)
    (job,) = json.loads(answer.body)
    return dict(job)


def test_each_bqm_has_its_samples(
    service: RunningService, lease: str, qpu: SfqQpu
) -> None:
    bqms = [ran_r(2, size, seed=size) for size in (3, 12, 5, 5)]
    bqms[3] = bqms[2]
    found = sampler(qpu).sample_multiple(bqms, num_reads=40, seed=7)
    job = last_job(service, lease)
    for bqm, samples in zip(bqms, found, strict=True):
        assert {*samples.variables} == {*bqm.variables}
        assert samples.record.num_occurrences.sum() == 40
        assert samples.record.energy == pytest.approx(bqm.energies(samples))
        assert samples.info["device"] == "emulator"
    seeds = [samples.info["seed"] for samples in found]
    assert seeds[0] == 7
    assert len({*seeds}) == 4
    assert found[2].record.sample.tolist() != found[3].record.tolist()
    single = sampler(qpu).sample(bqms[0], num_reads=40, seed=7)
    # each is programmed by itself
    alone = last_job(service, lease)["qpu_seconds"]
    assert isinstance(alone, float)
    assert job["qpu_seconds"] == pytest.approx(4 * alone)
    assert single.info["seed"] == 7
    streamed = [*qpu.sample_sets(str(job["id"]))]
    reads = [one.record.sample.tolist() for one in found]
    assert [sample_set(one).record.sample.tolist() for one in streamed] == reads
    assert sampler(qpu).sample_multiple([]) == []


def test_the_same_list_again(qpu: SfqQpu) -> None:
    """Without a seed, it has other samples."""
    bqms = [ran_r(1, 10, seed=1), ran_r(1, 10, seed=2)]
    one, other = (sampler(qpu).sample_multiple(bqms, num_reads=5) for _ in range(2))
    assert one[0].info["seed"] != other[0].info["seed"]
    assert one[0].info["job"] != other[0].info["job"]
    one, other = (
        sampler(qpu).sample_multiple(bqms, num_reads=5, seed=3) for _ in range(2)
    )
    assert one == other


def test_a_job_of_one_bqm_is_streamed_as_well(qpu: SfqQpu) -> None:
    bqm = json.dumps(example_bqm())
    outcome = qpu.run_job(Task("one", "problem", bqm, {"num_reads": 5, "seed": 1}))
    assert outcome.result is not None
    job = qpu.find("one")
    (found,) = qpu.sample_sets(str(job))
    told = json.loads(outcome.result.whole)
    assert found["sample_data"] == told["sample_data"]


BAD = {**example_bqm(), "offset": "x"}
WITH_PARAMETERS = {
    **example_bqm(),
    "info": {"solver_parameters": {"annealing_time": 50}},
}


@pytest.mark.process
@pytest.mark.parametrize(
    ("given", "field", "detail"),
    [
        (3, "problem", "expected a BQM, or a list of BQMs"),
        ([example_bqm(), 3], "problem", "expected a BQM, or a list of BQMs"),
        ([], "problem", "0 BQMs; from 1 to 1000 per job"),
        (
            [example_bqm()] * 1001,
            "problem",
            "1001 BQMs; from 1 to 1000 per job",
        ),
        ([example_bqm(), BAD], "problem[1].offset", "finite number"),
        (
            [example_bqm(), WITH_PARAMETERS],
            "problem[1].info.solver_parameters",
            "this device takes none here; an emulated annealer does over SAPI",
        ),
        # larger than what is read on the event loop, and than what a thread reads
        ([example_bqm()] * 300 + [BAD], "problem[300].offset", "finite number"),
        (
            [{**example_bqm(), "info": "x" * 2**20}, BAD],
            "problem[1].offset",
            "finite number",
        ),
        (
            [example_bqm(), ran_r(1, 21, seed=1).to_serializable()],
            "problem[1].variable_labels",
            "21 variables do not fit on 20 qubits",
        ),
    ],
)
def test_refused_lists(
    service: RunningService, lease: str, given: JSON, field: str, detail: str
) -> None:
    body: dict[str, JSON] = {"problem": given, "idempotency_key": "bad"}
    answer = service.ask("POST", "/v1/jobs", body, lease=lease)
    told = answer.json()
    assert (answer.status, told["field"]) == (422, field)
    assert detail in str(told["detail"])


def test_limits_of_a_list_are_those_of_its_sum(
    service: RunningService, lease: str
) -> None:
    """Each of these would be taken by itself."""
    bqm = ran_r(1, 20, seed=1).to_serializable()
    body: dict[str, JSON] = {"problem": [bqm] * 51, "idempotency_key": "large"}
    body["parameters"] = {"num_reads": 100_000}
    answer = service.ask("POST", "/v1/jobs", body, lease=lease)
    assert (answer.status, answer.json()["field"]) == (422, "parameters.num_reads")
    assert "1,020 variables" in str(answer.json()["detail"])
    long: list[JSON] = [{**example_bqm(), "info": "x" * problems.MOST_CHARACTERS}]
    with pytest.raises(FieldError, match="at most 4,194,304 for a list of BQMs"):
        problems.check(long, 20)


def test_a_large_list(qpu: SfqQpu) -> None:
    bqms = [ran_r(1, 12, seed=seed) for seed in range(60)]
    found = sampler(qpu).sample_multiple(bqms, num_reads=2)
    assert [{*one.variables} for one in found] == [{*one.variables} for one in bqms]


def test_merged_slices() -> None:
    a, b, c = (example_bqm() | {"of": name} for name in "abc")
    slices: list[dict[str, JSON]] = [{"sample_sets": [a, b]}, {"sample_sets": [c]}]
    assert merge(slices, by_circuit=True) == {"sample_sets": [a, b, c]}


class OneByOne(SfqQpu):
    """A vendor whose jobs have one problem."""

    def __init__(self) -> None:
        super().__init__("v", "http://127.0.0.1:1")
        self.payloads: list[JSON] = []

    def run_job(self, task: Task) -> Outcome:
        payload = json.loads(task.payload)
        self.payloads.append(payload)
        bqm = BinaryQuadraticModel.from_serializable(payload)
        samples = SampleSet.from_samples_bqm(dict.fromkeys(bqm.variables, 1), bqm)  # type: ignore[no-untyped-call]
        serialized: dict[str, JSON] = samples.to_serializable()
        del serialized["info"]
        return Outcome(Result(json.dumps(serialized)))


def test_other_kinds_sample_one_after_the_other() -> None:
    qpu = OneByOne()
    bqms = [ran_r(1, 3, seed=seed) for seed in (1, 2)]
    found = JobSampler(qpu).sample_multiple(bqms)
    assert [one.first.energy for one in found] == [
        bqm.energy(dict.fromkeys(bqm.variables, 1)) for bqm in bqms
    ]
    assert len(qpu.payloads) == 2


def test_answers_that_are_none(qpu: SfqQpu, monkeypatch: pytest.MonkeyPatch) -> None:
    bqm = example_bqm()
    solved = qpu.solve_multiple([bqm], {"num_reads": 1})
    assert len(solved) == 1
    monkeypatch.setattr(Problems, "solve", lambda *_: {"sample_sets": [{}, {}]})
    with pytest.raises(QpuError, match="its answer has 2 sample sets for 1 BQMs"):
        qpu.solve_multiple([bqm], {})
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"problem\[0\].offset"):
        qpu.solve_multiple([BAD], {})
