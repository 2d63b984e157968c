"""The emulated device, with its time scale, errors and faults."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from pydantic import (
    ConfigDict,
    Field,
    SkipValidation,
    model_validator,
)

from sf_quantum.files import JSON, KeyPath
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import (
    JobParameters,
    Outcome,
    Task,
    shots_of,
)
from sf_quantum.service.device.emulator.atoms import runner
from sf_quantum.service.device.emulator.calibrations import EmulatedCalibrations
from sf_quantum.service.device.emulator.circuits.circuit import (
    Architecture,
    CircuitSimulator,
)
from sf_quantum.service.device.emulator.computation import compute_seconds
from sf_quantum.service.device.emulator.emulated_jobs import EmulatedJobs, JobThread
from sf_quantum.service.device.emulator.emulation import Emulation, size_on_device
from sf_quantum.service.device.emulator.layout import Layout
from sf_quantum.service.device.emulator.photons import photonic
from sf_quantum.service.device.emulator.photons.photonic import PhotonicSimulator
from sf_quantum.service.device.emulator.runners import Runner, installed
from sf_quantum.service.device.emulator.settings import (
    GATES,
    PARAMETERS,
    PHOTONIC,
    DeviceSettings,
    Faults,
)
from sf_quantum.service.device.emulator.technologies import (
    TECHNOLOGIES,
    Errors,
    Technology,
)
from sf_quantum.service.device.interface import (
    Cost,
    Device,
)
from sf_quantum.service.device.operations import Operation, Values
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.service.domain.jobs import Kind, Size
from sf_quantum.service.domain.settings import NotNegative
from sf_quantum.validation import dotted, validated

# Native gates of a lattice, by their names in Qiskit; IQM calls ``r`` ``prx``.
NATIVE_GATES = ("r", "cz")
ONE_SHOT: JobParameters = {"num_reads": 1}


def _steady_clock() -> Callable[[], float]:
    """Return a clock that starts at the system's time, and ignores later clock changes."""
    monotonic = time.monotonic()
    epoch = time.time() - monotonic
    return lambda: epoch + time.monotonic()


