"""Submits, follows and cancels jobs of a service, and reads results, whole or in parts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from urllib.parse import quote

from sf_quantum import backoff
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, listing, mapping, parse_json
from sf_quantum.net.transport import Response, Unreachable, Unsendable
from sf_quantum.protocol.bounds import ANSWER_BYTES, RESULT_BYTES
from sf_quantum.protocol.tasks import (
    OVER,
    NotAccepted,
    Outcome,
    Result,
    Task,
    UnknownJob,
    WrongAnswer,
)
from sf_quantum.protocol.values import counter
from sf_quantum.qpu.running import named
from sf_quantum.qpu.sfq.service_client import (
    LARGE_SECONDS,
    REQUEST_SECONDS,
    ServiceClient,
    refusal,
)
from sf_quantum.qpu.sfq.service_job import ServiceJob

T = TypeVar("T")
# Longest time that the service may wait before it answers a request about a job.
POLL_SECONDS = 30.0
# An answer without new results within this time shows that the service does not wait.
EARLY_SECONDS = 1.0
# Time that a submission waits for the job's end: so a small job takes one request, and
# nothing is logged about its expected duration.
SUBMISSION_SECONDS = 0.5
# Time limit of each request that cancels a job.
CANCEL_SECONDS = 2.0
# Statuses after which the service has no job; after a proxy's other statuses, it may have one.
NOT_ACCEPTED = (408, 425, 429, 503)
# Text before the last value in the results of our service.
INFO = ', "info": '
# Maximum number of occurrences of INFO that are tried, from the end of a result.
INFO_TRIES = 100
_SUBMISSIONS = f"/v1/jobs?wait={SUBMISSION_SECONDS:g}"


@dataclass(frozen=True)
class ServiceJobs:
    """Sends the requests about jobs.

    :param purpose: purpose of the jobs, if it differs from the lease's
    """

    service: ServiceClient
    purpose: str | None = None

    def submit(self, task: Task) -> str:
        """See :meth:`Qpu.submit`; the tag is the job's idempotency key."""
        try:
            response = self.service.send(
                "POST",
                "/v1/jobs",
                self._body(task),
                timeout_seconds=LARGE_SECONDS,
                expected=NOT_ACCEPTED,
            )
        except Unreachable as error:
            if error.sent:
                raise
            raise NotAccepted(str(error)) from error
        except Unsendable as error:  # not the job's fault
            raise NotAccepted(str(error)) from error
        if response.status in NOT_ACCEPTED:
            message = f"{self.service.name} takes no job now: {refusal(response)}"
            raise NotAccepted(message, response.retry_seconds)
        job = ServiceJob.read(self.service.name, response.json(), key=task.tag)
        job.log_expected(self.service.name)
        return job.id

    def _body(self, task: Task) -> bytes:
        given = {key: v for key, v in task.parameters.items() if v is not None}
        rest: dict[str, JSON] = {"parameters": {**given}, "idempotency_key": task.tag}
        if self.purpose is not None:
            rest["purpose"] = self.purpose
        # The payload is inserted without being parsed, as it may be large.
        return f'{{"{task.kind}": {task.payload}, {json.dumps(rest)[1:]}'.encode()

    def find(self, tag: str) -> str | None:
        """See :meth:`Qpu.find`."""
        path = f"/v1/jobs?key={quote(tag, safe='')}"
        answer = self.service.send("GET", path)
        try:
            jobs = map(mapping, listing(parse_json(answer.body)))
            by_key = {str(job["idempotency_key"]): str(job["id"]) for job in jobs}
        except (ValueError, KeyError) as error:
            message = f"{self.service.name}: its answer is no list of jobs"
            raise QpuError(message) from error
        if by_key and tag not in by_key:
            message = "lists jobs with other keys than it was asked for"
            raise QpuError(f"{self.service.name} {message}")
        return by_key.get(tag)

    def get(self, job_id: str, key: str | None = None) -> ServiceJob:
        """Query a job.

        :param key: idempotency key of the job, if known
        """
        answer = self.send("GET", job_id).json()
        return ServiceJob.read(self.service.name, answer, id_=job_id, key=key)

    def cancel(self, job_id: str) -> None:
        """See :meth:`Qpu.cancel`."""
        answer = self.send("DELETE", job_id).json()
        ServiceJob.read(self.service.name, answer, id_=job_id)

    def run(self, task: Task) -> Outcome:
        """See :meth:`Qpu.run_job`; a small job takes one request.

        An unanswered submission is repeated with the same tag, which is the job's idempotency
        key, so the service does not create a second job.
        """
        body = self._body(task)
        try:
            response = self.service.send(
                "POST", _SUBMISSIONS, body, timeout_seconds=LARGE_SECONDS, retry=True
            )
            submitted = ServiceJob.read(
                self.service.name, response.json(), key=task.tag
            )
            job = self.follow(submitted)
            return named(self.outcome(job), job.id)
        except InputError:
            raise
        except BaseException:
            self.withdraw(body)
            raise

    def follow(self, job: ServiceJob) -> ServiceJob:
        """Wait until a job has finished.

        :param job: job from the answer to its submission
        """
        service = self.service
        job.log_expected(service.name)
        path = f"/v1/jobs/{job.id}?wait={POLL_SECONDS:g}"
        timeout = POLL_SECONDS + REQUEST_SECONDS
        while job.state not in OVER:
            try:
                response = service.send(
                    "GET", path, timeout_seconds=timeout, retry=True, expected=(404,)
                )
            except Unreachable as error:
                raise QpuError(f"{error}; it ended during the job") from error
            if response.status == 404:
                raise QpuError(f"{service.name}: it no longer knows the job")
            job = ServiceJob.read(service.name, response.json(), id_=job.id)
        return job

    def withdraw(self, body: Mapping[str, JSON] | bytes) -> None:
        """Cancel a job whose submission may be unanswered, by repeating the submission."""
        send = partial(self.service.send, timeout_seconds=CANCEL_SECONDS)
        with suppress(QpuError, InputError):
            # With the same idempotency key, this is the same job.
            submitted = send("POST", "/v1/jobs", body).json()
            send("DELETE", f"/v1/jobs/{self.service.text(submitted, 'id')}")

    def outcome(self, job: ServiceJob, most_bytes: int = RESULT_BYTES) -> Outcome:
        """Return the outcome of a finished job, with the result if the job completed."""
        if job.state not in OVER:
            raise QpuError(f"{self.service.name}: job {job.id} is {job.state}")
        result, failure = None, None
        if job.state == "Completed":
            result = job.result or self._result(job.id, most_bytes)
        elif job.state == "Failed":
            failure = job.note or "no reason given"
        return Outcome(
            result,
            failure,
            qpu_seconds=job.qpu_seconds,
            seconds=job.seconds,
            calibration=job.calibration,
            note=job.remark,
        )

    def _result(self, job_id: str, most_bytes: int) -> Result:
        """Fetch a result; its ``info`` is separated without parsing the rest."""
        response = self.send("GET", job_id, "/result", most_bytes=most_bytes)
        text = response.body.decode(errors="replace").strip()
        # Within a JSON string, the quotes of INFO would have backslashes; within a nested
        # object, more than one bracket would follow.
        end, begins = len(text), text.startswith('{"')
        for _ in range(INFO_TRIES if begins else 0):
            if (end := text.rfind(INFO, 0, end)) < 0:
                break
            with suppress(ValueError):
                info = parse_json(text[end + len(INFO) : -1])
                if text.endswith("}") and isinstance(info, dict):
                    return Result(f"{text[:end]}}}", info)
        message = f"{self.service.name}: the result of job {job_id} is malformed"
        raise WrongAnswer(message, text)

    def counters(self, job_id: str) -> Iterator[dict[str, int]]:
        """Yield the counts of a job's circuits, in order, as they finish.

        The counts are fetched on demand, about a megabyte at a time.

        :raises QpuError: if the job fails or is cancelled, after the circuits that have
            finished
        """
        yield from self._parts(job_id, "counter", counter)

    def sample_sets(self, job_id: str) -> Iterator[dict[str, JSON]]:
        """Yield the serialized sample sets of a job's BQMs, like :meth:`counters`."""
        yield from self._parts(job_id, "sample_set", mapping)

    def _parts(self, job_id: str, what: str, read: Callable[[JSON], T]) -> Iterator[T]:
        """Yield the parts of a job's result as they finish, each converted by ``read``."""
        first, over, state = 0, False, ""
        pauses = backoff.JOB.pauses()
        while not over:
            asked = time.monotonic()
            part = f"/{what}s?first={first}&wait={POLL_SECONDS:g}"
            response = self.send("GET", job_id, part, retry=True)
            try:
                *lines, last = map(mapping, map(parse_json, response.body.splitlines()))
                items = [read(line[what]) for line in lines]
                first += len(items)
                over, state = bool(last["over"]), str(last["state"])
                # An answer without items is the last one if, and only if, the job has ended.
                if last["next"] != first or (not items and over != (state in OVER)):
                    raise ValueError("the next number is not that of what follows")
            except (ArithmeticError, KeyError, TypeError, ValueError) as error:
                message = f"the results of job {job_id} are malformed"
                raise QpuError(f"{self.service.name}: {message}") from error
            yield from items
            if not items and time.monotonic() - asked < EARLY_SECONDS:
                time.sleep(next(pauses))
        if state != "Completed":
            outcome = named(self.outcome(self.get(job_id)), job_id)
            raise QpuError(f"{self.service.name}: {outcome.failure}")

    def send(
        self,
        method: str,
        job_id: str,
        part: str = "",
        *,
        retry: bool = False,
        most_bytes: int = RESULT_BYTES,
    ) -> Response:
        """Send a request about a job, or for a part of the job, which may be large.

        :param part: path of the part, such as ``/result``
        :param most_bytes: maximum size of the part in bytes
        :raises UnknownJob: if the service does not know the job
        """
        response = self.service.send(
            method,
            f"/v1/jobs/{quote(job_id, safe='')}{part}",
            timeout_seconds=LARGE_SECONDS if part else REQUEST_SECONDS,
            retry=retry,
            expected=(404,),
            most_bytes=most_bytes if part else ANSWER_BYTES,
        )
        if response.status == 404:
            raise UnknownJob(f"{self.service.name}: {refusal(response)}")
        return response
