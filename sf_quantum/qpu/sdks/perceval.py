"""A QPU as a remote computer of Perceval."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from operator import index
from typing import ClassVar, TypeAlias

from numpy.random import default_rng
from perceval import (
    BasicState,
    BSCount,
    BSDistribution,
    BSSamples,
    DetectionType,
    Experiment,
)
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
from perceval.runtime.legacy import RemoteProcessor as RemoteProcessor
from perceval.serialization import deserialize, serialize
from perceval.utils import NoiseModel
from perceval.utils.noise_model import noise_to_perf_dict, perf_dict_to_noise

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, mapping
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import Outcome, Task
from sf_quantum.protocol.values import number
from sf_quantum.qpu import running
from sf_quantum.qpu.running import JobSide, not_taken
from sf_quantum.threads import in_thread

Results: TypeAlias = BSCount | BSSamples | BSDistribution
NO_ITERATIONS = "iterations are not supported: run them one after the other"


def computer(qpu: JobSide) -> RemoteComputer:
    """Make a remote computer of Perceval.

    :param qpu: job's side of a QPU that accepts photonic experiments
    :raises InputError: if the QPU does not accept such experiments
    :raises QpuError: if the QPU does not answer
    """
    return RemoteComputer(Connection(qpu))


def processor(qpu: JobSide) -> RemoteProcessor:
    """Make a remote processor of Perceval, for its ``Sampler`` and similar algorithms.

    :param qpu: job's side of a QPU that accepts photonic experiments
    :raises InputError: if the QPU does not accept such experiments
    :raises QpuError: if the QPU does not answer
    """
    return RemoteProcessor(rpc_handler=Cloud(Connection(qpu)))


class Connection(CommunicationLayer):
    """Runs each computation of Perceval as a job of the QPU.

    The shots that Perceval requests are the job's shots: in each shot, at least as many
    photons as the experiment requires reach the detectors.
    """

    def __init__(self, qpu: JobSide) -> None:
        self._qpu = qpu
        described = qpu.describe()
        if "photonic" not in described.kinds or described.specs is None:
            raise not_taken(qpu, described, "photons")
        #: Specifications of the QPU, with Perceval's names.
        self.description = mapping(json.loads(described.specs))
        self._specs = PlatformSpecs(self.description)
        self._specs["type"] = "physical"
        self._specs.commands = self.get_commands()
        self._jobs: dict[str, _Job] = {}
        # noise models that the QPU has reported
        self._noises: list[NoiseModel] = []

    @property
    def name(self) -> str:
        return self._qpu.name

    def get_specs(self) -> PlatformSpecs:
        return self._specs

    def get_commands(self) -> list[Command]:
        return [
            CommandFactory.sample_count,
            CommandFactory.samples,
            CommandFactory.probs,
        ]

    def get_performances(self) -> dict[str, float]:
        values = performances(self._qpu.describe())
        if (noise := perf_dict_to_noise(values)) not in self._noises:
            self._noises.append(noise)
        return values

    def get_platform_details(self) -> dict[str, JSON]:
        return {**self._specs, "perfs": self.get_performances()}

    def get_remote_status(self) -> str:
        return "available"

    def get_availability(self) -> int:
        return 1

    def send(self, payload: Mapping[str, Computation]) -> str:
        """Submit a computation as a job; return immediately.

        :raises InputError: if the QPU cannot run the computation
        """
        # after the first results, Perceval sends back the noise that the QPU has reported
        noise = payload.get("noise")
        if (noise and noise not in self._noises) or payload.get("mitigations"):
            raise InputError("the QPU has its own noise, and knows no mitigations")
        if payload.get("parameters"):
            raise InputError("parameters: the QPU has none")
        computation = payload["computation"]
        if not isinstance(computation, Computation):
            raise InputError(NO_ITERATIONS)
        parameters = computation.parameters
        return self.submit(
            computation.command.name,
            computation.experiment,
            shots=parameters["max_shots"],
            samples=parameters.get("max_samples"),
        )

    def submit(
        self, command: str, setup: Experiment, *, shots: int, samples: int | None
    ) -> str:
        """Submit a job; return immediately.

        :param command: one of :meth:`get_commands`
        :param samples: maximum number of samples in the results; ``None`` for all
        :returns: the job's id
        :raises InputError: if the QPU cannot run the job
        """
        content = json.dumps(experiment(setup))
        tag = f"sfq-{secrets.token_hex(8)}"
        task = Task(tag, "photonic", content, {"num_reads": index(shots)})
        outcome = in_thread(lambda: self._qpu.run_job(task))
        self._jobs[tag] = _Job(outcome, command, samples)
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

    def get_results(self, remote_id: str) -> dict[str, Results]:
        """Wait for the results, in the form of the job's command.

        :raises QuantumError: if the QPU rejects the job, fails or does not answer
        """
        job = self._jobs[remote_id]
        outcome = job.outcome.result()
        if outcome.result is None:
            raise QpuError(f"QPU {self.name!r}: {outcome.failure}")
        return {"results": job.results(json.loads(outcome.result.text)["counter"])}

    def cancel(self, remote_id: str) -> None:
        """Cancel the job on the QPU.

        :raises QpuError: if the QPU cannot look up jobs by their tags, or does not answer
        """
        running.cancel(self._qpu, remote_id, self._jobs[remote_id].outcome)


class Cloud:
    """Replaces the cloud that Perceval's ``RemoteProcessor`` calls with a job's QPU.

    A job has Perceval's format for clouds: a serialized experiment and a command.
    """

    url = ""
    proxies: ClassVar[Mapping[str, str]] = {}
    headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.name = connection.name

    def fetch_platform_details(self) -> dict[str, JSON]:
        names: list[JSON] = [one.name for one in self._connection.get_commands()]
        specs = {**self._connection.description, "available_commands": names}
        return {
            "specs": specs,
            "type": "physical",
            "status": self._connection.get_remote_status(),
            "perfs": {**self._connection.get_performances()},
        }

    def create_job(self, request: Mapping[str, Mapping[str, JSON]]) -> str:
        """Submit a job; return immediately.

        :raises InputError: if the QPU cannot run the job
        """
        payload = request["payload"]
        if payload.get("iterator"):
            raise InputError(NO_ITERATIONS)
        if payload.get("parameters") or payload.get("mitigations"):
            raise InputError("the QPU has no parameters, and knows no mitigations")
        shots, samples = payload.get("max_shots"), payload.get("max_samples")
        if not isinstance(shots, int) or not isinstance(samples, int | None):
            raise InputError("max_shots_per_call and max_samples: expected integers")
        return self._connection.submit(
            str(payload["command"]),
            deserialize(payload["experiment"]),
            shots=shots,
            samples=samples,
        )

    def get_job_status(self, job_id: str) -> dict[str, JSON]:
        status = self._connection.get_job_status(job_id)
        return {
            "status": RunningStatus.to_server_response(status.status),
            "status_message": status.message,
            "progress": status.progress,
            "progress_message": "",
            "creation_datetime": 0.0,
            "start_time": 0.0,
            "duration": 0,
        }

    def get_job_results(self, job_id: str) -> dict[str, str]:
        """See :meth:`Connection.get_results`."""
        results = self._connection.get_results(job_id)
        return {"results": json.dumps(serialize(results))}

    def cancel_job(self, job_id: str) -> None:
        """See :meth:`Connection.cancel`."""
        self._connection.cancel(job_id)

    def rerun_job(self, job_id: str) -> str:
        raise InputError(f"job {job_id} cannot be run again: submit it again")


@dataclass(frozen=True)
class _Job:
    outcome: Future[Outcome]
    command: str
    most_samples: int | None

    def results(self, counter: Mapping[str, int]) -> Results:
        """Return the results in the form of the command, from at most ``most_samples``."""
        states, counts = [*map(BasicState, counter)], [*counter.values()]
        total = sum(counts)
        if self.most_samples is not None and total > self.most_samples:
            total = self.most_samples
            drawn = default_rng().multivariate_hypergeometric(counts, total)
            counts = [int(count) for count in drawn]
        counted = {state: n for state, n in zip(states, counts, strict=True) if n}
        if self.command == "probs":
            return BSDistribution({state: n / total for state, n in counted.items()})
        if self.command == "samples":
            # a job does not report the order of its shots, which are independent
            each = [state for state, n in counted.items() for _ in range(n)]
            return BSSamples([each[n] for n in default_rng().permutation(total)])
        return BSCount(counted)


def experiment(setup: Experiment) -> dict[str, JSON]:
    """Convert an experiment to the payload of a job.

    :raises InputError: if the QPU cannot run the experiment
    """
    if setup.noise is not None:
        raise InputError("noise: the QPU has its own")
    if not isinstance(setup.input_state, BasicState):
        raise InputError("input state: expected a Fock state")
    for detector in setup.detectors:
        if detector is not None and detector.type is not DetectionType.Threshold:
            raise InputError(
                f"detector {detector.name}: those of the QPU are threshold"
            )
    if not setup.is_unitary:
        raise InputError("circuit: is not of linear optics without losses")
    condition = setup.post_select_fn
    postselect = str(condition) if condition and condition.has_condition else None
    return {
        "circuit": serialize(setup.unitary_circuit()),
        "input_state": str(setup.input_state),
        "min_detected_photons": setup.min_photons_filter,
        "heralds": {str(mode): count for mode, count in setup.heralds.items()},
        "postselect": postselect,
    }


def performances(described: Description) -> dict[str, float]:
    """Convert a calibration to the format of Perceval's clouds, in per cent."""
    calibrated = (described.calibration or CalibrationData()).values
    values = {name: number(calibrated.get(name)) or 0.0 for name in calibrated}
    loss = values.get("source_loss_db", 0.0) + values.get("loss_db", 0.0)
    noise = NoiseModel(
        transmittance=10.0 ** (-loss / 10.0),
        indistinguishability=1.0 - values.get("distinguishability", 0.0),
        g2=values.get("g2", 0.0),
    )
    performance: dict[str, float] = noise_to_perf_dict(noise)
    return performance
