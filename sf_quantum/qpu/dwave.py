"""D-Wave's annealers, and other services with SAPI, through D-Wave's client."""

from __future__ import annotations

import importlib.util
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Self

from dimod import BinaryQuadraticModel, SampleSet
from dimod.core.sampler import Sampler

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu import (
    TOKEN,
    AuthenticationError,
    NoLease,
    Qpu,
    QpuStatus,
    check_keys,
    config_text,
    qrmi_config,
    read_token,
    required,
)
from sf_quantum.samplers.parameters import check, check_number, seeded
from sf_quantum.text import described

if TYPE_CHECKING:
    from dwave.cloud.api import Problems
    from dwave.cloud.api.models import ProblemStatus
    from dwave.cloud.solver import StructuredSolver
    from dwave.system import DWaveSampler

KEYS = ("url", "tokenFile", "resource", "qrmiConfig")
# the variables of D-Wave's client, and its options
VARIABLES = {
    "DWAVE_API_ENDPOINT": "endpoint",
    "DWAVE_API_TOKEN": "token",
    "DWAVE_API_SOLVER": "solver",
}
LEASE_PREFIX = "sfq-lease"
MISSING = "dwave-system is not installed (pip install 'sf-quantum[dwave]')"
# D-Wave's states, and QRMI's
STATES = {
    "PENDING": "Queued",
    "IN_PROGRESS": "Running",
    "COMPLETED": "Completed",
    "FAILED": "Failed",
    "CANCELLED": "Cancelled",
}
LIVE = ("PENDING", "IN_PROGRESS")
# client errors after which another attempt may succeed
TRANSIENT = (408, 409, 425, 429)
MICROSECONDS = 1e6


class DWaveQpu(Qpu):
    """An annealer.

    D-Wave's service has no leases. A lease is a label of the job's problems; giving it back
    cancels those that have not ended.

    :param connection: options of D-Wave's client: ``endpoint``, ``token``, ``solver``
    :param lease: the label, on the job's side
    """

    type = "dwave"
    reads_qrmi_config = True

    def __init__(
        self, name: str, connection: Mapping[str, str], lease: str | None = None
    ) -> None:
        super().__init__(name)
        self.connection = dict(connection)
        self.lease = lease

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
            return cls(name, _connection(name, entry.environment))
        url, token_file = given["url"], given["tokenFile"]
        if url is None or token_file is None:
            key = "url" if url is None else "tokenFile"
            raise InputError(f"{key}: missing in the configuration of QPU {name!r}")
        connection = {"endpoint": url, "token": read_token(token_file)}
        if (solver := given["resource"]) is not None:
            connection["solver"] = solver
        return cls(name, connection)

    def status(self) -> QpuStatus:
        """See :meth:`Qpu.status`; D-Wave does not report how many jobs are pending."""
        with self._solver() as solver:
            return QpuStatus(
                name=solver.name,
                technology="annealer",
                online=bool(solver.online),
                reason="" if solver.online else "offline",
                qubits=solver.num_active_qubits,
                calibration=solver.graph_id,
            )

    def acquire(self, job: str | None = None) -> str:
        if not self.status().online:
            raise NoLease(f"QPU {self.name!r} is offline")
        return f"{LEASE_PREFIX}-{int(time.time())}-{secrets.token_hex(8)}"

    def jobs(self, token: str) -> list[dict[str, JSON]] | None:
        """See :meth:`Qpu.jobs`.

        A user's program may choose its own labels, so all problems submitted since the lease
        was acquired count, except those with the label of another lease.
        """
        with self._problems() as problems:
            return [
                _job(problems, one)
                for one in problems.list_problems()
                if _is_of(token, str(one.label or ""), one.submitted_on)
            ]

    def release(self, token: str) -> None:
        with self._problems() as problems:
            found = problems.list_problems(label=token)
            if live := [one.id for one in found if one.status.value in LIVE]:
                problems.cancel_problems(live)

    def environment(self, token: str) -> dict[str, str]:
        """See :meth:`Qpu.environment`; D-Wave's client reads the variables too."""
        own = self.connection
        variables = {name: own[key] for name, key in VARIABLES.items() if key in own}
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
            answered.ResourceAccessForbiddenError,
        )
        bad_url = requests.MissingSchema, requests.InvalidSchema, requests.InvalidURL
        trouble = known.CanceledFutureError, known.PollingTimeout
        try:
            yield
        except answered.ResourceAuthenticationError as error:
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

    @contextmanager
    def _solver(self) -> Iterator[StructuredSolver]:
        with self.errors():
            from dwave.cloud import Client
            from dwave.cloud.exceptions import SolverNotFoundError

            with Client.from_config(**client_options(self.connection)) as client:
                try:
                    solver = client.get_solver(refresh=True)
                except SolverNotFoundError:  # it may be offline
                    wanted = client.config.solver or {}
                    solver = client.get_solver(**{**wanted, "online": False})
                yield solver

    @contextmanager
    def _problems(self) -> Iterator[Problems]:
        with self.errors():
            from dwave.cloud.api import Problems

            known = self.connection
            with Problems(endpoint=known["endpoint"], token=known["token"]) as problems:
                yield problems


