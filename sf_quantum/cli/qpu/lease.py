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

PATTERNS = ("qc-heavy", "cc-heavy", "balanced")
#: requests the usage of the leases
Usage: TypeAlias = Callable[[], list[LeaseUsage]]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "CMD finds its QPUs in environment variables, those of QRMI's SPANK plugin. "
        "Exit status: CMD's, 128+n if signal n ended it; 75 if no lease was granted in "
        "time, or with --elsewhere a QPU is offline; 2 for bad input, or if a QPU "
        "refuses its user, also while CMD runs, which is then terminated."
    )
    add_selection(parser)
    add = parser.add_argument
    add("--class", dest="class_", choices=CLASSES, help="class of the leases")
    add(
        "--project",
        metavar="NAME",
        help="whose share of the QPU is used (default: that of your first project)",
    )
    add(
        "--expected-seconds",
        type=seconds,
        metavar="S",
        help="a hint: seconds on the QPU that CMD will use, without waits",
    )
    add("--pattern", choices=PATTERNS, help="a hint: how CMD spends its time")
    add(
        "--latest-start",
        type=future_time,
        metavar="WHEN",
        help="have no lease later, but end with 75: immediately if a QPU reports that none "
        f"will be granted by then; {WHEN} a duration from now: 90s, 30m, 2h, 7d",
    )
    add(
        "--priority",
        type=whole,
        metavar="N",
        help="rank among the requests of the class that wait, the highest first; a QPU "
        "refuses more than it allows its user (default: 0)",
    )
    add(
        "--reservation",
        metavar="NAME",
        help="a reservation of the QPU in its vendor's words, such as timeslot of IQM, within "
        "which the lease is granted; refused by QPUs without it",
    )
    add_bounds(parser)
    add(
        "--purpose",
        metavar="TEXT",
        help="what the leases are for, in usage reports (default: CMD's name)",
    )
    add(
        "--wait",
        type=seconds,
        metavar="S",
        help="seconds to wait for the leases (default: as long as it takes, but no more "
        "than two minutes for a QPU that does not answer)",
    )
    add(
        "--elsewhere",
        action="store_true",
        help="CMD can also run elsewhere: end with 75 if a QPU goes offline while CMD "
        "waits for its lease or has no job running there (without it: wait until the "
        "QPU is back)",
    )
    add(
        "--time-limit",
        type=seconds,
        metavar="S",
        help="seconds after which CMD gets SIGTERM, and SIGKILL half a minute later",
    )
    add(
        "--held",
        action="store_true",
        help="acquire no leases: CMD uses the leases in its environment, which the "
        "batch system acquires and releases; if it has none, and a QPU is selected, the "
        "lease that the gate of sfq slurm, flux or pbs holds for its job",
    )
    add(
        "--clients",
        action="store_true",
        help="the clients of SDKs in CMD find the QPU by their own variables: Ocean's an "
        "annealer, IQM's and QRMI's a superconducting QPU, QRMI's one of neutral atoms "
        "(of the type sfq)",
    )
    add(
        "--shrink-to",
        type=positive,
        metavar="N",
        help="in a Slurm job: give back all nodes but N before the wait for the leases, "
        "and get nodes again when CMD has ended; sfq-nodes-JOB/environment.sh then tells "
        "a shell of its nodes",
    )
    add(
        "--regrow-to",
        type=positive,
        metavar="N",
        help="nodes to have when CMD has ended (default: those of the job's start)",
    )
    add(
        "--patience",
        type=seconds,
        metavar="S",
        help="seconds to wait for these, then go on with those that are free (default: as "
        "long as it takes)",
    )
    add(
        "--account",
        metavar="FILE",
        help="append a line of JSON with CMD's QPU jobs when CMD has ended",
    )
    add(
        "cmd",
        nargs="+",
        metavar="CMD",
        help="the command, after --, with its arguments",
    )


