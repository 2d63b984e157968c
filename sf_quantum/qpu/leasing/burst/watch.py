"""Releases leases and places that Slurm jobs leave or cannot use, for ``sfq slurm watch``.

This is one process on the host of slurmctld, restarted by Slurm's plug-in if it has ended. All
its data are in Slurm or in the folder of :mod:`.folder`, so it may be killed at any time.

::

    a job with a lease but without nodes    held in Slurm ----> requests again, is released
    a job that Slurm cannot start           held in Slurm ----> released when it can start
    more places of one user than a share    held in Slurm ----> released when there is room
    a job whose wait Slurm has forgotten    requeued
    a file of a job that no longer exists   the job's lease is released
    the same, but another job has its id    the lease of the first job is released
    a place of a job that no longer exists  another place is added to the pool
"""

from __future__ import annotations

import fcntl
import logging
import logging.handlers
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from sf_quantum.errors import QpuError
from sf_quantum.qpu.leasing.batch_jobs import differ, without_nodes
from sf_quantum.qpu.leasing.burst.controller import (
    STAGED,
    STAGING,
    buffers,
    cannot_start,
    comment,
    hold,
    queue,
    slurm,
)
from sf_quantum.qpu.leasing.burst.folder import Entry, Folder, Held, Why, is_asking
from sf_quantum.qpu.leasing.burst.forgotten import Forgotten
from sf_quantum.qpu.leasing.burst.places import LostPlaces
from sf_quantum.qpu.leasing.burst.watch_processes import Children, logged, logger
from sf_quantum.qpu.leasing.qpu_limits import QpuLimits
from sf_quantum.slurm.burst import Buffer
from sf_quantum.slurm.squeue import QueuedJob

POLL_SECONDS = 5.0
# Time for which a job is not listed until what it has left is swept, if nobody else has.
GONE_SECONDS = 15.0
# Pause between two checks whether the folder still exists.
TICK_SECONDS = 1.0
# Pause between two queries for Slurm's queue while the folder has no job.
IDLE_SECONDS = 30.0
# Time until Slurm shows a job as held, or as released.
SETTLE_SECONDS = 3.0
# Time until Slurm has saved a release, which it does every five seconds: a controller that is
# killed earlier holds the job again.
SAVED_SECONDS = 10.0
# Pause between two tests whether Slurm could start a held job, and largest number of tests in
# one look: each costs the controller 8 ms.
TEST_SECONDS = 15.0
TESTS_AT_ONCE = 20
# Slurm's reason of jobs that wait for a place.
_WAITS = "BurstBufferResources"


def run(watch: Watch) -> None:
    """Watch until the folder is deleted; return immediately if another process watches."""
    # close the files inherited from slurmctld: its open socket would block its port for
    # the next slurmctld
    os.closerange(3, 1024)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if Path("/dev/log").exists():
        logger.addHandler(logging.handlers.SysLogHandler("/dev/log"))
    folder = watch.folder
    folder.make()
    with alone(folder) as is_alone:
        if not is_alone:
            return
        while folder.path.is_dir():
            watch.poll_safely()
            until = time.monotonic() + POLL_SECONDS
            while (left := until - time.monotonic()) > 0 and folder.path.is_dir():
                # wake up when a lease will have been without nodes for too long
                time.sleep(max(0.1, min(TICK_SECONDS, left, watch.due - time.time())))
                if watch.due <= time.time():
                    break


@contextmanager
def alone(folder: Folder) -> Iterator[bool]:
    """Lock the folder for this process; yield whether no other process has locked it."""
    with (folder.path / "watch").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield True


