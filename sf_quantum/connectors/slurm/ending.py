"""How a job ended: what Slurm says of it, and what its script left behind."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.slurm import script, states, submission
from sf_quantum.connectors.slurm.login import Login
from sf_quantum.connectors.slurm.script import Mark
from sf_quantum.connectors.slurm.states import LOST, Outcome

# a mark says how the job ended as well
PATIENCE_WITH_MARK_SECONDS = 3

if TYPE_CHECKING:
    from sf_quantum.connectors.slurm.queue import Waiting


async def ending(login: Login, job: Waiting, patience_seconds: float) -> Outcome | None:
    """Ask how a job ended.

    :param patience_seconds: after which the mark of one that Slurm has forgotten is seen
    :returns: None if that is not known yet, or it is to run again, or still runs
    """
    marked = job.mark is not None
    limit = PATIENCE_WITH_MARK_SECONDS if marked else states.PATIENCE_SECONDS
    try:
        text, code = await login.run(
            f"SLURM_TIME_FORMAT=%s timeout {limit} "
            f"scontrol --oneliner show job {job.slurm_job}"
        )
    except WorkflowExecutionException as error:
        text, code = str(error), submission.UNKNOWN
    if code == 0 and (shown := states.shown(text, job.slurm_job)):
        return await _shown(login, job, shown)
    if "Invalid job id" in text:
        return await _forgotten(login, job, patience_seconds)
    job.state = ""
    return None


def by_mark(mark: Mark) -> Outcome:
    """How a job ended in the words of its own script."""
    return Outcome(
        mark.slurm_job,
        "FAILED" if mark.exit_code else "COMPLETED",
        exit_code=mark.exit_code or 0,
        started=mark.started,
        ended=mark.ended,
    )


def timed(outcome: Outcome, mark: Mark | None) -> Outcome:
    """The times of the run's own mark, since Slurm keeps whole seconds."""
    if mark is None or not outcome.plain or outcome.is_later_run(mark.ended):
        return outcome
    return replace(outcome, started=mark.started, ended=mark.ended or outcome.ended)


async def _shown(login: Login, job: Waiting, shown: list[Outcome]) -> Outcome | None:
    # a job of several components has the script in its first
    outcome = states.worst(shown) if job.array else shown[0]
    job.state = outcome.state
    if all(one.state in states.ENDED for one in shown):
        if job.mark is None and outcome.good and not job.array:
            return await _started_first(login, job, outcome)
        return outcome
    if job.mark is not None and outcome.is_later_run(job.mark.ended):
        job.mark = None
    return None


async def _started_first(
    login: Login, job: Waiting, outcome: Outcome
) -> Outcome | None:
    """Look whether the job was submitted twice, and this one had nothing to do."""
    file = script.path(login.spool, job.key, "lock")
    try:
        text, _ = await login.run(f"cat {shlex.quote(file)}")
    except WorkflowExecutionException:
        return None
    first = text.strip()
    if first == job.slurm_job:
        return outcome
    if first.isdecimal():
        job.slurm_job = first
        return None
    return replace(outcome, state=LOST, reason="nothing tells that its script began")


async def _forgotten(login: Login, job: Waiting, patience_seconds: float) -> Outcome:
    if job.mark is None:
        text, code = await login.run(states.accounting(job.slurm_job))
        if code == 0 and (found := states.accounted(text)):
            return states.worst(found)
        # its mark may be seen only now, on a slow file system
        await asyncio.sleep(patience_seconds)
    if job.mark is not None:
        return by_mark(job.mark)
    return Outcome(
        job.slurm_job, LOST, "Slurm has forgotten it, and it left no exit code"
    )
