"""What a client says of a vendor that misbehaves, in each of the ways of ``tests/support/vendor.py``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace
from datetime import datetime
from pathlib import Path

import pytest
from dimod import SampleSet

from sf_quantum import backoff, qpu
from sf_quantum.backoff import Backoff
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.net import transport
from sf_quantum.protocol import tasks
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.tasks import (
    OVER,
    LeaseLost,
    NotAccepted,
    Outcome,
    Progress,
    Task,
    UnknownJob,
)
from sf_quantum.qpu import AuthenticationError, NoLease, Qpu, running
from sf_quantum.qpu.environment import from_environment, job_environment
from sf_quantum.samplers.defaults import SWEEPS
from sf_quantum.samplers.problem import document
from sf_quantum.testing.qpus import JobContract, QpuContract, problem
from tests.support.vendor import Vendor, VendorProcess
from tests.support.vendor_machine import Fault
from tests.support.waiting import SECONDS, until

# as the QPU service sends it
PARAMETERS = {"num_reads": 10, "seed": 1, "num_sweeps": SWEEPS}
TASK = Task("first", "problem", json.dumps(problem()), PARAMETERS)


@pytest.fixture
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendor]:
    with Vendor(tmp_path / "vendor") as vendor:
        monkeypatch.syspath_prepend(vendor.site())
        yield vendor


@pytest.fixture
def driver(vendor: Vendor) -> Qpu:
    return qpu.load("acme").from_config("one", vendor.config)


@pytest.fixture
def lease(driver: Qpu) -> str:
    return driver.acquire()


@pytest.fixture
def job(driver: Qpu, lease: str) -> Qpu:
    return under(driver, lease)


def under(driver: Qpu, lease: str) -> Qpu:
    job = from_environment(job_environment([(driver, lease)]))
    assert job is not None
    return job


def over(job: Qpu, number: str) -> str:
    until(lambda: job.poll(number).state in OVER, f"job {number} is over")
    return job.poll(number).state


def samples(outcome: Outcome) -> SampleSet:
    assert outcome.result is not None
    answer: SampleSet = SampleSet.from_serializable(json.loads(outcome.result.whole))  # type: ignore[no-untyped-call]
    return answer


class TestContract(QpuContract, JobContract):
    """The example keeps the contract here too."""

    @pytest.fixture
    def driver(self, driver: Qpu, vendor: Vendor) -> Qpu:
        # 10,000 shots last long enough to be cancelled
        vendor.set(shot=1000.0)
        self.vendor = vendor
        return driver

    def refuse(self, driver: Qpu, status: int) -> None:
        # it has no 503
        kind: Fault = "busy" if status == 429 else "error"
        self.vendor.fault(kind, "/jobs", method="POST", retry_after=0)


# submissions


def test_busy_without_a_pause(job: Qpu, vendor: Vendor) -> None:
    vendor.fault("busy", "/jobs")
    with pytest.raises(NotAccepted, match="'one': too many requests") as caught:
        job.submit(TASK)
    assert caught.value.retry_seconds is None
    assert vendor.counts() == {}


@pytest.mark.parametrize("as_date", [False, True])
def test_busy_with_a_pause_by_a_clock_that_is_wrong(
    job: Qpu, vendor: Vendor, as_date: bool
) -> None:
    vendor.set(skew_seconds=-86400)
    vendor.fault("busy", "/jobs", retry_after=30, as_date=as_date)
    with pytest.raises(NotAccepted) as caught:
        job.submit(TASK)
    # a date has whole seconds only
    assert caught.value.retry_seconds == pytest.approx(30, abs=1)


def test_a_queue_that_is_full(job: Qpu, vendor: Vendor) -> None:
    vendor.set(held=True, most_waiting=2)
    job.submit(TASK)
    number = job.submit(replace(TASK, tag="second"))
    with pytest.raises(NotAccepted, match="too many jobs") as caught:
        job.submit(replace(TASK, tag="third"))
    assert caught.value.retry_seconds == 1
    queued = job.poll(number)
    assert (queued.state, queued.position) == ("Queued", 1)
    assert queued.eta_seconds == pytest.approx(1.1e-3)


@pytest.mark.parametrize("kind", ["error", "error after", "cut", "cut after"])
def test_where_there_may_be_a_job_it_can_be_looked_for(
    job: Qpu, vendor: Vendor, kind: str
) -> None:
    vendor.command("fault", kind=kind, path="/jobs", method="POST")
    with pytest.raises(QpuError) as caught:
        job.submit(TASK)
    assert not isinstance(caught.value, NotAccepted | UnknownJob)
    found = job.find("first")
    assert (found is not None) == ("after" in kind)
    number = found or job.submit(TASK)
    assert over(job, number) == "Completed"
    assert vendor.counts()["first"].accepted == 1


def test_a_vendor_that_is_away_has_certainly_no_job(job: Qpu, vendor: Vendor) -> None:
    vendor.__exit__()
    with pytest.raises(NotAccepted, match=r"does not answer: .*refused"):
        job.submit(TASK)
    vendor.__enter__()
    assert over(job, job.submit(TASK)) == "Completed"


def test_a_lease_is_acquired_once_though_the_answer_was_lost(
    driver: Qpu, vendor: Vendor
) -> None:
    vendor.fault("cut after", "/bookings")
    with pytest.raises(QpuError, match="closed") as caught:
        driver.acquire_waiting(None, wait_seconds=0, key="of a service")
    assert not isinstance(caught.value, NoLease)
    with pytest.raises(NoLease, match="it is booked"):
        driver.acquire()
    lease = driver.acquire_waiting(None, wait_seconds=0, key="of a service")
    assert driver.renew(lease) is None
    driver.release(lease)
    driver.release(driver.acquire())


def test_a_vendor_that_is_away_has_no_lease_to_wait_for(
    driver: Qpu, vendor: Vendor
) -> None:
    vendor.__exit__()
    with pytest.raises(QpuError, match="does not answer") as caught:
        driver.acquire()
    assert not isinstance(caught.value, NoLease)
    vendor.__enter__()


def test_a_request_that_takes_effect_late(
    job: Qpu, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = transport.Client.request

    def impatient(
        self: transport.Client,
        method: str,
        path: str,
        body: dict[str, JSON],
        *,
        most_bytes: int,
    ) -> transport.Response:
        return request(self, method, path, body, timeout_seconds=0.1)

    vendor.fault("late", "/jobs", method="POST")
    with monkeypatch.context() as patch:
        patch.setattr(transport.Client, "request", impatient)
        with pytest.raises(QpuError, match=r"no answer within 0\.1 s") as caught:
            job.submit(TASK)
    assert not isinstance(caught.value, NotAccepted)
    vendor.until_late()
    # who looks for it now, does not find it
    assert job.find("first") is None
    vendor.let_through()
    assert until(lambda: job.find("first"))


def test_a_late_answer_is_an_answer(job: Qpu, vendor: Vendor) -> None:
    vendor.fault("late answer", "/jobs", method="POST")
    with ThreadPoolExecutor() as pool:
        submitted = pool.submit(job.submit, TASK)
        vendor.until_late()
        found = job.find("first")
        vendor.let_through()
        assert submitted.result(SECONDS) == found


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"num_reads": 10_001}, "10001 shots, at most 10000"),
        ({"num_sweeps": 5}, "num_sweeps"),
    ],
)
def test_a_job_that_is_refused(
    job: Qpu, vendor: Vendor, parameters: dict[str, int], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        job.submit(replace(TASK, parameters=parameters))
    assert vendor.counts() == {}


def test_a_device_that_shrinks(driver: Qpu, job: Qpu, vendor: Vendor) -> None:
    many = replace(
        TASK,
        payload=json.dumps(document([*range(12)], [1.0] * 12, [], [], "SPIN")),
    )
    job.cancel(job.submit(many))
    vendor.set(dead=[*range(53)])
    assert driver.status().qubits == driver.describe().qubits == 11
    assert driver.describe().out_of_service == {*range(53)}
    with pytest.raises(InputError, match="12 spins on 11 qubits"):
        job.submit(many)


def test_a_key_that_is_wrong_from_now_on(driver: Qpu, job: Qpu, vendor: Vendor) -> None:
    number = job.submit(TASK)
    vendor.set(key="another")
    for ask in (
        *(driver.status, driver.describe, driver.acquire),
        *(lambda: job.submit(TASK), lambda: job.find("first")),
        *(lambda: job.poll(number), lambda: job.result(number, TASK)),
        lambda: job.cancel(number),
    ):
        with pytest.raises(AuthenticationError, match="'one': this key is not known"):
            ask()
    # which is read for each request
    vendor.key_file.write_text("another")
    assert over(job, number) == "Completed"


def test_maintenance(driver: Qpu, job: Qpu, vendor: Vendor) -> None:
    vendor.set(held=True)
    number = job.submit(TASK)
    vendor.set(held=False, state="maintenance", reason="until noon: a new cryostat")
    status = driver.status()
    assert (status.online, status.reason) == (False, "until noon: a new cryostat")
    with pytest.raises(NotAccepted, match="until noon"):
        job.submit(replace(TASK, tag="second"))
    with pytest.raises(NoLease, match="until noon"):
        driver.acquire()
    assert job.poll(number).state == "Queued"
    vendor.set(state="up")
    assert over(job, number) == "Completed"


def test_a_lease_that_the_vendor_has_ended(
    driver: Qpu, lease: str, job: Qpu, vendor: Vendor
) -> None:
    assert driver.renew(lease) is None
    number = job.submit(TASK)
    vendor.end_bookings()
    with pytest.raises(LeaseLost, match="the booking has ended"):
        job.submit(TASK)
    with pytest.raises(LeaseLost, match="the booking has ended"):
        driver.renew(lease)
    # the jobs that it has can still be asked for
    assert over(job, number) == "Completed"


# jobs


def test_a_job_is_sampled_and_billed_once(
    driver: Qpu, job: Qpu, vendor: Vendor
) -> None:
    number = job.submit(TASK)
    vendor.until("first", "done")
    outcome = job.result(number, TASK)
    answer = samples(outcome)
    assert answer.first.sample == {"one": 1, "other": 0}
    assert answer.first.energy == -1.5
    assert outcome.qpu_seconds == outcome.seconds == pytest.approx(1.1e-3)
    assert outcome.calibration == driver.describe().calibration
    (count,) = vendor.counts().values()
    assert (count.accepted, count.ran, count.billed) == (1, 1, 1)


def test_a_job_that_vanishes(job: Qpu, vendor: Vendor) -> None:
    vendor.set(held=True)
    number = job.submit(TASK)
    vendor.vanish("first")
    assert job.find("first") is None
    for ask in (lambda: job.poll(number), lambda: job.result(number, TASK)):
        with pytest.raises(UnknownJob, match="no such job"):
            ask()
    job.cancel(number)


def test_a_job_that_never_ends_is_billed_for_the_part_that_ran(
    job: Qpu, vendor: Vendor
) -> None:
    vendor.next_jobs("never ends")
    number, following = job.submit(TASK), job.submit(replace(TASK, tag="second"))
    vendor.until("first", "running")
    # the machine runs one job at a time
    assert job.poll(following).state == "Queued"
    until(lambda: (job.result(number, TASK).seconds or 0) > 1.1e-3)
    job.cancel(number)
    job.cancel(number)
    assert over(job, following) == "Completed"
    outcome = job.result(number, TASK)
    assert (job.poll(number).state, outcome.result) == ("Cancelled", None)
    assert outcome.qpu_seconds == pytest.approx(1.1e-3)


def test_a_job_queues_at_its_vendor_but_not_in_a_session(
    driver: Qpu, vendor: Vendor
) -> None:
    vendor.set(queue_seconds=[3600.0, 0.2])
    lease = driver.acquire_waiting(None, wait_seconds=0, key="one")
    first = under(driver, lease)
    number = first.submit(TASK)
    state, _, eta = astuple(first.poll(number))
    assert (state, 3590 < eta <= 3600) == ("Queued", True)
    first.cancel(number)
    # the machine tells the wait of the next job
    assert 0.1 < (driver.status().eta_seconds or 0) <= 0.2
    assert over(first, first.submit(replace(TASK, tag="second"))) == "Completed"
    vendor.set(queue_seconds=[3600.0])
    assert over(first, first.submit(replace(TASK, tag="third"))) == "Completed"
    # the same booking, once it was given back, is another session
    driver.release(lease)
    again = under(driver, driver.acquire_waiting(None, wait_seconds=0, key="one"))
    assert again.poll(again.submit(replace(TASK, tag="fourth"))).state == "Queued"


def test_a_job_that_is_cancelled_before_it_starts_costs_nothing(
    job: Qpu, vendor: Vendor
) -> None:
    vendor.set(held=True)
    number = job.submit(TASK)
    job.cancel(number)
    assert job.poll(number).state == "Cancelled"
    assert job.result(number, TASK) == Outcome(qpu_seconds=0.0, seconds=0.0)
    assert vendor.counts()["first"].ran == 0


def test_a_job_that_fails_says_why(job: Qpu, vendor: Vendor) -> None:
    vendor.next_jobs("fails")
    number = job.submit(TASK)
    assert over(job, number) == "Failed"
    outcome = job.result(number, TASK)
    assert outcome.failure == "the readout lost its lock"
    assert outcome.qpu_seconds == pytest.approx(1.1e-3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[1, ", "JSON"),
        ("{}", "valid array"),
        ("[" * 100_000, "JSON"),
        ("[[1, -1]]", "expected 10 rows of 2 spins"),
        (json.dumps([[1]] * 10), "expected 10 rows of 2 spins"),
        (json.dumps([[1, 2]] * 10), "each 1 or -1"),
        (json.dumps([[1, 1000]] * 10), "1 or -1"),
        (json.dumps([[1, 1]] * 9 + [[1]]), "1 or -1"),
    ],
)
def test_a_malformed_result(job: Qpu, vendor: Vendor, text: str, reason: str) -> None:
    number = job.submit(TASK)
    over(job, number)
    vendor.fault("answer", f"/jobs/{number}/spins", body=text)
    with pytest.raises(QpuError, match=f"malformed .*{reason}"):
        job.result(number, TASK)
    # which it may answer well the next time
    assert len(samples(job.result(number, TASK))) == 10


@pytest.mark.parametrize(
    "told",
    [
        *("", "null", "[{}]", '{"job": "1"}'),
        *({"phase": "lost"}, {"billed": -1.0}, {"billed": "NaN"}, {"took": None}),
    ],
)
def test_malformed_news_of_a_job(
    job: Qpu, vendor: Vendor, told: str | dict[str, JSON]
) -> None:
    number = job.submit(TASK)
    if not isinstance(told, str):
        known: dict[str, JSON] = {"job": number, "phase": "done", "error": ""}
        known |= {"ahead": None, "wait": None, "took": 1.0, "billed": 1.0}
        told = json.dumps({**known, "calibration": None, **told}).replace(
            '"NaN"', "NaN"
        )
    vendor.fault("answer", "/jobs", body=told, times=3)
    for ask in (
        lambda: job.poll(number),
        lambda: job.result(number, TASK),
        # what cannot be read does not say that there is no job
        lambda: job.find("first"),
    ):
        with pytest.raises(QpuError, match="malformed answer") as caught:
            ask()
        assert not isinstance(caught.value, UnknownJob)


@pytest.mark.parametrize("told", ["NaN", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite(job: Qpu, vendor: Vendor, told: str) -> None:
    number = job.submit(TASK)
    text = f"""{{"job": "{number}", "phase": "failed", "error": "", "ahead": 3,
        "wait": {told}, "took": 1, "billed": 1, "calibration": {{"t1": {told}}}}}"""
    vendor.fault("answer", "/jobs", body=text, times=2)
    assert job.poll(number) == Progress("Failed", 3, None)
    assert job.result(number, TASK).calibration == CalibrationData()


@pytest.mark.parametrize("kind", ["cut", "cut after", "cut amid", "error"])
def test_news_that_do_not_arrive(job: Qpu, vendor: Vendor, kind: str) -> None:
    number = job.submit(TASK)
    vendor.command("fault", kind=kind, path="/jobs", times=3)
    for ask in (
        lambda: job.poll(number),
        lambda: job.find("first"),
        lambda: job.result(number, TASK),
    ):
        with pytest.raises(QpuError) as caught:
            ask()
        assert not isinstance(caught.value, UnknownJob)
    assert over(job, number) == "Completed"


def test_a_result_that_is_too_large(
    driver: Qpu, lease: str, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "RESULT_BYTES", 2**20)
    job = under(driver, lease)
    number = job.submit(TASK)
    over(job, number)
    vendor.fault("large", f"/jobs/{number}/spins", size=2**22)
    with pytest.raises(QpuError, match="more than 1,048,576 bytes"):
        job.result(number, TASK)
    assert len(samples(job.result(number, TASK))) == 10


def test_times_by_a_clock_that_is_wrong(driver: Qpu, vendor: Vendor) -> None:
    vendor.set(skew_seconds=3600)
    told = driver.describe().calibration
    assert told is not None
    ahead = datetime.fromisoformat(told.time).timestamp() - time.time()
    assert ahead == pytest.approx(3600, abs=SECONDS)


def test_a_seed_makes_the_same_samples(job: Qpu) -> None:
    pairs = [(spin, spin + 1) for spin in range(0, 30, 2)]
    tie = json.dumps(document([*range(30)], [0.0] * 30, pairs, [1.0] * 15, "SPIN"))
    drawn = []
    for tag, seed in (("one", 5), ("other", 5), ("third", None), ("fourth", None)):
        task = replace(TASK, tag=tag, payload=tie, parameters={"seed": seed})
        over(job, number := job.submit(task))
        drawn.append(tuple(samples(job.result(number, task)).record.sample[0]))
    assert drawn[0] == drawn[1]
    assert len({*drawn}) == 3


# the sampler


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler waits as often as ever, but not as long."""
    monkeypatch.setattr(backoff, "REQUEST", Backoff(0.001, 0.001))
    monkeypatch.setattr(backoff, "JOB", Backoff(0.001, 0.01))


