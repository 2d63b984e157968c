"""A client of ``slurmrestd``, Slurm's REST API, and the token for it.

The guardian of a driver also uses this module, so it must not import StreamFlow.
"""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from sf_quantum import structs
from sf_quantum.connectors.slurm.transport import answers, rest_job
from sf_quantum.connectors.slurm.transport.answers import JobOutcome
from sf_quantum.connectors.slurm.transport.rest_job import (
    AccountedJob,
    Number,
    RestJob,
)
from sf_quantum.deadline import Deadline
from sf_quantum.errors import InputError, QuantumError
from sf_quantum.files import JSON, parse_json
from sf_quantum.net.transport import KeptClient, Unreachable, Unsendable
from sf_quantum.protocol.values import number
from sf_quantum.slurm.partitions import NodeKind, Partition
from sf_quantum.structs import WrongValue
from sf_quantum.text import one_line

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
# Versions of the API, preferred version first. Slurm 26.05 has the first, releases since 24.11
# have the second, 23.11 and 24.05 the third, and 22.05 and 23.02 the last. Older versions of
# the API lack keys of jobs. Each release of Slurm drops the oldest version.
VERSIONS = ("v0.0.45", "v0.0.42", "v0.0.40", rest_job.OLDEST_VERSION)
# time limit of a request
REQUEST_SECONDS = 20.0
# time limit of the command that prints a token
COMMAND_SECONDS = 30.0
# A token is renewed this long before it expires, but not before the last quarter of its life.
RENEW_SECONDS = 10.0
# Jobs to cancel are listed until this number of consecutive lists is empty, with this pause
# between two lists, since a job that was being submitted may appear late.
SWEEP_PAUSE_SECONDS = 1.0
SWEEPS = 3
# text that `scontrol token` prints before the token
_PREFIX = "SLURM_JWT="
# slurm_errno.h: invalid job id
_NO_JOB = 2017
# Errors that Slurm 22.05 returns if a token is refused or has expired: an unspecified error,
# "zero bytes transmitted" or, from slurmdbd, a protocol authentication error.
_PERHAPS_TOKEN = frozenset({-1, 5005, 1007})
# A query for a single job takes as long as seven jobs in a list (2.2 ms; 0.3 ms per job).
_LIST_RATIO = 7


class RestError(QuantumError):
    """A request to ``slurmrestd`` has failed.

    :param temporary: whether a retry may succeed; the request may still have had its effect
    :param number: Slurm's error number; 0 if there is none
    :param job: id of a job that was submitted in spite of the error, if any
    """

    def __init__(
        self, message: str, *, temporary: bool, number: int = 0, job: str = ""
    ) -> None:
        super().__init__(message)
        self.temporary = temporary
        self.number = number
        self.job = job


class Token:
    """A JSON Web Token, which a file or a command provides.

    :param file: file with the token, which is read for each request
    :param command: command that prints the token, which is run again before the token expires,
        or if the token is refused
    """

    def __init__(self, file: str | None, command: str | None) -> None:
        self._file = file
        self._command = command or ""
        self.source = f"file {file}" if file else f"command {command!r}"
        self._value = ""
        self._lock = threading.Lock()

    def get(self) -> str:
        """Return the token.

        :raises RestError: if the token cannot be read
        """
        with self._lock:
            if self._file:
                self._value = self._read(self._file)
            elif not self._value or _is_expiring(self._value):
                self._value = self._run()
            return self._value

    def refused(self, value: str) -> str:
        """Note that a request with a token was refused; return the reason, if known."""
        with self._lock:
            if self._value == value:
                self._value = ""
        if 0 < Claims.of(value).exp <= time.time():
            return f"the token of {self.source} has expired"
        return ""

    def _read(self, file: str) -> str:
        try:
            return self._parse(Path(file).read_text())
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise self._error_of(f"cannot be read: {reason.lower()}") from None

    def _run(self) -> str:
        """Run the command, and return the token that it prints."""
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", self._command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise self._error_of(f"took over {COMMAND_SECONDS:g} s") from None
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["it printed no error"])[-1]
            raise self._error_of(f"failed with exit code {done.returncode}: {last}")
        return self._parse(done.stdout)

    def _parse(self, text: str) -> str:
        value = text.strip().removeprefix(_PREFIX)
        if len(value.split()) != 1 or not (value.isascii() and value.isprintable()):
            # The text is not shown, as it may be a credential.
            raise self._error_of("has no token: expected one line, the token")
        return value

    def _error_of(self, what: str) -> RestError:
        text = f"there is no token for slurmrestd: {self.source} {what}"
        return RestError(text, temporary=True)


def _expiry(value: JSON) -> float:
    # An absurdly late time becomes 0: the token then never expires.
    return number(value) or 0.0


@dataclass(frozen=True)
class Claims:
    """The claims of a JSON Web Token: RFC 7519, and Slurm's ``sun``, the name of the user."""

    sun: str = ""
    exp: Annotated[float, _expiry] = 0.0
    iat: Annotated[float, _expiry] = 0.0

    @classmethod
    def of(cls, token: str) -> Claims:
        """Read the claims without verifying them; they are empty for other kinds of tokens."""
        with suppress(ValueError, IndexError):
            body = base64.urlsafe_b64decode(f"{token.split('.')[1]}===")
            return structs.read(cls, parse_json(body))
        return cls()


