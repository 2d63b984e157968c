"""How long jobs take, corrected by what was observed, and who is yet to come."""

from __future__ import annotations

import random
from collections import defaultdict
from statistics import fmean, median

import pytest

from sf_quantum.service.domain.jobs import JobClass, Kind, Lease, Pattern
from sf_quantum.service.scheduling.estimator import Arrivals, Estimator
from sf_quantum.service.scheduling.held import FEW, LATEST, HeldLeases, Overtaking
from sf_quantum.service.scheduling.pace import Pace
from sf_quantum.service.scheduling.pending import PendingJobs
from sf_quantum.service.scheduling.policies.classes import Classes
from sf_quantum.service.scheduling.work import PendingJob, Work
from tests.benchmarks import eta, eta_oracle, eta_tenants

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
        return seconds + self.arrivals.overtaking(seconds, passing)


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
    held = HeldLeases()
    told = {
        job.number: pace.seconds(pending.work_ahead(job, held)[0]) for job in pending
    }
    errors, now = [], 0.0
    while (job := pending.pop()) is not None:
        if now:
            errors.append(abs(told[job.number] - now) / now)
        now += true[job.number]
    assert len(errors) == 59
    # without the lessons it would be a quarter
    assert median(errors) < 0.05


def lease(
    name: str,
    *,
    hint: float | None = None,
    pattern: Pattern = "qc-heavy",
    job_class: JobClass = "test",
) -> Lease:
    return Lease(
        name,
        "ann",
        job_class,
        expected_seconds=hint,
        pattern=pattern,
    )


def used(held: HeldLeases, *seconds: float) -> None:
    """Have leases end that used some QPU seconds each."""
    for one in seconds:
        held.add(lease("ended"))
        held.submitted("ended", one)
        held.remove("ended")


def test_a_hint_counts_between_the_quartiles_of_what_leases_used() -> None:
    held = HeldLeases()
    for name, hint in (("none", None), ("good", 70.0), ("low", 1.0), ("high", 9e9)):
        held.add(lease(name, hint=hint))
    used(held, *(10.0 * n for n in range(1, FEW)))
    assert (held.measured, held.of_classes(["test"])) == (False, [])
    used(held, 100.0)
    assert held.measured
    left = [one.seconds for one in held.of_classes(["test"])]
    assert left == [60.0, 70.0, 30.0, 80.0]
    assert held.of_classes(["production"]) == []
    # what is submitted does not come any more, unless it is cancelled
    held.submitted("good", 30.0)
    assert held.of_classes(["test"])[1].seconds == 40.0
    held.submitted("good", -10.0)
    assert held.of_classes(["test"])[1].seconds == 50.0
    # more than expected: like those that used more, 90 and 100
    held.submitted("good", 65.0)
    assert held.of_classes(["test"])[1].seconds == 10.0
    held.submitted("good", 100.0)
    assert held.of_classes(["test"])[1].seconds == 0.0


def test_hints_are_compared_until_leases_have_ended() -> None:
    held = HeldLeases()
    hints = [9e9, *(10.0 * n for n in range(1, FEW))]
    for number, hint in enumerate(hints):
        assert not held.measured
        held.add(lease(str(number), hint=hint))
    left = [one.seconds for one in held.of_classes(["test"])]
    assert left == [80.0, 30.0, 30.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 80.0]
    held.add(lease("none"))
    assert held.of_classes(["test"])[-1].seconds == 60.0
    held.remove("0")
    assert not held.measured


def test_what_leases_used_long_ago_is_forgotten() -> None:
    held = HeldLeases()
    used(held, *[1.0] * LATEST, *[5.0] * LATEST)
    used(held, 0.0)  # one without a job
    held.remove("unknown")
    held.submitted("unknown", 1.0)
    held.add(lease("l"))
    (expected,) = held.of_classes(["test"])
    assert expected.seconds == 5.0


def test_leases_submit_at_their_load_up_to_a_limit() -> None:
    held = HeldLeases()
    used(held, *[20.0] * FEW)
    held.add(lease("1", pattern="cc-heavy"))
    held.add(lease("2", pattern="balanced"))
    leases = held.of_classes(["test"])
    assert Overtaking(leases).within(10.0) == pytest.approx(6.0)
    assert Overtaking(leases).within(100.0) == pytest.approx(30.0)
    assert Overtaking(leases, 7.0).within(100.0) == 7.0


def test_held_leases_of_higher_classes_count_for_those_who_wait() -> None:
    now = [0.0]
    estimator = Estimator(Classes(), lambda: now[0])
    used(estimator.held, *[500.0] * FEW)
    waiting = PendingJob(1, "", "bob", "b", "development", "problem", 20.0, 10.0)
    estimator.submitted(waiting)

    def told(seconds: float) -> float:
        work_by_kind: dict[Kind, Work] = {"problem": Work(1, seconds)}
        return estimator.wait(waiting, work_by_kind, ())[1]

    assert told(100.0) == pytest.approx(100.0, rel=1e-3)
    estimator.held.add(lease("l", hint=500.0))
    # nine tenths of the time, less one job; nobody came so far: half of it
    assert told(100.0) == pytest.approx(100.0 + (90 - 20) / 2, rel=1e-3)
    # the QPU seconds of a lease, twice as long on this device
    assert told(2000.0) == pytest.approx(2000.0 + (1000 - 20) / 2, rel=1e-3)
    estimator.held.remove("l")
    assert told(100.0) == pytest.approx(100.0, rel=1e-3)


def tenants_told(
    policy: str, mix: str, load: float, seed: int
) -> dict[JobClass, list[float]]:
    """Return ETAs relative to the true waits, by class; three hints in ten are wrong."""
    hints = eta_tenants.Hints(wrong=0.3, factor=10.0)
    tenants = eta_tenants.draw(250, load, eta.MIXES[mix], hints, seed)
    least = fmean(seconds for one in tenants for seconds, _ in one.jobs)
    found = defaultdict[JobClass, list[float]](list)
    for one in eta_tenants.Simulation(policy, tenants, 100, seed).run()[eta.LESSONS :]:
        if one.true > least:
            found[one.job_class].append(one.eta / one.true)
    return found


@pytest.mark.parametrize("mix", ["pre-emption", "much production"])
def test_with_wrong_hints_half_the_etas_of_each_class_are_right(mix: str) -> None:
    # tests/benchmarks/eta.py measures more loads and seeds, under all policies
    told = tenants_told("classes", mix, 5.0, 1)
    assert {*told} == {"production", "test", "development"}
    for ratios in told.values():
        assert median(abs(ratio - 1) for ratio in ratios) < 0.25


def test_wrong_hints_of_others_do_not_inflate_an_eta() -> None:
    # by a factor of up to 19, as long as hints were believed
    told = tenants_told("fair-share", "much production", 2.0, 3)
    assert max(told["production"]) < 3