class DWaveEmbedded(Sampler):
    """Embeds each problem in the QPU's graph, and samples it there.

    A variable is a chain of qubits. The chain strength is that of Ocean's
    ``uniform_torque_compensation``; broken chains are resolved by majority vote. ``info``
    has the strength and the fraction of broken chains.
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
        :param seed: of the search for an embedding, not of the QPU's samples; drawn and
            reported in ``info`` if not given
        :param annealing_time: of a read, in microseconds; by default the solver's
        :param chain_strength: in the unit of the biases; computed if not given
        :raises InputError: if the QPU refuses it, or no embedding is found
        :raises QpuError: if the QPU fails or does not answer
        """
        parameters: dict[str, JSON] = {
            "num_reads": num_reads,
            "annealing_time": annealing_time,
            "chain_strength": chain_strength,
        }
        self.check_parameters(**parameters)
        seed = seeded(seed)
        parameters["label"] = self._qpu.lease
        given = {name: value for name, value in parameters.items() if value is not None}
        with self._qpu.errors():
            from dwave.system import DWaveSampler

            with DWaveSampler(**client_options(self._qpu.connection)) as child:
                check_fits(given, child.properties)
                try:
                    return self._embedded(child, bqm, seed, given)
                except BaseException:
                    # else the client would wait for the problem's end; without a label,
                    # the user's other problems would be cancelled too
                    if self._qpu.lease:
                        with suppress(QpuError, InputError):
                            self._qpu.release(self._qpu.lease)
                    raise

    def _embedded(
        self,
        child: DWaveSampler,
        bqm: BinaryQuadraticModel,
        seed: int,
        given: Mapping[str, JSON],
    ) -> SampleSet:
        from dwave.system import EmbeddingComposite

        begin = time.monotonic()
        search = {"random_seed": seed}
        composite = EmbeddingComposite(child, embedding_parameters=search)
        try:
            samples: SampleSet = composite.sample(bqm, return_embedding=True, **given)
        except (ValueError, KeyError) as error:
            detail = f"{len(bqm.variables)} variables: {described(error)}"
            raise InputError(f"QPU {self._qpu.name!r}: {detail}") from error
        samples.resolve()  # type: ignore[no-untyped-call]
        context = samples.info["embedding_context"]
        chains = [len(chain) for chain in context["embedding"].values()]
        weights = samples.record.num_occurrences
        broken = samples.record.chain_break_fraction
        qpu_seconds = _access_seconds(samples.info["timing"])
        summary = {
            "sampler": "dwave",
            "reads": int(weights.sum()),
            "job": samples.info["problem_id"],
            # absent where no variable needs a second qubit
            "chain_strength": context["chain_strength"],
            "chain_break_method": context["chain_break_method"],
            "chain_break_fraction": float((broken * weights).sum() / weights.sum()),
            "longest_chain": max(chains),
            "qubits": sum(chains),
            "timing": {"qpu_seconds": qpu_seconds, "seconds": time.monotonic() - begin},
            "qpu": child.solver.name,
            "technology": "annealer",
            "calibration": {"id": child.solver.graph_id},
            "seed": seed,
        }
        # without the client's NumPy numbers and tuples, which JSON does not have
        samples.info.clear()
        samples.info.update(summary)
        return samples


