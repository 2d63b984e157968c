"""The errors of an emulated device, and the calibration they come from."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping

import pytest
from dimod import BinaryQuadraticModel, SampleSet, Vartype

from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Result, Task
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.emulator.computation import Computation
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.device_errors import Noise
from sf_quantum.service.device.emulator.settings import Faults
from sf_quantum.service.device.emulator.technologies import HOUR, TECHNOLOGIES
from sf_quantum.service.domain.jobs import Size


class Echo:
    """Answers each problem with all variables at 1, and keeps what it was given."""

    def __init__(self) -> None:
        self.given: list[BinaryQuadraticModel] = []
        self.parameters: Mapping[str, int | None] = {}

    def check(self, content: JSON, *, qubits: int) -> Size:
        raise FieldError("problem", "is not checked here")

    def run(self, computation: Computation, interrupted: object) -> Result:
        content = json.loads(computation.payload)
        noise, self.parameters = computation.noise, computation.parameters
        answer = noise.run_problem(content, self.echo) if noise else self.echo(content)
        return Result(json.dumps(answer))

    def echo(self, content: JSON) -> dict[str, JSON]:
        assert isinstance(content, dict)
        bqm = BinaryQuadraticModel.from_serializable(content)
        self.given.append(bqm)
        rows = [dict.fromkeys(bqm.variables, 1)] * (self.parameters["num_reads"] or 1)
        answer: dict[str, JSON] = SampleSet.from_samples_bqm(  # type: ignore[no-untyped-call]
            rows, bqm
        ).to_serializable()
        return answer


class Register(Echo):
    """Answers each sequence with 1000 times ten atoms, half of them excited."""

    def run(self, computation: Computation, interrupted: object) -> Result:
        assert computation.noise
        counter = computation.noise.misread({"0101010101": 1000})
        return Result(json.dumps({"counter": counter}))


def chain(labels: int = 40) -> BinaryQuadraticModel:
    """Biases of 2 at most, couplings of 1."""
    bqm = BinaryQuadraticModel("SPIN")
    for label in range(labels):
        bqm.add_linear(label, 2.0 if label % 2 else -1.0)
        if label:
            bqm.add_quadratic(label - 1, label, 1.0)
    return bqm


def run(
    device: EmulatedDevice, bqm: BinaryQuadraticModel, number: int = 1
) -> SampleSet:
    parameters = {"num_reads": 200, "seed": 7, "num_sweeps": 10}
    task = Task("t", "problem", json.dumps(bqm.to_serializable()), parameters, number)
    outcome = device.run(task, threading.Event())
    assert outcome.result is not None
    return SampleSet.from_serializable(json.loads(outcome.result.whole))  # type: ignore[no-untyped-call,no-any-return]


def biases_off(device: EmulatedDevice, bqm: BinaryQuadraticModel) -> list[float]:
    """How far off the biases are that the device computes with."""
    echo = Echo()
    run(device.model_copy(update={"runners": {"problem": echo}}), bqm)
    (given,) = echo.given
    linear = [float(given.linear[label] - bqm.linear[label]) for label in bqm.variables]
    return linear + [
        float(given.quadratic[pair] - bqm.quadratic[pair]) for pair in bqm.quadratic
    ]


def spread(values: list[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


@pytest.fixture
def annealer() -> EmulatedDevice:
    return EmulatedDevice(time_scale=0, noise=1, seed=1, clock=lambda: 0.0, started=0.0)


def test_an_annealer_gets_the_biases_slightly_wrong(annealer: EmulatedDevice) -> None:
    off = biases_off(annealer, chain(500))
    # of the couplers' range, which those of the chain fill
    assert spread(off) == pytest.approx(0.01, rel=0.1)
    assert biases_off(
        annealer.model_copy(update={"noise": 3.0}), chain(500)
    ) == pytest.approx([3 * value for value in off])
    assert biases_off(annealer.model_copy(update={"noise": 0.0}), chain()) == [0.0] * 79


def test_what_it_gets_wrong_stays_with_the_qubit(annealer: EmulatedDevice) -> None:
    whole, part = chain(), chain(20)
    off = biases_off(annealer, whole)
    assert biases_off(annealer, part)[:20] == pytest.approx(off[:20])
    other = annealer.model_copy(update={"seed": 2})
    assert biases_off(other, whole) != off
    assert other.calibrations.present.id != annealer.calibrations.present.id
    assert (
        annealer.model_copy(update={"noise": 2.0}).calibrations.present
        == annealer.calibrations.present
    )


def test_errors_are_of_the_ranges_of_the_device(annealer: EmulatedDevice) -> None:
    """Also of biases that are not scaled to these."""
    whole = chain()
    fields = {label: 0.01 * bias for label, bias in whole.linear.items()}
    pairs = {pair: 0.01 * bias for pair, bias in whole.quadratic.items()}
    weak = BinaryQuadraticModel(fields, pairs, 0.0, Vartype.SPIN)
    noise = Noise(annealer.errors, annealer.calibrations.present, 1)
    errors = []
    for scaled in (True, False):
        programmed = noise._programmed(weak, scaled=scaled)
        errors.append(
            max(
                abs(bias - weak.quadratic[pair])
                for pair, bias in programmed.quadratic.items()
            )
        )
    assert errors[1] == pytest.approx(100 * errors[0], rel=0.01)


def test_energies_are_the_true_ones(annealer: EmulatedDevice) -> None:
    for bqm in (chain(), chain().change_vartype(Vartype.BINARY, inplace=False)):
        found = run(annealer.model_copy(update={"noise": 20.0}), bqm)
        assert found.vartype is bqm.vartype
        assert found.record.energy == pytest.approx(bqm.energies(found))
        assert run(annealer.model_copy(update={"noise": 20.0}), bqm) == found


def test_gates_and_atoms_misread_bits() -> None:
    bqm = chain(100)
    for technology in ("superconducting", "neutral-atom"):
        errors = TECHNOLOGIES[technology].errors
        echoing = EmulatedDevice(
            name="q",
            technology=technology,
            time_scale=0,
            noise=1,
            seed=1,
            runners={"problem": Echo()},
            clock=lambda: 0.0,
            started=0.0,
        )
        found = run(echoing, bqm)
        zeros = float((found.record.sample < 0).mean())
        assert zeros == pytest.approx(errors.false_zero, rel=0.2)
        assert found.record.energy == pytest.approx(bqm.energies(found))
        assert run(echoing, bqm) == found
        assert run(echoing, bqm, number=2) != found
        ideal = run(echoing.model_copy(update={"noise": 0.0}), bqm)
        assert (ideal.record.sample == 1).all()


def test_atoms_of_a_sequence_are_misread_too() -> None:
    device = EmulatedDevice(
        technology="neutral-atom",
        time_scale=0,
        noise=1,
        seed=1,
        runners={"sequence": Register()},
    )
    task = Task("t", "sequence", '""', {"num_reads": 1000}, 1)
    result = device.run(task, threading.Event()).result
    assert result is not None
    counter = json.loads(result.text)["counter"]
    assert isinstance(counter, dict)
    counts = {word: count for word, count in counter.items() if isinstance(count, int)}
    assert sum(counts.values()) == 1000
    ones = [sum(n for word, n in counts.items() if word[bit] == "1") for bit in (0, 1)]
    assert ones == [pytest.approx(10, abs=12), pytest.approx(950, abs=30)]


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_errors_drift_and_a_calibration_is_renewed(clock: Clock) -> None:
    device = EmulatedDevice(time_scale=0, noise=1, seed=1, clock=clock, started=0.0)
    first, bqm = device.calibrations.present, chain(500)
    fresh = biases_off(device, bqm)
    clock.seconds = 0.99 * HOUR
    assert device.calibrations.present.id == first.id
    drifted = biases_off(device, bqm)
    assert drifted != fresh
    assert spread(drifted) > 1.2 * spread(fresh)
    clock.seconds = 1.01 * HOUR
    assert device.calibrations.present.id != first.id
    assert device.calibrations.data.time == "1970-01-01T01:00:00+00:00"
    renewed = biases_off(device, bqm)
    assert spread(renewed) == pytest.approx(spread(fresh), rel=0.1)
    assert renewed != fresh


def test_read_out_drifts_too(clock: Clock) -> None:
    device = EmulatedDevice(
        technology="superconducting",
        time_scale=0,
        noise=1,
        seed=1,
        clock=clock,
        started=0.0,
        calibration_seconds=10,
        runners={"problem": Echo()},
    )
    zeros = []
    for clock.seconds in (0.0, 9.99, 10.0):
        zeros.append(float((run(device, chain(100)).record.sample < 0).mean()))
    assert zeros[1] == pytest.approx(2 * zeros[0], rel=0.1)
    assert zeros[2] == zeros[0]


def test_the_time_scale_compresses_the_calibration_too(clock: Clock) -> None:
    device = EmulatedDevice(time_scale=0.01, clock=clock, started=0.0)
    first = device.calibrations.present.id
    clock.seconds = 35.0
    assert device.calibrations.present.id == first
    clock.seconds = 37.0
    assert device.calibrations.present.id != first


def test_a_wrong_calibration_until_it_is_renewed(clock: Clock) -> None:
    faults = Faults(calibration=0.5)
    device = EmulatedDevice(
        time_scale=0, noise=1, seed=1, clock=clock, started=0.0, faults=faults
    )
    wrong = []
    for hour in range(40):
        clock.seconds = hour * HOUR
        wrong.append(spread(biases_off(device, chain())) > 0.1)
        assert device.calibrations.present.faulty is wrong[-1]
    assert 10 < sum(wrong) < 30
