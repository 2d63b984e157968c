"""``sfq lease -- CMD``: run a command under a lease of each QPU it needs."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TypeAlias

from sf_quantum import qpu
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu import Qpu, account
from sf_quantum.qpu.leases import LeaseRequest, LeaseSet, WaitCancelled
from sf_quantum.qpu.offline import QpuLoss, QpuWatch, watching
from sf_quantum.qpu.selection import Selection

CLASSES = ("production", "test", "development")
PATTERNS = ("qc-heavy", "cc-heavy", "balanced")
# between SIGTERM at the time limit and SIGKILL, as Slurm's KillWait
GRACE_SECONDS = 30.0
FORWARDED = (
    *(signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT),
    *(signal.SIGINT, signal.SIGQUIT),
)
# a terminal sends these to the command as well
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
# asks what the leases were used for
_Settle: TypeAlias = Callable[[], list[account.LeaseUsage]]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = (
        "CMD finds its QPUs in its environment, in the dialect of QRMI's SPANK plugin. "
        "Exit status: CMD's, 128+n if signal n ended it; 75 if no lease came in time, or "
        "with --elsewhere a QPU is offline; 2 for bad input."
    )
    add_selection(parser)
    parser.add_argument("--class", dest="class_", choices=CLASSES, help="of the leases")
    parser.add_argument(
        "--project",
        metavar="NAME",
        help="whose share of the QPU they use, if not that of your first project",
    )
    parser.add_argument(
        "--expected-seconds",
        type=_seconds,
        metavar="S",
        help="a hint: how long CMD uses the QPU",
    )
    parser.add_argument(
        "--pattern", choices=PATTERNS, help="a hint: how CMD spends its time"
    )
    parser.add_argument(
        "--purpose",
        metavar="TEXT",
        help="what the leases are for, in the accounts (default: CMD's name)",
    )
    parser.add_argument(
        "--wait",
        type=_seconds,
        metavar="S",
        help="seconds to wait for the leases (default: as long as it takes, but no more "
        "than two minutes for a QPU that does not answer)",
    )
    parser.add_argument(
        "--elsewhere",
        action="store_true",
        help="CMD can also run elsewhere: end with 75 when a QPU goes offline, before "
        "CMD has its lease or while nothing of CMD runs there (without it: wait until "
        "the QPU is back)",
    )
    parser.add_argument(
        "--time-limit",
        type=_seconds,
        metavar="S",
        help="seconds after which CMD gets SIGTERM, and SIGKILL half a minute later",
    )
    parser.add_argument(
        "--held",
        action="store_true",
        help="take no leases: CMD uses those of the environment, which the batch "
        "system took and gives back",
    )
    parser.add_argument(
        "--account",
        metavar="FILE",
        help="when CMD has ended, append a line of JSON with the QPU jobs it had",
    )
    parser.add_argument(
        "cmd",
        nargs="+",
        metavar="CMD",
        help="the command, after --, with its arguments",
    )


def _seconds(text: str) -> float:
    # sf_quantum.cli.arguments has the like, and brings numpy with it
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: a number of seconds expected")
    return value


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which QPUs are meant."""
    parser.add_argument(
        "--qpu",
        action="append",
        default=[],
        metavar="NAME",
        help="a QPU of the environment or of the QRMI configuration; more than one "
        "with commas or again (default: those that the environment names)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--qrmi-config", metavar="FILE", help="a site's qrmi_config.json"
    )
    where.add_argument(
        "--url",
        help="a QPU service: unix:/path.sock, http://127.0.0.1:PORT, https://...",
    )
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "--token-file",
        metavar="FILE",
        help="the bearer token that the service asks for",
    )
    who.add_argument(
        "--munge",
        nargs="?",
        const=True,
        metavar="SOCKET",
        help="send MUNGE credentials, of the munged at SOCKET",
    )


