"""Forecasts of a job's wait for nodes on Slurm, with the simulator of ``sfq plan``.

Slurm is queried for the jobs in the queue, and the simulation runs in a thread. Decisions
within a few seconds share a forecast.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from streamflow.core.deployment import Connector, Target
from streamflow.core.exception import WorkflowExecutionException
from streamflow.deployment.future import FutureConnector

from sf_quantum.candidates.targets import target_name
from sf_quantum.connectors.slurm.connector import SlurmConnector
from sf_quantum.connectors.slurm.partition import JobInQueue, NoForecast, PartitionQueue
from sf_quantum.journal import scheduler
from sf_quantum.journal.events import PredictedWait
from sf_quantum.threads import in_thread

#: how long decisions share a forecast
FRESH_SECONDS = 5.0


@dataclass(frozen=True)
class Forecast:
    """The predicted wait for a target's nodes.

    :param seconds: the predicted wait; ``None`` if it cannot be predicted
    :param why: reason why the wait cannot be predicted, to follow the target's name in a
        message
    :param jobs: number of running and pending jobs in the target's partition
    :param made: time of the prediction on the monotonic clock
    """

    seconds: float | None = None
    why: str = ""
    jobs: int = 0
    made: float = field(default_factory=time.monotonic, compare=False)

    @property
    def asked(self) -> bool:
        """Whether a forecast was requested."""
        return self.seconds is not None or self.why != ""

    @property
    def wait(self) -> PredictedWait:
        """The forecast as a journal records it."""
        return PredictedWait(self.seconds, self.why, self.jobs)


class QueueForecasts:
    """Forecasts by target; at most one is computed per target at a time."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Forecast]] = {}

    async def predict(
        self, targets: Iterable[Target], seconds: float
    ) -> dict[str, Forecast]:
        """Predict the waits for nodes of classical targets, within ``seconds``."""
        forecasts: dict[str, Forecast] = {}
        tasks: dict[str, asyncio.Task[Forecast]] = {}
        for target in targets:
            name = target_name(target)
            try:
                tasks[name] = self._forecast_task(
                    name, _connector(target), target.service
                )
            except NoForecast as error:  # not cached: the target may be deployed soon
                forecasts[name] = Forecast(why=str(error))
        if tasks:
            await asyncio.wait(tasks.values(), timeout=seconds)
        late = Forecast(why=f"was not predicted within {seconds:g} s")
        made = {name: t.result() if t.done() else late for name, t in tasks.items()}
        return forecasts | made

    def _forecast_task(
        self, name: str, connector: SlurmConnector, service: str | None
    ) -> asyncio.Task[Forecast]:
        """Return the target's forecast if it is in progress or fresh, otherwise a new one."""
        task = self._tasks.get(name)
        if task is None or (task.done() and _is_old(task.result())):
            task = self._tasks[name] = asyncio.create_task(
                _forecast(connector, service)
            )
        return task


def _is_old(forecast: Forecast) -> bool:
    return time.monotonic() - forecast.made > FRESH_SECONDS


async def _forecast(connector: SlurmConnector, service: str | None) -> Forecast:
    """Predict the wait for nodes of a service's job, or return why it cannot be predicted."""
    try:
        queue, job = await connector.partition_queue(service)
    except NoForecast as error:
        return Forecast(why=str(error))
    except (WorkflowExecutionException, OSError) as error:
        return Forecast(why=f"cannot be predicted: {' '.join(str(error).split())}")
    # The simulation runs in a thread, since its time grows with the number of jobs.
    seconds = await asyncio.wrap_future(in_thread(partial(_predicted, queue, job)))
    return Forecast(seconds, jobs=len(queue.running) + len(queue.pending))


def _predicted(queue: PartitionQueue, job: JobInQueue) -> float:
    """Simulate a partition's queue, and return the seconds that a new job would wait."""
    # imported here, since most runs need no simulator
    from sf_quantum.planning.simulation.waiting import QueuedJob, predicted_wait

    def queued(listed: JobInQueue) -> QueuedJob:
        return QueuedJob(listed.processors, listed.seconds)

    return predicted_wait(
        queue.idle,
        [*map(queued, queue.running)],
        map(queued, queue.pending),
        queued(job),
    )


def _connector(target: Target) -> SlurmConnector:
    """Return the connector of a target.

    :raises NoForecast: if the target is not deployed, or not on Slurm
    """
    run = scheduler.current()
    connector: Connector | None = None
    if run is not None:
        connector = run.context.deployment_manager.get_connector(target.deployment.name)
    if isinstance(connector, FutureConnector):
        # A query through a FutureConnector would deploy the target.
        connector = connector._connector
        if connector is None:
            raise NoForecast("is not deployed yet")
    if not isinstance(connector, SlurmConnector):
        raise NoForecast("is not on sfq.slurm")
    return connector
