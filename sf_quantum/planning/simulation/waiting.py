"""The wait for processors of a partition, predicted from the jobs in its queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import simpy

from sf_quantum.planning.simulation.cluster import Allocation, Cluster, Usage
from sf_quantum.planning.simulation.qpu import Process

# assumed ratio of time limits to run times, like the ``margin`` of workload files
MARGIN = 2.0
#: longest wait that is predicted
HORIZON_SECONDS = 7 * 86400.0
_PARTITION = "partition"
_SOON_SECONDS = 1.0
# Submission on the virtual clock, after the running jobs have got their processors.
_SUBMITTED_SECONDS = 0.001


@dataclass(frozen=True)
class QueuedJob:
    """A job that runs or is pending.

    :param processors: number of processors that the job holds or requests
    :param limit_seconds: time limit; for a running job, the remaining time of its limit
    """

    processors: int
    limit_seconds: float


def predicted_wait(
    free: int,
    running: Sequence[QueuedJob],
    pending: Iterable[QueuedJob],
    job: QueuedJob,
) -> float:
    """Predict for how many seconds a job would be pending if it were submitted now.

    The queue is FIFO with EASY backfilling by time limits. Jobs run for 1 / :data:`MARGIN` of
    their limits or remaining limits. Later submissions are not considered.

    :param free: processors that no job holds
    :param pending: pending jobs, in the order in which Slurm considers them
    :returns: the wait, at most :data:`HORIZON_SECONDS`
    """
    processors = free + sum(one.processors for one in running)
    if job.processors > processors:
        return HORIZON_SECONDS
    env = simpy.Environment()
    cluster = Cluster(env, {_PARTITION: processors})

    def submit(one: QueuedJob) -> Allocation:
        # a job that has exceeded its limit may end at any moment
        limit = min(max(one.limit_seconds, _SOON_SECONDS), MARGIN * HORIZON_SECONDS)
        allocation = cluster.request({_PARTITION: one.processors}, limit, Usage())
        env.process(run(allocation, limit / MARGIN))
        return allocation

    def run(allocation: Allocation, seconds: float) -> Process:
        yield allocation.granted
        yield env.timeout(seconds)
        cluster.release(allocation)

    for one in running:
        submit(one)
    # running jobs have their processors before another job is considered
    env.run(until=_SUBMITTED_SECONDS)
    for one in pending:
        if one.processors <= processors:
            submit(one)
    env.run(until=submit(job).granted | env.timeout(HORIZON_SECONDS))
    return max(0.0, env.now - _SUBMITTED_SECONDS)
