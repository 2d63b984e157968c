"""The drift alarm: mean number of values between false alarms, and until a drift is found.

For each reference value k and threshold h, a table of run lengths: the mean number of
values until the alarm without a drift (ARL0), and after shifts of the mean, beside
Siegmund's approximation; then the alarm on emulated devices whose calibrations drift,
and its false alarms on devices that do not. Everything is seeded::

    python tests/benchmarks/drift.py [--runs 2000] [--seed 1]
"""

from __future__ import annotations

import argparse
import logging
import math
import random
from collections.abc import Iterator
from statistics import fmean, median, stdev

from sf_quantum.service.device.drift import Cusum, DriftWatch
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.settings import Faults
from sf_quantum.service.device.emulator.technologies import TECHNOLOGIES
from sf_quantum.service.device.readings import READINGS, Reading
from sf_quantum.service.domain.settings import DriftSettings

SHIFTS = (0.5, 1.0, 2.0, 3.0)
# where a false alarm is rarer, its mean takes too long to measure
MOST = 3000.0
CHOICES = [
    *(DriftSettings(reference=0.5, threshold=h) for h in (3.0, 4.0, 5.0, 6.0)),
    *(DriftSettings(reference=1.0, threshold=h) for h in (2.0, 2.5, 3.0, 5.0)),
]


def length(settings: DriftSettings, shift: float, draws: random.Random) -> int:
    """Count the values until the alarm."""
    cusum, number = Cusum(settings), 1
    while not cusum.observe(draws.gauss(shift, 1.0)):
        number += 1
    return number


def measured(settings: DriftSettings, shift: float, runs: int, seed: int) -> str:
    """Format a measured mean run length, its standard error, and Siegmund's value."""
    expected = run_length(settings, shift)
    if expected > MOST:
        return f"- ({expected:,.0f})"
    draws = random.Random(f"{seed}/{settings}/{shift}")
    lengths = [length(settings, shift, draws) for _ in range(runs)]
    error = stdev(lengths) / runs**0.5
    return f"{fmean(lengths):,.1f} ± {error:,.1f} ({expected:,.1f})"


def run_length(settings: DriftSettings, shift: float) -> float:
    """Return the mean number of values until the alarm, including that which raises it.

    Siegmund's approximation (Sequential Analysis, 1985, chapter 2), for both sides
    together as Montgomery gives it.

    :param shift: of the values' mean, in standard deviations; 0 gives the
        number between two false alarms
    """
    sides = (one_sided(settings, shift), one_sided(settings, -shift))
    return 1 / sum(1 / length for length in sides)


def one_sided(settings: DriftSettings, shift: float) -> float:
    """Return the mean number for the upper sum alone."""
    delta, width = shift - settings.reference, settings.threshold + 1.166
    if delta == 0:
        return width**2
    product = 2 * delta * width
    if product < -700:
        return math.inf
    return (math.exp(-product) + product - 1) / (2 * delta**2)


class Clock:
    """A clock that advances from reading to reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def readings(device: EmulatedDevice, clock: Clock, periods: int) -> Iterator[Reading]:
    """Yield every reading of some calibrations."""
    last: Reading | None = None
    for _ in range(periods * READINGS):
        for reading in device.calibrations.readings(last):
            yield reading
            last = reading
        clock.now += device.calibrations.until_next_reading


def alarms(
    technology: str, faults: Faults, periods: int, seed: int
) -> Iterator[Reading]:
    """Return the readings of an emulated device at which an alarm was raised."""
    clock = Clock()
    device = EmulatedDevice(
        technology=technology,
        noise=1,
        seed=seed,
        faults=faults,
        clock=clock,
        started=0,
    )
    watch = DriftWatch(technology)
    for reading in readings(device, clock, periods):
        watch.renewed(reading.calibration.id)
        known = len(watch.alarms)
        for name, deviation in reading.deviations.items():
            watch.observe(name, deviation)
        if len(watch.alarms) > known == 0:
            yield reading


def on_devices(periods: int, seed: int) -> None:
    """Print the results of the alarm on emulated devices."""
    print(f"\nEmulated devices, {periods} calibrations of {READINGS} readings each:\n")
    print("| technology | false alarms | found | delay, readings | errors by then |")
    print("|---|---|---|---|---|")
    for technology in TECHNOLOGIES:
        false = len([*alarms(technology, Faults(), periods, seed)])
        found = [*alarms(technology, Faults(drift=1), periods, seed)]
        delays = [reading.number for reading in found]
        excess = [reading.calibration.excess for reading in found]
        print(
            f"| {technology} | {false} | {len(found)} | median {median(delays):g}, "
            f"worst {max(delays)} | {median(excess):.2f} times, worst {max(excess):.2f} |"
        )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--periods", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.disable()  # of each alarm
    print(
        f"Values until the alarm, mean of {args.runs} runs (Siegmund's); shifts in standard deviations:\n"
    )
    shown = " | ".join(f"shift {shift:g}" for shift in SHIFTS)
    print(f"| k | h | none: ARL0 | {shown} |")
    print(f"|---|---|---|{'---|' * len(SHIFTS)}")
    for settings in CHOICES:
        cells = " | ".join(
            measured(settings, shift, args.runs, args.seed) for shift in (0.0, *SHIFTS)
        )
        print(f"| {settings.reference:g} | {settings.threshold:g} | {cells} |")
    on_devices(args.periods, args.seed)


if __name__ == "__main__":
    main()
