"""Twins: emulated devices that represent another device, the original, in its present state.

A twin accepts only jobs that its original accepts: both have the same kinds of jobs, size,
graph and limits. A twin's run times are those that its original reports. Its errors are those
of the original's latest calibration, as far as the emulator has errors of these kinds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, GetPydanticSchema
from pydantic_core import core_schema

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, KeyPath, mapping
from sf_quantum.protocol.calibrations import CalibrationData, calibration_id
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import JobParameters, Kind, Outcome, Task
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.service.config import ORIGINALS, File, OwnDevice, load, make_device
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.settings import DeviceSettings
from sf_quantum.service.device.emulator.technologies import TECHNOLOGIES, Technology
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.service.device.vendor import answer_checks
from sf_quantum.service.device.vendor.settings import QpuSettings
from sf_quantum.service.domain.jobs import Size
from sf_quantum.text import shortened, unknown
from sf_quantum.validation import dotted, validated

logger = logging.getLogger(__name__)
# names of a calibration's values, by the names of the emulated errors
VALUES = {
    "control": "control_error",
    "false_one": "readout_false_one",
    "false_zero": "readout_false_zero",
    "one_qubit": "gate_error_one_qubit",
    "two_qubits": "gate_error_two_qubits",
    "t1": "t1_seconds",
    "t2": "t2_seconds",
    "source_loss": "source_loss_db",
    "loss": "loss_db",
    "distinguishability": "distinguishability",
    "g2": "g2",
}
# maximum probability of an error: above it, a read-out is more often wrong than right
MOST_ERROR = 0.5
# maximum values of errors that may be larger
MOST = {"source_loss": 100.0, "loss": 100.0, "distinguishability": 1.0}


class TwinSettings(DeviceSettings):
    """The configuration of a twin; it also accepts keys of an emulated device.

    :param of: the original: URL of the QPU service that runs it, or path of the
        configuration of such a service
    :param token_file: file with the bearer token for the URL
    """

    of: str
    token_file: File | None = None


@dataclass(frozen=True)
class Original:
    """The device that a twin represents.

    :param limits: limits of a job's computation, if the original is emulated
    :param client: client of the vendor, if the original is a real QPU
    """

    name: str
    description: Description
    limits: ComputeLimits | None = None
    client: type[Qpu] | None = None

    @property
    def measured(self) -> dict[str, float]:
        """The values of the latest calibration that can be emulated, by error."""
        values = (self.description.calibration or CalibrationData()).values
        return {
            error: values[name]
            for error, name in VALUES.items()
            if name in values and 0 <= values[name] <= MOST.get(error, MOST_ERROR)
        }

    @cached_property
    def hardware(self) -> Technology:
        """The original's technology; values that it does not report are the usual values."""
        usual = TECHNOLOGIES[self.description.technology]
        errors = replace(usual.errors, **self.measured)
        return replace(
            usual, timing=self.description.timing or usual.timing, errors=errors
        )


