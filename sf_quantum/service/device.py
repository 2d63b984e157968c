"""The emulated device: its samples, its time scales, its faults."""

from __future__ import annotations

import hashlib
import json
import random
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Self

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers import unknown
from sf_quantum.samplers.neal import SEEDS
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.records import Kind
from sf_quantum.service.runners import Runner, installed


@dataclass(frozen=True)
class Timing:
    """What a job costs on real hardware, in seconds.

    :param setup_seconds: once per job
    :param shot_seconds: per shot (read), with what follows it but the read-out
    :param readout_seconds: per shot
    """

    setup_seconds: float
    shot_seconds: float
    readout_seconds: float

    def job_seconds(self, shots: int) -> float:
        """Add up a job: ``setup + shots * (shot + readout)``."""
        return self.setup_seconds + shots * (self.shot_seconds + self.readout_seconds)


TECHNOLOGIES = {
    # D-Wave: access time = programming + overhead + reads * (anneal + readout + delay),
    # https://docs.dwavesys.com/docs/latest/timing_qa_cycle_time.html; the figures are
    # those of the sample set in Ocean's "Samplesets and Solutions": programming
    # 15,760 us and access overhead 2,259 us; anneal 20 us and delay 20.54 us; readout
    # 45.32 us.
    "annealer": Timing(18.02e-3, 40.54e-6, 45.32e-6),
    # Paper 000, section 3: "each quantum task will last ~ 10 s"; paper 001: "in the
    # order of seconds". A shot: 250 us, the default repetition delay of IBM's Eagle
    # processors (their conf_*.json in qiskit-ibm-runtime), which read-out, about 1 us,
    # disappears in.
    "superconducting": Timing(9.75, 250e-6, 0.0),
    # Paper 001: "minutes to complete a job (also considering register preparation)",
    # emulated there with two minutes; paper 004: "the shot rate is on the order of
    # 1 Hz", imaging included. 1700 shots are the half hour of paper 000.
    "neutral-atom": Timing(120.0, 1.0, 0.0),
}


@dataclass(frozen=True)
class Faults:
    """What goes wrong on purpose, drawn per job and attempt from the device's seed.

    :param fail: probability that a job takes its time and then ends Failed
    :param slow: factor on every time, 1 or more
    :param offline: probability that a job finds the QPU offline and ends Failed at once
    """

    fail: float = 0.0
    slow: float = 1.0
    offline: float = 0.0

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
    """

    result: dict[str, JSON] | None
    failure: str | None
    qpu_seconds: float
    seconds: float


@dataclass(frozen=True)
class Device:
    """A device that computes as its runners do, as slowly as real ones.

    :param technology: one of :data:`TECHNOLOGIES`
    :param time_scale: seconds to wait per modelled second; 0 does not wait
    :param qubits: the largest problem, in variables
    :param seed: for jobs without a seed, and for the faults; drawn if not given
    :param cost_per_second: of modelled QPU time, in the site's own unit, if it has a price
    :raises InputError: if a value is out of its range
    """

    name: str = "emulator"
    technology: str = "annealer"
    time_scale: float = 1.0
    qubits: int = 5000
    seed: int | None = None
    faults: Faults = field(default_factory=Faults)
    cost_per_second: float | None = None
    runners: Mapping[Kind, Runner] = field(default_factory=installed, repr=False)
    entropy: int = field(default_factory=lambda: secrets.randbits(64), repr=False)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        if self.technology not in TECHNOLOGIES:
            known = [*TECHNOLOGIES]
            raise InputError(unknown("technology", self.technology, known))
        if not 0 <= self.time_scale < float("inf"):
            raise InputError(f"time scale {self.time_scale}: expected 0 or more")
        if self.qubits < 1:
            raise InputError(f"qubits {self.qubits}: expected 1 or more")

    @property
    def timing(self) -> Timing:
        """The modelled times, before ``faults.slow`` and the time scale."""
        return TECHNOLOGIES[self.technology]

    @property
    def calibration(self) -> dict[str, JSON]:
        """The calibration its samples come from: the device is calibrated at start."""
        what = f"{self.name}/{self.technology}/{self.qubits}"
        digest = hashlib.sha256(what.encode()).hexdigest()[:12]
        return {
            "id": f"emulated-{digest}",
            "time": self.started.isoformat(timespec="seconds"),
        }

    def model_seconds(self, parameters: Mapping[str, int | None]) -> float:
        """Tell how long the hardware would take, without faults."""
        return self.timing.job_seconds(parameters.get("num_reads") or 1)

    def check(
        self, kind: Kind, content: JSON, parameters: Mapping[str, int | None]
    ) -> None:
        """Refuse what cannot run; may take seconds.

        :raises FieldError: naming the field of the request
        """
        self.check_kind(kind)
        self.runners[kind].check(content, parameters, qubits=self.qubits)

    def check_kind(self, kind: Kind) -> None:
        """Refuse a kind of content that does not run here.

        :raises FieldError: naming the field of the request
        """
        if kind not in self.runners:
            known = " and ".join(self.runners)
            raise FieldError(kind, f"this device runs {known} only")

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
        runner = self.runners[task.kind]
        result = runner.run(task.content, parameters, stop.is_set)
        wait = modelled * self.time_scale - (time.monotonic() - begin)
        stopped = stop.wait(wait) if wait > 0 else stop.is_set()
        seconds = time.monotonic() - begin
        if stopped:
            used = min(modelled, seconds / self.time_scale) if self.time_scale else 0.0
            return Outcome(None, None, used, seconds)
        if draws.random() < self.faults.fail:
            return Outcome(None, "the QPU failed", modelled, seconds)
        return Outcome(self._signed(result), None, modelled, seconds)

    def _signed(self, result: dict[str, JSON]) -> dict[str, JSON]:
        info = result.get("info")
        result["info"] = {
            **(info if isinstance(info, dict) else {}),
            "qpu": self.name,
            "technology": self.technology,
            "calibration": self.calibration,
        }
        return result

    def _random(self, *what: str | int) -> random.Random:
        root = self.entropy if self.seed is None else self.seed
        return random.Random(json.dumps([root, *what]))
