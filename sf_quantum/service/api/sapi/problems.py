"""The queue's jobs as SAPI's problems: how they come in, and what is told of them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from functools import lru_cache

from pydantic import ValidationError

from sf_quantum.files import JSON
from sf_quantum.service.api.sapi import qp_format, solver
from sf_quantum.service.api.sapi.models import (
    MICROSECONDS,
    RUN_DURATION,
    STATUSES,
    Asked,
    Problem,
    moment,
    status,
)
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.identities import Identity
from sf_quantum.service.domain.jobs import Job, Submission, Written
from sf_quantum.service.queue.job_queue import JobQueue

# what the key of such a job begins with
KEY = "sapi-"
REMEMBERED = 10_000


class Problems:
    """The problems of one queue; methods that read contents may take a moment."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        # what a problem was asked for with never changes, and is in its large content
        self._asked = lru_cache(REMEMBERED)(self._read_asked)

    def read(self, content: JSON) -> Submission:
        """Read a problem, and write it down for the disk.

        SAPI knows no idempotency: the same request twice is two problems.

        :raises Refused: 400 if it is wrong, 404 if it is for another solver
        """
        try:
            problem = Problem.model_validate(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise Refused(400, str(first["msg"]), where or None) from error
        device, params = self._queue.device, problem.params
        solver.check(device, problem.identity)
        if params.num_reads * params.annealing_time > RUN_DURATION:
            detail = f"num_reads times annealing_time exceeds {RUN_DURATION:g} us"
            raise Refused(400, detail, "params")
        bqm = qp_format.bqm(problem, solver.graph(device))
        key = f"{KEY}{secrets.token_hex(16)}"
        whole = Submission("problem", bqm, params.parameters(), key)
        written = Written(whole.payload, whole.digest)
        return Submission("problem", None, whole.parameters, key, written)

    def find(self, who: Identity, name: str) -> Job:
        """Find a problem.

        :raises Refused: 404, also for jobs of other dialects
        """
        job = self._queue.find(who, name)
        if not job.key.startswith(KEY):
            raise Refused(404, "no such problem")
        return job

    def all(self, who: Identity) -> list[Job]:
        """List the latest problems, oldest first."""
        return [job for job in self._queue.list_jobs(who) if job.key.startswith(KEY)]

    async def any_over(
        self, who: Identity, names: Sequence[str], seconds: float
    ) -> list[Job]:
        """Find problems, as soon as one of them is over or the time is.

        :raises Refused: 404
        """
        found = [self.find(who, name) for name in names]
        if seconds > 0 and not any(job.final for job in found):
            waits = [
                asyncio.ensure_future(self._queue.wait(who, job.id, seconds))
                for job in found
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        return [self.find(who, name) for name in names]

    async def cancel(self, who: Identity, name: str) -> dict[str, JSON]:
        """Cancel a problem.

        :returns: its status
        :raises Refused: 404, or 409 for one that is over
        """
        found = self.find(who, name)
        if found.final:
            raise Refused(409, f"problem {name} is {STATUSES[found.state]} already")
        job = await self._queue.cancel(who, found.id)
        return await asyncio.to_thread(self.status, job)

    def status(self, job: Job) -> dict[str, JSON]:
        """Tell a problem's state."""
        identity = solver.identity(self._queue.device)
        return status(job, self._asked(job.number), identity)

    def show(self, job: Job) -> dict[str, JSON]:
        """Tell a problem's state, with its answer if it is completed."""
        told = self.status(job)
        completed = job.state == "Completed"
        result = self._queue.store.result(job.number) if completed else None
        if result is None:
            return told
        device, asked = self._queue.device, self._asked(job.number)
        graph = solver.graph(device)
        answer = qp_format.answer(result, asked, self._content(job.number), graph)
        timing = solver.timing(device, asked.params, job.qpu_seconds * MICROSECONDS)
        return {**told, "answer": {**answer, "timing": timing}}

    def info(self, job: Job) -> dict[str, JSON]:
        """Tell everything of a problem, as it could be submitted again."""
        shown = self.show(job)
        names = ("solver", "type", "label", "status", "submitted_on", "solved_on")
        metadata = {name: shown[name] for name in names if name in shown}
        graph = solver.graph(self._queue.device)
        params = self._asked(job.number).params
        return {
            "id": job.id,
            "data": qp_format.problem_data(self._content(job.number), graph),
            "params": params.model_dump(exclude_unset=True),
            "metadata": {
                **metadata,
                "submitted_by": job.user,
                "messages": self.messages(job),
            },
            **({"answer": shown["answer"]} if "answer" in shown else {}),
        }

    def messages(self, job: Job) -> list[JSON]:
        """Say why a problem failed, was cancelled or began again."""
        if not job.note:
            return []
        when = moment(job.ended or job.started or job.submitted)
        severity = "ERROR" if job.state == "Failed" else "INFO"
        return [{"timestamp": when, "message": job.note, "severity": severity}]

    def _read_asked(self, number: int) -> Asked:
        info = self._content(number)["info"]
        return Asked.model_validate(info.get("sapi") if isinstance(info, dict) else {})

    def _content(self, number: int) -> dict[str, JSON]:
        content = self._queue.store.payload(number)
        if not isinstance(content, dict):
            raise Refused(404, "no such problem")
        return content
