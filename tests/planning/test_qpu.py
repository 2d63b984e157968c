"""The simulated QPU service: queueing theory, leases, pre-emption, pauses and failures."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest
import simpy

from sf_quantum.planning.estimate import Estimate
from sf_quantum.planning.simulation.qpu import Device, Process, QpuService, Window
from sf_quantum.service.domain.jobs import Lease, LeaseRequest, UserClass
from sf_quantum.service.domain.settings import PolicyChoice

REPETITIONS = 12
JOBS = 3000
WARM_UP = 300
Draw = Callable[[random.Random], float]


def grant(
    service: QpuService, job_class: UserClass = "development", user: str = "anyone"
) -> Lease:
    """Acquire a lease that is free."""
    granted = service.acquire(user, LeaseRequest(job_class=job_class))
    assert granted.triggered
    lease = granted.value
    assert isinstance(lease, Lease)
    return lease


def waits(
    rates: Mapping[UserClass, float], service_seconds: Draw, policy: str, seed: int
) -> dict[UserClass, float]:
    """Simulate Poisson arrivals of each class; return the mean waits by class."""
    env = simpy.Environment()
    service = QpuService(
        env, Device(), vqpus=len(rates), policy=PolicyChoice(type=policy)
    )
    waited: dict[UserClass, list[float]] = {name: [] for name in rates}

    def job(job_class: UserClass, lease: Lease, seconds: float) -> Process:
        submitted = env.now
        yield service.submit(lease, seconds)
        waited[job_class].append(env.now - submitted - seconds)

    def arrivals(job_class: UserClass, rate: float) -> Process:
        draws = random.Random(f"{seed} {job_class}")
        lease = grant(service, job_class)
        while True:
            yield env.timeout(draws.expovariate(rate))
            env.process(job(job_class, lease, service_seconds(draws)))

    for job_class, rate in rates.items():
        env.process(arrivals(job_class, rate))
    env.run(until=JOBS / sum(rates.values()))
    return {
        name: sum(times[WARM_UP:]) / len(times[WARM_UP:])
        for name, times in waited.items()
    }


def estimates(
    rates: Mapping[UserClass, float], service_seconds: Draw, policy: str = "classes"
) -> dict[UserClass, Estimate]:
    runs = [waits(rates, service_seconds, policy, seed) for seed in range(REPETITIONS)]
    return {name: Estimate.of([run[name] for run in runs]) for name in rates}


def exponential(draws: random.Random) -> float:
    return draws.expovariate(1)


def test_the_wait_of_m_m_1() -> None:
    found = estimates({"test": 0.7}, exponential, "fifo")["test"]
    assert found.covers(0.7 / (1 - 0.7)), found
    assert found.half_width < 0.35


@pytest.mark.parametrize(
    ("service_seconds", "second_moment"),
    [
        (lambda draws: draws.uniform(0, 2), 4 / 3),
        (lambda draws: draws.choice((0.25, 1.75)), 1.5625),
    ],
    ids=["uniform", "two lengths"],
)
def test_the_wait_of_m_g_1(service_seconds: Draw, second_moment: float) -> None:
    """Pollaczek and Khinchine: half the rate times the second moment, by the idle time."""
    rate = 0.7
    found = estimates({"test": rate}, service_seconds)["test"]
    assert found.covers(rate * second_moment / 2 / (1 - rate)), found
    assert found.half_width < 0.2


def test_the_waits_of_priority_classes() -> None:
    """Cobham (1954), without pre-emption, as between the classes test and development."""
    test, development = 0.3, 0.4
    found = estimates({"test": test, "development": development}, exponential)
    residual = test + development  # half of the rates times the second moment, 2
    assert found["test"].covers(residual / (1 - test)), found
    expected = residual / (1 - test) / (1 - test - development)
    assert found["development"].covers(expected), found
    assert found["development"].half_width < 0.8


def test_production_preempts() -> None:
    env = simpy.Environment()
    service = QpuService(env, Device(), vqpus=2)
    long = service.submit(grant(service), 10)
    env.run(until=4)
    short = service.submit(grant(service, "production"), 1)
    env.run(short)
    assert env.now == 5
    env.run(long)
    assert env.now == 15
    assert service.usage.busy == 15
    assert service.usage.lost == 4


def test_leases_wait_for_a_vqpu() -> None:
    env = simpy.Environment()
    service = QpuService(env, Device(), vqpus=1)
    first = grant(service)
    development = service.acquire("a", LeaseRequest(job_class="development"))
    production = service.acquire("b", LeaseRequest(job_class="production"))
    service.release(first)
    assert production.triggered
    assert not development.triggered


def test_fair_shares_are_by_the_virtual_clock() -> None:
    """An account that has used the QPU waits for one that has not; usage decays."""
    env = simpy.Environment()
    choice = PolicyChoice(type="fair-share", options={"half_life_seconds": 100.0})
    service = QpuService(env, Device(), vqpus=3, policy=choice)
    leases = {user: grant(service, user=user) for user in "ab"}
    env.run(service.submit(leases["a"], 10))
    running = service.submit(leases["b"], 1)
    of_a, of_b = (service.submit(leases[user], 1) for user in "ab")
    env.run(running)
    env.run(of_b)
    assert not of_a.processed
    # after many half-lives, that does not matter
    env.run(of_a)
    env.run(until=5000)
    running = service.submit(leases["b"], 30)
    of_b, of_a = (service.submit(leases[user], 1) for user in "ba")
    env.run(of_a)
    assert not of_b.processed


def test_a_calibration_follows_a_job() -> None:
    env = simpy.Environment()
    device = Device(calibration_every=10, calibration_seconds=3)
    service = QpuService(env, device, vqpus=1)
    lease = grant(service)
    first, second = service.submit(lease, 12), service.submit(lease, 1)
    env.run(first)
    assert env.now == 12
    env.run(second)
    assert env.now == 16
    assert service.usage.gaps == [3]


def test_no_job_runs_into_a_window() -> None:
    env = simpy.Environment()
    window = Window(at_seconds=10, seconds=5, every_seconds=100)
    service = QpuService(env, Device(windows=[window]), vqpus=1)
    lease = grant(service)
    running, long, short = (service.submit(lease, seconds) for seconds in (2, 9, 3))
    env.run(short)
    assert env.now == 5  # backfilled before the window
    env.run(long)
    assert env.now == 15 + 9
    assert running.processed
    env.run(until=105)
    env.run(service.submit(lease, 6))
    assert env.now == 115 + 6


def test_a_failure_costs_the_attempt() -> None:
    env = simpy.Environment()
    device = Device(between_failures=100, repair_seconds=20)
    service = QpuService(env, device, vqpus=1, seed="3")
    failed = random.Random("failures 3").expovariate(1 / 100)
    lease = grant(service)
    env.run(until=failed - 1)
    env.run(service.submit(lease, 5))
    assert env.now == pytest.approx(failed + 20 + 5)
    assert service.usage.lost == pytest.approx(1)