def selection(args: argparse.Namespace, **leases: str | None) -> Selection:
    """Read the options that say which QPUs are meant.

    :param leases: what leases to be taken are asked for with
    """
    token_file = args.token_file and str(Path(args.token_file).absolute())
    return Selection(
        [name for words in args.qpu for name in words.split(",") if name],
        args.url,
        {"tokenFile": token_file, "munge": args.munge, **leases},
        args.qrmi_config,
    )


def run(args: argparse.Namespace) -> int:
    """Run the command.

    :returns: its exit status
    :raises InputError: if an option is wrong
    :raises QpuError: if there is no lease
    """
    logging.basicConfig(format="sfq lease: %(message)s", stream=sys.stderr)
    if args.held:
        _check_held(args)
    if args.account is not None:
        _append(args.account, "")  # before a lease is taken for nothing
    command = _Command(args.cmd, args.time_limit)
    with command.signals():
        settle = (_run_held if args.held else _run_leased)(args, command)
        if args.account is not None:
            ran = account.CommandRun(command.status, settle(), command.waited)
            try:
                _append(args.account, f"{account.dumps(ran)}\n")
            except InputError as error:  # the command's own end matters more
                _say(str(error))
    command.tell()
    return command.status


def _check_held(args: argparse.Namespace) -> None:
    for option in (
        *("url", "qrmi_config", "token_file", "munge", "class_", "wait"),
        *("expected_seconds", "pattern", "purpose"),
    ):
        if getattr(args, option) is not None:
            word = option.strip("_").replace("_", "-")
            raise InputError(f"--{word}: not with --held, which takes no lease")


def _run_held(args: argparse.Namespace, command: _Command) -> _Settle:
    """Run the command under the leases that there are."""
    names = account.named(selection(args).names, os.environ)
    held = account.leases_of(names, os.environ) if args.elsewhere else []
    watches = [
        QpuWatch(client, partial(_jobs, client, token)) for client, token in held
    ]
    with watching(watches, command.leave):
        command.run(os.environ)
    return partial(account.usage_of_environment, names, os.environ)


def _run_leased(args: argparse.Namespace, command: _Command) -> _Settle:
    """Run the command under leases of its own, which are given back by the end."""
    options = {"class": args.class_, "project": args.project}
    qpus = selection(args, **options).qpus(os.environ)
    for client in qpus:
        if (problem := client.problem()) is not None:
            raise InputError(f"QPU {client.name!r}: {problem}")
    with LeaseSet(qpus, _waits) as leases:
        request = LeaseRequest(
            _purpose(args, qpus), wait_seconds=args.wait, hints=_hints(args)
        )
        watched = qpus if args.elsewhere else []
        watches = [QpuWatch(client, partial(leases.jobs, client)) for client in watched]
        with watching(watches, command.leave), suppress(WaitCancelled):
            began = time.monotonic()
            _acquire(leases, request, command.unwanted)
            command.waited = time.monotonic() - began
            command.run({**os.environ, **_environment(leases)})
        return partial(account.usage, leases.tokens())


def _jobs(client: Qpu, token: str) -> list[dict[str, JSON]]:
    return client.jobs(token) or []


def _purpose(args: argparse.Namespace, qpus: Sequence[Qpu]) -> str:
    told = (os.environ.get(f"{client.name}_SFQ_PURPOSE") for client in qpus)
    given: str | None = args.purpose
    return given or next(filter(None, told), Path(args.cmd[0]).name)


def _hints(args: argparse.Namespace) -> dict[str, JSON]:
    told = {"expectedSeconds": args.expected_seconds, "pattern": args.pattern}
    return {key: value for key, value in told.items() if value is not None}


def _append(path: str, text: str) -> None:
    """Add to the account.

    :raises InputError: if that cannot be done
    """
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"--account {path}: {error.strerror}") from error


