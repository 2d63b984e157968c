"""Reads submissions that are too large to be parsed on the event loop.

A thread reads submissions of up to 1 MiB. Parsing, checking and rewriting 60 MB of JSON
takes Python some seconds, during which no other thread runs, so another process, which runs
this module as a program, reads larger submissions. Its standard input is a line of JSON with
the dialect and the limits of the device, then the body; its standard output is a line of
JSON with the submission or its refusal, then the payload for the disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError

from sf_quantum import structs
from sf_quantum.files import JSON
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device import problems
from sf_quantum.service.dialects.dialect import OWN, Dialect, load
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Job, Kind, Size, Submission, Written
from sf_quantum.service.http.auth import get_sender
from sf_quantum.service.http.guard import SMALL_BYTES, check_connected, parsed
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.long_work import BUSY_SECONDS
from sf_quantum.threads import in_thread

# Larger bodies are read off the event loop.
LARGE_BYTES = SMALL_BYTES
# a smaller body is parsed in some 50 ms, less than the start of a process takes
PROCESS_BYTES = 1024 * 1024
# CPU time of a process that reads a body; a body of 64 MiB takes a tenth of this time
CPU_SECONDS = 60
# Longest wait for such a process, including the wait for its turn.
PATIENCE_SECONDS = 120.0
# Address space of such a process, and additional space for each byte of its body: valid
# bodies take ten bytes per byte, and the smallest JSON values fifty.
MEMORY_BYTES, BYTES_PER_BYTE = 2**30, 100
# limits the number of such processes, each of which takes a core
_reading = threading.BoundedSemaphore(2)


class LargeBodyRoute(APIRoute):
    """Reads large submissions itself: FastAPI would parse them on the event loop."""

    #: name of the dialect
    dialect: ClassVar[str]

    @staticmethod
    @abstractmethod
    def reply(queue: JobQueue, job: Job, new: bool) -> Response:
        """Answer in the form of the dialect's route."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[None, None, Response]]:
        handle_small = super().get_route_handler()

        async def handle(request: Request) -> Response:
            # earlier versions of FastAPI also parse a body without a content type
            is_json = "json" in request.headers.get("content-type", "json").lower()
            if request.method == "POST" and is_json:
                body = await request.body()
                if len(body) > LARGE_BYTES:
                    return await self.handle_large(request, body)
            return await handle_small(request)

        return handle

    async def handle_large(self, request: Request, body: bytes) -> Response:
        """Submit a job with a large body."""
        queue: JobQueue = request.app.state.queue
        dialect: Dialect = request.app.state.dialects[self.dialect]
        who, lease = get_sender(request), request.headers.get(dialect.lease_header)
        queue.leases.use(who, lease)  # refuse before the costly reading of the body
        description = queue.device.description
        more = {"solver": problems.solver(description)}

        def whole() -> Submission:
            return read(
                body,
                self.dialect,
                qubits=description.qubits,
                payloads=description.kinds,
                more=more,
            )

        async with queue.reader.bodies.turn(who.user):
            await check_connected(request)
            submission = await in_turn(queue, body, whole)
        submitted = await queue.submit(who, lease, submission)
        return self.reply(queue, *submitted)


async def in_turn(
    queue: JobQueue, body: bytes, whole: Callable[[], Submission]
) -> Submission:
    """Read a whole body in another thread; the caller holds the user's turn.

    :param whole: reads the body
    """
    if len(body) > PROCESS_BYTES:
        # In a separate thread: in the thread pool, it would delay authentication.
        return await asyncio.wrap_future(in_thread(whole))
    return await queue.reader.bodies.run(whole)


def read(
    body: bytes,
    dialect: str = OWN,
    *,
    qubits: int,
    payloads: Sequence[Kind],
    more: Mapping[str, JSON] | None = None,
) -> Submission:
    """Read a submission and check that the device can run it; blocks.

    :param qubits: number of qubits of the device
    :param payloads: kinds that the device accepts; the queue refuses other kinds, and
        checks the content of all kinds except ``problem``
    :param more: values that the dialect needs, or the properties of an annealer's solver
    :raises RequestValidationError: if a field is invalid, as FastAPI raises it for a small
        body
    :raises Refused: if the submission is refused, as the queue refuses a small body
    """
    reading = _Reading(dialect, qubits, [*payloads], {**(more or {})})
    if len(body) > PROCESS_BYTES:
        deadline = time.monotonic() + PATIENCE_SECONDS
        if not _reading.acquire(timeout=PATIENCE_SECONDS):
            raise _busy()
        try:
            return _read_in_process(body, reading, deadline - time.monotonic())
        finally:
            _reading.release()
    return _submission(*_read(body, reading))


