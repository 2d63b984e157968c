"""The stock client of D-Wave on a service."""

from __future__ import annotations

import importlib
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dimod import BinaryQuadraticModel

from sf_quantum.files import JSON
from tests.support.service_process import QpuService

if TYPE_CHECKING:
    from dwave.cloud import Client
    from dwave.cloud.api import Problems

cloud = pytest.importorskip("dwave.cloud", reason="the extra dwave is not installed")


api = importlib.import_module("dwave.cloud.api")


class Ocean:
    """A service, and the token of one of its users."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.service = QpuService(folder, *options)
        self.token = Path(self.service.with_tokens("ada")).read_text().strip()
        self.service.start()
        self.endpoint = f"{self.service.url}/sapi/v2"

    def client(self, **config: JSON) -> Client:
        """Make a client as its users do."""
        known = {"endpoint": self.endpoint, "token": self.token}
        return cloud.Client.from_config(**{**known, **config})

    def problems(self) -> Problems:
        """The client's own view of the REST resource."""
        return api.Problems(endpoint=self.endpoint, token=self.token)

    def leases(self, closed: bool = True) -> list[JSON]:
        found = self.service.ask("GET", f"/v1/leases?closed={str(closed).lower()}")
        assert isinstance(found, list)
        return found


def clique(size: int) -> BinaryQuadraticModel:
    """Every pair coupled, no two solutions alike but in their signs' sum."""
    bqm = BinaryQuadraticModel("SPIN")
    for one in range(size):
        bqm.add_linear(one, 0.1 * one - 0.2)
        for other in range(one):
            bqm.add_quadratic(other, one, (-1.0) ** (one * other) + 0.05 * one)
    return bqm


def lowest(bqm: BinaryQuadraticModel) -> float:
    """The lowest energy, from every state."""
    states = product((-1, 1), repeat=len(bqm.variables))
    return min(float(bqm.energy(dict(enumerate(state)))) for state in states)
