"""D-Wave's annealers by D-Wave's client: on our service, and on one that misbehaves."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from dimod import BinaryQuadraticModel, SampleSet

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol import solver_parameters
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Timing
from sf_quantum.protocol.tasks import NotAccepted, Progress, Task, UnknownJob
from sf_quantum.qpu import AuthenticationError
from sf_quantum.qpu.vendors import dwave, embedding
from sf_quantum.qpu.vendors.dwave import DWaveQpu
from sf_quantum.qpu.vendors.dwave.client import DWaveClient
from sf_quantum.qpu.vendors.dwave.connection import Connection
from sf_quantum.qpu.vendors.dwave.solver import timing
from sf_quantum.qpu.vendors.embedding import Embedded
from sf_quantum.samplers.defaults import SWEEPS
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support.scripted import Reply, Serve, scripted_server
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.waiting import until

if TYPE_CHECKING:
    from dwave.cloud.solver import StructuredSolver

pytest.importorskip("dwave.system", reason="the extra dwave is missing")
OUT = frozenset({5, 17})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DWAVE_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def annealer() -> Iterator[RunningService]:
    device = EmulatedDevice(qubits=40, time_scale=0, noise=0)
    with running_service(device, tcp=True) as service:
        yield service


def client(service: RunningService, lease: str | None = None) -> DWaveQpu:
    return DWaveQpu("q", Connection(f"{service.url}/sapi/v2", "t"), lease)


def task(bqm: dict[str, JSON], tag: str = "tag", **parameters: int | None) -> Task:
    return Task(tag, "problem", json.dumps(bqm), {"num_reads": 20, **parameters})


def completed(qpu: DWaveQpu, submitted: Task) -> str:
    job_id = qpu.submit(submitted)
    until(lambda: qpu.poll(job_id) == Progress("Completed"), "the problem's end")
    return job_id


def samples_of(text: str) -> SampleSet:
    found: SampleSet = SampleSet.from_serializable(json.loads(text))  # type: ignore[no-untyped-call]
    return found


@pytest.mark.parametrize(("lease", "cancelled"), [("a", ["a"]), (None, [])])
def test_an_interrupted_sampler_cancels_its_leases_problems_only(
    monkeypatch: pytest.MonkeyPatch, lease: str | None, cancelled: list[str]
) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    released: list[str] = []
    solver = SimpleNamespace(properties={}, check_problem=lambda *_: True)
    monkeypatch.setattr(DWaveClient, "graph", lambda _: solver)
    monkeypatch.setattr(DWaveClient, "submit", interrupted)
    monkeypatch.setattr(
        DWaveClient, "cancel_labelled", lambda _, token: released.append(token)
    )
    sampler = DWaveQpu("q", Connection("", ""), lease).sampler()
    with pytest.raises(KeyboardInterrupt):
        sampler.sample(BinaryQuadraticModel("BINARY"))
    assert released == cancelled


def test_the_solver_describes_its_graph_and_timing() -> None:
    device = EmulatedDevice(qubits=100, time_scale=0, out_of_service=OUT)
    graph = device.description.graph
    assert graph is not None
    with running_service(device, tcp=True) as service:
        described = client(service).describe()
    topology = described.topology
    assert topology is not None
    assert (topology.kind, topology.shape) == (graph.kind, graph.shape)
    assert (topology.labels, topology.couplers) == (graph.labels, graph.couplers)
    assert described.qubits == len(graph.qubits)
    assert described.out_of_service >= OUT
    assert not described.out_of_service & {*graph.qubits}
    assert described.kinds == ("problem",)
    assert described.shots == 10_000
    assert described.timing is not None
    expected = Timing(0.01802, 40.54e-6, 45.32e-6)
    assert vars(described.timing) == pytest.approx(vars(expected))
    assert described.calibration == CalibrationData(graph.id)


def test_the_status_is_asked_for_without_the_graph(
    scripted: Serve, solver: StructuredSolver
) -> None:
    known: JSON = {"name": solver.name, "version": {"graph_id": solver.graph_id}}
    replies: list[Reply] = [
        (200, {"identity": known, "status": status}, kind("solver-definition"))
        for status in ("ONLINE", "OFFLINE")
    ]
    qpu = misbehaving(scripted(replies).url, solver, solver.name)
    told = qpu.status()
    assert (told.online, told.reason, told.name) == (True, "", solver.name)
    assert (told.qubits, told.calibration) == (len(solver.nodes), solver.graph_id)
    told = qpu.status()
    assert (told.online, told.reason) == (False, "offline")
    # one request each
    assert qpu.client.graph() is solver


def test_a_new_graph_is_read_and_another_solver_looked_for(
    annealer: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    qpu = client(annealer)
    first = qpu.client.graph()
    qpu.client._graph = SimpleNamespace(name=first.name, graph_id="old")
    assert qpu.status().calibration == first.graph_id
    assert qpu.client.graph() is not first
    annealer.ask("POST", "/v1/device/close", {"message": "helium"})
    assert not qpu.status().online
    # no solver was named
    assert qpu.client._graph is None


def test_a_problem_over_qubits_is_submitted_as_it_is(annealer: RunningService) -> None:
    qpu = client(annealer)
    (one, other), *_ = sorted(qpu.client.graph().undirected_edges)
    bqm = BinaryQuadraticModel({one: 0.5}, {(one, other): -1.0}, 7.0, "SPIN")
    submitted = task(bqm.to_serializable())
    outcome = qpu.result(completed(qpu, submitted), submitted)
    assert outcome.result is not None
    info = outcome.result.info
    assert (info["qubits"], info["reads"]) == (2, 20)
    assert "chain_strength" not in info
    samples = samples_of(outcome.result.whole)
    assert samples.first.sample == {one: -1, other: -1}
    assert samples.first.energy == 5.5
    (job,) = annealer.queue.store.jobs.latest()
    # what the service got is the very same problem
    assert (
        json.loads(annealer.queue.store.jobs.payload(job.number))["num_variables"] == 2
    )


@pytest.mark.process
def test_a_result_is_read_by_another_process_than_submitted(
    annealer: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = task(example_bqm())
    first = client(annealer)
    job_id = completed(first, submitted)
    known = first.result(job_id, submitted)
    assert known.result is not None
    assert known.qpu_seconds == pytest.approx(0.01802 + 20 * 85.86e-6)
    assert known.calibration == CalibrationData(first.client.graph().graph_id)
    again = client(annealer)
    assert again.find("tag") == job_id
    found = again.result(job_id, submitted)
    assert found == known
    # a search that comes to another embedding
    search = embedding.search
    monkeypatch.setattr(embedding, "search", lambda a, b, seed: search(a, b, seed + 1))
    lost = client(annealer).result(job_id, submitted)
    assert lost.result is None
    assert lost.failure == "its embedding is lost, and another one is found now"
    assert lost.qpu_seconds == known.qpu_seconds


@pytest.mark.process
def test_a_problem_is_found_by_its_tag_among_many(
    annealer: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    qpu = client(annealer)
    ids = [qpu.submit(task(example_bqm(), tag, seed=1)) for tag in "abc"]
    store = annealer.queue.store
    jobs = store.jobs.latest
    monkeypatch.setattr(
        store.jobs, "latest", lambda **given: jobs(**{**given, "limit": 1})
    )
    assert qpu.find("a") == ids[0]


@pytest.mark.process
def test_problems_with_the_same_tag_are_all_told(annealer: RunningService) -> None:
    qpu = client(annealer)
    ids = [qpu.submit(task(example_bqm(), "same", seed=seed)) for seed in (1, 2, 3)]
    assert len({*ids}) == 3
    for job_id in ids:
        assert {*qpu.duplicates("same", job_id)} == {*ids} - {job_id}


def test_few_embeddings_are_kept(
    annealer: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dwave, "EMBEDDINGS", 1)
    qpu, tasks = client(annealer), [task(example_bqm(), tag) for tag in "ab"]
    ids = [completed(qpu, submitted) for submitted in tasks]
    assert [*qpu._embedded] == ids[1:]
    for job_id, submitted in zip(ids, tasks, strict=True):
        assert qpu.result(job_id, submitted).result is not None


@pytest.mark.process
def test_equal_interactions_have_the_same_embedding(
    solver: StructuredSolver,
) -> None:
    embedding._search.cache_clear()
    found = []
    for biases in ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]):
        content = {**example_bqm(), "linear_biases": biases}
        bqm = BinaryQuadraticModel.from_serializable(content)
        found.append(Embedded.of(bqm, solver))
    first, second = found
    assert first.chains == second.chains
    assert first.target != second.target
    assert embedding._search.cache_info().misses == 1
    # another seed may find another one
    assert Embedded.of(first.source, solver, 1).seed == 1
    assert embedding._search.cache_info().misses == 2


def test_sweeps_are_annealing_time(annealer: RunningService) -> None:
    qpu = client(annealer)
    completed(qpu, task(example_bqm(), seed=1, num_sweeps=3 * SWEEPS))
    (job,) = annealer.queue.store.jobs.latest()
    assert job.parameters["num_sweeps"] == 3 * SWEEPS
    with pytest.raises(InputError, match="annealing_time"):
        qpu.submit(task(example_bqm(), num_sweeps=1_000_000))
    with pytest.raises(InputError, match="num_reads"):
        qpu.submit(task(example_bqm(), num_reads=10_001))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"beta": math.inf}, "beta: expected finite numbers"),
        ({"gamma": 1.0}, "gamma: not a parameter of this solver"),
        ({"num_reads": 1001}, "num_reads: 1001 is out of range"),
        ({"anneal_schedule": [[0, 0], [90, 1]]}, "annealing_time: 90 is out of range"),
        ({"fast_anneal": True, "annealing_time": 5.0}, "takes 0.005 to 1"),
    ],
)
def test_parameters_that_a_solver_does_not_take(
    given: dict[str, JSON], words: str
) -> None:
    properties: dict[str, JSON] = {
        "parameters": dict.fromkeys(given.keys() - {"gamma"}, ""),
        "num_reads_range": [1, 1000],
        "annealing_time_range": [1, 50],
        "fast_anneal_time_range": [0.005, 1],
    }
    with pytest.raises(InputError, match=words):
        solver_parameters.check(given, properties)


def test_no_thread_waits_for_a_submitted_problem(annealer: RunningService) -> None:
    before = {*threading.enumerate()}
    client(annealer).submit(task(example_bqm()))
    left = {thread.name for thread in {*threading.enumerate()} - before}
    # beside those of the service, which is in this process
    assert not [name for name in left if "(_do_" in name]


def test_an_offline_solver_accepts_no_problem(annealer: RunningService) -> None:
    qpu = client(annealer)
    job_id = completed(qpu, task(example_bqm()))
    annealer.ask("POST", "/v1/device/close", {"message": "helium"})
    with pytest.raises(NotAccepted, match="helium"):
        qpu.submit(task(example_bqm(), "other"))
    assert qpu.find("other") is None
    assert qpu.find("tag") == job_id


def test_nothing_was_submitted_where_nobody_listens(annealer: RunningService) -> None:
    qpu = DWaveQpu("q", Connection("http://127.0.0.1:1/sapi/v2", "t"))
    with pytest.raises(NotAccepted, match="'q'"):
        qpu.submit(task(example_bqm()))
    qpu.client._graph = client(annealer).client.graph()
    with pytest.raises(NotAccepted, match="'q'"):
        qpu.submit(task(example_bqm()))


def test_a_solver_that_is_not_there_is_no_fault_of_a_job(
    annealer: RunningService, scripted: Serve
) -> None:
    connection = replace(client(annealer).connection, solver="another")
    qpu = DWaveQpu("q", connection)
    with pytest.raises(NotAccepted, match="another"):
        qpu.submit(task(example_bqm()))
    denied = Connection(scripted([(401, {})]).url, "t")
    with pytest.raises(AuthenticationError):
        DWaveQpu("q", denied).submit(task(example_bqm()))


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory) -> StructuredSolver:
    """The graph that a client knows when the service begins to misbehave."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("DWAVE_CACHE_HOME", str(folder))
        device = EmulatedDevice(qubits=40, time_scale=0)
        with running_service(device, tcp=True) as service:
            return client(service).client.graph()


