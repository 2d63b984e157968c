"""Any QPU that the package ``qrmi`` reaches, as ``qrmi_config.json`` describes it.

The driver leases the QPU, and the job gets the variables that QRMI's SPANK plugin would set.
None of these QPUs accepts a QUBO. The sampler ``neutral-atom`` converts a QUBO into a pulse
sequence for Pasqal's QPUs, and ``qaoa`` into circuits for IBM's and IQM's. The other QPUs run
only the job's own program.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar, get_args

from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.files import JSON, listing, mapping, parse_json
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import (
    OVER,
    Kind,
    LeaseLost,
    NotAccepted,
    Outcome,
    Progress,
    Result,
    State,
    Task,
    UnknownJob,
    WrongAnswer,
)
from sf_quantum.protocol.values import count, counter, number
from sf_quantum.qpu import (
    AuthenticationError,
    NoLease,
    Qpu,
    QpuStatus,
    qrmi_config,
    with_qpu_name,
)
from sf_quantum.qpu.configuration import check_keys, config_text
from sf_quantum.qpu.environment import TOKEN, job_ids, required
from sf_quantum.qpu.passes import Passes
from sf_quantum.qpu.qrmi_config import Resource
from sf_quantum.qpu.vendors.variables import WARDEN_URL
from sf_quantum.text import described
from sf_quantum.threads import in_thread

if TYPE_CHECKING:
    from dimod.core.sampler import Sampler
    from qiskit import QuantumCircuit
    from qiskit.primitives import BaseSamplerV2
    from qiskit.primitives.containers import BitArray, SamplerPubLike
    from qiskit.providers import BackendV2
    from qrmi import Payload, QuantumResource, ResourceStatus, TaskStatus

    from sf_quantum.net.relay import Relay
    from sf_quantum.samplers.qaoa import CircuitRunner, Doubles
    from sf_quantum.samplers.states import Bits

KEYS = ("qrmiConfig", "resource", "timeoutSeconds")
TIMEOUT = "QRMI_JOB_TIMEOUT_SECONDS"
# Slurm's value for a job without a time limit, as the SPANK plugin passes it on
NO_TIMEOUT = 2**32 - 1
MISSING = "the package qrmi is not installed (pip install 'sf-quantum[qrmi]')"
# only our code retries: if QRMI's client retried, a second lease might never be released
_NO_RETRIES = {"QRMI_PASQAL_RETRIES_DISABLED": "true"}
POLL_SECONDS = 0.5
# class names of errors after which a retry is useless
_REFUSALS = (
    "ConfigError",
    "EnvVarNotSetError",
    "InvalidInputError",
    "ResourceNotFoundError",
    "UnsupportedFunctionError",
    "UnsupportedPayloadError",
    "UnsupportedResourceTypeError",
)
# class names of errors about a resource or task that does not exist
_GONE = ("ResourceNotFoundError", "TaskNotFoundError")
# the beginning of the message of an error that occurs before a request is sent
_UNSENT = "munge encode failed"
# the HTTP status in the error messages of QRMI
_STATUS = re.compile(r"(?:[Ss]tatus:?|body:) (\d{3})\b")
# client errors after which another attempt may succeed
_BUSY = (408, 425, 429)
# statuses after which the vendor has no job, and another attempt may succeed; without 408
# and 503, which a proxy also sends if it loses a connection during a request
_NOT_ACCEPTED = (425, 429)
# ends of the names of variables that identify where jobs are: the service and the account
_WHERE = ("_URL", "_ENDPOINT", "_CRN", "_PROJECT_ID")
REQUEST_SECONDS = 30.0
# maximum number of concurrent requests to a QPU, including requests past their time limit
MOST_OVERDUE = 16
STATES: Mapping[str, State] = {state: state for state in get_args(State)}
T = TypeVar("T")


class QrmiQpu(Qpu):
    """A QPU of any of QRMI's types, each of which is a small subclass.

    :param resource: the site's description of the QPU, and the job's time limit; on the
        job's side, also the acquisition token
    """

    type: ClassVar[str]
    reads_qrmi_config = True
    technology: ClassVar[str] = "superconducting"
    takes: ClassVar[str] = "circuits"
    #: packages that are needed to run a QUBO on the QPU, and the extra that installs them
    solving: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str] = "qrmi"
    #: variable with the URL of a service to which QRMI's client sends HTTP requests
    url_variable: ClassVar[str | None] = None

    def __init__(self, resource: Resource) -> None:
        super().__init__(resource.name)
        self._resource = resource
        self._requests = threading.BoundedSemaphore(MOST_OVERDUE)
        self._who = f"QPU {self.name!r} ({self.type})"
        self._relay: Relay | None = None
        self._end_relay: Callable[[], None] = _nothing
        self._making = threading.Lock()

    @classmethod
    def problem(cls) -> str | None:
        return None if importlib.util.find_spec("qrmi") else MISSING

    @classmethod
    def sampler_problem(cls) -> str | None:
        for name in cls.solving:
            if not importlib.util.find_spec(name):
                install = f"pip install 'sf-quantum[{cls.extra}]'"
                return f"the package {name} is not installed ({install})"
        return None

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, JSON]) -> Self:
        """See :meth:`Qpu.from_config`.

        The keys are ``qrmiConfig``, the file; ``resource``, the name of an entry in the file,
        by default the QPU's name; and ``timeoutSeconds``. The QPU gets the entry's name,
        since the vendor's service uses that name.
        """
        check_keys(config, KEYS)
        path = config_text(config, "qrmiConfig")
        if path is None:
            raise InputError(f"qrmiConfig: missing in the configuration of {name!r}")
        entry = config_text(config, "resource") or name
        resource = qrmi_config.read(path, entry, cls.type)
        seconds = config.get("timeoutSeconds", NO_TIMEOUT)
        if type(seconds) is not int or not 1 <= seconds <= NO_TIMEOUT:
            raise InputError(f"timeoutSeconds: expected 1 to {NO_TIMEOUT}")
        resource.environment[TIMEOUT] = str(seconds)
        return cls(resource)

    @property
    def identity(self) -> str:
        environment = self._resource.environment
        where = sorted(
            (key, environment[key]) for key in environment if key.endswith(_WHERE)
        )
        return json.dumps([self.name, where])

    def status(self) -> QpuStatus:
        """See :meth:`Qpu.status`; ``qubits`` is 0, since the QPU accepts no BQMs."""
        with errors(self._who):
            status = self._ask(lambda client: client.status())
        state = _state(status.status).lower()
        slots = status.capacity
        vqpus = (slots.max_slots if slots else None) or 1
        free = slots.available_slots if slots else None
        return QpuStatus(
            name=self.name,
            technology=self.technology,
            online=state == "online",
            reason="" if state == "online" else status.status_reason or state,
            vqpus=vqpus,
            leases=int(bool(status.busy)) if free is None else max(0, vqpus - free),
            queue_length=status.pending_job_count or 0,
        )

    def acquire(self, job: str | None = None) -> str:
        """See :meth:`Qpu.acquire`; within a Slurm job, the QPU gets the job's id."""
        with errors(self._who, leasing=True):
            token: str = self._ask(lambda client: client.acquire(), late=self.release)
        return token

    def release(self, token: str) -> None:
        with errors(self._who, gone=True):
            self._ask(lambda client: client.release(token), token)

    def environment(self, token: str) -> dict[str, str]:
        """See :meth:`Qpu.environment`: exactly what ``spank_qrmi`` sets."""
        variables = {**self._resource.environment, TOKEN: token}
        return {
            **job_ids("0"),
            **{f"{self.name}_{key}": variables[key] for key in variables},
        }

    @classmethod
    def from_environment(cls, name: str, environment: Mapping[str, str]) -> Self:
        required(name, environment, TOKEN)
        variables = qrmi_config.unprefixed(name, environment)
        if not variables.setdefault(TIMEOUT, str(NO_TIMEOUT)).isdecimal():
            raise InputError(f"{name}_{TIMEOUT}: expected whole seconds")
        return cls(Resource(name, cls.type, variables))

    def sampler(self) -> Sampler:
        """Raise an error; kinds of QPU that can run a converted QUBO override this method."""
        raise InputError(
            f"QPU {self.name!r} ({self.type}) takes {self.takes}, not QUBOs: run a "
            "program that uses the package qrmi, or choose a sampler that needs no QPU"
        )

    def _ask(
        self,
        call: Callable[[QuantumResource], T],
        token: str | None = None,
        *,
        late: Callable[[T], None] | None = None,
    ) -> T:
        """Call the vendor, with a time limit.

        QRMI's clients have no time limit: a call that takes longer continues in a thread.

        :param late: function that is called with an answer that comes after the time limit
        """
        client = self._client(token)
        if not self._requests.acquire(blocking=False):
            raise QpuError(f"{self._who} leaves {MOST_OVERDUE} requests unanswered")
        future = in_thread(lambda: call(client))
        future.add_done_callback(lambda _: self._requests.release())
        try:
            return future.result(REQUEST_SECONDS)
        except TimeoutError as error:
            if late is not None:
                future.add_done_callback(lambda done: _given(late, done))
            text = f"no answer within {REQUEST_SECONDS:g} s"
            raise QpuError(f"{self._who}: {text}") from error

    def _client(self, token: str | None = None) -> QuantumResource:
        try:
            import qrmi
        except ImportError as error:
            raise InputError(f"QPU type {self.type!r}: {MISSING}") from error
        settings = {**_NO_RETRIES, **job_ids("0"), **self._resource.environment}
        if token is not None:
            settings[TOKEN] = token
        if (variable := self.url_variable) and (url := settings.get(variable)):
            settings[variable] = self._relayed(url)
        # ResourceType.PasqalLocal is the type pasqal-local
        kinds = {name.lower(): name for name in dir(qrmi.ResourceType)}
        kind = getattr(qrmi.ResourceType, kinds[self.type.replace("-", "")])
        with errors(self._who):
            # The settings are not put into os.environ, which all instances share.
            return qrmi.QuantumResource.from_config(self.name, kind, settings)

    def close(self) -> None:
        self._end_relay()

    def _relayed(self, url: str) -> str:
        """Return the URL of a relay that limits answers; see :mod:`sf_quantum.net.relay`.

        QRMI's client itself follows redirects, with its MUNGE credential, and accepts answers
        of any size.
        """
        from sf_quantum.net import relay

        with self._making:
            if self._relay is None:
                self._relay = relay.Relay(url)
                self._end_relay = weakref.finalize(self, self._relay.close)
            return self._relay.url


