"""The interface of devices: everything that the queue needs from a device.

A device is one class and an entry point in the group ``sf_quantum.devices``; the entry point's
name is the ``type`` in the configuration's section ``device``. The contract tests are
``sf_quantum.testing.devices``.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sf_quantum.files import JSON
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.leases import ReservedTime
from sf_quantum.protocol.tasks import (
    JobParameters,
    Kind,
    Outcome,
    Progress,
    Task,
    shots_of,
)
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device import problems
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.service.device.readings import Calibrations
from sf_quantum.service.domain.jobs import Recovery as Recovery
from sf_quantum.service.domain.jobs import Size

if TYPE_CHECKING:
    from sf_quantum.service.device.operations import Operation


@dataclass(frozen=True)
class DeviceStatus:
    """The state of the device itself, regardless of the availability that operators set.

    :param reason: the vendor's reason why the device is not online
    :param trouble: warning in one sentence, if the device is online but impaired
    :param queue_length: number of jobs in the vendor's queue, without the service's jobs
    :param eta_seconds: time until a job that is submitted now would start at the vendor
    """

    online: bool = True
    reason: str = ""
    queue_length: int = 0
    eta_seconds: float = 0.0
    trouble: str = ""


@dataclass(frozen=True)
class Cost:
    """The expected cost of a job.

    :param qpu_seconds: QPU time, as billed
    :param spread: standard deviation of ``qpu_seconds``
    :param compute_seconds: CPU time on the service's own machine
    """

    qpu_seconds: float
    spread: float = 0.0
    compute_seconds: float = 0.0

    def times(self, jobs: int) -> Cost:
        """Return the cost of a number of such jobs, run one at a time."""
        spread = self.spread * math.sqrt(jobs)
        return Cost(self.qpu_seconds * jobs, spread, self.compute_seconds)


class DeviceJobs(ABC):
    """The jobs on a device: their submission, recovery, polling, results and cancellation.

    Attributes do not block. Methods may block, unless their docstrings say otherwise; they
    are called in threads, and must be thread-safe.
    """

    @property
    @abstractmethod
    def recovery(self) -> Recovery:
        """How jobs are recovered after the service was killed."""

    @property
    def depth(self) -> int:
        """Number of jobs to submit at a time; all but the first wait in the vendor's queue."""
        return 1

    @abstractmethod
    def submit(self, task: Task) -> str:
        """Submit a job.

        :returns: the job's id on the device
        :raises NotAccepted: if the device certainly has not accepted the job, but may accept a
            later attempt
        :raises InputError: if the device rejects the job
        :raises QpuError: if it is unknown whether the device has accepted the job
        """

    @property
    def longest_seconds(self) -> float | None:
        """Seconds after which a running job is cancelled; ``None`` sets no limit."""
        return None

    @property
    def give_up_seconds(self) -> float:
        """Seconds after which a job is abandoned.

        The time runs while the job should end but does not, or while all requests about
        the job fail although other requests succeed.
        """
        return 60.0

    def answered_since(self, moment: float) -> bool:
        """Whether the device has answered any request since a time of the monotonic clock."""
        return True

    def abandon(self, job_id: str) -> None:
        """Forget an abandoned job; does not block."""
        return

    @property
    def late_seconds(self) -> float:
        """Seconds within which a submission without a reply may still reach the device."""
        return 10.0

    def find(self, tag: str) -> str | None:
        """Look up a job by its tag, if the device's jobs are recovered by tag.

        :raises QpuError: if the device does not answer
        """
        return None

    def duplicates(self, tag: str, job_id: str) -> Sequence[str]:
        """List the other jobs with the tag of a job: submissions that arrived late.

        By default, the list has the job that :meth:`find` returns, unless its id is
        ``job_id``. A device that can list all jobs with a tag should override this method.

        :raises QpuError: if the device does not answer
        """
        other = self.find(tag)
        return [] if other in (None, job_id) else [str(other)]

    @abstractmethod
    def poll(self, job_id: str, task: Task) -> Progress:
        """Wait until the state of a job changes, or for about a second.

        A cancellation of the job ends the wait.

        :raises UnknownJob: if the device no longer knows the job
        :raises QpuError: if the device does not answer
        """

    @abstractmethod
    def result(self, job_id: str, task: Task) -> Outcome:
        """Read the outcome of a job that has ended; afterwards the device may forget the job.

        :raises UnknownJob: if the device does not know the job
        :raises QpuError: if the device does not answer
        """

    @abstractmethod
    def cancel(self, job_id: str) -> None:
        """Cancel a job; returns immediately, and has no effect if the job has ended.

        :raises QpuError: if the device does not answer
        """


