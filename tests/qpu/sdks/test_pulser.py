"""A QPU as a remote backend of Pulser, in front of a service."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pulser import AnalogDevice, Pulse, Register, Sequence
from pulser.backend.remote import BatchStatus, JobParams, JobStatus, RemoteResultsError
from pulser.devices import Device, DigitalAnalogDevice, MockDevice
from pulser.devices._device_datacls import BaseDevice
from pulser.register.base_register import BaseRegister
from pulser.register.mappable_reg import MappableRegister
from pulser.register.register_layout import RegisterLayout

from sf_quantum.errors import InputError
from sf_quantum.protocol.descriptions import Description
from sf_quantum.qpu.sdks.pulser import Pulses
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.settings import Faults
from tests.support.service import RunningService, running_service


def service_device(faults: Faults | None = None) -> EmulatedDevice:
    return EmulatedDevice(
        technology="neutral-atom",
        qubits=10,
        time_scale=0.0,
        seed=1,
        faults=faults or Faults(),
    )


def qpu(service: RunningService) -> SfqQpu:
    return SfqQpu("q", service.url, lease=service.acquire())


def pulse(device: Device = AnalogDevice) -> Pulses:
    """Two far atoms, excited by a pulse of a variable area."""
    atoms = Register({"a": (0.0, 0.0), "b": (30.0, 0.0)})
    sequence: Pulses = Sequence(atoms.with_automatic_layout(device), device)
    sequence.declare_channel("global", "rydberg_global")
    amplitude = sequence.declare_variable("amplitude")
    sequence.add(Pulse.ConstantPulse(1000, amplitude, 0.0, 0.0), "global")
    return sequence


@pytest.mark.process
def test_jobs_with_their_own_variables() -> None:
    half_turn = 3.14159
    with running_service(service_device()) as service:
        backend = qpu(service).pulser_backend(pulse())
        params: list[JobParams] = [
            {"runs": 20, "variables": {"amplitude": 0.0}},
            {"runs": 30, "variables": {"amplitude": half_turn}},
        ]
        remote = backend.run(job_params=params, wait=True)
        still, flipped = remote.results
        assert still.final_bitstrings == {"00": 20}
        assert flipped.final_bitstrings["11"] > 25
        assert flipped.atom_order == ("a", "b")
        assert remote.get_batch_status() is BatchStatus.DONE
        assert [*remote.get_available_results()] == remote.job_ids


def test_a_job_that_fails_says_why() -> None:
    with running_service(service_device(Faults(fail=1.0))) as service:
        backend = qpu(service).pulser_backend(pulse())
        remote = backend.run([{"runs": 1, "variables": {"amplitude": 0.0}}])
        with pytest.raises(RemoteResultsError):
            _ = remote.results
        assert remote.get_batch_status() is BatchStatus.ERROR
        ((status, _),) = backend._connection._query_job_progress(
            remote.batch_id
        ).values()
        assert status is JobStatus.ERROR


def test_a_sequence_for_another_device_is_refused() -> None:
    with running_service(service_device()) as service:
        backend = qpu(service).pulser_backend(pulse(DigitalAnalogDevice))
        with pytest.raises(ValueError, match="does not match any"):
            backend.run([{"runs": 1, "variables": {"amplitude": 0.0}}])


LAYOUT = RegisterLayout([(0, 0), (30, 0), (0, 30), (20, 20), (10, -34)])
PAIR = LAYOUT.define_register(0, 1, qubit_ids=["a", "b"])
BARE = Register({"a": (0.0, 0.0), "b": (30.0, 0.0)})


def half_turn(register: BaseRegister | MappableRegister, device: BaseDevice) -> Pulses:
    sequence: Pulses = Sequence(register, device)
    sequence.declare_channel("global", "rydberg_global")
    sequence.add(Pulse.ConstantPulse(1000, 3.14159, 0.0, 0.0), "global")
    return sequence


def relaid(device: Device) -> Pulses:
    laid_out = BARE.with_automatic_layout(device)
    return (
        half_turn(BARE, MockDevice).with_new_register(laid_out).with_new_device(device)
    )


PREPARED: dict[str, Callable[[Device], Pulses]] = {
    "own layout": lambda device: half_turn(PAIR, device),
    "by name": lambda _: half_turn(PAIR, AnalogDevice),
    "automatic": lambda device: half_turn(BARE.with_automatic_layout(device), device),
    "mappable": lambda device: half_turn(LAYOUT.make_mappable_register(2), device),
    "mock": lambda device: half_turn(PAIR, MockDevice).with_new_device(device),
    "digital": lambda device: half_turn(PAIR, DigitalAnalogDevice).with_new_device(
        device
    ),
    "new layout": relaid,
}


# Pulser warns that atoms interact in another way on another device; these are far apart
@pytest.mark.filterwarnings("ignore::UserWarning:pulser")
def test_sequences_on_layouts_run_as_documented() -> None:
    with running_service(service_device()) as service:
        leased = qpu(service)
        specs = leased.describe().specs
        assert specs is not None
        device = Device.from_abstract_repr(specs)
        assert isinstance(device, Device)
        for name, prepare in PREPARED.items():
            params: JobParams = {"runs": 40}
            if name == "mappable":
                params["variables"] = {"qubits": {"q0": 0, "q1": 1}}
            remote = leased.pulser_backend(prepare(device)).run([params], wait=True)
            (result,) = remote.results
            assert result.final_bitstrings["11"] > 30, name


def test_sequences_without_device_or_layout_are_refused() -> None:
    with running_service(service_device()) as service:
        leased = qpu(service)
        for register, device, why in (
            (PAIR, MockDevice, "must be a real device"),
            (BARE, AnalogDevice, "from a `RegisterLayout`"),
        ):
            with pytest.raises(InputError, match=why):
                leased.pulser_backend(half_turn(register, device))


def test_a_qpu_without_sequences_is_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    annealer = SfqQpu("q", "http://127.0.0.1:1", lease="t")
    described = Description("annealer", 10, ("problem",))
    monkeypatch.setattr(annealer, "describe", lambda: described)
    with pytest.raises(InputError, match="takes no sequences, but: problem"):
        annealer.pulser_backend(pulse())
