"""The class of the dialect of Pasqal's warden."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from starlette.routing import BaseRoute

from sf_quantum.files import JSON
from sf_quantum.service.dialects.dialect import Dialect
from sf_quantum.service.dialects.warden import accounting, routes
from sf_quantum.service.dialects.warden.models import CreateJob
from sf_quantum.service.domain.jobs import Submission


class Warden(Dialect):
    """Sessions and jobs for QRMI's type ``pasqal-local``."""

    name = "warden"
    clients = "QRMI's type `pasqal-local`"
    payloads = ("sequence",)
    lease_header = routes.SESSION_HEADER
    submissions = re.compile("/jobs")
    numbers_jobs = True

    @classmethod
    def routes(cls) -> Sequence[BaseRoute]:
        return [*routes.router.routes, *accounting.router.routes]

    @staticmethod
    def read(content: JSON, more: Mapping[str, JSON]) -> Submission:
        return CreateJob.model_validate(content).submission()
