"""The device protocol: what the queue needs of any device, and no more.

A device is one class and an entry point in the group ``sf_quantum.devices``; its name
there is the ``type`` in the configuration's section ``device``. The contract tests are
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
    """The state of a device, apart from what its service's operators set.

    :param reason: why it is not online, in the vendor's words
    :param trouble: what hinders it although it is online, in one sentence
    :param queue_length: number of jobs in the vendor's queue, without the service's
    :param eta_seconds: time until a job that is submitted now would start there
    """

    online: bool = True
    reason: str = ""
    queue_length: int = 0
    eta_seconds: float = 0.0
    trouble: str = ""


@dataclass(frozen=True)
class Cost:
    """What a job is expected to cost.

    :param qpu_seconds: QPU time, as billed
    :param spread: standard deviation of ``qpu_seconds``
    :param compute_seconds: CPU time on the service's own machine
    """

    qpu_seconds: float
    spread: float = 0.0
    compute_seconds: float = 0.0

    def times(self, jobs: int) -> Cost:
        """Return the cost of such jobs one after the other."""
        spread = self.spread * math.sqrt(jobs)
        return Cost(self.qpu_seconds * jobs, spread, self.compute_seconds)


class DeviceJobs(ABC):
    """The jobs on a device: submitted, found again, followed, read, cancelled.

    Its attributes do not block. Its methods may, unless they say otherwise; they are
    called in threads, and must be safe there.
    """

    @property
    @abstractmethod
    def recovery(self) -> Recovery:
        """What becomes of a job when the service is killed."""

    @property
    def depth(self) -> int:
        """How many jobs it takes at once; all but the first wait in the vendor's queue."""
        return 1

    @abstractmethod
    def submit(self, task: Task) -> str:
        """Submit a job.

        :returns: its id on the device
        :raises NotAccepted: if there is certainly no job, and another attempt may succeed
        :raises InputError: if the device refuses the job
        :raises QpuError: if there may be a job
        """

    @property
    def longest_seconds(self) -> float | None:
        """For how long a job may run, after which it is cancelled; ``None``: for ever."""
        return None

    @property
    def give_up_seconds(self) -> float:
        """After which a job is given up that is to end, or that alone is not answered for."""
        return 60.0

    def answered_since(self, moment: float) -> bool:
        """Whether it has answered any request since a moment of the monotonic clock."""
        return True

    def abandon(self, job_id: str) -> None:
        """Forget a job that is given up; does not block."""
        return

    @property
    def late_seconds(self) -> float:
        """For how long a submission that was not answered may still arrive."""
        return 10.0

    def find(self, tag: str) -> str | None:
        """Look up a job by its tag, on a device whose jobs are recovered so.

        :raises QpuError: if the device does not answer
        """
        return None

    def others(self, tag: str, job_id: str) -> Sequence[str]:
        """List the jobs with the tag of a job beside it: of submissions that arrived late.

        This finds one that :meth:`find` returns instead of the job; a device that can list
        all jobs with a tag should.

        :raises QpuError: if the device does not answer
        """
        other = self.find(tag)
        return [] if other in (None, job_id) else [str(other)]

    @abstractmethod
    def poll(self, job_id: str, task: Task) -> Progress:
        """Wait until the state of a job changes, or for about a second.

        A cancellation ends the wait.

        :raises UnknownJob: if the device no longer knows it
        :raises QpuError: if the device does not answer
        """

    @abstractmethod
    def result(self, job_id: str, task: Task) -> Outcome:
        """Read how a job that is over ended. The device may forget the job then.

        :raises UnknownJob: if the device does not know it
        :raises QpuError: if the device does not answer
        """

    @abstractmethod
    def cancel(self, job_id: str) -> None:
        """Cancel a job; returns at once, and is harmless for one that is over.

        :raises QpuError: if the device does not answer
        """


