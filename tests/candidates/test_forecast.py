"""Waits for nodes that are predicted from Slurm's queue."""

from __future__ import annotations

import asyncio
import math

import pytest
from streamflow.core.deployment import DeploymentConfig, Target

from sf_quantum.candidates import forecast
from sf_quantum.candidates.forecast import Forecast, QueueForecasts
from sf_quantum.connectors.slurm import partition
from sf_quantum.connectors.slurm.partition import (
    MOST_JOBS,
    JobInQueue,
    NoForecast,
    PartitionQueue,
)
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.journal.events import PredictedWait
from sf_quantum.planning.simulation.waiting import (
    HORIZON_SECONDS,
    QueuedJob,
    predicted_wait,
)

TARGET = Target(DeploymentConfig("hpc", "sfq.slurm", {}), service="compute")
NODES = "8/4/0/12|4|NO\n"
JOBS = """\
RUNNING|4|1|NO|9:58|10:00|None
RUNNING|4|1|OK|UNLIMITED|UNLIMITED|None
PENDING|1|2|NO|10:00|10:00|Resources
PENDING|3|1|OK|1-02:00:00|1-02:00:00|Priority
PENDING|1|1|OK|5:00|5:00|Dependency
PENDING|1|1|OK|5:00|5:00|(AssocGrpCpuLimit)
"""


def test_what_slurm_tells() -> None:
    queue = partition.read(f"{NODES}jobs:\n{JOBS}")
    assert (queue.idle, queue.per_node, queue.exclusive) == (4, 4, False)
    assert queue.running == [JobInQueue(4, 598.0), JobInQueue(4, math.inf)]
    # two whole nodes; and those that do not wait for others are in nobody's way
    assert queue.pending == [JobInQueue(8, 600.0), JobInQueue(3, 93600.0)]


@pytest.mark.parametrize(
    ("job", "seconds"),
    [
        # of Slurm 22.05: a job 3 s after its limit, and when Slurm has killed it
        ("RUNNING|1|1|OK|INVALID|1:00|None", 0.0),
        ("COMPLETING|1|1|OK|INVALID|1:00|TimeLimit", 0.0),
        # one that has ended long before its limit
        ("COMPLETING|1|1|OK|9:00:00|10:00:00|None", 0.0),
        # with a limit of 500 days
        ("RUNNING|1|1|OK|INVALID|INVALID|None", math.inf),
        ("RUNNING|1|1|OK|NOT_SET|NOT_SET|None", math.inf),
    ],
)
def test_a_job_at_its_limit_ends_soon(job: str, seconds: float) -> None:
    queue = partition.read(f"{NODES}jobs:\n{job}\n")
    assert queue.running == [JobInQueue(1, seconds)]


def test_an_empty_queue() -> None:
    queue = partition.read(f"{NODES}jobs:\n".strip())
    assert (queue.idle, queue.running, queue.pending) == (4, [], [])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{NODES}jobs:\nfailed\n", "sinfo or squeue failed"),
        ("sinfo: error\n", "sinfo or squeue failed"),
        ("jobs:\n", "has no nodes"),
        (f"{NODES}jobs:\n{JOBS[:30]}\n" + JOBS * MOST_JOBS, "more than 1000 jobs"),
    ],
)
def test_what_cannot_be_read(text: str, why: str) -> None:
    with pytest.raises(NoForecast, match=why):
        partition.read(text)


def test_what_a_service_requests() -> None:
    queue = PartitionQueue(per_node=16)
    assert queue.request(SlurmService(partition="c")) == JobInQueue(1, math.inf)
    several = SlurmService(nodes="2-4", ntasksPerNode=3, cpusPerTask=2, time="1:00:00")
    assert queue.request(several) == JobInQueue(12, 3600.0)
    assert queue.request(SlurmService(nodes=2, exclusive=True)).processors == 32
    queue.exclusive = True
    assert queue.request(SlurmService(ntasks=3)).processors == 16
    assert queue.request(SlurmService(ntasks=5, cpusPerTask=8)).processors == 48


