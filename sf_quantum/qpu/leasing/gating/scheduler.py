"""The interface of a batch system whose held jobs wait for leases.

Another batch system is a subclass of :class:`Scheduler` in a module here, an entry in
``in_job``, and a command in ``cli/qpu``.
"""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from sf_quantum.errors import QpuError
from sf_quantum.qpu.leasing.batch_jobs import BatchJob
from sf_quantum.slurm import squeue
from sf_quantum.text import one_line

# Longest wait for a command of a batch system.
COMMAND_SECONDS = 60.0


@dataclass(frozen=True)
class GatedJob:
    """A job, or all tasks of an array, that may wait for a lease.

    :param request: text that names the QPU and bounds, such as ``qpu=fresnel qpu-shots=100``
    :param is_pending: whether no task has nodes
    :param is_held: whether its user holds it, and nobody else does
    :param by_admin: whether an administrator holds it, where a hold of the user would end
        the administrator's
    :param may_start: whether it waits for neither another job nor its time
    :param reason: reason for which it has no nodes
    :param submitted: see :class:`.BatchJob`
    """

    user: str
    request: str
    is_pending: bool
    is_held: bool
    may_start: bool
    reason: str
    submitted: str = ""
    by_admin: bool = False


class Applicant(NamedTuple):
    """The owner and the rank of a job, for its request.

    :param partitions: partitions or queues, separated by commas
    :param lease_options: configuration keys of the client by which it says whose job
        requests a lease
    """

    user: str
    partitions: str
    qos: str
    lease_options: Mapping[str, str]


class Scheduler(ABC):
    """The jobs of one cluster, by ids that contain no ``-``.

    All methods raise :class:`.QpuError` if the batch system does not answer.

    :param cluster: name that no other cluster with the same QPUs has
    """

    #: name in messages
    title: ClassVar[str]

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def name(self, job: str, submitted: str = "") -> BatchJob:
        """Return the identity of a job."""
        return BatchJob(self.title, self._cluster, job, submitted)

    def job_of(self, key: str) -> str | None:
        """Return the id of the job of this cluster whose lease has a key, if any has."""
        id_, _, submitted = key.rpartition("-")[2].partition(".")
        return id_ if self.name(id_, submitted).key == key else None

    @abstractmethod
    def jobs(self) -> Mapping[str, GatedJob]:
        """List the jobs that wait or run, in the order of their submission."""

    @abstractmethod
    def applicant(self, job: str) -> Applicant:
        """Return whose job it is."""

    @abstractmethod
    def release(self, job: str) -> None:
        """Let a held job start."""

    @abstractmethod
    def hold(self, job: str) -> None:
        """Hold a pending job as its user would.

        :raises QpuError: if it has started, or ended
        """

    @abstractmethod
    def explain(self, job: str, text: str) -> None:
        """Write what a job waits for to its record, empty if nothing; failures are ignored."""


def run_command(*command: str) -> str:
    """Return the output of a command of a batch system.

    :raises QpuError: if it fails, or does not end in time
    """
    try:
        done = subprocess.run(
            command,
            env=squeue.environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
        )
    # A ValueError is a word that no command can have, such as one with a NUL.
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise QpuError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise QpuError(f"{command[0]}: {one_line(done.stderr.strip())}")
    return done.stdout.strip()