@pytest.fixture
def scripted() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda replies: stack.enter_context(scripted_server(replies))


def misbehaving(
    url: str, solver: StructuredSolver, name: str | None = None
) -> DWaveQpu:
    qpu = DWaveQpu("q", Connection(f"{url}/sapi/v2", "t", name))
    qpu.client._graph = solver
    return qpu


def kind(thing: str) -> dict[str, str]:
    return {"Content-Type": f"application/vnd.dwave.sapi.{thing}+json; version=3.0.0"}


PROBLEMS, PROBLEM = kind("problems"), kind("problem")
FULL: JSON = [{"error_code": 429, "error_msg": "too many problems"}]
WRONG: JSON = [{"error_code": 400, "error_msg": "wrong\nparameter"}]
CLOSED: JSON = {"error_code": 503, "error_msg": "the QPU is closed"}
OVER: JSON = {"error_code": 409, "error_msg": "over"}
OLD: JSON = [{"error_code": 404, "error_msg": "fetch the solver again"}]
AWAY: JSON = [{"error_code": 400, "error_msg": "Solver is offline: helium"}]


@pytest.mark.parametrize(
    ("reply", "expected", "words", "seconds"),
    [
        ((429, {}, {"Retry-After": "7"}), NotAccepted, "", 7.0),
        ((429, {}), NotAccepted, "", None),
        ((503, CLOSED), NotAccepted, "closed", None),
        # a proxy's
        ((503, {}), QpuError, "", None),
        ((408, {}), QpuError, "", None),
        ((503, "<html>", {"Content-Type": "text/html"}), QpuError, "", None),
        ((200, FULL, PROBLEMS), NotAccepted, "too many problems", None),
        ((200, OLD, PROBLEMS), NotAccepted, "fetch the solver again", None),
        ((200, AWAY, PROBLEMS), NotAccepted, "helium", None),
        ((200, WRONG, PROBLEMS), InputError, "wrong parameter", None),
        ((400, {}), InputError, "", None),
        ((401, {}), AuthenticationError, "", None),
        ((403, {}), AuthenticationError, "", None),
        ((500, {}), QpuError, "", None),
        ((504, {}), QpuError, "", None),
        (None, QpuError, "", None),
        ((200, "<html>", {"Content-Type": "text/html"}), QpuError, "", None),
        ((200, "<html>", PROBLEMS), QpuError, "a malformed answer", None),
        ((200, [], PROBLEMS), QpuError, "a malformed answer", None),
        ((200, [{"id": 5}], PROBLEMS), QpuError, "a malformed answer", None),
    ],
)
def test_after_which_answers_there_may_be_a_problem(
    scripted: Serve,
    solver: StructuredSolver,
    reply: Reply,
    expected: type[Exception],
    words: str,
    seconds: float | None,
) -> None:
    server = scripted([reply])
    qpu = misbehaving(server.url, solver)
    with pytest.raises(expected, match=f"^QPU 'q'.*{words}") as caught:
        qpu.submit(task(example_bqm()))
    assert type(caught.value) is expected
    assert "\n" not in str(caught.value)
    if isinstance(caught.value, NotAccepted):
        assert caught.value.retry_seconds == seconds
    # a submission is never repeated here
    assert len(server.bodies) == 1


