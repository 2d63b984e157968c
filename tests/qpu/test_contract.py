"""The contract of QPUs, on those of our kinds that can be had here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sf_quantum import qpu
from sf_quantum.files import JSON
from sf_quantum.qpu import Qpu
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.testing.qpus import JobContract, Lie, QpuContract
from tests.support import lying, pasqal_contract
from tests.support.lying import Liars
from tests.support.service import running_service
from tests.support.service_process import QpuService

pytestmark = pytest.mark.process


class TestSfq(QpuContract):
    """Our own service, on a Unix socket."""

    @pytest.fixture
    def driver(self) -> Iterator[Qpu]:
        with running_service(
            EmulatedDevice(qubits=100, time_scale=0, noise=1)
        ) as service:
            yield qpu.load("sfq").from_config("one", {"url": service.url})


# a job of 2,000 reads lasts three minutes
SLOW = 1000.0


class TestJobsOfSfq(JobContract):
    """Our own service as the vendor, on a Unix socket."""

    @pytest.fixture
    def driver(self) -> Iterator[Qpu]:
        with _sfq(0.0) as driver:
            yield driver

    @pytest.fixture
    def slow_driver(self) -> Iterator[Qpu]:
        with _sfq(SLOW) as driver:
            yield driver

    @pytest.fixture
    def make_lying(self) -> Iterator[Callable[[Lie], Qpu | None]]:
        device = EmulatedDevice(qubits=100, time_scale=0)
        with (
            running_service(device, tcp=True) as vendor,
            Liars(lying.ours, vendor.url) as liars,
        ):
            yield lambda lie: _at(liars.url(lie), sfq_at)


def _at(url: str | None, make: Callable[[str], Qpu]) -> Qpu | None:
    """Make a client of the vendor at a URL, if it is anywhere."""
    return None if url is None else make(url)


def sfq_at(url: str) -> Qpu:
    return qpu.load("sfq").from_config("one", {"url": url})


@contextmanager
def _sfq(time_scale: float) -> Iterator[Qpu]:
    with running_service(EmulatedDevice(qubits=100, time_scale=time_scale)) as service:
        yield sfq_at(service.url)


class TestJobsOfDWave(JobContract):
    """Our annealer as the vendor, by D-Wave's own client."""

    @pytest.fixture
    def driver(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Qpu]:
        monkeypatch.setenv("DWAVE_CACHE_HOME", str(tmp_path / "cache"))
        with _dwave(tmp_path, 0.0) as driver:
            yield driver

    @pytest.fixture
    def slow_driver(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Qpu]:
        monkeypatch.setenv("DWAVE_CACHE_HOME", str(tmp_path / "cache"))
        with _dwave(tmp_path, SLOW) as driver:
            yield driver

    @pytest.fixture
    def make_lying(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Callable[[Lie], Qpu | None]]:
        pytest.importorskip("dwave.system", reason="the extra dwave is not installed")
        monkeypatch.setenv("DWAVE_CACHE_HOME", str(tmp_path / "cache"))
        device = EmulatedDevice(qubits=40, time_scale=0)
        with (
            running_service(device, tcp=True) as vendor,
            Liars(lying.sapi, vendor.url) as liars,
        ):
            yield lambda lie: _at(liars.url(lie), lambda url: dwave_at(url, tmp_path))


@contextmanager
def _dwave(folder: Path, time_scale: float) -> Iterator[Qpu]:
    pytest.importorskip("dwave.system", reason="the extra dwave is not installed")
    device = EmulatedDevice(qubits=40, time_scale=time_scale)
    with running_service(device, tcp=True) as service:
        yield dwave_at(service.url, folder)


def dwave_at(url: str, folder: Path) -> Qpu:
    token = folder / "token"
    token.write_text("any")
    config: dict[str, JSON] = {"url": f"{url}/sapi/v2", "tokenFile": str(token)}
    return qpu.load("dwave").from_config("one", config)


class TestJobsOfIqm(JobContract):
    """Our gates as the vendor, by IQM's API."""

    @pytest.fixture
    def driver(self, tmp_path: Path) -> Iterator[Qpu]:
        with _iqm(tmp_path, 0.0) as driver:
            yield driver

    @pytest.fixture
    def slow_driver(self, tmp_path: Path) -> Iterator[Qpu]:
        with _iqm(tmp_path, SLOW) as driver:
            yield driver

    @pytest.fixture
    def make_lying(self, tmp_path: Path) -> Iterator[Callable[[Lie], Qpu | None]]:
        pytest.importorskip("qrmi", reason="the package qrmi is not installed")
        device = EmulatedDevice(
            technology="superconducting", qubits=5, time_scale=0, name="one"
        )
        with (
            running_service(device, tcp=True) as vendor,
            Liars(lying.iqm, vendor.url) as liars,
        ):
            yield lambda lie: _at(liars.url(lie), lambda url: iqm_at(url, tmp_path))


@contextmanager
def _iqm(folder: Path, time_scale: float) -> Iterator[Qpu]:
    pytest.importorskip("qrmi", reason="the package qrmi is not installed")
    device = EmulatedDevice(
        technology="superconducting", qubits=5, time_scale=time_scale, name="one"
    )
    with running_service(device, tcp=True) as service:
        yield iqm_at(service.url, folder)


def iqm_at(url: str, folder: Path) -> Qpu:
    environment: JSON = {"QRMI_IQM_ISA_ENDPOINT": url, "QRMI_IQM_ISA_TOKEN": "any"}
    entry: JSON = {"name": "one", "type": "iqm-server", "environment": environment}
    file = folder / f"qrmi_config-{url.rpartition(':')[2]}.json"
    file.write_text(json.dumps({"resources": [entry]}))
    return qpu.load("iqm-server").from_config("one", {"qrmiConfig": str(file)})


def test_jobs_of_pasqal_local(alone: list[str]) -> None:
    command = [*alone, sys.executable, "-m", "pytest", "-q", "--no-cov"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", pasqal_contract.__file__]
    with (
        running_service(EmulatedDevice(qubits=100, time_scale=0), tcp=True) as service,
        running_service(EmulatedDevice(qubits=100, time_scale=SLOW), tcp=True) as slow,
    ):
        urls = {pasqal_contract.URL: service.url, pasqal_contract.SLOW_URL: slow.url}
        done = subprocess.run(
            command, env={**os.environ, **urls}, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stdout


class TestDWave(QpuContract):
    """The same annealer by D-Wave's own tools."""

    @pytest.fixture
    def driver(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Qpu]:
        pytest.importorskip("dwave.system", reason="the extra dwave is not installed")
        monkeypatch.setenv("DWAVE_CACHE_HOME", str(tmp_path / "cache"))
        service = QpuService(tmp_path / "qpu", "--qubits", "40", "--time-scale", "0")
        token = service.with_tokens("ada")
        service.start()
        config = {"url": f"{service.url}/sapi/v2", "tokenFile": token}
        yield qpu.load("dwave").from_config("one", config)
        service.kill()
