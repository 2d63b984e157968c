"""The driver of a run: a separate process that checks the file, and then runs StreamFlow.

The check and the run both need StreamFlow, whose import takes longer than the check, so one
process does both. The driver reads its orders, to check a file and to run it, from a socket,
its standard input.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

from sf_quantum import structs
from sf_quantum.files import JSON
from sf_quantum.reporting.outputs import written_earlier
from sf_quantum.workflows.checks import CheckResult, check, refuse_problems

#: longest time for which a remaining thread of StreamFlow may delay the end of its process
END_SECONDS = 10.0
# Sizes for receiving an order: bytes per read, and descriptors of locks, which come with the
# first byte.
_READ_BYTES, _MAX_LOCKS = 4096, 8
_PR_SET_PDEATHSIG = 1  # prctl(2)


@dataclass(frozen=True)
class _CheckOrder:
    check: str


@dataclass(frozen=True)
class _RunOrder:
    """See :meth:`Driver.begin`."""

    arguments: list[str]
    environment: dict[str, str]
    log: str


@dataclass(frozen=True)
class Driver:
    """A driver's process, as its parent controls it.

    :param orders: socket whose other end is the standard input of the process
    """

    process: subprocess.Popen[bytes]
    orders: socket.socket

    def check(self, file: Path) -> CheckResult:
        """Let the driver's process check a file that is to be run.

        :raises ValidationErrors: if the file has problems; the error lists all of them
        """
        answer = b""
        with suppress(ConnectionError), self.orders.makefile("rb") as answers:
            self.orders.sendall(_encode_line(asdict(_CheckOrder(str(file)))))
            answer = answers.readline()
        if not answer:
            raise RuntimeError(f"{file}: the process that checks it has ended")
        result = json.loads(answer)
        if isinstance(result, str):
            raise RuntimeError(result)
        return refuse_problems(CheckResult(**result))

    def begin(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        locks: Sequence[int] = (),
    ) -> None:
        """Let the driver's process run StreamFlow with the arguments of its command.

        :param environment: environment variables in addition to the variables of this process
        :param log: file for the output of StreamFlow
        :param locks: descriptors that the driver keeps open until it ends
        """
        line = _encode_line(asdict(_RunOrder([*arguments], {**environment}, str(log))))
        # If the process has ended, its exit code shows that.
        with self.orders, suppress(ConnectionError):
            sent = socket.send_fds(self.orders, [line], locks)
            self.orders.sendall(line[sent:])

    def dismiss(self) -> None:
        """End a process that has not begun a run."""
        self.orders.close()
        self.process.kill()
        self.process.wait()


def begun() -> Driver:
    """Start a driver's process, which ends with this process."""
    # -P: modules in the current folder must not replace modules of Python
    return started([sys.executable, "-P", "-m", __name__])


def started(command: Sequence[str]) -> Driver:
    """Start a command as a driver's process, which ends with this process."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            command,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C then reaches only this process, which forwards it once.
            process_group=0,
            preexec_fn=_ends_with_parent(),
        )
    return Driver(process, ours)


def main() -> int:
    """Check a file and run StreamFlow, as the orders on the standard input request."""
    # During imports, garbage collection would free nothing, and take a fifth of the time.
    gc.disable()
    (command,) = entry_points(group="console_scripts", name="streamflow")
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as orders:
        # Standard input must not be a socket for programs that reopen /dev/stdin.
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), sys.stdin.fileno())
        order = _received(orders)
        if isinstance(order, _CheckOrder):
            orders.sendall(_encode_line(_check_file(order.check)))
            with suppress(Exception):  # it fails again below, with a log
                command.load()
            order = _received(orders)
    if not isinstance(order, _RunOrder):
        return 0
    with open(order.log, "wb") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    _protect(Path(order.log))
    load_tools_once()
    gc.freeze()
    gc.enable()
    os.environ.update(order.environment)
    sys.argv = ["streamflow", *order.arguments]
    return int(command.load()())


def _check_file(file: str) -> JSON:
    """Return the findings in a file or, as text, the error that prevents the check."""
    try:
        return asdict(check(file))
    except Exception:  # noqa: BLE001 - Driver.check raises it in the parent
        return traceback.format_exc()


def _received(orders: socket.socket) -> _CheckOrder | _RunOrder | None:
    """Return the next order; empty if the parent sends no more.

    The order's locks stay open in this process, but are closed in its child processes.
    """
    line, *_ = socket.recv_fds(orders, _READ_BYTES, _MAX_LOCKS, socket.MSG_CMSG_CLOEXEC)
    while line and not line.endswith(b"\n"):
        if not (more := orders.recv(_READ_BYTES)):
            return None
        line += more
    if not line:
        return None
    content = json.loads(line)
    if "check" in content:
        return structs.read(_CheckOrder, content)
    return structs.read(_RunOrder, content)


def _encode_line(content: JSON) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _protect(log: Path) -> None:
    """Keep the run from overwriting files next to its log that no earlier run has written."""
    from sf_quantum.connectors.streamflow_outputs import protect

    protect(log.parent.resolve(), written_earlier(log))


def load_tools_once() -> None:
    """Have each tool's file parsed only once when StreamFlow checks a workflow's links.

    The check in cwl-utils (0.42, ``load_step``) would otherwise parse the file again for each
    input and each output of each step.
    """
    from cwl_utils.parser import WorkflowStep, utils

    load, tools = utils.load_step, dict[str, Any]()

    def load_step(step: WorkflowStep) -> Any:
        if not isinstance(step.run, str):
            return load(step)
        options = step.loadingOptions
        url = options.fetcher.urljoin(str(options.fileuri), step.run)
        if url not in tools:
            tools[url] = load(step)
        return tools[url]

    utils.load_step = load_step


def end(status: int) -> NoReturn:
    """End this process with a status, even if other threads still wait.

    If StreamFlow 0.2.0rc3 is interrupted while it closes, or if a write fails (on a full
    disk), its database's thread keeps waiting for work. Python would wait for this thread
    without limit, and the run would be regarded as still running.
    """
    timer = threading.Timer(END_SECONDS, os._exit, [status])
    timer.daemon = True
    timer.start()
    sys.exit(status)


def _ends_with_parent() -> Callable[[], None]:
    """Return a function with which a child arranges to get SIGINT if its parent is killed."""
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()
    number = ctypes.c_ulong(signal.SIGINT)

    def bind() -> None:
        # A shell's background processes, and their children, ignore this signal.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # the parent was killed before prctl()
            os.kill(os.getpid(), signal.SIGINT)

    return bind


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    end(code)