class Watch:
    """The looks of the watch; data that it keeps between two looks may be lost.

    :param pools: limits of each QPU
    :param hold_seconds: time after which the lease of a job without nodes is released
    :param can_start: path of the program ``qpu-can-start``, if the site has built it
    :param program: the command ``sfq``, which is run for single jobs
    :param release: function that makes the arguments of ``sfq`` to release a job's lease
    """

    def __init__(
        self,
        folder: Folder,
        pools: Sequence[QpuLimits],
        *,
        hold_seconds: float,
        can_start: str | None,
        program: str,
        release: Callable[[int, Entry], list[str]],
    ) -> None:
        self.folder = folder
        self._hold_seconds = hold_seconds
        self._can_start = can_start
        self._release = release
        self._pools: Mapping[str, QpuLimits] = {one.qpu: one for one in pools}
        self._children = Children(program)
        self._forgotten = Forgotten(folder, self._pools, self._children)
        self._lost = LostPlaces(folder)
        # By job: when it was first seen to be gone, and when a held job may be tested again.
        self._gone: dict[int, float] = {}
        self._tests: dict[int, float] = {}
        self._listed = -math.inf
        #: when the next lease will be released, if its job has no nodes by then
        self.due = math.inf

    def poll_safely(self) -> None:
        """Look once; failures are retried in the next look."""
        self.due = math.inf
        try:
            self.poll()
        except QpuError as error:  # for example, the controller does not respond
            logger.info("%s", error)
        except FileNotFoundError:  # another process has removed a file or the folder
            pass

    def poll(self) -> None:
        """Compare the folder with Slurm, and correct differences.

        :raises QpuError: if Slurm does not answer
        """
        self._children.reap()
        folder = self.folder
        # The folder is read before Slurm is queried, so that Slurm's list has every job of
        # the folder.
        entries = {job: entry for job in folder.jobs() if (entry := folder.entry(job))}
        held = {job: mark for job in folder.jobs(".held") if (mark := folder.held(job))}
        folder.sweep_parts()
        taken, used = buffers()
        traced = {
            *entries,
            *held,
            *folder.jobs(".command"),
            *(one.job for one in taken),
        }
        now = time.monotonic()
        idle = not (traced or any(used.values()) or self._lost)
        if idle and now - self._listed < IDLE_SECONDS:
            return
        jobs, self._listed = queue(), now
        others = self._leave_out_others(jobs, entries, held)
        self._gone = {
            job: self._gone.get(job, now) for job in traced if job not in jobs
        }
        gone = {job for job, since in self._gone.items() if now - since >= GONE_SECONDS}
        self._lost.write(taken, used, gone)
        for job in gone:
            self._sweep(job, entries.get(job), is_other=job in others)
        self._forgotten.mend(jobs, {one.job for one in taken}, entries, held)
        for job, entry in entries.items():
            if job in jobs:
                with logged(job):
                    self._check_nodes(jobs[job], entry, held.get(job))
        self._release_held({job: jobs[job] for job in held if job in jobs}, held)
        for limits in self._pools.values():
            alive = [one for one in taken if one.pool == limits.qpu and one.job in jobs]
            self._share(limits, alive, jobs, entries, held)

    def _leave_out_others(
        self,
        jobs: dict[int, QueuedJob],
        entries: Mapping[int, Entry],
        held: dict[int, Held],
    ) -> set[int]:
        """Leave out jobs that have the id of a job that a killed controller forgot.

        The forgotten job's files do not concern the new job: the mark, which would end a hold
        of the new job, is removed, and the lease is released as if no job had the id.
        """
        for id_, mark in [*held.items()]:
            if id_ in jobs and differ(mark.submitted, jobs[id_].submitted):
                (self.folder.path / f"{id_}.held").unlink(missing_ok=True)
                del held[id_]
        others = {
            id_
            for id_, entry in entries.items()
            if id_ in jobs and differ(entry.submitted, jobs[id_].submitted)
        }
        for id_ in others:
            del jobs[id_]
        return others

    def _sweep(self, job: int, entry: Entry | None, *, is_other: bool) -> None:
        """Release the lease of a job that no longer exists, and remove its files."""
        held = None if is_other else self.folder.held(job)
        if held is not None and held.why is not Why.FORGOTTEN:
            (self.folder.path / f"{job}.held").unlink(missing_ok=True)
        if entry is None:
            self.folder.remove(job)
        elif job not in self._children:
            logger.info("job %d is gone: releasing its lease", job)
            self._children.start(job, self._release(job, entry))

    # leases without nodes

    def _check_nodes(self, job: QueuedJob, entry: Entry, held: Held | None) -> None:
        """Take a lease from a job that has no nodes for it."""
        if entry.token is None or job.state != "PENDING":
            return
        due = entry.written + self._hold_seconds
        if time.time() < due:
            self.due = min(self.due, due)
            return
        if job.id in self._children or (
            held is not None and job.reason == "JobHeldUser"
        ):
            return
        command = self.folder.command(job.id)
        if job.buffer != STAGED or command is None:
            # The controller may have restarted: the job requests a lease again when Slurm
            # calls the plug-in.
            self._children.start(job.id, self._release(job.id, entry))
            return
        losses = 1 + (0 if held is None else held.losses)
        text = without_nodes(entry.qpu, job.reason)
        hold(job.name)
        self.folder.hold(job.id, Held(Why.NODES, losses, text, job.submitted))
        comment(job.name, text)
        logger.info("job %d: %s", job.id, text)
        self._children.start(job.id, [*command, "--again"])

    # jobs that are held until they can start

    def _release_held(
        self, jobs: Mapping[int, QueuedJob], held: Mapping[int, Held]
    ) -> None:
        """Let held jobs request leases if Slurm could start the jobs now."""
        now, due = time.monotonic(), []
        for id_, job in jobs.items():
            if held[id_].why in (Why.CANNOT, Why.NODES) and self._is_settled(job):
                due.append(id_)
        self._tests = {id_: self._tests.get(id_, 0.0) for id_ in due}
        due = [id_ for id_ in due if self._tests[id_] <= now]
        due = sorted(due, key=lambda id_: self._tests[id_])[:TESTS_AT_ONCE]
        reasons = cannot_start(self._can_start, due)
        for id_ in due:
            self._tests[id_] = now + TEST_SECONDS
            job, mark = jobs[id_], held[id_]
            if (why := reasons.get(id_)) is None:
                with logged(id_):
                    self._let_request(job)
                continue
            qpu = mark.text.partition(":")[0]
            text = f"{qpu}: Slurm cannot start it: {why}"
            if text != mark.text:
                self.folder.hold(id_, replace(mark, why=Why.CANNOT, text=text))
                comment(job.name, text)

    def _is_settled(self, job: QueuedJob) -> bool:
        """Return whether a marked job is held by us alone, and no process acts for it."""
        path = self.folder.path / f"{job.id}.held"
        age = time.time() - path.stat().st_mtime
        if job.id in self._children or age < SETTLE_SECONDS:
            return False
        if job.state != "PENDING" or job.priority:
            # the job is released, or will be held in a moment
            if age >= SAVED_SECONDS:
                path.unlink(missing_ok=True)
            return False
        return job.reason != "JobHeldUser" and job.buffer not in (STAGING, "teardown")

    def _let_request(self, job: QueuedJob) -> None:
        """Let a job that Slurm could start now request a lease."""
        if job.buffer == STAGED:
            command = self.folder.command(job.id)
            if command is not None:
                self._children.start(job.id, [*command, "--again"])
            return
        slurm("scontrol", "release", job.name)
        comment(job.name, "")
        with suppress(FileNotFoundError):
            os.utime(self.folder.path / f"{job.id}.held")
        logger.info("job %d: released, it can start", job.id)

    # shares of the places

    def _share(
        self,
        limits: QpuLimits,
        taken: list[Buffer],
        jobs: Mapping[int, QueuedJob],
        entries: Mapping[int, Entry],
        held: Mapping[int, Held],
    ) -> None:
        """Take places from a user who has more than a share while others wait.

        Jobs that have lost their places in this way get places again once there is room.
        """
        counts = Counter(one.uid for one in taken)
        waiting = [
            job
            for job in jobs.values()
            if job.pool == limits.qpu and job.reason == _WAITS and job.priority
        ]
        free_places = limits.count - len(taken)
        for id_, mark in sorted(held.items()):
            job = jobs.get(id_)
            if mark.why is not Why.SHARE or job is None or job.pool != limits.qpu:
                continue
            if not self._is_settled(job):
                continue
            others = any(one.uid != job.uid for one in waiting)
            if counts[job.uid] < limits.share or (free_places > 0 and not others):
                with logged(id_):
                    self._let_request(job)
                counts[job.uid] += 1
                free_places -= 1
        if free_places > 0:
            return
        for uid, count in counts.items():
            number = sum(job.uid != uid for job in waiting)
            asking = [
                jobs[one.job]
                for one in taken
                if one.uid == uid
                and self._is_requesting(jobs[one.job], entries.get(one.job))
            ]
            last = sorted(asking, key=lambda job: job.rank, reverse=True)
            for job in last[: max(0, min(count - limits.share, number))]:
                with suppress(ProcessLookupError):
                    os.kill(entries[job.id].pid, signal.SIGUSR1)

    @staticmethod
    def _is_requesting(job: QueuedJob, entry: Entry | None) -> bool:
        if entry is None or entry.token is not None or job.buffer != STAGING:
            return False
        return is_asking(entry.pid, job.id)