class _Pasqal(QrmiQpu):
    """A neutral-atom QPU; a QUBO of an independent set runs as a pulse sequence."""

    technology = "neutral-atom"
    solving = ("pulser",)
    extra = "pulser"
    takes = "pulse sequences (Pulser)"
    kinds: ClassVar[tuple[Kind, ...]] = ("sequence",)

    def sampler(self) -> Sampler:
        """See :meth:`Qpu.sampler`: ``neutral-atom``, on this machine."""
        from sf_quantum.samplers.neutral_atom import NeutralAtomSampler

        return NeutralAtomSampler(self)

    def specs(self) -> str:
        """Get the current device in Pulser's abstract representation."""
        with errors(self._who):
            target = self._ask(lambda client: client.target().value)
        try:
            (device,) = listing(parse_json(target))
            return str(mapping(device)["specs"])
        except (ValueError, KeyError) as error:
            raise QpuError(f"QPU {self.name!r}: its target is no device") from error

    def run(
        self, sequence: str, shots: int
    ) -> tuple[Mapping[str, int], dict[str, JSON]]:
        """Run a sequence; return the counts of bit strings, and the timing."""
        import qrmi

        payload = qrmi.Payload.PasqalCloud(sequence=sequence, job_runs=shots)
        result, timing = run(self._client(), payload, self._who)
        counts, _ = self._read(result)
        return counts, {**timing}

    def _read(self, result: str) -> tuple[dict[str, int], dict[str, JSON]]:
        """Read counts of bit strings, and ``info``, which only our service sends."""
        try:
            content = mapping(parse_json(result))
            counts = counter(content.get("counter"))
        except ValueError as error:
            message = f"{self._who}: its answer has no counts of bit strings"
            raise WrongAnswer(message, result) from error
        return counts, mapping(content.get("info"))

    def describe(self) -> Description:
        """See :meth:`Qpu.describe`; read from the device's specs."""
        specs = self.specs()
        try:
            device = parse_json(specs)
            if not isinstance(device, dict):
                raise ValueError("not a device")
        except ValueError as error:
            message = f"{self._who}: its specs are not those of a Pulser device"
            raise QpuError(message) from error
        qubits, shots = device.get("max_atom_num"), device.get("max_runs")
        return Description(
            self.technology,
            count(qubits) or 0,
            self.kinds,
            shots=count(shots),
            specs=specs,
        )

    def submit(self, task: Task) -> str:
        """See :meth:`Qpu.submit`; the vendor keeps no tag.

        QRMI does not distinguish a refused connection from a connection that is lost during a
        request. So the status of the QPU is queried first.
        """
        sequence = parse_json(task.payload)
        if not isinstance(sequence, str):
            raise InputError("sequence: expected text")
        try:
            status = self.status()
        except AuthenticationError:
            raise
        except QuantumError as error:  # this is not the task's fault
            raise NotAccepted(str(error)) from error
        if not status.online:
            raise NotAccepted(f"{self._who} is not online: {status.reason}")
        with self._errors(submitting=True):
            import qrmi

            payload = qrmi.Payload.PasqalCloud(sequence=sequence, job_runs=task.shots)
            return self._ask(
                lambda client: str(client.task_start(payload)),
                late=self.cancel,  # the caller does not get the id of such a task
            )

    def poll(self, job_id: str) -> Progress:
        with self._errors():
            word = _state(self._ask(lambda client: client.task_status(job_id)))
        if (state := STATES.get(word)) is None:
            raise QpuError(f"{self._who}: unknown state {word[:40]!r}")
        return Progress(state)

    def result(self, job_id: str, task: Task) -> Outcome:
        """See :meth:`Qpu.result`; QRMI does not report the QPU time.

        If the QPU is behind our service, the ``info`` of the result contains the QPU time.
        """
        state = self.poll(job_id).state
        if state == "Cancelled":
            return Outcome()
        if state not in OVER:
            raise QpuError(f"{self._who}: task {job_id} is {state}")
        with self._errors():
            if state == "Failed":
                logs = self._ask(lambda client: client.task_logs(job_id))
                why = " ".join(logs.split())[-300:]
                return Outcome(failure=why or "no reason given")
            text = self._ask(lambda client: client.task_result(job_id).value)
        # QRMI has read the whole text; parsing it would take several times the memory.
        if len(text) > (most := task.result_bytes):
            raise QpuError(f"{self._who}: the result has more than {most:,} bytes")
        counts, details = self._read(text)
        timing = details.get("timing")
        seconds = timing.get("qpu_seconds") if isinstance(timing, dict) else None
        own = {"qpu": self.name, "technology": self.technology, "job": job_id}
        info = with_qpu_name(self.name, {**own, **details})
        return Outcome(
            Result(json.dumps({"counter": counts}), info),
            qpu_seconds=number(seconds),
            calibration=CalibrationData.read(details.get("calibration")),
        )

    def cancel(self, job_id: str) -> None:
        with self._errors(cancelling=True):
            self._ask(lambda client: client.task_stop(job_id))

    @contextmanager
    def _errors(
        self, *, submitting: bool = False, cancelling: bool = False
    ) -> Iterator[None]:
        """Convert the errors of a request about a job."""
        with errors(self._who):
            try:
                yield
            except RuntimeError as error:
                name, status = _kind(error)
                text = f"{self._who}: {described(error)}"
                if cancelling and status == 409:  # the task has ended
                    return
                if not submitting and (name in _GONE or status == 404):
                    raise UnknownJob(text) from error
                if submitting and status == 403:
                    kind = (
                        LeaseLost if self.jobs_end_with_lease else AuthenticationError
                    )
                    raise kind(text) from error
                unsent = str(error).startswith(_UNSENT)
                if submitting and (status in _NOT_ACCEPTED or unsent):
                    raise NotAccepted(text) from error
                raise


