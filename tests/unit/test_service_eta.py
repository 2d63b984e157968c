"""How long jobs take, corrected by what was observed, and who is yet to come."""

from __future__ import annotations

import random
from statistics import median

import pytest

from sf_quantum.service.domain.jobs import JobClass
from sf_quantum.service.scheduling.eta import HOST_SECONDS, Arrivals, Pace
from sf_quantum.service.scheduling.pending import PendingJobs
from sf_quantum.service.scheduling.policies.classes import Classes
from sf_quantum.service.scheduling.work import PendingJob, Work
from tests.benchmarks import eta, eta_oracle


def test_nothing_observed_the_model_holds() -> None:
    pace = Pace()
    assert pace.job_seconds("problem", 2.0) == pytest.approx(2 + HOST_SECONDS)
    works = {"problem": Work(3, 6.0), "sequence": Work(1, 1.0)}
    assert pace.seconds(works) == pytest.approx(7 + 4 * HOST_SECONDS)  # type: ignore[arg-type]
    assert pace.seconds({}) == 0


def test_a_slow_device_is_found_out_by_kind() -> None:
    pace = Pace()
    for _ in range(20):
        pace.observe("problem", 1.0, 3.0)
    assert pace.job_seconds("problem", 2.0) == pytest.approx(6, rel=0.01)
    assert pace.job_seconds("sequence", 2.0) == pytest.approx(2, rel=0.01)


def test_a_device_without_waits_is_told_by_what_jobs_cost_the_host() -> None:
    pace = Pace()
    for _ in range(20):
        pace.observe("problem", 0.0, 0.02)
    assert pace.seconds({"problem": Work(10, 0.0)}) == pytest.approx(0.2)


def test_what_changed_is_forgotten() -> None:
    pace = Pace()
    for ratio in (5.0, 1.0):
        for _ in range(200):
            pace.observe("problem", 1.0, ratio)
    assert pace.job_seconds("problem", 1.0) == pytest.approx(1, rel=0.1)


HIGHER: tuple[JobClass, ...] = ("production", "quality", "test")


