"""How long jobs take, learnt from others of any size, order and regularity."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import pytest

from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.jobs import Size
from sf_quantum.service.scheduling.estimator import Estimator
from sf_quantum.service.scheduling.pace import HOST_SECONDS, LATEST, Pace
from sf_quantum.service.scheduling.policies.classes import Classes
from sf_quantum.service.scheduling.work import PendingJob, Work

SMALL_JOBS = 1000
# an error of less is not counted: the service looks for the end of a job every 20 ms
UNNOTICED_SECONDS = 0.05
MAX_ERROR = 0.25


def test_nothing_observed_the_model_holds() -> None:
    pace = Pace()
    assert pace.job_seconds("problem", 2.0) == pytest.approx(2 + HOST_SECONDS)
    work_by_kind = {"problem": Work(3, 6.0), "sequence": Work(1, 1.0)}
    assert pace.seconds(work_by_kind) == pytest.approx(7 + 4 * HOST_SECONDS)  # type: ignore[arg-type]
    assert pace.seconds({}) == 0


def test_a_slow_device_is_found_out_by_kind() -> None:
    pace = Pace()
    for _ in range(20):
        pace.observe("problem", 1.0, 3.0)
    assert pace.job_seconds("problem", 2.0) == pytest.approx(6, rel=0.01)
    assert pace.job_seconds("sequence", 2.0) == pytest.approx(2, rel=0.01)


def test_a_device_without_waits_has_the_hosts_cost_as_pace() -> None:
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


def test_few_jobs_of_a_new_size_do_not_change_what_others_take() -> None:
    pace = Pace()
    for _ in range(50):
        pace.observe("circuit", 100.0, 140.0)
    for _ in range(1000):
        pace.observe("circuit", 0.003, 0.02)
    assert pace.job_seconds("circuit", 100.0) == pytest.approx(140, rel=0.01)
    assert pace.job_seconds("circuit", 0.003) == pytest.approx(0.02, rel=0.01)


def test_small_circuits_leave_the_estimate_of_a_large_one() -> None:
    # the start of a process and 26 circuits of 3 ms; as a ratio, 17 minutes became 7 hours
    pace = Pace()
    pace.observe("circuit", 0.0027, 0.2)
    assert pace.job_seconds("circuit", 1038.0) == pytest.approx(1038, rel=0.001)
    for _ in range(25):
        pace.observe("circuit", 0.0027, 0.012)
        assert pace.job_seconds("circuit", 1038.0) == pytest.approx(1038, rel=0.001)
    assert pace.job_seconds("circuit", 0.0027) == pytest.approx(0.012, rel=0.01)


def test_set_up_is_told_from_a_slow_device_by_two_sizes() -> None:
    late, slow = Pace(), Pace()
    for _ in range(4):
        for modelled in (1.0, 50.0):
            late.observe("problem", modelled, modelled + 2.0)
            slow.observe("problem", modelled, modelled * 3.0)
    assert late.job_seconds("problem", 1000.0) == pytest.approx(1002, rel=0.01)
    assert slow.job_seconds("problem", 1000.0) == pytest.approx(3000, rel=0.01)
    assert late.seconds({"problem": Work(10, 10.0)}) == pytest.approx(30, rel=0.01)


def test_jobs_faster_than_the_model_are_learnt() -> None:
    pace = Pace()
    for _ in range(5):
        pace.observe("problem", 10.0, 2.0)
        pace.observe("problem", 0.0, 0.0)
    assert pace.job_seconds("problem", 100.0) == pytest.approx(20, rel=0.05)


def test_long_jobs_count_if_they_are_frequent() -> None:
    draws, pace = random.Random(1), Pace()
    observed = [draws.choice((1.0, 1.0, 10.0)) for _ in range(500)]
    for seconds in observed:
        pace.observe("problem", 1.0, seconds)
    latest = sum(observed[-LATEST:]) / LATEST
    assert pace.job_seconds("problem", 1.0) == pytest.approx(latest, rel=0.3)


class Observation(NamedTuple):
    """A job, and how long it took.

    :param odd: whether it was an outlier, or a process had to start, which nothing tells
    """

    size: str
    modelled: float
    observed: float
    odd: bool


def jobs_in_any_order(
    seed: int, setup: tuple[float, float], rate: tuple[float, float]
) -> Iterator[Observation]:
    """Draw a thousand small jobs and a large one, cold starts, and an outlier.

    :param setup: range of the set-up in seconds, in logarithms
    :param rate: likewise of the time per modelled second
    """
    draws = random.Random(seed)

    def between(least: float, most: float) -> float:
        return math.exp(draws.uniform(math.log(least), math.log(most)))

    setup_seconds, per_second = between(*setup), between(*rate)
    largest = draws.choice((0.02, 0.2))
    jobs = [("small", draws.uniform(0.002, largest)) for _ in range(SMALL_JOBS)]
    large_at = draws.choice((0, 1, 2, 3, 10, SMALL_JOBS // 2, SMALL_JOBS))
    jobs.insert(large_at, ("large", draws.uniform(100.0, 2000.0)))
    cold = {0, *(draws.randrange(3, SMALL_JOBS) for _ in range(draws.randrange(5)))}
    start_seconds = draws.uniform(0.3, 3.0)
    outlier = draws.choice((1, 2, 3, 4, 5, 100, 900))
    for number, (size, modelled) in enumerate(jobs):
        seconds = (setup_seconds + per_second * modelled) * draws.uniform(0.95, 1.05)
        if number in cold:
            seconds += start_seconds
        if number == outlier:
            seconds *= draws.choice((20.0, 100.0, 1000.0))
        odd = number == outlier or (number in cold and size == "small")
        yield Observation(size, modelled, seconds, odd)


def too_far_off(expected: float, job: Observation) -> bool:
    error = abs(expected - job.observed)
    return error > max(MAX_ERROR * job.observed, UNNOTICED_SECONDS)


@pytest.mark.parametrize("seed", range(12))
def test_from_the_third_job_on_each_estimate_is_right(seed: int) -> None:
    # of a service whose model is right within a fifth
    pace = Pace()
    jobs = jobs_in_any_order(seed, (0.004, 0.006), (0.82, 1.2))
    for number, job in enumerate(jobs):
        expected = pace.job_seconds("circuit", job.modelled)
        if number >= 2 and not job.odd:
            assert not too_far_off(expected, job), (number, expected, job)
        pace.observe("circuit", job.modelled, job.observed)


def test_a_model_that_is_wrong_is_corrected_for_each_size() -> None:
    # up to 20 s of set-up, and a third to three times the time; once two jobs of a size
    # have run
    wrong = total = 0
    for seed in range(6):
        pace, seen = Pace(), Counter[int]()
        for job in jobs_in_any_order(seed, (0.002, 20.0), (0.33, 3.0)):
            size = math.ceil(math.log(job.modelled, 4))
            if seen[size] >= 2 and not job.odd:
                expected = pace.job_seconds("circuit", job.modelled)
                wrong, total = wrong + too_far_off(expected, job), total + 1
            seen[size] += not job.odd
            pace.observe("circuit", job.modelled, job.observed)
    assert total > 5_500
    assert wrong < 0.03 * total


SIZES: dict[str, Size] = {
    "annealer": Size(updates=5_000),
    "superconducting": Size(gates=40, amplitudes=2**24),
    "neutral-atom": Size(evolution=10_000_000, values=10),
    "photonic": Size(photons=2, detected=2),
}


class Machine(NamedTuple):
    """A machine that takes longer than the model of its device.

    :param modelled: run time of its jobs by the model
    :param usual: their run time without deviations
    :param spread: relative deviations of it
    :param start_seconds: for which the first job takes longer
    """

    modelled: float
    usual: float
    spread: float
    start_seconds: float

    @classmethod
    def of(cls, technology: str, draws: random.Random, spread: float) -> Machine:
        scale = 1.0 if technology == "photonic" else draws.choice((0.0, 1.0))
        device = EmulatedDevice(technology=technology, time_scale=scale)
        reads = draws.choice((100, 1000, 10_000))
        cost = device.cost({"num_reads": reads}, SIZES[technology])
        modelled = device.elapsed_seconds(cost)
        usual = modelled * math.exp(draws.uniform(0.0, math.log(6.0)))
        return cls(modelled, usual, spread, draws.choice((0.0, draws.uniform(0.3, 3))))

    def errors(self, draws: random.Random, jobs: int) -> Iterator[float]:
        """Run equal jobs; yield what is expected of each, relative to what is usual."""
        now = [0.0]
        estimator = Estimator(Classes(), lambda: now[0])
        for number in range(jobs):
            job = PendingJob(
                number, "", "ada", "a", "development", "problem", self.modelled
            )
            estimator.submitted(job)
            yield estimator.run_seconds(job) / self.usual
            estimator.began(job)
            # evenly in logarithms
            deviation = draws.uniform(-1, 1) * math.log1p(self.spread)
            now[0] += self.usual * math.exp(deviation)
            now[0] += self.start_seconds if number == 0 else 0.0
            estimator.ended(job, completed=True)


@pytest.mark.parametrize("technology", SIZES)
@pytest.mark.parametrize("seed", range(50))
def test_a_slower_machine_is_learnt_by_the_third_job(
    technology: str, seed: int
) -> None:
    draws = random.Random(seed)
    machine = Machine.of(technology, draws, draws.uniform(0.0, 0.2))
    for error in [*machine.errors(draws, 12)][2:]:
        off = abs(error - 1) * machine.usual
        assert off < max(MAX_ERROR * machine.usual, UNNOTICED_SECONDS), machine


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("short", [0.02, 0.3])
def test_one_short_job_does_not_change_what_is_expected(
    place: int, short: float
) -> None:
    observed = [1.0, 1.0, 1.0]
    observed.insert(place, short)
    pace = Pace()
    for number, seconds in enumerate(observed):
        pace.observe("problem", 1.0, seconds)
        if number >= 2:
            assert pace.job_seconds("problem", 1.0) == pytest.approx(1.0, rel=0.25)


@pytest.mark.parametrize("technology", SIZES)
def test_on_a_busy_machine_half_of_the_jobs_take_longer(technology: str) -> None:
    # run times that differ by up to four times, as on a machine that others use
    draws = random.Random(1)
    errors = [
        [*machine.errors(draws, 11)][-1]
        for machine in (Machine.of(technology, draws, 1.0) for _ in range(200))
    ]
    assert median(errors) == pytest.approx(1.0, abs=0.15)
