"""Options, clients and the lock that the daemons of a site's batch system share."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from sf_quantum.cli.arguments import checked, seconds, sentence
from sf_quantum.cli.qpu import service
from sf_quantum.errors import InputError, QpuError
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.leasing.batch_jobs import BatchJob, lease_request
from sf_quantum.qpu.leasing.burst import watch
from sf_quantum.qpu.leasing.burst.classes import ClassRule, class_of
from sf_quantum.qpu.leasing.burst.folder import Folder
from sf_quantum.qpu.leasing.gating.gate import POLL_SECONDS, Gate, logger
from sf_quantum.qpu.leasing.gating.scheduler import Scheduler
from sf_quantum.qpu.leasing.held_leases import AcquireOptions
from sf_quantum.qpu.leasing.qpu_limits import QpuLimits
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.text import unknown


def add_gate(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    make_scheduler: Callable[[], Scheduler],
) -> None:
    """Add a batch system's subcommand ``gate``, which releases held jobs with a lease."""
    help_ = "release held jobs once they have a lease"
    gate = actions.add_parser("gate", help=help_, description=sentence(help_))
    service.add_selection(gate)
    gate.add_argument(
        "--state",
        required=True,
        type=Path,
        metavar="DIR",
        help="folder that the gate locks, so that only one gate runs",
    )
    add_limits(gate)
    add_classes(gate)
    gate.set_defaults(action=lambda args: run_gate(args, make_scheduler), parser=gate)


def run(args: argparse.Namespace) -> int:
    """Run the action that the options select, such as the gate of :func:`add_gate`."""
    # Batch systems and service managers end a process with SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    args.action(args)
    return 0


def run_gate(
    args: argparse.Namespace, make_scheduler: Callable[[], Scheduler]
) -> NoReturn:
    """Run a gate; first wait until the batch system replies."""
    with alone(args):
        while True:
            try:
                scheduler = make_scheduler()
                break
            except QpuError as error:
                logger.warning("%s", error)
                time.sleep(POLL_SECONDS)
        make_gate(args, scheduler).run()


def add_classes(parser: argparse.ArgumentParser) -> None:
    """Add the option with the rules for the class of a job's lease."""
    parser.add_argument(
        "--class-of",
        type=checked(ClassRule.parse, "such as qos:urgent=production"),
        action="append",
        default=[],
        metavar="RULE",
        help="how the class of a lease follows from the job: qos:NAME=CLASS, "
        "partition:NAME=CLASS, or priority:N=CLASS for priorities of at least N; the "
        "first rule that matches the job applies",
    )


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options that limit how long and how many jobs hold or request a QPU's lease."""
    parser.add_argument(
        "--hold-seconds",
        type=seconds,
        default=30.0,
        metavar="S",
        help="seconds after which a job that still has no nodes loses its lease to the "
        "next job (default: %(default)g)",
    )
    parser.add_argument(
        "--asking",
        type=checked(QpuLimits.parse, "such as qpu=8:4"),
        action="append",
        default=[],
        metavar="QPU=N:SHARE",
        help="at most N jobs have or request a lease of the QPU at the same time, and at "
        "most SHARE of them are one user's while other users wait",
    )


def sfq_qpus(args: argparse.Namespace) -> list[SfqQpu]:
    """Return the clients of the selected QPUs.

    :raises InputError: if ``sfq serve`` does not serve one of them
    """
    qpus = service.selection(args).qpus({})
    clients = [qpu for qpu in qpus if isinstance(qpu, SfqQpu)]
    if others := [qpu.name for qpu in qpus if qpu not in clients]:
        raise InputError(f"QPU {others[0]!r} is not behind an sfq serve")
    return clients


def client(args: argparse.Namespace, **options: str) -> Qpu:
    """Return the client of the selected QPU.

    :raises InputError: if several QPUs are selected
    """
    qpus = service.selection(args, **options).qpus({})
    if len(qpus) > 1:
        raise InputError(f"--qpu: name one of {', '.join(qpu.name for qpu in qpus)}")
    return qpus[0]


def make_gate(args: argparse.Namespace, scheduler: Scheduler) -> Gate:
    """Return the gate that the options describe.

    :raises InputError: if an option is invalid, or a rule for classes depends on the priority
    """
    if any(rule.what == "priority" for rule in args.class_of):
        raise InputError("--class-of priority: the priority of held jobs is 0")
    qpus = sfq_qpus(args)
    asking = {limits.qpu: limits for limits in args.asking}
    names = [qpu.name for qpu in qpus]
    if others := asking.keys() - {*names}:
        raise InputError(f"--asking: {unknown('QPU', min(others), names)}")
    for limits in asking.values():
        if not 1 <= limits.share <= limits.count:
            raise InputError(
                f"--asking: {limits.share} of {limits.count} jobs for a user of QPU "
                f"{limits.qpu!r}; expected at least 1, and at most all"
            )

    def make_request(
        job: BatchJob, qpu: str, hints: LeaseHints
    ) -> tuple[Qpu, AcquireOptions]:
        user, partitions, qos, lease_options = scheduler.applicant(job.id)
        named = argparse.Namespace(**{**vars(args), "qpu": [qpu]})
        class_ = class_of(args.class_of, partitions, qos, "0")
        request = lease_request(job, class_, hints)
        return client(named, user=user, **lease_options), request

    return Gate(
        qpus,
        [asking.get(qpu.name, QpuLimits(qpu.name, 8, 4)) for qpu in qpus],
        make_request,
        scheduler,
        hold_seconds=args.hold_seconds,
    )


@contextmanager
def alone(args: argparse.Namespace) -> Iterator[None]:
    """Log to standard error, and lock the folder ``--state``.

    :raises InputError: if another process has locked the folder
    """
    name = f"sfq {args.command} {args.act}"
    logging.basicConfig(format=f"{name}: %(message)s", level=logging.INFO)
    folder = Folder(args.state)
    folder.make()
    with watch.alone(folder) as is_alone:
        if not is_alone:
            raise InputError(f"--state {args.state}: another process uses it")
        yield
