"""The class of the service's own dialect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import get_args

from starlette.routing import BaseRoute

from sf_quantum.files import JSON
from sf_quantum.service.dialects.dialect import OWN, Dialect
from sf_quantum.service.dialects.v1 import admin, device, jobs, leases, usage
from sf_quantum.service.dialects.v1.models import JobBody
from sf_quantum.service.domain.jobs import Kind, Submission


class V1(Dialect):
    """``/v1``: leases, jobs, accounting and administration."""

    name = OWN
    clients = "`sfq`, and QPUs of the type `sfq`"
    payloads = get_args(Kind)
    prefix = "/v1"
    submissions = re.compile("/v1/jobs")

    @classmethod
    def routes(cls) -> Sequence[BaseRoute]:
        parts = (device, leases, jobs, usage, admin)
        return [route for part in parts for route in part.router.routes]

    @staticmethod
    def read(content: JSON, more: Mapping[str, JSON]) -> Submission:
        return JobBody.model_validate(content).submission()
