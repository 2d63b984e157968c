"""Pulse sequences: Pulser in processes of its own, and the service that asks them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Task
from sf_quantum.samplers.neutral_atom import tensor_networks
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.emulator.atoms import runner
from sf_quantum.service.device.emulator.atoms.runner import SequenceSimulator
from sf_quantum.service.device.emulator.computation import (
    Computation,
    compute_seconds,
    evolution,
)
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.runners import installed
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.service.domain.jobs import Size
from tests.support.folders import DATA

TEXT = (DATA / "sequence.json").read_text()
with_pulser = pytest.mark.skipif(
    not runner.available(), reason="pulser-simulation is not installed"
)
RUNNER = SequenceSimulator()


def changed(**parts: JSON) -> str:
    """The sequence with some parts replaced."""
    return json.dumps({**json.loads(TEXT), **parts})


def pulse(duration: int) -> JSON:
    wave: JSON = {"kind": "constant", "duration": duration, "value": 1.0}
    return {
        "op": "pulse",
        "channel": "g",
        "protocol": "min-delay",
        "amplitude": wave,
        "detuning": wave,
        "phase": 0.0,
        "post_phase_shift": 0.0,
    }


def block(atoms: int, columns: int = 2) -> str:
    """The sequence with atoms in rows."""
    register: list[JSON] = [
        {"name": f"q{i}", "x": 5.0 * (i % columns) - 5, "y": 5.0 * (i // columns) - 35}
        for i in range(atoms)
    ]
    return changed(register=register)


def refusal(content: JSON, qubits: int = 5) -> str:
    with pytest.raises(FieldError) as caught:
        RUNNER.check(content, qubits=qubits)
    assert caught.value.field == "sequence"
    assert "\n" not in caught.value.detail
    return caught.value.detail


def test_it_is_one_of_the_kinds_a_device_runs() -> None:
    assert isinstance(installed()["sequence"], SequenceSimulator)


@pytest.mark.process
def test_the_service_starts_without_pulser() -> None:
    code = (
        "import sys, sf_quantum.service.run; "
        "sys.exit(bool({'pulser', 'qutip', 'scipy', 'qrmi'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@with_pulser
def test_wrong_sequences_are_refused_with_their_reason() -> None:
    register = json.loads(TEXT)["register"]
    cases = [
        ("{", "not JSON: "),
        ("[]", "Pulser cannot parse the sequence"),
        ("{}", "required property"),
        (changed(register=[{"name": "a", "x": "z", "y": 0.0}]), "register.0.x: 'z'"),
        (changed(channels={"g": "nope"}), "nope"),
        (changed(operations=[]), "has no pulse"),
        (changed(channels={}, operations=[], measurement=None), "channel"),
        (changed(operations=[pulse(10**7)]), "duration"),
        (
            changed(register=[*register, {"name": "c", "x": 1.0, "y": 0.0}]),
            "minimal distance",
        ),
    ]
    for text, words in cases:
        assert words in refusal(text)


@with_pulser
def test_too_many_atoms() -> None:
    assert refusal(TEXT, qubits=1) == "2 atoms do not fit on 1 qubits"
    detail = refusal(block(31, 4), qubits=100)
    more = ", or 30 with the extra emu-mps (pip install 'sf-quantum[emu-mps]')"
    most = "30" if tensor_networks() else "14"
    assert detail == f"31 atoms; at most {most} can be simulated" + more * (
        most == "14"
    )


@with_pulser
def test_many_atoms_are_contracted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("emu_mps", reason="emu-mps is not installed")
    text = block(16)
    size = RUNNER.check(text, qubits=100)
    assert (size.values, size.evolution) == (16, 0)
    assert size.sites > 0
    limits = ComputeLimits(bond_dimension=8)
    asked = Computation(json.dumps(text), {"num_reads": 50, "seed": 7}, None, limits)
    first, again = (RUNNER.run(asked, lambda: False) for _ in range(2))
    counter = json.loads(first.text)["counter"]
    assert first == again
    assert sum(counter.values()) == 50
    assert {len(word) for word in counter} == {16}
    # as the exact simulation of fewer atoms: the bulk of a chain
    excited = sum(word.count("1") * count for word, count in counter.items()) / 50 / 16
    few = Computation(json.dumps(block(10)), {"num_reads": 500, "seed": 7})
    counter = json.loads(RUNNER.run(few, lambda: False).text)["counter"]
    expected = sum(word.count("1") * count for word, count in counter.items()) / 5000
    assert excited == pytest.approx(expected, abs=0.08)


@with_pulser
def test_many_atoms_have_no_digital_channels() -> None:
    pytest.importorskip("emu_mps", reason="emu-mps is not installed")
    import pulser

    register = pulser.Register.square(4, 6.0, prefix="q")
    digital = pulser.Sequence(register, pulser.DigitalAnalogDevice)
    digital.declare_channel("r", "raman_local", initial_target="q0")
    digital.add(pulser.Pulse.ConstantPulse(100, 1.0, 0.0, 0.0), "r")
    detail = refusal(digital.to_abstract_repr(), qubits=100)
    assert detail == ("16 atoms with digital channels; at most 14 can be simulated")


def test_more_bonds_cost_more() -> None:
    size = Size(values=20, sites=20 * 1000)
    times = [
        compute_seconds(size, {}, ComputeLimits(bond_dimension=bonds))
        for bonds in (16, 64)
    ]
    assert times[1] > 5 * times[0]
    ComputeLimits(bond_dimension=16).check(size, {})
    with pytest.raises(FieldError, match="at most 2,000,000,000 per job"):
        ComputeLimits(bond_dimension=64).check(size, {})


@pytest.mark.process
@with_pulser
def test_memory_has_a_bound() -> None:
    endless = json.loads(runner.specs("q", 5))
    for key in ("max_sequence_duration", "pre_calibrated_layouts"):
        del endless[key]
    for channel in endless["channels"]:
        channel["max_duration"] = None
    endless["is_virtual"] = True
    detail = refusal(changed(device=endless, operations=[pulse(4 * 10**9)]))
    assert "memory" in detail


@with_pulser
def test_counts_add_up_and_the_seed_decides() -> None:
    asked = Computation(json.dumps(TEXT), {"num_reads": 50, "seed": 7})
    RUNNER.check(TEXT, qubits=2)
    first, again = (RUNNER.run(asked, lambda: False) for _ in range(2))
    counter = json.loads(first.text)["counter"]
    assert first == again
    assert sum(counter.values()) == 50
    assert set(counter) <= {"00", "01", "10", "11"}


@with_pulser
def test_the_device_is_pulsers_and_no_larger_than_ours() -> None:
    specs = json.loads(runner.specs("q", 5))
    assert (specs["name"], specs["max_atom_num"]) == ("AnalogDevice", 5)


@with_pulser
def test_what_a_sequence_costs_is_bounded_and_estimated() -> None:
    device = EmulatedDevice(technology="neutral-atom")
    size = device.check("sequence", TEXT, {"num_reads": 10})
    # 400 ns of two atoms, which turn by 13 rad at most
    assert size == Size(2, evolution=(400 + 3 * 13) * (2**2 + 64), qubits=2)
    assert compute_seconds(size, {"num_reads": 10}) == pytest.approx(0.0515, abs=1e-4)
    narrow = ComputeLimits(evolution=size.evolution)
    narrow.check(size, {"num_reads": 10})
    with pytest.raises(FieldError) as caught:
        narrow.check(
            Size(3, evolution=evolution(3, 400, radians=13)), {"num_reads": 10}
        )
    assert str(caught.value) == (
        "sequence: its duration and interactions times its amplitudes are 31,608; "
        "at most 29,852 per job"
    )


def test_a_sequences_estimate_counts_atoms_time_and_shots() -> None:
    def seconds(atoms: int, nanoseconds: int, shots: int) -> float:
        size = Size(atoms, evolution=evolution(atoms, nanoseconds))
        return compute_seconds(size, {"num_reads": shots})

    # as tests/benchmarks/sequences.py measures
    assert seconds(8, 4000, 100) == pytest.approx(0.11, rel=0.1)
    assert seconds(14, 2000, 100) == pytest.approx(1.8, rel=0.1)
    assert seconds(8, 4000, 10**6) == pytest.approx(0.27, rel=0.1)


@with_pulser
def test_a_device_runs_it_at_its_pace() -> None:
    device = EmulatedDevice(technology="neutral-atom", time_scale=0.0, seed=1)
    task = Task("t", "sequence", json.dumps(TEXT), {"num_reads": 20}, 1)
    outcome = device.run(task, threading.Event())
    assert outcome.failure is None
    assert outcome.result is not None
    assert outcome.qpu_seconds == 140.0
    assert outcome.result.info["technology"] == "neutral-atom"


def test_a_text_is_expected() -> None:
    assert refusal({"version": "1"}) == "expected text"


@pytest.mark.parametrize(
    "call",
    [
        lambda: RUNNER.check(TEXT, qubits=5),
        lambda: RUNNER.run(Computation(json.dumps(TEXT), {}), lambda: False),
    ],
)
def test_where_pulser_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]
) -> None:
    monkeypatch.setattr(runner, "available", lambda: False)
    with pytest.raises(InputError, match=r"pip install 'sf-quantum\[pulser\]'"):
        call()
    assert json.loads(runner.specs("of-a-site", 3)) == {"name": "of-a-site"}
