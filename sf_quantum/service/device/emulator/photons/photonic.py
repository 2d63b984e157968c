"""Experiments in linear optics: their parsing, size and limits.

Perceval is not imported here; see :mod:`.optics`.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import ValidationError

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.emulator.computation import Computation, SeparateRunner
from sf_quantum.service.device.processes import process_pool
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.service.domain.jobs import Kind, Size
from sf_quantum.service.domain.photonic import PhotonicExperiment

#: Numbers of modes and photons of Quandela's Belenos.
MOST_MODES, MOST_PHOTONS = 24, 12
# Longest shot of an experiment.
MOST_SHOT_SECONDS = 3600
# Maximum CPU time of a check, enough for a circuit with the most components.
CHECK_SECONDS = 30
# Sampling n photons (Clifford and Clifford 2017) takes as long as changing
# LEAST_AMPLITUDES + AMPLITUDES * n * 2^n amplitudes.
AMPLITUDES, LEAST_AMPLITUDES = 3, 1000


@dataclass(frozen=True)
class PhotonicSimulator(SeparateRunner):
    """Simulates experiments with photons; see :class:`.runners.Runner`."""

    kind: ClassVar[Kind] = "photonic"
    limits: ComputeLimits = field(default_factory=ComputeLimits)

    def check(self, content: JSON, *, qubits: int) -> Size:
        """See :meth:`.runners.Runner.check`; the first call takes about a second."""
        request = experiment(content)
        most = min(qubits, MOST_MODES)
        if request.modes > most:
            detail = f"{request.modes} modes; the device has {most}"
            raise FieldError("photonic.input_state", detail)
        if request.photons > MOST_PHOTONS:
            detail = f"{request.photons} photons; at most {MOST_PHOTONS} per input"
            raise FieldError("photonic.input_state", detail)
        if problem := installation_problem():
            raise FieldError("photonic", problem)
        # CPU time is limited, not real time: a busy machine is not the experiment's fault.
        seconds = min(CHECK_SECONDS, self.limits.cpu_seconds)
        limits = self.limits.model_copy(update={"cpu_seconds": seconds})
        try:
            process_pool.check("optics", {}, json.dumps(content), limits)
        except InputError as error:
            raise FieldError("photonic", str(error)) from error
        return size(request)

    def arguments(self, computation: Computation) -> dict[str, JSON]:
        """See :meth:`SeparateRunner.arguments`.

        :raises InputError: if Perceval is missing
        """
        if problem := installation_problem():
            raise InputError(problem)
        return super().arguments(computation)


def experiment(content: JSON) -> PhotonicExperiment:
    """Read an experiment.

    :raises FieldError: if the content is not an experiment
    """
    try:
        return PhotonicExperiment.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, ["photonic", *first["loc"]]))
        raise FieldError(where, first["msg"]) from error


def size(setup: PhotonicExperiment) -> Size:
    """Return the size of an experiment."""
    photons = setup.photons
    return Size(
        setup.modes,
        shot_amplitudes=LEAST_AMPLITUDES + (AMPLITUDES * photons << photons),
        photons=photons,
        detected=setup.needed,
        qubits=setup.modes,
    )


def check_shot(size: Size, seconds: float) -> None:
    """Reject an experiment with too long a shot: a slice has at least one shot.

    :param seconds: time of a shot on the device
    """
    if seconds > MOST_SHOT_SECONDS:
        detail = f"{size.detected} of {size.photons} photons arrive together once in"
        detail = f"{detail} {seconds:,.0f} s; at most {MOST_SHOT_SECONDS:,} s per shot"
        raise FieldError("photonic.min_detected_photons", detail)


def installation_problem() -> str | None:
    """Return a message if Perceval is missing, else ``None``; imports nothing."""
    if importlib.util.find_spec("perceval") is not None:
        return None
    what = "perceval-quandela is not installed (pip install 'sf-quantum[photonic]')"
    return f"this service cannot run photonic experiments: {what}"


def specs(name: str, modes: int) -> str:
    """Return the specifications of a device as JSON, with Perceval's names."""
    constraints = {
        "max_mode_count": modes,
        "max_photon_count": min(modes, MOST_PHOTONS),
        "support_multi_photon": False,
        "accepted_state_kinds": ["FS"],
    }
    specs = {"name": name, "detector": "threshold", "constraints": constraints}
    return json.dumps(specs)
