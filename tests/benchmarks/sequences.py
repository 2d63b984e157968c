"""The estimated CPU time of neutral-atom sequences, and what the emulator takes.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.sequences [--largest 14]

Squares of atoms, 6 um apart, are driven by a constant pulse, a ramp, or a short pulse and
a delay. CPU seconds are of this process, so other load on the host hardly matters.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings

from pulser import AnalogDevice, Pulse, Register, Sequence
from pulser.waveforms import BlackmanWaveform, RampWaveform

from sf_quantum.service.device.emulator import pulses
from sf_quantum.service.device.emulator.computation import compute_seconds, evolution
from sf_quantum.service.domain.jobs import Size

KINDS = ("constant", "ramp", "delay")
# atoms, nanoseconds and shots
CASES = (
    (2, 400, 100),
    (4, 4000, 1000),
    (8, 1000, 100),
    (8, 4000, 100_000),
    (10, 2000, 100),
    (12, 2000, 100),
    (13, 2000, 100),
    (14, 2000, 100),
)


def text(kind: str, atoms: int, nanoseconds: int) -> str:
    """Return a sequence in Pulser's abstract representation."""
    side = math.ceil(math.sqrt(atoms))
    places = [(6.0 * (n % side), 6.0 * (n // side)) for n in range(atoms)]
    sequence = Sequence(Register.from_coordinates(places, prefix="q"), AnalogDevice)
    sequence.declare_channel("g", "rydberg_global")
    if kind == "ramp":
        shape = BlackmanWaveform(nanoseconds, 4e-3 * nanoseconds)
        sequence.add(Pulse(shape, RampWaveform(nanoseconds, -20, 20), 0.0), "g")
    else:
        driven = nanoseconds if kind == "constant" else 200
        sequence.add(Pulse.ConstantPulse(driven, 6.0, 0.0, 0.0), "g")
        if driven < nanoseconds:
            sequence.delay(nanoseconds - driven, "g")
    return str(sequence.to_abstract_repr())


def cpu_seconds(content: str, shots: int) -> float:
    """Simulate a sequence, and return the CPU time."""
    began = time.process_time()
    pulses.simulate(content, {"num_reads": shots, "seed": 1}, bond_dimension=64)
    return time.process_time() - began


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--largest", type=int, default=14, help="number of atoms")
    largest = parser.parse_args().largest
    warnings.simplefilter("ignore")
    cpu_seconds(text("constant", 2, 200), 1)  # imports QuTiP
    for kind in KINDS:
        for atoms, nanoseconds, shots in CASES:
            if atoms <= largest:
                took = cpu_seconds(text(kind, atoms, nanoseconds), shots)
                size = Size(atoms, evolution=evolution(atoms, nanoseconds))
                expected = compute_seconds(size, {"num_reads": shots})
                print(
                    f"{kind:8} {atoms:2} atoms {nanoseconds:5} ns {shots:6} shots: "
                    f"{took:6.3f} s, estimated {expected:6.3f} s ({expected / took:.2f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
