"""The wait of one job of a site's Slurm for its lease."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace

from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.leasing.batch_jobs import BatchJob, release_leases
from sf_quantum.qpu.leasing.burst.controller import (
    STAGING,
    cannot_start,
    comment,
    is_behind,
    queue,
    slurm,
)
from sf_quantum.qpu.leasing.burst.folder import (
    Asks,
    Entry,
    Folder,
    Held,
    Why,
    is_asking,
)
from sf_quantum.qpu.leasing.held_leases import AcquireOptions, WaitCancelled, acquire
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.slurm.squeue import JobDetails
from sf_quantum.threads import in_thread

# Pauses between two reports on a job's wait, before the first report, and between two looks
# at the state of the request.
REPORT_SECONDS = 10.0
FIRST_REPORT_SECONDS = 1.0
TICK_SECONDS = 0.3
# Longest wait of a job for the requests of jobs that are ahead in Slurm's queue.
ORDER_SECONDS = 10.0
ORDER_POLL_SECONDS = 0.2
# Maximum age of Slurm's list of these jobs.
AHEAD_SECONDS = 2.0
# A job that got no nodes for its lease lets others go first, for this long for each such lease
# after the first. If a job sends no request for a minute, the service forgets its position.
STAND_BACK_SECONDS = 60.0
STAND_BACK_MOST = 480.0
# Pause between two checks whether other jobs go first, and before a release is retried.
TASKS_SECONDS = 2.0


def wait_for_tasks(details: JobDetails) -> None:
    """Wait until no earlier task of a job's array is still to be started."""
    while details.task.isdecimal() and is_behind(details.array, int(details.task)):
        time.sleep(TASKS_SECONDS)


