"""The contract of devices, on those that can be had here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.qpu.vendors.dwave import DWaveQpu
from sf_quantum.qpu.vendors.iqm import IqmServer
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.settings import DeviceSettings
from sf_quantum.service.device.emulator.technologies import TECHNOLOGIES
from sf_quantum.service.device.interface import Device
from sf_quantum.service.device.vendor.device import QpuDevice
from sf_quantum.service.twin import Original, TwinDevice
from sf_quantum.testing.devices import DeviceContract, VendorContract
from sf_quantum.testing.qpus import Lie
from tests.support import lying
from tests.support import pasqal_device_contract as pasqal
from tests.support.lying import Liars
from tests.support.service import UntilInterrupted, running_service
from tests.support.service_process import QpuService
from tests.support.vendor import Control, Vendor, VendorProcess

pytestmark = pytest.mark.process


class TestEmulated(DeviceContract):
    """An emulated device of each technology, with the errors of real ones."""

    @pytest.fixture(params=TECHNOLOGIES)
    def technology(self, request: pytest.FixtureRequest) -> str:
        if request.param == "photonic":
            pytest.importorskip("perceval", reason="the extra photonic is missing")
        return str(request.param)

    @pytest.fixture
    def make(self, technology: str) -> Callable[[], Device]:
        # a photonic one has 24 modes
        out: list[JSON] = [20, 21] if technology == "photonic" else [40, 41]
        return lambda: EmulatedDevice.from_config(
            {
                "technology": technology,
                "qubits": 60,
                "shots": 500,
                "out_of_service": out,
                "time_scale": 0,
            }
        )

    @pytest.fixture
    def make_lasting(self, technology: str) -> Callable[[], Device]:
        # the shortest, of an annealer, takes 27 ms on the hardware
        return lambda: EmulatedDevice.from_config(
            {"technology": technology, "qubits": 60, "time_scale": 1e6}
        )


def device_at(url: str, poll_seconds: float) -> Callable[[], Device]:
    return lambda: QpuDevice.from_config(
        {"qpu": "sfq", "config": {"url": url}, "poll_seconds": poll_seconds}
    )


def _at(url: str | None, make: Callable[[str], Device]) -> Device | None:
    """Make a device whose vendor is at a URL, if it is anywhere."""
    return None if url is None else make(url)


class TestTwin(DeviceContract):
    """The twin of another service's device."""

    @pytest.fixture
    def make(self) -> Iterator[Callable[[], Device]]:
        with running_service(self.original()) as service:
            url = service.url
            yield lambda: TwinDevice.from_config({"of": url, "time_scale": 0})

    @pytest.fixture
    def make_lasting(self) -> Callable[[], Device]:
        told = Original("cold", self.original().description)
        return lambda: TwinDevice.of(told, DeviceSettings(time_scale=1e6))

    def original(self) -> EmulatedDevice:
        out = frozenset({34})
        return EmulatedDevice(qubits=60, shots=500, out_of_service=out)


class TestQpu(VendorContract):
    """The QPU of another service of ours, whose gates run jobs of all kinds."""

    @pytest.fixture
    def make(self) -> Iterator[Callable[[], Device]]:
        device = EmulatedDevice.from_config(
            {
                "technology": "superconducting",
                "qubits": 20,
                "shots": 500,
                "time_scale": 0,
            }
        )
        with running_service(device) as vendor:
            yield device_at(vendor.url, 0.1)

    @pytest.fixture
    def make_lying(self) -> Iterator[Callable[[Lie], Device | None]]:
        device = EmulatedDevice(technology="superconducting", qubits=20, time_scale=0)
        with (
            running_service(device, tcp=True) as vendor,
            Liars(lying.ours, vendor.url) as liars,
        ):
            yield lambda lie: _at(liars.url(lie), lambda url: device_at(url, 0.1)())

    @pytest.fixture
    def make_lasting(self, tmp_path: Path) -> Iterator[Callable[[], Device]]:
        # apart from the tests, which look for threads of the device
        options = "--technology superconducting --time-scale 1e6 --socket"
        vendor = QpuService(tmp_path / "v", *options.split(), str(tmp_path / "s"))
        vendor.start()
        yield device_at(vendor.url, 1.0)
        vendor.kill()


@pytest.mark.skipif(DWaveQpu.problem() is not None, reason=str(DWaveQpu.problem()))
class TestDWave(VendorContract):
    """An annealer, through D-Wave's own client."""

    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DWAVE_CACHE_HOME", str(tmp_path / "cache"))

    @pytest.fixture
    def token(self, tmp_path: Path) -> str:
        file = tmp_path / "token"
        file.write_text("any")
        return str(file)

    def device_of(self, url: str, token_file: str, poll_seconds: float) -> Device:
        config: JSON = {"url": f"{url}/sapi/v2", "tokenFile": token_file}
        return QpuDevice.from_config(
            {"qpu": "dwave", "config": config, "poll_seconds": poll_seconds}
        )

    @pytest.fixture
    def make_lying(self, token: str) -> Iterator[Callable[[Lie], Device | None]]:
        device = EmulatedDevice(qubits=40, time_scale=0)
        with (
            running_service(device, tcp=True) as vendor,
            Liars(lying.sapi, vendor.url) as liars,
        ):
            yield lambda lie: _at(
                liars.url(lie), lambda url: self.device_of(url, token, 0.1)
            )

    @pytest.fixture
    def make(self, token: str) -> Iterator[Callable[[], Device]]:
        device = EmulatedDevice(qubits=100, time_scale=0)
        with running_service(device, tcp=True) as vendor:
            yield lambda: self.device_of(vendor.url, token, 0.1)

    @pytest.fixture
    def make_lasting(
        self, tmp_path: Path, token: str
    ) -> Iterator[Callable[[], Device]]:
        vendor = QpuService(tmp_path / "w", *"--qubits 100 --time-scale 1e6".split())
        vendor.start()
        yield lambda: self.device_of(vendor.url, token, 1.0)
        vendor.kill()


