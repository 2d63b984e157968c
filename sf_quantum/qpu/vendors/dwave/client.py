"""Requests of limited size and time through D-Wave's client, with converted errors."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sf_quantum import backoff
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.net.bounded_answers import UNDONE_REDIRECTS
from sf_quantum.net.transport import retry_seconds
from sf_quantum.protocol.bounds import ANSWER_BYTES, RESULT_BYTES
from sf_quantum.protocol.tasks import NotAccepted, UnknownJob
from sf_quantum.protocol.values import check_about
from sf_quantum.qpu import AuthenticationError
from sf_quantum.qpu.vendors.dwave.connection import Connection
from sf_quantum.qpu.vendors.embedding import Embedded, WrongEmbedding
from sf_quantum.text import described

if TYPE_CHECKING:
    from dwave.cloud.api import Problems
    from dwave.cloud.api.models import ProblemStatusMaybeWithAnswer
    from dwave.cloud.solver import StructuredSolver
    from requests import RequestException
    from requests import Response as Answer

MISSING = "dwave-system is not installed (pip install 'sf-quantum[dwave]')"
# Statuses of problems that have not ended.
LIVE = ("PENDING", "IN_PROGRESS")
# Client errors after which another attempt may succeed.
TRANSIENT = (408, 409, 425, 429)
# Statuses after which SAPI has no problem, and another attempt may succeed; 404 means that
# the working graph has changed.
NOT_ACCEPTED = (404, 408, 425, 429, 503)
# Statuses that proxies also send, in which case SAPI may have the problem.
ALSO_OF_PROXIES = (408, 503)
OFFLINE = "solver is offline"
# Filter for the properties of a solver that change often.
DYNAMIC = "none,+identity,+status"
# Time limits of a request, and of a request that the client may repeat.
REQUEST_SECONDS = 30.0
PATIENT_SECONDS = 60.0
# Largest list of all solvers, each with its graph.
SOLVERS_BYTES = 4 * ANSWER_BYTES
# SAPI answers a request that waits for the end of a problem within this time.
POLL_SECONDS = 30


def missing_package() -> str | None:
    """Explain briefly why D-Wave's client cannot be used here; ``None`` if it can."""
    with suppress(ModuleNotFoundError):
        if importlib.util.find_spec("dwave.system"):
            return None
    return MISSING


