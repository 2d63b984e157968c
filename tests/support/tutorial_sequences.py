"""Sequences of the shapes that the tutorials of Pulser 1.9 have."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from dataclasses import replace

import numpy as np
from pulser import Pulse, Register, Sequence
from pulser.channels import Raman, Rydberg
from pulser.devices import (
    AnalogDevice,
    DigitalAnalogDevice,
    MockDevice,
    VirtualDevice,
    WeightedAnalogDevice,
)
from pulser.devices._device_datacls import BaseDevice
from pulser.register.special_layouts import SquareLatticeLayout
from pulser.waveforms import (
    BlackmanWaveform,
    CompositeWaveform,
    ConstantWaveform,
    InterpolatedWaveform,
    RampWaveform,
)

from tests.support.pulse_sequences import Pulses

PI = np.pi


def _global(register: Register, device: BaseDevice, *pulses: Pulse) -> Pulses:
    """Return pulses on the global Rydberg channel, one after the other."""
    sequence: Pulses = Sequence(register, device)
    sequence.declare_channel("g", "rydberg_global")
    for pulse in pulses:
        sequence.add(pulse, "g")
    return sequence


def _row(atoms: int, spacing: float) -> Register:
    return Register.rectangle(1, atoms, spacing=spacing, prefix="q")


def _annealed(nanoseconds: int, strongest: float, last: float) -> Pulse:
    """Return an adiabatic pulse: an amplitude that rises and falls, a rising detuning."""
    return Pulse(
        InterpolatedWaveform(nanoseconds, [1e-9, strongest, 1e-9]),
        InterpolatedWaveform(nanoseconds, [-last, 0.0, last]),
        0.0,
    )


def _swept(rise: int, sweep: int, strongest: float, last: float) -> list[Pulse]:
    """Return a rise, a sweep of the detuning, and a fall."""
    return [
        Pulse.ConstantDetuning(RampWaveform(rise, 0.0, strongest), -last, 0.0),
        Pulse.ConstantAmplitude(strongest, RampWaveform(sweep, -last, last), 0.0),
        Pulse.ConstantDetuning(RampWaveform(rise, strongest, 0.0), last, 0.0),
    ]


def first_sequence() -> Pulses:
    ramped = Pulse(BlackmanWaveform(1000, PI), RampWaveform(1000, -5.0, 10.0), 0.0)
    atoms = Register.hexagon(1, spacing=6.0, prefix="q").with_automatic_layout(
        AnalogDevice
    )
    return _global(atoms, AnalogDevice, ramped)


def one_atom() -> Pulses:
    pulse = Pulse.ConstantDetuning(BlackmanWaveform(1000, PI), 0.0, 0.0)
    return _global(Register({"q0": (0, 0)}), AnalogDevice, pulse)


def composite_waveforms() -> Pulses:
    rising = CompositeWaveform(
        BlackmanWaveform(1000, PI), RampWaveform(500, 0, 5), RampWaveform(500, 5, 0)
    )
    pulse = Pulse(rising, RampWaveform(rising.duration, -10, 2), 0.0)
    return _global(_row(2, 7.0), DigitalAnalogDevice, pulse)


def interpolated_waveforms() -> Pulses:
    sequence = _global(Register.square(1, prefix="q"), AnalogDevice)
    amplitudes = sequence.declare_variable("amplitudes", size=5, dtype=float)
    detunings = sequence.declare_variable("detunings", size=4, dtype=float)
    amplitude = InterpolatedWaveform(1000, amplitudes)
    pulse = Pulse(amplitude, InterpolatedWaveform(1000, detunings), 0.0)
    sequence.add(pulse, "g")
    return sequence.build(amplitudes=[0, 2, 1, 2, 0], detunings=[0, -5, 5, -5])


def local_addressability() -> Pulses:
    places = [(0.0, 0.0), (0.0, 5.0), (5.0, 0.0), (5.0, 5.0)]
    register = Register.from_coordinates(places, center=False, prefix="q")
    sequence: Pulses = Sequence(register, WeightedAnalogDevice)
    weights = dict(zip(register.qubit_ids, (1.0, 0.5, 0.5, 0.0), strict=True))
    sequence.config_detuning_map(register.define_detuning_map(weights), "dmm_0")
    sequence.add_dmm_detuning(ConstantWaveform(100, -10), "dmm_0")
    sequence.declare_channel("g", "rydberg_global")
    sequence.add(Pulse.ConstantPulse(152, 10, 2.5, 0), "g", protocol="no-delay")
    sequence.add_dmm_detuning(RampWaveform(200, -10, 0), "dmm_0")
    sequence.add(Pulse.ConstantPulse(100, 5, 0, 0), "g", protocol="no-delay")
    return sequence


def output_modulation() -> Pulses:
    device = VirtualDevice(
        name="modulated",
        dimensions=2,
        rydberg_level=60,
        channel_objects=(
            Rydberg.Global(1000, 20, max_duration=None, mod_bandwidth=5),
            Raman.Local(1000, 20, max_duration=None, mod_bandwidth=7),
        ),
    )
    sequence: Pulses = Sequence(Register.square(2, spacing=8.0, prefix="q"), device)
    sequence.declare_channel("raman", "raman_local", initial_target="q0")
    sequence.declare_channel("g", "rydberg_global")
    short = Pulse.ConstantPulse(100, 5, 0, 0)
    sequence.add(Pulse.ConstantDetuning(BlackmanWaveform(300, 2.0), -5, 0), "g")
    sequence.add(short, "raman")
    sequence.target("q1", "raman")
    sequence.add(short, "raman")
    sequence.delay(0, "raman", at_rest=True)
    sequence.add(Pulse.ConstantPulse(300, 5, 0, 0), "raman")
    sequence.add(Pulse.ConstantDetuning(BlackmanWaveform(300, 2.0), 5, PI), "g")
    return sequence


def eom_mode() -> Pulses:
    register = Register.square(2, spacing=6, prefix="q")
    sequence = _global(register, AnalogDevice, Pulse.ConstantPulse(100, 1, 0, 0))
    sequence.enable_eom_mode("g", amp_on=1.0, detuning_on=0.0)
    sequence.add_eom_pulse("g", duration=100, phase=0.0)
    sequence.delay(300, "g")
    sequence.add_eom_pulse("g", duration=60, phase=0.0, correct_phase_drift=True)
    sequence.disable_eom_mode("g")
    sequence.add(Pulse.ConstantPulse(100, 1, 0, 0), "g")
    return sequence


def parametrized(target: bool = False) -> Pulses:
    """A sequence with variables.

    :param target: whether one is the target of a channel
    """
    register = Register.square(2, spacing=6, prefix="q")
    sequence: Pulses = Sequence(register, DigitalAnalogDevice)
    sequence.declare_channel("g", "rydberg_global")
    sequence.declare_channel("raman", "raman_local")
    strongest = sequence.declare_variable("strongest")
    times = sequence.declare_variable("times", size=2, dtype=int)
    values: dict[str, float | Several[int]] = {"strongest": 6.0, "times": [200, 500]}
    wave = BlackmanWaveform.from_max_val(strongest, PI)
    sequence.add(Pulse.ConstantDetuning(wave, 0, 0), "g")
    sequence.target("q0", "raman")
    sequence.add(Pulse.ConstantDetuning(wave, 0, 0), "raman")
    if target:
        last = sequence.declare_variable("last", dtype=int)
        sequence.target_index(last, "raman")
        values["last"] = 3
    else:
        sequence.target_index(3, "raman")
    both = CompositeWaveform(
        RampWaveform(times[0], -5.0, 5.0), RampWaveform(times[1], 5.0, -5.0)
    )
    sequence.add(Pulse.ConstantAmplitude(4.0, both, 0.0), "g")
    sequence.add(Pulse.ConstantDetuning(wave, 0, 0), "raman")
    return sequence.build(**values)  # type: ignore[arg-type]


def phase_shifts() -> Pulses:
    register = Register({"q0": (0, 0), "q1": (5, 5)})
    sequence: Pulses = Sequence(register, MockDevice)
    sequence.declare_channel("raman", "raman_local", initial_target="q0")
    sequence.declare_channel("one", "rydberg_local", initial_target="q0")
    sequence.declare_channel("two", "rydberg_local", initial_target="q0")
    quarter = BlackmanWaveform(1000, PI / 2)
    hadamard = Pulse.ConstantDetuning(quarter, 0, PI / 2, post_phase_shift=PI)
    sequence.add(hadamard, "raman")
    sequence.phase_shift(PI, "q0", basis="digital")
    sequence.add(hadamard, "one")
    sequence.add(Pulse.ConstantDetuning(quarter, 0, 0), "two")
    for channel in ("raman", "one", "two"):
        sequence.target("q1", channel)
        sequence.add(hadamard, channel)
    return sequence


def register_layouts() -> Pulses:
    layout = SquareLatticeLayout(5, 5, 6)
    sequence: Pulses = Sequence(layout.make_mappable_register(4), MockDevice)
    sequence.declare_channel("g", "rydberg_global")
    pulse = Pulse.ConstantDetuning(RampWaveform(1000, 0, 6), 1.0, 0.0)
    sequence.add(pulse, "g")
    return sequence.build(qubits={"q0": 6, "q1": 7, "q2": 12})


def serialization() -> Pulses:
    """A controlled Z gate between two quarter turns, read in the digital basis."""
    register = Register({"control": (-2, 0), "target": (2, 0)})
    sequence: Pulses = Sequence(register, DigitalAnalogDevice)
    sequence.declare_channel("raman", "raman_local", initial_target="control")
    sequence.declare_channel("ryd", "rydberg_local", initial_target="control")
    half = BlackmanWaveform(200, PI / 2)
    turn = Pulse.ConstantDetuning(half, 0, -PI / 2)
    sequence.add(turn, "raman")
    sequence.target("target", "raman")
    sequence.add(Pulse.ConstantDetuning(half, 0, PI / 2), "raman")
    whole = Pulse.ConstantDetuning(BlackmanWaveform(200, PI), 0, 0)
    sequence.align("raman", "ryd")
    sequence.add(whole, "ryd")
    sequence.target("target", "ryd")
    strongest = DigitalAnalogDevice.rabi_from_blockade(9)
    wave = BlackmanWaveform.from_max_val(strongest, 2 * PI)
    sequence.add(Pulse.ConstantDetuning(wave, 0, 0), "ryd")
    sequence.target("control", "ryd")
    sequence.add(whole, "ryd")
    sequence.align("raman", "ryd")
    sequence.add(turn, "raman")
    sequence.measure("digital")
    return sequence


def slm_mask() -> Pulses:
    register = Register({"q0": (-8, 0), "q1": (0, 0), "q2": (8, 0)})
    sequence: Pulses = Sequence(register, WeightedAnalogDevice)
    sequence.config_slm_mask(["q1", "q2"], "dmm_0")
    sequence.declare_channel("g", "rydberg_global")
    sequence.add(Pulse.ConstantDetuning(BlackmanWaveform(1000, PI), 0, 0), "g")
    sequence.add_dmm_detuning(-BlackmanWaveform(200, PI), "dmm_0")
    return sequence


def reusable_channels() -> Pulses:
    device = replace(
        AnalogDevice.to_virtual(),
        dimensions=3,
        reusable_channels=True,
    )
    sequence: Pulses = Sequence(_row(3, 7.0), device)
    for channel in ("ch0", "ch1"):
        sequence.declare_channel(channel, "rydberg_global")
        sequence.add(Pulse.ConstantPulse(200, 5.0, 0.0, 0.0), channel)
    return sequence


def digital_device() -> Pulses:
    device = VirtualDevice(
        name="digital",
        dimensions=2,
        rydberg_level=61,
        channel_ids=("ryd_loc", "ram_loc"),
        channel_objects=(
            Rydberg.Local(None, None, max_duration=None),
            Raman.Local(None, None, max_duration=None),
        ),
    )
    sequence: Pulses = Sequence(_row(3, 7.0), device)
    sequence.declare_channel("ram", "ram_loc", initial_target="q0")
    for name in ("q0", "q2"):
        sequence.target(name, "ram")
        sequence.add(Pulse.ConstantPulse(300, 5.0, 0.0, 0.0), "ram")
    return sequence


def execution() -> Pulses:
    atoms = Register.hexagon(1, 5.0, prefix="q").with_automatic_layout(AnalogDevice)
    u = AnalogDevice.interaction_coeff / 5.0**6
    times = np.linspace(0, 1, 4)
    amplitude = InterpolatedWaveform(4000, u * np.array([0, 0.2, 0.2, 0]), times=times)
    detuning = InterpolatedWaveform(4000, u * np.array([-1, 0, 0.3, 1]), times=times)
    return _global(atoms, AnalogDevice, Pulse(amplitude, detuning, 0))


def weighted_independent_set() -> Pulses:
    register = Register({"q0": (0, 0), "q1": (6, 0), "q2": (3, 5), "q3": (11, 0)})
    sequence: Pulses = Sequence(register, MockDevice)
    sequence.declare_channel("g", "rydberg_global")
    weights = {"q0": 0.2, "q1": 1.0, "q2": 0.5, "q3": 0.3}
    sequence.config_detuning_map(register.define_detuning_map(weights), "dmm_0")
    sequence.add(_annealed(2000, 8.0, 10.0), "g")
    sequence.add_dmm_detuning(ConstantWaveform(2000, -10.0), "dmm_0")
    return sequence


def qubo() -> Pulses:
    places = {"q0": (0, 0), "q1": (8, 0), "q2": (0, 8), "q3": (8, 8), "q4": (4, 14)}
    return _global(Register(places), DigitalAnalogDevice, _annealed(4000, 5.4, 5.0))


def antiferromagnetic_ring() -> Pulses:
    angles = 2 * PI * np.arange(12) / 12
    places = 10 * np.array([np.cos(angles), np.sin(angles)]).T
    register = Register.from_coordinates(places, prefix="q")
    return _global(register, AnalogDevice, _annealed(1000, 9.0, 20.0))


def xy_spin_chain(masked: bool = False) -> Pulses:
    register = Register({"q0": (-8.0, 0), "q1": (0, 0), "q2": (4.0, 6.93)})
    sequence: Pulses = Sequence(register, MockDevice)
    sequence.declare_channel("mw", "mw_global")
    sequence.set_magnetic_field(0.0, 1.0, 0.0)
    half_turn = Pulse.ConstantDetuning(BlackmanWaveform(200, PI), 0, 0)
    if masked:
        sequence.config_slm_mask(["q1", "q2"])
        sequence.add(half_turn, "mw")
    sequence.add(Pulse.ConstantPulse(4000, 0.1, 0.0, 0.0), "mw")
    sequence.measure(basis="XY")
    return sequence


def xy_spin_chain_with_a_mask() -> Pulses:
    return xy_spin_chain(masked=True)


def rydberg_crystal() -> Pulses:
    hold = CompositeWaveform(ConstantWaveform(250, -10.0), RampWaveform(2000, -10, 20))
    return _global(_row(9, 6.0), MockDevice, Pulse.ConstantAmplitude(8.0, hold, 0.0))


def controlled_controlled_z() -> Pulses:
    places = {"control1": (-2, 0), "control2": (2, 0), "target": (0, 3.46410162)}
    sequence: Pulses = Sequence(Register(places), DigitalAnalogDevice)
    sequence.declare_channel("raman", "raman_local", "control1")
    turn = Pulse.ConstantDetuning(BlackmanWaveform(300, PI), 0.0, -PI / 2)
    for name in ("control1", "target"):
        sequence.target(name, "raman")
        sequence.add(turn, "raman")
    sequence.declare_channel("ryd", "rydberg_local", "control1")
    whole = Pulse.ConstantDetuning(BlackmanWaveform(300, PI), 0.0, 0)
    twice = Pulse.ConstantDetuning(BlackmanWaveform(300, 2 * PI), 0.0, 0)
    sequence.add(whole, "ryd", "wait-for-all")
    for name, pulse in (
        ("control2", whole),
        ("target", twice),
        ("control2", whole),
        ("control1", whole),
    ):
        sequence.target(name, "ryd")
        sequence.add(pulse, "ryd")
    sequence.measure("digital")
    return sequence


def microwave_engineering() -> Pulses:
    register = _row(4, 10.0)
    sequence: Pulses = Sequence(register, MockDevice)
    sequence.declare_channel("mw", "mw_global")
    sequence.set_magnetic_field(0.0, 0.0, 1.0)
    sequence.config_slm_mask(["q0", "q1"])
    sequence.add(Pulse.ConstantDetuning(BlackmanWaveform(40, PI), 0, 0), "mw")
    quarter = BlackmanWaveform(20, PI / 2)
    for phase, wait in ((0.0, 80), (-PI / 2, 160), (PI / 2, 80), (PI, 80)):
        sequence.add(Pulse.ConstantDetuning(quarter, 0, phase), "mw")
        sequence.delay(wait, "mw")
    return sequence


def antiferromagnet() -> Pulses:
    register = Register.square(3, 6.0, prefix="q")
    return _global(register, AnalogDevice, *_swept(248, 1000, 6.0, 12.0))


def qaoa() -> Pulses:
    sequence = _global(Register.square(2, spacing=7.0, prefix="q"), DigitalAnalogDevice)
    times = sequence.declare_variable("times", size=2)
    others = sequence.declare_variable("others", size=2)
    for layer in range(2):
        mixing, cost = times[layer] * 1000, others[layer] * 1000
        drive = Pulse.ConstantPulse(mixing, 5.0, 0.0, 0)
        sequence.add(drive, "g")
        sequence.add(Pulse.ConstantPulse(cost, 0.0, 5.0, 0), "g")
    sequence.measure("ground-rydberg")
    return sequence.build(times=[0.2, 0.4], others=[0.4, 0.2])


def blockade() -> Pulses:
    register = Register.rectangle(1, 2, spacing=8, prefix="atom")
    sequence: Pulses = Sequence(register, DigitalAnalogDevice)
    sequence.declare_channel("ryd", "rydberg_local", "atom0")
    whole = Pulse.ConstantDetuning(BlackmanWaveform(200, PI), 0.0, 0.0)
    sequence.add(whole, "ryd")
    sequence.target("atom1", "ryd")
    sequence.add(whole, "ryd")
    return sequence


def ring_of_atoms() -> Pulses:
    angles = 2 * PI * np.arange(7) / 7
    places = 6.5 * np.array([np.cos(angles), np.sin(angles)]).T / (2 * np.sin(PI / 7))
    register = Register.from_coordinates(places, prefix="atom")
    return _global(register, MockDevice, *_swept(250, 1500, 8.0, 14.0))


def too_many_atoms() -> Pulses:
    pulse = Pulse.ConstantPulse(100, 1.0, 0.0, 0.0)
    return _global(Register.square(4, spacing=5, prefix="q"), MockDevice, pulse)


#: by tutorial; what runs
RUN: Mapping[str, Callable[[], Pulses]] = {
    "Creating sequences": first_sequence,
    "Tutorials with a single atom, including those about noise": one_atom,
    "Composite waveforms": composite_waveforms,
    "Interpolated waveforms": interpolated_waveforms,
    "Local addressability with DMM": local_addressability,
    "Output modulation": output_modulation,
    "EOM mode": eom_mode,
    "Parametrized sequences": parametrized,
    "Phase shifts and virtual Z gates": phase_shifts,
    "Register layouts": register_layouts,
    "Serialization": serialization,
    "SLM mask": slm_mask,
    "Virtual devices: reusable channels": reusable_channels,
    "Virtual devices: digital": digital_device,
    "Execution on an emulator, on a QPU": execution,
    "QAA to solve an MWIS problem": weighted_independent_set,
    "QAA to solve a QUBO problem": qubo,
    "Bayesian optimisation": antiferromagnetic_ring,
    "Spin chain in XY mode": xy_spin_chain,
    "Spin chain in XY mode: SLM mask": xy_spin_chain_with_a_mask,
    "1D Rydberg crystals": rydberg_crystal,
    "Control-Z gate sequence": controlled_controlled_z,
    "Microwave engineering": microwave_engineering,
    "Antiferromagnetic order": antiferromagnet,
    "QAOA": qaoa,
    "Rydberg blockade": blockade,
    "Simulating sequences": ring_of_atoms,
}


def made(build: Callable[[], Pulses]) -> Pulses:
    """Build a sequence, without Pulser's warnings about rounded durations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build()
