"""The configuration of an emulated device."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, Strict

from sf_quantum.service.device.emulator.technologies import TECHNOLOGIES
from sf_quantum.service.device.emulator.topology import COMPLETE, SQUARE, TOPOLOGIES
from sf_quantum.service.device.operations import Parameter
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.service.domain.settings import Count, NotNegative, Positive
from sf_quantum.text import unknown
from sf_quantum.validation import Section

Probability: TypeAlias = Annotated[float, Field(ge=0, le=1)]
# the technology whose devices run circuits
GATES = "superconducting"
# The technology whose devices run only photonic experiments; the "qubits" of these devices
# are modes.
PHOTONIC = "photonic"
# Names of topologies by technology.
GRAPHS: Mapping[str, Collection[str]] = {
    "annealer": [*TOPOLOGIES],
    GATES: [SQUARE, COMPLETE],
}
Qubit: TypeAlias = Annotated[int, Field(ge=0)]


def _probability(name: str, event: str) -> Parameter:
    return Parameter(name, f"Probability that {event}.", "", 0.0, 1.0)


#: the parameters of the operations of admins, by operation
PARAMETERS: Mapping[str, Sequence[Parameter]] = {
    "set-noise": [
        Parameter("noise", "0 is an ideal device, 1 a real one.", "", 0.0, 100.0)
    ],
    "set-faults": [
        _probability("fail", "a job fails at the end of its run time"),
        Parameter("slow", "Factor on run times.", "", 1.0, 1000.0),
        _probability("offline", "a job fails because the QPU is offline"),
        _probability("calibration", "a calibration is faulty"),
        _probability("drift", "a calibration gradually becomes faulty"),
    ],
    "set-time-scale": [Parameter("time_scale", "0 does not wait.", "s/s", 0.0, 1000.0)],
}


class Faults(Section):
    """Injected faults, drawn per attempt and per calibration from the device's seed.

    :param fail: probability that a job fails at the end of its run time
    :param slow: factor on run times, 1 or more
    :param offline: probability that a job fails immediately because the QPU is offline
    :param calibration: probability that a calibration is faulty, with 20 times the usual
        errors
    :param drift: probability that a calibration gradually becomes faulty
    """

    fail: Probability = 0.0
    slow: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    offline: Probability = 0.0
    calibration: Probability = 0.0
    drift: Probability = 0.0


def _known_name(kind: str, names: Collection[str]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in names:
            raise ValueError(unknown(kind, name, [*names]))
        return name

    return AfterValidator(check)


def _bounds(bounds: dict[str, list[float]]) -> dict[str, list[float]]:
    parameters = {
        one.name: one for parameters in PARAMETERS.values() for one in parameters
    }
    for name, values in bounds.items():
        if name not in parameters:
            raise ValueError(unknown("parameter", name, [*parameters]))
        least, most = parameters[name].least, parameters[name].most
        if len(values) != 2 or not least <= values[0] <= values[1] <= most:
            allowed = f"[{least:g}, {most:g}]"
            raise ValueError(f"{name}: expected [least, most] within {allowed}")
    return bounds


class DeviceSettings(Section):
    """The configuration of an emulated device.

    :param type: the device is emulated by the service
    :param name: name of the QPU
    :param technology: kind of QPU: ``annealer``, ``superconducting``, ``neutral-atom`` or
        ``photonic``
    :param qubits: number of qubits, including those out of service; for a photonic QPU,
        number of modes, at most 24
    :param shots: maximum shots per job; ``None`` sets no limit
    :param out_of_service: numbers of the qubits out of service; for an annealer, numbers
        in its graph
    :param topology: for an annealer, the kind of its graph; the smallest such graph that is
        large enough is reduced to ``qubits`` qubits. For a superconducting QPU, ``square``
        (a lattice with native gates) or ``complete`` (any gate on any qubits)
    :param time_scale: seconds to wait per modelled second; 0 does not wait
    :param noise: factor on the technology's errors; 0 is an ideal device
    :param calibration_seconds: modelled lifetime of a calibration; by default the
        technology's
    :param seed: seed of faults, errors and jobs without a seed; random by default
    :param compute: limits of the computation of a job
    :param cost_per_second: price of modelled QPU time, in the site's own unit
    :param bounds: bounds for the values that admins may give to parameters with
        ``sfq admin run``, such as ``{noise: [0, 2]}``
    """

    type: Literal["emulated"] = "emulated"
    name: Annotated[str, Field(min_length=1)] = "emulator"
    technology: Annotated[str, _known_name("technology", TECHNOLOGIES)] = "annealer"
    qubits: Count = 5000
    shots: Count | None = None
    out_of_service: Annotated[frozenset[Qubit], Strict(False)] = frozenset()
    topology: (
        Annotated[str, _known_name("topology", [*TOPOLOGIES, SQUARE, COMPLETE])] | None
    ) = None
    time_scale: NotNegative = 1.0
    noise: NotNegative = 1.0
    calibration_seconds: Positive | None = None
    seed: int | None = None
    faults: Faults = Faults()
    compute: ComputeLimits = ComputeLimits()
    cost_per_second: NotNegative | None = None
    bounds: Annotated[dict[str, list[float]], AfterValidator(_bounds)] = Field(
        default_factory=dict
    )
