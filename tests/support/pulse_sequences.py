"""Random sequences of every kind that Pulser has, and their probabilities.

The reference is Pulser's own simulator, which gets a sequence as it was built; what is
compared gets its text.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pulser import Pulse, Register, Register3D, Sequence
from pulser.channels import DMM, Raman, Rydberg
from pulser.channels.eom import RydbergBeam, RydbergEOM
from pulser.devices import (
    AnalogDevice,
    DigitalAnalogDevice,
    MockDevice,
    VirtualDevice,
)
from pulser.devices._device_datacls import BaseDevice
from pulser.register.base_register import BaseRegister
from pulser.register.register_layout import RegisterLayout
from pulser.waveforms import (
    BlackmanWaveform,
    CompositeWaveform,
    ConstantWaveform,
    CustomWaveform,
    InterpolatedWaveform,
    KaiserWaveform,
    RampWaveform,
    Waveform,
)

Pulses: TypeAlias = Sequence[BaseDevice]
Protocol: TypeAlias = Literal["min-delay", "no-delay", "wait-for-all"]
Values: TypeAlias = Mapping[str, "int | float | NDArray[np.float64] | dict[str, int]"]

# a site's own device: its channels, limits and bandwidths are of no other
OWN = VirtualDevice(
    name="Own",
    dimensions=3,
    rydberg_level=60,
    supports_slm_mask=True,
    channel_objects=(
        Rydberg.Global(
            2 * np.pi * 30,
            2 * np.pi * 4,
            clock_period=4,
            min_duration=16,
            mod_bandwidth=10,
            eom_config=RydbergEOM(
                limiting_beam=RydbergBeam.RED,
                max_limiting_amp=40 * 2 * np.pi,
                intermediate_detuning=500 * 2 * np.pi,
                mod_bandwidth=30,
                controlled_beams=(RydbergBeam.BLUE, RydbergBeam.RED),
            ),
        ),
        Rydberg.Local(2 * np.pi * 20, 2 * np.pi * 10, fixed_retarget_t=20),
        Raman.Global(2 * np.pi * 20, 2 * np.pi * 10, mod_bandwidth=15),
        Raman.Local(2 * np.pi * 20, 2 * np.pi * 10, max_targets=2),
    ),
    dmm_objects=(DMM(bottom_detuning=-200.0, total_bottom_detuning=-2000.0),),
)

DEVICES: tuple[BaseDevice, ...] = (MockDevice, DigitalAnalogDevice, OWN)


@dataclass(frozen=True)
class Built:
    """A sequence and, if it has variables, that from which it was built.

    :param values: arguments of ``build()``
    """

    kind: str
    sequence: Pulses
    template: Pulses | None = None
    values: Values = field(default_factory=dict)


def probabilities(sequence: Pulses, shots: int = 10**6) -> dict[str, float]:
    """Simulate a sequence in this process, with Pulser alone.

    A basis that no pulse drives is read as 0, and a sequence that drives two is read in
    the digital one unless it says otherwise: ``pulser_simulation.QutipResult`` does so.

    :param shots: outcomes that are much rarer than one of these are left out
    """
    from pulser.backend import EmulationConfig, StateResult
    from pulser.sampler import sample
    from pulser_simulation import QutipBackendV2

    used = sample(sequence).used_bases or {sequence.get_addressed_bases()[0]}
    basis = "digital" if len(used) > 1 else min(used)
    if sequence.is_measured():
        basis = sequence.get_measurement_basis()
    if basis not in used:
        return {"0" * len(sequence.register.qubit_ids): 1.0}
    observable = StateResult(evaluation_times=[1.0])
    state = (
        QutipBackendV2(sequence, config=EmulationConfig(observables=[observable]))
        .run()
        .state[-1]
    )
    one = {"ground-rydberg": "r", "digital": "h", "XY": "d"}[basis]
    found = state.bitstring_probabilities(one_state=one, cutoff=1e-3 / shots)
    return {str(word): float(chance) for word, chance in found.items()}


def random_sequence(number: int) -> Built:
    """Return a random sequence; each number makes another, of the next kind."""
    kind = [*KINDS][number % len(KINDS)]
    with warnings.catch_warnings():
        # a measurement in a basis that no channel has, names that are numbers
        warnings.simplefilter("ignore")
        made = KINDS[kind](Random(number))
    return made if isinstance(made, Built) else Built(kind, made)


def _built(kind: str, template: Pulses, values: Values) -> Built:
    return Built(kind, template.build(**values), template, values)  # type: ignore[arg-type]


# what they are made of


def _register(random: Random, atoms: int, spacing: float = 7.0) -> Register:
    """Return atoms on a lattice, a little off their places, in any order."""
    side = int(np.ceil(np.sqrt(atoms)))
    places = np.array(
        [
            (site % side + random.uniform(0, 0.06), site // side)
            for site in random.sample(range(side * side), atoms)
        ]
    )
    places = spacing * (places - places.mean(axis=0))
    names = [f"{'qxa'[n % 3]}{n}" for n in random.sample(range(atoms), atoms)]
    return Register(dict(zip(names, places, strict=True)))


def _duration(random: Random, longest: int = 90) -> int:
    """Return nanoseconds, as Python's number or NumPy's."""
    duration = 4 * random.randrange(13, longest)
    # Pulser takes both, though its types say otherwise
    return random.choice((duration, np.int64(duration), np.int32(duration)))  # type: ignore[return-value]


def _waveform(random: Random, duration: int, low: float, high: float) -> Waveform:
    """Return a waveform of any shape between two values."""
    first, middle, last = (random.uniform(low, high) for _ in range(3))
    shape = random.randrange(7 if low >= 0 else 5)
    if shape == 0:
        return ConstantWaveform(duration, first)
    if shape == 1:
        return RampWaveform(duration, first, np.float64(last))
    if shape == 2:
        return InterpolatedWaveform(duration, [first, middle, last])
    if shape == 3:
        half = duration // 2
        falling = RampWaveform(duration - half, middle, last)
        return CompositeWaveform(ConstantWaveform(half, first), falling)
    if shape == 4:
        return CustomWaveform(np.linspace(first, last, int(duration)))
    area = 0.3 * high * int(duration) / 1000
    if shape == 5:
        return BlackmanWaveform(duration, area)
    return KaiserWaveform(duration, area, beta=random.uniform(5.0, 14.0))


def _pulse(random: Random, *, shifted: bool = True) -> Pulse:
    """Return a pulse of any shape.

    :param shifted: whether it may shift the phase of what follows
    """
    duration = _duration(random)
    amplitude = _waveform(random, duration, 0.0, 11.0)
    detuning = _waveform(random, duration, -15.0, 15.0)
    after = random.uniform(0.0, 3.0) * random.randrange(2) * shifted
    if random.randrange(4) == 0:
        phase = RampWaveform(duration, -random.random(), random.random())
        return Pulse.ArbitraryPhase(amplitude, phase, after)
    return Pulse(amplitude, detuning, random.uniform(0, 6), after)


def _protocol(random: Random) -> Protocol:
    return random.choice(("min-delay", "no-delay", "wait-for-all"))


def _play(random: Random, sequence: Pulses, channels: Mapping[str, str]) -> None:
    """Add a few operations of any sort.

    :param channels: bases by name of the channel; those that end in "local" have targets
    """
    names = [*channels]
    atoms = [*sequence.register.qubit_ids]
    for number in range(random.randrange(3, 6)):
        name = names[number % len(names)]
        if name.endswith("local") and number >= len(names):
            sequence.target(random.choice(atoms), name)
        # a global pulse needs one phase reference
        shifted = "global" not in channels or name == "global"
        pulse = _pulse(random, shifted=shifted)
        sequence.add(pulse, name, protocol=_protocol(random))
        if random.randrange(2):
            some = random.sample(atoms, random.randrange(1, len(atoms) + 1))
            targets = atoms if "global" in channels else some
            sequence.phase_shift(random.uniform(0, 6), *targets, basis=channels[name])
        if random.randrange(3) == 0:
            sequence.delay(_duration(random, 30), name)
        if len(names) > 1 and random.randrange(3) == 0:
            sequence.align(*names)


def _rydberg_global(random: Random) -> Pulses:
    device = random.choice(DEVICES)
    sequence: Pulses = Sequence(_register(random, random.randrange(1, 7)), device)
    sequence.declare_channel("global", "rydberg_global")
    _play(random, sequence, {"global": "ground-rydberg"})
    return sequence


def _analog(random: Random) -> Pulses:
    """A sequence that Pasqal's QPUs could run."""
    sequence = _on_layout(random, random.randrange(2, 7))
    sequence.declare_channel("global", "rydberg_global")
    for _ in range(random.randrange(1, 4)):
        sequence.add(_pulse(random), "global")
    if random.randrange(2):
        sequence.measure("ground-rydberg")
    return sequence


