"""A real QPU, of any registered kind, as a device.

Its jobs go through the client of its vendor, as those of a workflow's steps do, under a
lease of the vendor's. A kind whose vendor's API has no jobs runs its sampler in a process
of its own; such a job cannot be found again after a restart of the service.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias, TypeVar

from pydantic import Field, GetPydanticSchema
from pydantic_core import PydanticCustomError, core_schema

from sf_quantum import backoff
from sf_quantum import qpu as clients
from sf_quantum.backoff import Backoff
from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.files import JSON, mapping
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import (
    JobParameters,
    Kind,
    LeaseLost,
    NotAccepted,
    Outcome,
    Progress,
    Task,
    UnknownJob,
    WrongAnswer,
)
from sf_quantum.qpu import (
    AuthenticationError,
    NoLease,
    Qpu,
    QpuStatus,
    selection,
)
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device import problems, processes, vendor_answers
from sf_quantum.service.device.circuits import texts as circuit_texts
from sf_quantum.service.device.emulator.photons import photonic
from sf_quantum.service.device.protocol import Cost, Device, DeviceStatus, Recovery
from sf_quantum.service.device.sampling import Samplings
from sf_quantum.service.device.vendor_answers import (
    Passed,
    VendorAnswers,
    bounded_errors,
)
from sf_quantum.service.device.vendor_lease import Held, VendorLease
from sf_quantum.service.domain.jobs import Size
from sf_quantum.service.domain.settings import NotNegative, Positive
from sf_quantum.validation import Section, dotted, validated

T = TypeVar("T")
Pause: TypeAlias = Annotated[float, Field(gt=0, le=3600)]
logger = logging.getLogger(__name__)
# keys whose values would be credentials, unless they name a file
_CREDENTIAL = re.compile(
    r"(password|passwd|passphrase|secret|token|credential|api_?key|private_?key)s?$",
    re.IGNORECASE,
)
# A declaration of qubits, in OpenQASM 3 or in OpenQASM 2.
_REGISTER = re.compile(
    r"^[ \t]*(?:qubit[ \t]*\[[ \t]*(\d{1,9})[ \t]*\]"
    r"|qreg[ \t]+\w+[ \t]*\[[ \t]*(\d{1,9})[ \t]*\])",
    re.MULTILINE,
)
_NAMES = re.compile(
    r"^[ \t]*(?:qubit[ \t]*\[[ \t]*\d+[ \t]*\][ \t]*(\w+)|qreg[ \t]+(\w+))",
    re.MULTILINE,
)
# requests without an answer in a row after which a QPU is offline: one may be chance
FAILURES = 2
# no chance, but a vendor that hangs
SILENCE_SECONDS = 3.0
# A status of this age, plus two refresh intervals, is outdated: one request may take
# this long.
STALE_SECONDS = 30.0
# a job that nobody asks about does not keep the lease
FORGOTTEN_SECONDS = 600.0
# the longest Retry-After that is believed
RETRY_AFTER_SECONDS = 3600.0
# weight of the latest job in what jobs have cost
LATEST = 0.2


def _config(content: JSON) -> dict[str, JSON]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise PydanticCustomError("dict_type", "expected keys and values")
    for key, value in content.items():
        # values are left out of messages
        what = "holds a credential" if _CREDENTIAL.search(key) else ""
        if isinstance(value, str) and _has_more(key, value):
            what = "has a user or a query, which may be a credential"
        if what:
            raise ValueError(
                f"{key} {what}: name a file that has it instead "
                "(tokenFile, or qrmiConfig with an entry for this QPU)"
            )
    return content


def _has_more(key: str, value: str) -> bool:
    """Whether a URL has more than an address and a path."""
    is_url = (key == "url" or "://" in value) and not value.startswith("unix:")
    return is_url and not {*"@?#"}.isdisjoint(value)


class QpuSettings(Section):
    """The configuration of a real QPU.

    :param type: ``qpu``
    :param qpu: kind of QPU: the type of a deployment's QPU, or of an entry of
        ``qrmi_config.json``
    :param name: name of the QPU; two services of one user on one machine need different
        names for the same QPU
    :param config: keys of that kind of QPU, or ``qrmiConfig``, a site's file; credentials
        are in files only
    :param cost_per_second: price of QPU time, in the site's own unit; by default the
        vendor's, if it tells one
    :param idle_seconds: time without jobs after which the vendor's lease is given back
    :param refresh_seconds: pause between two questions for the QPU's status
    :param describe_seconds: pause between two questions for its size, limits and
        calibration
    :param poll_seconds: longest pause between two questions for the state of a job; shorter
        when it should end
    :param expected_seconds: QPU time of a job, until the vendor or past jobs tell it
    :param late_seconds: time that a submission may still arrive in if it was not answered; it
        is not repeated before
    :param longest_seconds: time that a job, or a slice of one, may run for, after which it is
        cancelled and has failed; ``None``: for ever
    :param give_up_seconds: time after which a job is given up that is to end, or about
        which alone the vendor answers no requests; it may run on at the vendor
    :param ahead: jobs that wait in the vendor's queue while one runs
    """

    type: Literal["qpu"] = "qpu"
    qpu: str
    name: Annotated[str, Field(min_length=1)] = "qpu"
    config: Annotated[
        dict[str, JSON],
        # pydantic cannot build a schema of the recursive type
        GetPydanticSchema(
            lambda *_: core_schema.no_info_plain_validator_function(_config)
        ),
    ] = Field(default_factory=dict)
    cost_per_second: NotNegative | None = None
    idle_seconds: Positive = 60.0
    refresh_seconds: Pause = 1.0
    describe_seconds: Pause = 60.0
    poll_seconds: Pause = 1.0
    expected_seconds: Positive = 10.0
    late_seconds: Pause = 10.0
    longest_seconds: Positive | None = None
    give_up_seconds: Pause = 60.0
    ahead: Annotated[int, Field(ge=0, le=100)] = 1

    @property
    def stale_seconds(self) -> float:
        """Age of a status that says no more whether the QPU is online."""
        return STALE_SECONDS + 2 * self.refresh_seconds

    def client(self) -> Qpu:
        """Make the driver's side of the QPU, with its credentials as they are now.

        :raises InputError: if a key of ``config`` is wrong, or the kind cannot be used
        """
        kind = clients.load(self.qpu)
        problem = kind.problem()
        if problem is None and not kind.kinds:
            problem = kind.lack()
        if problem is not None:
            raise InputError(f"QPU type {self.qpu!r}: {problem}")
        return selection.client(self.qpu, self.name, self.config)


def _circuit_qubits(text: str) -> int:
    """Count the qubits that a circuit declares, as far as a look at its lines tells."""
    if "/*" in text:  # what is in a comment is not declared
        return 0
    return sum(int(new or old) for new, old in _REGISTER.findall(text))


def _operands(text: str) -> int:
    """Count the qubits that statements of a circuit name, likewise.

    With other than single ones, such as a whole register, all that it has count.
    """
    names = {new or old for new, old in _NAMES.findall(text)}
    words = re.findall(r"\b(\w+)\b(?:\[[ \t]*(\d+)[ \t]*\])?", _NAMES.sub("", text))
    used = {(name, index) for name, index in words if name in names}
    return len(used) if all(index for _, index in used) else _circuit_qubits(text)


def _atoms(text: str) -> int:
    """Count the atoms of a sequence.

    :raises FieldError: if it is not JSON
    """
    try:
        atoms = mapping(json.loads(text)).get("register")
    except (ValueError, RecursionError) as error:
        detail = "expected Pulser's abstract representation, JSON"
        raise FieldError("sequence", detail) from error
    return len(atoms) if isinstance(atoms, list) else 0


class Trouble:
    """When to ask again that has failed; safe in threads."""

    def __init__(self, pauses: Backoff) -> None:
        self._backoff = pauses
        self._pauses: Iterator[float] = pauses.pauses()
        self._until = 0.0
        # the end of the pause that was asked for
        self._asked = 0.0
        self._lock = threading.Lock()
        self.why = ""

    @property
    def left(self) -> float:
        """Seconds until the next attempt."""
        return max(0.0, self._until - time.monotonic())

    def noted(self, error: QuantumError) -> None:
        with self._lock:
            # the failures of requests that were under way together count once
            pause, now = self.left or next(self._pauses), time.monotonic()
            if isinstance(error, NotAccepted) and error.retry_seconds is not None:
                pause = min(error.retry_seconds, RETRY_AFTER_SECONDS)
                self._asked = max(self._asked, now + pause)
            self.why = str(error)
            self._until = max(self._asked, now + pause)

    def over(self) -> None:
        """Ask again at once, unless a pause was asked for, whatever else succeeds."""
        with self._lock:
            self._pauses = self._backoff.pauses()
            self._until = self._asked
            if not self.left:
                self.why = ""


@dataclass(eq=False)
class _Job:
    """A job at the vendor; times are by the monotonic clock.

    :param cost_seconds: QPU time that was expected
    :param expected_seconds: elapsed time that it is expected to run
    :param lease: lease under which it was submitted; empty if unknown
    :param ours: whether this service has submitted it, and has seen when it started
    :param due: time of the next query to the vendor about it
    :param seen: time of the service's last query for it, or of the next one after a
        pause
    :param waited_until: time at which it was last known not to have run yet
    """

    cost_seconds: float
    expected_seconds: float
    lease: str = ""
    ours: bool = False
    due: float = -math.inf
    seen: float = field(default_factory=time.monotonic)
    waited_until: float = field(default_factory=time.monotonic)
    running_since: float | None = None
    cancelled: bool = False
    woken: threading.Event = field(default_factory=threading.Event)

    @property
    def ends_in(self) -> float:
        """Seconds until it should end; less than 0 if it should have ended."""
        began = self.running_since
        ran = 0.0 if began is None else time.monotonic() - began
        return self.expected_seconds - ran

    @property
    def ran(self) -> float:
        """Seconds since it was seen to run or, if it was not, to wait."""
        began = self.running_since
        return time.monotonic() - (self.waited_until if began is None else began)

    @property
    def left(self) -> float:
        """The seconds that it should still need."""
        return max(0.0, self.ends_in)


class QpuDevice(Device):
    """Any registered kind of QPU; see :class:`QpuSettings`.

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
        self._answers = VendorAnswers(self.name, fewer_reads=self._kind.fewer_reads)
        self._samplings = None if self._kind.kinds else Samplings(self._wake)
        self._description = Description("unknown", 0, self._kind.kinds or ("problem",))
        self._described = -math.inf
        self._descriptions = Trouble(backoff.STATUS)
        self._calibration: str | None = None
        self._status: QpuStatus | None = None
        # when its status was known, and when it answered any request
        self._known = self._heard = -math.inf
        # requests for its status that have failed in a row, and since when
        self._failures = 0
        self._silence = ""
        # answers that do not come, or tell of trouble; refusals of the service's user
        self._vendor = Trouble(backoff.STATUS)
        self._access = Trouble(backoff.ACCESS)
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        # mean and variance of QPU time; elapsed time per second of the expected QPU time
        self._billed: tuple[float, float] | None = None
        self._pace = 1.0

    @classmethod
    def from_config(cls, config: Mapping[str, JSON]) -> Self:
        def name(key: tuple[int | str, ...], value: JSON) -> str:
            shown = f" {value}" if isinstance(value, str | int | float) else ""
            return f"{dotted(key)}{shown}"

        return cls(validated(QpuSettings, {**config}, name))

    def keep_in(self, folder: Path) -> None:
        # a token is of use at this vendor only
        self._lease.keep_in(folder / f"vendor-lease-{self.identity[:16]}.json")
        self._answers.keep_in(folder, self.identity)

    # how it is

    @property
    def description(self) -> Description:
        return self._description

    @property
    def refresh_seconds(self) -> float:
        return self._settings.refresh_seconds

    @property
    def price(self) -> float | None:
        quoted = self._status.cost_per_second if self._status else None
        configured = self._settings.cost_per_second
        return quoted if configured is None else configured

    @property
    def status(self) -> DeviceStatus:
        status, length, eta = self._status, 0, 0.0
        if status is not None:
            with self._lock:
                jobs = [job for job in self._jobs.values() if not job.cancelled]
            ours = [job.left for job in jobs]
            length = max(0, status.queue_length - len(ours))
            eta = max(0.0, (status.eta_seconds or 0.0) - sum(ours))
        reason = self._obstacle(status)
        trouble = ""
        if reason is None and (left := self._vendor.left):
            trouble = f"asked again in {left:.0f} s: {self._vendor.why}"
        return DeviceStatus(reason is None, reason or "", length, eta, trouble)

    def _obstacle(self, status: QpuStatus | None) -> str | None:
        if self._access.why:
            return self._access.why
        unknown = self._described == -math.inf
        if self._silence and (unknown or self._failures >= FAILURES):
            return self._silence
        if status is None:
            return "its vendor has not been asked yet"
        if not status.online:
            return status.reason or "its vendor gives no reason"
        age = time.monotonic() - self._known
        if age > self._settings.stale_seconds:
            why = self._vendor.why or "it has not answered since"
            return f"its status is {age:.0f} s old: {why}"
        if unknown:  # no QPU is online that is not described
            return self._descriptions.why or "its vendor has not described it yet"
        return None

    def refresh(self) -> None:
        """See :meth:`Device.refresh`; also keeps the vendor's lease, or gives it back."""
        if self._vendor.left or self._access.left:
            return
        began = time.monotonic()
        try:
            with bounded_errors():
                self._refresh()
        except NotAccepted as error:
            self._vendor.noted(error)  # too many requests
        except NoLease:
            self._access.why = ""
        except QpuError as error:
            self._unanswered(error, time.monotonic() - began)
        except InputError as error:
            self._refused(error)

    def _refresh(self) -> None:
        if self._access.why:
            self._lease.read_credentials()
        self._status = status = self._read_status()
        self._known = self._heard = time.monotonic()
        self._describe(status)
        self._answered()
        self._lease.maintain(self._busy)
        if self._access.why:  # is it accepted again?
            self._lease.take()
            self._lease.done()
            self._access.why = ""

    def _read_status(self) -> QpuStatus:
        return vendor_answers.status(self._lease.driver.status())

    def _describe(self, status: QpuStatus) -> None:
        age = time.monotonic() - self._described
        renewed = status.calibration != self._calibration
        due = renewed or age >= self._settings.describe_seconds
        if not due or self._descriptions.left:
            return
        try:
            described = self._lease.driver.describe()
            self._description = vendor_answers.description(described)
        except NotAccepted as error:
            self._descriptions.noted(error)
            if error.retry_seconds is not None:  # it asks for a pause of all requests
                raise
            return
        self._descriptions.over()
        self._described = time.monotonic()
        self._calibration = status.calibration

    def _answered(self) -> None:
        self._known = self._heard = time.monotonic()
        if self._silence:
            logger.warning("QPU %s answers again", self.name)
        self._failures, self._silence = 0, ""
        self._vendor.over()

    def _unanswered(self, error: QpuError, seconds: float) -> None:
        self._vendor.noted(error)
        self._failures += 1 if seconds < SILENCE_SECONDS else FAILURES
        if not self._silence:
            since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
            self._silence = f"does not answer since {since}: {error}"
            logger.warning("QPU %s %s", self.name, self._silence)

    def _refused(self, error: InputError) -> None:
        if not self._access.why:
            logger.warning("QPU %s refuses the service: %s", self.name, error)
        self._access.noted(error)

    # what a job costs

    def check(self, kind: Kind, content: JSON, parameters: JobParameters) -> Size:
        """See :meth:`Device.check`; the vendor checks what its client does not."""
        size = super().check(kind, content, parameters)
        if kind == "problem":
            solver = problems.solver(self.description)
            problems.check_solver_parameters(content, solver)
            return size
        if kind == "photonic":
            return self._check_photons(content)
        texts, what, circuits, native = [content], "atoms", 1, False
        description = self.description
        most, qubits = description.qubits, 0
        if kind == "circuit":
            listed, circuits = circuit_texts(content)
            texts, what = [*listed], "qubits"
            native = bool(description.native_gates)
            if native and description.topology is not None:
                # a register is of all qubits, those out of service too
                most = description.topology.labels
        for text in texts:
            if not isinstance(text, str):
                raise FieldError(kind, "expected text")
            count = _circuit_qubits(text) if kind == "circuit" else _atoms(text)
            if 0 < most < count:
                raise FieldError(kind, f"{count} {what} do not fit on {most} qubits")
            qubits = max(qubits, min(count, _operands(text)) if native else count)
        self._kind.check(kind, content)
        return replace(size, circuits=circuits, qubits=qubits)

    def _check_photons(self, content: JSON) -> Size:
        experiment, most = photonic.experiment(content), self.description.qubits
        if 0 < most < experiment.modes:
            detail = f"{experiment.modes} modes; the device has {most}"
            raise FieldError("photonic.input_state", detail)
        self._kind.check("photonic", content)
        return photonic.size(experiment)

    def check_size(self, size: Size, parameters: JobParameters) -> None:
        most = self.description.qubits
        # The BQMs of a list have been checked one by one; their variables add up in
        # `values`.
        if 0 < most < size.values and not size.problems:
            detail = f"{size.values} variables do not fit on {most} qubits"
            raise FieldError("problem.variable_labels", detail)

    def cost(self, parameters: JobParameters, size: Size | None = None) -> Cost:
        """See :meth:`Device.cost`; as the vendor tells, or else as past jobs were billed."""
        if (timing := self.description.timing) is not None:
            shots = parameters.get("num_reads") or 1
            shots *= 1 if size is None else size.circuits
            # A solver's parameters can lengthen the set-up and each shot.
            setup, shot = (parameters.get(key) or 0 for key in ("setup_ns", "shot_ns"))
            return Cost(timing.job_seconds(shots) + 1e-9 * (setup + shots * shot))
        if self._billed is None:
            expected = self._settings.expected_seconds
            return Cost(expected, expected)
        mean, variance = self._billed
        return Cost(mean, math.sqrt(variance))

    def _learn(self, job: _Job, outcome: Outcome, elapsed: float | None) -> None:
        seconds = elapsed if outcome.qpu_seconds is None else outcome.qpu_seconds
        if outcome.result is None or seconds is None:
            return
        with self._lock:
            if elapsed is not None and job.ours and job.cost_seconds > 0:
                step = elapsed / job.cost_seconds - self._pace
                self._pace += step if self._billed is None else LATEST * step
            if self._billed is None:
                self._billed = (seconds, 0.0)
                return
            # West, "Updating mean and variance estimates" (CACM 22, 1979), where the
            # weights of the past decrease
            mean, variance = self._billed
            step = seconds - mean
            variance = (1 - LATEST) * (variance + LATEST * step * step)
            self._billed = (mean + LATEST * step, variance)

    # jobs

    @property
    def recovery(self) -> Recovery:
        if self._samplings is not None:
            return Recovery.LOST
        return Recovery.BY_TAG if self._kind.finds else Recovery.BY_ID

    @property
    def identity(self) -> str:
        """See :meth:`Device.identity`; that of the vendor's client."""
        return self._identity(self._lease.driver)

    def _identity(self, client: Qpu) -> str:
        text = json.dumps([self._settings.qpu, self.name, client.identity])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def depth(self) -> int:
        return 1 if self._samplings is not None else 1 + self._settings.ahead

    @property
    def longest_seconds(self) -> float | None:
        return self._settings.longest_seconds

    @property
    def give_up_seconds(self) -> float:
        return self._settings.give_up_seconds

    def answered_since(self, moment: float) -> bool:
        """See :meth:`Device.answered_since`, but for the pause between two requests."""
        return self._heard >= moment - self._settings.refresh_seconds

    def abandon(self, job_id: str) -> None:
        self._forget(job_id)

    @property
    def late_seconds(self) -> float:
        return self._settings.late_seconds

    def submit(self, task: Task) -> str:
        """See :meth:`Device.submit`; refused credentials are no fault of a job."""
        for trouble in (self._access, self._vendor):
            if left := trouble.left:
                raise NotAccepted(trouble.why, left)
        job = self._new_job(self.cost(task.parameters).qpu_seconds)
        samplings = self._samplings
        self._answers.jobs.begin(task.tag)

        def submitted(held: Held) -> str:
            job.lease, job.ours = held.token, True
            if samplings is not None:
                return samplings.submit(task, held.variables)
            return held.jobs.submit(task)

        job_id = self._answers.job_id(self._ask(submitted), task.tag)
        with self._lock:
            self._jobs[job_id] = job
        processes.start()  # the result is checked in one of them
        return job_id

    def find(self, tag: str) -> str | None:
        if not self._kind.finds:
            return None
        job_id = self._look_up(lambda jobs: jobs.find(tag))
        return None if job_id is None else self._answers.job_id(job_id, tag)

    def others(self, tag: str, job_id: str) -> Sequence[str]:
        if not self._kind.finds:
            return ()
        job_ids = self._look_up(lambda jobs: jobs.others(tag, job_id))
        # what belongs to another submission must not be cancelled
        return [one for one in job_ids if not self._answers.jobs.is_other(one, tag)]

    def _look_up(self, call: Callable[[Qpu], T]) -> T:
        try:
            return self._ask(lambda held: call(held.jobs))
        except InputError as error:
            raise QpuError(str(error)) from error

    def poll(self, job_id: str, task: Task) -> Progress:
        job = self._job(job_id)
        pause = self._settings.poll_seconds
        vendor = self._vendor if self._samplings is None else None
        wait = job.due - time.monotonic()
        if vendor is not None:
            wait = max(wait, min(pause, vendor.left))
        job.seen += max(0.0, wait)  # it is asked about after that
        woken = wait > 0 and job.woken.wait(wait)
        job.woken.clear()
        if vendor is not None and vendor.left and not woken:
            raise NotAccepted(vendor.why)  # it was not asked
        job.due = time.monotonic() + pause
        polled = self._about(job_id, lambda jobs: self._priced(jobs).poll(job_id))
        progress = vendor_answers.progress(polled)
        if progress.state == "Running" and job.running_since is None:
            job.running_since = time.monotonic()
        if progress.state == "Queued":
            job.waited_until = time.monotonic()
        job.due = time.monotonic() + self._pause(job, progress)
        return progress

    def _pause(self, job: _Job, progress: Progress) -> float:
        """Until the vendor is asked again: at the end of a job that is to end soon.

        The next job is submitted then, and the QPU waits for it.
        """
        ends_in = job.ends_in
        if progress.state == "Queued":
            eta = progress.eta_seconds
            ends_in += self._ahead_seconds(job) if eta is None else eta
        # more and more rarely for one that takes longer than it should
        pause = ends_in if ends_in > 0 else -ends_in / 4
        longest = self._settings.poll_seconds
        return min(max(pause, longest / 10), longest)

    def _ahead_seconds(self, job: _Job) -> float:
        """Seconds until the jobs that were submitted before a job should have ended."""
        with self._lock:
            earlier = takewhile(lambda one: one is not job, self._jobs.values())
            return sum(one.left for one in earlier if not one.cancelled)

    def result(self, job_id: str, task: Task) -> Outcome:
        job = self._job(job_id)
        try:
            outcome = self._about(
                job_id, lambda jobs: self._priced(jobs).result(job_id, task)
            )
        except WrongAnswer as error:
            self._answers.unread(error, job_id, task)
            raise
        # read now: the check of a large result takes a while
        ran, at_vendor = job.ran, self._answers.jobs.seconds_since(task.tag)
        passed = Passed(at_vendor, ran if job.ours else at_vendor or 0.0)
        outcome = self._answers.outcome(outcome, job_id, task, passed)
        if self._samplings is not None and outcome.result is None:
            # its client was killed or has failed, and may have left a job there
            self._lease.abandon()
        stopped = outcome.result is None and outcome.failure is None
        if stopped and not job.cancelled:
            outcome = self._cancelled_there(job, outcome)
        self._forget(job_id)
        elapsed, seen = outcome.seconds, job.running_since is not None
        if elapsed is None and job.ours and (seen or outcome.result is not None):
            outcome = replace(outcome, seconds=ran)
            elapsed = ran if seen else None
        self._learn(job, outcome, elapsed)
        return outcome

    def _cancelled_there(self, job: _Job, outcome: Outcome) -> Outcome:
        note = f": {outcome.note}" if outcome.note else ""
        if self._lease_lost(job):
            return replace(outcome, lost=f"its lease has ended at the vendor{note}")
        failure = f"the vendor cancelled it{note}"
        if self._kind.sessions:  # the next submission will tell
            return replace(outcome, lost=f"{failure}, perhaps with its lease")
        return replace(outcome, failure=failure)

    def _lease_lost(self, job: _Job) -> bool:
        """Whether the vendor has ended the lease of a job, as far as its kind tells.

        :raises AuthenticationError: if the vendor refuses the user
        :raises QpuError: if it does not answer
        """
        if self._samplings is not None:
            return False
        ends = self._kind.sessions or self._kind.renew is not Qpu.renew
        return ends and self._lease.is_lost(job.lease)

    def cancel(self, job_id: str) -> None:
        job = self._job(job_id)
        job.cancelled = True
        try:
            with suppress(UnknownJob):
                self._about(job_id, lambda jobs: jobs.cancel(job_id))
        finally:
            job.woken.set()

    def close(self) -> None:
        """Kill samplings, and give the lease back, unless jobs go on at the vendor."""
        with self._lock:
            jobs = [*self._jobs.values()]
        for job in jobs:
            job.woken.set()
        if self._samplings is not None:
            self._samplings.close()
        self._lease.close(self._samplings is None and self._busy)

    @property
    def _busy(self) -> bool:
        """Whether jobs that are wanted are at the vendor."""
        now = time.monotonic()
        with self._lock:
            self._jobs = {
                job_id: job
                for job_id, job in self._jobs.items()
                if now - job.seen < FORGOTTEN_SECONDS
            }
            return any(not job.cancelled for job in self._jobs.values())

    def _job(self, job_id: str) -> _Job:
        with self._lock:
            # an earlier service submitted it
            if (job := self._jobs.get(job_id)) is None:
                job = self._new_job(self._settings.expected_seconds)
                job.lease = self._lease.token
                self._jobs[job_id] = job
        job.seen = time.monotonic()
        return job

    def _new_job(self, cost_seconds: float) -> _Job:
        return _Job(cost_seconds, cost_seconds * self._pace)

    def _forget(self, job_id: str) -> None:
        with self._lock:
            self._jobs.pop(job_id, None)

    def _wake(self, job_id: str) -> None:
        with self._lock:
            job = self._jobs.get(job_id)
        if job is not None:
            job.woken.set()

    # requests

    def _about(self, job_id: str, call: Callable[[Qpu | Samplings], T]) -> T:
        """Make a request about a job, to which a refusal is no answer."""
        try:
            if self._samplings is not None:
                return call(self._samplings)
            return self._ask(lambda held: call(held.jobs))
        except UnknownJob as error:
            lost = self._lease_lost(self._job(job_id))
            self._forget(job_id)
            raise UnknownJob(str(error), lease_lost=lost) from error
        except InputError as error:
            raise QpuError(str(error)) from error

    def _priced(self, jobs: T) -> T:
        """Have the vendor's price, by which a job that is over is booked.

        A job of an earlier service may be over before the first status is known.
        """
        if self._status is None and self._settings.cost_per_second is None:
            self._status = self._read_status()
            self._known = time.monotonic()
        return jobs

    def _ask(self, call: Callable[[Held], T]) -> T:
        """Make a request under the lease, or under another one if it has been lost."""
        with self._leased() as held, suppress(LeaseLost):
            return self._answer(call, held)
        with self._leased() as held:
            return self._answer(call, held)

    @contextmanager
    def _leased(self) -> Iterator[Held]:
        """Use the lease. If there is none, a request was not made."""
        try:
            with bounded_errors():
                held = self._lease.take()
        except NoLease as error:
            raise NotAccepted(str(error)) from error
        except InputError as error:
            self._refused(error)
            raise NotAccepted(str(error)) from error
        except QpuError as error:
            self._vendor.noted(error)
            raise NotAccepted(str(error)) from error
        try:
            yield held
        finally:
            self._lease.done()

    def _answer(self, call: Callable[[Held], T], held: Held) -> T:
        try:
            with bounded_errors():
                answer = call(held)
        except AuthenticationError as error:
            self._refused(error)
            raise NotAccepted(str(error)) from error
        except InputError as error:
            # The error may concern the request, or a lease that has ended.
            if self._lease.has_ended(held):
                raise LeaseLost(str(error)) from error
            raise
        except LeaseLost as error:
            self._lease.lost(held, error)
            raise
        except (NotAccepted, UnknownJob) as error:
            if isinstance(error, NotAccepted) and error.retry_seconds is not None:
                self._vendor.noted(error)
            raise
        except QpuError as error:
            self._lease.doubt()
            self._vendor.noted(error)
            raise
        self._access.over()
        self._vendor.over()
        self._heard = time.monotonic()
        return answer