class TwinDevice(EmulatedDevice):
    """An emulated device that represents another device."""

    original: Annotated[
        Original,
        # pydantic cannot build a schema of the description's recursive type
        GetPydanticSchema(lambda *_: core_schema.is_instance_schema(Original)),
    ] = Field(repr=False)

    @classmethod
    def from_config(cls, config: Mapping[str, JSON]) -> Self:
        """Query the original for its description, and create its twin.

        :param config: see :class:`TwinSettings`
        :raises QpuError: if the original does not respond
        """
        settings = validated(TwinSettings, {**config}, _key)
        for key in settings.model_fields_set & ORIGINALS:
            raise InputError(f"{key}: a twin has that of its original")
        twin = cls.of(original(settings.of, settings.token_file), settings)
        for remark in twin.remarks():
            logger.warning("%s: %s", twin.name, remark)
        return twin

    @classmethod
    def of(cls, original: Original, settings: DeviceSettings) -> Self:
        """Create the twin of a device.

        :raises InputError: if the device's technology cannot be emulated
        """
        technology = original.description.technology
        if technology not in TECHNOLOGIES:
            raise InputError(unknown("technology", technology, [*TECHNOLOGIES]))
        keys = {key: getattr(settings, key) for key in DeviceSettings.model_fields}
        if "name" not in settings.model_fields_set:
            keys["name"] = f"{original.name}-twin"
        if original.limits is not None:
            keys["compute"] = _tightest(settings.compute, original.limits)
        return cls(**{**keys, "technology": technology, "original": original})

    @property
    def _described(self) -> Description:
        return self.original.description

    @property
    def hardware(self) -> Technology:
        """The hardware of the original; see :attr:`EmulatedDevice.hardware`."""
        return self.original.hardware

    @property
    def payloads(self) -> tuple[Kind, ...]:
        """The kinds of jobs that the original accepts and that are emulated."""
        return tuple(kind for kind in self._described.kinds if kind in self.runners)

    @property
    def size(self) -> int:
        """The number of qubits in service."""
        return self._described.qubits or self.qubits

    @property
    def description(self) -> Description:
        """The description of the original, but with the twin's own calibration."""
        return replace(
            self._described,
            qubits=self.size,
            kinds=self.payloads,
            timing=self.hardware.timing,
            calibration=self.calibrations.data,
        )

    def check(self, kind: Kind, content: JSON, parameters: JobParameters) -> Size:
        """See :meth:`Device.check`; also refuses jobs that the vendor's client cannot send."""
        size = super().check(kind, content, parameters)
        if self.original.client is not None:
            self.original.client.check(kind, content)
        return size

    def specs(self) -> str:
        """See :meth:`Device.specs`."""
        return self._described.specs or super().specs()

    def run(self, task: Task, stop: threading.Event) -> Outcome:
        """See :meth:`EmulatedDevice.run`; results name the original."""
        outcome = super().run(task, stop)
        if (result := outcome.result) is None:
            return outcome
        twin_of: JSON = {
            "qpu": self.original.name,
            "calibration": calibration_id(self._described.calibration) or None,
        }
        info = {**result.info, "twin_of": twin_of}
        return replace(outcome, result=replace(result, info=info))

    def remarks(self) -> Iterator[str]:
        """Yield a message for each property that the original does not report."""
        name, described = self.original.name, self._described
        usual = f"as is usual for technology {self.technology}"
        if not described.qubits:
            yield f"{name} does not tell its size: it has {self.size} qubits"
        if described.timing is None:
            yield f"{name} does not tell its run times: they are {usual}"
        if described.topology is None and self.technology == "annealer":
            yield f"{name} does not tell its graph: there is no solver for SAPI"
        for error, value in asdict(TECHNOLOGIES[self.technology].errors).items():
            if value and error not in self.original.measured:
                remark = f"does not tell its {VALUES[error]}: it is {value:g}, {usual}"
                yield f"the calibration of {name} {remark}"


def original(of: str, token_file: Path | None = None) -> Original:
    """Query a device for its description.

    :param of: see :class:`TwinSettings`
    :raises InputError: if there is no such device, or the query is refused
    :raises QpuError: if the device does not respond
    """
    if "://" in of or of.startswith("unix:"):
        return _from_service(of.rstrip("/").removesuffix("/v1"), token_file)
    if token_file is not None:
        raise InputError("token_file: is for the URL of a service")
    return _from_configuration(Path(of))


def _from_service(url: str, token_file: Path | None) -> Original:
    token: dict[str, JSON] = {"tokenFile": str(token_file)} if token_file else {}
    client = SfqQpu.from_config("original", {"url": url, **token})
    device = client.service.send("GET", "/v1/device").json()
    bounds, limits = mapping(device.get("bounds")), None
    if bounds:
        content = {
            key: bounds[key] for key in ComputeLimits.model_fields if key in bounds
        }
        try:
            limits = validated(ComputeLimits, content, _key)
        except InputError as error:
            raise QpuError(f"{client.service.name}: bounds: {error}") from error
    name = shortened(client.service.text(device, "name"))
    return Original(name, answer_checks.description(client.describe()), limits)


def _from_configuration(path: Path) -> Original:
    settings = load(path, {}, {}).device
    if isinstance(settings, OwnDevice) and settings.type == "twin":
        raise InputError(f"{path}: its device is a twin itself: name its original")
    try:
        if isinstance(settings, QpuSettings):
            client = settings.client()
            described = answer_checks.description(client.describe())
            return Original(settings.name, described, client=type(client))
        device = make_device(settings)
    except InputError as error:
        raise InputError(f"{path}: device: {error}") from error
    try:
        device.refresh()
        status, described = device.status, device.description
        if not status.online and not described.qubits:
            raise QpuError(f"{path}: {device.name} is offline: {status.reason}")
        return Original(device.name, described, device.compute_limits)
    finally:
        device.close()


def _tightest(limits: ComputeLimits, others: ComputeLimits) -> ComputeLimits:
    keys = ComputeLimits.model_fields
    return ComputeLimits(
        **{k: min(getattr(limits, k), getattr(others, k)) for k in keys}
    )


def _key(path: KeyPath, _: JSON) -> str:
    return dotted(path)
