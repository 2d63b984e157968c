"""D-Wave's stock client on a real annealer behind our service; its vendor is a second one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sf_quantum.files import JSON, mapping
from sf_quantum.samplers.problem import document
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.vendor.device import QpuDevice
from sf_quantum.service.dialects.large_bodies import LARGE_BYTES
from tests.support.service import RunningService, running_service

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