class EmulatedDevice(DeviceSettings, Device):
    """An emulated device, with the run times and the errors of real hardware.

    :param noise: 0 by default, unlike in the configuration
    :param started: time of the first calibration, on ``clock``
    :param first_calibration: number of calibrations before ``started``
    :param changed: time of the last change of its settings by an operator, on ``clock``;
        earlier settings are not known
    :raises InputError: if a qubit out of service does not exist, or no qubit is left
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    noise: NotNegative = 0.0
    runners: SkipValidation[Mapping[Kind, Runner]] = Field(
        default_factory=installed, repr=False
    )
    entropy: int = Field(default_factory=lambda: secrets.randbits(64), repr=False)
    clock: Callable[[], float] = Field(default_factory=_steady_clock, repr=False)
    started: float = Field(default_factory=time.time)
    first_calibration: int = 0
    changed: float | None = None
    #: Threads by the id of their job; shared with copies of the device.
    threads: SkipValidation[dict[str, JobThread]] = Field(
        default_factory=dict, repr=False
    )

    @classmethod
    def from_config(cls, config: Mapping[str, JSON]) -> Self:
        """See :meth:`Device.from_config`; the keys are those of :class:`DeviceSettings`."""
        return cls(**dict(validated(DeviceSettings, {**config}, _key)))

    @model_validator(mode="after")
    def _check_layout(self) -> Self:
        self.layout.check()
        return self

    @property
    def layout(self) -> Layout:
        """The qubits."""
        return Layout(self.technology, self.qubits, self.topology, self.out_of_service)

    @property
    def hardware(self) -> Technology:
        """The technology of the emulated hardware."""
        return TECHNOLOGIES[self.technology]

    @property
    def payloads(self) -> tuple[Kind, ...]:
        """The supported kinds of jobs; circuits only on gate-based devices."""
        if self.technology == PHOTONIC:
            return (PhotonicSimulator.kind,)
        gates = self.technology == GATES
        other = (
            {PhotonicSimulator.kind} if gates else {PhotonicSimulator.kind, "circuit"}
        )
        return tuple(kind for kind in self.runners if kind not in other)

    @property
    def warm_kinds(self) -> Sequence[Kind]:
        """The technology's typical kind of job, if this kind needs large Python packages."""
        kinds: Mapping[str, Kind] = {GATES: "circuit", "neutral-atom": "sequence"}
        kind = kinds.get(self.technology, "photonic")
        return [kind] if kind in self.payloads else []

    @property
    def description(self) -> Description:
        """See :attr:`Device.description`."""
        return Description(
            self.technology,
            self.size,
            self.payloads,
            self.out_of_service,
            self.shots,
            self.hardware.timing,
            self.calibrations.data,
            self.layout.graph or self.layout.lattice,
            native_gates=NATIVE_GATES if self.layout.lattice else (),
        )

    @property
    def variant(self) -> str:
        """See :attr:`Device.variant`: the factor on the errors."""
        return f"{self.noise:g}"

    @property
    def compute_limits(self) -> ComputeLimits | None:
        """See :attr:`Device.compute_limits`."""
        return self.compute

    def specs(self) -> str:
        """See :meth:`Device.specs`."""
        if self.technology == PHOTONIC:
            return photonic.specs(self.name, self.size)
        return runner.specs(self.name, self.size)

    @property
    def price(self) -> float | None:
        """See :attr:`Device.price`."""
        return self.cost_per_second

    @property
    def size(self) -> int:
        """Number of qubits in service, the size of the largest problem."""
        return self.layout.size

    @property
    def custom_annealing(self) -> bool:
        """See :attr:`Device.custom_annealing`."""
        return self.technology == "annealer"

    @property
    def takes_lists(self) -> bool:
        """See :attr:`Device.takes_lists`."""
        return True

    @property
    def errors(self) -> Errors:
        """The errors of a good, new calibration."""
        return self.hardware.errors.times(self.noise)

    @property
    def calibrations(self) -> EmulatedCalibrations:
        """See :attr:`Device.calibrations`: drawn from the seed, with the present settings."""
        period = self.calibration_seconds
        if period is None:
            period = self.hardware.calibration_seconds
        return EmulatedCalibrations(
            device=f"{self.name}/{self.technology}/{self.qubits}",
            seed=self.entropy if self.seed is None else self.seed,
            errors=self.errors,
            faults=self.faults,
            # With time scale 0, calibrations are renewed in real time.
            period=period * (self.time_scale or 1.0),
            started=self.started,
            first=self.first_calibration,
            changed=self.changed or self.started,
            now=self.clock(),
        )

    @property
    def controls(self) -> Sequence[Operation[EmulatedDevice]]:
        """The operations on the device."""
        return [operation.within(self.bounds) for operation in OPERATIONS]

    def cost(self, parameters: JobParameters, size: Size | None = None) -> Cost:
        """See :meth:`Device.cost`: the modelled seconds, without faults."""
        size = size or Size()
        modelled = self.hardware.job_seconds(parameters, size.circuits)
        modelled *= size.problems or 1  # each BQM has its own set-up
        if size.photons:
            shots = shots_of(parameters)
            modelled = self.hardware.photon_seconds(
                self.errors, shots, photons=size.photons, detected=size.detected
            )
        computed = compute_seconds(size, parameters, self.compute)
        return Cost(modelled, compute_seconds=computed)

    def elapsed_seconds(self, cost: Cost) -> float:
        """See :meth:`Device.elapsed_seconds`: computations overlap the modelled time."""
        return max(cost.qpu_seconds * self.time_scale, cost.compute_seconds)

    def check(self, kind: Kind, content: JSON, parameters: JobParameters) -> Size:
        """See :meth:`Device.check`."""
        self.check_parameters(kind, parameters)
        size = self._runner(kind).check(content, qubits=self.size)
        self.check_size(size, parameters)
        if size.photons:
            photonic.check_shot(size, self.elapsed_seconds(self.cost(ONE_SHOT, size)))
        return size

    def _runner(self, kind: Kind) -> Runner:
        runner = self.runners[kind]
        if isinstance(runner, CircuitSimulator):
            architecture = Architecture.of(self.description)
            return CircuitSimulator(architecture, self.compute, self.noise > 0)
        if isinstance(runner, PhotonicSimulator):
            return PhotonicSimulator(self.compute)
        return runner

    def check_size(self, size: Size, parameters: JobParameters) -> None:
        """See :meth:`Device.check_size`."""
        self.compute.check(size, parameters)

    @property
    def jobs(self) -> EmulatedJobs:
        """See :attr:`Device.jobs`."""
        return EmulatedJobs(self.run, self.threads)

    def close(self) -> None:
        """See :meth:`Device.close`: after a restart, the service runs the jobs again."""
        self.jobs.stop()

    def run(self, task: Task, stop: threading.Event) -> Outcome:
        """Run a job; blocks until it ends.

        :param stop: event that stops the job immediately, without a result
        """
        modelled = self.cost(task.parameters, size_on_device(task)).qpu_seconds
        runner = self._runner(task.kind)
        return Emulation(self, self.calibrations, runner, task, modelled).run(stop)


def _key(path: KeyPath, _: JSON) -> str:
    return dotted(path)


def _changed(
    device: EmulatedDevice, update: Mapping[str, float | Faults]
) -> EmulatedDevice:
    """Return a copy of a device with changed settings, and with the time of the change."""
    now = device.clock()
    return device.model_copy(update={"changed": now, **update})


def _recalibrate(device: EmulatedDevice, _: Values) -> EmulatedDevice:
    """Return a copy of a device with a calibration that starts now."""
    calibrations = device.calibrations
    first = device.first_calibration + calibrations.number + 1
    started = calibrations.now
    return _changed(device, {"started": started, "first_calibration": first})


def _set_time_scale(device: EmulatedDevice, values: Values) -> EmulatedDevice:
    """Change the time scale, but neither the calibration nor its age."""
    scaled = _changed(device, values)
    ratio = scaled.calibrations.period / device.calibrations.period
    now = device.clock()
    started = now - (now - device.started) * ratio
    return scaled.model_copy(update={"started": started})


def _set_faults(device: EmulatedDevice, values: Values) -> EmulatedDevice:
    faults = device.faults.model_copy(update=values)
    return _changed(device, {"faults": faults})


OPERATIONS: Sequence[Operation[EmulatedDevice]] = (
    Operation(
        "recalibrate",
        "Renew the calibration now.",
        _recalibrate,
        lambda device: {"calibration": device.calibrations.present.id},
    ),
    Operation(
        "set-noise",
        "Set the factor on the technology's errors.",
        lambda device, values: _changed(device, values),
        lambda device: {"noise": device.noise},
        PARAMETERS["set-noise"],
    ),
    Operation(
        "set-faults",
        "Inject faults.",
        _set_faults,
        lambda device: device.faults.model_dump(),
        PARAMETERS["set-faults"],
    ),
    Operation(
        "set-time-scale",
        "Set the seconds to wait per modelled second.",
        _set_time_scale,
        lambda device: {"time_scale": device.time_scale},
        PARAMETERS["set-time-scale"],
        drained=True,
    ),
)