def _on_layout(random: Random, atoms: int) -> Pulses:
    register = _register(random, atoms).with_automatic_layout(AnalogDevice)
    return Sequence(register, AnalogDevice)


def _rydberg_local(random: Random) -> Pulses:
    device = random.choice(DEVICES)
    register = _register(random, random.randrange(2, 6))
    sequence: Pulses = Sequence(register, device)
    sequence.declare_channel("global", "rydberg_global")
    sequence.declare_channel("local", "rydberg_local", register.qubit_ids[-1])
    _play(random, sequence, dict.fromkeys(["local", "global"], "ground-rydberg"))
    return sequence


def _raman(random: Random) -> Pulses:
    device = random.choice(DEVICES)
    register = _register(random, random.randrange(1, 6))
    sequence: Pulses = Sequence(register, device)
    channels = {"local": "digital"}
    sequence.declare_channel("local", "raman_local", register.qubit_ids[0])
    if device is not DigitalAnalogDevice:
        sequence.declare_channel("global", "raman_global")
        channels["global"] = "digital"
    _play(random, sequence, channels)
    if random.randrange(2):
        # one that no pulse drives, now and then
        sequence.measure(random.choice(("digital", "digital", "ground-rydberg")))
    return sequence


def _both(random: Random) -> Pulses:
    """A sequence with Rydberg and Raman pulses, read in either basis."""
    device = random.choice(DEVICES)
    register = _register(random, random.randrange(1, 5))
    sequence: Pulses = Sequence(register, device)
    sequence.declare_channel("raman local", "raman_local", register.qubit_ids[-1])
    sequence.declare_channel("local", "rydberg_local", register.qubit_ids[0])
    channels = {"raman local": "digital", "local": "ground-rydberg"}
    _play(random, sequence, channels)
    if random.randrange(3):
        sequence.measure(random.choice(("digital", "ground-rydberg")))
    return sequence


