"""D-Wave's Ocean tools from PyPI, unmodified, on ``sfq serve``: SAPI over our queue."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sf_quantum.net.transport import Client as Http
from sf_quantum.service.device.emulator import topology
from tests.support.ocean import Ocean, api, clique, lowest
from tests.support.waiting import SECONDS, until

if TYPE_CHECKING:
    pass

pytestmark = [pytest.mark.process, pytest.mark.devices("sfq", "dwave")]

exceptions = importlib.import_module("dwave.cloud.exceptions")

SMALL = ["--time-scale", "0", "--qubits", "100", "--noise", "0", "--seed", "3"]
Start = Callable[..., "Ocean"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client keeps what it knows of solvers in the user's folder."""
    monkeypatch.setenv("DWAVE_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DWAVE_CONFIG_FILE", "")


@pytest.fixture(scope="module")
def ocean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ocean]:
    """A service with a Pegasus graph that does not wait."""
    made = Ocean(tmp_path_factory.mktemp("ocean"), *SMALL)
    yield made
    made.service.end()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a service of a test's own."""
    made: list[Ocean] = []

    def run(*options: str) -> Ocean:
        made.append(Ocean(tmp_path / str(len(made)), *options))
        return made[-1]

    yield run
    for one in made:
        one.service.end()


def test_a_second_look_at_the_solver_sends_no_request_for_it(
    start: Start, tmp_path: Path
) -> None:
    ocean = start(*SMALL, "--topology", "zephyr", "--log", "info")

    def requests() -> list[str]:
        lines = (tmp_path / "0" / "log").read_text().splitlines()
        found = [line for line in lines if "route=/sapi/v2/solvers/remote" in line]
        return [line.split("status=")[1][:3] for line in found]

    for _ in range(2):
        with ocean.client() as client:
            (solver,) = client.get_solvers()
            # only Zephyr has these
            assert solver.properties["topology"]["type"] == "zephyr"
            assert solver.graph_id == topology.working("zephyr", 100, frozenset()).id
    # what it is and how busy it is; then how busy it is, which has not changed
    until(lambda: len(requests()) == 3, "the log")
    assert requests() == ["200", "200", "304"]