class Device(ABC):
    """A device that the service drives.

    Its attributes do not block. Its methods may, unless they say otherwise; they are
    called in threads, and must be safe there.

    :param name: name of the QPU, for users
    """

    name: str

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, JSON]) -> Self:
        """Make the device from the configuration's section, without its ``type``.

        :raises InputError: if a key is unknown, missing or wrong
        """

    def keep_in(self, folder: Path) -> None:
        """Keep in this folder what the next service has to know, such as leases.

        Called once, when the service starts. Others may be able to read the folder, so
        secrets need files of mode 0600.
        """
        return

    # how it is

    @property
    @abstractmethod
    def description(self) -> Description:
        """The device as it is now, as far as is known."""

    @property
    def status(self) -> DeviceStatus:
        """Whether it takes work; as of the last :meth:`refresh`."""
        return DeviceStatus()

    @property
    def refresh_seconds(self) -> float | None:
        """The pause between two calls of :meth:`refresh`; ``None`` if it needs none."""
        return None

    def refresh(self) -> None:
        """Ask the device how it is, for :attr:`description` and :attr:`status`.

        A device that does not answer is offline; this raises nothing.
        """
        return

    @property
    def reservations(self) -> Mapping[str, ReservedTime | None]:
        """The reservations that leases may name, as of the last :meth:`refresh`.

        Each has the time that runs, or else the next one; ``None`` if none is booked. A task
        names that of its job's lease.
        """
        return {}

    @property
    def reservations_problem(self) -> str:
        """Why the vendor does not say what its reservations are now; empty if it does."""
        return ""

    @property
    def calibrations(self) -> Calibrations:
        """Its calibrations, as of now; by default, the one that its description names."""
        return Calibrations(self.description.calibration or CalibrationData())

    @property
    def variant(self) -> str:
        """What its results depend on, beside what its description says."""
        return ""

    @property
    def controls(self) -> Sequence[Operation[Self]]:
        """The operations of admins on it."""
        return ()

    @property
    def price(self) -> float | None:
        """The cost of a second of QPU time, in the site's unit."""
        return None

    def specs(self) -> str:
        """Describe it in Pulser's abstract representation, JSON; may take a second."""
        return self.description.specs or json.dumps({"name": self.name})

    # what a job may be, and costs

    @property
    def compute_limits(self) -> ComputeLimits | None:
        """The limits of a job's computation on the service's own machine."""
        return None

    @property
    def custom_annealing(self) -> bool:
        """Whether a problem may say how it is annealed; see :mod:`.emulator.annealing_schedules`."""
        return False

    @property
    def takes_lists(self) -> bool:
        """Whether it takes a list of BQMs; else the service sends them one after the other."""
        return False

    def check(self, kind: Kind, content: JSON, parameters: JobParameters) -> Size:
        """Refuse a job that cannot run on it; may take seconds.

        :returns: the size of its payload
        :raises FieldError: if it cannot run; the error names the field of the request
        :raises Busy: if this machine is too busy to check it now
        """
        self.check_parameters(kind, parameters)
        if kind != "problem":
            return Size()
        size = problems.check(content, self.description.qubits)
        return Size(size.values, problems=size.problems, qubits=size.qubits)

    def check_parameters(self, kind: Kind, parameters: JobParameters) -> None:
        """Refuse a job that cannot run on it, whatever its content.

        :raises FieldError: if it cannot run; the error names the field of the request
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
        """Refuse a job whose payload has been checked elsewhere, by its size.

        :raises FieldError: if it cannot run; the error names the field of the request
        """
        return

    @abstractmethod
    def cost(self, parameters: JobParameters, size: Size | None = None) -> Cost:
        """Estimate what a job costs; does not block."""

    def elapsed_seconds(self, cost: Cost) -> float:
        """Return how long a job of this cost occupies the device; does not block."""
        return max(cost.qpu_seconds, cost.compute_seconds)

    # jobs

    @property
    @abstractmethod
    def jobs(self) -> DeviceJobs:
        """The jobs on it."""

    @property
    def identity(self) -> str:
        """Tells whether a job of an earlier service is on this device, at this vendor."""
        return self.name

    def close(self) -> None:
        """Give back what it holds: leases, processes, connections."""
        return