class _Command:
    """The command, before it runs, while it runs, and how it ended."""

    def __init__(self, words: Sequence[str], time_limit: float | None) -> None:
        self._words = list(words)
        self._time_limit = time_limit
        self._process: subprocess.Popen[bytes] | None = None
        self.unwanted = threading.Event()
        self._loss: QpuLoss | None = None
        self.status = 0
        # seconds for its leases
        self.waited = 0.0

    def run(self, environment: Mapping[str, str]) -> None:
        """Run it to its end, or to its time limit; its status is as a shell says it."""
        if self.unwanted.is_set():
            return
        try:
            self._process = subprocess.Popen(
                self._words, env=environment, preexec_fn=_killed_with_us()
            )
        except OSError as error:
            found = not isinstance(error, FileNotFoundError)
            _say(f"{self._words[0]}: {(error.strerror or str(error)).lower()}")
            self.status = 126 if found else 127
            return
        if self.unwanted.is_set():  # in the moment between
            self._process.send_signal(
                signal.SIGTERM if self._loss else self.status - 128
            )
        code = self._wait(self._process)
        self.status = 128 - code if code < 0 else code
        if self._loss and code != 0:
            self.status = QpuError.exit_code

    def leave(self, loss: QpuLoss) -> None:
        """End it, since it can run elsewhere; called in another thread."""
        self._loss = loss
        if self._process is None:
            self.status = QpuError.exit_code
        self.unwanted.set()
        if self._process is not None:
            _end(self._process)

    def tell(self) -> None:
        """Say why it was ended, after all that it said itself."""
        if self._loss and self.status == QpuError.exit_code:
            why = self._loss.detail or "no reason given"
            _say(
                f"QPU {self._loss.qpu} is offline: {why}; left, since the command can "
                "run elsewhere"
            )

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(self._time_limit)
        except subprocess.TimeoutExpired:
            _say(f"time limit of {self._time_limit:g} s reached, SIGTERM sent")
        _end(process)
        return process.wait()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Hand signals on to the command; before it runs, take them as its end."""
        previous = {
            number: signal.signal(number, self._got)
            for number in FORWARDED
            if signal.getsignal(number) is not signal.SIG_IGN  # nohup
        }
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _got(self, number: int, _: FrameType | None) -> None:
        if self._process is None:
            if number in ENDING:
                self.status = 128 + number
                self.unwanted.set()
        elif number not in FROM_TERMINAL or not _in_foreground():
            self._process.send_signal(number)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _killed_with_us() -> Callable[[], None] | None:
    """What has Linux kill the command with us: of SIGKILL we could not tell it."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl, us = ctypes.CDLL(None).prctl, os.getpid()
    words = PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)

    def bind() -> None:
        # after fork() in a process with threads: nothing that waits for one of them
        prctl(*words)
        if os.getppid() != us:  # killed before the kernel knew
            os.kill(os.getpid(), signal.SIGKILL)

    return bind


def _acquire(
    leases: LeaseSet, request: LeaseRequest, unwanted: threading.Event
) -> None:
    """Take the leases in a thread, so that no lease is lost to a signal in between."""
    failed: list[Exception] = []

    def acquire() -> None:
        try:
            leases.acquire(request, unwanted)
        except Exception as error:  # noqa: BLE001 - raised below, in the main thread
            failed.append(error)

    thread = threading.Thread(target=acquire)
    thread.start()
    thread.join()  # signal handlers run meanwhile
    if failed:
        raise failed[0]


def _environment(leases: LeaseSet) -> dict[str, str]:
    known = (os.environ.get(key) for key in ("QRMI_JOB_ID", "SLURM_JOB_ID"))
    return {
        **qpu.environment(leases.tokens()),
        "QRMI_JOB_UID": str(os.getuid()),
        "QRMI_JOB_ID": next((word for word in known if word), str(os.getpid())),
    }


def _waits(client: Qpu, reason: QpuError) -> None:
    about = ""
    with suppress(Exception):  # the line is a courtesy
        eta = client.status().eta_seconds
        about = f", whose jobs take about {eta:.0f} s" if eta is not None else ""
    _say(f"waiting for a lease of QPU {client.name}{about} ({reason})")


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _say(text: str) -> None:
    print(f"sfq lease: {' '.join(text.split())}", file=sys.stderr, flush=True)
