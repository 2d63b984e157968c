"""Our own QPU service (``sfq serve``) as a QPU."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from sf_quantum import samplers
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.net.transport import Answer
from sf_quantum.qpu import OVER, NoLease, Qpu, QpuStatus
from sf_quantum.qpu.access import Access, Credentials, words

if TYPE_CHECKING:
    from dimod.core.sampler import Sampler

# of the configuration: what says who asks, and what a lease is asked for with
KEYS = (
    *("url", "tokenFile", "munge"),
    *("class", "project", "expectedSeconds", "pattern"),
)
_ASKED = {
    "class": "class",
    "project": "project",
    "expectedSeconds": "expected_seconds",
    "pattern": "pattern",
}
# a lease taken within a Slurm job ends with it, and has its partition's class
_SLURM = {
    "SLURM_JOB_ID": "slurm_job_id",
    "SLURM_JOB_PARTITION": "partition",
    "SLURM_JOB_ACCOUNT": "account",
}
POLL_SECONDS = 30.0
CANCEL_SECONDS = 2.0
# a lease that runs out is renewed when a third of its time is over
RENEWALS = 3


class SfqQpu(Qpu):
    """A QPU, real or emulated, behind our service.

    :param name: letters, digits and underscores, since shell variables start with it
    :param url: ``unix:/path.sock``, ``http://127.0.0.1:port`` or ``https://...``
    :param asked: what leases are asked for with, beyond their job
    :param lease: the acquisition token, on the job's side
    :param job_key: what stays the same when the job is run again, on the job's side
    :param purpose: what its QPU jobs are for, if not what the lease is
    """

    type = "sfq"

    def __init__(
        self,
        name: str,
        url: str,
        *,
        credentials: Credentials | None = None,
        asked: Mapping[str, JSON] | None = None,
        lease: str | None = None,
        job_key: str | None = None,
        purpose: str | None = None,
    ) -> None:
        super().__init__(name)
        self._credentials = credentials or Credentials()
        self._asked = dict(asked or {})
        self._lease = lease
        self._job_key = job_key
        self._purpose = purpose
        # of leases that were given another class than they were asked for with
        self._lowered: dict[str, str] = {}
        self._access = Access(
            self._credentials.client(url, lease),
            f"QPU {name!r}",
            self._credentials.patience_seconds,
            None if lease is None else f"{name}_SFQ_PATIENCE_SECONDS",
            under_lease=lease is not None,
        )

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, JSON]) -> Self:
        """See :meth:`Qpu.from_config`.

        Key ``url``; ``tokenFile`` or ``munge`` if the service asks who it is; ``class``, ``project``,
        ``expectedSeconds`` and ``pattern`` of the leases.
        """
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise InputError(
                f"QPU name {name!r}: use letters, digits and underscores only, "
                "since it starts the names of environment variables"
            )
        for key in config:
            if key not in KEYS:
                raise InputError(samplers.unknown("key", key, [*KEYS]))
        url = _text(config, "url")
        if url is None:
            raise InputError(f"url: missing in the configuration of QPU {name!r}")
        asked = {_ASKED[key]: config[key] for key in _ASKED if key in config}
        told = {
            word: os.environ[key] for key, word in _SLURM.items() if key in os.environ
        }
        return cls(
            name,
            url,
            credentials=Credentials(_text(config, "tokenFile"), _munge(config)),
            asked={**told, **asked},
        )

    @property
    def access(self) -> Access:
        """The service, for what only it has."""
        return self._access

    def status(self) -> QpuStatus:
        """See :meth:`Qpu.status`."""
        # once: who asks how a QPU is wants to know that it does not answer
        answer = self._access.once("GET", "/v1/device")
        device = self._access.checked(answer).json()
        calibration = device.get("calibration")
        known = calibration.get("id") if isinstance(calibration, dict) else None
        return QpuStatus(
            name=str(device.get("name")),
            technology=str(device.get("technology")),
            online=device.get("status") == "online",
            reason=str(device.get("reason") or ""),
            qubits=_int(device.get("qubits")),
            vqpus=_int(device.get("vqpus")),
            leases=_int(device.get("leases")),
            queue_length=_int(device.get("queue_length")),
            calibration=str(known) if known else None,
            eta_seconds=_number(device.get("eta_seconds")),
            position=_int(device.get("position")),
            cost_per_second=_number(device.get("cost_per_second")),
            maintenance_seconds=_until(device.get("maintenance")),
            payloads=_names(device.get("payloads")),
        )

    def hinted(self, hints: Mapping[str, JSON]) -> Self:
        """See :meth:`Qpu.hinted`; they take the place of the configuration's."""
        same = copy(self)
        same._asked = self._asked | {_ASKED[key]: hints[key] for key in hints}
        return same

    def acquire(self, job: str | None = None) -> str:
        """See :meth:`Qpu.acquire`."""
        return self.acquire_waiting(job, wait_seconds=0.0)

    def acquire_waiting(
        self, job: str | None, *, wait_seconds: float, key: str | None = None
    ) -> str:
        """See :meth:`Qpu.acquire_waiting`; the service keeps a queue."""
        asked: dict[str, JSON] = {"job": job, **self._asked}
        if wait_seconds > 0:
            asked["wait"] = wait_seconds
        if key is not None:
            asked["key"] = key
        answer = self._access.once(
            "POST", "/v1/leases", asked, timeout_seconds=wait_seconds + 10
        )
        if answer.status in (409, 503):
            raise NoLease(f"{self._access.who}: {words(answer)}")
        lease = self._access.checked(answer).json()
        token, given = self._access.text(lease, "id"), lease.get("class")
        if given is not None and given != self._asked.get("class", given):
            self._lowered[token] = str(given)
        return token

    def shortfall(self, token: str) -> str | None:
        """See :meth:`Qpu.shortfall`: the service lowers a class instead of refusing it."""
        if (given := self._lowered.pop(token, None)) is None:
            return None
        return (
            f"class {given}, not {self._asked['class']} as asked for: it is the highest "
            "that the service gives this user or Slurm partition"
        )

    def renew(self, token: str) -> float | None:
        """See :meth:`Qpu.renew`."""
        lease = self._access.ask("POST", f"{_lease(token)}/renew").json()
        expires = lease.get("idle_expires")
        if not isinstance(expires, int | float):
            return None
        return max(0.0, expires - time.time()) / RENEWALS

    def release(self, token: str) -> None:
        """See :meth:`Qpu.release`."""
        answer = self._access.retrying("DELETE", _lease(token))
        if answer.status != 404:
            self._access.checked(answer)

    def jobs(self, token: str) -> list[dict[str, JSON]] | None:
        """See :meth:`Qpu.jobs`."""
        lease = self._access.ask("GET", _lease(token)).json()
        jobs, opened = lease.get("jobs"), lease.get("opened")
        if not isinstance(jobs, list) or not isinstance(opened, float):
            raise QpuError(f"{self._access.who}: no lease of ours, is it sfq serve?")
        return [_told(job, opened) for job in jobs if isinstance(job, dict)]

    def environment(self, token: str) -> dict[str, str]:
        """See :meth:`Qpu.environment`."""
        variables = {
            "SFQ_URL": self._access.url,
            "QRMI_JOB_ACQUISITION_TOKEN": token,
        }
        known = self._credentials
        if known.token_file is not None:
            variables["SFQ_TOKEN_FILE"] = known.token_file
        if known.munge:
            variables["SFQ_MUNGE"] = known.munge if known.munge is not True else "1"
        if known.patience_seconds is not None:
            variables["SFQ_PATIENCE_SECONDS"] = f"{known.patience_seconds:g}"
        return {f"{self.name}_{key}": value for key, value in variables.items()}

    @classmethod
    def from_environment(cls, name: str, environment: Mapping[str, str]) -> Self:
        """See :meth:`Qpu.from_environment`."""
        values = {}
        for suffix in ("SFQ_URL", "QRMI_JOB_ACQUISITION_TOKEN"):
            key = f"{name}_{suffix}"
            if not environment.get(key):
                raise InputError(
                    f"{key} is not set, though QPU {name!r} is in the environment"
                )
            values[suffix] = environment[key]
        munge = environment.get(f"{name}_SFQ_MUNGE", "")
        return cls(
            name,
            values["SFQ_URL"],
            credentials=Credentials(
                environment.get(f"{name}_SFQ_TOKEN_FILE"),
                munge if munge.startswith("/") else munge == "1",
                _seconds(environment, f"{name}_SFQ_PATIENCE_SECONDS"),
            ),
            lease=values["QRMI_JOB_ACQUISITION_TOKEN"],
            job_key=environment.get(f"{name}_SFQ_JOB_KEY"),
            purpose=environment.get(f"{name}_SFQ_PURPOSE"),
        )

    def sampler(self) -> Sampler:
        """See :meth:`Qpu.sampler`."""
        from sf_quantum.qpu.sampler import QpuSampler

        return QpuSampler(self)

    def solve(
        self, bqm: Mapping[str, JSON], parameters: Mapping[str, int | None]
    ) -> dict[str, JSON]:
        """See :meth:`Qpu.solve`; interrupted, it cancels its job on the QPU.

        The idempotency key comes from the job's key, the problem and the parameters: a
        second try finds the QPU job of the first, also when the driver was killed
        between them. Without a job's key it comes from the lease.
        """
        given = {name: value for name, value in parameters.items() if value is not None}
        job: dict[str, JSON] = {"problem": dict(bqm), "parameters": {**given}}
        job["idempotency_key"] = self._key(job)
        if self._purpose is not None:
            job["purpose"] = self._purpose
        try:
            followed = self._follow(self._submit(job))
            while self._was_of_another(followed):
                followed = self._follow(self._submit(job))
        except InputError:
            raise
        except BaseException:
            with suppress(QpuError, InputError):
                self._cancel(job)
            raise
        if followed["state"] != "Completed":
            raise QpuError(
                f"{self._access.who}: the job ended {followed['state']}: "
                f"{followed.get('note') or 'no reason given'}"
            )
        result = f"/v1/jobs/{followed['id']}/result"
        samples = self._access.ask("GET", result).json()
        if samples.get("type") != "SampleSet":
            raise QpuError(f"{self._access.who}: its answer is not a sample set")
        return samples

    def _key(self, job: Mapping[str, JSON]) -> str:
        scope = self._job_key or self._lease
        text = json.dumps([scope, job], sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def _submit(self, job: dict[str, JSON]) -> dict[str, JSON]:
        """Submit; where an earlier try has failed, as a new job."""
        key, number = str(job["idempotency_key"]), 1
        while True:
            answer = self._access.ask("POST", "/v1/jobs", job)
            found = answer.json()
            state = self._access.text(found, "state")
            unsuccessful = state in ("Failed", "Cancelled")
            if answer.status == 201 or not unsuccessful:
                return found
            number += 1
            job["idempotency_key"] = f"{key}-{number}"

    def _was_of_another(self, job: Mapping[str, JSON]) -> bool:
        """Whether a job that was found ended because the lease of its time did."""
        return job["state"] == "Cancelled" and job.get("lease") not in (
            None,
            self._lease,
        )

    def _follow(self, job: dict[str, JSON]) -> dict[str, JSON]:
        path = f"/v1/jobs/{self._access.text(job, 'id')}?wait={POLL_SECONDS:g}"
        while self._access.text(job, "state") not in OVER:
            job = self._access.checked(self._poll(path)).json()
        return job

    def _poll(self, path: str) -> Answer:
        try:
            answer = self._access.retrying(
                "GET", path, timeout_seconds=POLL_SECONDS + 10
            )
        except QpuError as error:
            raise QpuError(f"{error}; it died in mid-job") from error
        if answer.status == 404:
            raise QpuError(f"{self._access.who}: it no longer knows the job")
        return answer

    def _cancel(self, job: Mapping[str, JSON]) -> None:
        # The key finds the job even where its first answer has not been read yet.
        access = self._access
        answer = access.once("POST", "/v1/jobs", job, timeout_seconds=CANCEL_SECONDS)
        path = f"/v1/jobs/{access.text(access.checked(answer).json(), 'id')}"
        access.checked(access.once("DELETE", path, timeout_seconds=CANCEL_SECONDS))


def _told(job: dict[str, JSON], opened: float) -> dict[str, JSON]:
    submitted = job.get("submitted")
    return {**job, "found": isinstance(submitted, float) and submitted < opened}


def _lease(token: str) -> str:
    return f"/v1/leases/{quote(token, safe='')}"


def _int(value: JSON) -> int:
    return value if isinstance(value, int) else 0


def _names(value: JSON) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _number(value: JSON) -> float | None:
    return value if isinstance(value, int | float) else None


def _until(moment: JSON) -> float | None:
    """Seconds from now to a time since the epoch."""
    return max(0.0, moment - time.time()) if isinstance(moment, int | float) else None


def _text(config: Mapping[str, JSON], key: str) -> str | None:
    value = config.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise InputError(f"{key}: expected a text")
    return value


def _munge(config: Mapping[str, JSON]) -> str | bool:
    value = config.get("munge", False)
    if isinstance(value, bool) or (isinstance(value, str) and value.startswith("/")):
        return value
    raise InputError("munge: expected true, false or the path of munged's socket")


def _seconds(environment: Mapping[str, str], key: str) -> float | None:
    if key not in environment:
        return None
    try:
        return float(environment[key])
    except ValueError as error:
        raise InputError(f"{key}: expected seconds") from error
