"""Keeps Slurm's licences of QPUs at the number of free vQPUs, for ``sfq slurm licenses``.

A Slurm reservation, ``sfq-QPU``, withholds the licences that no job may get now. The total
number of licences stays unchanged: Slurm rejects jobs that request more licences than exist
(22.05, 24.11), and the licences of ``slurm.conf`` cannot be changed without ``scontrol
reconfigure``.

::

    a vQPU is leased by others           one licence less
    QPU closed, offline, no answer       no further licences
    this process stops                   all licences

The process stores nothing: it compares Slurm's numbers with the QPU service's every time.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.qpu.leasing.batch_jobs import ListedLease, list_leases
from sf_quantum.qpu.leasing.burst import controller
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.slurm.licenses import units
from sf_quantum.text import plural, unknown
from sf_quantum.threads import in_thread

POLL_SECONDS = 2.0
_T = TypeVar("_T")
logger = logging.getLogger("sfq-slurm-licenses")


class _Vqpus(NamedTuple):
    """The number of vQPUs, 0 while the service grants no leases, and the held leases."""

    number: int = 0
    leases: Sequence[ListedLease] = ()


def grantable(
    vqpus: int, leases: Iterable[ListedLease], jobs: Mapping[int, int], cluster: str
) -> int:
    """Return how many licences jobs may hold, including jobs that have started.

    This is the number of vQPUs minus the leases that belong to no job with a licence.

    :param leases: all held leases, listed before ``jobs``: a job that starts in between is
        not counted twice, and the lease of a job that ends in between is deducted
    :param jobs: the units of the licence that each job of the cluster holds
    """
    unused, others = Counter(jobs), 0
    for lease in leases:
        if lease.cluster == cluster and unused[lease.job] > 0:
            unused[lease.job] -= 1
        else:
            others += 1
    return max(0, vqpus - others)


class Licenses:
    """The process that adapts the licences, run as SlurmUser or a Slurm operator.

    :param qpus: clients with an admin's rights, by licence
    """

    def __init__(self, qpus: Mapping[str, SfqQpu], cluster: str) -> None:
        self._qpus = qpus
        self._cluster = cluster
        # QPUs whose services have accepted this client as an admin.
        self._checked: set[str] = set()
        # Queries that the services have not answered yet, by licence.
        self._answers: dict[str, Future[_Vqpus]] = {}
        # Consecutive failures, by the name of a service or of Slurm.
        self._failures = Counter[str]()

    def check(self) -> None:
        """Check that Slurm has the licences, and that the services list all leases.

        :raises InputError: if a licence is missing, or a service rejects the client
        :raises QpuError: if Slurm does not answer
        """
        totals = controller.license_totals()
        for license_, qpu in self._qpus.items():
            if license_ not in totals:
                raise InputError(unknown("licence of Slurm", license_, [*totals]))
            # A service that does not answer is checked later.
            with suppress(QpuError):
                self._read(qpu)

    def run(self) -> None:
        """Compare the numbers every few seconds; at the end, let Slurm grant all licences."""
        try:
            while True:
                began = time.monotonic()
                self.poll()
                time.sleep(max(0.0, began + POLL_SECONDS - time.monotonic()))
        finally:
            for license_, qpu in self._qpus.items():
                self._try(f"Slurm, {license_}", partial(self._give_back, license_, qpu))

    def poll(self) -> None:
        """Compare Slurm's numbers with the services', and correct Slurm's."""
        for license_, qpu in self._qpus.items():
            if license_ not in self._answers:
                self._answers[license_] = in_thread(partial(self._read, qpu))
        # A service that does not answer does not delay others: a later look uses its answer.
        done, _ = wait(self._answers.values(), timeout=POLL_SECONDS)
        vqpus = dict.fromkeys(self._qpus, _Vqpus())
        for license_, answer in [*self._answers.items()]:
            if answer in done:
                del self._answers[license_]
                read = self._try(self._qpus[license_].name, answer.result)
                vqpus[license_] = read or _Vqpus()
        self._try("Slurm", partial(self._write, vqpus))

    def _write(self, vqpus: Mapping[str, _Vqpus]) -> None:
        """Withhold the licences that no job may get now."""
        jobs = controller.license_jobs()
        totals = controller.license_totals()
        reserved = controller.reserved_licenses()
        for license_, qpu in self._qpus.items():
            held = {job: units(text, license_) for job, text in jobs.items()}
            number, leases = vqpus[license_]
            total = totals.get(license_, 0)
            granted = min(total, grantable(number, leases, held, self._cluster))
            name, withheld = _reservation(qpu), total - granted
            if withheld != units(reserved.get(name, ""), license_):
                exists = name in reserved
                reserve = partial(controller.reserve, name, license_, withheld)
                self._try(f"Slurm, {license_}", partial(reserve, exists=exists))
                logger.info("%s: %d of %d licences", qpu.name, granted, total)

    def _give_back(self, license_: str, qpu: SfqQpu) -> None:
        name = _reservation(qpu)
        exists = name in controller.reserved_licenses()
        controller.reserve(name, license_, 0, exists=exists)

    def _read(self, qpu: SfqQpu) -> _Vqpus:
        if qpu.name not in self._checked:
            # Only admins get the leases of all users.
            qpu.service.send("GET", "/v1/admin/audit?limit=1")
            self._checked.add(qpu.name)
        status = qpu.status()
        return _Vqpus(status.vqpus if status.online else 0, list_leases(qpu))

    def _try(self, name: str, act: Callable[[], _T]) -> _T | None:
        """Call a function; log the first of consecutive failures, and finally their number."""
        try:
            result = act()
        except QuantumError as error:
            self._failures[name] += 1
            if self._failures[name] == 1:
                logger.warning("%s: %s", name, error)
            return None
        if failures := self._failures.pop(name, 0):
            logger.warning(
                "%s: answers again after %s", name, plural(failures, "failure")
            )
        return result


def _reservation(qpu: SfqQpu) -> str:
    return f"sfq-{qpu.name}"
