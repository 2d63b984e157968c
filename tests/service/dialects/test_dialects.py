"""Dialects are plug-ins: each is one class, and a service may leave it out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute

from sf_quantum.files import JSON, mapping
from sf_quantum.service.config import load
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.dialects import dialect, large_bodies
from sf_quantum.service.dialects.common import LeaseId, Queue, Who
from sf_quantum.service.dialects.dialect import Dialect
from sf_quantum.service.dialects.large_bodies import LargeBodyRoute
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity, Job, Submission
from sf_quantum.service.http.guard import SMALL_BYTES
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.store import audit
from sf_quantum.validation import ValidationErrors
from tests.support.service import example_bqm, running_service


class _Route(LargeBodyRoute):
    dialect = "acme"

    @staticmethod
    def reply(queue: JobQueue, job: Job, new: bool) -> Response:
        return JSONResponse({"task": job.id}, 202)


router = APIRouter(prefix="/acme", route_class=_Route)


@router.post("/tasks")
async def submit(
    request: Request, queue: Queue, who: Who, x_sfq_lease: LeaseId = None
) -> Response:
    """Submit a task."""
    submission = Acme.read(await request.json(), {})
    return _Route.reply(queue, *await queue.submit(who, x_sfq_lease, submission))


class Acme(Dialect):
    """A dialect of a site's own."""

    name = "acme"
    clients = "Acme's programs"
    payloads = ("problem",)
    prefix = "/acme"
    submissions = re.compile("/acme/tasks")

    @classmethod
    def routes(cls) -> Sequence[BaseRoute]:
        return router.routes

    def refusal(self, request: Request, refused: Refused) -> Response:
        return JSONResponse({"oops": refused.detail}, refused.status)

    @staticmethod
    def read(content: JSON, more: Mapping[str, JSON]) -> Submission:
        bqm = mapping(content)["bqm"]
        return Submission("problem", bqm, {"num_reads": 1}, "a", dialect="acme")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acme is installed beside the others."""
    names, found = dialect.installed(), dialect.load
    monkeypatch.setattr(dialect, "installed", lambda: [*names, "acme"])

    def loaded(name: str) -> type[Dialect]:
        return Acme if name == "acme" else found(name)

    for module in (dialect, large_bodies):
        monkeypatch.setattr(module, "load", loaded)


def test_a_sites_dialect_is_spoken(installed: None) -> None:
    with running_service() as service:
        assert service.ask("GET", "/sapi/v2/solvers/remote").status == 200
        refused = service.ask("POST", "/acme/tasks", {"bqm": example_bqm()})
        assert (refused.status, [*refused.json()]) == (403, ["oops"])
        task: dict[str, JSON] = {"bqm": example_bqm(), "comment": "x" * SMALL_BYTES}
        answer = service.ask("POST", "/acme/tasks", task, lease=service.acquire())
        assert answer.status == 202
        (job,) = service.queue.store.jobs.latest()
        assert (job.id, job.dialect) == (answer.json()["task"], "acme")


@pytest.mark.parametrize("names", [[], ["sapi"], ["iqm", "warden"]])
def test_a_service_leaves_dialects_out(names: Sequence[str]) -> None:
    paths = {
        "sapi": "/sapi/v2/solvers/remote",
        "iqm": "/api/v1/about",
        "warden": "/accessible",
    }
    with running_service(dialects=names) as service:
        assert service.ask("GET", "/v1/device").status == 200
        for name, path in paths.items():
            expected = 200 if name in names else 404
            assert service.ask("GET", path).status == expected, name


@pytest.mark.parametrize("name", dialect.installed())
def test_a_dialect_says_which_paths_submit(name: str) -> None:
    """Where it does not, large submissions are refused, or any body may be large."""
    found = dialect.load(name)
    assert found.name == name
    assert all((found.clients, found.payloads, found.lease_header))
    posts = {
        route.path.rstrip("/")
        for route in found.routes()
        if isinstance(route, APIRoute) and "POST" in (route.methods or ())
    }
    submitting = {re.sub("{job_type}", "circuit", path) for path in posts}
    assert any(found.submissions.fullmatch(path) for path in submitting)
    assert not found.submissions.fullmatch("/v1/leases")
    if found.prefix:
        assert any(path.startswith(found.prefix) for path in posts)


def test_no_two_dialects_have_the_same_route() -> None:
    routes = [
        (method, route.path)
        for name in dialect.installed()
        for route in dialect.load(name).routes()
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    ]
    assert len(routes) >= 80
    assert len(set(routes)) == len(routes)


def test_a_dialect_that_is_not_installed_is_refused() -> None:
    with pytest.raises(ValidationErrors) as error:
        load(None, {("dialects",): ["sapy"]}, {("dialects",): "dialects"})
    (line,) = error.value.lines
    assert line.startswith("dialects: unknown dialect 'sapy', did you mean 'sapi'?")


OPTIONS: dict[str, JSON] = {
    "type": "ising",
    "params": {},
    "offset": 0.0,
    "graph_id": "",
}


async def _by_header(connection: HTTPConnection) -> Identity:
    user = connection.headers["X-User"]
    return Identity(user, admin=user == "operator")


@pytest.mark.parametrize("user", ["ann", "operator"])
@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize(
    ("spoken", "method", "path"),
    [
        ("v1", "DELETE", "/v1/jobs/{job}"),
        ("v1", "DELETE", "/v1/leases/{lease}"),
        ("warden", "POST", "/jobs/{number}/cancel"),
        ("warden", "DELETE", "/sessions/{lease}"),
        ("iqm", "POST", "/api/v1/jobs/{job}/cancel"),
        ("iqm", "DELETE", "/api/v1/jobs/{job}"),
        ("sapi", "DELETE", "/sapi/v2/problems/{job}"),
    ],
)
def test_what_admins_do_to_others_is_audited(
    spoken: str, method: str, path: str, is_over: bool, user: str
) -> None:
    technology = "annealer" if spoken == "sapi" else "superconducting"
    device = EmulatedDevice(technology=technology, time_scale=0)
    with running_service(device, authenticate=_by_header) as service:
        headers, store = {"X-User": "ann"}, service.queue.store
        lease = str(service.ask("POST", "/v1/leases", {}, headers=headers).json()["id"])
        asked = Submission("circuit", "", {}, "k", dialect=spoken, metadata=OPTIONS)
        # The queue does not know of it, and so does not run it.
        job, _ = store.jobs.add(service.queue.leases.held[0], asked, 1.0).result()
        if is_over:
            store.progress.cancel_waiting(job.number, "before").result()
        names = {"job": job.id, "number": job.number, "lease": lease}
        answer = service.ask(method, path.format(**names), headers={"X-User": user})
        changed = answer.status < 300 and not (is_over and path == "/v1/jobs/{job}")
        about = [
            {str(entry.parameters.get(key)) for key in ("job", "lease")}
            for entry in audit.entries(store, 10, None)
            if entry.user == "operator"
        ]
        assert bool(about) == (changed and user == "operator")
        assert all(entry & {job.id, lease} for entry in about)