class PasqalLocal(_Pasqal):
    """A neutral-atom QPU behind Pasqal's warden or our service; tested with our service."""

    type = "pasqal-local"
    jobs_end_with_lease = True
    url_variable = WARDEN_URL


class PasqalCloud(_Pasqal):
    """Pasqal's cloud; its address is fixed, so it is not covered by our tests."""

    type = "pasqal-cloud"


class Gates(QrmiQpu):
    """A gate-based QPU, for circuits made with Qiskit; a QUBO runs with QAOA."""

    def sampler(self) -> Sampler:
        """See :meth:`Qpu.sampler`: ``qaoa``, on this machine."""
        if lacking := self.sampler_problem():
            raise InputError(f"QPU {self.name!r}: {lacking}")
        from sf_quantum.samplers.qaoa import QaoaSampler

        try:
            return QaoaSampler(runner=self._runner())
        except ImportError as error:
            detail = f"QRMI's circuit support fails: {error}"
            raise InputError(f"QPU {self.name!r}: {detail}") from error

    def qaoa(self) -> Sampler:
        return self.sampler()

    @abstractmethod
    def _runner(self) -> CircuitRunner: ...


class _Ibm(Gates):
    solving = ("qiskit_ibm_runtime", "qiskit", "scipy")
    extra = "ibm"

    def _runner(self) -> CircuitRunner:
        from qrmi.primitives.ibm import SamplerV2, get_backend

        with errors(self._who):
            client = self._client()
            sampler, backend = SamplerV2(client), get_backend(client)
        return PrimitiveRunner(self.name, sampler, backend, self._who, self.describe)


