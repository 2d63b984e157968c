"""The driver's side of the QPU service: leases, over a Unix socket."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

import aiohttp
from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.files import JSON

POLL_SECONDS = 0.1
LEASE_PATIENCE_SECONDS = 20.0
REQUEST_SECONDS = 10.0


class ServiceGone(WorkflowExecutionException):
    """The service does not answer."""


class LeaseClient:
    """Asks for leases and gives them back.

    :param socket: path of the service's Unix socket on this machine
    :param name: of the QPU, for the errors
    """

    def __init__(self, socket: str, name: str) -> None:
        self._name = name
        # a connection each: over SSH an idle one would keep one of its channels busy
        self._session = aiohttp.ClientSession(
            "http://localhost",
            connector=aiohttp.UnixConnector(socket, force_close=True),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def healthy(self) -> bool:
        """Whether the service answers.

        :returns: False as long as it does not
        """
        try:
            status, _ = await self._ask("GET", "/v1/health")
        except ServiceGone:
            return False
        return status == 200

    async def acquire(self, job: str) -> str:
        """Take a lease; a step that has just ended may still be giving its own back.

        :param job: the job's name, for the service's record
        :returns: the lease's id
        :raises WorkflowExecutionException: if none comes free in time
        """
        deadline = time.monotonic() + LEASE_PATIENCE_SECONDS
        while True:
            status, answer = await self._ask("POST", "/v1/leases", {"job": job})
            if status == 201:
                return str(answer["id"])
            if status != 409 or time.monotonic() > deadline:
                raise WorkflowExecutionException(
                    f"QPU {self._name} gives job {job} no lease: "
                    f"{answer.get('detail') or f'HTTP status {status}'}."
                )
            await asyncio.sleep(POLL_SECONDS)

    async def release(self, lease: str) -> list[dict[str, JSON]]:
        """Give a lease back, which cancels what is left of its QPU jobs.

        :param lease: the lease's id
        :returns: the QPU jobs of the lease, all of them over
        :raises ServiceGone: if the service does not answer
        """
        _, answer = await self._ask("DELETE", f"/v1/leases/{lease}")
        jobs = answer.get("jobs")
        if not isinstance(jobs, list):
            raise ServiceGone(f"The service of QPU {self._name} has lost a lease.")
        return [job for job in jobs if isinstance(job, dict)]

    async def calibration(self) -> JSON:
        """Which calibration the QPU's samples come from.

        :returns: its id
        :raises ServiceGone: if the service does not answer
        """
        _, device = await self._ask("GET", "/v1/device")
        calibration = device.get("calibration")
        return calibration.get("id") if isinstance(calibration, dict) else None

    async def _ask(
        self, method: str, path: str, body: dict[str, JSON] | None = None
    ) -> tuple[int, dict[str, JSON]]:
        try:
            async with self._session.request(method, path, json=body) as response:
                answer = await response.json() if response.status != 204 else {}
                return response.status, answer if isinstance(answer, dict) else {}
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ServiceGone(
                f"The service of QPU {self._name} does not answer: "
                f"{error or type(error).__name__}."
            ) from error