@pytest.mark.parametrize("name", ["", "a,b"])
def test_a_queue_is_that_of_one_partition(name: str) -> None:
    with pytest.raises(NoForecast, match="names no partition"):
        partition.named({"partition": name})


SHORT, LONG = 100.0, 1000.0


def test_free_processors_are_not_waited_for() -> None:
    assert predicted_wait(4, [], [], QueuedJob(4, LONG)) == 0


def test_running_jobs_end_before_their_limits() -> None:
    running = [QueuedJob(4, SHORT), QueuedJob(4, LONG)]
    assert predicted_wait(0, running, [], QueuedJob(4, LONG)) == pytest.approx(
        SHORT / 2, abs=0.1
    )
    assert predicted_wait(0, running, [], QueuedJob(8, LONG)) == pytest.approx(
        LONG / 2, abs=0.1
    )


def test_earlier_jobs_are_waited_for_and_gaps_are_used() -> None:
    running, first = [QueuedJob(4, LONG)], QueuedJob(8, LONG)
    wait = predicted_wait(4, running, [first], QueuedJob(4, 2 * LONG))
    assert wait == pytest.approx(LONG / 2 + LONG / 2, abs=0.1)
    # it ends before the first one can begin
    assert predicted_wait(4, running, [first], QueuedJob(4, SHORT)) == 0


def test_a_wait_is_at_most_a_week() -> None:
    assert predicted_wait(4, [], [], QueuedJob(5, SHORT)) == HORIZON_SECONDS
    endless = [QueuedJob(4, math.inf)]
    wait = predicted_wait(0, endless, [], QueuedJob(4, math.inf))
    assert wait == pytest.approx(HORIZON_SECONDS, abs=0.1)


class Slurm:
    """A connector that tells a queue; more than once if it was asked more than once."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked = 0
        self.answers = asyncio.Event()
        self.error = error

    async def partition_queue(
        self, service: str | None
    ) -> tuple[PartitionQueue, JobInQueue]:
        assert service == "compute"
        self.asked += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return PartitionQueue(0, 4, running=[JobInQueue(4, LONG)]), JobInQueue(4, LONG)


@pytest.fixture
async def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm()
    monkeypatch.setattr(forecast, "_connector", lambda target: made)
    return made


async def test_a_late_forecast_is_for_the_next_decision(slurm: Slurm) -> None:
    forecasts = QueueForecasts()
    late = await forecasts.predict([TARGET], 0.01)
    assert late == {"hpc/compute": Forecast(why="was not predicted within 0.01 s")}
    slurm.answers.set()
    first, second = await asyncio.gather(
        forecasts.predict([TARGET], 60), forecasts.predict([TARGET], 60)
    )
    assert first == second
    assert first["hpc/compute"].seconds == pytest.approx(LONG / 2, abs=0.1)
    assert first["hpc/compute"].jobs == 1
    assert slurm.asked == 1


async def test_a_forecast_does_not_last(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "FRESH_SECONDS", -1.0)
    slurm.answers.set()
    forecasts = QueueForecasts()
    await forecasts.predict([TARGET], 60)
    await forecasts.predict([TARGET], 60)
    assert slurm.asked == 2


async def test_why_there_is_none(slurm: Slurm) -> None:
    slurm.error = NoForecast("keeps allocations")
    slurm.answers.set()
    found = await QueueForecasts().predict([TARGET], 60)
    assert found["hpc/compute"] == Forecast(why="keeps allocations")
    assert found["hpc/compute"].wait == PredictedWait(None, "keeps allocations", 0)


async def test_a_target_elsewhere_has_none() -> None:
    found = await QueueForecasts().predict([TARGET], 60)
    assert found["hpc/compute"].why == "is not on sfq.slurm"