@pytest.mark.usefixtures("patient")
def test_the_sampler_rides_out_trouble(job: Qpu, vendor: Vendor) -> None:
    vendor.fault("busy", "/jobs", method="POST", retry_after=0)
    vendor.fault("error", "/jobs/1", times=2)
    vendor.fault("cut", "/jobs/1/spins")
    job.solve(problem(), {"num_reads": 10})
    (count,) = vendor.counts().values()
    assert (count.accepted, count.ran) == (1, 1)


@pytest.mark.usefixtures("patient")
def test_the_sampler_gives_up(
    job: Qpu, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "RETRY_SECONDS", 0.0)
    vendor.fault("busy", "/jobs", retry_after=5)
    with pytest.raises(NotAccepted):
        job.solve(problem(), {"num_reads": 10})
    # nor does it wait if the vendor does not ask for it, or if there may be a job
    vendor.fault("busy", "/jobs")
    with pytest.raises(NotAccepted):
        job.solve(problem(), {"num_reads": 10})
    vendor.set(held=True)
    vendor.fault("error", "/jobs/1", method="GET")
    with pytest.raises(QpuError, match="an internal error"):
        job.solve(problem(), {"num_reads": 10})
    # what it does not wait for does not run
    (count,) = vendor.counts().values()
    assert (count.phases, count.ran) == (["stopped"], 0)


