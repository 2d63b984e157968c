"""Random sequences compared with Pulser alone; the estimated CPU time, and that taken.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.sequences --random 100
    OMP_NUM_THREADS=1 python -m tests.benchmarks.sequences [--largest 14]

Random sequences go to one service without noise: each as text, in warden's dialect, and
on Pulser's backend if they are for the device that the service describes. The first
command writes the table of the documentation, and ends with 1 if there is a difference.

For the estimate, squares of atoms, 6 um apart, are driven by a constant pulse, a ramp, or a short pulse and
a delay. CPU seconds are of this process, so other load on the host hardly matters.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings

from pulser import AnalogDevice, Pulse, Register, Sequence
from pulser.waveforms import BlackmanWaveform, RampWaveform

from sf_quantum.service.device.emulator.atoms import simulation
from sf_quantum.service.device.emulator.atoms.runner import SequenceSimulator
from sf_quantum.service.device.emulator.computation import compute_seconds
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.jobs import Size
from tests.support.distributions import LEAST, p_value
from tests.support.pulse_sequences import (
    FOR_CLIENTS,
    KINDS,
    probabilities,
    random_sequence,
)
from tests.support.sequence_paths import by_backend, by_text, by_warden
from tests.support.service import running_service

# other sequences than those of the tests, which are the first
FIRST = 1400
SHOTS, CLIENT_SHOTS = 20_000, 2000
SHAPES = ("constant", "ramp", "delay")
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


def checked(content: str) -> Size:
    """Return the size of a sequence, as the service reads it."""
    return SequenceSimulator().check(content, qubits=14)


def cpu_seconds(content: str, shots: int) -> float:
    """Simulate a sequence, and return the CPU time."""
    began = time.process_time()
    simulation.simulate(content, {"num_reads": shots, "seed": 1}, bond_dimension=64)
    return time.process_time() - began


def compare(count: int) -> bool:
    """Print the table of the comparisons, and return whether there is no difference."""
    device = EmulatedDevice(technology="neutral-atom", qubits=14, time_scale=0, seed=1)
    values: dict[str, list[float]] = {kind: [] for kind in KINDS}
    sequences = dict.fromkeys(KINDS, 0)
    with running_service(device) as service:
        lease = service.acquire()
        for number in range(FIRST, FIRST + count):
            kind = [*KINDS][number % len(KINDS)]
            made = random_sequence(number)
            counted = [
                by_text(service, lease, made.sequence, SHOTS),
                by_warden(service, lease, made.sequence, SHOTS),
            ]
            if kind in FOR_CLIENTS:
                counted += by_backend(service, lease, made, CLIENT_SHOTS)
            expected = probabilities(made.sequence)
            found = [p_value(counts, expected) for counts in counted]
            values[kind] += found
            sequences[kind] += 1
            print(number, kind, *(f"{p:.2g}" for p in found), file=sys.stderr)
    print("| sequences | number | runs | smallest p | differences |")
    print("|---|--:|--:|--:|--:|")
    every = [p for found in values.values() for p in found]
    for kind, found in [*values.items(), ("all", every)]:
        if found:
            number = sequences.get(kind, count)
            differ = sum(p < LEAST for p in found)
            line = f"| {kind} | {number} | {len(found)} | {min(found):.2g} | {differ} |"
            print(line)
    return all(p >= LEAST for p in every)


def main() -> None:
    """Print the comparisons, or a line for each case of the estimate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--random", type=int, help="number of sequences to compare")
    parser.add_argument("--largest", type=int, default=14, help="number of atoms")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.random:
        sys.exit(not compare(arguments.random))
    estimate(arguments.largest)


def estimate(largest: int) -> None:
    """Print a line for each case, of at most some atoms."""
    cpu_seconds(text("constant", 2, 200), 1)  # imports QuTiP
    for kind in SHAPES:
        for atoms, nanoseconds, shots in CASES:
            if atoms <= largest:
                size = checked(content := text(kind, atoms, nanoseconds))
                took = cpu_seconds(content, shots)
                expected = compute_seconds(size, {"num_reads": shots})
                print(
                    f"{kind:8} {atoms:2} atoms {nanoseconds:5} ns {shots:6} shots: "
                    f"{took:6.3f} s, estimated {expected:6.3f} s ({expected / took:.2f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