class IbmQuantumSystem(_Ibm):
    """An on-premises IBM QPU; only its errors are tested."""

    type = "ibm-quantum-system"


class IbmQuantumComputeService(_Ibm):
    """IBM's cloud; tested with answers written according to its public API."""

    type = "ibm-quantum-compute-service"


class Oqtopus(QrmiQpu):
    """A QPU of OQTOPUS; needs QRMI's ``liboqtopus_py_bridge.so``, which is not on PyPI."""

    type = "oqtopus"

    @classmethod
    def problem(cls) -> str | None:
        # looked up as in the package qrmi
        library = os.environ.get("PY_BRIDGE_PATH") or "liboqtopus_py_bridge.so"
        lacking = None
        try:
            ctypes.CDLL(library)
        except OSError:
            lacking = f"QRMI's {library} cannot be loaded (it is not on PyPI)"
        return super().problem() or lacking


class AliceBobFelis(QrmiQpu):
    """A QPU of Alice & Bob's cat qubits; tested only without a QPU."""

    type = "alice-bob-felis"


@dataclass(frozen=True)
class PrimitiveRunner:
    """A QPU behind one of QRMI's samplers, such as IBM's.

    :param who: name of the QPU in error messages
    """

    name: str
    sampler: BaseSamplerV2
    backend: BackendV2
    who: str
    describe: Callable[[], Description]
    passes: Passes | None = None
    info: Mapping[str, JSON] = field(default_factory=dict)

    def seeded(self, seed: int) -> PrimitiveRunner:
        """Return this runner unchanged: a real QPU uses no seed."""
        return self

    def mitigated(self, passes: str) -> PrimitiveRunner:
        """See :meth:`~sf_quantum.samplers.qaoa.CircuitRunner.mitigated`."""
        loaded = Passes(passes, self.describe())
        loaded.check_shots()
        return replace(self, passes=loaded)

    def reads(
        self, circuit: QuantumCircuit, values: Doubles, shots: int
    ) -> tuple[Bits, None]:
        """Run a circuit; an interrupt stops its job on the QPU."""
        if self.passes is None:
            (read,) = self._run([(circuit, values)], shots)
            return read.to_bool_array(order="little").astype("int8"), None
        from qiskit import qasm3

        from sf_quantum.qpu.circuit_runner import bits

        text = qasm3.dumps(circuit.assign_parameters(values))
        circuits, combine = self.passes.expanded(text)
        # A circuit that no pass has changed need not be parsed.
        pubs = [
            (circuit, values) if one == text else (qasm3.loads(one),)
            for one in circuits
        ]
        counts = (one.get_counts() for one in self._run(pubs, shots))
        return bits(combine(counts)), None

    def _run(self, pubs: Sequence[SamplerPubLike], shots: int) -> list[BitArray]:
        with errors(self.who):
            job = self.sampler.run(pubs, shots=shots)
            try:
                results = job.result()
            except BaseException:
                with suppress(RuntimeError):
                    job.cancel()
                raise
        return [one.join_data() for one in results]


