"""Random photonic experiments compared with Perceval alone, and BQMs with exact arithmetic.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.references [--number 100]

Experiments run on an ideal device and on one with noise; BQMs on an annealer with noise and
without, by a service's list and by D-Wave's client over SAPI, and in a pause of the
annealing, whose states have Boltzmann's distribution: in this process, and over SAPI by the
parameter ``anneal_schedule``. Rows of the documentation's table are printed; it ends with 1
if there is a difference.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator

import numpy
from dimod import Vartype
from perceval import NoiseModel

from sf_quantum.protocol.tasks import Task
from sf_quantum.qpu.sampler import QpuSampler
from sf_quantum.qpu.sdks.perceval import experiment
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.samplers.neal import beta_range
from sf_quantum.service.device.emulator.annealing_sampler import AnnealingSampler
from sf_quantum.service.device.emulator.annealing_schedules import Annealing
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support.distributions import LEAST, p_value
from tests.support.photonic_experiments import probabilities, random_experiment
from tests.support.random_bqms import boltzmann, random_bqm, wrong_energies
from tests.support.sapi_bqms import schedule_p_value, solver, wrong_over_sapi
from tests.support.service import running_service

# other ones than those of the tests, which are the first
FIRST = 1000


def photons(number: int, noise: float) -> Iterator[float]:
    """Yield the p value of each experiment."""
    device = EmulatedDevice(
        technology="photonic",
        time_scale=0,
        seed=7,
        noise=noise,
        calibration_seconds=1e9,
    )
    values = device.calibrations.reading.values
    model = NoiseModel(
        brightness=10 ** (-values.get("source_loss_db", 0.0) / 10),
        transmittance=10 ** (-values.get("loss_db", 0.0) / 10),
        indistinguishability=1 - values.get("distinguishability", 0.0),
        g2=values.get("g2", 0.0),
    )
    for one in range(FIRST, FIRST + number):
        told = random_experiment(one)
        content, parameters = experiment(told), {"num_reads": 5000, "seed": one}
        device.check("photonic", content, parameters)
        task = Task("tag", "photonic", json.dumps(content), parameters)
        outcome = device.run(task, threading.Event())
        if outcome.result is None:
            raise RuntimeError(outcome.failure)
        counts = json.loads(outcome.result.text)["counter"]
        expected = probabilities(told, model)
        yield p_value(counts, expected) if expected else float(not counts)


def energies(number: int, noise: float) -> int:
    """Sample lists of BQMs, and return how many samples have a wrong energy."""
    wrong = 0
    device = EmulatedDevice(time_scale=0, qubits=20, noise=noise, seed=1)
    with running_service(device) as service:
        sampler = SfqQpu("q", service.url, lease=service.acquire()).sampler()
        assert isinstance(sampler, QpuSampler)
        bqms = [random_bqm(one) for one in range(FIRST, FIRST + number)]
        found = sampler.sample_multiple(bqms, num_reads=100, seed=3)
        for bqm, samples in zip(bqms, found, strict=True):
            wrong += len(wrong_energies(bqm, samples))
    return wrong


def pauses(number: int) -> Iterator[float]:
    """Yield the p value of each BQM's states in a pause of the annealing."""
    for one in range(FIRST, FIRST + number):
        bqm, s = random_bqm(one, 4), 0.3
        hot, cold = beta_range(bqm.change_vartype(Vartype.SPIN, inplace=False))
        sampler = AnnealingSampler(Annealing(schedule=[[0.0, s], [200.0, s]]))
        found = sampler.sample(bqm, num_reads=20_000, num_sweeps=300, seed=one)
        columns = [found.variables.index(name) for name in bqm.variables]
        rows = numpy.asarray(found.record.sample)[:, columns] > 0
        counts = Counter("".join("01"[int(bit)] for bit in row) for row in rows)
        yield p_value(counts, boltzmann(bqm, hot * (cold / hot) ** s))


def sapi_energies(number: int, noise: float) -> int:
    """Sample BQMs of qubits over SAPI, and return how many samples have a wrong energy."""
    with solver(noise) as annealer:
        return sum(
            len(wrong_over_sapi(annealer, one)) for one in range(FIRST, FIRST + number)
        )


def sapi_schedules(number: int) -> Iterator[float]:
    """Yield the p value of each BQM's states after an annealing as asked for over SAPI."""
    with solver() as annealer:
        for one in range(FIRST, FIRST + number):
            yield schedule_p_value(annealer, one)


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=100, help="of each kind")
    number = parser.parse_args().number
    warnings.simplefilter("ignore")
    differences = 0
    for name, values in (
        ("photons, ideal", photons(number, 0.0)),
        ("photons, with noise", photons(number, 1.0)),
        ("BQMs, in a pause", pauses(number)),
        ("BQMs over SAPI, random schedules", sapi_schedules(number)),
    ):
        found = [*values]
        differ = sum(p < LEAST for p in found)
        differences += differ
        print(f"| {name} | {number} | {number} | {min(found):.2g} | {differ} |")
    for name, count, noise in (
        ("BQMs, energies", energies, 0.0),
        ("BQMs, energies, with noise", energies, 1.0),
        ("BQMs over SAPI, energies", sapi_energies, 0.0),
        ("BQMs over SAPI, energies, with noise", sapi_energies, 1.0),
    ):
        differ = count(number, noise)
        differences += differ
        print(f"| {name} | {number} | {number} | - | {differ} |", flush=True)
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
