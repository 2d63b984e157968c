"""D-Wave's annealers, and other services with SAPI, through D-Wave's client."""

from __future__ import annotations

import importlib.util
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Self

from dimod import BinaryQuadraticModel, SampleSet
from dimod.core.sampler import Sampler

from sf_quantum import backoff
from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.files import JSON, mapping, parse_json
from sf_quantum.net.answers import UNDONE_REDIRECTS
from sf_quantum.net.transport import retry_seconds
from sf_quantum.protocol import solver_parameters
from sf_quantum.protocol.bounds import ANSWER_BYTES, RESULT_BYTES
from sf_quantum.protocol.descriptions import Description, Timing, Topology
from sf_quantum.protocol.solver_parameters import check_ranges
from sf_quantum.protocol.tasks import (
    Kind,
    LeaseJob,
    NotAccepted,
    Outcome,
    Progress,
    Result,
    State,
    Task,
    UnknownJob,
)
from sf_quantum.protocol.values import check_about, number
from sf_quantum.qpu import (
    AuthenticationError,
    NoLease,
    Qpu,
    QpuStatus,
    qrmi_config,
)
from sf_quantum.qpu.configuration import check_keys, config_text, read_token
from sf_quantum.qpu.environment import TOKEN, required
from sf_quantum.qpu.vendors.embedding import (
    MICROSECONDS,
    Embedded,
    WrongEmbedding,
    access_seconds,
)
from sf_quantum.samplers.neal import SWEEPS
from sf_quantum.samplers.parameters import check, check_number, seeded
from sf_quantum.samplers.problem import check as check_problem
from sf_quantum.samplers.problem import serialized
from sf_quantum.text import described, one_line

if TYPE_CHECKING:
    from dwave.cloud.api import Problems
    from dwave.cloud.api.models import ProblemStatus, ProblemStatusMaybeWithAnswer
    from dwave.cloud.solver import StructuredSolver
    from requests import RequestException
    from requests import Response as Answer

KEYS = ("url", "tokenFile", "resource", "qrmiConfig")
# the variables of D-Wave's client, and its options
VARIABLES = {
    "DWAVE_API_ENDPOINT": "endpoint",
    "DWAVE_API_TOKEN": "token",
    "DWAVE_API_SOLVER": "solver",
}
REQUIRED = ("DWAVE_API_ENDPOINT", "DWAVE_API_TOKEN")
LEASE_PREFIX = "sfq-lease"
MISSING = "dwave-system is not installed (pip install 'sf-quantum[dwave]')"
# D-Wave's states, and QRMI's
STATES: Mapping[str, State] = {
    "PENDING": "Queued",
    "IN_PROGRESS": "Running",
    "COMPLETED": "Completed",
    "FAILED": "Failed",
    "CANCELLED": "Cancelled",
}
LIVE = ("PENDING", "IN_PROGRESS")
# client errors after which another attempt may succeed
TRANSIENT = (408, 409, 425, 429)
# statuses after which there is no problem, and another attempt may succeed; 404 if the
# working graph has changed
NOT_ACCEPTED = (404, 408, 425, 429, 503)
# Statuses that also proxies send: there may be a problem behind the proxy.
ALSO_OF_PROXIES = (408, 503)
OFFLINE = "solver is offline"
# properties that the topology has
OF_THE_GRAPH = ("topology", "num_qubits", "qubits", "couplers")
# what of a solver changes often
DYNAMIC = "none,+identity,+status"
REQUEST_SECONDS = 30.0
PATIENT_SECONDS = 60.0
# Largest list of all solvers, each with its graph.
SOLVERS_BYTES = 4 * ANSWER_BYTES
# SAPI keeps a request for the end of a problem for this long.
POLL_SECONDS = 30
# several times those of the largest QPU
LARGEST_SHAPE = 64
# Largest number of embeddings in memory, for problems that have not ended.
EMBEDDINGS = 32


