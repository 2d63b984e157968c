"""The separate processes that compute jobs for the service.

A computation may need more time or memory than is available, and cannot be interrupted from
within. So each process has limits, can be killed at any instant, and is reused as long as
its jobs end by themselves.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing import Pipe

from sf_quantum.errors import InputError, QuantumError
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Result
from sf_quantum.service.device.processes import messages
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.service.device.processes.messages import Answer, Request
from sf_quantum.service.domain.jobs import Kind

MODULE = "sf_quantum.service.device.processes.program"
# Pause between two checks whether the caller has given up a call.
POLL_SECONDS = 0.02
# Idle processes: one for the device, which runs one job at a time, and one for checks.
MOST_IDLE = 2
# Payloads recorded per process: the process that has checked a payload preferably runs it.
KNOWN = 100
# Maximum number of concurrent checks of payloads; each needs a process.
MAX_CHECKS = 2
# Longest wait for a check, including the wait for its turn. A check that takes longer because
# the machine is busy does not mean that the payload is too large: it may be submitted again.
PATIENCE_SECONDS = 120.0
_checks = threading.BoundedSemaphore(MAX_CHECKS)


class Busy(QuantumError):
    """This machine is too busy to check a payload now."""

    exit_code = 75


class Ended(InputError):
    """A process ended before it replied.

    :param status: exit status of the process; if negative, the signal that ended it
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def check(
    call: str,
    arguments: Mapping[str, JSON],
    payload: str,
    limits: ComputeLimits,
    patience_seconds: float | None = None,
) -> Result:
    """Check a payload with a function of :mod:`.program` in a process; blocks.

    :param limits: limits of the computation, which also bound the CPU time of the check
    :raises InputError: if the payload is rejected, or exceeds the limits
    :raises Busy: if there is no reply within the patience, or the kernel runs out of memory
    """
    patience = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
    deadline = time.monotonic() + patience
    busy = "this machine is too busy to check the job now: submit it again later"
    if not _checks.acquire(timeout=patience):
        raise Busy(busy)
    try:
        answer = ask(
            call, arguments, payload, lambda: time.monotonic() > deadline, limits
        )
    except Ended as error:
        if error.status == -signal.SIGKILL:
            raise Busy(busy) from error
        raise
    finally:
        _checks.release()
    if answer is None:
        raise Busy(busy)
    return answer


def ask(
    call: str,
    arguments: Mapping[str, JSON],
    payload: str,
    give_up: Callable[[], bool],
    limits: ComputeLimits | None = None,
    *,
    more: str = "",
) -> Result | None:
    """Call a function of :mod:`.program` in a process; blocks.

    :param give_up: function that is polled; once it returns true, the process is killed
    :param more: text that the called function gets after the payload
    :returns: the result, or ``None`` if the call was given up
    :raises InputError: if there is no result; the message says why
    """
    limits = limits or ComputeLimits()
    request = Request(call, {**arguments}, limits.model_dump())
    processes = _processes()
    process, reusable = processes.take(about := hash(payload)), False
    try:
        message = process.ask(give_up, request, payload, more)
        if message is None:
            return None
        answer, text = message
        reusable = not answer.last
        process.known.append(about)
    except EOFError:
        status = process.status
        raise Ended(_why_it_ended(status, limits), status) from None
    finally:
        (processes.put_back if reusable else processes.replace)(process)
    if answer.error:
        raise InputError(answer.error)
    return Result(text, answer.info)


def start(kinds: Sequence[Kind] = ()) -> None:
    """Start the processes for the first jobs, unless some are idle; returns immediately.

    :param kinds: kinds of jobs whose packages each process imports when it starts,
        before its first request; a second process is then started, for checks
    """
    processes = _processes()
    processes.kinds = tuple(kinds)
    taken = [processes.take(None) for _ in range(MOST_IDLE if kinds else 1)]
    for process in taken:
        processes.put_back(process)


def _why_it_ended(status: int, limits: ComputeLimits) -> str:
    if status == -signal.SIGXCPU:
        return f"the job needs more than {limits.cpu_seconds} s of CPU time"
    how = f"signal {-status}" if status < 0 else f"status {status}"
    memory = f"its limit is {limits.memory_gib:g} GiB of memory"
    return f"the computation of the job ended with {how}; {memory}"


class _Process:
    """A process that answers one request at a time.

    :param kinds: kinds of jobs whose packages the process imports first
    """

    def __init__(self, kinds: Sequence[Kind] = ()) -> None:
        #: hashes of the latest payloads, which the process may have cached
        self.known: deque[int] = deque(maxlen=KNOWN)
        self._connection, child_end = Pipe()
        lifeline, self._lifeline = os.pipe()
        # single-threaded, since computations share the machine with the service
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self._popen = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=child_end.fileno(),
            stdout=lifeline,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **threads},
        )
        child_end.close()
        os.close(lifeline)
        # whether the reply to the request that imports packages is still to be received
        self._warming = bool(kinds)
        if kinds:
            messages.send(self._connection, Request("warm", {"kinds": [*kinds]}))

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    @property
    def status(self) -> int:
        return self._popen.wait()

    def ask(
        self, give_up: Callable[[], bool], request: Request, *texts: str
    ) -> tuple[Answer, str] | None:
        """Send a request, and return the reply; ``None`` if the request was given up.

        :raises EOFError: if the process ends before it replies
        """
        try:
            if self._warming:
                if self._receive(give_up) is None:
                    return None
                self._warming = False
            messages.send(self._connection, request, *texts)
            return self._receive(give_up)
        except ConnectionError as error:
            raise EOFError from error

    def _receive(self, give_up: Callable[[], bool]) -> tuple[Answer, str] | None:
        while not self._connection.poll(POLL_SECONDS):
            if give_up():
                return None
        return messages.receive(self._connection, Answer)

    def end(self) -> None:
        self._popen.kill()
        self._popen.wait()
        self._connection.close()
        os.close(self._lifeline)


class _Processes:
    """The idle processes, at most :data:`MOST_IDLE`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        #: see :func:`start`
        self.kinds: Sequence[Kind] = ()
        atexit.register(self.end)

    def take(self, about: int | None) -> _Process:
        """Take a process, preferably one that has read the payload with this hash."""
        with self._lock:
            self._idle.sort(key=lambda one: about in one.known)
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    return process
                process.end()
        return _Process(self.kinds)

    def put_back(self, process: _Process) -> None:
        with self._lock:
            if len(self._idle) < MOST_IDLE:
                self._idle.append(process)
                return
        process.end()

    def replace(self, process: _Process) -> None:
        """End a process, and start another for the next job unless one is idle."""
        process.end()
        if not self._idle:
            self.put_back(_Process(self.kinds))

    def end(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop().end()


@cache
def _processes() -> _Processes:
    return _Processes()
