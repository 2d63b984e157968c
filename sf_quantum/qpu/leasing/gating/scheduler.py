"""The interface of a batch system whose held jobs wait for leases.

A new batch system needs a subclass of :class:`Scheduler` in a module here, an entry in
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
    :param is_held: whether its user, or the gate as its user, holds it, and nobody else does
    :param by_admin: whether an administrator holds the job, in a batch system where a user's
        hold would replace the administrator's
    :param may_start: whether the job waits neither for another job nor for its start time
    :param reason: reason why the job has no nodes
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
    """The owner, queues and QOS of a job, for its request.

    :param partitions: partitions or queues, separated by commas
    :param lease_options: configuration keys with which the client identifies the job that
        requests a lease
    """

    user: str
    partitions: str
    qos: str
    lease_options: Mapping[str, str]


class Scheduler(ABC):
    """The jobs of one cluster, by ids that contain no ``-``.

    All methods raise :class:`.QpuError` if the batch system does not answer.

    :param cluster: name of the cluster, unique among the clusters with the same QPUs
    """

    #: name in messages
    title: ClassVar[str]

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def name(self, job: str, submitted: str = "") -> BatchJob:
        """Return the identity of a job."""
        return BatchJob(self.title, self._cluster, job, submitted)

    def job_of(self, key: str) -> str | None:
        """Return the id of this cluster's job to which a lease's key belongs, if any."""
        id_, _, submitted = key.rpartition("-")[2].partition(".")
        return id_ if self.name(id_, submitted).key == key else None

    @abstractmethod
    def jobs(self) -> Mapping[str, GatedJob]:
        """List the pending and running jobs, in the order of their submission."""

    @abstractmethod
    def applicant(self, job: str) -> Applicant:
        """Return the owner, queues and QOS of a job."""

    @abstractmethod
    def release(self, job: str) -> None:
        """Let a held job start."""

    @abstractmethod
    def hold(self, job: str) -> None:
        """Hold a pending job as its user would.

        :raises QpuError: if the job has started or ended
        """

    @abstractmethod
    def explain(self, job: str, text: str) -> None:
        """Write the reason for a job's wait, or an empty text, to its record; never fails."""


def run_command(*command: str) -> str:
    """Return the output of a command of a batch system.

    :raises QpuError: if the command fails, or does not end in time
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
    # A ValueError means a word that no command can have, for example with a NUL.
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise QpuError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise QpuError(f"{command[0]}: {one_line(done.stderr.strip())}")
    return done.stdout.strip()
