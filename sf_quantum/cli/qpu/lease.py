"""``sfq lease -- CMD``: run a command under a lease of each QPU it needs."""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

from sf_quantum.cli.arguments import checked, positive, seconds, whole
from sf_quantum.cli.qpu.service import WHEN, add_selection, future_time, selection
from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.files import cannot_write
from sf_quantum.malleability import give_back, malleable
from sf_quantum.protocol.leases import CLASSES
from sf_quantum.protocol.tasks import LeaseJob, LeaseLost
from sf_quantum.qpu import AuthenticationError, NoLease, Qpu, opening
from sf_quantum.qpu.environment import (
    RESOURCES,
    from_environment,
    job_environment,
    job_ids,
    listed,
)
from sf_quantum.qpu.leasing import account
from sf_quantum.qpu.leasing.account import CommandRun, LeaseUsage
from sf_quantum.qpu.leasing.gating.in_job import held_environment
from sf_quantum.qpu.leasing.held_leases import (
    LeaseSet,
    QpuMonitor,
    WaitCancelled,
    monitoring,
)
from sf_quantum.qpu.leasing.supervision import Command
from sf_quantum.qpu.opening import LeaseOptions
from sf_quantum.qpu.sdks import stock_clients
from sf_quantum.qpu.sfq import service_variables
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.text import one_line
from sf_quantum.threads import in_thread

# values of --pattern
PATTERNS = ("qc-heavy", "cc-heavy", "balanced")
#: function that requests the usage of the leases
Usage: TypeAlias = Callable[[], list[LeaseUsage]]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "CMD finds its QPUs in environment variables, the same as those of QRMI's SPANK "
        "plugin. Exit status: that of CMD, or 128+n if signal n ended CMD; 75 if no lease "
        "was granted in time, or if a QPU is offline and --exit-if-offline is given; 2 for "
        "bad input, or if a QPU refuses its user. If a QPU refuses its user while CMD runs, "
        "CMD is terminated."
    )
    add_selection(parser)
    add = parser.add_argument
    add(
        "--class",
        dest="class_",
        choices=CLASSES,
        help="request leases of this class; jobs of higher classes run first (default: that "
        "of the Slurm partition, else the service's default class)",
    )
    add(
        "--project",
        metavar="NAME",
        help="charge the QPU usage to this project of yours; with shares, its usage so far "
        "decides how soon the jobs run (default: your project with the name of the Slurm "
        "account, else your first project)",
    )
    add(
        "--expected-seconds",
        type=seconds,
        metavar="S",
        help="a hint for scheduling: QPU seconds that CMD will use, without waits",
    )
    add(
        "--pattern",
        choices=PATTERNS,
        help="a hint for scheduling: whether CMD spends most of its time on the QPU "
        "(qc-heavy), off the QPU (cc-heavy), or neither (balanced)",
    )
    add(
        "--latest-start",
        type=future_time,
        metavar="WHEN",
        help="give up, with exit status 75, if the leases are not granted by this time; "
        "immediately if a QPU reports that it cannot grant one by then; "
        f"{WHEN} a duration from now: 90s, 30m, 2h, 7d",
    )
    add(
        "--priority",
        type=whole,
        metavar="N",
        help="among waiting requests of the same class, those with higher numbers are "
        "granted first; each user has a maximum, and a higher number is refused "
        "(default: 0)",
    )
    add(
        "--reservation",
        metavar="NAME",
        help="wait for a lease within a reservation of the QPU, by its vendor's name, such "
        "as timeslot (IQM); refused by QPUs without reservations",
    )
    add_bounds(parser)
    add(
        "--purpose",
        metavar="TEXT",
        help="purpose of the leases, for usage reports (default: CMD's name)",
    )
    add(
        "--wait",
        type=seconds,
        metavar="S",
        help="wait at most this long for the leases, in seconds (default: without limit, "
        "but no more than two minutes for a QPU that does not answer)",
    )
    add(
        "--exit-if-offline",
        action="store_true",
        help="terminate CMD and exit with status 75 if a QPU goes offline while CMD waits for "
        "its lease, or runs but has no job on the QPU; for callers that can run CMD without "
        "the QPU (default: wait until the QPU is online again)",
    )
    add(
        "--time-limit",
        type=seconds,
        metavar="S",
        help="send CMD SIGTERM after this many seconds, and SIGKILL half a minute later",
    )
    add(
        "--held",
        action="store_true",
        help="acquire no leases, but use those that the batch system holds for this job: "
        "the leases in the environment; if there are none and a QPU is selected, the "
        "lease that the gate (sfq slurm gate, also of flux and pbs) has acquired",
    )
    add(
        "--clients",
        action="store_true",
        help="also set the variables that the SDKs' own clients read, so that programs with "
        "Ocean, IQM's client or QRMI find the QPU unchanged; only for a QPU of type sfq",
    )
    add(
        "--shrink-to",
        type=positive,
        metavar="N",
        help="in a Slurm job: keep only N of its nodes while CMD waits for its leases and "
        "runs, and get nodes again afterwards; a shell then reads its nodes from "
        "sfq-nodes-JOB/environment.sh",
    )
    add(
        "--regrow-to",
        type=positive,
        metavar="N",
        help="with --shrink-to: number of nodes after CMD (default: as at the job's start)",
    )
    add(
        "--regrow-wait",
        type=seconds,
        metavar="S",
        help="with --shrink-to: wait at most this long for nodes after CMD, in seconds, "
        "then continue with the nodes that are free (default: without limit)",
    )
    add(
        "--account",
        metavar="FILE",
        help="when CMD has ended, append its QPU jobs to this file, as a line of JSON",
    )
    add(
        "cmd",
        nargs="+",
        metavar="CMD",
        help="the command, after --, with its arguments",
    )


