"""``sfq slurm``: leases for jobs of Slurm that request a QPU (deployments/slurm)."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

from sf_quantum.cli.arguments import checked, seconds, sentence
from sf_quantum.cli.batch import gating
from sf_quantum.cli.qpu import service
from sf_quantum.cli.qpu.lease import add_bounds
from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.qpu import opening
from sf_quantum.qpu.environment import job_environment, job_ids
from sf_quantum.qpu.leasing.batch_jobs import BatchJob, differ, release_leases
from sf_quantum.qpu.leasing.burst import controller, watch
from sf_quantum.qpu.leasing.burst.accounting import account
from sf_quantum.qpu.leasing.burst.folder import Entry, Folder
from sf_quantum.qpu.leasing.burst.licenses import Licenses
from sf_quantum.qpu.leasing.burst.request import identity, slurm_request
from sf_quantum.qpu.leasing.burst.waiting import Asking, wait_for_tasks
from sf_quantum.qpu.leasing.gating.in_job import held_environment
from sf_quantum.qpu.leasing.gating.slurm import Slurm
from sf_quantum.qpu.opening import LeaseOptions
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.text import unknown


def configure(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each action."""
    parser.epilog = (
        "For burst_buffer.lua on the host of slurmctld, or without it on a host with Slurm's "
        "commands (gate, licenses) and on the nodes (environment). The QPU service has to know "
        "SlurmUser as root or as an admin, since the leases are those of the jobs' users."
    )
    actions = parser.add_subparsers(dest="act", required=True, metavar="ACT")
    acquiring = _add(
        actions, "acquire", "wait for a lease, for the user of a job", _acquire
    )
    acquiring.add_argument(
        "--expected-seconds",
        type=seconds,
        metavar="S",
        help="a hint for scheduling: QPU seconds that the job will use, without waits",
    )
    add_bounds(acquiring)
    gating.add_classes(acquiring)
    _add_can_start(acquiring)
    acquiring.add_argument(
        "--again",
        action="store_true",
        help="acquire again for a job whose lease was released because the job had no "
        "nodes; Slurm holds the job meanwhile",
    )
    confirming = "check that a job can start: it has its lease, and the QPU is online"
    _add(actions, "confirm", confirming, _confirm)
    releasing = _add(
        actions, "release", "give a job's lease back, if it has one", _release
    )
    releasing.add_argument(
        "--submitted",
        default="",
        metavar="SECONDS",
        help="release only if the job was submitted at this time, in seconds since 1970",
    )
    watching = _add(
        actions,
        "watch",
        "give back what jobs leave or cannot use, until slurmctld's host stops it",
        _watch,
        job=False,
    )
    _add_can_start(watching)
    gating.add_limits(watching)
    gating.add_gate(actions, Slurm)
    licensing = _add(
        actions,
        "licenses",
        "keep Slurm's licences of QPUs at the number of free vQPUs",
        _licenses,
        job=False,
    )
    licensing.add_argument(
        "--license",
        type=checked(_license, "such as fresnel=qpu@sfq"),
        action="append",
        default=[],
        metavar="QPU=LICENSE",
        help="licence of a QPU; NAME@SERVER if slurmdbd defines it (default: the QPU's name)",
    )
    help_ = "print a job's variables for a TaskProlog, with the lease of the gate"
    environment = actions.add_parser(
        "environment", help=help_, description=sentence(help_)
    )
    service.add_selection(environment)
    environment.set_defaults(action=_environment, parser=environment)


def _add_can_start(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--can-start",
        metavar="PROGRAM",
        help="path of qpu-can-start, which checks whether Slurm could start the job now; "
        "without it, every job is assumed to be able to start",
    )


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    return gating.run(args)


def _add(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    help_: str,
    action: Callable[[argparse.Namespace], None],
    *,
    job: bool = True,
) -> argparse.ArgumentParser:
    """Add an action, with the options that all actions have."""
    added = actions.add_parser(name, help=help_, description=sentence(help_))
    service.add_selection(added)
    if job:
        added.add_argument("job", type=int, metavar="JOB", help="the id of the job")
    added.add_argument(
        "--state",
        required=True,
        type=Path,
        metavar="DIR",
        help="folder with the environment of each job that has a lease; sfq slurm licenses "
        "only locks it",
    )
    added.set_defaults(action=action, parser=added)
    return added