class Device:
    """Runs jobs of one second, by a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.arrivals = Arrivals(lambda: self.now)

    def run(self, *came: tuple[float, JobClass], seconds: float = 1.0) -> None:
        """Run a job while others come: when, and of which class."""
        begin = self.now
        self.arrivals.began()
        for when, job_class in sorted(came):
            self.now = begin + when
            self.arrivals.submitted(job_class, 1.0)
        self.now = begin + seconds
        self.arrivals.ended()

    def wait(self, seconds: float, passing: tuple[JobClass, ...] = HIGHER) -> float:
        return self.arrivals.wait(seconds, passing)


def test_those_who_keep_coming_are_counted_in() -> None:
    draws, device = random.Random(1), Device()
    rates: dict[JobClass, float] = {"production": 0.2, "test": 0.3}
    device.arrivals.submitted("test", 1.0)
    for _ in range(2000):
        came: list[tuple[float, JobClass]] = []
        for name, rate in rates.items():
            when = draws.expovariate(rate)
            if when < 1:
                came.append((when, name))
        device.run(*came)
    assert device.wait(100.0, ()) == 100
    # less the one job that the tail of the distribution costs
    assert device.wait(100.0, ("production",)) == pytest.approx(100 / 0.8 - 1, rel=0.1)
    assert device.wait(100.0) == pytest.approx(100 / (1 - 0.5) - 1, rel=0.25)


def test_nothing_is_expected_before_anything_was_observed() -> None:
    device = Device()
    assert device.wait(100.0) == 100
    device.arrivals.submitted("test", 1.0)
    assert device.wait(100.0) == 100
    device.arrivals.ended()  # of no attempt
    device.run()
    assert device.wait(100.0) == 100
    device.run((0.0, "test"), seconds=0.0)
    assert device.wait(100.0) < 101


def test_an_attempt_without_time_says_nothing() -> None:
    device = Device()
    device.run((0.0, "test"), seconds=0.0)
    assert device.wait(100.0) == 100


def test_a_few_attempts_are_taken_for_less_than_they_show() -> None:
    device = Device()
    device.arrivals.submitted("test", 1.0)
    device.now = 1000.0
    device.run((0.5, "test"), seconds=2.0)
    # one second in the two observed and the six assumed to be idle
    load = 1 / 8
    assert device.wait(100.0) == pytest.approx(100 / (1 - load) - 1)
    assert device.wait(1.0) == 1.0
    device.run(seconds=4.0)
    # older attempts count a hundredth less, and three of the mean length are assumed
    attempts, seconds = 1.99, 0.99 * 2 + 4
    load = 0.99 / (seconds * (1 + 3 / attempts))
    assert device.wait(100.0) == pytest.approx(100 / (1 - load) - 1)


def test_the_load_counts_only_classes_that_pass() -> None:
    device = Device()
    device.arrivals.submitted("test", 1.0)
    device.now = 1000.0
    device.run((0.5, "development"))
    assert device.wait(100.0) == 100
    assert device.wait(100.0, ("development",)) > 120


def test_a_batch_does_not_go_on() -> None:
    device = Device()
    device.arrivals.submitted("test", 1.0)
    batch: list[tuple[float, JobClass]] = [(0.001, "test")] * 1000
    device.run(*batch)
    for _ in range(100):
        assert device.wait(100.0) < 110
        device.run()


def test_a_stream_that_ends_is_soon_forgotten() -> None:
    device = Device()
    device.arrivals.submitted("test", 1.0)
    for _ in range(200):
        device.run((0.5, "test"))
        device.run()
    before = device.wait(100.0)
    assert before > 150
    for _ in range(3):  # which may well happen in a stream that goes on
        device.run()
    assert device.wait(100.0) == pytest.approx(before, rel=0.1)
    for _ in range(17):
        device.run()
    assert device.wait(100.0) < 125


def test_more_than_the_device_can_do_ends_some_day() -> None:
    device = Device()
    device.arrivals.submitted("production", 1.0)
    for _ in range(50):
        device.run((0.1, "production"), (0.2, "production"), (0.3, "test"))
    highest: tuple[JobClass, ...] = ("production",)
    assert 1000 < device.wait(1000.0, highest) < device.wait(1000.0)
    # 50 s so far, 25 s more, in which at most what is seen comes
    assert device.wait(1000.0) < 1000 + 25 * 2
    # the same again after a pause says less
    device.now += 1000
    device.arrivals.submitted("production", 1.0)
    device.run((0.1, "production"), (0.2, "production"), (0.3, "test"))
    assert device.wait(1000.0) < 1010


def test_more_than_the_device_can_do_is_counted_to_nine_tenths() -> None:
    device = Device()
    device.arrivals.submitted("production", 1.0)
    device.now = 1e6
    for _ in range(200):
        device.run((0.1, "production"), (0.2, "test"))
    assert device.wait(10.0) == pytest.approx(10 / (1 - 0.9) - 1)


def test_the_oracle_of_the_benchmark_plays_by_the_queues_rules() -> None:
    jobs = [
        eta_oracle.Coming(0.0, 2, 10.0),
        eta_oracle.Coming(1.0, 1, 4.0),
        eta_oracle.Coming(2.0, 0, 3.0),
        eta_oracle.Coming(3.0, 2, 1.0),
    ]
    seen, waits = eta_oracle.play(jobs)
    # the first one is pre-empted, and begins again when the second one is over
    assert waits == [0, 4, 0, 16]
    law = eta_oracle.Law([1e-9, 1e-9, 1e-9], [1.0])
    told = [law.future(line, random.Random(1), ends=False) for line in seen]
    # as if no other came; one of production does not wait for those it pre-empts
    assert told == [0, 9, 0, 16]


def test_after_a_hundred_mixed_jobs_half_the_etas_are_right() -> None:
    # on a clock of its own; tests/benchmarks/eta.py measures a service
    draws = random.Random(1)
    jobs = eta.draw(160, None, eta.MIXES["pre-emption"], 1.0, seed=1)
    modelled = eta.seconds_of(jobs, 1.0)
    # the device takes a third longer than its model says, and not always alike
    true = [seconds * draws.uniform(1.1, 1.5) for seconds in modelled]
    pace = Pace()
    for before, after in zip(modelled[:100], true[:100], strict=True):
        pace.observe("problem", before, after)
    pending = PendingJobs(Classes())
    for n in range(100, 160):
        pending.add(
            PendingJob(n, "", "ann", "", jobs[n].job_class, "problem", modelled[n])
        )
    told = {job.number: pace.seconds(pending.ahead(job)[0]) for job in pending}
    errors, now = [], 0.0
    while (job := pending.pop()) is not None:
        if now:
            errors.append(abs(told[job.number] - now) / now)
        now += true[job.number]
    assert len(errors) == 59
    # without the lessons it would be a quarter
    assert median(errors) < 0.05