def add_bounds(parser: argparse.ArgumentParser) -> None:
    """Add the options that bound the jobs of a lease."""
    add = parser.add_argument
    add(
        "--max-qpu-seconds",
        type=checked(float, "a number of seconds above 0", lambda s: 0 < s < math.inf),
        metavar="S",
        help="a bound: seconds on the QPU that the jobs of a lease may take together",
    )
    add("--max-shots", type=positive, metavar="N", help="a bound: shots of each job")
    add(
        "--max-qubits",
        type=positive,
        metavar="N",
        help="a bound: qubits, variables, atoms or modes of each job",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command, and return its exit status."""
    logging.basicConfig(format="sfq lease: %(message)s", stream=sys.stderr)
    if args.held:
        _check_held(args)
    if args.account is not None:
        _append(args.account, "")  # fail before a lease is acquired
    for option in ("regrow_to", "patience"):
        if args.shrink_to is None and getattr(args, option) is not None:
            raise InputError(f"--{option.replace('_', '-')}: only with --shrink-to")
    command = Command(args.cmd, args.time_limit, _print)
    with command.signals(), _shrunk(args, command):
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
def _shrunk(args: argparse.Namespace, command: Command) -> Iterator[None]:
    """Release nodes of the Slurm job during the block, if ``--shrink-to`` is given."""
    keep = args.shrink_to
    job = malleable(os.environ, keep, args.regrow_to, _print) if keep else None
    if job is not None:
        give_back(job, keep)
    try:
        yield
    finally:
        # The job grows even if there was no lease, since the caller may continue without the
        # QPU.
        if job is not None and not command.interrupted.is_set():
            job.grow(args.patience, command.interrupted)


def _check_held(args: argparse.Namespace) -> None:
    for option in (
        "class_ project wait expected_seconds pattern latest_start priority reservation "
        "max_qpu_seconds max_shots max_qubits purpose"
    ).split():
        if getattr(args, option) is not None:
            name = option.strip("_").replace("_", "-")
            raise InputError(f"--{name}: not with --held, which acquires no lease")


def _run_held(args: argparse.Namespace, command: Command) -> Usage:
    """Run the command under the leases of the environment."""
    environment = _held_environment(args)
    names = account.named(selection(args).names, environment)
    leases = account.leases_of(names, environment)
    _check_not_ended(leases)
    watched = leases if args.elsewhere else []
    checks = [
        QpuMonitor(client, partial(_jobs, client, token)).check
        for client, token in watched
    ]
    with monitoring(checks, command.leave), _clients(args, environment) as variables:
        command.run({**environment, **variables})
        command.attribute_failure(checks)
    return lambda: account.usage(account.leases_of(names, environment), names)


def _held_environment(args: argparse.Namespace) -> dict[str, str]:
    """Return the environment, with the lease of the batch job if it contains no lease."""
    environment = dict(os.environ)
    if listed(environment, RESOURCES) is None and (args.url or args.qrmi_config):
        environment |= held_environment(selection(args).qpus({}), environment)
    return environment


def _check_not_ended(leases: Iterable[tuple[Qpu, str]]) -> None:
    """Fail before the command starts, not at its first QPU job, if a lease has ended."""
    for client, token in leases:
        try:
            client.renew(token)
        except LeaseLost:
            raise
        except QpuError:
            # The clients of the command wait for a QPU that does not answer.
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
        watched = qpus if args.elsewhere else []
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
            with _clients(args, environment) as variables:
                command.run({**environment, **variables})
                command.attribute_failure(checks)
        return partial(account.usage, leases.tokens())


@contextmanager
def _clients(
    args: argparse.Namespace, environment: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """Yield the variables of SDKs' own clients, and serve these clients meanwhile."""
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
    """Reject an SDK's address if its client would wait for the command's own lease."""
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
    way_out = "; no limit, --wait S sets one" if math.isinf(left) else ""
    _print(f"{opening.waiting(client, reason, left)}{way_out}")


def _write_account(path: str | None, ran: CommandRun) -> None:
    try:
        if path is not None:
            _append(path, f"{account.dumps(ran)}\n")
    except QuantumError as error:  # the command's exit status matters more
        _print(str(error))


def _append(path: str, text: str) -> None:
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise cannot_write(Path(path), error) from error


def _print(text: str) -> None:
    print(f"sfq lease: {one_line(text)}", file=sys.stderr, flush=True)