def test_cliques_are_embedded_in_zephyr(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = pytest.importorskip("dwave.system")
    ocean = start(*SMALL, "--topology", "zephyr")
    for name, value in (("ENDPOINT", ocean.endpoint), ("TOKEN", ocean.token)):
        monkeypatch.setenv(f"DWAVE_API_{name}", value)
    with system.DWaveCliqueSampler(solver={"topology__type": "zephyr"}) as sampler:
        bqm = clique(size := sampler.largest_clique_size)
        assert size >= 8
        samples = sampler.sample(clique(8), num_reads=50)
        assert samples.first.energy == pytest.approx(lowest(clique(8)))
        assert len(sampler.sample(bqm, num_reads=1).variables) == size


def test_solvers(ocean: Ocean) -> None:
    graph = topology.working("pegasus", 100, frozenset())
    with ocean.client() as client:
        (solver,) = client.get_solvers()
        assert (solver.name, solver.qpu, solver.online) == ("emulator", True, True)
        assert solver.graph_id == graph.id
        assert solver.nodes == set(graph.qubits)
        # those of P3, as a D-Wave annealer counts those that it lacks
        assert (solver.num_active_qubits, solver.num_qubits) == (100, 144)
        assert solver.undirected_edges == set(graph.couplers)
        assert solver.properties["topology"] == {"type": "pegasus", "shape": [3]}
        again = client.get_solver(name="emulator", refresh=True)
        assert again.identity == solver.identity
        named = client.get_solver(topology__type="pegasus", num_active_qubits__gt=99)
        assert named.name == "emulator"
        with pytest.raises(exceptions.SolverNotFoundError):
            client.get_solver(name="another")
        with pytest.raises(exceptions.SolverNotFoundError):
            client.get_solver(topology__type="zephyr")


# it needs another technology
@pytest.mark.devices("sfq")
def test_no_annealer_no_solver(start: Start) -> None:
    atoms = start("--technology", "neutral-atom", "--time-scale", "0")
    with atoms.client() as client:
        assert client.get_solvers() == []


@pytest.mark.parametrize("compressed", [True, False])
def test_ising_and_qubo(ocean: Ocean, compressed: bool) -> None:
    with ocean.client(compress_qpu_problem_data=compressed) as client:
        solver = client.get_solver()
        u, v = min(solver.undirected_edges)
        future = solver.sample_ising(
            {u: -1.0, v: 0.5}, {(u, v): 0.75}, 2.5, label="mine", num_reads=20
        )
        found = future.sampleset
        found.resolve()
        assert future.label == found.info["problem_label"] == "mine"
        assert (found.first.sample, found.first.energy) == ({u: 1, v: -1}, 0.25)
        assert found.record.num_occurrences.sum() == 20
        timing = found.info["timing"]
        # 18.02 ms of set-up, and 105.86 us for each read
        assert timing["qpu_access_time"] == pytest.approx(18020 + 20 * 85.86)
        assert timing["qpu_sampling_time"] == pytest.approx(20 * 85.86)
        estimate = solver.estimate_qpu_access_time(num_qubits=2, num_reads=20)
        assert timing["qpu_access_time"] == pytest.approx(estimate)

        qubo = {(u, u): -1.0, (v, v): -1.0, (u, v): 2.5}
        found = solver.sample_qubo(qubo, num_reads=10, answer_mode="raw").sampleset
        assert found.vartype.name == "BINARY"
        assert found.record.energy == pytest.approx([-1.0] * 10)
        assert (found.record.num_occurrences == 1).all()
        again = client.retrieve_answer(future.id).sampleset
        assert again.first.energy == 0.25


def test_answers_added_up_and_cut(ocean: Ocean) -> None:
    with ocean.client() as client:
        solver = client.get_solver()
        qubits = sorted(solver.nodes)[:3]
        free = {qubit: 0.0 for qubit in qubits}
        found = solver.sample_ising(free, {}, num_reads=1000).sampleset
        # all eight states are as good
        assert len(found) == 8
        assert found.record.num_occurrences.sum() == 1000
        cut = solver.sample_ising(free, {}, num_reads=1000, max_answers=3).sampleset
        assert len(cut) == 3
        raw = {"num_reads": 9, "answer_mode": "raw", "max_answers": 4}
        assert len(solver.sample_ising(free, {}, **raw).sampleset) == 4


# it uses all qubits of the graph, of which the vendor counts fewer in its own interface
@pytest.mark.devices
def test_a_longer_annealing_takes_longer_and_is_better(ocean: Ocean) -> None:
    with ocean.client() as client:
        solver = client.get_solver()
        fields = dict.fromkeys(sorted(solver.nodes), 0.0)
        couplings = {
            edge: (-1.0) ** sum(edge) for edge in sorted(solver.undirected_edges)
        }
        energies, times = [], []
        for annealing_time in (0.5, 200.0):
            found = solver.sample_ising(
                fields, couplings, num_reads=100, annealing_time=annealing_time
            ).sampleset
            energies.append(float(found.data_vectors["energy"].mean()))
            times.append(found.info["timing"]["qpu_access_time"])
        assert times[1] - times[0] == pytest.approx(100 * 199.6, rel=0.01)
        assert energies[1] < energies[0] - 1


def test_many_problems_in_one_request(ocean: Ocean) -> None:
    with ocean.client() as client:
        solver = client.get_solver()
        qubit = min(solver.nodes)
        futures = [
            solver.sample_ising({qubit: float(n)}, {}, label=str(n)) for n in range(45)
        ]
        energies = [future.sampleset.first.energy for future in futures]
        assert energies == [-float(n) for n in range(45)]
        ids = [future.id for future in futures]
        assert len(set(ids)) == 45
    with ocean.problems() as problems:
        told = problems.get_problem_statuses(ids)
        assert [(one.id, one.label) for one in told] == [
            (id_, str(n)) for n, id_ in enumerate(ids)
        ]
        assert {one.status.value for one in told} == {"COMPLETED"}
        (found,) = problems.list_problems(label="44", max_results=5)
        assert found.id == ids[44]
        assert problems.list_problems(status="FAILED") == []
        assert problems.list_problems(solver="another") == []


def test_everything_of_a_problem_is_told_and_can_be_sent_again(ocean: Ocean) -> None:
    with ocean.client() as client:
        solver = client.get_solver()
        u, v = min(solver.undirected_edges)
        future = solver.sample_ising({u: 1.0}, {(u, v): -0.5}, 3.0, num_reads=7)
        future.result()
    with ocean.problems() as problems:
        info = problems.get_problem_info(future.id)
        assert info.metadata.submitted_by == "ada"
        assert info.params == {"num_reads": 7}
        assert problems.get_problem_messages(future.id) == []
        again = problems.submit_problem(api.models.ProblemJob.from_info(info))
        done = problems.get_problem(again.id, timeout=SECONDS)
        assert done.status.value == "COMPLETED"
        assert problems.get_problem_answer(again.id).energies == done.answer.energies
        with pytest.raises(api.exceptions.ResourceNotFoundError):
            problems.get_problem("0" * 32)
        with pytest.raises(api.exceptions.ResourceConflictError):
            problems.cancel_problem(future.id)
        (told,) = problems.cancel_problems([future.id])
        assert "COMPLETED already" in told.error_msg


def test_embedded_problems(ocean: Ocean) -> None:
    bqm = clique(6)
    config = {"endpoint": ocean.endpoint, "token": ocean.token}
    # takes a second to import
    system = importlib.import_module("dwave.system")
    with system.DWaveSampler(**config) as sampler:
        embedded = system.EmbeddingComposite(sampler)
        found = embedded.sample(bqm, num_reads=100, return_embedding=True)
        # resolved while the sampler's client is open
        best = found.first.energy
    assert best == pytest.approx(lowest(bqm))
    chains = found.info["embedding_context"]["embedding"]
    assert max(map(len, chains.values())) > 1


def test_errors_become_the_clients_own(ocean: Ocean) -> None:
    with pytest.raises(exceptions.SolverAuthenticationError):
        ocean.client(token="sfq_of-nobody").get_solver()
    with ocean.client() as client:
        solver = client.get_solver()
        qubit = min(solver.nodes)
        with pytest.raises(KeyError, match="nope is not a parameter"):
            solver.sample_ising({qubit: 1.0}, {}, nope=1)
        with pytest.raises(exceptions.SolverFailureError, match=r"num_reads.*10000"):
            solver.sample_ising({qubit: 1.0}, {}, num_reads=10001).result()
        with pytest.raises(exceptions.SolverFailureError, match="x_other"):
            solver.sample_ising({qubit: 1.0}, {}, x_other=1).result()
        with pytest.raises(exceptions.SolverFailureError, match="Maximum problem-run"):
            solver.sample_ising(
                {qubit: 1.0}, {}, num_reads=10000, annealing_time=2000
            ).result()
        with pytest.raises(exceptions.SolverFailureError, match="finite"):
            solver.sample_ising({qubit: float("inf")}, {}).result()
        with pytest.raises(exceptions.ProblemStructureError):
            solver.sample_ising({10**6: 1.0}, {})
        # a client that knows another graph, or another solver
        solver.identity.version.graph_id = "old"
        with pytest.raises(exceptions.SolverFailureError, match="fetch the solver"):
            solver.sample_ising({qubit: 1.0}, {}).result()
        solver.identity.version = None
        solver._encoding_qubits.append(99999)
        with pytest.raises(
            exceptions.SolverFailureError, match="has 101 numbers for 100 qubits"
        ):
            solver.sample_ising({qubit: 1.0}, {}).result()
        solver.identity.name = "another"
        with pytest.raises(exceptions.SolverFailureError, match="no solver 'another'"):
            solver.sample_ising({qubit: 1.0}, {}).result()


def test_a_wrong_problem_alone_has_a_status_of_its_own(ocean: Ocean) -> None:
    with ocean.client() as client:
        solver = client.get_solver()
        solver.sample_ising({min(solver.nodes): 1.0}, {}).result()
    with ocean.problems() as problems:
        data = {"format": "qp", "lin": "AAAA", "quad": "", "offset": 0}
        job = api.models.ProblemJob(
            data=data, params={}, solver={"name": "emulator"}, type="ising"
        )
        with pytest.raises(api.exceptions.ResourceBadRequestError, match=r"data\.lin"):
            problems.submit_problem(job)
        good, bad = job.model_copy(deep=True), job
        info = problems.list_problems(max_results=1)
        good.data = problems.get_problem_info(info[0].id).data
        told = problems.submit_problems([bad, good])
        assert told[0].error_code == 400
        assert told[1].status.value == "PENDING"


def test_faults_and_a_closed_qpu(start: Start) -> None:
    for faults, error in (
        ('{"offline": 1}', exceptions.SolverOfflineError),
        ('{"fail": 1}', exceptions.SolverFailureError),
    ):
        ocean = start(*SMALL, "--faults", faults)
        with ocean.client() as client:
            solver = client.get_solver()
            future = solver.sample_ising({min(solver.nodes): 1.0}, {})
            with pytest.raises(error, match="the QPU"):
                future.result()
    ocean.service.ask("POST", "/v1/device/close", {"message": "maintenance"})
    with ocean.client() as client:
        assert client.get_solvers(online=True) == []
        (solver,) = client.get_solvers(online=False)
        future = solver.sample_ising({min(solver.nodes): 1.0}, {})
        with pytest.raises(exceptions.SolverError, match=r"offline.*maintenance"):
            future.result()


def test_a_cancelled_problem_leaves_the_device(start: Start) -> None:
    # a job of 1000 reads takes 104 s here
    ocean = start("--time-scale", "1000", "--qubits", "40", "--noise", "0")
    with ocean.client() as client:
        solver = client.get_solver()
        running, waiting = (
            solver.sample_ising({min(solver.nodes): 1.0}, {}, num_reads=1000)
            for _ in range(2)
        )
        until(
            lambda: ocean.service.jobs() == ["Running", "Queued"],
            "one problem on the device, and one that waits",
        )
        assert len(ocean.leases(closed=False)) == 1
        for future in (waiting, running):
            future.cancel()
            with pytest.raises(exceptions.CanceledFutureError):
                future.result()
    assert ocean.service.jobs() == ["Cancelled", "Cancelled"]
    until(lambda: not ocean.leases(closed=False), "the end of the lease")
    (lease,) = ocean.leases()
    assert isinstance(lease, dict)
    assert (lease["user"], lease["reason"]) == ("ada", "its problems are over")


def test_it_waits_for_a_vqpu_like_everybody(start: Start) -> None:
    ocean = start(*SMALL)
    other = ocean.service.lease()
    with ocean.client() as client, ocean.problems() as problems:
        solver = client.get_solver()
        # acknowledged at once, also those that the device never had
        wanted, unwanted = (
            solver.sample_ising({min(solver.nodes): 1.0}, {}, num_reads=3)
            for _ in range(2)
        )
        ids = [future.wait_id(timeout=SECONDS) for future in (wanted, unwanted)]
        statuses = problems.get_problem_statuses(ids)
        assert [one.status.value for one in statuses] == ["PENDING", "PENDING"]
        # a wrong one is refused, whoever has the vQPU
        with pytest.raises(exceptions.SolverFailureError, match=r"params\.num_reads"):
            solver.sample_ising({min(solver.nodes): 1.0}, {}, num_reads=0).result()
        assert problems.cancel_problem(ids[1]).status.value == "CANCELLED"
        ocean.service.kill()
        ocean.service.start()
        assert problems.get_problem(ids[0]).status.value == "PENDING"
        ocean.service.release(other)
        assert wanted.sampleset.first.energy == -1.0
        with pytest.raises(exceptions.CanceledFutureError):
            unwanted.result()
    until(lambda: not ocean.leases(closed=False), "the end of the lease")
    # under a lease of another dialect, and as its owner
    with_token = Http(ocean.service.url, {"X-Auth-Token": ocean.token})
    mine = str(with_token.request("POST", "/v1/leases", {}).json()["id"])
    with ocean.client(headers=f"X-SFQ-Lease: {mine}") as client:
        future = client.get_solver().sample_ising({min(solver.nodes): 1.0}, {})
        assert future.sampleset.first.energy == -1.0
    told = with_token.request("GET", f"/v1/leases/{mine}").json()
    jobs = told["jobs"]
    assert isinstance(jobs, list)
    assert len(jobs) == 1
    assert told["held"] is True


def test_killed_and_started_again_it_goes_on(start: Start) -> None:
    ocean = start("--time-scale", "30", "--qubits", "40", "--noise", "0")
    with ocean.client() as client:
        solver = client.get_solver()
        qubit = min(solver.nodes)
        futures = [
            solver.sample_ising({qubit: 1.0}, {}, num_reads=100) for _ in range(2)
        ]
        # as soon as both are acknowledged
        ids = [future.wait_id(timeout=SECONDS) for future in futures]
    ocean.service.kill()
    ocean.service.start()
    with ocean.problems() as problems:
        for id_ in ids:
            assert (
                problems.get_problem(id_, timeout=SECONDS).status.value == "COMPLETED"
            )
    until(lambda: not ocean.leases(closed=False), "the end of the lease")


def test_cached_solvers_are_those_of_the_service(start: Start) -> None:
    """The client's cache does not know which service an answer came from."""
    sizes = []
    for qubits in ("100", "300", "300"):
        ocean = start("--qubits", qubits, "--time-scale", "0")
        with ocean.client() as client:
            sizes.append(client.get_solver().num_active_qubits)
    assert sizes == [100, 300, 300]