@pytest.mark.skipif(IqmServer.problem() is not None, reason=str(IqmServer.problem()))
class TestIqm(VendorContract):
    """A gate-based QPU, through IQM's API, which our service speaks too."""

    def gates(self, folder: Path, url: str, poll: float) -> Callable[[], Device]:
        entry: JSON = {
            "name": "emulator",
            "type": "iqm-server",
            "environment": {"QRMI_IQM_ISA_ENDPOINT": url, "QRMI_IQM_ISA_TOKEN": "any"},
        }
        file = folder / "qrmi_config.json"
        file.write_text(json.dumps({"resources": [entry]}))
        config: dict[str, JSON] = {
            "qpu": "iqm-server",
            "name": "emulator",
            "config": {"qrmiConfig": str(file)},
            "poll_seconds": poll,
        }
        return lambda: QpuDevice.from_config(config)

    @pytest.fixture
    def make(self, tmp_path: Path) -> Iterator[Callable[[], Device]]:
        device = EmulatedDevice(
            technology="superconducting", qubits=5, shots=500, time_scale=0
        )
        with running_service(device, tcp=True) as vendor:
            yield self.gates(tmp_path, vendor.url, 0.1)

    @pytest.fixture
    def make_lying(self, tmp_path: Path) -> Iterator[Callable[[Lie], Device | None]]:
        device = EmulatedDevice(technology="superconducting", qubits=5, time_scale=0)
        with (
            running_service(device, tcp=True) as vendor,
            Liars(lying.iqm, vendor.url) as liars,
        ):
            yield lambda lie: _at(
                liars.url(lie), lambda url: self.gates(tmp_path, url, 0.1)()
            )

    @pytest.fixture
    def make_lasting(self, tmp_path: Path) -> Iterator[Callable[[], Device]]:
        options = "--technology superconducting --qubits 5 --time-scale 1e6"
        vendor = QpuService(tmp_path / "v", *options.split())
        vendor.start()
        yield self.gates(tmp_path, vendor.url, 1.0)
        vendor.kill()


class TestAcme(VendorContract):
    """The QPU of ``examples/new-qpu``, at a stand-in for its vendor."""

    @pytest.fixture
    def vendor(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Vendor]:
        with Vendor(tmp_path / "vendor") as vendor:
            monkeypatch.syspath_prepend(vendor.site())
            yield vendor

    @pytest.fixture
    def make(self, vendor: Vendor) -> Callable[[], Device]:
        vendor.set(shots=500)
        return self.device_of(vendor, 0.1)

    @pytest.fixture
    def make_lasting(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Callable[[], Device]]:
        with VendorProcess(tmp_path / "lasting") as vendor:
            monkeypatch.syspath_prepend(vendor.site())
            vendor.set(setup=1e12)
            yield self.device_of(vendor, 1.0)

    @pytest.fixture
    def make_lying(self, vendor: Vendor) -> Iterator[Callable[[Lie], Device | None]]:
        with Liars(lying.acme, vendor.url) as liars:
            yield lambda lie: _at(
                liars.url(lie), lambda url: self.device_of(vendor, 0.1, url)()
            )

    def device_of(
        self, vendor: Control, poll_seconds: float, url: str = ""
    ) -> Callable[[], Device]:
        keys: dict[str, JSON] = {
            "qpu": "acme",
            "config": {**vendor.config, "url": url or vendor.url},
            "poll_seconds": poll_seconds,
        }
        return lambda: QpuDevice.from_config(keys)


# each client reads the whole graph
few = partial(EmulatedDevice, qubits=100)


def test_pasqal_local(alone: list[str]) -> None:
    command = [*alone, sys.executable, "-m", "pytest", "-q", "--no-cov"]
    options = ["-p", "no:cacheprovider", "-p", "no:xdist"]
    with (
        running_service(few(time_scale=0), tcp=True, vqpus=9) as vendor,
        running_service(few(time_scale=1e6), tcp=True, vqpus=9) as lasting,
        running_service(
            few(time_scale=0, runners={"sequence": UntilInterrupted("sequence")}),
            tcp=True,
        ) as sessions,
    ):
        urls = {
            pasqal.URL: vendor.url,
            pasqal.LASTING_URL: lasting.url,
            pasqal.SESSIONS_URL: sessions.url,
        }
        done = subprocess.run(
            [*command, *options, pasqal.__file__],
            env={**os.environ, **urls},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stdout