@dataclass(frozen=True)
class _Reading:
    """How a body is read, see :func:`read`."""

    dialect: str
    qubits: int
    payloads: list[Kind]
    more: dict[str, JSON]


def _read_in_process(body: bytes, reading: _Reading, seconds: float) -> Submission:
    command = [sys.executable, "-m", __name__]
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out:
        stdin.write(json.dumps(asdict(reading)).encode() + b"\n")
        stdin.write(body)
        stdin.seek(0)
        try:
            status = subprocess.run(
                command,
                stdin=stdin,
                stdout=out,
                stderr=subprocess.DEVNULL,
                timeout=seconds,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired as error:
            raise _busy() from error
        if status == -signal.SIGXCPU:
            detail = f"reading the body takes more than {CPU_SECONDS} s of CPU time"
            raise Refused(422, detail)
        if status != 0:
            raise _busy()
        out.seek(0)
        return _submission(out.readline().decode(), out.read().decode())


def _busy() -> Refused:
    detail = "this machine is too busy to read the body now: send it again later"
    return Refused(503, detail, headers={"Retry-After": f"{BUSY_SECONDS}"})


def main() -> None:
    """Read one submission from standard input."""
    os.nice(10)  # the service and its device take precedence
    # With these limits, the process ends even if the service has died.
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    reading = structs.read(_Reading, json.loads(sys.stdin.buffer.readline()))
    body = sys.stdin.buffer.read()
    memory = MEMORY_BYTES + BYTES_PER_BYTE * len(body)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        answer, payload = _read(body, reading)
    except MemoryError:
        detail = f"reading the body takes more than {memory >> 20:,} MiB of memory"
        refused = {"status": 422, "detail": detail, "field": None}
        answer, payload = json.dumps({"refused": refused}), ""
    sys.stdout.buffer.write(answer.encode() + b"\n")
    sys.stdout.buffer.write(payload.encode())


def _read(body: bytes, reading: _Reading) -> tuple[str, str]:
    answer, payload = _answer(body, reading)
    return json.dumps(answer), payload


def _answer(body: bytes, reading: _Reading) -> tuple[dict[str, JSON], str]:
    more = reading.more
    try:
        submission, size = load(reading.dialect).read(parsed(body), more), Size()
        if submission.kind == "problem" in reading.payloads:
            size = problems.check(submission.content, reading.qubits)
            size = problems.with_solver(
                size, submission.content, submission.parameters, more.get("solver")
            )
    except ValidationError as error:
        first = error.errors()[0]
        where: list[JSON] = ["body", *first["loc"]]
        return {
            "invalid": {"loc": where, "msg": first["msg"], "type": first["type"]}
        }, ""
    except (FieldError, Refused) as error:
        status = error.status if isinstance(error, Refused) else 422
        refused: dict[str, JSON] = {
            "status": status,
            "detail": error.detail,
            "field": error.field,
        }
        return {"refused": refused}, ""
    except (ValueError, RecursionError):
        return {"invalid": {"loc": ["body"], "msg": "", "type": "json_invalid"}}, ""
    names = """kind parameters key digest purpose calibrated_within dialect metadata
        implicit_lease repeatable""".split()
    read = {name: getattr(submission, name) for name in names}
    return {**read, "size": asdict(size)}, submission.payload


def _submission(text: str, payload: str) -> Submission:
    answer = json.loads(text)
    if invalid := answer.get("invalid"):
        raise RequestValidationError([invalid])
    if refused := answer.get("refused"):
        raise Refused(**refused)
    size = Size(**answer.pop("size"))
    written = Written(payload, answer.pop("digest"), size)
    return Submission(content=None, written=written, **answer)


if __name__ == "__main__":
    main()