def _eom(random: Random) -> Pulses:
    if random.randrange(2):
        sequence = _on_layout(random, random.randrange(1, 5))
    else:
        sequence = Sequence(_register(random, random.randrange(1, 6)), OWN)
    sequence.declare_channel("global", "rydberg_global")
    sequence.add(_pulse(random), "global")
    sequence.enable_eom_mode(
        "global",
        amp_on=random.uniform(4.0, 10.0),
        detuning_on=random.uniform(-3.0, 3.0),
        optimal_detuning_off=random.uniform(-5.0, 5.0),
        correct_phase_drift=bool(random.randrange(2)),
    )
    for _ in range(random.randrange(1, 4)):
        sequence.add_eom_pulse(
            "global",
            _duration(random, 50),
            random.uniform(0, 6),
            post_phase_shift=random.uniform(0, 2),
            correct_phase_drift=bool(random.randrange(2)),
        )
        sequence.delay(_duration(random, 20), "global")
    sequence.disable_eom_mode("global", correct_phase_drift=bool(random.randrange(2)))
    if random.randrange(2):
        sequence.add(_pulse(random), "global")
    return sequence


def _dmm(random: Random) -> Pulses:
    device = random.choice(DEVICES)
    register = _register(random, random.randrange(2, 6))
    sequence: Pulses = Sequence(register, device)
    weights = {name: random.uniform(0.1, 1.0) for name in register.qubit_ids}
    sequence.config_detuning_map(register.define_detuning_map(weights), "dmm_0")
    sequence.declare_channel("global", "rydberg_global")
    for _ in range(random.randrange(1, 4)):
        sequence.add(_pulse(random), "global", protocol=_protocol(random))
        detuning = _waveform(random, _duration(random), -20.0, -0.01)
        sequence.add_dmm_detuning(detuning, "dmm_0")
    return sequence


def _slm(random: Random) -> Pulses:
    """A mask by a detuning of some atoms until the first global pulse has ended."""
    device = random.choice(DEVICES[:2])
    register = _register(random, random.randrange(2, 6))
    sequence: Pulses = Sequence(register, device)
    masked = random.sample([*register.qubit_ids], random.randrange(1, 3))
    early = random.randrange(2)
    if early:
        sequence.config_slm_mask(masked, "dmm_0")
    sequence.declare_channel("global", "rydberg_global")
    if not early:
        sequence.config_slm_mask(masked, "dmm_0")
    sequence.add(_pulse(random), "global")
    sequence.add(_pulse(random), "global")
    return sequence


def _xy(random: Random, masked: bool = False) -> Pulses:
    register: BaseRegister = _register(random, random.randrange(2, 6), 9.0)
    if random.randrange(3) == 0:
        register = _in_space(random, register)
    sequence: Pulses = Sequence(register, MockDevice)
    sequence.declare_channel("global", "mw_global")
    if random.randrange(3):
        sequence.set_magnetic_field(*(random.uniform(0.5, 2.0) for _ in range(3)))
    if masked:
        several = random.sample([*register.qubit_ids], random.randrange(1, 3))
        sequence.config_slm_mask(several)
    _play(random, sequence, {"global": "XY"})
    if random.randrange(2):
        sequence.measure("XY")
    return sequence


