"""SAPI on the wire: what no sound client sends, and what only an unsound one notices.

What D-Wave's own client sends and reads is in ``tests/service/dialects/sapi/test_ocean.py``.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from dimod import BinaryQuadraticModel, SampleSet
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response

from sf_quantum.files import JSON
from sf_quantum.protocol.descriptions import Topology
from sf_quantum.samplers.problem import serialized
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.topology import pegasus
from sf_quantum.service.device.vendor.device import QpuDevice
from sf_quantum.service.dialects.sapi import qp_format, refusals, routes, solver
from sf_quantum.service.dialects.sapi.parameters import ProblemParameters
from sf_quantum.service.dialects.sapi.problems import Problems
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity
from sf_quantum.service.domain.settings import LeaseSettings, ServiceSettings
from sf_quantum.service.http.auth import FixedIdentity
from tests.support.service import (
    RunningService,
    emulated,
    example_bqm,
    running_service,
)
from tests.support.waiting import until

pytestmark = pytest.mark.devices("sfq", "dwave")

GRAPH = pegasus(2)
from_samples: Callable[..., SampleSet] = SampleSet.from_samples
serializable: Callable[[SampleSet], JSON] = SampleSet.to_serializable


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with running_service(EmulatedDevice(time_scale=0, qubits=40)) as running:
        yield running


def packed(values: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}d", *values)).decode()


def problem(**changes: JSON) -> dict[str, JSON]:
    """Two coupled qubits; the optimum is -1.75, both at 1 and -1."""
    lin = [math.nan] * len(GRAPH.qubits)
    for qubit, bias in zip(GRAPH.couplers[0], (1.0, -0.5), strict=True):
        lin[GRAPH.qubits.index(qubit)] = bias
    data: JSON = {"format": "qp", "lin": packed(lin), "quad": packed([0.25])}
    whole: dict[str, JSON] = {
        "solver": {"name": "emulator"},
        "type": "ising",
        "data": data,
        "params": {"num_reads": 5},
    }
    return {**whole, **changes}


def test_a_problem_and_its_answer(service: RunningService) -> None:
    answer = service.ask("POST", f"{routes.PREFIX}/problems", problem())
    assert answer.status == 200
    told = service.ask(
        "GET", f"{routes.PREFIX}/problems/{answer.json()['id']}?timeout=60"
    )
    content = told.json()["answer"]
    assert isinstance(content, dict)
    (energy,) = struct.unpack("<d", base64.b64decode(str(content["energies"])))
    active = struct.unpack("<2i", base64.b64decode(str(content["active_variables"])))
    assert (energy, active) == (-1.75, GRAPH.couplers[0])
    assert content["num_variables"] == 48
    assert struct.unpack("<i", base64.b64decode(str(content["num_occurrences"]))) == (
        5,
    )
    # the first of two bits, from the left
    assert base64.b64decode(str(content["solutions"])) == b"\x40"


def test_a_problem_names_the_graph_that_it_was_submitted_for(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = service.ask("POST", f"{routes.PREFIX}/problems", problem()).json()["id"]
    path = f"{routes.PREFIX}/problems/{id_}"
    before = service.ask("GET", f"{path}?timeout=60").json()["solver"]
    larger = emulated(service.queue).model_copy(update={"qubits": 100})
    monkeypatch.setattr(service.queue.jobs, "device", larger)
    changed = refusals.graph(larger)
    assert changed.id != GRAPH.id
    assert service.ask("GET", path).json()["solver"] == before
    assert before == {"name": "emulator", "version": {"graph_id": GRAPH.id}}
    # a problem of the first release has none
    (job,) = (one for one in service.queue.store.jobs.latest() if one.id == id_)
    earlier = {**(job.metadata or {})}
    del earlier["graph_id"]
    told = Problems(service.queue).status(replace(job, metadata=earlier))["solver"]
    assert told == {"name": "emulator", "version": {"graph_id": changed.id}}


#: of any size that a double may have, and a little more
SIZES = st.builds(
    lambda factor, power: factor * 10.0**power,
    st.floats(-10, 10),
    st.integers(-330, 308),
)


@given(SIZES, SIZES, SIZES)
@example(1.0, 1.0, 1e308)
@example(1e308, 1e308, 0.0)
@settings(max_examples=int(os.environ.get("SAPI_BIASES", "60")), deadline=None)
def test_a_problem_that_is_accepted_is_solved(
    service: RunningService, field: float, coupling: float, offset: float
) -> None:
    data: dict[str, JSON] = {
        "format": "qp",
        "lin": packed([field] * len(GRAPH.qubits)),
        "quad": packed([coupling] * len(GRAPH.couplers)),
        "offset": offset if math.isfinite(offset) else 0.0,
    }
    answer = service.ask("POST", f"{routes.PREFIX}/problems", problem(data=data))
    assert (answer.status == 200) == (max(map(abs, (field, coupling, offset))) <= 1e100)
    if answer.status == 200:
        path = f"{routes.PREFIX}/problems/{answer.json()['id']}?timeout=60"
        told = service.ask("GET", path).json()
        assert told["status"] == "COMPLETED", told


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_a_problem_of_another_graph_is_the_same_or_refused(data: st.DataObject) -> None:
    """Whatever becomes of the graph, nothing of a problem is left out in silence."""
    couplers = sorted((i, j) for i in range(6) for j in range(i + 1, 6))
    before = Topology("test", (), 6, tuple(couplers))
    left = data.draw(st.sets(st.sampled_from(couplers), min_size=1))
    after = Topology("test", (), 6, tuple(sorted(left)))
    used = sorted(data.draw(st.sets(st.sampled_from(before.qubits), min_size=1)))
    pairs = [pair for pair in couplers if {*pair} <= {*used}]
    linear = [1.0 if qubit in used else math.nan for qubit in before.qubits]
    quadratic = [data.draw(st.sampled_from([0.0, 0.5])) for _ in pairs]

    def model(lin: str, quad: str, graph: Topology) -> BinaryQuadraticModel:
        content = {"format": "qp", "lin": lin, "quad": quad}
        problem = {"solver": "qpu", "type": "ising", "data": content}
        bqm = qp_format.bqm(solver.Problem.model_validate(problem), graph)
        return BinaryQuadraticModel.from_serializable(bqm)

    lin, quad = (
        base64.b64encode(struct.pack(f"<{len(values)}d", *values)).decode()
        for values in (linear, quadratic)
    )
    submitted = model(lin, quad, before)
    needed = {*map(frozenset, submitted.quadratic)}
    has_all = {*used} <= {*after.qubits} and needed <= {*map(frozenset, left)}
    if not has_all:
        with pytest.raises(Refused, match="has lost"):
            qp_format.problem_data(submitted.to_serializable(), after)
        return
    told = qp_format.problem_data(submitted.to_serializable(), after)
    assert model(str(told["lin"]), str(told["quad"]), after) == submitted


def test_an_answer_has_the_qubits_of_its_problems_graph() -> None:
    samples = from_samples({2: 1, 7: -1}, "SPIN", energy=0.0)
    graph = Topology("test", (), 4, ((0, 1), (1, 2)))
    options = solver.ProblemOptions(
        type="ising", params=ProblemParameters(), offset=0.0, graph_id=""
    )
    text = json.dumps(serialized(samples))
    assert qp_format.answer(text, options, graph, None)["num_variables"] == 8


def test_raw_answers_list_each_read_that_a_device_merged() -> None:
    u, v = GRAPH.couplers[0]
    samples = from_samples(
        [{u: 1, v: -1}, {u: -1, v: 1}], "SPIN", [-1.75, -0.25], num_occurrences=[3, 2]
    )
    params = ProblemParameters(num_reads=5, answer_mode="raw", max_answers=4)
    content = qp_format.answer(
        json.dumps(serializable(samples)),
        solver.ProblemOptions(type="ising", params=params, offset=0.0, graph_id=""),
        GRAPH,
        None,
    )
    energies = struct.unpack("<4d", base64.b64decode(str(content["energies"])))
    assert energies == (-1.75, -1.75, -1.75, -0.25)
    told = struct.unpack("<4i", base64.b64decode(str(content["num_occurrences"])))
    assert told == (1, 1, 1, 1)


# the vendor's answer is written in this process, too
@pytest.mark.devices("sfq")
def test_an_answer_is_not_written_on_the_event_loop(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting_loops = list[asyncio.AbstractEventLoop]()
    reply = routes._reply

    def written(request: Request, content: JSON) -> Response:
        with suppress(RuntimeError):
            waiting_loops.append(asyncio.get_running_loop())
        return reply(request, content)

    submitted = service.ask("POST", f"{routes.PREFIX}/problems", problem())
    monkeypatch.setattr(routes, "_reply", written)
    path = f"{routes.PREFIX}/problems/{submitted.json()['id']}?timeout=60"
    assert service.ask("GET", path).json()["answer"]
    assert not waiting_loops


def test_a_clients_largest_batch_of_problems_is_accepted() -> None:
    """Its requests have up to 20; of a whole graph, more than limits.body_mib of 8."""
    device = EmulatedDevice(time_scale=0)
    graph = refusals.graph(device)
    whole = data(
        lin=packed([math.pi] * graph.labels),
        quad=packed([-math.e] * len(graph.couplers)),
    )
    spins: JSON = [1] * graph.labels
    offsets: JSON = [-math.pi / 100] * graph.labels
    params: JSON = {"num_reads": 5, "initial_state": spins, "flux_biases": offsets}
    body = json.dumps([problem(data=whole, params=params)] * 20)
    assert 8 * 2**20 < len(body) < solver.batch_bytes(device) < 16 * 2**20


def data(**changes: JSON) -> dict[str, JSON]:
    whole = problem()["data"]
    assert isinstance(whole, dict)
    return {**whole, **changes}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (problem(solver=None), "solver"),
        (problem(type="bqm"), "type: Input should be 'ising' or 'qubo'"),
        (problem(data=data(format="bq")), "data.format: Input should be 'qp'"),
        (
            problem(data=data(offset=2**53 + 1)),
            "9007199254740993 is rounded by a double",
        ),
        (problem(data=data(offset=10**400)), "data.offset: "),
        (problem(data=data(lin="%%%")), "data.lin: not base64"),
        (problem(data=data(lin="ä")), "data.lin: not base64"),
        (problem(data=data(lin="AAAA")), "has 0.375 numbers for 40 qubits"),
        (
            problem(data=data(lin=packed([math.nan] * 40))),
            "data.lin: the problem uses no qubit",
        ),
        (problem(data=data(quad="")), "has 0 numbers for 1 couplers in use"),
        (problem(data=data(quad=packed([math.inf]))), "not a finite number"),
        (problem(params={"num_reads": 0}), "params.num_reads"),
        (problem(params={"num_reads": True}), "params.num_reads"),
        (problem(params={"num_reads": 10**30}), "params.num_reads"),
        (problem(params={"beta": 1}), "params.beta: not a parameter of this solver"),
        (problem(params={"max_answers": 0}), "params.max_answers"),
        (problem(params={"annealing_time": 0.1}), "params.annealing_time"),
        (problem(label="x" * 1025), "label"),
    ],
)
def test_wrong_problems(
    service: RunningService, body: dict[str, JSON], words: str
) -> None:
    answer = service.ask("POST", f"{routes.PREFIX}/problems/", body)
    assert answer.status == 400
    assert answer.json()["error_code"] == 400
    assert words in str(answer.json()["error_msg"])


@pytest.mark.parametrize(
    ("body", "packing", "words"),
    [
        (b"[", "identity", "the body is not JSON"),
        (b"[" * 100_000, "identity", "nested more than 200 deep"),
        (b"[" * 200_001, "identity", "has more than 200000 values"),
        (b'"\xff"', "identity", "is not UTF-8 text"),
        (b"[]", "deflate", "the body is not deflated data"),
        (zlib.compress(b"[" * 60)[:-5], "deflate", "the body is incomplete"),
        (zlib.compress(b" " * 65), "deflate", "has more than 64 bytes"),
        # not decompressed to its end
        (zlib.compress(b"[" * 300_000)[:-5], "deflate", "has more than 64 bytes"),
        # half a surrogate pair
        (zlib.compress(b'["\\ud800"]'), "deflate", "is not UTF-8 text"),
    ],
)
def test_wrong_bodies(body: bytes, packing: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        routes._decoded(body, packing, 64)


def test_no_more_is_decompressed_than_a_sound_body_has_values() -> None:
    with pytest.raises(Refused, match="has more than 200000 values"):
        routes._decoded(zlib.compress(b"[" * 2**20)[:-5], "deflate", 2**21)


@pytest.mark.parametrize("size", [1, routes.PART_BYTES, 5 * routes.PART_BYTES + 1])
def test_bodies_are_decompressed_in_parts(size: int) -> None:
    text = json.dumps("".join(chr(97 + n * n % 26) for n in range(size)))
    body = zlib.compress(text.encode())
    assert routes._decoded(body, "deflate", 2**20) == json.loads(text)
    assert routes._decoded(text.encode(), "identity", 2**20) == json.loads(text)
    assert routes._is_large(body, "deflate") == (size > 1)


def test_wrong_requests(service: RunningService) -> None:
    for method, path, status in (
        ("GET", "/problems/nope", 404),
        ("GET", "/problems/?id=nope", 404),
        ("GET", "/problems/?id=" + ",".join("x" * 1001), 400),
        ("GET", "/problems/?timeout=-1", 400),
        ("GET", "/problems/?status=DONE", 400),
        ("DELETE", "/problems/nope", 404),
        ("DELETE", "/problems/", 400),
        ("GET", "/solvers/remote/nope", 404),
        ("GET", "/solvers/remote/?filter=all,status", 400),
        ("GET", "/nothing/there", 404),
    ):
        answer = service.ask(method, f"{routes.PREFIX}{path}")
        assert (path, answer.status) == (path, status)
        assert answer.json()["error_code"] == status
        assert answer.json()["error_msg"]


def test_a_cancellation_that_came_too_late(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = service.ask("POST", f"{routes.PREFIX}/problems", problem()).json()
    path = f"{routes.PREFIX}/problems/{submitted['id']}"
    service.ask("GET", f"{path}?timeout=60")
    refused = service.ask("DELETE", path)
    assert (refused.status, refused.json()["error_code"]) == (409, 409)
    assert "is COMPLETED already" in str(refused.json()["error_msg"])
    several = service.ask(
        "DELETE", f"{routes.PREFIX}/problems", json.dumps([submitted["id"]]).encode()
    )
    assert several.status == 200
    assert json.loads(several.body)[0]["error_code"] == 409
    # it ends between the look at it and its cancellation
    queue = service.queue
    job = queue.store.jobs.get(str(submitted["id"]))
    assert job is not None
    runs = replace(job, state="Running")
    with monkeypatch.context() as patch:
        patch.setattr(Problems, "find", lambda *_: runs)
        assert service.ask("DELETE", path).status == 409


def test_only_problems_of_sapi_are_told(service: RunningService) -> None:
    until(
        lambda: not service.queue.leases.held, "the leases of earlier problems to end"
    )
    lease = service.acquire()
    try:
        job: dict[str, JSON] = {"idempotency_key": "k", "problem": example_bqm()}
        # whatever key its user has chosen
        info: dict[str, JSON] = {"sapi": {"type": "ising", "params": {}}}
        problem: dict[str, JSON] = {**example_bqm(), "info": info}
        other = {**job, "idempotency_key": "sapi-k", "problem": problem}
        forged = service.ask("POST", "/v1/jobs", other, lease=lease)
        assert forged.status == 201
        told = service.ask("GET", f"{routes.PREFIX}/problems/{forged.json()['id']}")
        assert told.status == 404
        answer = service.ask("POST", "/v1/jobs", job, lease=lease)
        assert answer.status == 201
        told = service.ask("GET", f"{routes.PREFIX}/problems/{answer.json()['id']}")
        assert told.status == 404
        every = service.ask("GET", f"{routes.PREFIX}/problems/")
        ids = [one["id"] for one in json.loads(every.body)]
        assert {answer.json()["id"], forged.json()["id"]}.isdisjoint(ids)
    finally:
        service.ask("DELETE", f"/v1/leases/{lease}")


def cached(solver: dict[str, JSON] | None = None, /, **headers: str) -> Response:
    raw = [(name.replace("_", "-").encode(), v.encode()) for name, v in headers.items()]
    solvers: list[dict[str, JSON]] = [{"a": 1} if solver is None else solver]
    request = Request({"type": "http", "headers": raw})
    return routes._cached(request, [*solvers], solvers)


def test_the_media_type_is_what_was_asked_for() -> None:
    media = "application/vnd.dwave.sapi.solver-definition-list+json"
    answer = cached(accept=f'{media}; version="3.0.0"')
    assert answer.headers["content-type"] == f"{media}; version=3.0.0"
    assert answer.headers["cache-control"] == "private, max-age=30"
    changes = cached({"identity": {}, "avg_load": 0.0})
    assert changes.headers["cache-control"] == "private, no-cache"
    assert cached(if_none_match=answer.headers["etag"]).status_code == 304
    answer = cached(accept="text/html", if_none_match="older")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"


def test_filters() -> None:
    whole: dict[str, JSON] = {"a": 1, "b": {"c": 2, "d": 3}, "e": 4}
    for filter_, expected in (
        ("all", whole),
        ("none", {}),
        ("all,-a,-e", {"b": {"c": 2, "d": 3}}),
        ("none,+a,+b.d", {"a": 1, "b": {"d": 3}}),
        ("all,-b.c,-nothing", {"a": 1, "b": {"d": 3}, "e": 4}),
        ("-a,-b", {"e": 4}),
        ("none,+nothing,+a.b", {"a": 1}),
    ):
        assert solver.filtered(whole, filter_) == expected
    assert whole == {"a": 1, "b": {"c": 2, "d": 3}, "e": 4}


@pytest.mark.parametrize("repeatable", [True, False])
def test_whose_problems_may_run_twice_is_configured(repeatable: bool) -> None:
    users = ["ada"] if repeatable else []
    with running_service(
        EmulatedDevice(time_scale=0, qubits=40),
        settings=ServiceSettings(repeatable_users=users),
        authenticate=FixedIdentity(Identity("ada", admin=False)),
    ) as service:
        answer = service.ask("POST", f"{routes.PREFIX}/problems/", problem())
        assert answer.status == 200
        (job,) = service.queue.store.jobs.latest()
        assert job.repeatable is repeatable


def test_only_root_leases_where_users_may_not() -> None:
    settings = ServiceSettings(leases=LeaseSettings(by="root"))
    device = EmulatedDevice(time_scale=0, qubits=40)
    with running_service(
        device,
        settings=settings,
        authenticate=FixedIdentity(Identity("ada", admin=False)),
    ) as service:
        answer = service.ask("POST", f"{routes.PREFIX}/problems/", problem())
        assert answer.status == 403
        assert "only root and admins" in str(answer.json()["error_msg"])


# the graph has qubits out of service
@pytest.mark.devices("sfq")
def test_all_dialects_tell_the_same_size() -> None:
    device = EmulatedDevice(qubits=100, out_of_service=frozenset({34, 130}))
    with running_service(device) as service:
        told = service.ask("GET", "/v1/device").json()
        answer = service.ask("GET", f"{routes.PREFIX}/solvers/remote/")
    (only,) = json.loads(answer.body)
    shown = only["properties"]["qubits"]
    assert told["qubits"] == len(shown) == 98
    assert {34, 130}.isdisjoint(shown)


def test_a_qpu_that_is_not_known_yet_is_asked_for_again() -> None:
    config: JSON = {"url": "unix:/nowhere"}
    front = QpuDevice.from_config({"qpu": "sfq", "name": "far", "config": config})
    with running_service(front) as service:
        for path in ("/", "/far/"):
            answer = service.ask("GET", f"{routes.PREFIX}/solvers/remote{path}")
            assert (answer.status, answer.retry_seconds) == (503, 1.0)
            assert "far is not known yet" in str(answer.json()["error_msg"])


# it needs another technology
@pytest.mark.devices("sfq")
def test_no_annealer_no_solver() -> None:
    device = EmulatedDevice(technology="superconducting", time_scale=0)
    with running_service(device) as service:
        answer = service.ask("GET", f"{routes.PREFIX}/solvers/remote/")
        assert json.loads(answer.body) == []
        answer = service.ask("POST", f"{routes.PREFIX}/problems/", problem())
        assert answer.status == 404
        assert "is not an annealer" in str(answer.json()["error_msg"])
        # nothing is left that holds the vQPU
        assert service.ask("POST", "/v1/leases", {"wait": 5}).status == 201


# of every dialect
@pytest.mark.parametrize(
    "path",
    [
        "/v1/device",
        "/accessible",
        "/qpu/specs",
        f"{routes.PREFIX}/solvers/remote/",
        "/",
    ],
)
def test_head_answers_as_get_does_without_a_body(
    service: RunningService, path: str
) -> None:
    asked, told = (service.ask(method, path) for method in ("HEAD", "GET"))
    assert (asked.status, asked.body) == (told.status, b"")
    assert told.body


def test_other_encodings_than_gzip_and_deflate_are_refused(
    service: RunningService,
) -> None:
    for path, expected in (
        (f"{routes.PREFIX}/problems", "gzip, deflate or none"),
        ("/v1/leases", "gzip or none"),
    ):
        for encoding in ("br", "zstd", "gzip, gzip", "Deflat"):
            told = service.ask(
                "POST", path, b"{}", headers={"Content-Encoding": encoding}
            )
            assert told.status == 415
            assert f"expected {expected}" in told.body.decode()


def test_a_problem_that_is_packed_with_gzip(service: RunningService) -> None:
    # the second is large, and decompressed in another thread
    large = [problem(label="x" * 1024)] * 60
    for content, several in ((problem(), False), (large, True)):
        body = gzip.compress(json.dumps(content).encode())
        answer = service.ask(
            "POST",
            f"{routes.PREFIX}/problems",
            body,
            headers={"Content-Encoding": "gzip"},
        )
        assert answer.status == 200
        told = json.loads(answer.body)
        assert {one["status"] for one in (told if several else [told])} <= {
            *solver.STATUSES.values()
        }
        assert not several or len(told) == 60
