"""D-Wave's annealers, and what else speaks SAPI, through D-Wave's own client."""

from __future__ import annotations

import importlib.util
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
from sf_quantum.qpu import NoLease, Qpu, QpuStatus
from sf_quantum.qpu.dwave_connection import configured, options, told, variables
from sf_quantum.qpu.dwave_limits import check_fits
from sf_quantum.samplers.parameters import check, check_number, seeded

if TYPE_CHECKING:
    from dwave.cloud.api import Problems
    from dwave.cloud.api.models import ProblemStatus
    from dwave.cloud.solver import StructuredSolver

LEASE = "QRMI_JOB_ACQUISITION_TOKEN"
LEASE_PREFIX = "sfq-lease"
MISSING = "dwave-system is not installed (pip install 'sf-quantum[dwave]')"
# QRMI's words
STATES = {
    "PENDING": "Queued",
    "IN_PROGRESS": "Running",
    "COMPLETED": "Completed",
    "FAILED": "Failed",
    "CANCELLED": "Cancelled",
}
LIVE = ("PENDING", "IN_PROGRESS")
# of what the client is answered: those that trying again may cure
TRANSIENT = (408, 409, 425, 429)
MICROSECONDS = 1e6


class DWaveQpu(Qpu):
    """An annealer.

    D-Wave's service has no leases, so ours is a name that the job's problems are
    labelled with: giving it back cancels those that are not over.

    :param connection: what the client is told: ``endpoint``, ``token``, ``solver``
    :param lease: the label, on the job's side
    """

    type = "dwave"
    reads_qrmi_config = True

    def __init__(
        self, name: str, connection: Mapping[str, str], lease: str | None = None
    ) -> None:
        super().__init__(name)
        self._connection = dict(connection)
        self.lease = lease

    @classmethod
    def problem(cls) -> str | None:
        """See :meth:`Qpu.problem`."""
        try:
            found = importlib.util.find_spec("dwave.system")
        except ModuleNotFoundError:
            return MISSING
        return None if found else MISSING

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, JSON]) -> Self:
        """See :meth:`Qpu.from_config`.

        Keys ``url``, which ends in ``/sapi/v2``, and ``tokenFile``, or ``qrmiConfig``, a
        site's file whose entry has ``DWAVE_API_*``; ``resource``, the solver's name, or
        the entry's if it is not the QPU's.
        """
        return cls(name, configured(name, config, cls.type))

    def status(self) -> QpuStatus:
        """See :meth:`Qpu.status`; how many wait, D-Wave does not tell."""
        with self._solver() as solver:
            return QpuStatus(
                name=solver.name,
                technology="annealer",
                online=bool(solver.online),
                reason="" if solver.online else "offline",
                qubits=solver.num_active_qubits,
                vqpus=1,
                leases=0,
                queue_length=0,
                calibration=solver.graph_id,
            )

    def acquire(self, job: str | None = None) -> str:
        """See :meth:`Qpu.acquire`."""
        if not self.status().online:
            raise NoLease(f"QPU {self.name!r} is offline")
        return f"{LEASE_PREFIX}-{int(time.time())}-{secrets.token_hex(8)}"

    def jobs(self, token: str) -> list[dict[str, JSON]] | None:
        """See :meth:`Qpu.jobs`.

        A program of the user's own labels its problems as it likes: those that came
        since the lease was taken and have no other lease's label count as its own.
        """
        with self._problems() as problems:
            return [
                _told(problems, one)
                for one in problems.list_problems()
                if _is_of(token, str(one.label or ""), one.submitted_on)
            ]

    def release(self, token: str) -> None:
        """See :meth:`Qpu.release`."""
        with self._problems() as problems:
            found = problems.list_problems(label=token)
            if live := [one.id for one in found if one.status.value in LIVE]:
                problems.cancel_problems(live)

    def environment(self, token: str) -> dict[str, str]:
        """See :meth:`Qpu.environment`: what D-Wave's client reads by itself."""
        return {**variables(self._connection), f"{self.name}_{LEASE}": token}

    @classmethod
    def from_environment(cls, name: str, environment: Mapping[str, str]) -> Self:
        """See :meth:`Qpu.from_environment`; also as QRMI's SPANK plugin names them."""
        lease = environment.get(f"{name}_{LEASE}")
        if not lease:
            raise InputError(
                f"{name}_{LEASE} is not set, though QPU {name!r} is in the environment"
            )
        return cls(name, told(name, environment), lease)

    def sampler(self) -> Sampler:
        """See :meth:`Qpu.sampler`."""
        return DWaveEmbedded(self, self._connection)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn an error of D-Wave's client into one of ours.

        :raises InputError: if trying again is no use
        :raises QpuError: if it may be
        """
        if (missing := self.problem()) is not None:
            raise InputError(f"QPU {self.name!r}: {missing}")
        from dwave.cloud import exceptions as known
        from dwave.cloud.api import exceptions as answered
        from requests import exceptions as requests

        refused = (
            known.SolverNotFoundError,
            known.UnsupportedSolverError,
            answered.ResourceBadRequestError,
            answered.ResourceAuthenticationError,
            answered.ResourceAccessForbiddenError,
        )
        unreachable = (
            requests.MissingSchema,
            requests.InvalidSchema,
            requests.InvalidURL,
        )
        trouble = (
            requests.RequestException,
            known.CanceledFutureError,
            known.PollingTimeout,
        )
        try:
            yield
        except refused as error:
            raise InputError(f"QPU {self.name!r} refuses: {_line(error)}") from error
        except unreachable as error:
            raise InputError(f"QPU {self.name!r}: {_line(error)}") from error
        except trouble as error:
            # of some refusals the client tells no more than their number
            kind = InputError if _is_refusal(error) else QpuError
            raise kind(f"QPU {self.name!r}: {_line(error)}") from error

    @contextmanager
    def _solver(self) -> Iterator[StructuredSolver]:
        with self.errors():
            from dwave.cloud import Client
            from dwave.cloud.exceptions import SolverNotFoundError

            with Client.from_config(**options(self._connection)) as client:
                try:
                    solver = client.get_solver(refresh=True)
                except SolverNotFoundError:  # that is online
                    wanted = client.config.solver or {}
                    solver = client.get_solver(**{**wanted, "online": False})
                yield solver

    @contextmanager
    def _problems(self) -> Iterator[Problems]:
        with self.errors():
            from dwave.cloud.api import Problems

            known = self._connection
            with Problems(endpoint=known["endpoint"], token=known["token"]) as problems:
                yield problems


class DWaveEmbedded(Sampler):
    """Finds a place for each problem in the QPU's graph, and sends it there.

    Chains of qubits stand for variables. How strongly they are held together is chosen
    by ``uniform_torque_compensation`` of D-Wave's Ocean; chains that break all the same
    are repaired by majority. ``info`` tells the strength and how many broke.

    :param connection: as :class:`DWaveQpu` takes it
    """

    def __init__(self, qpu: DWaveQpu, connection: Mapping[str, str]) -> None:
        self._qpu = qpu
        self._connection = connection

    @property
    def parameters(self) -> dict[str, list[str]]:
        """The keywords :meth:`sample` takes, as dimod wants them."""
        names = "num_reads seed annealing_time chain_strength"
        return {name: [] for name in names.split()}

    @property
    def properties(self) -> dict[str, str]:
        """Which QPU this is."""
        return {"qpu": self._qpu.name, "type": self._qpu.type}

    @staticmethod
    def check_parameters(
        *,
        num_reads: JSON = None,
        annealing_time: JSON = None,
        chain_strength: JSON = None,
    ) -> None:
        """Refuse what no solver takes, the seed apart.

        :raises InputError: if a parameter is out of its range
        """
        if num_reads is not None:
            check("num_reads", num_reads, 1)
        for name, value in (
            ("annealing_time", annealing_time),
            ("chain_strength", chain_strength),
        ):
            if value is not None:
                check_number(name, value, 0)

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

        :param num_reads: the QPU's default without it, which is 1
        :param seed: for the search of an embedding; drawn and told in ``info`` if not
            given. What the QPU answers has no seed
        :param annealing_time: of a read, in microseconds
        :param chain_strength: instead of the chosen one, in the biases' unit
        :raises InputError: if the QPU refuses it, or the problem finds no place
        :raises QpuError: if the QPU fails or does not answer
        """
        self.check_parameters(
            num_reads=num_reads,
            annealing_time=annealing_time,
            chain_strength=chain_strength,
        )
        seed = seeded(seed)
        given = {
            "num_reads": num_reads,
            "annealing_time": annealing_time,
            "chain_strength": chain_strength,
            "label": self._qpu.lease,
        }
        given = {name: value for name, value in given.items() if value is not None}
        with self._qpu.errors():
            from dwave.system import DWaveSampler

            with DWaveSampler(**options(self._connection)) as child:
                check_fits(given, child.properties)
                begin = time.monotonic()
                try:
                    samples = self._embedded(child, bqm, seed, given)
                except BaseException:
                    # else the client would wait for the problem's end
                    with suppress(QpuError, InputError):
                        self._qpu.release(self._qpu.lease or "")
                    raise
                seconds = time.monotonic() - begin
                solver = child.solver
        samples.info.update(
            qpu=solver.name,
            technology="annealer",
            calibration={"id": solver.graph_id},
            seed=seed,
        )
        samples.info["timing"]["seconds"] = seconds
        return samples

    def _embedded(
        self,
        child: Sampler,
        bqm: BinaryQuadraticModel,
        seed: int,
        given: Mapping[str, JSON],
    ) -> SampleSet:
        from dwave.system import EmbeddingComposite

        composite = EmbeddingComposite(
            child, embedding_parameters={"random_seed": seed}
        )
        try:
            samples: SampleSet = composite.sample(bqm, return_embedding=True, **given)
        except (ValueError, KeyError) as error:
            detail = f"{len(bqm.variables)} variables: {_line(error)}"
            raise InputError(f"QPU {self._qpu.name!r}: {detail}") from error
        samples.resolve()  # type: ignore[no-untyped-call]
        context = samples.info["embedding_context"]
        chains = [len(chain) for chain in context["embedding"].values()]
        weights = samples.record.num_occurrences
        broken = samples.record.chain_break_fraction
        summary = {
            "sampler": "dwave",
            "reads": int(weights.sum()),
            "job": samples.info["problem_id"],
            # none where no variable needs a second qubit
            "chain_strength": context["chain_strength"],
            "chain_break_method": context["chain_break_method"],
            "chain_break_fraction": float((broken * weights).sum() / weights.sum()),
            "longest_chain": max(chains),
            "qubits": sum(chains),
            "timing": {"qpu_seconds": _access_seconds(samples.info["timing"])},
        }
        # the client's own holds numpy's numbers and tuples, which JSON does not
        samples.info.clear()
        samples.info.update(summary)
        return samples


def _is_of(token: str, label: str, submitted: datetime) -> bool:
    since = token.removeprefix(f"{LEASE_PREFIX}-").partition("-")[0]
    if label.startswith(LEASE_PREFIX) or not since.isdecimal():
        return label == token
    return submitted.timestamp() >= int(since)


def _told(problems: Problems, one: ProblemStatus) -> dict[str, JSON]:
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


def _is_refusal(error: Exception) -> bool:
    code = getattr(error, "error_code", None)
    return isinstance(code, int) and 400 <= code < 500 and code not in TRANSIENT


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
