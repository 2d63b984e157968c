"""The class of IQM's dialect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fastapi import Request, Response
from starlette.routing import BaseRoute

from sf_quantum.files import JSON
from sf_quantum.service.dialects.implicit_leases import LeaselessDialect
from sf_quantum.service.dialects.iqm import circuits, earlier_api, refusals, routes
from sf_quantum.service.dialects.iqm.jobs import Jobs
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Submission
from sf_quantum.service.queue.job_queue import JobQueue


class Iqm(LeaselessDialect):
    """Circuits of ``iqm-client`` and CUDA-Q; they run under implicit leases."""

    name = "iqm"
    clients = "`iqm-client` (Qiskit, Cirq and Qrisp on IQM), QRMI's type `iqm-server`, CUDA-Q's target `iqm`"
    payloads = ("circuit",)
    purpose = "circuits over IQM's API"
    prefix = routes.PREFIX
    submissions = re.compile(rf"{routes.PREFIX}/jobs/[^/]+/circuit|/circuits")

    def __init__(self, queue: JobQueue) -> None:
        super().__init__(queue)
        self.jobs = Jobs(queue)
        #: ids of calibration sets that clients have received, the latest last
        self.calibrations: dict[str, None] = {}

    @classmethod
    def routes(cls) -> Sequence[BaseRoute]:
        return [*routes.router.routes, *earlier_api.router.routes]

    def refusal(self, request: Request, refused: Refused) -> Response:
        return refusals.refused(request, refused)

    @staticmethod
    def read(content: JSON, more: Mapping[str, JSON]) -> Submission:
        return circuits.submission_of(content, more)
