"""D-Wave's stock client on a real annealer behind our service; its vendor is a second one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

import pytest

from sf_quantum.files import JSON, mapping
from sf_quantum.samplers.problem import document
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.vendor.device import QpuDevice
from sf_quantum.service.dialects.large_bodies import LARGE_BYTES
from tests.support.service import RunningService, running_service
from tests.support.waiting import SECONDS

if TYPE_CHECKING:
    from dimod import SampleSet
    from dwave.cloud.solver import StructuredSolver

# the vendor is an emulated one in any case
pytestmark = [pytest.mark.process, pytest.mark.devices]

cloud = pytest.importorskip("dwave.cloud", reason="the extra dwave is not installed")
pytest.importorskip("dwave.system", reason="the extra dwave is not installed")
SETTING = {"time_scale": 0, "qubits": 40, "seed": 3}


@pytest.fixture(scope="module")
def vendor() -> Iterator[RunningService]:
    with running_service(EmulatedDevice.model_validate(SETTING), tcp=True) as running:
        yield running


@pytest.fixture(scope="module")
def service(
    vendor: RunningService, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("front")
    (folder / "token").write_text("any")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DWAVE_CACHE_HOME", str(folder / "cache"))
        device = QpuDevice.from_config(
            {
                "qpu": "dwave",
                "name": "front",
                "poll_seconds": 0.01,
                "config": {
                    "url": f"{vendor.url}/sapi/v2",
                    "tokenFile": str(folder / "token"),
                },
            }
        )
        device.refresh()
        with running_service(device, tcp=True) as running:
            yield running


def sampled(solver: StructuredSolver, **parameters: JSON) -> SampleSet:
    qubits = {qubit: 0.0 for qubit in sorted(solver.nodes)[:3]}
    found: SampleSet = solver.sample_ising(
        qubits, {}, num_reads=5, **parameters
    ).sampleset
    assert found.record.num_occurrences.sum() == 5
    return found


def received(service: RunningService) -> dict[str, JSON]:
    """The parameters of the latest problem, as a service tells them."""
    job = service.queue.store.jobs.latest()[-1]
    told = service.ask("GET", f"/sapi/v2/problems/{job.id}/info").json()
    return mapping(told["params"])


def each(value: JSON, solver: StructuredSolver) -> JSON:
    return [value] * int(solver.properties["num_qubits"])


REVERSE: JSON = [[0.0, 1.0], [5.0, 0.4], [30.0, 1.0]]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"annealing_time": 50.0},
        {"anneal_schedule": [[0.0, 0.0], [10.0, 0.5], [30.0, 1.0]]},
        {
            "anneal_schedule": REVERSE,
            "initial_state": 1,
            "reinitialize_state": False,
        },
        {"h_gain_schedule": [[0.0, 0.0], [20.0, 1.0]], "auto_scale": False},
        {"flux_biases": 1e-5, "anneal_offsets": 0.01},
        {"fast_anneal": True, "annealing_time": 0.01},
        {"programming_thermalization": 10.0, "readout_thermalization": 20.0},
        {"reduce_intersample_correlation": True, "flux_drift_compensation": False},
    ],
)
def test_the_vendor_is_sent_what_the_client_gave(
    service: RunningService,
    vendor: RunningService,
    solver: StructuredSolver,
    given: dict[str, JSON],
) -> None:
    arrays = ("initial_state", "flux_biases", "anneal_offsets")
    given = {
        name: each(value, solver) if name in arrays else value
        for name, value in given.items()
    }
    found = sampled(solver, **given)
    assert received(vendor) == {"num_reads": 5, **given}
    # and this is what the client is told that it was
    assert received(service) == {"num_reads": 5, **given}
    assert found.info["timing"]["qpu_access_time"] > 0


def test_the_answer_is_as_the_client_wants_it(
    vendor: RunningService, solver: StructuredSolver
) -> None:
    assert len(sampled(solver, answer_mode="raw").record) == 5
    # a vendor's raw answer may leave out what D-Wave's client needs to read it
    assert received(vendor) == {"num_reads": 5}


def test_the_solver_is_described_as_its_vendor_does(
    vendor: RunningService, solver: StructuredSolver
) -> None:
    (told,) = json.loads(vendor.ask("GET", "/sapi/v2/solvers/remote/").body)
    assert solver.properties == told["properties"]
    assert solver.name == "front"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"beta": 3.0}, "params.beta: not a parameter of this solver"),
        ({"annealing_time": 1e5}, "annealing_time: .* takes 0.5 to 2000"),
        ({"annealing_time": 1.0, "fast_anneal": 3}, "fast_anneal: "),
        ({"flux_biases": [0.0]}, "flux_biases: has 1 values for 48 qubits"),
        (
            {"readout_thermalization": 9e3, "num_reads": 1000},
            r"problem_run_duration: .* takes 0 to 1e\+06",
        ),
    ],
)
def test_parameters_the_solver_lacks_are_refused_unqueued(
    service: RunningService,
    vendor: RunningService,
    solver: StructuredSolver,
    given: dict[str, JSON],
    words: str,
) -> None:
    before = len(service.queue.store.jobs.latest()), len(
        vendor.queue.store.jobs.latest()
    )
    solver.parameters.update(dict.fromkeys(given))  # the client does not check them
    with pytest.raises(cloud.exceptions.SolverFailureError, match=words):
        solver.sample_ising({min(solver.nodes): 1.0}, {}, **given).result()
    after = len(service.queue.store.jobs.latest()), len(
        vendor.queue.store.jobs.latest()
    )
    assert after == before


@pytest.mark.parametrize("note", [0, LARGE_BYTES], ids=["small", "large"])
def test_a_problem_of_our_own_api_names_them_too(
    service: RunningService, vendor: RunningService, note: int
) -> None:
    lease = service.acquire()

    def submitted(key: str, parameters: dict[str, JSON]) -> tuple[int, str]:
        problem = document(["a", "b"], [1.0, 1.0], [(0, 1)], [-1.0], "SPIN")
        info: dict[str, JSON] = {"solver_parameters": parameters, "note": "n" * note}
        body: dict[str, JSON] = {
            "problem": {**problem, "info": info},
            "parameters": {"num_reads": 7},
            "idempotency_key": f"{key}-{note}",
        }
        answer = service.ask("POST", "/v1/jobs", body, lease=lease)
        return answer.status, answer.body.decode()

    status, text = submitted("known", {"annealing_time": 30.0})
    assert status == 201, text
    service.until(lease, "Completed")
    assert received(vendor) == {"num_reads": 7, "annealing_time": 30.0}
    status, text = submitted("unknown", {"beta": 1})
    assert status == 422
    assert json.loads(text)["detail"] == "not a parameter of this solver"
    service.ask("DELETE", f"/v1/leases/{lease}")


def given_parameters(random: Random) -> dict[str, JSON]:
    """Return solver parameters that lengthen a job, or shorten it."""
    given: dict[str, JSON] = {}
    if random.random() < 0.4:
        given["annealing_time"] = random.choice([0.5, 3.0, 20.0, 77.7, 2000.0])
    elif random.random() < 0.5:
        end = random.choice([2.0, 30.5, 1999.0])
        given["anneal_schedule"] = [[0.0, 0.0], [end, 1.0]]
    if random.random() < 0.5:
        given["readout_thermalization"] = random.choice([0.0, 11.0, 900.5])
    if random.random() < 0.5:
        given["programming_thermalization"] = random.choice([0.0, 1.5, 9000.0])
    return given


@pytest.mark.parametrize("seed", range(8))
def test_a_job_has_the_same_cost_in_each_api(
    service: RunningService, solver: StructuredSolver, seed: int
) -> None:
    random = Random(seed)
    listed = [given_parameters(random) for _ in range(3)]
    reads, queue = random.randrange(1, 300), service.queue
    expected = []
    for given in listed:
        field = {min(solver.nodes): 1.0}
        solver.sample_ising(field, {}, num_reads=reads, **given).result()
        expected.append(queue.store.jobs.latest()[-1].model_seconds)
    usual = queue.device.cost({"num_reads": reads}).qpu_seconds
    assert any(seconds != usual for seconds in expected)
    # the lease of the problems over SAPI ends soon
    asked: dict[str, JSON] = {"job": "test", "wait": SECONDS}
    lease = str(service.ask("POST", "/v1/leases", asked).json()["id"])
    bqms: list[JSON] = [
        {**document(["a"], [1.0], [], [], "SPIN"), "info": {"solver_parameters": given}}
        for given in listed
    ]
    bodies: list[JSON] = [*bqms, bqms]
    for number, problem in enumerate(bodies):
        for note in ("", "n" * LARGE_BYTES):
            body: dict[str, JSON] = {
                "problem": problem,
                "parameters": {"num_reads": reads},
                "idempotency_key": f"{seed}-{number}-{len(note)}",
            }
            text = json.dumps(body) + " " * len(note)
            answer = service.ask(
                "POST",
                "/v1/jobs",
                text.encode(),
                lease=lease,
                headers={"Content-Type": "application/json"},
            )
            assert answer.status == 201, answer.body
            told = queue.store.jobs.get(str(answer.json()["id"]))
            assert told is not None
            whole = sum(expected) if problem is bqms else expected[number]
            assert told.model_seconds == pytest.approx(whole, rel=1e-6)
    service.ask("DELETE", f"/v1/leases/{lease}")


def test_sweeps_cost_the_annealing_time_that_they_become(
    service: RunningService, vendor: RunningService
) -> None:
    lease = service.acquire()
    body: dict[str, JSON] = {
        "problem": document(["a"], [1.0], [], [], "SPIN"),
        "parameters": {"num_reads": 100, "num_sweeps": 5000},
        "idempotency_key": "sweeps",
    }
    answer = service.ask("POST", "/v1/jobs", body, lease=lease)
    assert answer.status == 201
    service.until(lease, "Completed")
    assert received(vendor)["annealing_time"] == 1000.0
    job = service.queue.store.jobs.latest(lease=lease)[0]
    usual = service.queue.device.cost({"num_reads": 100}).qpu_seconds
    assert job.model_seconds == pytest.approx(usual + 100 * 980e-6)
    for name, number, words in (
        ("num_sweeps", 100_000, "annealing_time: 20000 is out of range"),
        ("num_reads", 2000, "problem_run_duration: 2.001e+06 is out of range"),
    ):
        parameters: dict[str, JSON] = {
            "num_reads": 10,
            "num_sweeps": 5000,
            name: number,
        }
        again = {**body, "parameters": parameters, "idempotency_key": name}
        answer = service.ask("POST", "/v1/jobs", again, lease=lease)
        assert answer.status == 422, answer.body
        told = answer.json()
        assert told["field"] == f"parameters.{name}"
        assert str(told["detail"]).startswith(words)
    service.ask("DELETE", f"/v1/leases/{lease}")


def test_an_emulated_annealer_does_not_take_them_silently(
    vendor: RunningService,
) -> None:
    lease = vendor.acquire()
    problem = document(["a"], [1.0], [], [], "SPIN")
    info: dict[str, JSON] = {"solver_parameters": {"annealing_time": 30.0}}
    body: dict[str, JSON] = {
        "problem": {**problem, "info": info},
        "idempotency_key": "given",
    }
    answer = vendor.ask("POST", "/v1/jobs", body, lease=lease)
    assert answer.status == 422
    assert answer.json()["field"] == "problem.info.solver_parameters"
    vendor.ask("DELETE", f"/v1/leases/{lease}")