def add_bounds(parser: argparse.ArgumentParser) -> None:
    """Add the options that limit the jobs of a lease."""
    add = parser.add_argument
    add(
        "--max-qpu-seconds",
        type=checked(float, "a number of seconds above 0", lambda s: 0 < s < math.inf),
        metavar="S",
        help="limit of each lease: QPU seconds that its jobs may use together",
    )
    add(
        "--max-shots",
        type=positive,
        metavar="N",
        help="limit of each lease: shots of a job",
    )
    add(
        "--max-qubits",
        type=positive,
        metavar="N",
        help="limit of each lease: qubits, variables, atoms or modes of a job",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command, and return its exit status."""
    logging.basicConfig(format="sfq lease: %(message)s", stream=sys.stderr)
    if args.held:
        _check_held(args)
    if args.account is not None:
        _append(args.account, "")  # fail before a lease is acquired
    for option in ("regrow_to", "regrow_wait"):
        if args.shrink_to is None and getattr(args, option) is not None:
            raise InputError(f"--{option.replace('_', '-')}: only with --shrink-to")
    command = Command(args.cmd, args.time_limit, _print)
    with command.signals(), _shrink_job(args, command):
        try:
            usage = (_run_held if args.held else _run_leased)(args, command)
        except AuthenticationError as error:
            refused = CommandRun(error.exit_code, [], refusal=str(error))
            _write_account(args.account, refused)
            raise
        except NoLease as error:
            waited_out = CommandRun(error.exit_code, [], waited_out=True)
            _write_account(args.account, waited_out)
            raise
        ran = CommandRun(command.status, [], command.waited_seconds, command.refusal)
        if args.account is not None:
            _write_account(args.account, replace(ran, leases=usage()))
    command.report_loss()
    return command.status


@contextmanager
def _shrink_job(args: argparse.Namespace, command: Command) -> Iterator[None]:
    """Give back nodes of the Slurm job during the block, if ``--shrink-to`` is given."""
    keep = args.shrink_to
    job = malleable(os.environ, keep, args.regrow_to, _print) if keep else None
    if job is not None:
        give_back(job, keep)
    try:
        yield
    finally:
        # The job regains nodes even if no lease was granted, since the caller may continue
        # without the QPU.
        if job is not None and not command.interrupted.is_set():
            job.grow(args.regrow_wait, command.interrupted)


def _check_held(args: argparse.Namespace) -> None:
    for option in (
        "class_ project wait expected_seconds pattern latest_start priority reservation "
        "max_qpu_seconds max_shots max_qubits purpose"
    ).split():
        if getattr(args, option) is not None:
            name = option.strip("_").replace("_", "-")
            raise InputError(f"--{name}: not with --held, which acquires no lease")


def _run_held(args: argparse.Namespace, command: Command) -> Usage:
    """Run the command under the leases in its environment."""
    environment = _held_environment(args)
    names = account.named(selection(args).names, environment)
    leases = account.leases_of(names, environment)
    _check_not_ended(leases)
    watched = leases if args.exit_if_offline else []
    checks = [
        QpuMonitor(client, partial(_jobs, client, token)).check
        for client, token in watched
    ]
    with (
        monitoring(checks, command.leave),
        _sdk_variables(args, environment) as variables,
    ):
        command.run({**environment, **variables})
        command.attribute_failure(checks)
    return lambda: account.usage(account.leases_of(names, environment), names)


def _held_environment(args: argparse.Namespace) -> dict[str, str]:
    """Return the environment; if it has no lease, add the lease that a gate holds."""
    environment = dict(os.environ)
    if listed(environment, RESOURCES) is None and (args.url or args.qrmi_config):
        environment |= held_environment(selection(args).qpus({}), environment)
    return environment


def _check_not_ended(leases: Iterable[tuple[Qpu, str]]) -> None:
    """Check that no lease has ended; otherwise the command's first QPU job would fail."""
    for client, token in leases:
        try:
            client.renew(token)
        except LeaseLost:
            raise
        except QpuError:
            # If a QPU does not answer, the command's clients wait for it.
            continue


def _jobs(client: Qpu, token: str) -> Collection[LeaseJob]:
    return client.jobs(token) or ()


def _run_leased(args: argparse.Namespace, command: Command) -> Usage:
    """Acquire leases, run the command under them, and release them when it ends."""
    options = {"class": args.class_, "project": args.project}
    qpus = selection(args, **options).qpus(os.environ)
    lease_options = cast("LeaseOptions", {**vars(args), "wait_seconds": args.wait})
    opening.check_leasable(qpus, lease_options)
    with LeaseSet(qpus, _announce_wait) as leases:
        watched = qpus if args.exit_if_offline else []
        watches = [
            QpuMonitor(client, partial(leases.jobs, client)) for client in watched
        ]
        checks = [leases.refusal, *(watch.check for watch in watches)]
        with monitoring(checks, command.leave), suppress(WaitCancelled):
            # A thread acquires the leases, so that no lease is lost to a signal at the
            # wrong moment; signal handlers run in the main thread meanwhile.
            request = opening.request(qpus, lease_options, Path(args.cmd[0]).name)
            in_thread(lambda: leases.acquire(request, command.unwanted)).result()
            command.waited_seconds = leases.waited_seconds
            environment = {
                **os.environ,
                **job_environment(leases.tokens()),
                **job_ids(str(os.getpid())),
            }
            with _sdk_variables(args, environment) as variables:
                command.run({**environment, **variables})
                command.attribute_failure(checks)
        return partial(account.usage, leases.tokens())


@contextmanager
def _sdk_variables(
    args: argparse.Namespace, environment: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """Yield variables for the clients of vendors' SDKs; serve the clients during the block."""
    client = from_environment(environment) if args.clients else None
    if client is None:
        _check_addresses(environment)
        yield {}
    elif isinstance(client, SfqQpu):
        with stock_clients.variables(client, client.status(), environment) as variables:
            yield variables
    else:
        raise InputError(
            f"--clients: QPU {client.name!r} has the type {client.type}, whose own "
            "variables its clients read; this is for the type sfq"
        )


def _check_addresses(environment: Mapping[str, str]) -> None:
    """Reject a variable that would make an SDK's client wait for this command's lease."""
    addresses = {key: environment.get(key, "") for key in stock_clients.ADDRESSES}
    for name in listed(environment, RESOURCES) or []:
        url = environment.get(f"{name}_{service_variables.URL}", "")
        for key, address in addresses.items():
            if not url or not stock_clients.is_at(url, address):
                continue
            if SfqQpu.from_environment(name, environment).status().vqpus == 1:
                remedy = "add --clients, and leave the variable to it"
                raise InputError(stock_clients.unleased(key, name, remedy))


def _announce_wait(client: Qpu, reason: QpuError, left: float) -> None:
    advice = "; no limit, --wait S sets one" if math.isinf(left) else ""
    _print(f"{opening.waiting(client, reason, left)}{advice}")


def _write_account(path: str | None, ran: CommandRun) -> None:
    try:
        if path is not None:
            _append(path, f"{account.dumps(ran)}\n")
    except QuantumError as error:  # not raised, to keep the command's exit status
        _print(str(error))


def _append(path: str, text: str) -> None:
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise cannot_write(Path(path), error) from error


def _print(text: str) -> None:
    print(f"sfq lease: {one_line(text)}", file=sys.stderr, flush=True)
