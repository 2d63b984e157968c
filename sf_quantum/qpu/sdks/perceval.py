"""A QPU as a remote computer of Perceval."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from numpy.random import default_rng
from perceval import BasicState, BSCount, DetectionType, Experiment
from perceval.runtime import (
    Command,
    CommandFactory,
    CommunicationLayer,
    Computation,
    ExecutionStatus,
    PlatformSpecs,
    RunningStatus,
)
from perceval.runtime import RemoteComputer as RemoteComputer
from perceval.serialization import serialize
from perceval.utils import NoiseModel
from perceval.utils.noise_model import noise_to_perf_dict, perf_dict_to_noise

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, mapping
from sf_quantum.qpu import running
from sf_quantum.qpu.jobs import Description, Outcome, Task, number
from sf_quantum.qpu.running import JobSide, not_taken
from sf_quantum.threads import in_thread


def computer(qpu: JobSide) -> RemoteComputer:
    """Make a remote computer of Perceval.

    :param qpu: the job's side of a kind that takes experiments with photons
    :raises InputError: if it takes none
    :raises QpuError: if it does not answer
    """
    return RemoteComputer(Connection(qpu))


class Connection(CommunicationLayer):
    """Runs each computation of Perceval as a job of the QPU.

    What it asks for as shots are those of the job, of which at least as many photons as
    the experiment wants reach the detectors.
    """

    def __init__(self, qpu: JobSide) -> None:
        self._qpu = qpu
        described = qpu.describe()
        if "photonic" not in described.kinds or described.specs is None:
            raise not_taken(qpu, described, "photons")
        self._specs = PlatformSpecs(mapping(json.loads(described.specs)))
        self._specs["type"] = "physical"
        self._specs.commands = self.get_commands()
        self._jobs: dict[str, _Job] = {}
        # what the QPU has told of its own noise
        self._noises: list[NoiseModel] = []

    @property
    def name(self) -> str:
        return self._qpu.name

    def get_specs(self) -> PlatformSpecs:
        return self._specs

    def get_commands(self) -> list[Command]:
        return [CommandFactory.sample_count]

    def get_performances(self) -> dict[str, float]:
        told = performances(self._qpu.describe())
        if (noise := perf_dict_to_noise(told)) not in self._noises:
            self._noises.append(noise)
        return told

    def get_platform_details(self) -> dict[str, JSON]:
        return {**self._specs, "perfs": self.get_performances()}

    def get_remote_status(self) -> str:
        return "available"

    def get_availability(self) -> int:
        return 1

    def send(self, payload: Mapping[str, Computation]) -> str:
        """Submit a computation as a job; returns at once.

        :raises InputError: if it is none that the QPU can run
        """
        # after the first results, Perceval sends back the noise that it was told
        noise = payload.get("noise")
        if (noise and noise not in self._noises) or payload.get("mitigations"):
            raise InputError("the QPU has its own noise, and knows no mitigations")
        if payload.get("parameters"):
            raise InputError("parameters: the QPU has none")
        computation = payload["computation"]
        if not isinstance(computation, Computation):
            raise InputError(
                "iterations are not supported: run them one after the other"
            )
        told = computation.parameters
        content = json.dumps(experiment(computation.experiment))
        tag = f"sfq-{secrets.token_hex(8)}"
        task = Task(tag, "photonic", content, {"num_reads": told["max_shots"]})
        outcome = in_thread(lambda: self._qpu.run_job(task))
        self._jobs[tag] = _Job(outcome, told["max_samples"])
        return tag

    def get_job_status(self, remote_id: str, _: int = 0) -> ExecutionStatus:
        status, outcome = ExecutionStatus(), self._jobs[remote_id].outcome
        status.start_run()
        if outcome.done():
            error = outcome.exception()
            failure = str(error) if error else outcome.result().failure
            ended = RunningStatus.ERROR if failure else RunningStatus.SUCCESS
            status.stop_run(ended, failure)
        return status

    def get_results(self, remote_id: str) -> dict[str, BSCount | float]:
        """Wait for the counts.

        :raises QuantumError: if the QPU refuses the job, fails or does not answer
        """
        job = self._jobs[remote_id]
        outcome = job.outcome.result()
        if outcome.result is None:
            raise QpuError(f"QPU {self.name!r}: {outcome.failure}")
        counter = json.loads(outcome.result.text)["counter"]
        return {"results": job.samples(counter)}

    def cancel(self, remote_id: str) -> None:
        """Cancel the job on the QPU.

        :raises QpuError: if the QPU cannot find it by its tag, or does not answer
        """
        running.cancel(self._qpu, remote_id, self._jobs[remote_id].outcome)


@dataclass(frozen=True)
class _Job:
    outcome: Future[Outcome]
    most_samples: int

    def samples(self, counter: Mapping[str, int]) -> BSCount:
        """Return the counts, of at most so many samples, drawn from all."""
        states, counts = [*counter], [*counter.values()]
        if sum(counts) > self.most_samples:
            drawn = default_rng().multivariate_hypergeometric(counts, self.most_samples)
            counts = [int(count) for count in drawn]
        told = zip(states, counts, strict=True)
        return BSCount({BasicState(state): count for state, count in told if count})


def experiment(told: Experiment) -> dict[str, JSON]:
    """Write an experiment as the payload of a job.

    :raises InputError: if the QPU cannot run it
    """
    if told.noise is not None:
        raise InputError("noise: the QPU has its own")
    if not isinstance(told.input_state, BasicState):
        raise InputError("input state: expected a Fock state")
    for detector in told.detectors:
        if detector is not None and detector.type is not DetectionType.Threshold:
            raise InputError(
                f"detector {detector.name}: those of the QPU are threshold"
            )
    if not told.is_unitary:
        raise InputError("circuit: is not of linear optics without losses")
    condition = told.post_select_fn
    postselect = str(condition) if condition and condition.has_condition else None
    return {
        "circuit": serialize(told.unitary_circuit()),
        "input_state": str(told.input_state),
        "min_detected_photons": told.min_photons_filter,
        "heralds": {str(mode): count for mode, count in told.heralds.items()},
        "postselect": postselect,
    }


def performances(described: Description) -> dict[str, float]:
    """Write a calibration as Perceval's clouds do, in per cent."""
    told = mapping((described.calibration or {}).get("values"))
    known = {name: number(told.get(name)) or 0.0 for name in told}
    loss = known.get("source_loss_db", 0.0) + known.get("loss_db", 0.0)
    noise = NoiseModel(
        transmittance=10.0 ** (-loss / 10.0),
        indistinguishability=1.0 - known.get("distinguishability", 0.0),
        g2=known.get("g2", 0.0),
    )
    told_by_noise: dict[str, float] = noise_to_perf_dict(noise)
    return told_by_noise
