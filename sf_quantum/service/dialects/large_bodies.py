"""Reads submissions that are too large to be parsed on the event loop.

A thread reads submissions of up to 1 MiB. Larger submissions are read in another process,
which runs this module as a program: Python takes some seconds to parse, check and rewrite
60 MB of JSON, and no other thread runs meanwhile. The standard input of the program is a line
of JSON with the dialect and the limits of the device, then the body. Its standard output is a
line of JSON with the submission or its refusal, then the payload for the disk.
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

# bodies above this size are read off the event loop
LARGE_BYTES = SMALL_BYTES
# Bodies above this size are read in another process. A smaller body is parsed in about 50 ms,
# which is less than the start of a process takes.
PROCESS_BYTES = 1024 * 1024
# CPU time of a process that reads a body; a body of 64 MiB takes a tenth of this time
CPU_SECONDS = 60
# longest wait for such a process, including the wait until it may start
PATIENCE_SECONDS = 120.0
# Maximum address space of such a process, and additional space for each byte of its body. A
# valid body takes 10 bytes of memory per byte; a body of the smallest JSON values takes 50.
MEMORY_BYTES, BYTES_PER_BYTE = 2**30, 100
# limits the number of such processes, each of which takes a core
_process_permits = threading.BoundedSemaphore(2)


class LargeBodyRoute(APIRoute):
    """A route that itself reads large submissions, which FastAPI parses on the event loop."""

    #: name of the dialect
    dialect: ClassVar[str]

    @staticmethod
    @abstractmethod
    def reply(queue: JobQueue, job: Job, new: bool) -> Response:
        """Make the response to a submission in the form of the dialect's route."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[None, None, Response]]:
        handle_small = super().get_route_handler()

        async def handle(request: Request) -> Response:
            # a missing content type means JSON, as in older versions of FastAPI
            is_json = "json" in request.headers.get("content-type", "json").lower()
            if request.method == "POST" and is_json:
                body = await request.body()
                if len(body) > LARGE_BYTES:
                    return await self.handle_large(request, body)
            return await handle_small(request)

        return handle

    async def handle_large(self, request: Request, body: bytes) -> Response:
        """Submit the job in a large body."""
        queue: JobQueue = request.app.state.queue
        dialect: Dialect = request.app.state.dialects[self.dialect]
        who, lease = get_sender(request), request.headers.get(dialect.lease_header)
        queue.leases.use(who, lease)  # refuse before the costly reading
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
    """Read a body in another thread; the caller holds the user's turn.

    :param whole: reads the whole body
    """
    if len(body) > PROCESS_BYTES:
        # not in the loop's thread pool, which authenticates requests
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
    :param payloads: kinds that the device accepts. Only a ``problem`` is checked here; the
        queue later checks the content of other kinds, and refuses kinds that the device does
        not accept
    :param more: values that the dialect needs, or the properties of an annealer's solver
    :raises RequestValidationError: if a field is invalid, like FastAPI for a small body
    :raises Refused: if the submission is refused, like the queue for a small body
    """
    reading = _Reading(dialect, qubits, [*payloads], {**(more or {})})
    if len(body) > PROCESS_BYTES:
        deadline = time.monotonic() + PATIENCE_SECONDS
        if not _process_permits.acquire(timeout=PATIENCE_SECONDS):
            raise _busy()
        try:
            return _read_in_process(body, reading, deadline - time.monotonic())
        finally:
            _process_permits.release()
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
    # the limits end the process even if the service has died
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
