"""Sequences of every kind on every way to the service, compared with Pulser alone."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import partial
from random import Random

import numpy as np
import pytest

from tests.support.folders import ROOT

pytest.importorskip("pulser_simulation", reason="pulser-simulation is not installed")

from pulser import Pulse, Register, Sequence
from pulser.backend.remote import JobParams
from pulser.devices import AnalogDevice, DigitalAnalogDevice, MockDevice
from pulser.json.abstract_repr.deserializer import _deserialize_parameter
from pulser.waveforms import ConstantWaveform

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.jobs import Size
from tests.support.distributions import LEAST, p_value
from tests.support.pulse_sequences import (
    FOR_CLIENTS,
    KINDS,
    Pulses,
    probabilities,
    random_sequence,
)
from tests.support.sequence_paths import by_backend, by_text, by_warden
from tests.support.service import RunningService, running_service
from tests.support.tutorial_sequences import RUN, made, parametrized, too_many_atoms

SHOTS = 20_000
DEVICE = EmulatedDevice(technology="neutral-atom", qubits=14, time_scale=0.0, seed=1)
PAIR = {"a": (0.0, 0.0), "b": (8.0, 0.0)}


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    """One service for all, which has no noise and does not wait."""
    with running_service(DEVICE) as running:
        yield running


@pytest.fixture(scope="module")
def lease(service: RunningService) -> str:
    return service.acquire()


@pytest.mark.parametrize("number", range(len(KINDS)), ids=[*KINDS])
def test_a_text_gives_what_pulser_gives(
    service: RunningService, lease: str, number: int
) -> None:
    sequence = random_sequence(number).sequence
    counts = by_text(service, lease, sequence, SHOTS)
    assert sum(counts.values()) == SHOTS
    assert p_value(counts, probabilities(sequence)) > LEAST


@pytest.mark.parametrize("kind", ["Rydberg and Raman", "XY, SLM mask", "EOM"])
def test_warden_gives_what_pulser_gives(
    service: RunningService, lease: str, kind: str
) -> None:
    sequence = random_sequence([*KINDS].index(kind) + len(KINDS)).sequence
    counts = by_warden(service, lease, sequence, SHOTS)
    assert p_value(counts, probabilities(sequence)) > LEAST


@pytest.mark.process
@pytest.mark.parametrize("kind", FOR_CLIENTS)
def test_pulsers_backend_gives_what_pulser_gives(
    service: RunningService, lease: str, kind: str
) -> None:
    one = random_sequence([*KINDS].index(kind) + 2 * len(KINDS))
    expected = probabilities(one.sequence)
    for counts in by_backend(service, lease, one, 2000):
        assert p_value(counts, expected) > LEAST


@pytest.mark.parametrize("tutorial", RUN)
def test_a_tutorials_sequence_gives_what_pulser_gives(
    service: RunningService, lease: str, tutorial: str
) -> None:
    sequence = made(RUN[tutorial])
    counts = by_text(service, lease, sequence, 5000)
    assert p_value(counts, probabilities(sequence)) > LEAST
    page = ROOT / "docs/reference/emulator.md"
    assert f"| {tutorial} |" in page.read_text()


def test_a_tutorials_sequence_that_does_not_run_says_why() -> None:
    assert refusal(made(too_many_atoms)) == "16 atoms do not fit on 14 qubits"
    # Pulser's own, before there is a text to submit
    with pytest.raises(TypeError, match="len"):
        made(partial(parametrized, target=True)).to_abstract_repr()


def checked(sequence: Pulses | str) -> Size:
    text = sequence if isinstance(sequence, str) else sequence.to_abstract_repr()
    return DEVICE.check("sequence", text, {"num_reads": 10})


def refusal(sequence: Pulses | str) -> str:
    with pytest.raises(FieldError) as caught:
        checked(sequence)
    assert "\n" not in caught.value.detail
    return caught.value.detail


def pulsed(
    register: Register, nanoseconds: int = 400, channels: str = "rydberg_global"
) -> Pulses:
    """A pulse on each channel, one after the other."""
    sequence: Pulses = Sequence(register, MockDevice)
    for channel in channels.split():
        target = None if channel.endswith("global") else register.qubit_ids[0]
        sequence.declare_channel(channel, channel, target)
        sequence.add(Pulse.ConstantPulse(nanoseconds, 6.0, 0.0, 0.0), channel)
    return sequence


def test_a_mark_of_the_byte_order_changes_nothing() -> None:
    text = pulsed(Register(PAIR)).to_abstract_repr()
    assert checked(f"\ufeff{text}") == checked(text)


def test_what_cannot_be_simulated_is_refused_beforehand() -> None:
    row = Register.rectangle(1, 10, spacing=8.0, prefix="q")
    both = "rydberg_global raman_global"
    assert refusal(pulsed(row, channels=both)) == (
        "10 atoms with Rydberg and Raman pulses; at most 9 can be simulated"
    )
    assert refusal(pulsed(Register(PAIR), 3)) == (
        "the sequence takes 3 ns; at least 4 can be simulated"
    )
    nowhere = json.loads(pulsed(Register(PAIR)).to_abstract_repr())
    nowhere["operations"][0]["detuning"]["value"] = math.nan
    assert "NaN is not a number of JSON" in refusal(json.dumps(nowhere))
    near = {"a": (0.0, 0.0), "b": (0.2, 0.0)}
    assert "at most 2,000,000,000 per job" in refusal(pulsed(Register(near)))


def phased(phase: JSON) -> str:
    """A sequence whose pulse has a phase, perhaps an expression."""
    content = json.loads(pulsed(Register(PAIR)).to_abstract_repr())
    content["operations"][0]["phase"] = phase
    return json.dumps(content)


def expression(name: str, *sides: JSON) -> JSON:
    return {"expression": name, **dict(zip(("lhs", "rhs"), sides, strict=False))}


@pytest.mark.parametrize(
    "phase",
    [
        expression("pow", 9, expression("pow", 9, expression("pow", 9, 9))),
        expression("pow", expression("index", [9**9], 0), 10**6),
        expression("pow", expression("neg", 10**9), expression("mul", 10**4, 10**4)),
        expression("mul", 10**300, expression("pow", 10, 300)),
        expression("add", 10**400, 1),
    ],
)
def test_an_expression_of_too_many_digits_is_refused(phase: JSON) -> None:
    """Pulser would compute all of them, for minutes."""
    assert re.search(
        r"expression \((pow|mul|add)\) is too large", refusal(phased(phase))
    )


@pytest.mark.parametrize("seed", range(5))
def test_small_expressions_are_left_to_pulser(seed: int) -> None:
    random = Random(seed)

    def tree(depth: int) -> JSON:
        if not depth or random.random() < 0.2:
            return random.choice([1, 2, 3, 0.5])
        name = random.choice(["add", "sub", "mul", "div", "pow", "neg", "sin", "abs"])
        sides = [
            tree(depth - 1) for _ in range(1 if name in ("neg", "sin", "abs") else 2)
        ]
        return expression(name, *sides)

    phase = tree(3)
    try:
        value = float(_deserialize_parameter(phase, {}))  # type: ignore[arg-type]
    except (ArithmeticError, TypeError):
        return
    assert checked(phased(phase)) == checked(phased(value))


def test_strong_interactions_run_and_are_counted() -> None:
    # QuTiP alone gives up: "Excess work done on this call"
    near = pulsed(Register({"a": (0.0, 0.0), "b": (1.2, 0.0)}), 100)
    far = pulsed(Register(PAIR), 100)
    assert checked(near).evolution > 1000 * checked(far).evolution
    blocked: dict[str, JSON] = {}
    with running_service(DEVICE) as own:
        counts = by_text(own, own.acquire(), near, 100)
        blocked = {word: n for word, n in counts.items() if word == "11"}
    assert not blocked


def test_a_third_level_costs_more() -> None:
    one = checked(pulsed(Register(PAIR), channels="rydberg_global"))
    both = checked(pulsed(Register(PAIR), channels="rydberg_global raman_local"))
    assert both.evolution > 2 * one.evolution


def backend_error(service: RunningService, lease: str, **job: object) -> str:
    register = Register({"a": (0.0, 0.0)}).with_automatic_layout(AnalogDevice)
    sequence: Pulses = Sequence(register, AnalogDevice)
    sequence.declare_channel("g", "rydberg_global")
    duration = sequence.declare_variable("duration", dtype=int)
    sequence.add(Pulse.ConstantPulse(duration, 6.0, 0.0, 0.0), "g")
    backend = SfqQpu("q", service.url, lease=lease).pulser_backend(sequence)
    good = JobParams(runs=np.int64(5), variables={"duration": np.int64(100)})  # type: ignore[typeddict-item]
    before = len(service.queue.store.jobs.latest(lease=lease))
    with pytest.raises((InputError, RuntimeError)) as caught:
        backend.run([good, {**good, **job}])  # type: ignore[typeddict-item]
    assert len(service.queue.store.jobs.latest(lease=lease)) == before
    (result,) = backend.run([good], wait=True).results
    assert sum(result.final_bitstrings.values()) == 5
    return str(caught.value)


def test_a_batch_with_a_wrong_job_submits_none(
    service: RunningService, lease: str
) -> None:
    assert "runs: expected an integer" in backend_error(service, lease, runs=2.5)
    variables = {"duration": 100_000}
    assert "duration" in backend_error(service, lease, variables=variables)


def test_a_basis_without_pulses_reads_zeros(
    service: RunningService, lease: str
) -> None:
    sequence: Pulses = Sequence(Register(PAIR), DigitalAnalogDevice)
    sequence.declare_channel("g", "rydberg_global")
    sequence.declare_channel("r", "raman_local", "a")
    sequence.add(Pulse.ConstantPulse(400, 6.0, 0.0, 0.0), "g")
    idle = Pulse.ConstantAmplitude(0.0, ConstantWaveform(100, 0.0), 0.0)
    sequence.add(idle, "r")
    sequence.measure("digital")
    assert by_text(service, lease, sequence, 7) == {"00": 7}
