"""Leases of a service, from the side of those who acquire them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import quote

from sf_quantum.errors import QpuError
from sf_quantum.files import JSON, mapping
from sf_quantum.protocol.leases import LATEST_START
from sf_quantum.protocol.tasks import LeaseJob, LeaseLost
from sf_quantum.protocol.values import number
from sf_quantum.qpu import LeaseTooLate, NoLease
from sf_quantum.qpu.sfq.service_client import REQUEST_SECONDS, ServiceClient, refusal

# A lease that expires is renewed after a third of its time.
RENEWALS = 3


@dataclass(frozen=True)
class ServiceLeases:
    """Acquires, renews and releases leases; the methods are those of :class:`Qpu`.

    :param options: options of the leases that it acquires, as in a request
    """

    service: ServiceClient
    options: Mapping[str, JSON]
    # The class granted, by token, where it is not the class requested.
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
        # A time that makes no sense still says that the lease expires.
        return None if left is None else (number(left) or 0.0) / RENEWALS

    def release(self, token: str, *, keep_place: bool = False) -> None:
        path = _lease(token) + "?keep_place=true" * keep_place
        self.service.send("DELETE", path, retry=True, expected=(404,))

    def jobs(self, token: str) -> list[LeaseJob]:
        lease = self.service.send("GET", _lease(token), retry=True).json()
        jobs, opened = lease.get("jobs"), lease.get("opened")
        if not isinstance(jobs, list) or not isinstance(opened, float):
            raise QpuError(f"{self.service.name}: not a lease, is it sfq serve?")
        return [_lease_job(token, opened, mapping(job)) for job in jobs]


def _lease(token: str) -> str:
    return f"/v1/leases/{quote(token, safe='')}"


def _lease_job(token: str, opened: float, answer: Mapping[str, JSON]) -> LeaseJob:
    job = LeaseJob.read(answer)
    return replace(
        job,
        # A job whose time is unknown counts as this lease's.
        found=(job.submitted or opened) < opened,
        charged=answer.get("charged_lease") in (None, token),
    )