class DWaveClient:
    """Sends requests one at a time; D-Wave's samplers would wait in their own threads.

    :param qpu: name of the QPU in messages
    """

    def __init__(self, qpu: str, connection: Connection) -> None:
        self.qpu = qpu
        self._who = f"QPU {qpu!r}"
        self._connection = connection
        self._graph: StructuredSolver | None = None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert the errors of D-Wave's client to our errors."""
        if (missing := missing_package()) is not None:
            raise InputError(f"{self._who}: {missing}")
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
            text = f"{self._who} refuses: {described(error)}"
            raise AuthenticationError(text) from error
        except refused as error:
            raise InputError(f"{self._who} refuses: {described(error)}") from error
        except (requests.RequestException, *trouble) as error:
            # some rejections are recognized only by their HTTP status
            code = getattr(error, "error_code", None)
            status = code if isinstance(code, int) else 0
            refusal = 400 <= status < 500 and status not in TRANSIENT
            useless = refusal or isinstance(error, bad_url)
            kind = InputError if useless else QpuError
            raise kind(f"{self._who}: {described(error)}") from error

    @contextmanager
    def well_formed(self) -> Iterator[None]:
        """Convert the errors raised when a malformed answer is read."""
        from requests import RequestException

        try:
            yield
        except (RequestException, WrongEmbedding):
            raise
        except (LookupError, ValueError, TypeError, OverflowError) as error:
            text = f"{self._who}: a malformed answer: {described(error)}"
            raise QpuError(text) from error

    @contextmanager
    def problems(
        self, *, patient: bool = False, most_bytes: int = ANSWER_BYTES
    ) -> Iterator[Problems]:
        """Yield a client for requests about problems.

        :param patient: whether to wait longer, and to repeat requests that change nothing
        :param most_bytes: maximum size of an answer in bytes
        """
        with self.errors():
            from dwave.cloud.api import Problems

            from sf_quantum.net import sessions

            with Problems(**self._no_retry_options()) as problems, self.well_formed():
                seconds = PATIENT_SECONDS if patient else REQUEST_SECONDS
                sessions.guard(problems.session, most_bytes, seconds, repeated=patient)
                yield problems

    @contextmanager
    def asking(self, most_bytes: int = ANSWER_BYTES) -> Iterator[Problems]:
        """Yield a client for one request about a problem."""
        with self.problems(most_bytes=most_bytes) as problems:
            from dwave.cloud.api.exceptions import ResourceNotFoundError

            try:
                yield problems
            except ResourceNotFoundError as error:
                text = f"{self._who}: {described(error)}"
                raise UnknownJob(text) from error

    def graph(self, *, renew: bool = False) -> StructuredSolver:
        """Get the solver as last fetched; with ``renew``, fetch it again."""
        if self._graph is None or renew:
            self._graph = self._solver()
        return self._graph

    def forget_graph(self) -> None:
        """Have the solver fetched again when it is next needed."""
        self._graph = None

    def _solver(self) -> StructuredSolver:
        """Fetch the matching solver; an offline solver only if no online solver matches."""
        with self.errors():
            from dwave.cloud import Client
            from dwave.cloud.exceptions import SolverNotFoundError

            from sf_quantum.net import sessions

            options = {"request_timeout": REQUEST_SECONDS, "http_retry_total": 0}
            most = ANSWER_BYTES if self._connection.is_named else SOLVERS_BYTES
            with Client.from_config(**self._connection.options, **options) as client:
                session = client.solvers_session.session
                sessions.guard(session, most, REQUEST_SECONDS)
                try:
                    return client.get_solver(refresh=True)
                except SolverNotFoundError:
                    criteria = client.config.solver or {}
                    return client.get_solver(**{**criteria, "online": False})

    def state(self, solver: str) -> tuple[bool, str | None]:
        """Query whether a solver is online, and the id of its graph, if any."""
        with self.errors(), self.well_formed():
            from dwave.cloud.api import Solvers

            from sf_quantum.net import sessions

            with Solvers(**self._no_retry_options()) as solvers:
                sessions.guard(solvers.session, ANSWER_BYTES, REQUEST_SECONDS)
                # The filter omits the graph, which may have a megabyte.
                current = solvers.get_solver(solver, filter=DYNAMIC)
            version = current.identity.version
            online = str(current.get("status", "")).lower() == "online"
            return online, None if version is None else version.graph_id

    def submit(
        self, embedded: Embedded, parameters: Mapping[str, JSON], label: str | None
    ) -> str:
        """Submit a problem; return its id once the service has accepted it.

        :raises NotAccepted: if the service certainly has no problem
        """
        with self._accepting(), self.problems() as problems:
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
                check_about(self._who, reply.label, label)
            return str(reply.id)

    def cancel_labelled(self, label: str) -> None:
        """Cancel the problems with a label that have not ended."""
        with self.problems(patient=True) as problems:
            listed = problems.list_problems(label=label)
            if live := [one.id for one in listed if one.status.value in LIVE]:
                problems.cancel_problems(live)

    def wait(self, job_id: str) -> ProblemStatusMaybeWithAnswer:
        """Wait for the end of a problem."""
        with self.problems(patient=True, most_bytes=RESULT_BYTES) as problems:
            for pause in backoff.REQUEST.pauses():
                problem = problems.get_problem(job_id, timeout=POLL_SECONDS)
                check_about(self._who, problem.id, job_id)
                if problem.status.value not in LIVE:
                    break
                time.sleep(pause)
        return problem

    @contextmanager
    def _accepting(self) -> Iterator[None]:
        """Convert the errors of submissions that have certainly created no problem."""
        try:
            yield
        except (QpuError, InputError) as error:
            from requests import RequestException

            cause = error.__cause__
            if not isinstance(cause, RequestException) or not _refused(cause):
                raise
            self._graph = None  # the working graph may have changed
            headers = {} if cause.response is None else cause.response.headers
            wait = retry_seconds(headers.get("Retry-After"), headers.get("Date"))
            raise NotAccepted(str(error), wait) from error

    def _no_retry_options(self) -> dict[str, JSON]:
        """Return the options of requests that are not repeated."""
        return {
            "endpoint": self._connection.endpoint,
            "token": self._connection.token,
            "timeout": REQUEST_SECONDS,
            "retry": {"total": 0},
        }


def _refused(error: RequestException) -> bool:
    """Return whether a request was certainly not accepted, and may succeed if repeated."""
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
    """Return whether SAPI itself, and not a proxy, has sent an error.

    :param answer: HTTP answer; ``None`` for an error that is part of a successful answer
    """
    if answer is None:
        return True
    try:
        return "error_code" in answer.json()
    except (ValueError, TypeError):
        return False
