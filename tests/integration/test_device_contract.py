"""The contract of devices, on those that can be had here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sf_quantum.service.device.emulated import EmulatedDevice
from sf_quantum.service.device.protocol import Device
from sf_quantum.service.device.technologies import TECHNOLOGIES
from sf_quantum.testing.devices import DeviceContract


class TestEmulated(DeviceContract):
    """An emulated device of each technology, with the errors of real ones."""

    @pytest.fixture(params=TECHNOLOGIES)
    def technology(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def make(self, technology: str) -> Callable[[], Device]:
        return lambda: EmulatedDevice.from_config(
            {
                "technology": technology,
                "qubits": 60,
                "shots": 500,
                "out_of_service": [40, 41],
                "time_scale": 0,
            }
        )

    @pytest.fixture
    def make_lasting(self, technology: str) -> Callable[[], Device]:
        # the shortest, of an annealer, takes 27 ms on the hardware
        return lambda: EmulatedDevice.from_config(
            {"technology": technology, "time_scale": 1e6}
        )
