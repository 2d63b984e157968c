"""The solver parameters of D-Wave's annealers: each one's effect, by the stock client."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest

from sf_quantum.files import JSON
from sf_quantum.service.device.emulator.annealing_sampler import FLUX
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support import sapi_bqms
from tests.support.distributions import LEAST
from tests.support.service import RunningService, running_service

if TYPE_CHECKING:
    from dimod import SampleSet
    from dwave.cloud.solver import StructuredSolver
    from numpy.typing import NDArray

# another service does not know its vendor's parameters
pytestmark = [pytest.mark.process, pytest.mark.devices]

cloud = pytest.importorskip("dwave.cloud", reason="the extra dwave is not installed")
api = importlib.import_module("dwave.cloud.api")
exceptions = importlib.import_module("dwave.cloud.exceptions")

READS = 200
Fields = dict[int, float]
Couplings = dict[tuple[int, int], float]


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    device = EmulatedDevice(time_scale=0, qubits=100, seed=3)
    with running_service(device, tcp=True) as running:
        yield running


def sampled(
    solver: StructuredSolver,
    fields: Fields,
    couplings: Couplings | None = None,
    /,
    **parameters: JSON,
) -> SampleSet:
    found: SampleSet = solver.sample_ising(
        fields,
        couplings or {},
        **{"num_reads": READS, "answer_mode": "raw", **parameters},
    ).sampleset
    # a refusal is raised here
    assert len(found.record)
    return found


def spins(found: SampleSet) -> NDArray[numpy.float64]:
    """The mean spin of each read."""
    means: NDArray[numpy.float64] = found.record.sample.mean(axis=1)
    return means


def access(found: SampleSet) -> float:
    return float(found.info["timing"]["qpu_access_time"])


def chain(solver: StructuredSolver, length: int) -> list[int]:
    """Qubits each of which is coupled to the next."""
    edges = {frozenset(edge) for edge in solver.undirected_edges}
    qubits = [min(solver.nodes)]
    while len(qubits) < length:
        qubits.append(
            next(
                node
                for node in sorted(solver.nodes)
                if node not in qubits and {qubits[-1], node} in edges
            )
        )
    return qubits


def metastable(solver: StructuredSolver) -> tuple[Fields, Couplings, JSON]:
    """A chain of spins that a field turns down, all of them up: a local minimum."""
    qubits = chain(solver, 6)
    state: list[JSON] = [3] * solver.properties["num_qubits"]
    for qubit in qubits:
        state[qubit] = 1
    pairs = pairwise(qubits)
    return dict.fromkeys(qubits, 0.15), dict.fromkeys(pairs, -1.0), state


def glass(solver: StructuredSolver) -> tuple[Fields, Couplings]:
    """A frustrated problem of all qubits."""
    edges = sorted(solver.undirected_edges)
    return dict.fromkeys(sorted(solver.nodes), 0.0), {
        edge: (-1.0) ** sum(edge) for edge in edges
    }


def reversal(depth: float) -> JSON:
    return [[0.0, 1.0], [5.0, depth], [15.0, depth], [20.0, 1.0]]


def test_a_reverse_annealing_starts_from_its_state(solver: StructuredSolver) -> None:
    fields, couplings, state = metastable(solver)
    means = {
        depth: spins(
            sampled(
                solver,
                fields,
                couplings,
                anneal_schedule=reversal(depth),
                initial_state=state,
            )
        ).mean()
        for depth in (0.9, 0.0)
    }
    # it stays near its state, or forgets it
    assert means[0.9] > 0.5
    assert means[0.0] < -0.5
    # as a dictionary, and of a QUBO
    qubo = {(one, one): 1.0 for one in fields}
    found = solver.sample_qubo(
        qubo,
        initial_state=dict.fromkeys(fields, 1),
        anneal_schedule=[[0.0, 1.0], [1.0, 1.0]],
    ).sampleset
    assert found.first.energy == 0.0


def test_a_read_may_start_from_the_last_one(solver: StructuredSolver) -> None:
    fields, couplings, state = metastable(solver)
    up = {}
    for again in (True, False):
        found = sampled(
            solver,
            fields,
            couplings,
            anneal_schedule=reversal(0.6),
            initial_state=state,
            reinitialize_state=again,
        )
        up[again] = spins(found)[READS // 2 :] > 0
    # once it has fallen it does not come back
    assert up[True].mean() > 0.1
    assert up[False].mean() < up[True].mean() / 2


def test_a_schedule_has_its_time_and_its_result(solver: StructuredSolver) -> None:
    energies, times = {}, {}
    schedules: dict[str, JSON] = {
        "usual": [[0.0, 0.0], [20.0, 1.0]],
        "slow": [[0.0, 0.0], [400.0, 1.0]],
        # hot for most of its time
        "late": [[0.0, 0.0], [19.5, 0.02], [20.0, 1.0]],
    }
    for name, schedule in schedules.items():
        found = sampled(solver, *glass(solver), anneal_schedule=schedule)
        energies[name] = float(found.record.energy.mean())
        times[name] = access(found)
    assert energies["slow"] < energies["usual"] < energies["late"]
    assert times["slow"] - times["usual"] == pytest.approx(READS * 380)
    assert times["late"] == times["usual"]


def test_biases_are_scaled_unless_that_is_refused(solver: StructuredSolver) -> None:
    weak = dict.fromkeys(chain(solver, 8), 0.04)
    scaled, unscaled = (
        spins(sampled(solver, weak, auto_scale=scale)).mean() for scale in (True, False)
    )
    assert scaled < -0.95
    assert abs(unscaled) < 0.2
    assert spins(sampled(solver, weak)).mean() < -0.95


def test_the_gain_of_linear_biases(solver: StructuredSolver) -> None:
    fields = dict.fromkeys(chain(solver, 8), 4.0)
    means = [
        spins(
            sampled(solver, fields, h_gain_schedule=[[0.0, 0.0], [20.0, gain]])
        ).mean()
        for gain in (-1.0, 0.0, 1.0)
    ]
    assert means[0] > 0.9
    assert abs(means[1]) < 0.1
    assert means[2] < -0.9


def test_flux_biases_are_fields(solver: StructuredSolver) -> None:
    one, other, third = chain(solver, 3)
    biases: list[JSON] = [0.0] * solver.properties["num_qubits"]
    biases[one], biases[other] = 1e-3, -1e-3
    found = sampled(solver, dict.fromkeys((one, other, third), 0.0), flux_biases=biases)
    means = dict(zip(found.variables, found.record.sample.mean(axis=0), strict=True))
    assert means[one] > 0.9
    assert means[other] < -0.9
    assert abs(means[third]) < 0.3


def test_drift_of_fluxes_is_corrected_by_device_or_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DWAVE_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DWAVE_CONFIG_FILE", "")
    device = EmulatedDevice(time_scale=0, qubits=100, seed=3, noise=1)
    with ExitStack() as stack:
        service = stack.enter_context(running_service(device, tcp=True))
        client = cloud.Client.from_config(
            endpoint=f"{service.url}/sapi/v2", token="any"
        )
        spread = spreads(stack.enter_context(client).get_solver())
    assert spread[1] > 1.5 * spread[0]
    assert spread[1] > 1.3 * spread[2]


def spreads(solver: StructuredSolver) -> list[float]:
    """How far mean spins are apart, of fluxes that are corrected, not, or by hand."""
    fields = dict.fromkeys(sorted(solver.nodes), 0.0)

    def means(**parameters: JSON) -> dict[int, float]:
        found = sampled(solver, fields, num_reads=2000, **parameters)
        mean = found.record.sample.mean(axis=0)
        return dict(zip(found.variables, map(float, mean), strict=True))

    corrected = means()
    drifted = means(flux_drift_compensation=False)
    # the procedure of D-Wave's documentation, with the width that the emulator has
    biases: list[JSON] = [0.0] * solver.properties["num_qubits"]
    for qubit, mean in drifted.items():
        biases[qubit] = mean / FLUX
    by_hand = means(flux_drift_compensation=False, flux_biases=biases)
    found = corrected, drifted, by_hand
    return [float(numpy.std([*one.values()])) for one in found]


def test_a_qubit_that_is_annealed_later_is_less_cold(solver: StructuredSolver) -> None:
    (qubit,) = chain(solver, 1)
    offsets: list[JSON] = [0.0] * solver.properties["num_qubits"]
    excited = []
    for offset in (0.0, -0.5):
        offsets[qubit] = offset
        found = sampled(solver, {qubit: 1.0}, num_reads=1000, anneal_offsets=offsets)
        excited.append(int((spins(found) > 0).sum()))
    assert excited[1] > 3 * max(excited[0], 10)


def test_a_fast_annealing_is_shorter_and_worse(solver: StructuredSolver) -> None:
    problem = glass(solver)
    usual = sampled(solver, *problem)
    fast = sampled(solver, *problem, fast_anneal=True, annealing_time=0.01)
    assert access(usual) - access(fast) == pytest.approx(READS * 19.99)
    assert fast.info["timing"]["qpu_anneal_time_per_sample"] == 0.01
    assert fast.record.energy.mean() > usual.record.energy.mean() + 10


@pytest.mark.parametrize(
    ("parameters", "more"),
    [
        ({}, 0.0),
        ({"programming_thermalization": 5000.0}, 4000.0),
        ({"readout_thermalization": 100.0}, 100.0 * READS),
        # 500 us, and 9500 us for the longest annealing
        ({"reduce_intersample_correlation": True}, 595.0 * READS),
        (
            {"reduce_intersample_correlation": True, "readout_thermalization": 900.0},
            900.0 * READS,
        ),
        ({"anneal_schedule": [[0.0, 0.0], [20.5, 1.0]]}, 0.5 * READS),
        ({"annealing_time": 0.5}, -19.5 * READS),
    ],
)
def test_times_are_those_that_the_client_estimates(
    solver: StructuredSolver, parameters: dict[str, JSON], more: float
) -> None:
    qubit = min(solver.nodes)
    found = sampled(solver, {qubit: 1.0}, None, **parameters)
    assert access(found) == pytest.approx(18020 + READS * 85.86 + more)
    timing = found.info["timing"]
    whole = timing["qpu_programming_time"] + timing["qpu_sampling_time"]
    assert whole == pytest.approx(access(found))
    estimate = solver.estimate_qpu_access_time(
        num_qubits=1, num_reads=READS, **parameters
    )
    assert estimate == pytest.approx(access(found))


UP = [[0.0, 0.0], [20.0, 1.0]]
DOWN = [[0.0, 1.0], [20.0, 1.0]]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"annealing_time": 0.1}, r"annealing_time: 0.1 is not in the range \[0.5"),
        ({"annealing_time": 5.0, "anneal_schedule": UP}, "set only one of"),
        ({"anneal_schedule": UP[:1]}, r"between 2 and 12 points \(contains 1\)"),
        ({"anneal_schedule": [[0.0, 0.0], [1.0]]}, "should be a list of 2-tuples"),
        ({"anneal_schedule": [[1.0, 0.0], [2.0, 1.0]]}, "time t must equal 0"),
        ({"anneal_schedule": [[0.0, 0.0], [0.0, 1.0]]}, "Time t must increase"),
        ({"anneal_schedule": [[0.0, 0.0], [3e3, 1.0]]}, "maximum anneal time of 2000"),
        ({"anneal_schedule": [[0.0, 0.0], [5.0, 2.0], [9.0, 1.0]]}, "between 0 and 1"),
        ({"anneal_schedule": [[0.0, 0.0], [5.0, 0.5]]}, "the final point"),
        ({"anneal_schedule": [[0.0, 0.5], [5.0, 1.0]]}, "In the first point"),
        (
            {"anneal_schedule": [[0.0, 0.0], [5.0, 0.5], [6.0, 0.4], [9.0, 1.0]]},
            "must monotonically increase",
        ),
        ({"anneal_schedule": [[0.0, 0.0], [0.1, 1.0]]}, "maximum slope cannot exceed"),
        ({"anneal_schedule": DOWN}, "initial_state not provided"),
        ({"reinitialize_state": False}, "needs an initial_state"),
        ({"initial_state": [1] * 144}, "needs an anneal_schedule that starts"),
        ({"initial_state": [1], "anneal_schedule": DOWN}, "1 values for 144 qubits"),
        (
            {"initial_state": [0] * 144, "anneal_schedule": DOWN},
            "initial_state: expected -1, 1, or 3",
        ),
        ({"initial_state": [3] * 144, "anneal_schedule": DOWN}, "has no state"),
        ({"anneal_offsets": [0.0]}, "1 values for 144 qubits"),
        ({"anneal_offsets": [0.6] * 144}, r"0.6 of qubit 0 is not in the range"),
        ({"flux_biases": [0.0] * 143}, "143 values for 144 qubits"),
        ({"h_gain_schedule": [[0.0, 1.0], [20.0, 4.0]]}, "a gain is not in the range"),
        ({"h_gain_schedule": [[0.0, 1.0], [10.0, 1.0]]}, "the end of the anneal"),
        ({"h_gain_schedule": UP, "auto_scale": True}, "auto_scale must be false"),
        ({"h_gain_schedule": UP, "fast_anneal": True}, "have no h_gain_schedule"),
        ({"anneal_schedule": UP, "fast_anneal": True}, "have an annealing_time only"),
        ({"fast_anneal": True}, "fast anneals have no linear biases"),
        ({"fast_anneal": True, "annealing_time": 0.001}, r"range \[0.005"),
        ({"fast_anneal": 1}, "fast_anneal: Input should be a valid boolean"),
        ({"programming_thermalization": 1e5}, "programming_thermalization: Input"),
        ({"readout_thermalization": -1.0}, "readout_thermalization: Input"),
        ({"readout_thermalization": 1e4}, "Maximum problem-run duration exceeded"),
    ],
)
def test_wrong_parameters(
    solver: StructuredSolver, parameters: dict[str, JSON], words: str
) -> None:
    assert solver.properties["num_qubits"] == 144
    with pytest.raises(exceptions.SolverFailureError, match=words):
        sampled(solver, {min(solver.nodes): 1.0}, None, **parameters)


@pytest.mark.parametrize(
    ("field", "coupling"), [(4.1, 0.5), (1.0, 1.1), (1.0, -2.1), (1.0, 1.0)]
)
def test_biases_that_are_too_large_to_be_left_as_they_are(
    solver: StructuredSolver, field: float, coupling: float
) -> None:
    one, other = chain(solver, 2)
    couplings = {(one, other): coupling}
    if (field, coupling) == (1.0, 1.0):
        assert sampled(solver, {one: field, other: 0.0}, couplings, auto_scale=False)
        return
    with pytest.raises(exceptions.SolverFailureError, match="h must be in the range"):
        sampled(solver, {one: field, other: 0.0}, couplings, auto_scale=False)


def test_a_problem_can_be_submitted_again_with_its_parameters(
    service: RunningService, solver: StructuredSolver
) -> None:
    fields, couplings, state = metastable(solver)
    future = solver.sample_ising(
        fields,
        couplings,
        anneal_schedule=DOWN,
        initial_state=state,
        reinitialize_state=False,
        num_reads=2,
    )
    assert future.sampleset
    with api.Problems(endpoint=f"{service.url}/sapi/v2", token="any") as problems:
        told = problems.get_problem_info(future.id).params
        assert told == {
            "anneal_schedule": DOWN,
            "initial_state": state,
            "reinitialize_state": False,
            "num_reads": 2,
        }


def test_parameters_and_properties_are_those_of_a_real_annealer(
    solver: StructuredSolver,
) -> None:
    testing = importlib.import_module("dwave.system.testing")
    mock = testing.MockDWaveSampler(topology_type="pegasus")
    # the client adds these
    own = {"label", "warnings"}
    assert mock.parameters.keys() - solver.parameters.keys() == own
    assert mock.properties.keys() <= solver.properties.keys()
    for name, value in mock.properties.items():
        if name.endswith("_range"):
            assert [type(one) for one in solver.properties[name]] == [
                type(one) for one in value
            ]
            assert len(solver.properties[name]) == 2
    ranges = solver.properties["anneal_offset_ranges"]
    assert len(ranges) == solver.properties["num_qubits"]
    assert {tuple(ranges[qubit]) for qubit in solver.nodes} == {(-0.5, 0.5)}
    assert solver.has_anneal_schedule
    assert solver.has_flux_biases


@pytest.mark.parametrize("noise", [0.0, 1.0], ids=["ideal", "noisy"])
def test_random_bqms_have_their_energies(noise: float) -> None:
    with sapi_bqms.solver(noise) as annealer:
        for number in range(8):
            assert not sapi_bqms.wrong_over_sapi(annealer, number)


def test_random_schedules_have_their_distributions() -> None:
    with sapi_bqms.solver() as annealer:
        for number in range(4):
            assert sapi_bqms.schedule_p_value(annealer, number) > LEAST
