"""The emulated device: its samples, its time scales, its errors, its faults."""

from __future__ import annotations

import json
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Self

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers import unknown
from sf_quantum.samplers.neal import SEEDS
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.calibration import Calibration, Calibrations, Reading
from sf_quantum.service.device.noise import Noise
from sf_quantum.service.device.operations import EMULATED, Operation
from sf_quantum.service.device.runners import Runner, installed
from sf_quantum.service.device.technologies import TECHNOLOGIES, Errors, Timing
from sf_quantum.service.device.topology import TOPOLOGIES, Graph
from sf_quantum.service.domain.jobs import Kind


@dataclass(frozen=True)
class Faults:
    """What goes wrong on purpose, drawn per job and attempt from the device's seed.

    :param fail: probability that a job takes its time and then ends Failed
    :param slow: factor on every time, 1 or more
    :param offline: probability that a job finds the QPU offline and ends Failed at once
    :param calibration: probability that a calibration is a wrong one: until it is renewed
        the errors are :data:`~sf_quantum.service.device.calibration.WRONG` times as large
    :param drift: probability that a calibration becomes as wrong little by little
    """

    fail: float = 0.0
    slow: float = 1.0
    offline: float = 0.0
    calibration: float = 0.0
    drift: float = 0.0

    @classmethod
    def from_mapping(cls, faults: Mapping[str, JSON]) -> Self:
        """Check and read faults, as the key ``faults`` of the connector gives them.

        :raises InputError: if a key is unknown or a value is out of its range
        """
        values: dict[str, float] = {}
        known = [field.name for field in fields(cls)]
        for key, value in faults.items():
            if key not in known:
                raise InputError(unknown("fault", key, known))
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"faults.{key}: expected a number, not {value!r:.40}")
            least, most = (1.0, float("inf")) if key == "slow" else (0.0, 1.0)
            if not least <= value <= most or value == float("inf"):
                allowed = "1 or more" if key == "slow" else "from 0 to 1"
                raise InputError(f"faults.{key}: {value} is not {allowed}")
            values[key] = float(value)
        return cls(**values)


@dataclass(frozen=True)
class Task:
    """A job as the device sees it.

    :param number: counts the service's jobs; draws are made from it and the seed
    :param content: checked by :meth:`Device.check`
    :param parameters: num_reads, and perhaps seed and num_sweeps
    """

    number: int
    attempt: int
    kind: Kind
    content: JSON
    parameters: Mapping[str, int | None]


@dataclass(frozen=True)
class Outcome:
    """How a job went on the device.

    :param result: the sample set, or what else the kind of job gives, as JSON; ``None``
        unless the job completed
    :param failure: why it failed, else ``None``
    :param qpu_seconds: the modelled time of QPU use, as the hardware would bill it,
        whatever the time scale
    :param seconds: the time that really went by
    :param calibration: id, time and values of that under which it ran, if it did
    """

    result: dict[str, JSON] | None
    failure: str | None
    qpu_seconds: float
    seconds: float
    calibration: dict[str, JSON] | None = None