class DWaveQpu(Qpu):
    """An annealer.

    D-Wave's service has no leases. A lease is a label of the job's problems; giving it back
    cancels those that have not ended.

    :param connection: options of D-Wave's client: ``endpoint``, ``token``, ``solver``
    :param lease: the label, on the job's side
    """

    type = "dwave"
    variables = tuple(VARIABLES)
    reads_qrmi_config = True
    kinds: ClassVar[tuple[Kind, ...]] = ("problem",)
    finds = True

    def __init__(
        self, name: str, connection: Mapping[str, str], lease: str | None = None
    ) -> None:
        super().__init__(name)
        self.connection = dict(connection)
        self.lease = lease
        self._graph: StructuredSolver | None = None
        # Embeddings by the id of their problem, the latest last.
        self._embedded: dict[str, Embedded] = {}
        self._lock = threading.Lock()

    @classmethod
    def problem(cls) -> str | None:
        with suppress(ModuleNotFoundError):
            if importlib.util.find_spec("dwave.system"):
                return None
        return MISSING

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, JSON]) -> Self:
        """See :meth:`Qpu.from_config`.

        Keys ``url``, which ends in ``/sapi/v2``, and ``tokenFile``, or ``qrmiConfig``, a
        site's file whose entry has ``DWAVE_API_*``; ``resource``, the solver's name, or
        the entry's if it is not the QPU's.
        """
        check_keys(config, KEYS)
        given = {key: config_text(config, key) for key in KEYS}
        if (path := given["qrmiConfig"]) is not None:
            entry = qrmi_config.read(path, given["resource"] or name, cls.type)
            for variable in REQUIRED:
                if not entry.environment.get(variable):
                    raise entry.missing(variable)
            return cls(name, _connection(name, entry.environment))
        url, token_file = given["url"], given["tokenFile"]
        if url is None or token_file is None:
            key = "url" if url is None else "tokenFile"
            raise InputError(f"{key}: missing in the configuration of QPU {name!r}")
        connection = {"endpoint": url, "token": read_token(token_file)}
        if (solver := given["resource"]) is not None:
            connection["solver"] = solver
        return cls(name, connection)

    @property
    def identity(self) -> str:
        connection = self.connection
        return f"{connection['endpoint'].rstrip('/')} {connection.get('solver', '')}"

    def status(self) -> QpuStatus:
        """See :meth:`Qpu.status`; D-Wave does not report how many jobs are pending."""
        solver = self.graph()
        with self.errors(), self.well_formed():
            from dwave.cloud.api import Solvers

            from sf_quantum.net import sessions

            with Solvers(**self._once()) as solvers:
                sessions.guard(solvers.session, ANSWER_BYTES, REQUEST_SECONDS)
                # The filter leaves out the graph, which may have a megabyte.
                current = solvers.get_solver(solver.name, filter=DYNAMIC)
            version = current.identity.version
            online = str(current.get("status", "")).lower() == "online"
        if version is not None and version.graph_id != solver.graph_id:
            solver = self.graph(renew=True)
        wanted = client_options(self.connection).get("solver")
        if not online and not (isinstance(wanted, dict) and "name" in wanted):
            self._graph = None  # another matching solver may be online
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

        A user's program may choose its own labels, so all problems submitted since the lease
        was acquired count, except those with the label of another lease.
        """
        with self._problems(patient=True) as problems:
            return [
                _job(problems, one)
                for one in problems.list_problems()
                if _is_of(token, str(one.label or ""), one.submitted_on)
            ]

    def release(self, token: str) -> None:
        with self._problems(patient=True) as problems:
            listed = problems.list_problems(label=token)
            if live := [one.id for one in listed if one.status.value in LIVE]:
                problems.cancel_problems(live)

    def environment(self, token: str) -> dict[str, str]:
        """See :meth:`Qpu.environment`; D-Wave's client reads the variables too."""
        connection = self.connection
        variables = {
            name: connection[key]
            for name, key in VARIABLES.items()
            if key in connection
        }
        return {**variables, f"{self.name}_{TOKEN}": token}

    @classmethod
    def from_environment(cls, name: str, environment: Mapping[str, str]) -> Self:
        """See :meth:`Qpu.from_environment`; QRMI's SPANK plugin prefixes the names."""
        get = environment.get
        variables = {key: get(f"{name}_{key}") or get(key) for key in VARIABLES}
        lease = required(name, environment, TOKEN)
        return cls(name, _connection(name, variables), lease)

    def sampler(self) -> Sampler:
        return DWaveEmbedded(self)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert the errors of D-Wave's client into ours."""
        if (missing := self.problem()) is not None:
            raise InputError(f"QPU {self.name!r}: {missing}")
        from dwave.cloud import exceptions as known
        from dwave.cloud.api import exceptions as answered
        from requests import exceptions as requests

        refused = (
            known.SolverNotFoundError,
            known.UnsupportedSolverError,
            answered.ResourceBadRequestError,
        )
        forbidden = (
            answered.ResourceAuthenticationError,
            answered.ResourceAccessForbiddenError,
        )
        bad_url = requests.MissingSchema, requests.InvalidSchema, requests.InvalidURL
        trouble = known.CanceledFutureError, known.PollingTimeout
        try:
            yield
        except forbidden as error:
            text = f"QPU {self.name!r} refuses: {described(error)}"
            raise AuthenticationError(text) from error
        except refused as error:
            raise InputError(
                f"QPU {self.name!r} refuses: {described(error)}"
            ) from error
        except (requests.RequestException, *trouble) as error:
            # some refusals are known by their HTTP status only
            code = getattr(error, "error_code", None)
            status = code if isinstance(code, int) else 0
            refusal = 400 <= status < 500 and status not in TRANSIENT
            useless = refusal or isinstance(error, bad_url)
            kind = InputError if useless else QpuError
            raise kind(f"QPU {self.name!r}: {described(error)}") from error

    # Jobs. Problems are read and written one request at a time: D-Wave's samplers would
    # wait for the answer, in threads of their own.

    def describe(self) -> Description:
        """See :meth:`Qpu.describe`; the calibration is that of the working graph."""
        solver = self.graph(renew=True)
        with self.well_formed():
            properties = solver.properties
            topology = Topology(
                str(properties["topology"]["type"]),
                tuple(map(int, properties["topology"]["shape"])),
                int(properties["num_qubits"]),
                tuple(sorted(solver.undirected_edges)),
            )
            return Description(
                "annealer",
                solver.num_active_qubits,
                self.kinds,
                out_of_service=_fabric(topology.kind, topology.shape) - solver.nodes,
                shots=int(properties["num_reads_range"][1]),
                timing=_timing(solver),
                calibration={"id": solver.graph_id},
                topology=topology,
                solver={
                    key: properties[key]
                    for key in properties
                    if key not in OF_THE_GRAPH
                },
            )

    def submit(self, task: Task) -> str:
        """See :meth:`Qpu.submit`; the tag is the problem's label.

        A number of sweeps is an annealing time: as many times the solver's default as
        times the default of the samplers. Parameters of the solver come with the problem;
        see :mod:`.solver_parameters`.
        """
        try:
            solver = self.graph()
        except AuthenticationError:
            raise
        except QuantumError as error:  # no problem is sent yet, and it is not at fault
            raise NotAccepted(str(error)) from error
        bqm = _content(task)
        given: dict[str, JSON] = solver_parameters.given(bqm)
        solver_parameters.check(given, solver.properties)
        given["num_reads"] = task.shots
        sweeps = task.parameters.get("num_sweeps") or SWEEPS
        if sweeps != SWEEPS and not given.keys() & {
            "annealing_time",
            "anneal_schedule",
        }:
            usual = _number(solver.properties, "default_annealing_time") or 0.0
            given["annealing_time"] = usual * sweeps / SWEEPS
        check_ranges(given, solver.properties)
        embedded = Embedded.of(_model(bqm), solver, task.parameters.get("seed"))
        job_id = self.send(embedded, given, task.tag)
        with self._lock:
            self._embedded[job_id] = embedded
            if len(self._embedded) > EMBEDDINGS:
                del self._embedded[next(iter(self._embedded))]
        return job_id

    def find(self, tag: str) -> str | None:
        return next(iter(self.others(tag, "")), None)

    def others(self, tag: str, job_id: str) -> Sequence[str]:
        with self._asking() as problems:
            listed = problems.list_problems(label=tag)
            return [one.id for one in listed if one.label == tag and one.id != job_id]

    def poll(self, job_id: str) -> Progress:
        with self._asking() as problems:
            statuses = problems.get_problem_statuses([job_id])
            if not statuses:
                raise UnknownJob(f"QPU {self.name!r}: no problem {job_id}")
            check_about(f"QPU {self.name!r}", statuses[0].id, job_id)
            return Progress(STATES[statuses[0].status.value])

    def result(self, job_id: str, task: Task) -> Outcome:
        """See :meth:`Qpu.result`.

        The embedding of a problem that an earlier process has submitted is searched again,
        with the same seed. If it is another one, since the working graph has changed or
        the search takes too long, the job has failed.
        """
        with self._asking(task.result_bytes) as problems:
            problem = problems.get_problem(job_id)
        check_about(f"QPU {self.name!r}", problem.id, job_id)
        check_about(f"QPU {self.name!r}", problem.label, task.tag)
        status = problem.status.value
        if status == "CANCELLED":
            return Outcome(note=_reason(problem))
        if status == "FAILED":
            return Outcome(failure=ending(problem))
        if status in LIVE:
            raise QpuError(f"QPU {self.name!r}: problem {job_id} is {status}")
        with self.well_formed():
            seconds = access_seconds(problem.answer and problem.answer.timing)
            embedded = self._embedded.get(job_id)
            try:
                if embedded is None:
                    seed = task.parameters.get("seed")
                    embedded = Embedded.of(_model(_content(task)), self.graph(), seed)
                samples = embedded.samples(problem)
            except (WrongEmbedding, InputError):
                failure = "its embedding is lost, and another one is found now"
                return Outcome(failure=failure, qpu_seconds=seconds)
            content = serialized(samples)
        info = mapping(content.pop("info"))
        calibration = mapping(info["calibration"])
        result = Result(json.dumps(content), info)
        return Outcome(result, qpu_seconds=seconds, calibration=calibration)

    def cancel(self, job_id: str) -> None:
        with self._asking() as problems:
            from dwave.cloud.api.exceptions import ResourceConflictError

            with suppress(ResourceConflictError):  # it is over
                problems.cancel_problem(job_id)

    def graph(self, *, renew: bool = False) -> StructuredSolver:
        """Get the solver, as it was last known."""
        if self._graph is None or renew:
            with self._solver() as solver:
                self._graph = solver
        return self._graph

    def send(
        self, embedded: Embedded, parameters: Mapping[str, JSON], label: str | None
    ) -> str:
        """Submit a problem; return its id once the service has accepted it."""
        with self._accepting(), self._problems() as problems:
            from dwave.cloud.api.exceptions import RequestError
            from dwave.cloud.api.models import ProblemJob, ProblemSubmitError

            job = ProblemJob(
                data=embedded.data(),
                params=parameters,
                solver=embedded.solver.identity,
                type=embedded.type,
                label=label,
            )
            (reply,) = problems.submit_problems([job])
            if isinstance(reply, ProblemSubmitError):
                raise RequestError(reply.error_msg, error_code=reply.error_code)
            if label is not None:
                check_about(f"QPU {self.name!r}", reply.label, label)
            return str(reply.id)

    def wait(self, job_id: str) -> ProblemStatusMaybeWithAnswer:
        """Wait for the end of a problem."""
        with self._problems(patient=True, most_bytes=RESULT_BYTES) as problems:
            for pause in backoff.REQUEST.pauses():
                problem = problems.get_problem(job_id, timeout=POLL_SECONDS)
                check_about(f"QPU {self.name!r}", problem.id, job_id)
                if problem.status.value not in LIVE:
                    break
                time.sleep(pause)
        return problem

    @contextmanager
    def _accepting(self) -> Iterator[None]:
        """Tell submissions that have certainly made no problem."""
        try:
            yield
        except (QpuError, InputError) as error:
            from requests import RequestException

            cause = error.__cause__
            if not isinstance(cause, RequestException) or not _refused(cause):
                raise
            self._graph = None  # it may have changed
            headers = {} if cause.response is None else cause.response.headers
            wait = retry_seconds(headers.get("Retry-After"), headers.get("Date"))
            raise NotAccepted(str(error), wait) from error

    @contextmanager
    def well_formed(self) -> Iterator[None]:
        """Convert the errors of reading a malformed answer."""
        from requests import RequestException

        try:
            yield
        except (RequestException, WrongEmbedding):
            raise
        except (LookupError, ValueError, TypeError, OverflowError) as error:
            text = f"QPU {self.name!r}: a malformed answer: {described(error)}"
            raise QpuError(text) from error

    @contextmanager
    def _asking(self, most_bytes: int = ANSWER_BYTES) -> Iterator[Problems]:
        """Send one request about a problem."""
        with self._problems(most_bytes=most_bytes) as problems:
            from dwave.cloud.api.exceptions import ResourceNotFoundError

            try:
                yield problems
            except ResourceNotFoundError as error:
                text = f"QPU {self.name!r}: {described(error)}"
                raise UnknownJob(text) from error

    @contextmanager
    def _solver(self) -> Iterator[StructuredSolver]:
        with self.errors():
            from dwave.cloud import Client
            from dwave.cloud.exceptions import SolverNotFoundError

            from sf_quantum.net import sessions

            options = client_options(self.connection)
            once = {"request_timeout": REQUEST_SECONDS, "http_retry_total": 0}
            named = "name" in mapping(options.get("solver"))
            most = ANSWER_BYTES if named else SOLVERS_BYTES
            with Client.from_config(**options, **once) as client:
                asking = client.solvers_session.session
                sessions.guard(asking, most, REQUEST_SECONDS)
                try:
                    solver = client.get_solver(refresh=True)
                except SolverNotFoundError:  # it may be offline
                    wanted = client.config.solver or {}
                    solver = client.get_solver(**{**wanted, "online": False})
                yield solver

    def _once(self) -> dict[str, JSON]:
        """Make options for requests that are not repeated."""
        options = {key: self.connection[key] for key in ("endpoint", "token")}
        return {**options, "timeout": REQUEST_SECONDS, "retry": {"total": 0}}

    @contextmanager
    def _problems(
        self, *, patient: bool = False, most_bytes: int = ANSWER_BYTES
    ) -> Iterator[Problems]:
        """Send requests.

        :param patient: wait longer, and repeat requests that change nothing
        :param most_bytes: largest answer in bytes
        """
        with self.errors():
            from dwave.cloud.api import Problems

            from sf_quantum.net import sessions

            with Problems(**self._once()) as problems, self.well_formed():
                seconds = PATIENT_SECONDS if patient else REQUEST_SECONDS
                sessions.guard(problems.session, most_bytes, seconds, repeated=patient)
                yield problems


