"""What a separate process is asked to compute, and its answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from sf_quantum.files import JSON
from sf_quantum.service.device.noise import Noise
from sf_quantum.service.device.technologies import JobParameters
from sf_quantum.service.domain.settings import Count, Positive
from sf_quantum.validation import Section

NOISE: TypeAdapter[Noise | None] = TypeAdapter(Noise | None)


class ComputeLimits(Section):
    """Limits of the process that computes a job; a job that exceeds one fails.

    :param memory_gib: address space, in GiB
    :param cpu_seconds: CPU time per job
    """

    memory_gib: Positive = 4.0
    cpu_seconds: Count = 300


@dataclass(frozen=True)
class Computation:
    """The computation of one attempt.

    :param payload: JSON text
    :param parameters: at least ``num_reads`` and ``seed``
    :param noise: ``None`` for an ideal device
    """

    payload: str
    parameters: JobParameters
    noise: Noise | None = None
    limits: ComputeLimits = field(default_factory=ComputeLimits)


@dataclass(frozen=True)
class Result:
    """A result, which may be large and is not parsed by the service.

    :param text: a JSON object without its ``info``
    """

    text: str = "{}"
    info: dict[str, JSON] = field(default_factory=dict)

    @property
    def whole(self) -> str:
        """The JSON text with ``info``."""
        comma = "" if self.text == "{}" else ", "
        return f'{self.text[:-1]}{comma}"info": {json.dumps(self.info)}}}'