class Asking:
    """The wait of one job for its lease.

    :param job: the job's identity
    :param name: Slurm's name of the job, such as ``7_1``
    :param again: whether the job had a lease without nodes, and is now held in Slurm
    :param can_start: path of the program ``qpu-can-start``, if the site has built it
    :ivar recalled: set if the job's place is needed for another user
    """

    def __init__(
        self,
        client: Qpu,
        folder: Folder,
        job: BatchJob,
        name: str,
        *,
        again: bool,
        can_start: str | None,
    ) -> None:
        self.recalled = threading.Event()
        self._client = client
        self._folder = folder
        self._named = job
        self._job = int(job.id)
        self._id = name
        self._again = again
        self._can_start = can_start
        self._began = time.time()
        self._reported = ""
        self._asks = Asks.LATER
        # The lease of an earlier job with this id, or of an earlier request of this job.
        self._earlier: str | None = None
        # jobs that are ahead in Slurm's queue, and the time of this list
        self._ahead: list[int] = []
        self._listed = -math.inf

    def begin(self, command: Sequence[str]) -> None:
        """Record that the job requests a lease, and release a lease that it could not use.

        :param command: arguments of ``sfq`` that request the lease
        """
        earlier = self._folder.entry(self._job)
        if earlier is not None and earlier.token is not None:
            if self._again:
                self._client.release_keeping_position(earlier.token)
            else:
                self._earlier = earlier.token
        if not self._again:
            words = json.dumps(command)
            self._folder.replace(f"{self._job}.command", words)
        # an entry for the job's release, in case this process is killed
        self._write(Asks.LATER)

    def ask(self, request: AcquireOptions) -> str:
        """Wait for the lease, as long as Slurm could start the job.

        :raises QpuError: if Slurm could not start the job, which is then marked as held
        """
        self._check()
        if self._again:
            self._let_others_go_first()
        while True:
            if not self._again:
                self._wait_for_turn()
            if (token := self._ask(request)) is not None:
                return token

    def _ask(self, request: AcquireOptions) -> str | None:
        """Request a lease until the grant, or until other jobs go first at a closed QPU."""
        stop, changed = threading.Event(), threading.Event()

        def acquired() -> str:
            self._release_earlier(request, stop, changed)
            return acquire(self._client, request, stop, lambda *_: changed.set())

        waiting = in_thread(acquired)
        looked, pause = time.monotonic(), FIRST_REPORT_SECONDS
        try:
            while not _is_done(waiting):
                self._step_back_if_recalled()
                if not changed.is_set() and time.monotonic() - looked < pause:
                    continue
                changed.clear()
                self._write(self._look())
                looked, pause = time.monotonic(), REPORT_SECONDS
                if self._asks is Asks.CLOSED and self._is_behind_others():
                    stop.set()
            token = waiting.result()
            # nodes may have failed or been reserved during the wait
            self._check()
        except WaitCancelled:
            return None
        except StepsBack:
            stop.set()
            with suppress(QuantumError):
                self._client.release_keeping_position(waiting.result())
            raise
        return token

    def _release_earlier(
        self, request: AcquireOptions, stop: threading.Event, changed: threading.Event
    ) -> None:
        """Release an earlier lease under this job's id, or the job would wait for its end.

        Such a lease belongs to a job with the same id that a killed controller forgot, or a
        killed process requested it for an earlier run of this job.
        """
        others = self._named._replace(submitted="")
        while not stop.is_set():
            try:
                if isinstance(self._client, SfqQpu):
                    release_leases(self._client, others, request.key)
                elif self._earlier is not None:
                    self._client.release(self._earlier)
                return
            except InputError:  # the lease has ended
                return
            except QpuError:  # retry until the QPU answers
                changed.set()
                stop.wait(TASKS_SECONDS)

    def _look(self) -> Asks:
        """Report on the wait, and check that Slurm could still start the job."""
        text, closed = _report(self._client)
        self._report(text)
        self._check()
        return Asks.CLOSED if closed else Asks.ASKED

    def end(self, variables: Mapping[str, str]) -> None:
        """Write the job's environment, and let Slurm start the job."""
        now = time.time()
        waited = now - self._began
        lease = Entry(variables, self._client.name, now, waited, asks=Asks.ASKED)
        entry = replace(lease, submitted=self._named.submitted)
        self._folder.write(self._job, entry)
        if self._again:
            slurm("scontrol", "release", self._id)
            (self._folder.path / f"{self._job}.held").unlink(missing_ok=True)
        self._report("")

    def _write(self, asks: Asks) -> None:
        job, entry = self._job, self._folder.entry(self._job)
        self._asks = asks
        if entry is None or entry.pid != os.getpid() or entry.asks is not asks:
            fields = (self._began, 0.0, os.getpid(), asks, self._named.submitted)
            self._folder.write(job, Entry({}, self._client.name, *fields))

    def _report(self, text: str) -> None:
        if text != self._reported:
            comment(self._id, text)
            self._reported = text

    def _step_back_if_recalled(self) -> None:
        if self.recalled.is_set():
            self._step_back(
                Why.SHARE, "others wait, and its user has more than a share"
            )

    def _check(self) -> None:
        """Check that Slurm could start the job."""
        try:
            reasons = cannot_start(self._can_start, [self._job])
        except QpuError:  # the controller does not respond
            return
        if (why := reasons.get(self._job)) is not None:
            self._step_back(Why.CANNOT, f"Slurm cannot start it: {why}")

    def _step_back(self, why: Why, text: str) -> None:
        job, text = self._job, f"{self._client.name}: {text}"
        before = self._folder.held(job)
        losses = 0 if before is None else before.losses
        submitted = self._named.submitted
        self._folder.hold(job, Held(why, losses, text, submitted))
        self._report(text)
        if self._again:
            # the job still has its place in Slurm, which must be freed later
            entry = Entry({}, self._client.name, time.time(), submitted=submitted)
            self._folder.write(job, entry)
        else:
            self._folder.remove(job)
        raise StepsBack(text)

    def _let_others_go_first(self) -> None:
        """After a lease without nodes, let other jobs go first, for longer each time."""
        held = self._folder.held(self._job)
        times = 0 if held is None else held.losses - 1
        until = time.monotonic() + min(times * STAND_BACK_SECONDS, STAND_BACK_MOST)
        while time.monotonic() < until and self._do_others_request():
            time.sleep(TASKS_SECONDS)
            self._check()

    def _do_others_request(self) -> bool:
        for job in self._folder.jobs() - self._folder.jobs(".held"):
            entry = self._folder.entry(job)
            if entry is not None and entry.qpu == self._client.name and entry.pid:
                return True
        return False

    def _wait_for_turn(self) -> None:
        """Let the jobs that are ahead in Slurm's queue send their requests first.

        Their processes may have started later, or have taken longer to start. While the QPU
        accepts no requests, it has no queue, so only the first job sends requests.
        """
        began = looked = time.monotonic()
        self._write(Asks.NOT_YET)
        while self._is_behind_others(time.monotonic() - began < ORDER_SECONDS):
            time.sleep(ORDER_POLL_SECONDS)
            self._step_back_if_recalled()
            if time.monotonic() - looked >= REPORT_SECONDS or not self._reported:
                self._look()
                looked = time.monotonic()

    def _is_behind_others(self, patient: bool = False) -> bool:
        """Return whether jobs ahead of this job still have to send requests.

        :param patient: whether to include jobs that have no process yet, but soon will
        """
        for job in self._jobs_ahead(AHEAD_SECONDS if patient else REPORT_SECONDS):
            entry = self._folder.entry(job)
            if entry is None:
                blocks = patient
            else:
                waits = entry.asks in (Asks.NOT_YET, Asks.CLOSED)
                blocks = waits and is_asking(entry.pid, job)
            if blocks:
                return True
        return False

    def _jobs_ahead(self, seconds: float) -> list[int]:
        """List the jobs that are ahead and have a place.

        :param seconds: maximum age of the list
        """
        if time.monotonic() - self._listed < seconds:
            return self._ahead
        with suppress(QpuError):  # the controller may not respond
            jobs = queue()
            if (own := jobs.get(self._job)) is None:
                return []
            # jobs without a place are left out: they may wait for the place of this job
            self._ahead = [
                job.id
                for job in jobs.values()
                if (job.pool, job.buffer) == (own.pool, STAGING) and job.rank < own.rank
            ]
            self._listed = time.monotonic()
        return self._ahead


class StepsBack(QpuError):
    """The job stops requesting a lease, and is marked as held."""


def _report(client: Qpu) -> tuple[str, bool]:
    """Return why a job waits, and whether the QPU accepts no requests for leases."""
    try:
        status = client.status()
    except QuantumError:
        return f"{client.name}: does not answer", True
    if not status.online:
        return f"{client.name}: {status.reason or 'offline'}", True
    # without an ETA, since it is unknown how long these leases are needed
    return f"{client.name}: {status.leases} of {status.vqpus} leases are held", False


def _is_done(future: Future[str]) -> bool:
    """Wait briefly for a request, and return whether it has ended."""
    wait([future], TICK_SECONDS)
    return future.done()
