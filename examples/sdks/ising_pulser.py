"""The ground state of an Ising chain by Pulser: four atoms, prepared adiabatically.

The atoms' interaction is U n_i n_i+1, which is U/4 Z_i Z_i+1 and fields along Z. With the
Rabi frequency U/2 and the detuning U, this is H = sum Z_i Z_i+1 + sum X_i in units of U/4,
which has the spectrum of -sum Z_i Z_i+1 - sum X_i. Two things differ: the two outer atoms
have a neighbour less and so a field along Z, and next neighbours interact by U/64. Atoms
are read along Z only: the energy here is that of the couplings, sum <Z_i Z_i+1>. In the
ground state of the atoms' H it is -1.0881 (without what differs, -1.5184).
"""

from itertools import pairwise

from pulser import AnalogDevice, Pulse, Register, Sequence
from pulser.waveforms import (
    CompositeWaveform,
    ConstantWaveform,
    InterpolatedWaveform,
)

from sf_quantum.qpu.environment import leased

U, EXACT, RUNS = 10.0, -1.0881, 2000
RAMP, SWEEP = 1664, 3336  # ns

distance = AnalogDevice.rydberg_blockade_radius(U)
atoms = Register.rectangle(1, 4, spacing=distance, prefix="q").with_automatic_layout(
    AnalogDevice
)
sequence = Sequence(atoms, AnalogDevice)
sequence.declare_channel("global", "rydberg_global")
amplitude = CompositeWaveform(
    InterpolatedWaveform(RAMP, [0, U / 2]), ConstantWaveform(SWEEP, U / 2)
)
detuning = CompositeWaveform(
    ConstantWaveform(RAMP, -U), InterpolatedWaveform(SWEEP, [-U, U])
)
sequence.add(Pulse(amplitude, detuning, 0.0), "global")

backend = leased().pulser_backend(sequence)
(result,) = backend.run([{"runs": RUNS}], wait=True).results
signs = {
    bits: sum(1 if a == b else -1 for a, b in pairwise(bits))
    for bits in result.final_bitstrings
}
total = sum(signs[bits] * runs for bits, runs in result.final_bitstrings.items())
print(f"energy {total / RUNS:.3f}, exact {EXACT}")
