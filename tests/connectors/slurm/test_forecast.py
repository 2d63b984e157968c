"""What is expected after a quantum step, and who is told of quantum steps."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from sf_quantum.connectors.quantum.running_steps import QuantumSteps
from sf_quantum.connectors.slurm.allocation import history
from sf_quantum.connectors.slurm.allocation.forecast import (
    FOLLOWS_SECONDS,
    LATER_SECONDS,
    LATEST,
    JobForecast,
)
from tests.support.journals import Event, typed


def learned(
    *seconds: float, wave: int = 3, urgency: float = 1.0, pending: Iterable[float] = ()
) -> JobForecast:
    """A forecast after runs of a quantum step, each with the jobs that came after it.

    The last run ends at 0.

    :param seconds: of each run, until the jobs came
    """
    forecast = JobForecast(urgency)
    for one in pending:
        forecast.granted(one)
    now = -sum(seconds)
    for one in seconds:
        observe(forecast, now, one, wave)
        now += one
    return forecast


def observe(forecast: JobForecast, start: float, seconds: float, wave: int = 3) -> None:
    forecast.started("q", start)
    assert forecast.quantum
    forecast.ended("q", start + seconds, completed=True)
    assert not forecast.quantum
    for _ in range(wave):
        forecast.job_arrived(start + seconds)
    forecast.job_ended()
    # these come after one of the first has ended, so that they had its nodes
    for _ in range(2):
        forecast.job_arrived(start + seconds)
        forecast.job_ended()


def requested(forecast: JobForecast, start: float) -> float:
    """When nodes are requested, by the timer that the forecast asks for."""
    now = start
    while not forecast.due(now):
        now = min((at for at in forecast.changes(now) if at > now), default=math.inf)
        assert now < math.inf
    return now


def test_no_nodes_are_requested_after_a_step_never_followed() -> None:
    forecast = learned()
    forecast.started("q", 0)
    assert list(forecast.changes(0)) == []
    assert forecast.due(1000) == 0


def test_as_many_are_due_as_came_at_once_last_time() -> None:
    forecast = learned(30, pending=[4])
    forecast.started("q", 100)
    assert 126 in forecast.changes(100)
    assert [forecast.due(125.9), forecast.due(126)] == [0, 3]
    forecast.ended("q", 131, completed=True)
    assert forecast.due(131) == 3
    forecast.job_arrived(132)
    assert forecast.due(132) == 2


@pytest.mark.parametrize(
    ("urgency", "late"), [(0, 10), (1, 5), (1.75, 4), (4, 2), (1000, 1)]
)
def test_waiting_is_weighed_against_idling(urgency: float, late: int) -> None:
    """Of ten waits for nodes, the request is too late for those that are longer."""
    waits = [float(one) for one in (3, 9, 1, 7, 5, 10, 2, 8, 6, 4)]
    forecast = learned(100, pending=waits, urgency=urgency)
    forecast.started("q", 0)
    at = requested(forecast, 0)
    assert sum(at + wait > 100 for wait in waits) == late - 1
    assert sum(at + wait >= 100 for wait in waits) == late


def test_an_outlier_moves_nothing() -> None:
    forecast = learned(30, 31, 29, 300, 30, pending=[2, 2, 60, 2])
    forecast.started("q", 0)
    # the median, of durations and waits alike, where today's last one was an outlier
    assert requested(forecast, 0) == pytest.approx(28, abs=1)


def test_of_two_values_the_earlier_request_counts() -> None:
    forecast = learned(20, 30, pending=[5])
    forecast.started("q", 0)
    assert requested(forecast, 0) == 15


def test_old_values_are_forgotten() -> None:
    forecast = learned(*[1000] * LATEST, *[10] * LATEST)
    forecast.started("q", 0)
    assert requested(forecast, 0) == 10


def test_what_is_known_to_take_longer_needs_no_nodes_yet() -> None:
    """Short runs no longer count once the step has taken longer."""
    forecast = learned(2, 100, pending=[1])
    forecast.started("q", 0)
    assert requested(forecast, 0) == 1
    assert forecast.due(1.9) == 3
    # they are given back, and requested again
    assert forecast.due(2) == 0
    assert requested(forecast, 2) == 99


def test_the_qpus_eta_moves_the_request() -> None:
    forecast = learned()
    # it waited for a minute, and took ten seconds
    forecast.started("q", -70)
    forecast.begins("q", "/q/0", -10)
    forecast.ended("q", 0, completed=True)
    forecast.job_arrived(0)
    forecast.granted(3)
    forecast.started("q", 0)
    # as long as the QPU says nothing, it may wait for as long
    assert requested(forecast, 0) == 67
    forecast.begins("q", "/q/0", 20)
    assert requested(forecast, 0) == 27
    assert forecast.due(27) == 1
    # another one goes first: the nodes are given back
    forecast.begins("q", "/q/0", 120)
    assert forecast.due(28) == 0
    assert requested(forecast, 28) == 127
    # of a closed QPU, nobody knows
    forecast.begins("q", "/q/0", math.inf)
    assert forecast.due(127) == 0
    assert [at for at in forecast.changes(127) if 127 < at < math.inf] == []
    forecast.begins("q", "/q/0", 200)
    assert requested(forecast, 127) == 207
    # the last of several jobs counts
    forecast.begins("q", "/q/1", 300)
    assert requested(forecast, 128) == 307


def test_an_eta_that_moves_a_little_changes_nothing() -> None:
    forecast = learned(10)
    forecast.started("q", 0)
    forecast.begins("q", "/q/0", 0)
    assert forecast.due(10 - 0.1) == 0
    assert forecast.due(10) == 3
    forecast.begins("q", "/q/0", LATER_SECONDS - 0.1)
    assert forecast.due(10) == 3
    forecast.begins("q", "/q/0", LATER_SECONDS + 0.1)
    assert forecast.due(10) == 0


def test_nodes_that_come_sooner_than_expected_are_kept() -> None:
    forecast = learned(30, pending=[20])
    forecast.started("q", 0)
    assert forecast.due(10) == 3
    # they were granted at once, which counts from the next run on
    forecast.granted(0)
    forecast.granted(0)
    assert forecast.due(11) == 3
    forecast.ended("q", 30, completed=True)
    for _ in range(3):
        forecast.job_arrived(30)
    forecast.started("q", 100)
    assert requested(forecast, 100) == 130


def test_nodes_are_not_held_for_ever() -> None:
    """A step that takes longer than ever may take any time."""
    forecast = learned(30, 40, pending=[6], urgency=2)
    forecast.started("q", 0)
    until = 40 + 2 * 6 + LATER_SECONDS
    assert until in forecast.changes(41)
    assert [forecast.due(until - 0.1), forecast.due(until)] == [3, 0]
    # but for the jobs that come at its end
    forecast.ended("q", 1000, completed=True)
    assert forecast.due(1000) == 3


def test_one_that_ends_early_is_followed_all_the_same() -> None:
    forecast = learned(30)
    forecast.started("q", 0)
    forecast.ended("q", 21, completed=True)
    assert forecast.due(21) == 3


def test_a_step_that_failed_took_no_typical_time() -> None:
    forecast = learned(30)
    for _ in range(5):
        forecast.started("q", 0)
        forecast.ended("q", 1, completed=False)
        for _ in range(3):
            forecast.job_arrived(1)
    forecast.started("q", 10)
    assert requested(forecast, 10) == 40


def test_nobody_comes() -> None:
    forecast = learned(30)
    forecast.started("q", 0)
    forecast.ended("q", 30, completed=True)
    (until,) = forecast.changes(30)
    assert until == 30 + FOLLOWS_SECONDS
    assert [forecast.due(until - 0.1), forecast.due(until)] == [3, 0]
    # nor are any expected next time
    forecast.started("q", 60)
    assert forecast.due(90) == 0


def test_jobs_that_come_late_came_for_another_reason() -> None:
    forecast = JobForecast(1)
    forecast.started("q", 0)
    forecast.ended("q", 10, completed=True)
    forecast.job_arrived(10 + FOLLOWS_SECONDS)
    forecast.job_ended()
    forecast.started("q", 20)
    assert forecast.due(30) == 0


def test_each_quantum_step_has_its_own_followers() -> None:
    forecast = learned(30)
    forecast.started("other", 0)
    forecast.ended("other", 30, completed=True)
    forecast.job_arrived(30)
    forecast.job_ended()
    forecast.started("q", 100)
    forecast.started("other", 100)
    assert forecast.due(130) == 4


def test_slurm_waits_for_its_own_jobs() -> None:
    forecast = learned(30)
    forecast.started("q", 0)
    forecast.submitted("q", "7")
    assert forecast.dependent() == {"7": 3}
    # of several, for all
    forecast.submitted("q", "8")
    assert forecast.dependent() == {"7:8": 3}
    assert forecast.due(30) == 0
    # nodes that were given after them are there before the driver sees the end
    forecast.passed("7:8")
    assert forecast.dependent() == {}
    assert forecast.due(20) == 3


def test_what_slurm_refused_is_not_asked_for_again() -> None:
    forecast = learned(30)
    forecast.started("q", 0)
    forecast.forget()
    assert forecast.due(30) == 0


def test_earlier_runs_come_first() -> None:
    forecast = learned(20, wave=1, pending=[1])
    forecast.learn(learned(*[50] * LATEST, wave=3, pending=[7]))
    # what was counted in this run is newer
    forecast.started("q", 0)
    assert forecast.due(49) == 1
    # and what nothing is known of yet is as it was
    forecast = JobForecast(1)
    forecast.learn(learned(20, wave=2, pending=[3]))
    forecast.started("q", 0)
    assert requested(forecast, 0) == 17
    assert forecast.due(17) == 2


def slurm_job(
    job: str, submitted: float, started: float, ended: float, state: str = "COMPLETED"
) -> list[Event]:
    """What the journal has of a job on Slurm, and of its nodes."""
    quantum = job.startswith("/solve")
    of: Event = {
        "deployment": "cluster",
        "service": "qpu" if quantum else "node",
        "allocation": job,
    }
    held = {**of, "event": "allocation", "quantum": quantum, "time": ended}
    outcome: Event = {"submitted": submitted, "started": started, "ended": ended}
    return [
        {**held, "status": "requested", "at": submitted},
        {**held, "status": "granted", "at": started},
        {**of, "event": "slurm", "job": job, "time": ended, "state": state, **outcome},
    ]


def replayed(*events: Event, service: str = "node") -> JobForecast:
    forecast = JobForecast(1)
    history.replay([*typed(events)], "cluster", service, forecast)
    assert not forecast.quantum
    return forecast


def test_the_journal_tells_how_earlier_runs_went() -> None:
    forecast = replayed(
        *slurm_job("/cluster/0", 0, 4, 100),
        # a step of two jobs
        *slurm_job("/solve/0", 100, 110, 130),
        *slurm_job("/solve/1", 101, 120, 140),
        *slurm_job("/solve/2", 101, 120, 140, state="FAILED"),
        *slurm_job("/score/0", 141, 145, 200),
        *slurm_job("/score/1", 141, 145, 200),
        # there are nodes for this one
        *slurm_job("/last/0", 200, 200, 210),
    )
    forecast.started("/solve", 1000)
    assert forecast.due(1000) == 0
    # 20 s until it began and 21 s more, and nodes are pending for 4 s
    assert requested(forecast, 1000) == 1037
    assert forecast.due(1037) == 2
    forecast.begins("/solve", "/solve/0", 1100)
    assert requested(forecast, 1038) == 1117


def test_the_journal_tells_of_qpus_elsewhere() -> None:
    def status(job: str, word: str, at: float) -> Event:
        return {"event": "job", "job": job, "status": word, "time": at}

    qpu: Event = {"event": "qpu", "job": "/solve/0", "time": 149.0}
    forecast = replayed(
        status("/solve/0", "running", 90),
        {**qpu, "lease_seconds": 10, "queued_seconds": 15},
        {**qpu, "lease_seconds": 10, "queued_seconds": 2},
        status("/solve/0", "completed", 150),
        *slurm_job("/score/0", 151, 156, 200),
    )
    forecast.started("/solve", 0)
    assert requested(forecast, 0) == 46
    forecast.begins("/solve", "/solve/0", 0)
    assert requested(forecast, 0) == 31


def test_the_journal_of_another_service_tells_nothing() -> None:
    forecast = replayed(
        *slurm_job("/solve/0", 100, 110, 130),
        *slurm_job("/score/0", 131, 135, 200),
        service="other",
    )
    forecast.started("/solve", 0)
    assert forecast.due(1000) == 0


class Told:
    """A planner that keeps what it is told."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def quantum_step_started(self, step: str) -> None:
        self.words.append(f"{step} began")

    def quantum_job_submitted(self, step: str, deployment: str, slurm_job: str) -> None:
        self.words.append(f"{step} is {deployment}'s {slurm_job}")

    def quantum_job_begins(self, step: str, job: str, seconds: float) -> None:
        self.words.append(f"{step}: {job} in {seconds:g} s")

    def quantum_step_ended(self, step: str, *, completed: bool) -> None:
        self.words.append(f"{step} {'ended' if completed else 'failed'}")


def test_a_step_begins_with_its_first_job_and_ends_with_its_last() -> None:
    quantum_steps, told = QuantumSteps(), Told()
    quantum_steps.listeners.append(told)
    with quantum_steps.running("/solve/0"):
        quantum_steps.submitted("/solve/0", "cluster", "7")
        quantum_steps.submitted("/classical/0", "cluster", "8")
        quantum_steps.begins("/solve/0", 3)
        quantum_steps.begins("/classical/0", 3)
        with quantum_steps.running("/solve/1"):
            pass
        with quantum_steps.running("/other/0"):
            pass
    assert told.words == [
        "/solve began",
        "/solve is cluster's 7",
        "/solve: /solve/0 in 3 s",
        "/other began",
        "/other ended",
        "/solve ended",
    ]


def test_a_step_fails_with_its_last_job() -> None:
    quantum_steps, told = QuantumSteps(), Told()
    quantum_steps.listeners.append(told)
    with pytest.raises(ValueError, match="no"), quantum_steps.running("/solve/0"):
        raise ValueError("no")
    assert told.words == ["/solve began", "/solve failed"]