def problem(**changes: JSON) -> dict[str, JSON]:
    told: dict[str, JSON] = {
        "id": "j",
        "type": "qubo",
        "solver": {"name": "emulator"},
        "status": "COMPLETED",
        "submitted_on": "2026-01-01T00:00:00Z",
    }
    return {**told, **changes}


ANSWER: dict[str, JSON] = {
    "format": "qp",
    "active_variables": "",
    "energies": "AAAAAAAAAAA=",
    "solutions": "AA==",
    "timing": {"qpu_access_time": 7},
    "num_occurrences": "AQAAAA==",
    "num_variables": 30,
}


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((500, {}), "InternalServerError|'q'"),
        (None, "'q'"),
        ((200, "<html>", PROBLEM), "a malformed answer"),
        ((200, [], PROBLEM), "a malformed answer"),
        ((200, problem(status="ODD"), PROBLEM), "a malformed answer"),
        ((200, problem(status="IN_PROGRESS"), PROBLEM), "problem j is IN_PROGRESS"),
        ((200, problem(), PROBLEM), "a malformed answer: no answer"),
        ((200, problem(answer={"data": 1}), PROBLEM), "a malformed answer"),
        (
            (200, problem(answer={**ANSWER, "num_variables": 10**12}), PROBLEM),
            "a malformed answer: num_variables",
        ),
        (
            (200, problem(answer={**ANSWER, "energies": "?"}), PROBLEM),
            "a malformed answer",
        ),
        ((200, "", {**PROBLEM, "Content-Length": str(10**12)}), "more than .* bytes"),
        ((404, {}), "'q'"),
    ],
)
def test_a_result_that_is_none(
    scripted: Serve, solver: StructuredSolver, reply: Reply, words: str
) -> None:
    qpu = misbehaving(scripted([reply]).url, solver)
    with pytest.raises(QpuError, match=words) as caught:
        qpu.result("j", task(example_bqm()))
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, UnknownJob) == (
        reply is not None and reply[0] == 404
    )