class DWaveEmbedded(Sampler):
    """Embeds each problem in the QPU's graph, and samples it there.

    A variable is a chain of qubits, unless the variables are qubits already. The chain
    strength is that of Ocean's ``uniform_torque_compensation``; broken chains are resolved
    by majority vote. ``info`` has the strength and the fraction of broken chains.
    """

    def __init__(self, qpu: DWaveQpu) -> None:
        self._qpu = qpu

    @property
    def parameters(self) -> dict[str, list[str]]:
        names = "num_reads seed annealing_time chain_strength"
        return {name: [] for name in names.split()}

    @property
    def properties(self) -> dict[str, str]:
        return {"qpu": self._qpu.name, "type": self._qpu.type}

    @staticmethod
    def check_parameters(
        *,
        num_reads: JSON = None,
        annealing_time: JSON = None,
        chain_strength: JSON = None,
    ) -> None:
        """Refuse parameters that no solver takes; the seed is checked elsewhere."""
        if num_reads is not None:
            check("num_reads", num_reads, 1)
        if annealing_time is not None:
            check_number("annealing_time", annealing_time, 0)
        if chain_strength is not None:
            check_number("chain_strength", chain_strength, 0)

    def sample(
        self,
        bqm: BinaryQuadraticModel,
        *,
        num_reads: int | None = None,
        seed: int | None = None,
        annealing_time: float | None = None,
        chain_strength: float | None = None,
    ) -> SampleSet:
        """Embed the problem, submit it and wait; interrupted, cancel it.

        :param num_reads: the QPU's default is 1
        :param seed: seed of the search for an embedding, not of the QPU's samples;
            drawn and reported in ``info`` if not given
        :param annealing_time: time of a read in microseconds; by default the solver's
        :param chain_strength: strength of the couplings in a chain, in the unit of the
            biases; computed if not given
        :raises InputError: if the QPU refuses it, or no embedding is found
        :raises QpuError: if the QPU fails or does not answer
        """
        self.check_parameters(
            num_reads=num_reads,
            annealing_time=annealing_time,
            chain_strength=chain_strength,
        )
        seed, begin, qpu = seeded(seed), time.monotonic(), self._qpu
        wanted = {"num_reads": num_reads, "annealing_time": annealing_time}
        given = {name: value for name, value in wanted.items() if value is not None}
        solver = qpu.graph()
        check_ranges(given, solver.properties)
        embedded = Embedded.of(bqm, solver, seed, chain_strength)
        try:
            problem = qpu.wait(qpu.send(embedded, given, qpu.lease))
        except BaseException:
            # without a label, the user's other problems would be cancelled too
            if qpu.lease:
                with suppress(QpuError, InputError):
                    qpu.release(qpu.lease)
            raise
        if problem.status.value != "COMPLETED":
            raise QpuError(f"QPU {qpu.name!r}: {ending(problem)}")
        with qpu.well_formed():
            samples = embedded.samples(problem)
        samples.info["timing"]["seconds"] = time.monotonic() - begin
        return samples


