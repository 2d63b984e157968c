"""Leases of a service, from the client's side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated
from urllib.parse import quote

from sf_quantum import structs
from sf_quantum.files import JSON
from sf_quantum.protocol.leases import LATEST_START
from sf_quantum.protocol.tasks import LeaseJob, LeaseLost
from sf_quantum.protocol.values import number
from sf_quantum.qpu import LeaseTooLate, NoLease
from sf_quantum.qpu.sfq.service_client import (
    REQUEST_SECONDS,
    ServiceClient,
    read_answer,
    refusal,
)

# A lease that expires is renewed after a third of its time.
RENEWALS = 3


@dataclass(frozen=True)
class ServiceLeases:
    """Acquires, renews and releases leases; the methods are those of :class:`Qpu`.

    :param options: options of the acquired leases, as in a request
    """

    service: ServiceClient
    options: Mapping[str, JSON]
    # The granted class by token, if it is not the requested class.
    _other_class: dict[str, str] = field(default_factory=dict)

    def acquire_waiting(
        self, job: str | None, wait_seconds: float, key: str | None
    ) -> str:
        body: dict[str, JSON] = {"job": job, **self.options}
        if wait_seconds > 0:
            body["wait"] = wait_seconds
        if key is not None:
            body["key"] = key
        timeout = wait_seconds + REQUEST_SECONDS
        send = partial(
            self.service.send, "POST", "/v1/leases", body, timeout_seconds=timeout
        )
        response = send(expected=(409, 503))
        if response.status >= 400:
            late = response.json().get("field") == LATEST_START
            kind = LeaseTooLate if late else NoLease
            raise kind(f"{self.service.name}: {refusal(response)}")
        lease = response.json()
        token, class_ = self.service.text(lease, "id"), lease.get("class")
        if class_ is not None and class_ != self.options.get("class", class_):
            self._other_class[token] = str(class_)
        return token

    def shortfall(self, token: str) -> str | None:
        if (class_ := self._other_class.pop(token, None)) is None:
            return None
        return (
            f"class {class_}, not {self.options['class']} as requested: it is the "
            "highest that the service grants this user or Slurm partition"
        )

    def renew(self, token: str) -> float | None:
        path = f"{_lease(token)}/renew"
        response = self.service.send("POST", path, retry=True, expected=(404,))
        if response.status == 404:
            raise LeaseLost(f"{self.service.name} refuses: {refusal(response)}")
        left = response.json().get("idle_seconds_left")
        # Even an invalid time shows that the lease expires.
        return None if left is None else (number(left) or 0.0) / RENEWALS

    def release(self, token: str, *, keep_position: bool = False) -> None:
        path = _lease(token) + "?keep_place=true" * keep_position
        self.service.send("DELETE", path, retry=True, expected=(404,))

    def jobs(self, token: str) -> list[LeaseJob]:
        answer = self.service.send("GET", _lease(token), retry=True).json()
        lease = read_answer(self.service.name, _Lease, answer, "a lease")
        return [
            replace(
                job,
                # A job without a time is treated as submitted under this lease.
                found=(job.submitted or lease.opened) < lease.opened,
                charged=charged in (None, token),
            )
            for job, charged in lease.jobs
        ]


@dataclass(frozen=True)
class _Charged:
    charged_lease: str | None = None


def _job(value: JSON) -> tuple[LeaseJob, str | None]:
    """Read a job, and the lease to which its use is charged."""
    return LeaseJob.read(value), structs.read(_Charged, value).charged_lease


@dataclass(frozen=True)
class _Lease:
    opened: float
    jobs: tuple[Annotated[tuple[LeaseJob, str | None], _job], ...]


def _lease(token: str) -> str:
    return f"/v1/leases/{quote(token, safe='')}"