def _acquire(args: argparse.Namespace) -> None:
    """Acquire a job's lease, and write the variables with which the job uses the lease."""
    details = controller.details(args.job)
    cluster = controller.cluster()
    job = identity(args.job, cluster, details)
    # Clients of every type send these variables to the QPU's service.
    os.environ |= job
    client, folder = gating.client(args, user=details.user), Folder(args.state)
    folder.make()
    # A process that an earlier slurmctld started may still request the job's lease.
    folder.end_asking(args.job)
    named = BatchJob("Slurm", cluster, str(args.job), details.submitted)
    asking = Asking(
        client,
        folder,
        named,
        details.name,
        again=args.again,
        can_start=args.can_start,
    )
    # The signal means that the user has used up the share of the QPU.
    signal.signal(signal.SIGUSR1, lambda *_: asking.recalled.set())
    asking.begin(sys.argv[1:])
    wait_for_tasks(details)
    hints = opening.hints(cast("LeaseOptions", vars(args)))
    request = slurm_request(named, details, args.class_of, hints)
    token = asking.ask(request)
    # The job's environment must not contain the site's credentials, so settings is None.
    (sfq_qpu,) = replace(service.selection(args), settings=None).qpus({})
    asking.end({**job_environment([(sfq_qpu, token)]), **job_ids("", job)})


def _confirm(args: argparse.Namespace) -> None:
    client, entry = gating.client(args), Folder(args.state).entry(args.job)
    if entry is None or entry.token is None:
        raise QpuError(f"job {args.job} has no lease")
    client.renew(entry.token)
    if not (status := client.status()).online:
        raise QpuError(f"QPU {client.name!r} is not online: {status.reason}")


def _release(args: argparse.Namespace) -> None:
    """Release a job's lease, and write the lease's usage into Slurm's accounting."""
    client, folder = gating.client(args), Folder(args.state)
    entry = folder.entry(args.job)
    if entry is not None and differ(args.submitted, entry.submitted):
        return  # Another job with the same id requests a lease.
    if folder.path.is_dir():
        folder.end_asking(args.job)
    entry = folder.entry(args.job)
    if entry is not None and entry.token is not None:
        client.release(entry.token)
        # Even if this fails, Slurm's accounting has a record of the job.
        with suppress(QuantumError):
            if not _is_another(args.job, entry.submitted):
                account(args.job, client, entry.token, f"{entry.waited:.3f}")
    elif isinstance(client, SfqQpu):
        # Slurm has ended the process that requested the lease, but the service may have
        # granted the lease in the meantime.
        cluster = controller.cluster()
        named = BatchJob("Slurm", cluster, str(args.job), args.submitted)
        release_leases(client, named)
    folder.remove(args.job)


def _is_another(job: int, submitted: str) -> bool:
    """Return whether a job reuses the id of a job that a killed slurmctld has forgotten."""
    try:
        listed = controller.details(job, "--states=all")
    except QpuError:  # The job ended some time ago, or slurmctld is not running.
        return False
    return differ(submitted, listed.submitted)


def _watch(args: argparse.Namespace) -> None:
    watch.run(
        watch.Watch(
            Folder(args.state),
            args.asking,
            hold_seconds=args.hold_seconds,
            can_start=args.can_start,
            program=sys.argv[0],
            release=lambda job, entry: _release_words(args, job, entry),
        )
    )


def _license(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"(\w+)=([^\s:=,;|]+)", text)
    if match is None:
        raise ValueError(text)
    return match[1], match[2]


def make_licenses(args: argparse.Namespace) -> Licenses:
    """Return the updater for the licences that the options describe.

    :raises InputError: if a licence is unknown to Slurm, or the user is not an admin of a
        QPU service
    """
    qpus = {qpu.name: qpu for qpu in gating.sfq_qpus(args)}
    names = {**{name: name for name in qpus}, **dict(args.license)}
    for name in names.keys() - qpus.keys():
        raise InputError(f"--license: {unknown('QPU', name, [*qpus])}")
    by_license = {license_: qpus[name] for name, license_ in names.items()}
    if len(by_license) < len(qpus):
        raise InputError("--license: two QPUs cannot have the same licence")
    licenses = Licenses(by_license, controller.cluster())
    licenses.check()
    return licenses


def _licenses(args: argparse.Namespace) -> None:
    with gating.alone(args):
        make_licenses(args).run()


def _environment(args: argparse.Namespace) -> None:
    qpus = service.selection(args).qpus({})
    for key, value in held_environment(qpus, os.environ).items():
        print(f"export {key}={value}")


def _release_words(args: argparse.Namespace, job: int, entry: Entry) -> list[str]:
    """Return the arguments for another ``sfq`` process that releases a job's lease."""
    words = ["slurm", "release", str(job), "--state", str(args.state)]
    words += ["--qpu", entry.qpu] if entry.qpu not in ("", "-") else []
    words += ["--submitted", entry.submitted] if entry.submitted else []
    for name in ("qrmi_config", "url", "token_file"):
        if (value := getattr(args, name)) is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    if args.munge:
        words += ["--munge"] if args.munge is True else ["--munge", args.munge]
    return words
