"""Random experiments with photons, compared with Perceval alone; its stock sampler."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from functools import partial

import pytest

pytest.importorskip("perceval", reason="perceval-quandela is not installed")

from perceval import BasicState, BSCount, BSDistribution, BSSamples, NoiseModel
from perceval.algorithm import Sampler
from perceval.runtime import ExecutionFactory
from perceval.runtime.legacy import RemoteJob, RemoteProcessor

from sf_quantum.errors import InputError
from sf_quantum.protocol.tasks import Task
from sf_quantum.qpu.sdks.perceval import experiment
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support.distributions import LEAST, p_value
from tests.support.photonic_experiments import probabilities, random_experiment
from tests.support.service import running_service
from tests.support.waiting import until

SHOTS = 5000
IDEAL = EmulatedDevice(technology="photonic", time_scale=0, seed=7)
NOISY = EmulatedDevice(
    technology="photonic", time_scale=0, seed=7, noise=1.0, calibration_seconds=1e9
)


def noise_of(device: EmulatedDevice) -> NoiseModel:
    """Return the noise that the calibration of a device tells."""
    values = device.calibrations.reading.values
    return NoiseModel(
        brightness=10 ** (-values.get("source_loss_db", 0.0) / 10),
        transmittance=10 ** (-values.get("loss_db", 0.0) / 10),
        indistinguishability=1 - values.get("distinguishability", 0.0),
        g2=values.get("g2", 0.0),
    )


def compared(counts: Mapping[str, int], expected: Mapping[str, float]) -> float:
    # some conditions leave nothing
    return p_value(counts, expected) if expected else float(not counts)


@pytest.mark.parametrize("device", [IDEAL, NOISY], ids=["ideal", "noisy"])
@pytest.mark.parametrize("number", range(10))
def test_an_experiment_gives_what_perceval_gives(
    device: EmulatedDevice, number: int
) -> None:
    told = random_experiment(number)
    content = experiment(told)
    assert device.check("photonic", content, {"num_reads": SHOTS}).photons
    parameters = {"num_reads": SHOTS, "seed": number}
    task = Task("tag", "photonic", json.dumps(content), parameters)
    outcome = device.run(task, threading.Event())
    assert outcome.result is not None, outcome.failure
    counts = json.loads(outcome.result.text)["counter"]
    assert compared(counts, probabilities(told, noise_of(device))) > LEAST


@pytest.fixture(scope="module")
def qpu() -> Iterator[SfqQpu]:
    with running_service(IDEAL) as service:
        yield SfqQpu("q", service.url, lease=service.acquire())


@pytest.fixture
def processor(qpu: SfqQpu) -> RemoteProcessor:
    """A processor with two photons in three modes, as any program of Perceval's makes."""
    told = random_experiment(22)
    made = qpu.photonic_processor()
    made.set_circuit(told.unitary_circuit())
    made.with_input(told.input_state)
    made.min_detected_photons_filter(told.min_photons_filter)
    return made


def ended(job: RemoteJob) -> BSCount | BSSamples | BSDistribution:
    until(partial(getattr, job, "is_complete"), "the job is complete")
    results: BSCount | BSSamples | BSDistribution = job.get_results()["results"]
    return results


def test_percevals_sampler_counts_samples_and_estimates(
    processor: RemoteProcessor,
) -> None:
    sampler = Sampler(processor, max_shots_per_call=SHOTS)
    counts = ended(sampler.sample_count.execute_async(SHOTS))
    samples = ended(sampler.samples.execute_async(100))
    chances = ended(sampler.probs.execute_async())
    expected = probabilities(processor.experiment, NoiseModel())
    assert isinstance(counts, BSCount)
    read = {str(state): int(n) for state, n in counts.items()}
    assert p_value(read, expected) > LEAST
    assert isinstance(samples, BSSamples)
    assert len(samples) == 100
    assert {*map(str, samples)} <= {*expected}
    assert isinstance(chances, BSDistribution)
    estimated = {str(state): round(SHOTS * p) for state, p in chances.items()}
    assert sum(estimated.values()) == SHOTS
    assert p_value(estimated, expected) > LEAST


def test_an_execution_samples_and_estimates(qpu: SfqQpu) -> None:
    told = random_experiment(22)
    factory = ExecutionFactory(qpu.photonic_computer(), told, max_shots_per_call=50)
    for name, form in (("samples", BSSamples), ("probs", BSDistribution)):
        execution = getattr(factory, name)
        execution.execute_async(**({"max_samples": 20} if name == "samples" else {}))
        until(partial(getattr, execution, "is_complete"), "the execution is complete")
        assert isinstance(execution.get_results()["results"], form)


def test_what_a_processor_cannot_do_is_refused_at_once(
    processor: RemoteProcessor,
) -> None:
    sampler = Sampler(processor, max_shots_per_call=50)
    sampler.add_iteration(input_state=BasicState([1, 0, 0]))
    with pytest.raises(InputError, match="iterations are not supported"):
        sampler.probs.execute_async()
    processor.set_parameter("HOM", 0.5)
    with pytest.raises(InputError, match="has no parameters"):
        Sampler(processor, max_shots_per_call=50).probs.execute_async()
    processor.clear_parameters()
    processor.noise = NoiseModel(g2=0.1)
    with pytest.raises(InputError, match="the QPU has its own"):
        Sampler(processor, max_shots_per_call=50).probs.execute_async()


def test_a_refused_job_of_a_processor_says_why(processor: RemoteProcessor) -> None:
    sampler = Sampler(processor, max_shots_per_call=10**9)
    job = sampler.sample_count.execute_async(5)
    until(partial(getattr, job, "is_failed"), "the job has failed")
    assert "num_reads: Input should be less than" in job.status.stop_message
