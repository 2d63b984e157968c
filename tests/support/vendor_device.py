"""A device whose vendor does what a test tells it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from sf_quantum.files import JSON
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import (
    JobParameters,
    Outcome,
    Progress,
    Result,
    State,
    Task,
    UnknownJob,
)
from sf_quantum.service.device.interface import Cost, Device, DeviceJobs, DeviceStatus
from sf_quantum.service.domain.jobs import (
    Identity,
    Job,
    Kind,
    LeaseRequest,
    Recovery,
    Size,
    Submission,
    UserClass,
)
from sf_quantum.service.queue.job_queue import JobQueue
from tests.support.service import problem
from tests.support.waiting import SECONDS

ANN = Identity("ann", admin=True)


@dataclass
class VendorJob:
    """A job as its vendor has it."""

    id: str
    tag: str
    task: Task
    state: State = "Queued"
    billed: float = 0.0


@dataclass
class Vendor:
    """A vendor's service, which outlives ours; it runs one job after the other.

    :param trouble: what the next requests of a kind raise, before they have an effect, or
        after it if they are in ``late``
    """

    jobs: dict[str, VendorJob] = field(default_factory=dict)
    trouble: dict[str, list[Exception]] = field(default_factory=dict)
    late: dict[str, list[Exception]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    online: bool = True
    qubits: int = 10
    late_seconds: float = 0.05

    def raises(self, when: dict[str, list[Exception]], what: str) -> None:
        if when.get(what):
            raise when[what].pop(0)

    def submit(self, task: Task) -> str:
        with self.changed:
            self.raises(self.trouble, "submit")
            job = VendorJob(f"v{len(self.jobs) + 1}", task.tag, task)
            self.jobs[job.id] = job
            self.go_on()
            self.raises(self.late, "submit")
            return job.id

    def go_on(self) -> None:
        """Start the next job if none runs; call it with the lock."""
        live = [job for job in self.jobs.values() if job.state == "Running"]
        queued = [job for job in self.jobs.values() if job.state == "Queued"]
        if not live and queued:
            queued[0].state = "Running"
        self.changed.notify_all()

    def end(self, job_id: str, state: State = "Completed", billed: float = 2.0) -> None:
        with self.changed:
            job = self.jobs[job_id]
            if job.state in ("Queued", "Running"):
                job.billed = billed if job.state == "Running" else 0.0
                job.state = state
            self.go_on()

    @property
    def names(self) -> list[str]:
        """What was submitted, in order."""
        jobs = self.jobs.values()
        return [str(json.loads(job.task.payload)["info"]["name"]) for job in jobs]


CALIBRATION = CalibrationData("c1")


class VendorDevice(Device, DeviceJobs):
    """A client of the vendor and its jobs, found again by the means that a test chooses."""

    price: float | None = None

    def __init__(
        self, vendor: Vendor, recovery: Recovery = Recovery.BY_TAG, depth: int = 1
    ) -> None:
        self.name = "vendor"
        self.vendor = vendor
        self._recovery = recovery
        self._depth = depth
        self._cancelled = set[str]()
        #: whether it tells how long jobs take
        self.timed = True

    @classmethod
    def from_config(cls, config: Mapping[str, JSON]) -> Self:
        raise NotImplementedError

    @property
    def description(self) -> Description:
        kinds: tuple[Kind, ...] = ("problem", "circuit")
        return Description("annealer", self.vendor.qubits, kinds)

    @property
    def status(self) -> DeviceStatus:
        online = self.vendor.online
        return DeviceStatus(online, "" if online else "the cryostat is warm")

    @property
    def refresh_seconds(self) -> float | None:
        return 0.01

    def cost(self, parameters: JobParameters, size: Size | None = None) -> Cost:
        return Cost(0.1 * (parameters.get("num_reads") or 1) if self.timed else 9.0)

    @property
    def jobs(self) -> Self:
        return self

    @property
    def recovery(self) -> Recovery:
        return self._recovery

    @property
    def depth(self) -> int:
        return self._depth

    @property
    def late_seconds(self) -> float:
        return self.vendor.late_seconds

    def submit(self, task: Task) -> str:
        return self.vendor.submit(task)

    def find(self, tag: str) -> str | None:
        self.vendor.raises(self.vendor.trouble, "find")
        found = [job.id for job in self.vendor.jobs.values() if job.tag == tag]
        return found[0] if found else None

    def poll(self, job_id: str, task: Task) -> Progress:
        vendor = self.vendor
        with vendor.changed:
            vendor.raises(vendor.trouble, "poll")
            job = self._job(job_id)
            if job.state in ("Queued", "Running"):
                vendor.changed.wait(0.01)
                vendor.raises(vendor.trouble, "poll")
            return Progress(job.state, eta_seconds=7.0)

    def result(self, job_id: str, task: Task) -> Outcome:
        self.vendor.raises(self.vendor.trouble, "result")
        job = self._job(job_id)
        assert job.task.payload == task.payload
        counter = json.dumps({"counter": {job_id: task.shots, "all": task.shots}})
        result = Result(counter, {"by": job_id})
        failure = "it broke" if job.state == "Failed" else None
        lost = None
        if job.state == "Cancelled" and job_id not in self._cancelled:
            lost = "its lease has ended"
        completed = result if job.state == "Completed" else None
        return Outcome(completed, failure, job.billed, None, CALIBRATION, lost=lost)

    def cancel(self, job_id: str) -> None:
        self.vendor.raises(self.vendor.trouble, "cancel")
        self._cancelled.add(job_id)
        self.vendor.end(job_id, "Cancelled", billed=0.5)

    def _job(self, job_id: str) -> VendorJob:
        if (job := self.vendor.jobs.get(job_id)) is None:
            raise UnknownJob(f"no job {job_id}")
        return job


async def submit(
    queue: JobQueue,
    name: str,
    job_class: UserClass = "test",
    *,
    repeatable: bool = False,
    shots: int = 5,
    kind: Kind = "problem",
) -> Job:
    held = [lease for lease in queue.leases.held if lease.job_class == job_class]
    request = LeaseRequest(job_class=job_class)
    lease = held[0] if held else await queue.leases.acquire(ANN, request)
    asked = Submission(
        kind, problem(name), {"num_reads": shots}, name, repeatable=repeatable
    )
    return (await queue.submit(ANN, lease.id, asked))[0]


async def over(queue: JobQueue, job: Job) -> Job:
    found = await queue.wait(ANN, job.id, SECONDS)
    assert found.final, queue.failure
    return found