@dataclass(frozen=True)
class Device:
    """A device that computes as its runners do, as slowly and as badly as real ones.

    :param technology: one of :data:`~sf_quantum.service.device.technologies.TECHNOLOGIES`
    :param time_scale: seconds to wait per modelled second; 0 does not wait
    :param qubits: how many it has, those out of service included
    :param shots: the most of one job; ``None`` sets no limit
    :param out_of_service: numbers of qubits that cannot be used now; an annealer's are
        those of its graph
    :param topology: an annealer's graph, which has at least this many qubits
    :param noise: what the technology's errors are multiplied by; 0 is an ideal device
    :param calibration_seconds: after how long a calibration is renewed, in modelled
        seconds; the technology's by default
    :param seed: for jobs without a seed, the faults and the errors; drawn if not given
    :param cost_per_second: of modelled QPU time, in the site's own unit, if it has a price
    :param first_calibration: how many calibrations there were before ``started``
    :param changed: when an operator set it otherwise, by its clock; what it was like
        before is not known any more
    :param bounds: of what operators may set, by name: the smallest value, the largest
    :raises InputError: if a value is out of its range
    """

    name: str = "emulator"
    technology: str = "annealer"
    time_scale: float = 1.0
    qubits: int = 5000
    shots: int | None = None
    out_of_service: frozenset[int] = frozenset()
    topology: str = "pegasus"
    noise: float = 0.0
    calibration_seconds: float | None = None
    seed: int | None = None
    faults: Faults = field(default_factory=Faults)
    cost_per_second: float | None = None
    runners: Mapping[Kind, Runner] = field(default_factory=installed, repr=False)
    entropy: int = field(default_factory=lambda: secrets.randbits(64), repr=False)
    clock: Callable[[], float] = field(default=time.time, repr=False)
    started: float = field(default_factory=time.time)
    first_calibration: int = 0
    changed: float | None = None
    bounds: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.technology not in TECHNOLOGIES:
            known = [*TECHNOLOGIES]
            raise InputError(unknown("technology", self.technology, known))
        if self.topology not in TOPOLOGIES:
            raise InputError(unknown("topology", self.topology, [*TOPOLOGIES]))
        for name in ("time_scale", "noise"):
            if not 0 <= getattr(self, name) < float("inf"):
                words = name.replace("_", " ")
                raise InputError(f"{words} {getattr(self, name)}: expected 0 or more")
        if self.qubits < 1:
            raise InputError(f"qubits {self.qubits}: expected 1 or more")
        period = self.calibration_seconds
        if period is not None and not 0 < period < float("inf"):
            raise InputError(f"calibration seconds {period}: expected more than 0")
        if self.shots is not None and self.shots < 1:
            raise InputError(f"shots {self.shots}: expected 1 or more")
        if self.out_of_service:
            self._check_out_of_service()

    @property
    def timing(self) -> Timing:
        """The modelled times, before ``faults.slow`` and the time scale."""
        return TECHNOLOGIES[self.technology].timing

    @property
    def payloads(self) -> list[Kind]:
        """What a job may carry: circuits only where there are gates."""
        gates = self.technology == "superconducting"
        return [kind for kind in self.runners if gates or kind != "circuit"]

    @cached_property
    def graph(self) -> Graph | None:
        """The qubits and couplers, on a device that has no others; else ``None``."""
        if self.technology != "annealer":
            return None
        return TOPOLOGIES[self.topology](self.qubits).without(self.out_of_service)

    @property
    def size(self) -> int:
        """The largest problem, in variables: the qubits that are in service."""
        return self.qubits - len(self.out_of_service)

    @property
    def calibration(self) -> Calibration:
        """The calibration that samples come from now."""
        return self.calibrations.now()

    @property
    def reading(self) -> Reading:
        """What the device measured last of its own errors."""
        return self.calibrations.reading(self.errors)

    @property
    def errors(self) -> Errors:
        """The errors of a good, new calibration."""
        return TECHNOLOGIES[self.technology].errors.times(self.noise)

    @property
    def calibrations(self) -> Calibrations:
        """All calibrations, of which one is the present one."""
        period = self.calibration_seconds
        if period is None:
            period = TECHNOLOGIES[self.technology].calibration_seconds
        return Calibrations(
            f"{self.name}/{self.technology}/{self.qubits}",
            self._root,
            # a device that does not wait has the hours that everybody has
            period * (self.time_scale or 1.0),
            self.faults.calibration,
            self.clock,
            self.started,
            self.faults.drift,
            self.first_calibration,
        )

    @property
    def controls(self) -> Sequence[Operation]:
        """What operators may do to it while it serves."""
        return [operation.within(self.bounds) for operation in EMULATED]

    def model_seconds(self, parameters: Mapping[str, int | None]) -> float:
        """Tell how long the hardware would take, without faults."""
        return TECHNOLOGIES[self.technology].job_seconds(parameters)

    def check(
        self, kind: Kind, content: JSON, parameters: Mapping[str, int | None]
    ) -> None:
        """Refuse what cannot run on the device as it is now; may take seconds.

        :raises FieldError: naming the field of the request
        """
        self.check_asked(kind, parameters)
        self.runners[kind].check(content, parameters, qubits=self.size)

    def check_asked(self, kind: Kind, parameters: Mapping[str, int | None]) -> None:
        """Refuse what cannot run here, whatever the content is.

        :raises FieldError: naming the field of the request
        """
        if kind not in self.payloads:
            known = " and ".join(self.payloads)
            raise FieldError(kind, f"this device runs {known} only")
        shots = parameters.get("num_reads") or 1
        if self.shots is not None and shots > self.shots:
            detail = f"{shots} shots, a job has at most {self.shots} here"
            raise FieldError("parameters.num_reads", detail)

    def run(self, task: Task, stop: threading.Event) -> Outcome:
        """Run one job; blocks for as long as the job takes.

        :param stop: once set, the job ends without samples, after the read under way
        """
        begin = time.monotonic()
        draws = self._random("faults", task.number, task.attempt)
        if draws.random() < self.faults.offline:
            return Outcome(None, "the QPU is offline", 0.0, 0.0)
        modelled = self.model_seconds(task.parameters) * self.faults.slow
        parameters = dict(task.parameters)
        if parameters.get("seed") is None:
            parameters["seed"] = self._random("seed", task.number).randrange(SEEDS)
        calibration, told = self.calibration, self.reading.told
        result = self._computed(task, parameters, calibration, stop.is_set)
        wait = modelled * self.time_scale - (time.monotonic() - begin)
        stopped = stop.wait(wait) if wait > 0 else stop.is_set()
        seconds = time.monotonic() - begin
        if stopped:
            used = min(modelled, seconds / self.time_scale) if self.time_scale else 0.0
            return Outcome(None, None, used, seconds, told)
        if draws.random() < self.faults.fail:
            return Outcome(None, "the QPU failed", modelled, seconds, told)
        signed = self._signed(result, told)
        return Outcome(signed, None, modelled, seconds, told)

    def _computed(
        self,
        task: Task,
        parameters: Mapping[str, int | None],
        calibration: Calibration,
        interrupted: Callable[[], bool],
    ) -> dict[str, JSON]:
        runner = self.runners[task.kind]

        def run(content: JSON) -> dict[str, JSON]:
            return runner.run(content, parameters, interrupted)

        draws = self._random("errors", task.number, task.attempt).getrandbits(64)
        errors = TECHNOLOGIES[self.technology].errors
        noise = Noise(errors, self.noise, calibration, draws)
        if noise.none:
            return run(task.content)
        if task.kind == "problem" and isinstance(task.content, dict):
            return noise.run_problem(task.content, run)
        result = run(task.content)
        counter = result.get("counter")
        if isinstance(counter, dict):
            result["counter"] = noise.misread(counter)
        return result

    def _signed(
        self, result: dict[str, JSON], calibration: dict[str, JSON]
    ) -> dict[str, JSON]:
        info = result.get("info")
        result["info"] = {
            **(info if isinstance(info, dict) else {}),
            "qpu": self.name,
            "technology": self.technology,
            "calibration": calibration,
        }
        return result

    def _check_out_of_service(self) -> None:
        whole = replace(self, out_of_service=frozenset()).graph
        there = range(self.qubits) if whole is None else whole.qubits
        if strange := self.out_of_service.difference(there):
            raise InputError(f"out_of_service: there is no qubit {min(strange)}")
        if self.size < 1:
            raise InputError("out_of_service: no qubit is left")

    def _random(self, *what: str | int) -> random.Random:
        return random.Random(json.dumps([self._root, *what]))

    @property
    def _root(self) -> int:
        return self.entropy if self.seed is None else self.seed
