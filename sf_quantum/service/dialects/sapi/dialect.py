"""The class of SAPI, the dialect of D-Wave's Ocean tools."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastapi import Request, Response
from starlette.routing import BaseRoute

from sf_quantum.service.dialects.implicit_leases import LeaselessDialect
from sf_quantum.service.dialects.sapi import refusals, routes, solver
from sf_quantum.service.dialects.sapi.problems import Problems
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.queue.job_queue import JobQueue


class Sapi(LeaselessDialect):
    """Problems of D-Wave's Ocean tools; they run under implicit leases."""

    name = "sapi"
    clients = "Ocean (`dwave-system`, `dwave-cloud-client`)"
    payloads = ("problem",)
    purpose = "problems over SAPI"
    prefix = routes.PREFIX
    submissions = re.compile(f"{routes.PREFIX}/problems")
    inflates = True

    def __init__(self, queue: JobQueue) -> None:
        super().__init__(queue)
        self.problems = Problems(queue)

    @classmethod
    def routes(cls) -> Sequence[BaseRoute]:
        return routes.router.routes

    def refusal(self, request: Request, refused: Refused) -> Response:
        return refusals.refused(refused)

    def submission_bytes(self, path: str, configured: int) -> int:
        # Ocean sends up to 20 problems in one request
        return max(configured, solver.batch_bytes(self.queue.device))