@pytest.mark.parametrize(
    ("told", "seconds"),
    [(7, 7e-6), ("x", None), (1e300, None), (-1, None)],
)
def test_a_time_that_is_none(
    scripted: Serve, solver: StructuredSolver, told: JSON, seconds: float | None
) -> None:
    answer: dict[str, JSON] = {**ANSWER, "timing": {"qpu_access_time": told}}
    server = scripted([(200, problem(answer=answer), PROBLEM)])
    outcome = misbehaving(server.url, solver).result("j", task(example_bqm()))
    assert outcome.qpu_seconds == seconds


@pytest.mark.parametrize("told", [math.nan, math.inf, -1.0])
def test_a_timing_that_is_none(
    solver: StructuredSolver, monkeypatch: pytest.MonkeyPatch, told: float
) -> None:
    assert timing(solver) is not None
    known = {**solver.properties["problem_timing_data"], "default_annealing_time": told}
    monkeypatch.setitem(solver.properties, "problem_timing_data", known)
    monkeypatch.setattr(solver, "estimate_qpu_access_time", lambda *_: told)
    assert timing(solver) is None


def test_how_problems_end_without_an_answer(
    scripted: Serve, solver: StructuredSolver
) -> None:
    failed = problem(status="FAILED", error_message="laser\noff")
    replies: list[Reply] = [
        (200, failed, PROBLEM),
        (200, problem(status="CANCELLED"), PROBLEM),
        (200, problem(status="CANCELLED", error_message="helium"), PROBLEM),
        (409, OVER),
        (200, [], PROBLEMS),
        (200, [{"error_code": 404}], PROBLEMS),
        (200, [problem(label="other")], PROBLEMS),
    ]
    qpu = misbehaving(scripted(replies).url, solver)
    asked = task(example_bqm())
    assert qpu.result("j", asked).failure == "problem j failed: laser off"
    outcome = qpu.result("j", asked)
    assert (outcome.result, outcome.failure, outcome.qpu_seconds) == (None, None, None)
    assert outcome.note == ""
    assert qpu.result("j", asked).note == "helium"
    qpu.cancel("j")
    with pytest.raises(UnknownJob, match="no problem j"):
        qpu.poll("j")
    with pytest.raises(QpuError, match="a malformed answer"):
        qpu.poll("j")
    assert qpu.find("tag") is None