@pytest.mark.usefixtures("patient")
def test_the_sampler_says_what_became_of_its_job(job: Qpu, vendor: Vendor) -> None:
    vendor.set(held=True)
    with ThreadPoolExecutor() as pool:
        solved = pool.submit(job.solve, problem(), {"num_reads": 10})
        until(vendor.counts, "the job is accepted")
        job.cancel("1")
        with pytest.raises(QpuError, match="job 1: cancelled"):
            solved.result(SECONDS)
        solved = pool.submit(job.solve, problem(), {"num_reads": 10})
        until(lambda: len(vendor.counts()) == 2)
        for tag in vendor.counts():
            vendor.vanish(tag)
        with pytest.raises(UnknownJob):
            solved.result(SECONDS)


# the vendor as a process


@pytest.mark.process
def test_a_vendor_that_is_killed_forgets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with VendorProcess(tmp_path / "vendor") as vendor:
        monkeypatch.syspath_prepend(vendor.site())
        driver = qpu.load("acme").from_config("one", vendor.config)
        job = under(driver, driver.acquire())
        vendor.next_jobs("never ends")
        running = job.submit(TASK)
        vendor.until("first", "running")
        waiting = job.submit(replace(TASK, tag="second"))
        vendor.set(setup=1.0)
        vendor.kill()
        with pytest.raises(NotAccepted):
            job.submit(TASK)
        vendor.start()
        assert job.find("first") == running
        assert job.poll(running).state == "Running"
        assert job.poll(waiting).state == "Queued"
        job.cancel(running)
        assert over(job, waiting) == "Completed"
        # its settings and bookings, too
        assert over(job, job.submit(replace(TASK, tag="third"))) == "Completed"
        counts = vendor.counts()
        assert counts["third"].micros == 101
        assert {(c.accepted, c.ran, c.billed) for c in counts.values()} == {(1, 1, 1)}