def _is_expiring(token: str) -> bool:
    claims = Claims.of(token)
    margin = min(RENEW_SECONDS, (claims.exp - claims.iat) / 4)
    return claims.exp > 0 and time.time() >= claims.exp - margin


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The key ``slurmrestd`` of a deployment, with absolute paths."""

    url: str
    token_file: str | None = None
    token_command: str | None = None
    user: str | None = None

    @classmethod
    def read(cls, config: Mapping[str, JSON], folder: Path) -> Settings:
        """Read the key, even from an invalid file in which parts are missing.

        :param folder: base of a relative path
        """
        texts = {key: str(value) for key, value in config.items() if value is not None}
        file = texts.get("tokenFile")
        return cls(
            url=texts.get("url", ""),
            token_file=file and str((folder / Path(file).expanduser()).absolute()),
            token_command=texts.get("tokenCommand"),
            user=texts.get("user"),
        )


class Slurmrestd:
    """A client of ``slurmrestd``; its methods block, and several threads may call them.

    :raises InputError: if the URL is invalid
    """

    def __init__(self, settings: Settings) -> None:
        self.token = Token(settings.token_file, settings.token_command)
        self._user = settings.user
        self._http = KeptClient(settings.url, {})
        # number of jobs in the latest list of all jobs
        self._number_listed = 0
        # The first version is used; versions that the daemon does not have are removed.
        self._versions: Sequence[str] = VERSIONS

    def jobs(self) -> list[RestJob]:
        """Return all jobs that Slurm lists.

        :raises RestError: if the request fails; this holds for every method
        """
        jobs = self._request(_Jobs, "GET", "slurm/{}/jobs").jobs
        self._number_listed = len(jobs)
        return jobs

    def job(self, job: str) -> list[RestJob]:
        """Return the entries of a job; empty if Slurm does not know the job."""
        try:
            return self._request(_Jobs, "GET", f"slurm/{{}}/job/{job}").jobs
        except RestError as error:
            if error.number == _NO_JOB:
                return []
            raise

    def some(self, jobs: Iterable[str]) -> list[RestJob]:
        """Return the jobs, except jobs unknown to Slurm; query each job if this is faster."""
        asked = {*jobs}
        if len(asked) == 1 or len(asked) * _LIST_RATIO < self._number_listed:
            return [entry for job in asked for entry in self.job(job)]
        return [entry for entry in self.jobs() if entry.row.job in asked]

    def active(self, comment: str) -> list[str]:
        """Return the ids of unfinished jobs whose comment begins with ``comment``."""
        return [
            job.row.job
            for job in self.jobs()
            if job.row.comment.startswith(comment) and not job.row.over
        ]

    def has_jobs(self) -> bool:
        """Return whether the user of the token has jobs that have not ended."""
        user = self._user or Claims.of(self.token.get()).sun
        return bool(user) and any(
            job.user_name == user and not job.row.over for job in self.jobs()
        )

    def partitions(self) -> dict[str, Partition]:
        """Return the partitions by name; only their numbers of nodes are filled in."""
        reply = self._request(_Partitions, "GET", "slurm/{}/partitions")
        return {
            partition.name: Partition(
                partition.name, False, (NodeKind(partition.node_count),)
            )
            for partition in reply.partitions
        }

    def accounted(self, job: str) -> list[JobOutcome]:
        """Return the outcomes of a job that slurmdbd has recorded."""
        reply = self._request(_AccountedJobs, "GET", f"slurmdb/{{}}/job/{job}")
        return [outcome for record in reply.jobs if (outcome := record.outcome)]

    def submit(self, script: str, properties: Mapping[str, JSON]) -> str:
        """Submit a job, and return its id.

        :param properties: properties of the job, with the names of v0.0.38
        """

        def content(version: str) -> JSON:
            job = rest_job.convert_properties(properties, version)
            return {"script": script, "job": job}

        try:
            reply = self._request(_Reply, "POST", "slurm/{}/job/submit", content)
        except RestError as error:
            if error.job:  # v0.0.42 may submit a job despite errors
                self.cancel(error.job)
            raise
        if not reply.job_id:
            raise RestError("slurmrestd returned no job id", temporary=True)
        return str(reply.job_id)

    def cancel(self, job: str) -> None:
        """Cancel a job, unless it has ended."""
        try:
            self._request(_Reply, "DELETE", f"slurm/{{}}/job/{job}")
        except RestError as error:
            if error.temporary:
                raise

    def _request(
        self,
        kind: type[T],
        method: str,
        path: str,
        content: Callable[[str], JSON] = lambda version: None,
    ) -> T:
        """Send a request, and read the answer.

        :param path: path of the URL, with ``{}`` in place of the version of the API
        :param content: function that returns the body for a version
        """
        while True:
            versions = self._versions
            full = f"/{path.format(versions[0])}"
            answer, status = self._exchange(method, full, content(versions[0]))
            # The daemon does not have this version. (For an unknown job, the status may also
            # be 404, but the answer contains Slurm's error.)
            if status == 404 and answer is None and len(versions) > 1:
                self._versions = versions[1:]
                continue
            if answer is None or status >= 300:
                # A gateway in front of slurmrestd may also answer in JSON.
                text = f"slurmrestd returned HTTP status {status} for {full}"
                raise RestError(text, temporary=status != 404)
            try:
                return structs.read(kind, answer)
            except WrongValue as error:
                text = f"slurmrestd's answer to {full} cannot be read: {error}"
                raise RestError(text, temporary=True) from error

    def _exchange(self, method: str, path: str, content: JSON) -> tuple[JSON, int]:
        """Return the answer (``None`` if it is not Slurm's) and the HTTP status.

        :raises RestError: if the answer contains errors, or the request fails
        """
        token = self.token.get()
        headers = {
            "Content-Type": "application/json",
            "X-SLURM-USER-TOKEN": token,
            "X-SLURM-USER-NAME": self._user or Claims.of(token).sun,
        }
        body = None if content is None else json.dumps(content).encode()
        try:
            status, _, answer = self._http.exchange(
                method, path, body, headers, REQUEST_SECONDS
            )
        except Unreachable as error:
            text = f"slurmrestd does not answer: {error}"
            raise RestError(text, temporary=True) from error
        except Unsendable as error:
            raise RestError(str(error), temporary=False) from error
        if status in (401, 403):
            reason = self.token.refused(token) or f"the token of {self.token.source}"
            raise RestError(f"slurmrestd refuses access: {reason}", temporary=True)
        try:
            reply = structs.read(_Reply, content := parse_json(answer))
        except ValueError:
            return None, status
        if reply.errors:
            failure = self._failure(reply.errors, token, definite=status == 400)
            failure.job = str(reply.job_id or "")
            raise failure
        return content, status

    def _failure(
        self, errors: Sequence[_Error], token: str, *, definite: bool
    ) -> RestError:
        """Return the exception for the errors in an answer."""
        numbers = [error.number for error in errors if error.number is not None] or [0]
        lines = [
            ": ".join(filter(None, (error.description, error.error)))
            for error in errors
        ]
        text = one_line("; ".join(filter(None, lines))) or "no message"
        if definite:
            return RestError(text, temporary=False, number=numbers[0])
        unclear = bool(_PERHAPS_TOKEN & {*numbers})
        if unclear and (reason := self.token.refused(token)):
            text = f"{reason} ({text})"
        temporary = unclear or answers.is_temporary(text, 1)
        return RestError(text, temporary=temporary, number=numbers[0])


def sweep(settings: Settings, comment: str, seconds: float) -> None:
    """Cancel the jobs whose comment begins with ``comment``, until none is left.

    :param settings: values of the fields of :class:`Settings`
    :param seconds: time limit
    """
    deadline, quiet = Deadline(seconds), 0
    with suppress(InputError):
        client = Slurmrestd(settings)
        while quiet < SWEEPS and deadline.left > 0:
            with suppress(RestError):
                jobs = client.active(comment)
                quiet = 0 if jobs else quiet + 1
                for job in jobs:
                    client.cancel(job)
            time.sleep(SWEEP_PAUSE_SECONDS)


@dataclass(frozen=True)
class _Error:
    """An error in an answer; the fields are keys of the API."""

    error_number: int | None = None
    error_code: int | None = None
    description: str = ""
    error: str = ""

    @property
    def number(self) -> int | None:
        """Slurm's error number, whose key depends on the version."""
        return self.error_code if self.error_number is None else self.error_number


@dataclass(frozen=True)
class _Reply:
    """The fields that any answer may have; ``job_id`` is the id of a submitted job."""

    errors: tuple[_Error, ...] = ()
    job_id: Number = None


@dataclass(frozen=True)
class _Jobs:
    """The answer to a query for jobs."""

    jobs: list[RestJob]


@dataclass(frozen=True)
class _AccountedJobs:
    """The answer to a query for jobs in the accounting."""

    jobs: list[AccountedJob]


@dataclass(frozen=True)
class _Nodes:
    """The nodes of a partition since v0.0.40."""

    total: Number = None


def _node_count(value: JSON) -> int | None:
    # In v0.0.38, the value is a text with the names of the nodes.
    return structs.read(_Nodes, value).total if isinstance(value, dict) else None


@dataclass(frozen=True)
class _Partition:
    """A partition in an answer."""

    name: str
    # v0.0.38 has the first of the next two fields; later versions have the second.
    total_nodes: Number = None
    nodes: Annotated[int | None, _node_count] = None

    def __post_init__(self) -> None:
        if self.total_nodes is None and self.nodes is None:
            raise WrongValue("missing", "nodes.total")

    @property
    def node_count(self) -> int:
        return self.nodes or self.total_nodes or 0


@dataclass(frozen=True)
class _Partitions:
    """The answer to a query for partitions."""

    partitions: list[_Partition]