@contextmanager
def errors(who: str, *, leasing: bool = False, gone: bool = False) -> Iterator[None]:
    """Convert the errors of QRMI, all of which are ``RuntimeError``, to our errors.

    :param leasing: whether HTTP status 409 means that no lease is free
    :param gone: whether to ignore that the resource or task no longer exists
    """
    try:
        yield
    except RuntimeError as error:
        name, status = _kind(error)
        if gone and (name in _GONE or status == 404):
            return
        text = f"{who}: {described(error)}"
        if status == 409:
            raise (NoLease if leasing else QpuError)(text) from error
        if status == 401 or name == "AuthenticationFailedError":
            raise AuthenticationError(text) from error
        if name in _REFUSALS or (400 <= status < 500 and status not in _BUSY):
            raise InputError(text) from error
        raise QpuError(text) from error


def run(
    client: QuantumResource, payload: Payload, who: str
) -> tuple[str, dict[str, float]]:
    """Run a task; an interrupt stops the task on the QPU.

    :returns: the result, and the timing by the local clock; the time on the QPU ends with the
        first poll that shows the task as ended
    :raises QpuError: if the task fails or the QPU does not answer
    """
    submitted = started = time.monotonic()
    with errors(who):
        task = client.task_start(payload)
        try:
            while (state := _state(client.task_status(task))) not in OVER:
                if state == "Queued":
                    started = time.monotonic()
                time.sleep(POLL_SECONDS)
        except BaseException:
            with suppress(RuntimeError):
                client.task_stop(task)
            raise
        seconds = time.monotonic() - started
        if state != "Completed":
            why = " ".join(client.task_logs(task).split())[:300]
            raise QpuError(f"{who}: the task ended {state}: {why or 'no reason given'}")
        result: str = client.task_result(task).value
    timing = {"queued_seconds": started - submitted, "qpu_seconds": seconds}
    return result, {**timing, "seconds": seconds}


def _given(late: Callable[[T], None], done: Future[T]) -> None:
    with suppress(QpuError, InputError, RuntimeError):
        late(done.result())


def _kind(error: RuntimeError) -> tuple[str, int]:
    """Return the name of an error's class, and the HTTP status, or 0."""
    match = _STATUS.search(str(error))
    return type(error).__name__, int(match[1]) if match else 0


def _state(status: TaskStatus | ResourceStatus) -> str:
    # the text of both types ends with the state's name
    return str(status).rpartition(".")[2]


def _nothing() -> None:
    """Do nothing: no relay was started."""
