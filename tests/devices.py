"""Real clients in place of the emulated device: the vendor is a second service, or Acme.

A test about the service runs over any of them: what it asks of its emulated device, that
of the second service has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import pytest

from sf_quantum.files import JSON
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.technologies import TECHNOLOGIES
from sf_quantum.service.device.protocol import Device
from sf_quantum.service.device.qpu import QpuDevice
from tests.vendor import Vendor

Kind: TypeAlias = Literal["emulated", "sfq", "dwave", "acme"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# of an annealer: its client reads the whole graph for each service
MOST_QUBITS = 40
# of Acme's, and the set-up of its jobs
ACME_QUBITS, LEAST_SECONDS = 64, 1e-3
MICROSECONDS = 1e6
#: what takes the place of emulated devices; ``conftest.py`` changes it
chosen: Kind = "emulated"
# runs a vendor's service with a device, in a folder, on TCP or not; its URL
Serve: TypeAlias = Callable[[EmulatedDevice, Path, bool], AbstractContextManager[str]]


@contextmanager
def in_place_of(device: Device, folder: Path, serve: Serve) -> Iterator[Device]:
    """Make the device that was chosen.

    :param folder: of the vendor's state
    :param serve: runs a second service
    """
    kind = chosen
    if kind == "emulated" or not isinstance(device, EmulatedDevice):
        yield device
        return
    acme = kind == "acme"
    making = _acme(device, folder) if acme else _served(kind, device, folder, serve)
    with making as config:
        front = QpuDevice.from_config(
            {
                "qpu": kind,
                "name": device.name,
                "cost_per_second": device.cost_per_second,
                "config": config,
                "poll_seconds": 0.01,
                "refresh_seconds": 0.1,
                "ahead": 0,
            }
        )
        front.refresh()
        assert front.status.online, front.status.reason
        try:
            yield front
        finally:
            front.close()


@contextmanager
def _served(
    kind: Kind, device: EmulatedDevice, folder: Path, serve: Serve
) -> Iterator[dict[str, JSON]]:
    token = folder / "token"
    token.write_text("any")
    if kind == "sfq":
        with serve(device, folder, False) as url:
            yield {"url": url}
        return
    pytest.importorskip("dwave.system", reason="the extra dwave is missing")
    # its jobs last as long as those of the technology that it takes the place of
    longer = device.timing.setup_seconds / TECHNOLOGIES["annealer"].timing.setup_seconds
    annealer: dict[str, JSON] = {
        "technology": "annealer",
        "qubits": min(device.qubits, MOST_QUBITS),
        "time_scale": longer * device.time_scale,
    }
    device = device.model_copy(update=annealer)
    with pytest.MonkeyPatch.context() as patch, serve(device, folder, True) as url:
        patch.setenv("DWAVE_CACHE_HOME", str(folder / "cache"))
        yield {"url": f"{url}/sapi/v2", "tokenFile": str(token)}


@contextmanager
def _acme(device: EmulatedDevice, folder: Path) -> Iterator[dict[str, JSON]]:
    with Vendor(folder) as vendor, pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(vendor.site())
        seconds = device.timing.setup_seconds * device.time_scale
        setup = max(seconds, LEAST_SECONDS) * MICROSECONDS
        vendor.set(qubits=min(device.qubits, ACME_QUBITS), setup=setup)
        yield vendor.config
