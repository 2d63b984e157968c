"""First come, first served: one device, and a thread that feeds it one job at a time."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.service.device import Device, Outcome, Task
from sf_quantum.service.store import Job, Lease, State, Store

CANCELLED = "cancelled"
RELEASED = "cancelled: its lease was released"
STOPPED = "cancelled: the service was stopped"
# how long to wait for the device to let go of a cancelled job: one read of a large
# problem may take seconds
CANCEL_SECONDS = 5.0


class JobQueue:
    """The jobs of one device.

    Its coroutines belong to the event loop that ran :meth:`start`.

    :param store: where jobs are kept
    :param device: what runs them
    :param vqpus: how many leases may be held at once
    """

    def __init__(self, store: Store, device: Device, vqpus: int = 1) -> None:
        self.store = store
        self.device = device
        self.vqpus = vqpus
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._stopping = threading.Event()
        self._stop_job = threading.Event()
        self._running: str | None = None
        self._why = CANCELLED
        self._waiters: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._worker: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_end: Callable[[], None] | None = None

    def start(self) -> None:
        """Start the thread that runs jobs, with those a dead service left behind first.

        When the thread ends, asked to or not, :attr:`on_end` is called.
        """
        self.store.requeue_interrupted()
        self._loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1, thread_name_prefix="device")
        self._worker = self._loop.run_in_executor(executor, self._work)
        self._worker.add_done_callback(lambda _: self._ended())
        executor.shutdown(wait=False)

    @property
    def failure(self) -> str | None:
        """Why no job can run any more, or ``None`` while all is well."""
        if self.broken is not None:
            return f"the queue broke: {self.broken}"
        if self._worker is not None and self._worker.done():
            return "the service is being stopped"
        return None

    @property
    def broken(self) -> BaseException | None:
        """What ended the thread that runs jobs, if it was not asked to end."""
        worker = self._worker
        if worker is None or not worker.done() or worker.cancelled():
            return None
        return worker.exception()

    def request_stop(self) -> None:
        """Begin to stop: the running job is cancelled, waiting ones stay on disk."""
        with self._lock:
            self._stopping.set()
            self._why = STOPPED
            self._stop_job.set()
        self._arrived.set()

    async def stopped(self) -> None:
        """Wait until the thread has ended, however it did."""
        if self._worker is not None:
            await asyncio.wait([self._worker])

    async def submit(
        self,
        lease: str,
        key: str,
        problem: Mapping[str, JSON],
        parameters: Mapping[str, int | None],
    ) -> tuple[Job, bool]:
        """See :meth:`Store.add_job`; a new job starts as soon as the device is free."""
        added = await asyncio.to_thread(
            self.store.add_job, lease, key, problem, parameters
        )
        self._arrived.set()
        return added

    async def wait(self, job_id: str, seconds: float) -> Job | None:
        """Wait until a job is over, at most so long.

        :returns: the job as it is then, ``None`` if there is no such job
        """
        over = asyncio.Event()
        self._waiters[job_id].add(over)
        try:
            job = await asyncio.to_thread(self.store.job, job_id)
            if job is None or job.final or seconds <= 0 or self.failure:
                return job
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), seconds)
            return await asyncio.to_thread(self.store.job, job_id)
        finally:
            self._waiters[job_id].discard(over)
            if not self._waiters[job_id]:
                del self._waiters[job_id]

    async def cancel(self, job_id: str, why: str = CANCELLED) -> Job | None:
        """Cancel a job; one that runs has left the device when this returns.

        :param why: what the job's note is to say
        :returns: the job, ``None`` if there is no such job
        """
        job = await asyncio.to_thread(self._cancel, job_id, why)
        if job is None or job.final:
            self._wake(job_id)
            return job
        return await self.wait(job_id, CANCEL_SECONDS)

    async def release(self, lease_id: str) -> Lease | None:
        """Close a lease and cancel its jobs that are not over.

        :returns: the lease, ``None`` if there is no such lease
        """
        lease = await asyncio.to_thread(self.store.close_lease, lease_id)
        jobs = await asyncio.to_thread(self.store.jobs, lease_id)
        # the last one first, so that none begins while those before it are cancelled
        for job in reversed(jobs):
            if not job.final:
                await self.cancel(job.id, RELEASED)
        return lease

    def _cancel(self, job_id: str, why: str) -> Job | None:
        with self._lock:
            job = self.store.cancel_waiting(job_id, why)
            if self._running == job_id:
                self._why = why
                self._stop_job.set()
        return job

    def _work(self) -> None:
        while True:
            self._arrived.clear()
            if self._stopping.is_set():
                return
            job = self._next()
            if job is None:
                self._arrived.wait()
                continue
            self._run(job)

    def _next(self) -> Job | None:
        with self._lock:
            if self._stopping.is_set():
                return None
            job = self.store.start_next()
            self._running = job.id if job else None
            self._stop_job.clear()
        return job

    def _run(self, job: Job) -> None:
        problem = self.store.problem(job.id)
        task = Task(job.number, job.attempt, problem, job.parameters)
        try:
            outcome = self.device.run(task, self._stop_job)
        except (
            InputError,
            ValueError,
            TypeError,
            ArithmeticError,
            MemoryError,
        ) as error:
            outcome = Outcome(None, f"{type(error).__name__}: {error}", 0.0, 0.0)
        used = (outcome.qpu_seconds, outcome.seconds)
        state, note, result = self._ending(job, outcome)
        with self._lock:
            self.store.finish(job, state, note=note, used=used, result=result)
            self._running = None
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake, job.id)

    def _ending(
        self, job: Job, outcome: Outcome
    ) -> tuple[State, str | None, str | None]:
        if outcome.failure is not None:
            return "Failed", outcome.failure, None
        if outcome.samples is None:
            return "Cancelled", self._why, None
        return "Completed", None, json.dumps(self._timed(job, outcome))

    @staticmethod
    def _timed(job: Job, outcome: Outcome) -> dict[str, JSON]:
        samples = dict(outcome.samples or {})
        info = samples["info"]
        samples["info"] = {
            **(info if isinstance(info, dict) else {}),
            "job": job.id,
            "attempt": job.attempt,
            "timing": {
                "queued_seconds": (job.started or job.submitted) - job.submitted,
                "qpu_seconds": outcome.qpu_seconds,
                "seconds": outcome.seconds,
            },
        }
        return samples

    def _wake(self, job_id: str) -> None:
        for waiter in self._waiters.get(job_id, ()):
            waiter.set()

    def _ended(self) -> None:
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.set()
        if self.on_end is not None:
            self.on_end()
