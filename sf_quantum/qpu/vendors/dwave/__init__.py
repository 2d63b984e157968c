"""D-Wave's annealers, and other services with SAPI (D-Wave's API), through D-Wave's client.

``connection`` contains the endpoint, token and name of a solver, ``client`` makes requests of
limited size and time and converts their errors, ``solver`` reads a solver's properties, and
``embedded`` embeds problems and samples them.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Self

from dimod import BinaryQuadraticModel
from dimod.core.sampler import Sampler

from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.files import JSON, mapping, parse_json
from sf_quantum.protocol import solver_parameters
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import (
    LeaseJob,
    NotAccepted,
    Outcome,
    Progress,
    Result,
    State,
    Task,
    UnknownJob,
)
from sf_quantum.protocol.values import check_about
from sf_quantum.qpu import (
    AuthenticationError,
    NoLease,
    Qpu,
    QpuStatus,
    qrmi_config,
    with_qpu_name,
)
from sf_quantum.qpu.configuration import check_keys, config_text, read_token
from sf_quantum.qpu.environment import TOKEN, required
from sf_quantum.qpu.vendors.dwave import solver as solvers
from sf_quantum.qpu.vendors.dwave.client import LIVE, DWaveClient, missing_package
from sf_quantum.qpu.vendors.dwave.connection import REQUIRED, VARIABLES, Connection
from sf_quantum.qpu.vendors.dwave.embedded import DWaveEmbedded, ending, message
from sf_quantum.qpu.vendors.embedding import (
    Embedded,
    WrongEmbedding,
    access_seconds,
)
from sf_quantum.samplers.problem import check as check_problem
from sf_quantum.samplers.problem import serialized

if TYPE_CHECKING:
    from dwave.cloud.api import Problems
    from dwave.cloud.api.models import ProblemStatus

KEYS = ("url", "tokenFile", "resource", "qrmiConfig")
LEASE_PREFIX = "sfq-lease"
# D-Wave's states of problems, and the states of jobs that they mean.
STATES: Mapping[str, State] = {
    "PENDING": "Queued",
    "IN_PROGRESS": "Running",
    "COMPLETED": "Completed",
    "FAILED": "Failed",
    "CANCELLED": "Cancelled",
}
# Largest number of embeddings in memory, for problems that have not ended.
EMBEDDINGS = 32


class DWaveQpu(Qpu):
    """An annealer.

    D-Wave's service has no leases. Our lease is a label of the job's problems; its release
    cancels the problems that have not ended.

    :param lease: label of the problems, on the job's side
    """

    type = "dwave"
    variables = tuple(VARIABLES)
    reads_qrmi_config = True
    kinds = solvers.KINDS
    finds_by_tag = True

    def __init__(
        self, name: str, connection: Connection, lease: str | None = None
    ) -> None:
        super().__init__(name)
        self.connection = connection
        self.client = DWaveClient(name, connection)
        self.lease = lease
        # Embeddings by the id of their problem, the latest last.
        self._embedded: dict[str, Embedded] = {}
        self._lock = threading.Lock()

    @classmethod
    def problem(cls) -> str | None:
        return missing_package()

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, JSON]) -> Self:
        """See :meth:`Qpu.from_config`.

        The keys are ``url``, which ends in ``/sapi/v2``, and ``tokenFile``, or instead
        ``qrmiConfig``, a site's file whose entry contains ``DWAVE_API_*``. ``resource`` is
        the solver's name; with a site's file, it is the entry's name, by default the QPU's.
        """
        check_keys(config, KEYS)
        given = {key: config_text(config, key) for key in KEYS}
        if (path := given["qrmiConfig"]) is not None:
            entry = qrmi_config.read(path, given["resource"] or name, cls.type)
            for variable in REQUIRED:
                if not entry.environment.get(variable):
                    raise entry.missing(variable)
            return cls(name, Connection.from_variables(name, entry.environment))
        url, token_file = given["url"], given["tokenFile"]
        if url is None or token_file is None:
            key = "url" if url is None else "tokenFile"
            raise InputError(f"{key}: missing in the configuration of QPU {name!r}")
        return cls(name, Connection(url, read_token(token_file), given["resource"]))

    @property
    def identity(self) -> str:
        return f"{self.connection.endpoint.rstrip('/')} {self.connection.solver or ''}"

    def status(self) -> QpuStatus:
        """See :meth:`Qpu.status`; D-Wave does not report the number of pending jobs."""
        solver = self.client.graph()
        online, graph_id = self.client.state(solver.name)
        if graph_id is not None and graph_id != solver.graph_id:
            solver = self.client.graph(renew=True)
        if not online and not self.connection.is_named:
            self.client.forget_graph()  # another matching solver may be online
        return QpuStatus(
            name=solver.name,
            technology="annealer",
            online=online,
            reason="" if online else "offline",
            qubits=solver.num_active_qubits,
            calibration=solver.graph_id,
        )

    def acquire(self, job: str | None = None) -> str:
        if not self.status().online:
            raise NoLease(f"QPU {self.name!r} is offline")
        return f"{LEASE_PREFIX}-{int(time.time())}-{secrets.token_hex(8)}"

    def jobs(self, token: str) -> list[LeaseJob] | None:
        """See :meth:`Qpu.jobs`.

        A user's program may choose its own labels. So the list contains all problems that
        were submitted since the lease was acquired, except problems with the label of
        another lease.
        """
        with self.client.problems(patient=True) as problems:
            return [
                _job(problems, one)
                for one in problems.list_problems()
                if _is_of(token, str(one.label or ""), one.submitted_on)
            ]

    def release(self, token: str) -> None:
        self.client.cancel_labelled(token)

    def environment(self, token: str) -> dict[str, str]:
        """See :meth:`Qpu.environment`; D-Wave's client also reads the variables."""
        return {**self.connection.variables, f"{self.name}_{TOKEN}": token}

    @classmethod
    def from_environment(cls, name: str, environment: Mapping[str, str]) -> Self:
        """See :meth:`Qpu.from_environment`; QRMI's SPANK plugin prefixes the names."""
        get = environment.get
        variables = {key: get(f"{name}_{key}") or get(key) for key in VARIABLES}
        lease = required(name, environment, TOKEN)
        return cls(name, Connection.from_variables(name, variables), lease)

    def sampler(self) -> Sampler:
        return DWaveEmbedded(self.client, self.lease)

    def describe(self) -> Description:
        solver = self.client.graph(renew=True)
        with self.client.well_formed():
            return solvers.description(solver)

    def submit(self, task: Task) -> str:
        """See :meth:`Qpu.submit`; the tag is the problem's label.

        Parameters of the solver come with the problem; see :mod:`.solver_parameters`.
        """
        try:
            solver = self.client.graph()
        except AuthenticationError:
            raise
        except QuantumError as error:  # not the problem's fault, as it was not sent yet
            raise NotAccepted(str(error)) from error
        bqm = _content(task)
        solver_parameters.check(solver_parameters.given(bqm), solver.properties)
        given = solver_parameters.sent(bqm, task.parameters, solver.properties)
        solver_parameters.check_ranges(given, solver.properties)
        embedded = Embedded.of(_model(bqm), solver, task.parameters.get("seed"))
        job_id = self.client.submit(embedded, given, task.tag)
        with self._lock:
            self._embedded[job_id] = embedded
            if len(self._embedded) > EMBEDDINGS:
                del self._embedded[next(iter(self._embedded))]
        return job_id

    def find(self, tag: str) -> str | None:
        return next(iter(self.duplicates(tag, "")), None)

    def duplicates(self, tag: str, job_id: str) -> Sequence[str]:
        with self.client.asking() as problems:
            listed = problems.list_problems(label=tag)
            return [one.id for one in listed if one.label == tag and one.id != job_id]

    def poll(self, job_id: str) -> Progress:
        with self.client.asking() as problems:
            statuses = problems.get_problem_statuses([job_id])
            if not statuses:
                raise UnknownJob(f"QPU {self.name!r}: no problem {job_id}")
            check_about(f"QPU {self.name!r}", statuses[0].id, job_id)
            return Progress(STATES[statuses[0].status.value])

    def result(self, job_id: str, task: Task) -> Outcome:
        """See :meth:`Qpu.result`.

        If an earlier process submitted the problem, the embedding is computed again, with the
        same seed. If this gives another embedding, because the working graph has changed or
        the search takes too long, the job has failed.
        """
        with self.client.asking(task.result_bytes) as problems:
            problem = problems.get_problem(job_id)
        check_about(f"QPU {self.name!r}", problem.id, job_id)
        check_about(f"QPU {self.name!r}", problem.label, task.tag)
        status = problem.status.value
        if status == "CANCELLED":
            return Outcome(note=message(problem))
        if status == "FAILED":
            return Outcome(failure=ending(problem))
        if status in LIVE:
            raise QpuError(f"QPU {self.name!r}: problem {job_id} is {status}")
        with self.client.well_formed():
            seconds = access_seconds(problem.answer and problem.answer.timing)
            embedded = self._embedded.get(job_id)
            try:
                if embedded is None:
                    seed = task.parameters.get("seed")
                    embedded = Embedded.of(
                        _model(_content(task)), self.client.graph(), seed
                    )
                samples = embedded.samples(problem)
            except (WrongEmbedding, InputError):
                failure = "its embedding is lost, and another one is found now"
                return Outcome(failure=failure, qpu_seconds=seconds)
            content = serialized(samples)
            info = with_qpu_name(self.name, mapping(content.pop("info")))
        result = Result(json.dumps(content), info)
        calibration = CalibrationData(embedded.solver.graph_id)
        return Outcome(result, qpu_seconds=seconds, calibration=calibration)

    def cancel(self, job_id: str) -> None:
        with self.client.asking() as problems:
            from dwave.cloud.api.exceptions import ResourceConflictError

            with suppress(ResourceConflictError):  # the problem has ended
                problems.cancel_problem(job_id)


def _is_of(token: str, label: str, submitted: datetime) -> bool:
    since = token.removeprefix(f"{LEASE_PREFIX}-").partition("-")[0]
    if label.startswith(LEASE_PREFIX) or not since.isdecimal():
        return label == token
    return submitted.timestamp() >= int(since)


def _job(problems: Problems, one: ProblemStatus) -> LeaseJob:
    answer = None
    if one.status.value == "COMPLETED":
        answer = problems.get_problem(one.id).answer
    return LeaseJob(
        one.id,
        STATES.get(one.status.value, "Failed"),
        submitted=one.submitted_on.timestamp(),
        ended=None if one.solved_on is None else one.solved_on.timestamp(),
        qpu_seconds=access_seconds(answer and answer.timing),
        found=False,
    )


def _content(task: Task) -> dict[str, JSON]:
    try:
        content = parse_json(task.payload)
    except ValueError as error:
        raise InputError("problem: not JSON") from error
    return check_problem(content, "problem")


def _model(content: dict[str, JSON]) -> BinaryQuadraticModel:
    return BinaryQuadraticModel.from_serializable(content)
