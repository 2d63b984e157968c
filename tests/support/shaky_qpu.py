"""A QPU that fails when a test says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from dimod.core.sampler import Sampler

from sf_quantum.errors import QpuError
from sf_quantum.qpu import Qpu, QpuStatus


class ShakyQpu(Qpu):
    """Is in trouble for some calls."""

    type = "shaky"

    def __init__(self, troubles: int) -> None:
        super().__init__("q")
        self.troubles = troubles
        self.keys: list[str | None] = []
        self.released: list[str] = []

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, object]) -> Self:
        raise NotImplementedError

    @classmethod
    def from_environment(cls, name: str, environment: Mapping[str, str]) -> Self:
        raise NotImplementedError

    def sampler(self) -> Sampler:
        raise NotImplementedError

    def status(self) -> QpuStatus:
        raise QpuError("no answer")

    def acquire(self, job: str | None = None) -> str:
        raise NotImplementedError

    def acquire_waiting(
        self, job: str | None, *, wait_seconds: float, key: str | None = None
    ) -> str:
        self.keys.append(key)
        if len(self.keys) <= self.troubles:
            raise QpuError("connection refused")
        return "secret"

    def renew(self, token: str) -> float | None:
        return None

    def release(self, token: str) -> None:
        self.released.append(token)

    def environment(self, token: str) -> dict[str, str]:
        return {}