@pytest.mark.process
def test_a_search_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "SPARE_SECONDS", -embedding.SEARCH_SECONDS)
    with pytest.raises(InputError, match="no embedding found within 0 s"):
        embedding.search([(0, 0)], [(0, 1)], 1)


@pytest.mark.process
def test_a_search_that_fails() -> None:
    with pytest.raises(
        InputError, match="the search for an embedding failed: "
    ) as error:
        embedding.search([(0, 0)], [(0, 1)], -(2**100))
    assert "\n" not in str(error.value)


def test_more_interactions_than_couplers_are_not_searched_for(
    solver: StructuredSolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "search", lambda *_: pytest.fail("searched"))
    size = int((2 * len(solver.undirected_edges)) ** 0.5) + 2
    dense = BinaryQuadraticModel("SPIN")
    dense.add_quadratic_from_dense(
        [[float(i < j) for j in range(size)] for i in range(size)]
    )
    with pytest.raises(InputError, match=f"{size} variables: no embedding found"):
        Embedded.of(dense, solver, 1)


@pytest.mark.process
def test_an_embedding_is_the_same_in_every_process(solver: StructuredSolver) -> None:
    bqm = BinaryQuadraticModel.from_serializable(example_bqm())
    bqm.add_variable("alone", 1.0)
    one = Embedded.of(bqm, solver, 7)
    embedding._search.cache_clear()
    other = Embedded.of(bqm, solver, 7)
    assert one.chains is not None
    assert one.chains == other.chains
    assert one.target == other.target
    assert set(one.chains) == {"a", "b", "c", "alone"}


def test_the_identity_is_where_problems_are() -> None:
    def identity(**connection: str) -> str:
        return DWaveQpu(
            "q", Connection(**{"endpoint": "http://a", **connection})
        ).identity

    here = identity(token="1", solver="s")
    assert identity(token="2", solver="s") == here
    assert identity(token="1", solver="other") != here
    assert identity(token="1", solver="s", endpoint="http://b") != here


@pytest.mark.parametrize("call", ["jobs", "release"])
@pytest.mark.parametrize(
    "body", ["<html>", [[]], [{"id": 5}], "[" * 300 + "]" * 300, "[" * 10**5, {}, ""]
)
def test_a_list_of_problems_that_is_none_is_a_qpu_error(
    scripted: Serve, solver: StructuredSolver, call: str, body: JSON
) -> None:
    replies: list[Reply] = [(200, body, PROBLEMS)] * 9
    qpu = misbehaving(scripted(replies).url, solver)
    with pytest.raises(QpuError, match=r"^QPU 'q'.*a malformed answer") as caught:
        getattr(qpu, call)("lease")
    assert "\n" not in str(caught.value)