def _xy_slm(random: Random) -> Pulses:
    return _xy(random, masked=True)


def _in_space(random: Random, register: BaseRegister) -> Register3D:
    places = {
        name: (*place.as_array(), random.uniform(-6.0, 6.0))
        for name, place in register.qubits.items()
    }
    return Register3D(places)


def _three_dimensions(random: Random) -> Pulses:
    device = random.choice((MockDevice, OWN))
    register = _in_space(random, _register(random, random.randrange(2, 7)))
    sequence: Pulses = Sequence(register, device)
    sequence.declare_channel("global", "rydberg_global")
    _play(random, sequence, {"global": "ground-rydberg"})
    return sequence


def _variables(random: Random) -> Built:
    device = random.choice(DEVICES[:2])
    register = _register(random, random.randrange(2, 6))
    template: Pulses = Sequence(register, device)
    template.declare_channel("global", "rydberg_global")
    template.declare_channel("local", "rydberg_local")
    duration = template.declare_variable("duration", dtype=int)
    amplitude = template.declare_variable("amplitude")
    corners = template.declare_variable("corners", size=3)
    # a variable as a target is built, but Pulser cannot serialize the result
    target = random.randrange(len(register.qubit_ids))
    phase = template.declare_variable("phase")
    ramp = RampWaveform(duration, -amplitude, amplitude * 2)
    template.add(Pulse(ConstantWaveform(duration, amplitude), ramp, phase), "global")
    template.target_index(target, "local")
    bent = InterpolatedWaveform(duration * 2, corners)
    template.add(Pulse.ConstantDetuning(bent, amplitude - 3, phase / 2), "local")
    template.delay(duration, "global")
    template.add(Pulse.ConstantPulse(duration, amplitude, 0, 0), "global")
    template.phase_shift_index(phase, target, basis="ground-rydberg")
    template.add(Pulse.ConstantPulse(duration, amplitude, 0, 0), "local")
    values: Values = {
        "duration": _duration(random),
        "amplitude": random.uniform(2.0, 9.0),
        "corners": np.array([random.uniform(0.5, 9.0) for _ in range(3)]),
        "phase": np.float64(random.uniform(0, 6)),
    }
    return _built("variables", template, values)


def _analog_variables(random: Random) -> Built:
    template = _on_layout(random, random.randrange(2, 6))
    template.declare_channel("global", "rydberg_global")
    duration = template.declare_variable("duration", dtype=int)
    corners = template.declare_variable("corners", size=4)
    bent = InterpolatedWaveform(duration, corners)
    pulse = Pulse(bent, RampWaveform(duration, -corners[0], corners[2]), 0)
    template.add(pulse, "global")
    values: Values = {
        "duration": _duration(random),
        "corners": np.array([random.uniform(1.0, 9.0) for _ in range(4)]),
    }
    return _built("analog variables", template, values)


def _mappable(random: Random) -> Built:
    places = np.array([(7.0 * x, 7.0 * y) for x in range(4) for y in range(3)])
    layout = RegisterLayout(places - places.mean(axis=0))
    size = random.randrange(2, 6)
    register = layout.make_mappable_register(size, prefix="q")
    template: Pulses = Sequence(register, MockDevice)
    template.declare_channel("global", "rydberg_global")
    template.declare_channel("local", "rydberg_local")
    template.target("q0", "local")
    template.add(_pulse(random), "global")
    template.add(_pulse(random), "local")
    traps = random.sample(range(len(places)), random.randrange(1, size + 1))
    qubits = {f"q{n}": trap for n, trap in enumerate(traps)}
    return _built("mappable register", template, {"qubits": qubits})


KINDS: Mapping[str, Callable[[Random], Pulses | Built]] = {
    "Rydberg, global": _rydberg_global,
    "Rydberg, analog device": _analog,
    "Rydberg, local": _rydberg_local,
    "Raman": _raman,
    "Rydberg and Raman": _both,
    "EOM": _eom,
    "DMM": _dmm,
    "SLM mask": _slm,
    "XY": _xy,
    "XY, SLM mask": _xy_slm,
    "three dimensions": _three_dimensions,
    "variables": _variables,
    "variables, analog device": _analog_variables,
    "mappable register": _mappable,
}
#: kinds for the device that the service describes to clients
FOR_CLIENTS = ("Rydberg, analog device", "variables, analog device")
