"""The contract tests of QPU kinds.

Tests that need no QPU run for every registered kind, including a site's own kinds::

    pytest --pyargs sf_quantum.testing.qpus -k TYPE

For the other tests, subclass :class:`QpuContract`, and :class:`JobContract` if the kind
has a job side, with a QPU or a test double. If the double can reject requests, the tests also
show whether jobs survive temporary rejections (:meth:`QpuContract.refuse`)::

    class TestMine(QpuContract, JobContract):
        @pytest.fixture
        def driver(self) -> Qpu:
            return qpu.load("mine").from_config("one", {"url": ...})
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias, get_args

import pytest
from dimod import BinaryQuadraticModel, SampleSet

from sf_quantum import qpu
from sf_quantum.backoff import REQUEST
from sf_quantum.deadline import Deadline
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import OVER, Kind, Outcome, State, Task, UnknownJob
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.environment import (
    RESOURCES,
    TYPES,
    from_environment,
    job_environment,
)
from sf_quantum.samplers.problem import document

#: lies of a vendor: about results, job ids, times, messages, or its QPU
Lie: TypeAlias = Literal[
    "kind",  # a result of another kind of job
    "variables",  # other variables or bits than in the job
    "more reads",  # more reads than requested
    "fewer reads",
    "not finite",  # numbers that are NaN or infinite
    "not JSON",
    "energies",  # energies that do not match the samples
    "one id",  # the same id for each job
    "other job",  # any query about a job is answered for the first job
    "times",  # QPU time of a billion seconds
    "texts",  # a failure's reason with control characters, and of any length
    "status",  # an impossible queue, calibration and names
]
#: number of reads, enough for any working QPU to find the optimum of two variables
READS = 100
#: Seed of a job, which workflows pass even to QPUs that use no seeds.
SEED = 7
#: Maximum time of a job of READS reads.
SECONDS = 150.0
TWO_ATOMS = (("a", 0.0), ("b", 6.0))
#: circuit whose two bits are always equal, with gates that are native to some QPUs
BELL = """OPENQASM 3.0;
include "stdgates.inc";
gate r(theta, phi) q {{ U(theta, phi - pi/2, pi/2 - phi) q; }}
qubit[{qubits}] q;
bit[2] c;
r(pi/2, pi/2) q[{one}];
r(pi/2, pi/2) q[{other}];
cz q[{one}], q[{other}];
r(pi/2, -pi/2) q[{other}];
c[0] = measure q[{one}];
c[1] = measure q[{other}];
"""
#: experiment that swaps two modes, the first of which has a photon: in every shot, only the
#: second mode is detected, even if the source sends two photons; the circuit is Perceval's
#: Circuit(2).add(0, PERM([1, 0]))
PHOTONIC: dict[str, JSON] = {
    "circuit": ":PCVL:ACircuit:EAIiCBACcgQKAgEA",
    "input_state": "|1,0>",
}


def problem() -> dict[str, JSON]:
    """Return a problem of two variables that exclude each other; the lowest energy is -1.5."""
    return document(["one", "other"], [-1.0, -0.25], [(0, 1)], [2.0], "BINARY", -0.5)


def sequence(specs: str | None) -> str:
    """Return a pulse on two atoms, in Pulser's abstract representation."""
    constant: dict[str, JSON] = {"kind": "constant", "duration": 400}
    pulse: dict[str, JSON] = {
        "op": "pulse",
        "channel": "global",
        "protocol": "min-delay",
        "amplitude": {**constant, "value": 6.0},
        "detuning": {**constant, "value": 0.0},
        "phase": 0.0,
        "post_phase_shift": 0.0,
    }
    content: dict[str, JSON] = {
        "version": "1",
        "name": "two atoms",
        "register": [{"name": name, "x": 0.0, "y": y} for name, y in TWO_ATOMS],
        "channels": {"global": "rydberg_global"},
        "variables": {},
        "operations": [pulse],
        "measurement": "ground-rydberg",
        "device": json.loads(specs or "null"),
    }
    return json.dumps(content)


@pytest.fixture(params=qpu.names())
def kind(request: pytest.FixtureRequest) -> type[Qpu]:
    """Return each registered kind."""
    return qpu.load(str(request.param))


def test_it_is_a_qpu_under_its_own_name(kind: type[Qpu]) -> None:
    assert issubclass(kind, Qpu)
    assert kind.type in qpu.names()
    assert qpu.load(kind.type) is kind