def client_options(connection: Mapping[str, str]) -> dict[str, JSON]:
    """Make the options of D-Wave's client, which then reads none of its files."""
    options: dict[str, JSON] = {"config_file": False, "client": "qpu", **connection}
    solver = connection.get("solver", "")
    if not solver.lstrip().startswith("{"):  # a name, not features
        return {**options, "solver": {"name": solver}} if solver else options
    try:
        return {**options, "solver": parse_json(solver)}
    except ValueError as error:
        raise InputError("DWAVE_API_SOLVER: not a name and not JSON") from error


def _connection(name: str, variables: Mapping[str, str | None]) -> dict[str, str]:
    for variable in REQUIRED:
        if not variables.get(variable):
            raise InputError(f"{variable} is not set for QPU {name!r}")
    given = {VARIABLES[key]: variables.get(key) for key in VARIABLES}
    return {key: value for key, value in given.items() if value}


def _number(values: Mapping[str, JSON], key: str) -> float | None:
    return number(values.get(key))


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


def ending(problem: ProblemStatus) -> str:
    """Say how a problem without an answer ended."""
    reason = _reason(problem)
    if problem.status.value == "CANCELLED":
        return f"problem {problem.id} was cancelled{f': {reason}' if reason else ''}"
    return f"problem {problem.id} failed: {reason or 'no reason given'}"


