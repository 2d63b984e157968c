"""A command under leases: its start, its signals, and its end if it loses its QPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from sf_quantum.errors import InputError, QpuError
from sf_quantum.qpu.leasing.held_leases import LeaseProblem, QpuLoss

# Pause between SIGTERM at the time limit and SIGKILL, like Slurm's KillWait.
GRACE_SECONDS = 30.0
# A terminal also sends these signals to the command.
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
ENDING = (signal.SIGTERM, signal.SIGHUP, *FROM_TERMINAL)
FORWARDED = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class Command:
    """The command, from the wait for its leases to its exit status.

    :param report: function that prints a line for the user about the command's end
    """

    def __init__(
        self,
        words: Sequence[str],
        time_limit: float | None,
        report: Callable[[str], None],
    ) -> None:
        self._words = list(words)
        self._time_limit = time_limit
        self._report = report
        self._process: subprocess.Popen[bytes] | None = None
        self._loss: QpuLoss | None = None
        #: set once the command must not start
        self.unwanted = threading.Event()
        #: set by a signal that ends the wait for leases and the command
        self.interrupted = threading.Event()
        self.status = 0
        #: seconds that the command waited for its leases
        self.waited_seconds = 0.0

    def run(self, environment: Mapping[str, str]) -> None:
        """Run the command until its end or time limit, and set a shell's exit status."""
        if self.unwanted.is_set():
            return
        try:
            self._process = subprocess.Popen(
                self._words, env=environment, preexec_fn=_killed_with_parent()
            )
        except OSError as error:
            self._report(f"{self._words[0]}: {(error.strerror or str(error)).lower()}")
            self.status = 127 if isinstance(error, FileNotFoundError) else 126
            return
        if self.unwanted.is_set():  # set while the command was being started
            self._process.send_signal(
                signal.SIGTERM if self._loss else self.status - 128
            )
        try:
            code = self._process.wait(self._time_limit)
        except subprocess.TimeoutExpired:
            self._report(f"time limit of {self._time_limit:g} s reached, SIGTERM sent")
            _terminate(self._process)
            code = self._process.wait()
        self.status = 128 - code if code < 0 else code
        if self._loss and code != 0:
            self.status = _exit_code(self._loss)

    def attribute_failure(self, checks: Iterable[Callable[[], QpuLoss | None]]) -> None:
        """Check whether a failed command had lost its QPU before a watch noticed the loss."""
        if self.status == 0 or self.unwanted.is_set():
            return
        self._loss = next(filter(None, (check() for check in checks)), None)
        if self._loss is not None:
            self.status = _exit_code(self._loss)

    def leave(self, loss: QpuLoss) -> None:
        """Terminate the command because of a QPU's loss; called in another thread."""
        self._loss = loss
        if self._process is None:
            self.status = _exit_code(loss)
        self.unwanted.set()
        if self._process is not None:
            _terminate(self._process)

    def report_loss(self) -> None:
        """Print why the command was terminated, after its own output."""
        if self._loss is None or self.status != _exit_code(self._loss):
            return
        if self.refusal is not None:
            self._report(self.refusal)
        else:
            why = self._loss.detail or "no reason given"
            self._report(
                f"QPU {self._loss.qpu} is offline: {why}; the command can run elsewhere"
            )

    @property
    def refusal(self) -> str | None:
        """The QPU's message if it rejected the user while the command had its leases."""
        refused = self._loss and self._loss.problem is LeaseProblem.REFUSED
        return self._loss.detail if self._loss and refused else None

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Forward signals to the command; while it waits for leases, end the wait."""
        previous = {
            number: signal.signal(number, self._handle)
            for number in FORWARDED
            if signal.getsignal(number) is not signal.SIG_IGN  # ignored under nohup
        }
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if number in ENDING:
            self.interrupted.set()
        if self._process is None or self._process.returncode is not None:
            if number in ENDING:
                self.status = 128 + number
                self.unwanted.set()
        elif number not in FROM_TERMINAL or not _in_foreground():
            self._process.send_signal(number)


def _exit_code(loss: QpuLoss) -> int:
    refused = loss.problem is LeaseProblem.REFUSED
    return (InputError if refused else QpuError).exit_code


def _terminate(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _killed_with_parent() -> Callable[[], None] | None:
    """Return a hook that kills the child when this process dies, even from SIGKILL."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()
    kill = ctypes.c_ulong(signal.SIGKILL)

    def bind() -> None:
        # runs after fork() in a process with threads: it must not take any lock
        prctl(PR_SET_PDEATHSIG, kill)
        if os.getppid() != parent:  # the parent died before the call took effect
            os.kill(os.getpid(), signal.SIGKILL)

    return bind


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