def test_it_reports_whether_it_can_be_used_here(kind: type[Qpu]) -> None:
    problem = kind.problem()
    assert problem is None or (problem.strip() and "\n" not in problem)


def test_an_unknown_key_is_named(kind: type[Qpu]) -> None:
    with pytest.raises(InputError, match="no_such_key"):
        kind.from_config("one", {"no_such_key": "x"})


def test_an_empty_environment_names_what_is_missing(kind: type[Qpu]) -> None:
    with pytest.raises(InputError, match=r"[A-Za-z]+_[A-Z_]+"):
        kind.from_environment("one", {})


class _Leased:
    @pytest.fixture
    def driver(self) -> Qpu:
        """Return the driver's side of a QPU with a free lease."""
        raise NotImplementedError

    @pytest.fixture
    def lease(self, driver: Qpu) -> Iterator[str]:
        """Hold a lease during a test."""
        token = driver.acquire()
        yield token
        driver.release(token)


class QpuContract(_Leased):
    """The contract of a QPU that is online; override :meth:`driver`."""

    def test_it_reports_its_status(self, driver: Qpu) -> None:
        status = driver.status()
        assert status.online, "status(): the QPU of these tests has to be online"
        message = (
            f"status().reason is {status.reason!r}, but says why a QPU is not online"
        )
        assert not status.reason, message
        for key in ("name", "technology"):
            assert getattr(status, key), f"status().{key} is empty"
        for key, least in (
            ("qubits", 0),
            ("leases", 0),
            ("vqpus", 1),
            ("queue_length", 0),
        ):
            assert getattr(status, key) >= least, f"status().{key}: {least} or more"

    def test_a_lease_is_acquired_renewed_and_released(self, driver: Qpu) -> None:
        token = driver.acquire("the contract's")
        assert token, "acquire() returns the lease, as text that is not empty"
        seconds = driver.renew(token)
        left = "renew() returns the seconds that the lease has left, or None"
        assert seconds is None or seconds > 0, left
        driver.release(token)
        driver.release(token)
        # the lease is free again
        driver.release(driver.acquire())

    def test_the_job_finds_the_qpu_in_its_environment(
        self, driver: Qpu, lease: str
    ) -> None:
        variables = job_environment([(driver, lease)])
        for key, value in variables.items():
            named = (
                f"environment(): a shell cannot read {key!r} from a file of variables"
            )
            assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key), named
            assert "\n" not in value, f"environment(): {key} has more than one line"
        assert variables[RESOURCES[0]] == driver.name
        assert variables[TYPES[0]] == driver.type
        job = from_environment(variables)
        assert isinstance(job, type(driver))
        assert job.name == driver.name
        same = "from_environment() of what environment() returns makes the same QPU"
        assert job.environment(lease) == driver.environment(lease), same

    def test_a_job_solves_and_is_accounted_for(self, driver: Qpu, lease: str) -> None:
        job = _job_of(driver, lease)
        samples = job.solve(problem(), {"num_reads": READS, "seed": None})
        text = json.dumps(samples, allow_nan=False)
        answer: SampleSet = SampleSet.from_serializable(json.loads(text))  # type: ignore[no-untyped-call]
        assert answer.first.sample == {"one": 1, "other": 0}
        assert answer.first.energy == pytest.approx(-1.5)
        assert int(answer.record.num_occurrences.sum()) == READS, "one sample a read"
        assert answer.info.get("qpu"), "info['qpu'] is the QPU's name, for the report"
        jobs = driver.jobs(lease)
        if jobs is not None:
            expected = "jobs() has each job of the lease, with its state and id"
            assert [job.state for job in jobs] == ["Completed"], expected
            assert jobs[0].id, expected

    def test_a_workflow_samples_with_a_seed_in_a_folder_of_its_own(
        self,
        driver: Qpu,
        lease: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        variables = job_environment([(driver, lease)])
        for key, value in variables.items():
            relative = (
                f"{key} is {value!r}, which a job in another folder does not find"
            )
            assert Path(value).is_absolute() or not Path(value).exists(), relative
        folder = tmp_path / "job"
        folder.mkdir()
        monkeypatch.chdir(folder)
        _check_samples(_job_of(driver, lease))

    def refuse(self, driver: Qpu, status: int) -> None:
        """Have the test double reject the next submission once, with an HTTP status.

        The answer has ``Retry-After: 1``, except for status 500. Override this method to test
        that jobs survive a busy vendor.
        """
        pytest.skip("refuse() is not overridden: nothing can be refused")

    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_a_job_outlasts_a_refusal_that_passes(
        self, driver: Qpu, lease: str, status: int
    ) -> None:
        job = _job_of(driver, lease)
        self.refuse(driver, status)
        try:
            _check_samples(job)
        except QpuError as error:
            pytest.fail(
                f"a submission that was refused with {status} once ended its job; jobs are "
                f"submitted again, or looked for, until the vendor takes them: {error}"
            )

    def test_a_wrong_parameter_is_refused(self, driver: Qpu, lease: str) -> None:
        job = _job_of(driver, lease)
        with pytest.raises(InputError, match="no_such_parameter"):
            job.solve(problem(), {"no_such_parameter": 1})


class JobContract(_Leased):
    """The contract of the job side; override :meth:`driver`, and other parts that differ.

    The tests run jobs of every kind that the QPU accepts.
    """

    #: shots of a job that is cancelled
    long_reads: ClassVar[int] = 10_000
    #: id of no job
    unknown_id: ClassVar[str] = "00000000-0000-4000-8000-000000000000"

    @pytest.fixture
    def job(self, driver: Qpu, lease: str) -> Qpu:
        """Return the job's side, under a lease."""
        return _job_of(driver, lease)

    @pytest.fixture
    def slow_driver(self, driver: Qpu) -> Qpu:
        """Return a QPU on which jobs of :attr:`long_reads` last for minutes."""
        return driver

    @pytest.fixture
    def described(self, driver: Qpu) -> Description:
        """Return the description that the QPU reports."""
        return driver.describe()

    def payload(self, kind: Kind, described: Description) -> str:
        """Return the payload of a job of two variables, qubits, atoms or modes."""
        if kind == "problem":
            return json.dumps(problem())
        if kind == "sequence":
            return json.dumps(sequence(described.specs))
        if kind == "photonic":
            return json.dumps(PHOTONIC)
        one, other = 0, 1
        if described.native_gates and described.topology is not None:
            one, other = described.topology.couplers[0]
        return json.dumps(BELL.format(qubits=other + 1, one=one, other=other))

    def task(
        self, kind: Kind, described: Description, reads: int | None = READS
    ) -> Task:
        """Make a submission with its own tag."""
        payload = self.payload(kind, described)
        return Task(secrets.token_hex(16), kind, payload, {"num_reads": reads})

    def test_it_describes_itself(
        self, driver: Qpu, described: Description, job: Qpu
    ) -> None:
        assert described.technology == driver.status().technology
        assert described.kinds
        assert set(described.kinds) <= set(job.kinds)
        assert described.qubits >= 0
        assert described.shots is None or described.shots >= READS
        if (timing := described.timing) is not None:
            assert timing.job_seconds(READS) > 0
        if described.calibration is not None:
            assert described.calibration.id
        if (topology := described.topology) is not None:
            assert list(topology.couplers) == sorted(set(topology.couplers))
            assert all(a < b < topology.labels for a, b in topology.couplers)

    def test_jobs_run(self, described: Description, job: Qpu) -> None:
        for kind in described.kinds:
            task = self.task(kind, described)
            job_id = job.submit(task)
            assert job_id
            assert _end(job, job_id) == "Completed"
            outcome = job.result(job_id, task)
            _check(outcome, task)
            # the result can be read again
            assert job.result(job_id, task).result == outcome.result
            job.cancel(job_id)
            assert job.poll(job_id).state == "Completed"

    def test_jobs_are_found_by_their_tags(
        self, described: Description, job: Qpu
    ) -> None:
        tasks = [self.task(kind, described) for kind in described.kinds * 2]
        ids = [job.submit(task) for task in tasks]
        assert len(set(ids)) == len(ids)
        if job.finds_by_tag:
            assert [job.find(task.tag) for task in tasks] == ids
            assert not job.duplicates(tasks[0].tag, ids[0])
            # Next to a job with another id, the job with this tag is a duplicate.
            assert [*job.duplicates(tasks[0].tag, "")] == ids[:1]
            assert job.find(secrets.token_hex(16)) is None

    def test_jobs_are_cancelled(self, slow_driver: Qpu) -> None:
        token, described = slow_driver.acquire(), slow_driver.describe()
        job = _job_of(slow_driver, token)
        for kind in described.kinds:
            tasks = [self.task(kind, described, self.long_reads) for _ in range(2)]
            ids = [job.submit(task) for task in tasks]
            # the second job waits for the first if jobs run one at a time
            for job_id, task in [*zip(ids, tasks, strict=True)][::-1]:
                assert job.poll(job_id).state in ("Queued", "Running")
                job.cancel(job_id)
                assert _end(job, job_id) == "Cancelled"
                job.cancel(job_id)
                outcome = job.result(job_id, task)
                assert (outcome.result, outcome.failure) == (None, None)
        slow_driver.release(token)

    def test_an_unknown_job_is_unknown(self, described: Description, job: Qpu) -> None:
        task = self.task(described.kinds[0], described)
        with pytest.raises(UnknownJob):
            job.poll(self.unknown_id)
        with pytest.raises(UnknownJob):
            job.result(self.unknown_id, task)

    @pytest.fixture
    def make_lying(self) -> Callable[[Lie], Qpu | None]:
        """Return a function that makes the driver's side of a QPU whose vendor lies.

        The function returns ``None`` if the vendor's API cannot express a lie. Override this
        fixture with a test double that lies, to test that any answer is handled.
        """
        pytest.skip("make_lying() is not overridden: no vendor lies")

    @pytest.mark.parametrize("lie", get_args(Lie))
    def test_a_lie_ends_in_an_outcome_or_an_error_of_ours(
        self, make_lying: Callable[[Lie], Qpu | None], lie: Lie
    ) -> None:
        if (driver := make_lying(lie)) is None:
            return
        # Any other error would crash the service that drives the QPU.
        with suppress(QpuError, InputError):
            driver.status()
            described, token = driver.describe(), driver.acquire()
            try:
                job = _job_of(driver, token)
                task = self.task(described.kinds[0], described)
                job_id = job.submit(task)
                _end(job, job_id)
                assert isinstance(job.result(job_id, task), Outcome)
            finally:
                driver.release(token)

    def test_a_job_that_cannot_run_is_refused(
        self, described: Description, job: Qpu
    ) -> None:
        for kind in described.kinds:
            nonsense = '{"nonsense": 1}' if kind == "problem" else '"nonsense"'
            tag = secrets.token_hex(16)
            with pytest.raises(InputError) as caught:
                job.submit(Task(tag, kind, nonsense, {"num_reads": 1}))
            assert "\n" not in str(caught.value)


def _job_of(driver: Qpu, lease: str) -> Qpu:
    made = from_environment(job_environment([(driver, lease)]))
    assert made is not None, "environment() does not name the QPU"
    return made


def _check_samples(job: Qpu) -> None:
    """Sample with a seed, like ``sfq solve`` and programs."""
    bqm = BinaryQuadraticModel.from_serializable(problem())
    samples = job.sampler().sample(bqm, num_reads=READS, seed=SEED)
    assert samples.first.sample == {"one": 1, "other": 0}
    reads = int(samples.record.num_occurrences.sum())
    assert reads == READS, f"{reads} samples of {READS} reads"


def _end(job: Qpu, job_id: str) -> State:
    deadline = Deadline(SECONDS)
    for pause in REQUEST.pauses():
        if (state := job.poll(job_id).state) in OVER:
            return state
        assert deadline.left, f"job {job_id} is {state} after {SECONDS:g} s"
        time.sleep(pause)
    raise AssertionError  # unreachable, since the pauses never end


def _check(outcome: Outcome, task: Task) -> None:
    """Check the outcome of a task of these tests."""
    assert outcome.failure is None
    assert outcome.result is not None
    assert outcome.qpu_seconds is None or outcome.qpu_seconds >= 0
    assert outcome.seconds is None or outcome.seconds >= 0
    content = json.loads(outcome.result.whole)
    if task.kind == "problem":
        model = BinaryQuadraticModel.from_serializable(json.loads(task.payload))
        samples: SampleSet = SampleSet.from_serializable(content)  # type: ignore[no-untyped-call]
        assert set(samples.variables) == set(model.variables)
        assert samples.record.energy == pytest.approx(model.energies(samples))
        assert samples.first.sample == {"one": 1, "other": 0}
        assert int(samples.record.num_occurrences.sum()) == task.shots
    elif task.kind == "photonic":
        assert content["counter"] == {"|0,1>": task.shots}
    else:
        assert {len(bits) for bits in content["counter"]} == {2}
        assert set("".join(content["counter"])) <= {"0", "1"}
        assert sum(content["counter"].values()) == task.shots
