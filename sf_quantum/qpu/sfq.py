"""Our own QPU service (``sfq serve``) as a QPU."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from sf_quantum import samplers
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, cannot_read
from sf_quantum.qpu import Qpu, QpuStatus
from sf_quantum.qpu.transport import Answer, Client, Unreachable

if TYPE_CHECKING:
    from dimod.core.sampler import Sampler

LEASE_HEADER = "X-SFQ-Lease"
KEYS = ("url", "tokenFile")
# Between tries of a request that did not arrive: a service that is being restarted is
# back within a second, one that is gone should not hold its step up.
PAUSES_SECONDS = (0.2, 0.6)
POLL_SECONDS = 30.0
CANCEL_SECONDS = 2.0
# statuses of the 4xx family that trying again may cure
_BUSY = (408, 425, 429)


class SfqQpu(Qpu):
    """A QPU, real or emulated, behind our service.

    :param name: letters, digits and underscores, since shell variables start with it
    :param url: ``unix:/path.sock``, ``http://127.0.0.1:port`` or ``https://...``
    :param token_file: a file with the bearer token the service asks for, if it does
    :param lease: the acquisition token, on the job's side
    """

    type = "sfq"

    def __init__(
        self,
        name: str,
        url: str,
        *,
        token_file: str | None = None,
        lease: str | None = None,
    ) -> None:
        super().__init__(name)
        self._token_file = token_file
        self._lease = lease
        headers = {}
        if token_file is not None:
            headers["Authorization"] = f"Bearer {_read_token(token_file)}"
        if lease is not None:
            headers[LEASE_HEADER] = lease
        self._client = Client(url, headers)

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, JSON]) -> Self:
        """See :meth:`Qpu.from_config`: keys ``url`` and, if need be, ``tokenFile``."""
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise InputError(
                f"QPU name {name!r}: use letters, digits and underscores only, "
                "since it starts the names of environment variables"
            )
        for key, value in config.items():
            if key not in KEYS:
                raise InputError(samplers.unknown("key", key, [*KEYS]))
            if not isinstance(value, str) or not value:
                raise InputError(f"{key}: expected a text")
        if "url" not in config:
            raise InputError(f"url: missing in the configuration of QPU {name!r}")
        token_file = config.get("tokenFile")
        return cls(
            name,
            str(config["url"]),
            token_file=str(token_file) if token_file else None,
        )

    def status(self) -> QpuStatus:
        """See :meth:`Qpu.status`."""
        device = self._ask("GET", "/v1/device").json()
        return QpuStatus(
            name=str(device.get("name")),
            technology=str(device.get("technology")),
            online=device.get("status") == "online",
            reason=str(device.get("reason") or ""),
            qubits=_int(device.get("qubits")),
            vqpus=_int(device.get("vqpus")),
            leases=_int(device.get("leases")),
            queue_length=_int(device.get("queue_length")),
        )

    def acquire(self, job: str | None = None) -> str:
        """See :meth:`Qpu.acquire`."""
        # never retried: a lease whose answer was lost would be held for ever
        answer = self._once("POST", "/v1/leases", {"job": job})
        if answer.status == 409:
            raise QpuError(f"{self._who}: {_words(answer)}")
        return self._text(self._checked(answer).json(), "id")

    def release(self, token: str) -> None:
        """See :meth:`Qpu.release`."""
        answer = self._retrying("DELETE", f"/v1/leases/{quote(token, safe='')}")
        if answer.status != 404:
            self._checked(answer)

    def environment(self, token: str) -> dict[str, str]:
        """See :meth:`Qpu.environment`."""
        variables = {
            f"{self.name}_SFQ_URL": self._client.url,
            f"{self.name}_QRMI_JOB_ACQUISITION_TOKEN": token,
        }
        if self._token_file is not None:
            variables[f"{self.name}_SFQ_TOKEN_FILE"] = self._token_file
        return variables

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
        return cls(
            name,
            values["SFQ_URL"],
            token_file=environment.get(f"{name}_SFQ_TOKEN_FILE"),
            lease=values["QRMI_JOB_ACQUISITION_TOKEN"],
        )

    def sampler(self) -> Sampler:
        """See :meth:`Qpu.sampler`."""
        from sf_quantum.qpu.sampler import QpuSampler

        return QpuSampler(self)

    def solve(
        self, bqm: Mapping[str, JSON], parameters: Mapping[str, int | None]
    ) -> dict[str, JSON]:
        """See :meth:`Qpu.solve`; interrupted, it cancels its job on the QPU.

        The idempotency key comes from the lease, the problem and the parameters: a
        second try under the same lease finds the job of the first.
        """
        given = {name: value for name, value in parameters.items() if value is not None}
        job: dict[str, JSON] = {"problem": dict(bqm), "parameters": {**given}}
        job["idempotency_key"] = self._key(job)
        try:
            followed = self._follow(self._submit(job))
        except InputError:
            raise
        except BaseException:
            with suppress(QpuError, InputError):
                self._cancel(job)
            raise
        if followed["state"] != "Completed":
            raise QpuError(
                f"{self._who}: the job ended {followed['state']}: "
                f"{followed.get('note') or 'no reason given'}"
            )
        samples = self._ask("GET", f"/v1/jobs/{followed['id']}/result").json()
        if samples.get("type") != "SampleSet":
            raise QpuError(f"{self._who}: its answer is not a sample set")
        return samples

    @property
    def _who(self) -> str:
        return f"QPU {self.name!r} at {self._client.url}"

    def _key(self, job: Mapping[str, JSON]) -> str:
        text = json.dumps([self._lease, job], sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def _submit(self, job: dict[str, JSON]) -> dict[str, JSON]:
        """Submit; where an earlier try under this lease has failed, as a new job."""
        key, number = str(job["idempotency_key"]), 1
        while True:
            answer = self._ask("POST", "/v1/jobs", job)
            found = answer.json()
            state = self._text(found, "state")
            unsuccessful = state in ("Failed", "Cancelled")
            if answer.status == 201 or not unsuccessful:
                return found
            number += 1
            job["idempotency_key"] = f"{key}-{number}"

    def _follow(self, job: dict[str, JSON]) -> dict[str, JSON]:
        path = f"/v1/jobs/{self._text(job, 'id')}?wait={POLL_SECONDS:g}"
        while self._text(job, "state") in ("Queued", "Running"):
            try:
                answer = self._retrying("GET", path, timeout_seconds=POLL_SECONDS + 10)
            except QpuError as error:
                raise QpuError(f"{error}; it died in mid-job") from error
            if answer.status == 404:
                raise QpuError(f"{self._who}: it no longer knows the job")
            job = self._checked(answer).json()
        return job

    def _cancel(self, job: Mapping[str, JSON]) -> None:
        # The key finds the job even where its first answer has not been read yet.
        answer = self._once("POST", "/v1/jobs", job, timeout_seconds=CANCEL_SECONDS)
        path = f"/v1/jobs/{self._text(self._checked(answer).json(), 'id')}"
        self._checked(self._once("DELETE", path, timeout_seconds=CANCEL_SECONDS))

    def _ask(
        self, method: str, path: str, body: Mapping[str, JSON] | None = None
    ) -> Answer:
        return self._checked(self._retrying(method, path, body))

    def _retrying(
        self,
        method: str,
        path: str,
        body: Mapping[str, JSON] | None = None,
        *,
        timeout_seconds: float = 10.0,
    ) -> Answer:
        for pause_seconds in PAUSES_SECONDS:
            with suppress(QpuError):
                return self._once(method, path, body, timeout_seconds=timeout_seconds)
            time.sleep(pause_seconds)
        return self._once(method, path, body, timeout_seconds=timeout_seconds)

    def _once(
        self,
        method: str,
        path: str,
        body: Mapping[str, JSON] | None = None,
        *,
        timeout_seconds: float = 10.0,
    ) -> Answer:
        try:
            return self._client.request(
                method, path, body, timeout_seconds=timeout_seconds
            )
        except Unreachable as error:
            raise QpuError(f"{self._who} does not answer: {error}") from error

    def _checked(self, answer: Answer) -> Answer:
        if answer.status < 400:
            return answer
        if answer.status >= 500 or answer.status in _BUSY:
            raise QpuError(f"{self._who} is in trouble: {_words(answer)}")
        raise InputError(f"{self._who} refuses: {_words(answer)}")

    def _text(self, content: Mapping[str, JSON], key: str) -> str:
        value = content.get(key)
        if not isinstance(value, str):
            raise QpuError(f"{self._who}: its answer has no {key!r}, is it sfq serve?")
        return value


def _words(answer: Answer) -> str:
    content = answer.json()
    detail = content.get("detail") or f"HTTP status {answer.status}"
    field = content.get("field")
    return f"{field}: {detail}" if field else str(detail)


def _int(value: JSON) -> int:
    return value if isinstance(value, int) else 0


def _read_token(path: str) -> str:
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(path, "token", error) from error
    if not token:
        raise InputError(f"{path}: empty; expected a token")
    return token
