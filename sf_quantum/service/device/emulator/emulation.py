"""The run of a job on an emulated device: its time, faults, errors and result."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Outcome, Result, Task
from sf_quantum.samplers.defaults import SEEDS
from sf_quantum.service.device.circuits import texts
from sf_quantum.service.device.emulator.calibrations import EmulatedCalibrations
from sf_quantum.service.device.emulator.computation import Computation
from sf_quantum.service.device.emulator.device_errors import Noise
from sf_quantum.service.device.emulator.photons import photonic
from sf_quantum.service.device.emulator.photons.photonic import PhotonicSimulator
from sf_quantum.service.device.emulator.runners import Runner
from sf_quantum.service.device.emulator.settings import DeviceSettings
from sf_quantum.service.device.emulator.technologies import Errors
from sf_quantum.service.domain.jobs import Size
from sf_quantum.service.domain.reasons import QPU_OFFLINE


@dataclass(frozen=True)
class Emulation:
    """The emulation of a job.

    :param runner: runner that computes the job's result
    :param modelled: run time in seconds on the modelled hardware, without faults
    """

    settings: DeviceSettings
    calibrations: EmulatedCalibrations
    runner: Runner
    task: Task
    modelled: float

    def run(self, stop: threading.Event) -> Outcome:
        """Run the job; blocks until it ends.

        :param stop: event that stops the job immediately, without a result
        """
        begin = time.monotonic()
        settings, faults = self.settings, self.settings.faults
        draws = self._random("faults", self.task.attempt)
        if draws.random() < faults.offline:
            return Outcome(None, QPU_OFFLINE, 0.0, 0.0)
        modelled, scale = self.modelled * faults.slow, settings.time_scale
        calibration = self.calibrations.data
        result = self._compute(stop.is_set)
        wait = modelled * scale - (time.monotonic() - begin)
        stopped = (
            stop.wait(min(wait, threading.TIMEOUT_MAX)) if wait > 0 else stop.is_set()
        )
        seconds = time.monotonic() - begin
        if stopped:
            used = min(modelled, seconds / scale) if scale else 0.0
            return Outcome(None, None, used, seconds, calibration)
        if draws.random() < faults.fail:
            return Outcome(None, "the QPU failed", modelled, seconds, calibration)
        info: dict[str, JSON] = {
            **result.info,
            **({"sampler": settings.type} if "sampler" in result.info else {}),
            "qpu": settings.name,
            "technology": settings.technology,
            "calibration": calibration.to_json(),
        }
        return Outcome(replace(result, info=info), None, modelled, seconds, calibration)

    def _compute(self, interrupted: Callable[[], bool]) -> Result:
        parameters = dict(self.task.parameters)
        if parameters.get("seed") is None:
            parameters["seed"] = self._random("seed").randrange(SEEDS)
        errors, noise = self.calibrations.errors, None
        if errors != Errors():
            seed = self._random("errors", self.task.attempt).getrandbits(64)
            noise = Noise(errors, self.calibrations.present, seed)
        limits = self.settings.compute
        computation = Computation(self.task.payload, parameters, noise, limits)
        return self.runner.run(computation, interrupted)

    def _random(self, what: str, *more: int) -> random.Random:
        """Return a random generator of the job; a first slice draws like an unsliced job."""
        part = [self.task.part] if self.task.part else []
        key = [self.calibrations.seed, what, self.task.number, *more, *part]
        return random.Random(json.dumps(key))


def size_on_device(task: Task) -> Size | None:
    """Return the size that affects a job's run time; ``None`` if only parameters affect it."""
    if task.kind == "circuit":
        return Size(circuits=texts(json.loads(task.payload))[1])
    if task.kind == "problem" and task.payload.startswith("["):
        return Size(problems=len(json.loads(task.payload)))
    if task.kind == PhotonicSimulator.kind:
        return photonic.size(photonic.experiment(json.loads(task.payload)))
    return None
