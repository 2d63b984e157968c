"""Keeps Slurm's licences of QPUs at the number of free vQPUs, for ``sfq slurm licenses``.

A reservation of Slurm, ``sfq-QPU``, withholds the licences that no job may get now. The number of
licences itself stays: Slurm refuses jobs that request more licences than there are (22.05,
24.11), and those of ``slurm.conf`` cannot be changed without ``scontrol reconfigure``.

::

    a vQPU is leased by others           a licence less
    closed, offline, no answer           no further licence
    stopped                              all licences

It keeps nothing: each look compares Slurm's numbers with those of the QPU's service.
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
    """The vQPUs of a device, 0 while none is lent, and the leases that are held."""

    number: int = 0
    leases: Sequence[ListedLease] = ()


def grantable(
    vqpus: int, leases: Iterable[ListedLease], jobs: Mapping[int, int], cluster: str
) -> int:
    """Return how many licences jobs may hold, those that have started included.

    It is the number of vQPUs without those that are leased by others than jobs with a licence.

    :param leases: all that are held, listed before ``jobs``: so a job that starts meanwhile
        never counts twice, and one that ends meanwhile counts as another's
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
    """One process on a host with Slurm's commands, as SlurmUser or an operator.

    :param qpus: clients of an admin, by licence
    """

    def __init__(self, qpus: Mapping[str, SfqQpu], cluster: str) -> None:
        self._qpus = qpus
        self._cluster = cluster
        # Services that have listed their leases for an admin.
        self._checked: set[str] = set()
        # What the services have not answered yet.
        self._answers: dict[str, Future[_Vqpus]] = {}
        # Consecutive looks in which a service, or Slurm, has failed.
        self._failures = Counter[str]()

    def check(self) -> None:
        """Check that Slurm has the licences, and that the services list all leases.

        :raises InputError: if not
        :raises QpuError: if Slurm does not answer
        """
        totals = controller.license_totals()
        for license_, qpu in self._qpus.items():
            if license_ not in totals:
                raise InputError(unknown("licence of Slurm", license_, [*totals]))
            # A service that is away is checked when it is back.
            with suppress(QpuError):
                self._read(qpu)

    def run(self) -> None:
        """Look every few seconds; when it ends, Slurm may grant all licences."""
        try:
            while True:
                began = time.monotonic()
                self.poll()
                time.sleep(max(0.0, began + POLL_SECONDS - time.monotonic()))
        finally:
            for license_, qpu in self._qpus.items():
                self._try(f"Slurm, {license_}", partial(self._give_back, license_, qpu))

    def poll(self) -> None:
        """Compare Slurm's numbers with those of the services, and write what differs."""
        for license_, qpu in self._qpus.items():
            if license_ not in self._answers:
                self._answers[license_] = in_thread(partial(self._read, qpu))
        # A service that does not answer delays no other: its answer is for a later look.
        done, _ = wait(self._answers.values(), timeout=POLL_SECONDS)
        vqpus = dict.fromkeys(self._qpus, _Vqpus())
        for license_, answer in [*self._answers.items()]:
            if answer in done:
                del self._answers[license_]
                read = self._try(self._qpus[license_].name, answer.result)
                vqpus[license_] = read or _Vqpus()
        self._try("Slurm", partial(self._write, vqpus))

    def _write(self, vqpus: Mapping[str, _Vqpus]) -> None:
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
            # Others than admins would be sent their own leases only.
            qpu.service.send("GET", "/v1/admin/audit?limit=1")
            self._checked.add(qpu.name)
        status = qpu.status()
        return _Vqpus(status.vqpus if status.online else 0, list_leases(qpu))

    def _try(self, name: str, act: Callable[[], _T]) -> _T | None:
        """Act; the first of consecutive failures is logged, and their number at the end."""
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