def _reason(problem: ProblemStatus) -> str:
    # The client's models do not declare this field.
    return one_line(str(getattr(problem, "error_message", None) or ""))[:300]


def _content(task: Task) -> dict[str, JSON]:
    try:
        content = parse_json(task.payload)
    except ValueError as error:
        raise InputError("problem: not JSON") from error
    return check_problem(content, "problem")


def _model(content: dict[str, JSON]) -> BinaryQuadraticModel:
    return BinaryQuadraticModel.from_serializable(content)


def _refused(error: RequestException) -> bool:
    """Whether the request has certainly not been accepted, but might be."""
    from dwave.cloud.utils.exception import is_caused_by
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    code = getattr(error, "error_code", None)
    refused = code in NOT_ACCEPTED
    if code is None and error.response is not None:
        refused = error.response.status_code in UNDONE_REDIRECTS
    if code in ALSO_OF_PROXIES:
        refused = _is_of_sapi(error.response)
    unsent = is_caused_by(error, (NewConnectionError, ConnectTimeoutError))
    return bool(refused or unsent or OFFLINE in str(error).lower())


def _is_of_sapi(answer: Answer | None) -> bool:
    """Whether an error is SAPI's own, also one of a single problem."""
    if answer is None:
        return True
    try:
        return "error_code" in answer.json()
    except (ValueError, TypeError):
        return False


def _timing(solver: StructuredSolver) -> Timing | None:
    """Read the timing of a problem that uses all qubits, if the solver publishes it."""
    qubits = solver.num_active_qubits
    try:
        one, two = (solver.estimate_qpu_access_time(qubits, reads) for reads in (1, 2))
        data = solver.properties["problem_timing_data"]
        shot = data["default_annealing_time"] + data["qpu_delay_time_per_sample"]
    except (KeyError, ValueError):
        return None
    read = two - one
    # rounded, since differences may be a little less than 0
    times = (round(float(time), 6) for time in (one - read, shot, read - shot))
    seconds = [time / MICROSECONDS for time in times if number(time) is not None]
    return Timing(*seconds) if len(seconds) == 3 else None


@lru_cache(4)
def _fabric(kind: str, shape: tuple[int, ...]) -> frozenset[int]:
    """List the qubits of a graph without defects, if it is known."""
    try:
        import dwave.graphs as graphs
    except ImportError:  # dwave-system is older than 1.36
        return frozenset()
    families = ("chimera", "pegasus", "zephyr")
    if kind not in families or max(shape, default=0) > LARGEST_SHAPE:
        return frozenset()
    return frozenset(getattr(graphs, f"{kind}_graph")(*shape))
