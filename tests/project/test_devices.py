"""The devices over which a test of the service can run."""

from __future__ import annotations

import pytest

from tests.support import devices
from tests.support.service import running_service


def test_the_annealer_of_a_second_service_is_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "chosen", "sfq")
    with running_service() as service:
        graph = service.queue.device.description.topology
    assert graph is not None
    assert len({qubit for pair in graph.couplers for qubit in pair}) <= 300
