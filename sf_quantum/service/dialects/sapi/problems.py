"""The queue's jobs as SAPI's problems."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from dataclasses import replace

from pydantic import ValidationError

from sf_quantum.files import JSON, mapping
from sf_quantum.protocol.solver_parameters import ARRAYS, KEY
from sf_quantum.service.device.emulator.annealing_schedules import ANNEALING
from sf_quantum.service.device.problems import problem_size
from sf_quantum.service.dialects.common import utc
from sf_quantum.service.dialects.sapi import parameters, qp_format, refusals, solver
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Forecast, Identity, Job, Submission, Written
from sf_quantum.service.domain.reasons import QPU_OFFLINE
from sf_quantum.service.queue.job_queue import JobQueue

NO_PROBLEM = "no such problem"


class Problems:
    """The problems of one queue.

    :meth:`show` and :meth:`info` may read much data; call them in a thread.
    """

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue

    def read(self, content: JSON) -> Submission:
        """Read a problem, and serialize it for the disk.

        SAPI has no idempotency keys: a repeated request submits a second problem.

        :raises Refused: 400 if the problem is invalid, 404 if it is for another solver
        """
        try:
            problem = solver.Problem.model_validate(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise Refused(400, str(first["msg"]), where or None) from error
        device, params = self._queue.device, problem.params
        name = problem.solver_name
        graph_id = None if name.version is None else name.version.graph_id
        refusals.check_solver(device, name.name, graph_id)
        graph, custom = refusals.graph(device), device.custom_annealing
        bqm = qp_format.bqm(problem, graph)
        # names of the parameters that are stored with the payload instead of the options,
        # since some of them have a value per qubit
        in_payload: set[str] = set()
        if (solver_properties := device.description.solver) is not None:
            parameters.check_listed(params, graph, solver_properties)
            solver_params = params.of_solver
            bqm["info"] = {KEY: {**solver_params}}
            in_payload = {
                name
                for name in solver_params
                if not isinstance(solver_params[name], int | float)
            }
            job_parameters = parameters.vendor_job_parameters(params, solver_properties)
        else:
            parameters.check(params, graph, bqm, custom=custom)
            job_parameters = params.job_parameters(custom=custom)
            if params.annealing is not None and custom:
                arrays = params.model_dump(include={*ARRAYS}, exclude_unset=True)
                annealing = ANNEALING.dump_python(params.annealing)
                bqm["info"] = {"annealing": annealing, "params": arrays}
                in_payload = {*arrays}
        options = solver.ProblemOptions(
            type=problem.type,
            params=params,
            label=problem.label,
            offset=problem.data.offset,
            graph_id=graph.id,
        )
        submission = Submission(
            "problem",
            bqm,
            job_parameters,
            f"sapi-{secrets.token_hex(16)}",
            dialect="sapi",
            implicit_lease=True,
            metadata=options.model_dump(
                exclude_unset=True, exclude_none=True, exclude={"params": in_payload}
            ),
        )
        written = Written(submission.payload, submission.digest, problem_size(bqm))
        return replace(submission, content=None, written=written)

    def find(self, who: Identity, problem_id: str) -> Job:
        """Find a problem; refuse jobs of other dialects with 404."""
        job = self._queue.find(who, problem_id)
        if job.dialect != "sapi":
            raise Refused(404, NO_PROBLEM)
        return job

    def all(self, who: Identity, label: str | None = None) -> list[Job]:
        """List the latest problems, or the latest problems with a label, oldest first."""
        return self._queue.reader.latest(who, dialect="sapi", label=label)

    async def wait_for_any(
        self, who: Identity, ids: Sequence[str], seconds: float
    ) -> list[Job]:
        """Wait until one of the problems has ended or the time has passed; return them all."""
        jobs = [self.find(who, problem_id) for problem_id in ids]
        if seconds > 0 and not any(job.final for job in jobs):
            waits = [
                asyncio.ensure_future(self._queue.wait(who, job.id, seconds))
                for job in jobs
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        return [self.find(who, problem_id) for problem_id in ids]

    async def cancel(self, who: Identity, problem_id: str) -> dict[str, JSON]:
        """Cancel a problem and return its status; refuse with 409 if it has already ended."""
        job = self.find(who, problem_id)
        has_ended = job.final
        if not has_ended:
            job = await self._queue.cancel(who, job.id)
            # the problem may have ended meanwhile without the cancellation
            has_ended = job.final and job.state != "Cancelled"
        if has_ended:
            status = solver.STATUSES[job.state]
            raise Refused(409, f"problem {problem_id} is {status} already")
        return await asyncio.to_thread(self.status, job)

    def status(self, job: Job) -> dict[str, JSON]:
        """Describe a problem without its answer."""
        options = _options(job)
        status: dict[str, JSON] = {
            "id": job.id,
            "type": options.type,
            "solver": solver.identity(self._queue.device, options.graph_id),
            "label": options.label,
            "status": solver.STATUSES[job.state],
            "submitted_on": _time(job.submitted),
        }
        if job.ended is not None:
            status["solved_on"] = _time(job.ended)
        if job.state == "Failed":
            offline = refusals.OFFLINE if job.note == QPU_OFFLINE else ""
            status["error_message"] = f"{offline}{job.note or 'no reason given'}"
        return status

    def show(self, job: Job) -> dict[str, JSON]:
        """Describe a problem, with its answer if it is completed."""
        status = self.status(job)
        completed = job.state == "Completed"
        if not completed:
            return status
        if (result := self._queue.store.jobs.result(job.number)) is None:
            raise Refused(404, NO_PROBLEM)  # the problem has been deleted meanwhile
        device, options = self._queue.device, _options(job)
        graph = refusals.graph(device)
        content = None if options.offset == 0 else self._content(job.number)
        answer = qp_format.answer(result, options, graph, content)
        timing = solver.timing(device, options.params, job.qpu_seconds)
        return {**status, "answer": {**answer, "timing": timing}}

    def info(self, job: Job) -> dict[str, JSON]:
        """Describe all data of a problem, with which it could be submitted again."""
        shown = self.show(job)
        names = ("solver", "type", "label", "status", "submitted_on", "solved_on")
        metadata = {name: shown[name] for name in names if name in shown}
        graph, content = refusals.graph(self._queue.device), self._content(job.number)
        params = _options(job).params.model_dump(exclude_unset=True)
        payload_info = mapping(content.get("info"))
        return {
            "id": job.id,
            "data": qp_format.problem_data(content, graph),
            "params": params
            | mapping(payload_info.get("params"))
            | mapping(payload_info.get(KEY)),
            "metadata": {
                **metadata,
                "submitted_by": job.user,
                "messages": self.messages(job),
            },
            **({"answer": shown["answer"]} if "answer" in shown else {}),
        }

    def messages(self, job: Job, forecast: Forecast | None = None) -> list[JSON]:
        """List a problem's expected run time, and why it failed or started again."""
        messages: list[JSON] = []
        if forecast is not None:
            when, words = _time(job.submitted), forecast.words
            messages.append({"timestamp": when, "message": words, "severity": "INFO"})
        if job.note:
            when = _time(job.ended or job.started or job.submitted)
            severity = "ERROR" if job.state == "Failed" else "INFO"
            messages.append(
                {"timestamp": when, "message": job.note, "severity": severity}
            )
        return messages

    def _content(self, number: int) -> dict[str, JSON]:
        content = json.loads(self._queue.store.jobs.payload(number))
        return content if isinstance(content, dict) else {}


def _options(job: Job) -> solver.ProblemOptions:
    return solver.ProblemOptions.model_validate(job.metadata)


def _time(seconds: float) -> str:
    return f"{utc(seconds):%Y-%m-%dT%H:%M:%S.%fZ}"
