"""Our own QPU service (``sfq serve``) as a QPU."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar, get_args
from urllib.parse import quote

from sf_quantum import backoff
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, listing, mapping, parse_json, socket_in
from sf_quantum.net.transport import Response, Unreachable, Unsendable
from sf_quantum.protocol.bounds import ANSWER_BYTES, RESULT_BYTES
from sf_quantum.protocol.descriptions import Description, Timing, Topology
from sf_quantum.protocol.tasks import (
    OVER,
    Kind,
    LeaseJob,
    LeaseLost,
    NotAccepted,
    Outcome,
    Progress,
    Result,
    Task,
    UnknownJob,
    WrongAnswer,
)
from sf_quantum.protocol.values import count, counter, number
from sf_quantum.qpu import JobSize, NoLease, Qpu, QpuStatus
from sf_quantum.qpu.configuration import check_keys, check_name, config_text
from sf_quantum.qpu.environment import TOKEN, required
from sf_quantum.qpu.running import named
from sf_quantum.qpu.sfq.service_client import (
    REQUEST_SECONDS,
    Credentials,
    ServiceClient,
    refusal,
)
from sf_quantum.qpu.sfq.service_job import ServiceJob

if TYPE_CHECKING:
    from dimod.core.sampler import Sampler

T = TypeVar("T")
POLL_SECONDS = 30.0
# A service that answers so soon that nothing has changed does not wait as it was asked to.
EARLY_SECONDS = 1.0
# Time that a submission waits for the job's end: a small job then takes one request,
# and no line is logged about how long it will take.
SUBMISSION_SECONDS = 0.5
CANCEL_SECONDS = 2.0
# Time limit for a job or a result of tens of megabytes, which the service needs time to
# read.
LARGE_SECONDS = 90.0
# a lease that expires is renewed after a third of its time
RENEWALS = 3
# the most that is believed if it depends on the clocks of two machines
UNSURE_SECONDS = 180.0
# statuses after which there is no job; behind those of a proxy, there may be one
NOT_ACCEPTED = (408, 425, 429, 503)
# what the results of our service end with, after whole JSON values
INFO = ', "info": '
# where it may begin, from the end of a result: each is parsed
INFO_TRIES = 100
KINDS: tuple[Kind, ...] = get_args(Kind)
# the keys of a lease's options in a deployment's configuration, and in a request
LEASE_OPTIONS = {
    "class": "class",
    "project": "project",
    "expectedSeconds": "expected_seconds",
    "pattern": "pattern",
    "maxQpuSeconds": "max_qpu_seconds",
    "maxShots": "max_shots",
    "maxQubits": "max_qubits",
    "user": "user",
}
KEYS = ("url", "tokenFile", "munge", *LEASE_OPTIONS)
# a lease acquired within a Slurm job ends with it, and has its partition's class
SLURM_OPTIONS = {
    "SLURM_JOB_ID": "slurm_job_id",
    "SLURM_CLUSTER_NAME": "slurm_cluster",
    "SLURM_JOB_PARTITION": "partition",
    "SLURM_JOB_ACCOUNT": "account",
}

_SUBMISSIONS = f"/v1/jobs?wait={SUBMISSION_SECONDS:g}"


class SfqQpu(Qpu):
    """A QPU, real or emulated, behind an ``sfq serve``.

    :param lease_options: options of the leases that it acquires
    :param lease: the acquisition token, on the job's side
    :param job_key: key that stays the same when the job is run again, on the job's side
    :param purpose: purpose of its QPU jobs, if it differs from the lease's
    """

    type = "sfq"
    variables = ("SFQ_URL", "SFQ_TOKEN_FILE", "SFQ_MUNGE")
    kinds = KINDS
    finds = True

    def __init__(
        self,
        name: str,
        url: str,
        *,
        credentials: Credentials | None = None,
        lease_options: Mapping[str, JSON] | None = None,
        lease: str | None = None,
        job_key: str | None = None,
        purpose: str | None = None,
    ) -> None:
        super().__init__(name)
        self._credentials = credentials or Credentials()
        self._lease_options = dict(lease_options or {})
        self._lease = lease
        self._job_key = job_key
        self._purpose = purpose
        self._job_size: JobSize | None = None
        # Number of times that a problem was solved without a seed, by its key.
        self._solved: Counter[str] = Counter()
        # the class granted, by token, where it is not the class requested
        self._other_class: dict[str, str] = {}
        #: Client for requests that only this kind of QPU has.
        self.service = ServiceClient(url, name, self._credentials, lease)

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, JSON]) -> Self:
        """See :meth:`Qpu.from_config`.

        Key ``url``, in which the path of a socket may be relative to the current folder;
        ``tokenFile`` or ``munge`` if the service authenticates its clients; ``class``,
        ``project``, ``expectedSeconds`` and ``pattern`` of the leases; ``user`` of theirs,
        which only root and admins may set.
        """
        check_name(name, "QPU name")
        check_keys(config, KEYS)
        url = config_text(config, "url")
        if url is None:
            raise InputError(f"url: missing in the configuration of QPU {name!r}")
        return cls(
            name,
            socket_in(url),
            credentials=Credentials(config_text(config, "tokenFile"), _munge(config)),
            lease_options={
                **_renamed(os.environ, SLURM_OPTIONS),
                **_renamed(config, LEASE_OPTIONS),
            },
        )

    @property
    def identity(self) -> str:
        return self.service.url.rstrip("/")

    def status(self) -> QpuStatus:
        """See :meth:`Qpu.status`; sent once, since callers report a missing answer."""
        size, path = self._job_size, "/v1/device"
        if size is not None:
            path += f"?reads={size.reads}"
            path += f"&variables={size.variables}" if size.variables else ""
        device = self.service.send("GET", path).json()
        # The service assumes a job of one read if it is not sent a size.
        job = device if size is not None else {}
        calibration, payloads = device.get("calibration"), device.get("payloads")
        calibration_id = (
            calibration.get("id") if isinstance(calibration, dict) else None
        )
        return QpuStatus(
            name=str(device.get("name")),
            technology=str(device.get("technology")),
            online=device.get("status") == "online",
            reason=str(device.get("reason") or ""),
            trouble=str(device.get("trouble") or ""),
            qubits=count(device.get("qubits")) or 0,
            vqpus=count(device.get("vqpus")) or 0,
            leases=count(device.get("leases")) or 0,
            queue_length=count(device.get("queue_length")) or 0,
            calibration=str(calibration_id) if calibration_id else None,
            eta_seconds=number(device.get("eta_seconds")),
            position=count(device.get("position")) or 0,
            cost_per_second=number(device.get("cost_per_second")),
            maintenance_seconds=_seconds_left(
                device, "maintenance_seconds", "maintenance"
            ),
            payloads=tuple(map(str, payloads)) if isinstance(payloads, list) else (),
            job_qpu_seconds=number(job.get("job_qpu_seconds")),
            job_run_seconds=number(job.get("job_run_seconds")),
        )

    def sized(self, size: JobSize | None) -> Self:
        """See :meth:`Qpu.sized`; the service says what the job costs."""
        sized = copy(self)
        sized._job_size = size
        return sized

    def hinted(self, hints: Mapping[str, JSON]) -> Self:
        """See :meth:`Qpu.hinted`; hints replace the configuration's."""
        hinted = copy(self)
        hinted._lease_options = self._lease_options | _renamed(hints, LEASE_OPTIONS)
        return hinted

    def acquire(self, job: str | None = None) -> str:
        return self.acquire_waiting(job, wait_seconds=0.0)

    def acquire_waiting(
        self, job: str | None, *, wait_seconds: float, key: str | None = None
    ) -> str:
        """See :meth:`Qpu.acquire_waiting`; the service queues the request."""
        body: dict[str, JSON] = {"job": job, **self._lease_options}
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
            raise NoLease(f"{self.service.name}: {refusal(response)}")
        lease = response.json()
        token, class_ = self.service.text(lease, "id"), lease.get("class")
        if class_ is not None and class_ != self._lease_options.get("class", class_):
            self._other_class[token] = str(class_)
        return token

    def shortfall(self, token: str) -> str | None:
        """See :meth:`Qpu.shortfall`; the service lowers a class instead of refusing it."""
        if (class_ := self._other_class.pop(token, None)) is None:
            return None
        return (
            f"class {class_}, not {self._lease_options['class']} as requested: it is the "
            "highest that the service grants this user or Slurm partition"
        )

    def renew(self, token: str) -> float | None:
        path = f"{_lease(token)}/renew"
        response = self.service.send("POST", path, retry=True, expected=(404,))
        if response.status == 404:
            raise LeaseLost(f"{self.service.name} refuses: {refusal(response)}")
        lease = response.json()
        left = _seconds_left(lease, "idle_seconds_left", "idle_expires")
        if left is not None and "idle_seconds_left" not in lease:
            left = min(left, UNSURE_SECONDS)
        if left is None and lease.get("idle_seconds_left") is not None:
            left = 0.0  # it makes no sense, but the lease expires
        return None if left is None else left / RENEWALS

    def release(self, token: str) -> None:
        self.service.send("DELETE", _lease(token), retry=True, expected=(404,))

    def give_way(self, token: str) -> None:
        path = f"{_lease(token)}?keep_place=true"
        self.service.send("DELETE", path, retry=True, expected=(404,))

    def jobs(self, token: str) -> list[LeaseJob] | None:
        lease = self.service.send("GET", _lease(token), retry=True).json()
        jobs, opened = lease.get("jobs"), lease.get("opened")
        if not isinstance(jobs, list) or not isinstance(opened, float):
            raise QpuError(f"{self.service.name}: not a lease, is it sfq serve?")
        # a job whose time is unknown counts as this lease's
        return [
            replace(job, found=(job.submitted or opened) < opened)
            for job in map(LeaseJob.read, map(mapping, jobs))
        ]

    def environment(self, token: str) -> dict[str, str]:
        credentials = self._credentials
        retry = credentials.retry_seconds
        variables = {
            "SFQ_URL": self.service.url,
            TOKEN: token,
            "SFQ_TOKEN_FILE": credentials.token_file,
            "SFQ_MUNGE": "1" if credentials.munge is True else credentials.munge,
            "SFQ_PATIENCE_SECONDS": None if retry is None else f"{retry:g}",
        }
        return {f"{self.name}_{key}": str(v) for key, v in variables.items() if v}

    @classmethod
    def from_environment(cls, name: str, environment: Mapping[str, str]) -> Self:
        munge = environment.get(f"{name}_SFQ_MUNGE", "")
        retry = environment.get(key := f"{name}_SFQ_PATIENCE_SECONDS")
        try:
            retry_seconds = None if retry is None else float(retry)
        except ValueError as error:
            raise InputError(f"{key}: expected seconds") from error
        return cls(
            name,
            required(name, environment, "SFQ_URL"),
            credentials=Credentials(
                environment.get(f"{name}_SFQ_TOKEN_FILE"),
                munge if munge.startswith("/") else munge == "1",
                retry_seconds,
            ),
            lease=required(name, environment, TOKEN),
            job_key=environment.get(f"{name}_SFQ_JOB_KEY"),
            purpose=environment.get(f"{name}_SFQ_PURPOSE"),
        )

    def sampler(self) -> Sampler:
        from sf_quantum.qpu.sampler import QpuSampler

        return QpuSampler(self)

    def solve(
        self, bqm: Mapping[str, JSON], parameters: Mapping[str, int | None]
    ) -> dict[str, JSON]:
        """See :meth:`Qpu.solve`; interrupted, it cancels its job on the QPU.

        The idempotency key is derived from the job's key (else from the lease), the problem
        and the parameters, so that a second attempt finds the QPU job of the first, even if
        the driver was killed in between. The same problem again without a seed is another
        job with samples of its own. If another process has submitted it before, it is that
        job, and the samples' ``info`` has ``found``.
        """
        samples = self._solved_job(dict(bqm), parameters)
        if samples.get("type") != "SampleSet":
            raise QpuError(f"{self.service.name}: its answer is not a sample set")
        return samples

    def solve_multiple(
        self,
        bqms: Sequence[Mapping[str, JSON]],
        parameters: Mapping[str, int | None],
    ) -> list[dict[str, JSON]]:
        """See :meth:`Qpu.solve_multiple`; one job for all, found again as by :meth:`solve`."""
        if not bqms:
            return []
        answer = self._solved_job([{**bqm} for bqm in bqms], parameters)
        sets, common = listing(answer.get("sample_sets")), mapping(answer.get("info"))
        samples = [{**mapping(one)} for one in sets]
        if len(samples) != len(bqms):
            detail = f"{len(samples)} sample sets for {len(bqms)} BQMs"
            raise QpuError(f"{self.service.name}: its answer has {detail}")
        for one in samples:
            one["info"] = {**common, **mapping(one.get("info"))}
        return samples

    def _solved_job(
        self, problem: JSON, parameters: Mapping[str, int | None]
    ) -> dict[str, JSON]:
        given = {name: value for name, value in parameters.items() if value is not None}
        job: dict[str, JSON] = {"problem": problem, "parameters": {**given}}
        scope = self._job_key or self._lease
        text = json.dumps([scope, job], sort_keys=True, allow_nan=False)
        key = hashlib.sha256(text.encode()).hexdigest()
        times = self._solved[key]
        job["idempotency_key"] = f"{key}.{times}" if times else key
        if self._purpose is not None:
            job["purpose"] = self._purpose
        leases = (None, self._lease)
        try:
            while True:
                was_found, submitted = self._submit(job)
                followed = self._follow(submitted)
                if followed.state != "Cancelled" or followed.lease in leases:
                    break
                # the job of an earlier attempt, cancelled because its lease ended
        except InputError:
            raise
        except BaseException:
            with suppress(QpuError, InputError):
                self._cancel(job)
            raise
        if followed.state != "Completed":
            how = "was cancelled" if followed.state == "Cancelled" else "failed"
            about = f": {followed.remark or 'no reason given'}"
            if followed.note == "cancelled":
                about = ""
            raise QpuError(f"{self.service.name}: the job {how}{about}")
        result = self._send_job("GET", followed.id, "/result", retry=True)
        samples = result.json()
        if "seed" not in given:
            self._solved[key] += 1
            if was_found and isinstance(info := samples.get("info"), dict):
                samples["info"] = {**info, "found": True}
        return samples

    def describe(self) -> Description:
        """See :meth:`Qpu.describe`."""
        device = self.service.send("GET", "/v1/device").json()
        timing, calibration = device.get("timing"), device.get("calibration")
        payloads, qubits = device.get("payloads"), device.get("out_of_service")
        shots, kinds, specs = device.get("shots"), payloads or [], None
        supported = tuple(k for k in KINDS if isinstance(kinds, list) and k in kinds)
        if {"sequence", "photonic"} & {*supported}:  # warden's dialect tells them
            send = partial(self.service.send, timeout_seconds=LARGE_SECONDS)
            specs = self.service.text(send("GET", "/qpu/specs").json(), "specs")
        return Description(
            self.service.text(device, "technology"),
            count(device.get("qubits")) or 0,
            supported,
            out_of_service=frozenset(
                qubit
                for qubit in (qubits if isinstance(qubits, list) else [])
                if isinstance(qubit, int)
            ),
            shots=count(shots),
            timing=_timing(timing) if isinstance(timing, dict) else None,
            calibration=calibration if isinstance(calibration, dict) else None,
            topology=self._topology(),
            specs=specs,
            native_gates=tuple(map(str, listing(device.get("native_gates")))),
        )

    def _topology(self) -> Topology | None:
        send = partial(self.service.send, timeout_seconds=LARGE_SECONDS)
        response = send("GET", "/v1/device/topology", expected=(404,))
        if response.status == 404:
            return None
        graph = response.json()
        shape, couplers = graph.get("shape"), graph.get("couplers")
        if not isinstance(shape, list) or not isinstance(couplers, list):
            raise QpuError(f"{self.service.name}: the device's graph is malformed")
        pairs = (pair for pair in couplers if isinstance(pair, list))
        return Topology(
            self.service.text(graph, "kind"),
            tuple(count(size) or 0 for size in shape),
            count(graph.get("labels")) or 0,
            tuple(
                (count(pair[0]) or 0, count(pair[1]) or 0)
                for pair in pairs
                if len(pair) == 2
            ),
        )

    def submit(self, task: Task) -> str:
        """See :meth:`Qpu.submit`; the tag is the job's idempotency key."""
        try:
            response = self.service.send(
                "POST",
                "/v1/jobs",
                self._body(task),
                timeout_seconds=LARGE_SECONDS,
                expected=NOT_ACCEPTED,
            )
        except Unreachable as error:
            if error.sent:
                raise
            raise NotAccepted(str(error)) from error
        except Unsendable as error:  # no fault of the job
            raise NotAccepted(str(error)) from error
        if response.status in NOT_ACCEPTED:
            message = f"{self.service.name} takes no job now: {refusal(response)}"
            raise NotAccepted(message, response.retry_seconds)
        job = ServiceJob.read(self.service.name, response.json(), key=task.tag)
        job.log_expected(self.service.name)
        return job.id

    def _body(self, task: Task) -> bytes:
        given = {key: v for key, v in task.parameters.items() if v is not None}
        rest: dict[str, JSON] = {"parameters": {**given}, "idempotency_key": task.tag}
        if self._purpose is not None:
            rest["purpose"] = self._purpose
        # The payload is inserted without being parsed, as it may be large.
        return f'{{"{task.kind}": {task.payload}, {json.dumps(rest)[1:]}'.encode()

    def find(self, tag: str) -> str | None:
        path = f"/v1/jobs?key={quote(tag, safe='')}"
        answer = self.service.send("GET", path)
        try:
            jobs = map(mapping, listing(parse_json(answer.body)))
            by_key = {str(job["idempotency_key"]): str(job["id"]) for job in jobs}
        except (ValueError, KeyError) as error:
            message = f"{self.service.name}: its answer is no list of jobs"
            raise QpuError(message) from error
        if by_key and tag not in by_key:
            message = "lists jobs with other keys than it was asked for"
            raise QpuError(f"{self.service.name} {message}")
        return by_key.get(tag)

    def poll(self, job_id: str) -> Progress:
        job = self._job("GET", job_id)
        return Progress(job.state, job.position, job.eta_seconds)

    def result(self, job_id: str, task: Task) -> Outcome:
        job = self._job("GET", job_id, task.tag)
        return self._outcome(job, task.result_bytes)

    def run_job(self, task: Task) -> Outcome:
        """See :meth:`Qpu.run_job`; a small job takes one request.

        A submission without an answer is repeated: its tag, the job's idempotency key,
        makes it the same job.
        """
        body = self._body(task)
        try:
            response = self.service.send(
                "POST", _SUBMISSIONS, body, timeout_seconds=LARGE_SECONDS, retry=True
            )
            submitted = ServiceJob.read(
                self.service.name, response.json(), key=task.tag
            )
            job = self._follow(submitted)
            return named(self._outcome(job), job.id)
        except InputError:
            raise
        except BaseException:
            with suppress(QpuError, InputError):
                self._cancel(body)
            raise

    def counters(self, job_id: str) -> Iterator[dict[str, int]]:
        """Yield the counts of a job's circuits, in order, as they finish.

        They are fetched when they are asked for, about a megabyte at once.

        :raises QpuError: if the job fails or is cancelled, after the circuits that have
            finished
        """
        yield from self._streamed(job_id, "counter", counter)

    def sample_sets(self, job_id: str) -> Iterator[dict[str, JSON]]:
        """As :meth:`counters`, the serialized sample sets of a job's BQMs."""
        yield from self._streamed(job_id, "sample_set", mapping)

    def _streamed(
        self, job_id: str, what: str, read: Callable[[JSON], T]
    ) -> Iterator[T]:
        first, over, state = 0, False, ""
        pauses = backoff.JOB.pauses()
        while not over:
            asked = time.monotonic()
            part = f"/{what}s?first={first}&wait={POLL_SECONDS:g}"
            response = self._send_job("GET", job_id, part, retry=True)
            try:
                *lines, last = map(mapping, map(parse_json, response.body.splitlines()))
                items = [read(line[what]) for line in lines]
                first += len(items)
                over, state = bool(last["over"]), str(last["state"])
                # a job that is over has no more to come than it has told
                if last["next"] != first or (not items and over != (state in OVER)):
                    raise ValueError("the next number is not that of what follows")
            except (ArithmeticError, KeyError, TypeError, ValueError) as error:
                message = f"the results of job {job_id} are malformed"
                raise QpuError(f"{self.service.name}: {message}") from error
            yield from items
            if not items and time.monotonic() - asked < EARLY_SECONDS:
                time.sleep(next(pauses))
        if state != "Completed":
            outcome = named(self._outcome(self._job("GET", job_id)), job_id)
            raise QpuError(f"{self.service.name}: {outcome.failure}")

    def _outcome(self, job: ServiceJob, most_bytes: int = RESULT_BYTES) -> Outcome:
        if job.state not in OVER:
            raise QpuError(f"{self.service.name}: job {job.id} is {job.state}")
        result, failure = None, None
        if job.state == "Completed":
            result = job.result or self._result(job.id, most_bytes)
        elif job.state == "Failed":
            failure = job.note or "no reason given"
        return Outcome(
            result,
            failure,
            qpu_seconds=job.qpu_seconds,
            seconds=job.seconds,
            calibration=job.calibration,
            note=job.remark,
        )

    def cancel(self, job_id: str) -> None:
        self._job("DELETE", job_id)

    def _job(self, method: str, job_id: str, key: str | None = None) -> ServiceJob:
        answer = self._send_job(method, job_id).json()
        return ServiceJob.read(self.service.name, answer, id_=job_id, key=key)

    def _send_job(
        self,
        method: str,
        job_id: str,
        part: str = "",
        *,
        retry: bool = False,
        most_bytes: int = RESULT_BYTES,
    ) -> Response:
        """:param part: path of a part of the job, which may be large"""
        response = self.service.send(
            method,
            f"/v1/jobs/{quote(job_id, safe='')}{part}",
            timeout_seconds=LARGE_SECONDS if part else REQUEST_SECONDS,
            retry=retry,
            expected=(404,),
            most_bytes=most_bytes if part else ANSWER_BYTES,
        )
        if response.status == 404:
            raise UnknownJob(f"{self.service.name}: {refusal(response)}")
        return response

    def _result(self, job_id: str, most_bytes: int) -> Result:
        """Fetch a result; its ``info`` is separated without parsing the rest."""
        response = self._send_job("GET", job_id, "/result", most_bytes=most_bytes)
        text = response.body.decode(errors="replace").strip()
        # within a string of JSON, the quotes of INFO would have backslashes; within
        # another object, more than one bracket would follow
        end, begins = len(text), text.startswith('{"')
        for _ in range(INFO_TRIES if begins else 0):
            if (end := text.rfind(INFO, 0, end)) < 0:
                break
            with suppress(ValueError):
                info = parse_json(text[end + len(INFO) : -1])
                if text.endswith("}") and isinstance(info, dict):
                    return Result(f"{text[:end]}}}", info)
        message = f"{self.service.name}: the result of job {job_id} is malformed"
        raise WrongAnswer(message, text)

    def _submit(self, body: dict[str, JSON]) -> tuple[bool, ServiceJob]:
        """Submit a job, under a new key if an earlier attempt failed or was cancelled.

        :returns: whether it had been submitted before, and the job
        """
        first, attempt = str(body["idempotency_key"]), 1
        while True:
            # A wait would leave open whether a service that is lost has the job.
            response = self.service.send("POST", "/v1/jobs", body, retry=True)
            key = str(body["idempotency_key"])
            job = ServiceJob.read(self.service.name, response.json(), key=key)
            if response.status == 201 or job.state not in ("Failed", "Cancelled"):
                return response.status != 201, job
            attempt += 1
            body["idempotency_key"] = f"{first}-{attempt}"

    def _follow(self, job: ServiceJob) -> ServiceJob:
        """Wait until a job is over.

        :param job: answer to its submission
        """
        service = self.service
        job.log_expected(service.name)
        path = f"/v1/jobs/{job.id}?wait={POLL_SECONDS:g}"
        timeout = POLL_SECONDS + REQUEST_SECONDS
        while job.state not in OVER:
            try:
                response = service.send(
                    "GET", path, timeout_seconds=timeout, retry=True, expected=(404,)
                )
            except Unreachable as error:
                raise QpuError(f"{error}; it ended during the job") from error
            if response.status == 404:
                raise QpuError(f"{service.name}: it no longer knows the job")
            job = ServiceJob.read(service.name, response.json(), id_=job.id)
        return job

    def _cancel(self, job: Mapping[str, JSON] | bytes) -> None:
        # by its key, the job is found even if its submission was not answered
        send = partial(self.service.send, timeout_seconds=CANCEL_SECONDS)
        submitted = send("POST", "/v1/jobs", job).json()
        send("DELETE", f"/v1/jobs/{self.service.text(submitted, 'id')}")


def _lease(token: str) -> str:
    return f"/v1/leases/{quote(token, safe='')}"


def _timing(timing: Mapping[str, JSON]) -> Timing:
    names = "setup_seconds shot_seconds readout_seconds".split()
    return Timing(*(number(timing.get(name)) or 0.0 for name in names))


def _seconds_left(answer: Mapping[str, JSON], left: str, until: str) -> float | None:
    """Read how long something lasts; earlier services tell only its end, by their clock."""
    if left in answer:
        return number(answer[left])
    when = number(answer.get(until))
    return None if when is None else max(0.0, when - time.time())


def _renamed(values: Mapping[str, JSON], names: Mapping[str, str]) -> dict[str, JSON]:
    return {name: values[key] for key, name in names.items() if key in values}


def _munge(config: Mapping[str, JSON]) -> str | bool:
    value = config.get("munge", False)
    if isinstance(value, bool) or (isinstance(value, str) and value.startswith("/")):
        return value
    raise InputError("munge: expected true, false or the path of munged's socket")
