"""No body costs more than it weighs, and what is accepted does not fail for what it says."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, MAX_NESTING
from sf_quantum.samplers import problem
from sf_quantum.samplers.problem import FieldError, document
from sf_quantum.service.device.emulator.atoms import runner, simulation
from sf_quantum.service.device.processes.program import run
from tests.benchmarks import bodies
from tests.support.adversarial import SEQUENCE

FEW = settings(
    max_examples=150,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
PARAMETERS: dict[str, int | None] = {"num_reads": 2, "seed": 1, "num_sweeps": 2}
MAX_RADIANS = 10_000
NUMBERS = st.floats() | st.integers() | st.sampled_from([1e100, 1e308, 5e-324, 0.0])
SCALARS = st.text(max_size=3) | st.integers(-(2**70), 2**70) | st.floats()
LABELS = st.recursive(
    SCALARS | st.booleans() | st.none(), lambda inner: st.lists(inner, max_size=3)
)


@pytest.mark.service
@pytest.mark.parametrize(
    ("route", "sizes"),
    [
        # as small as are read on the event loop, and as large as in a thread
        ("problem", (64_000, 400_000)),
        ("lease", (64_000,)),
        ("sapi", (64_000, 200_000)),
        ("deflated", (8_000,)),
        ("tokens", (16_000,)),
        # Each takes a thirtieth of its bound, so that the size only matters to the loop.
        ("iqm", (4_000,)),
        ("circuit", (1_500,)),
        ("sequence", (1_500,)),
        ("warden", (1_500,)),
        ("photonic", (4_000,)),
    ],
)
def test_no_body_costs_more_than_it_weighs(route: str, sizes: Sequence[int]) -> None:
    wrong = [cost for cost in bodies.costs([route], sizes) if cost.too_much]
    assert not wrong, "\n".join(map(str, [bodies.TITLES, *wrong]))


def test_labels_with_one_hash_are_refused() -> None:
    """Python hashes tuples without a secret: a set of these takes quadratic time."""
    from itertools import islice

    from tests.support.adversarial import colliding

    labels: list[JSON] = [[*pair] for pair in islice(colliding(), 1000)]
    assert len({hash(tuple(label)) for label in labels if isinstance(label, list)}) == 1
    with pytest.raises(FieldError, match="1000 labels have the same hash; at most 64"):
        problem.check(document(labels, [0.0] * 1000, [], [], "SPIN"))


@FEW
@given(
    labels=st.lists(LABELS, min_size=1, max_size=4),
    biases=st.lists(NUMBERS, min_size=8, max_size=8),
    vartype=st.sampled_from(["SPIN", "BINARY"]),
)
@pytest.mark.filterwarnings("ignore")
def test_an_accepted_problem_runs(
    labels: list[JSON], biases: list[float], vartype: str
) -> None:
    number = len(labels)
    pairs = [(n, n + 1) for n in range(number - 1)]
    bqm = document(
        labels, biases[:number], pairs, biases[4 : 3 + number], vartype, biases[7]
    )
    try:
        problem.check(bqm)
    except FieldError:
        assume(False)
    answer = run(json.dumps(bqm), "problem", PARAMETERS)
    # what other programs can read, too
    json.dumps(answer, allow_nan=False)
    read = problem.check(json.loads(json.dumps(bqm)))
    assert len(read["variable_labels"]) == number  # type: ignore[arg-type]


def _mock(register: list[JSON], operation: dict[str, JSON]) -> str:
    from pulser.devices import MockDevice

    parts: dict[str, JSON] = {"register": register, "operations": [operation]}
    device = json.loads(MockDevice.to_abstract_repr())
    channels: JSON = {"g": "rydberg_global"}
    return json.dumps({**SEQUENCE, **parts, "device": device, "channels": channels})


@pytest.mark.skipif(not runner.available(), reason="pulser is not installed")
@settings(FEW, max_examples=25)
@given(
    distance=st.floats() | st.floats(1.0, 10.0),
    duration=st.integers(1, 100),
    values=st.lists(NUMBERS | st.floats(-20, 20), min_size=4, max_size=4),
)
@pytest.mark.filterwarnings("ignore")
def test_an_accepted_sequence_runs(
    distance: float, duration: int, values: list[float]
) -> None:
    amplitude, detuning, phase, shift = values
    operation: dict[str, JSON] = {
        **SEQUENCE["operations"][0],
        "amplitude": {"kind": "constant", "duration": duration, "value": amplitude},
        "detuning": {"kind": "constant", "duration": duration, "value": detuning},
        "phase": phase,
        "post_phase_shift": shift,
    }
    register: list[JSON] = [
        {"name": "a", "x": 0.0, "y": 0.0},
        {"name": "b", "x": distance, "y": 0.0},
    ]
    text = _mock(register, operation)
    try:
        told = simulation.check(json.dumps(text), 10)
    except InputError:
        assume(False)
    # others would take too long, for which the limits of the device refuse them
    assume(int(str(told["radians"])) < MAX_RADIANS)
    counter = simulation.simulate(text, {"num_reads": 3, "seed": 1}, 8)
    assert sum(counter.values()) == 3


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("depth", [MAX_NESTING + 1, 100_000])
def test_a_deep_sequence_is_refused(opening: str, closing: str, depth: int) -> None:
    if not runner.available():
        pytest.skip("pulser is not installed")
    text = opening * depth + "1" + closing * depth
    with pytest.raises(InputError, match=f"nested more than {MAX_NESTING} deep"):
        simulation.check(json.dumps(text), 10)