class Device(ABC):
    """A device that the service drives.

    Attributes do not block. Methods may block, unless their docstrings say otherwise; they
    are called in threads, and must be thread-safe.

    :param name: name of the QPU, for users
    """

    name: str

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, JSON]) -> Self:
        """Create the device from the section ``device``, without the key ``type``.

        :raises InputError: if a key is unknown, missing or wrong
        """

    def keep_in(self, folder: Path) -> None:
        """Use a folder to keep data, such as leases, across restarts of the service.

        Called once, when the service starts. Other users may be able to read the folder, so
        files with secrets need mode 0600.
        """
        return

    # state

    @property
    @abstractmethod
    def description(self) -> Description:
        """The present description of the device, as far as it is known."""

    @property
    def status(self) -> DeviceStatus:
        """Whether the device accepts jobs, as of the last :meth:`refresh`."""
        return DeviceStatus()

    @property
    def refresh_seconds(self) -> float | None:
        """Pause between two calls of :meth:`refresh`; ``None`` if no calls are needed."""
        return None

    def refresh(self) -> None:
        """Update :attr:`description` and :attr:`status` from the device.

        If the device does not answer, its status becomes offline; no error is raised.
        """
        return

    @property
    def reservations(self) -> Mapping[str, ReservedTime | None]:
        """The reservations that leases may name, as of the last :meth:`refresh`.

        Each name maps to its present reserved time, or else to its next reserved time;
        ``None`` if no time is booked. A task names the reservation of its job's lease.
        """
        return {}

    @property
    def reservations_problem(self) -> str:
        """Why the present reservations are unknown; empty if the vendor reports them."""
        return ""

    @property
    def calibrations(self) -> Calibrations:
        """The calibrations as of now; by default, only the calibration in the description."""
        return Calibrations(self.description.calibration or CalibrationData())

    @property
    def variant(self) -> str:
        """Settings that affect results but are not in the description, as text."""
        return ""

    @property
    def controls(self) -> Sequence[Operation[Self]]:
        """The operations that admins may run on the device."""
        return ()

    @property
    def price(self) -> float | None:
        """The cost of a second of QPU time, in the site's unit."""
        return None

    def specs(self) -> str:
        """Describe the device in Pulser's abstract representation, JSON; may take a second."""
        return self.description.specs or json.dumps({"name": self.name})

    # limits and costs of jobs

    @property
    def compute_limits(self) -> ComputeLimits | None:
        """The limits of a job's computation on the service's own machine."""
        return None

    @property
    def custom_annealing(self) -> bool:
        """Whether problems may set how they are annealed.

        See :mod:`.emulator.annealing_schedules`.
        """
        return False

    @property
    def takes_lists(self) -> bool:
        """Whether a job may have a list of BQMs; if not, BQMs are submitted one at a time."""
        return False

    def check(self, kind: Kind, content: JSON, parameters: JobParameters) -> Size:
        """Reject a job that cannot run on the device; may take seconds.

        By default, only the sizes of problems are known. Under a lease with ``max_qubits``, a
        job without ``Size.qubits`` is rejected.

        :returns: the size of the job's payload
        :raises FieldError: if the job cannot run; the error names the field of the request
        :raises Busy: if this machine is too busy to check the job now
        """
        self.check_parameters(kind, parameters)
        if kind != "problem":
            return Size()
        size = problems.check(content, self.description.qubits)
        return Size(size.values, problems=size.problems, qubits=size.qubits)

    def check_parameters(self, kind: Kind, parameters: JobParameters) -> None:
        """Reject a job whose kind or parameters the device does not support.

        :raises FieldError: if the job cannot run; the error names the field of the request
        """
        description = self.description
        if kind not in description.kinds:
            kinds = " and ".join(description.kinds)
            raise FieldError(kind, f"this device runs {kinds} only")
        shots = shots_of(parameters)
        if description.shots is not None and shots > description.shots:
            detail = f"{shots} shots; at most {description.shots} per job"
            raise FieldError("parameters.num_reads", detail)

    def check_size(self, size: Size, parameters: JobParameters) -> None:
        """Reject a job whose size is not supported; the payload has already been checked.

        :raises FieldError: if the job cannot run; the error names the field of the request
        """
        return

    @abstractmethod
    def cost(self, parameters: JobParameters, size: Size | None = None) -> Cost:
        """Estimate the cost of a job; does not block."""

    def elapsed_seconds(self, cost: Cost) -> float:
        """Return how long a job of this cost occupies the device; does not block."""
        return max(cost.qpu_seconds, cost.compute_seconds)

    # jobs

    @property
    @abstractmethod
    def jobs(self) -> DeviceJobs:
        """The jobs on the device."""

    @property
    def identity(self) -> str:
        """Text that identifies the device at its vendor, to recover jobs after a restart."""
        return self.name

    def close(self) -> None:
        """Release the device's leases, processes and connections."""
        return