def client_options(connection: Mapping[str, str]) -> dict[str, JSON]:
    """Make the options of D-Wave's client, which then reads none of its files."""
    options: dict[str, JSON] = {"config_file": False, "client": "qpu", **connection}
    solver = connection.get("solver", "")
    if not solver.lstrip().startswith("{"):  # a name, not features
        return {**options, "solver": {"name": solver}} if solver else options
    try:
        return {**options, "solver": json.loads(solver)}
    except ValueError as error:
        raise InputError("DWAVE_API_SOLVER: not a name and not JSON") from error


def check_fits(parameters: Mapping[str, JSON], properties: Mapping[str, JSON]) -> None:
    """Check parameters against the solver's ranges, before embedding the problem.

    The solver's defaults apply to ``num_reads`` and ``annealing_time`` (microseconds).
    """
    reads = _number(parameters, "num_reads") or 1
    time_ = _number(parameters, "annealing_time")
    if time_ is None:
        time_ = _number(properties, "default_annealing_time")
    between = _number(properties, "default_readout_thermalization") or 0
    before = _number(properties, "default_programming_thermalization") or 0
    values = {
        "num_reads": reads,
        "annealing_time": time_,
        # D-Wave's definition (Solver Properties: problem_run_duration_range)
        "problem_run_duration": reads * ((time_ or 0) + between) + before,
    }
    for name, value in values.items():
        match properties.get(f"{name}_range"):
            case [int() | float() as least, int() | float() as most] if (
                value is not None and not least <= value <= most
            ):
                takes = f"the solver takes {least:g} to {most:g}"
                raise InputError(f"{name}: {value:g} is out of range, {takes}")


def _connection(name: str, variables: Mapping[str, str | None]) -> dict[str, str]:
    for variable in ("DWAVE_API_ENDPOINT", "DWAVE_API_TOKEN"):
        if not variables.get(variable):
            raise InputError(f"{variable} is not set for QPU {name!r}")
    given = {VARIABLES[key]: variables.get(key) for key in VARIABLES}
    return {key: value for key, value in given.items() if value}


def _number(values: Mapping[str, JSON], key: str) -> float | None:
    value = values.get(key)
    return value if isinstance(value, int | float) else None


def _is_of(token: str, label: str, submitted: datetime) -> bool:
    since = token.removeprefix(f"{LEASE_PREFIX}-").partition("-")[0]
    if label.startswith(LEASE_PREFIX) or not since.isdecimal():
        return label == token
    return submitted.timestamp() >= int(since)


def _job(problems: Problems, one: ProblemStatus) -> dict[str, JSON]:
    answer = None
    if one.status.value == "COMPLETED":
        answer = problems.get_problem(one.id).answer
    return {
        "id": one.id,
        "state": STATES.get(one.status.value, "Failed"),
        "submitted": one.submitted_on.timestamp(),
        "ended": None if one.solved_on is None else one.solved_on.timestamp(),
        "qpu_seconds": _access_seconds(answer and answer.timing),
        "found": False,
    }


def _access_seconds(timing: Mapping[str, float] | None) -> float:
    return float((timing or {}).get("qpu_access_time", 0.0)) / MICROSECONDS
