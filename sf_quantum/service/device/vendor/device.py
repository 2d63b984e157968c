"""A real QPU, of any registered kind, as a device.

Jobs are submitted with the vendor's client, as workflow steps do, under a lease of the
vendor. If the vendor's API has no jobs, the client's sampler runs in a separate process; such
a job cannot be recovered after a restart of the service.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.leases import ReservedTime
from sf_quantum.protocol.tasks import (
    JobParameters,
    Kind,
    NotAccepted,
)
from sf_quantum.qpu import NoLease, Qpu
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device import problems
from sf_quantum.service.device.interface import Cost, Device, DeviceStatus
from sf_quantum.service.device.vendor import sizes
from sf_quantum.service.device.vendor.answer_checks import (
    bounded_errors,
)
from sf_quantum.service.device.vendor.costs import Costs
from sf_quantum.service.device.vendor.lease import VendorLease
from sf_quantum.service.device.vendor.settings import QpuSettings
from sf_quantum.service.device.vendor.state import VendorState
from sf_quantum.service.device.vendor.vendor_jobs import VendorJobs
from sf_quantum.service.domain.jobs import Size
from sf_quantum.validation import dotted, validated


class QpuDevice(Device):
    """A device of any registered kind of QPU; see :class:`QpuSettings`.

    :raises InputError: if the kind cannot be used, or ``config`` is wrong
    """

    def __init__(self, settings: QpuSettings) -> None:
        self.name = settings.name
        self._settings = settings
        digest = hashlib.sha256(
            json.dumps(
                [socket.gethostname(), self._identity(settings.client())]
            ).encode()
        ).hexdigest()
        self._lease = VendorLease(
            settings.client,
            f"sfq-serve-{digest[:32]}",
            wait_seconds=settings.poll_seconds,
            idle_seconds=settings.idle_seconds,
        )
        self._kind = type(self._lease.driver)
        kinds: tuple[Kind, ...] = self._kind.kinds or ("problem",)
        self._state = VendorState(settings, Description("unknown", 0, kinds))
        self._costs = Costs(settings.expected_seconds)
        self._jobs = VendorJobs(settings, self._lease, self._state, self._costs)

    @classmethod
    def from_config(cls, config: Mapping[str, JSON]) -> Self:
        def name(key: tuple[int | str, ...], value: JSON) -> str:
            shown = f" {value}" if isinstance(value, str | int | float) else ""
            return f"{dotted(key)}{shown}"

        return cls(validated(QpuSettings, {**config}, name))

    def keep_in(self, folder: Path) -> None:
        # a lease's token is valid only at this vendor
        self._lease.keep_in(folder / f"vendor-lease-{self.identity[:16]}.json")
        self.jobs.keep_in(folder, self.identity)

    # state

    @property
    def description(self) -> Description:
        return self._state.description

    @property
    def reservations(self) -> Mapping[str, ReservedTime | None]:
        return self._state.reservations

    @property
    def reservations_problem(self) -> str:
        return self._state.reservations_trouble.why

    @property
    def refresh_seconds(self) -> float:
        return self._settings.refresh_seconds

    @property
    def price(self) -> float | None:
        status = self._state.status
        quoted = status.cost_per_second if status else None
        configured = self._settings.cost_per_second
        return quoted if configured is None else configured

    @property
    def status(self) -> DeviceStatus:
        status, length, eta = self._state.status, 0, 0.0
        if status is not None:
            ours = [job.left for job in self.jobs.table.wanted]
            length = max(0, status.queue_length - len(ours))
            eta = max(0.0, (status.eta_seconds or 0.0) - sum(ours))
        reason, vendor = self._state.obstacle, self._state.vendor
        trouble = ""
        if reason is None and (left := vendor.left):
            trouble = f"asked again in {left:.0f} s: {vendor.why}"
        return DeviceStatus(reason is None, reason or "", length, eta, trouble)

    def refresh(self) -> None:
        """See :meth:`Device.refresh`; also renews or releases the vendor's lease."""
        state = self._state
        if state.pause:
            return
        began = time.monotonic()
        try:
            with bounded_errors():
                self._refresh()
        except NotAccepted as error:
            state.postponed(error)  # too many requests
        except NoLease:
            state.access.why = ""
        except QpuError as error:
            state.unanswered(error, time.monotonic() - began)
        except InputError as error:
            state.refused(error)

    def _refresh(self) -> None:
        state, lease = self._state, self._lease
        if state.access.why:
            lease.read_credentials()
        state.describe(lease.driver, state.read_status(lease.driver))
        state.read_reservations(lease.driver)
        state.refreshed()
        lease.maintain(self.jobs.table.busy)
        if state.access.why:  # check whether the vendor accepts the user again
            lease.take()
            lease.done()
            state.access.why = ""

    # sizes and costs of jobs

    def check(self, kind: Kind, content: JSON, parameters: JobParameters) -> Size:
        """See :meth:`Device.check`; the vendor checks the rest at submission."""
        size = super().check(kind, content, parameters)
        if kind == "problem":
            solver = problems.solver(self.description)
            return problems.with_solver(size, content, parameters, solver)
        size = sizes.checked(kind, content, self.description)
        self._kind.check(kind, content)
        return size

    def check_size(self, size: Size, parameters: JobParameters) -> None:
        most = self.description.qubits
        # The BQMs of a list have been checked individually; `values` is the sum of their
        # variables.
        if 0 < most < size.values and not size.problems:
            detail = f"{size.values} variables do not fit on {most} qubits"
            raise FieldError("problem.variable_labels", detail)

    def cost(self, parameters: JobParameters, size: Size | None = None) -> Cost:
        """See :meth:`Device.cost`; from the vendor's timing, or else from past bills."""
        return self._costs.cost(self.description.timing, parameters, size)

    # jobs

    @property
    def jobs(self) -> VendorJobs:
        return self._jobs

    @property
    def identity(self) -> str:
        """See :meth:`Device.identity`; derived from the client's identity."""
        return self._identity(self._lease.driver)

    def _identity(self, client: Qpu) -> str:
        text = json.dumps([self._settings.qpu, self.name, client.identity])
        return hashlib.sha256(text.encode()).hexdigest()

    def close(self) -> None:
        self.jobs.close()
