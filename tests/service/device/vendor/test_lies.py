"""Generated lies of vendors, through the client of each kind, to a device that checks them.

A proxy changes answers at places that are drawn: numbers, texts, whole answers, or what is
not JSON. Whatever comes, a result is one of its job, no more time counts than has passed,
texts are plain, and only errors of ours are raised.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sf_quantum import backoff
from sf_quantum.backoff import Backoff
from sf_quantum.errors import QpuError, QuantumError
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import OVER, NotAccepted, Task
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.interface import Device
from sf_quantum.service.device.processes.verification import verified
from sf_quantum.service.device.vendor.device import QpuDevice
from sf_quantum.testing.devices import (
    VendorContract,
    assert_plain,
    assert_times,
    closing,
    new_tag,
    refreshed,
)
from tests.support.lying import Lying, Odd, lying
from tests.support.pasqal_device_contract import device_at
from tests.support.service import running_service
from tests.support.vendor import Vendor

pytestmark = pytest.mark.process

Kind: TypeAlias = Literal["sfq", "dwave", "iqm-server", "acme"]
#: examples of each kind
EXAMPLES = int(os.environ.get("VENDOR_LIES", "15"))
#: where this module runs for pasqal-local, in a mount namespace
URL = "VENDOR_LIES_URL"
POLLS = 20
LIES = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[*HealthCheck],
    # the seed of a failure is as good as a smaller one
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
CONTRACT = VendorContract()


@contextmanager
def vendor_of(kind: Kind, folder: Path) -> Iterator[tuple[Lying, Callable[[], Device]]]:
    """Run a vendor behind a proxy; yield that, and what makes a device of it."""
    technology = {"dwave": "annealer", "sfq": "superconducting"}
    config: dict[str, JSON] = {}
    name = "emulator"

    def make() -> Device:
        return QpuDevice.from_config(
            {"qpu": kind, "name": name, "poll_seconds": 0.001, "config": {**config}}
        )

    if kind == "acme":
        with Vendor(folder / "acme") as acme, pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(acme.site())
            with lying(acme.url) as proxy:
                config |= {**acme.config, "url": proxy.url}
                yield proxy, make
        return
    device = EmulatedDevice(
        technology=technology.get(kind, "superconducting"), qubits=16, time_scale=0
    )
    with running_service(device, tcp=True) as vendor, lying(vendor.url) as proxy:
        if kind == "sfq":
            config["url"] = proxy.url
        elif kind == "dwave":
            token = folder / "token"
            token.write_text("any")
            config |= {"url": f"{proxy.url}/sapi/v2", "tokenFile": str(token)}
        else:
            entry: JSON = {
                "name": name,
                "type": kind,
                "environment": {
                    "QRMI_IQM_ISA_ENDPOINT": proxy.url,
                    "QRMI_IQM_ISA_TOKEN": "any",
                },
            }
            file = folder / "qrmi_config.json"
            file.write_text(json.dumps({"resources": [entry]}))
            config["qrmiConfig"] = str(file)
        yield proxy, make


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again at once."""
    for name in ("STATUS", "ACCESS", "REQUEST"):
        monkeypatch.setattr(backoff, name, Backoff(0.001, 0.001))


@pytest.mark.parametrize("kind", get_args(Kind))
def test_no_lie_counts(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "dwave":
        pytest.importorskip("dwave.system", reason="the extra dwave is missing")
    if kind == "iqm-server":
        pytest.importorskip("qrmi", reason="the package qrmi is not installed")
    monkeypatch.setenv("DWAVE_CACHE_HOME", str(tmp_path / "cache"))
    with vendor_of(kind, tmp_path) as (proxy, make):
        check_lies(proxy, make)


def test_no_lie_counts_on_pasqal_local(alone: list[str]) -> None:
    command = [*alone, sys.executable, "-m", "pytest", "-q", "--no-cov"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "-k", "behind_a_warden"]
    device = EmulatedDevice(technology="neutral-atom", time_scale=0)
    with running_service(device, tcp=True, vqpus=1000) as vendor:
        environment = {**os.environ, URL: vendor.url}
        done = subprocess.run(
            [*command, __file__], env=environment, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.skipif(URL not in os.environ, reason="runs in a mount namespace")
def test_no_lie_counts_behind_a_warden(tmp_path: Path) -> None:
    with lying(os.environ[URL]) as proxy:
        check_lies(proxy, device_at(proxy.url, tmp_path, 0.001))


def check_lies(proxy: Lying, make: Callable[[], Device]) -> None:
    """Run jobs while answers are changed."""
    proxy.change = None
    with closing(make()) as device:
        tasks = CONTRACT.tasks(refreshed(device))

        @given(st.integers(0, 2**32), st.sampled_from(tasks))
        @LIES
        def check(seed: int, task: Task) -> None:
            proxy.change = Odd(seed)
            check_job(device, replace(task, tag=new_tag()))
            check_status(device)

        check()
        # after all of them, an honest answer is believed again
        proxy.change = None
        refreshed(device)


def check_status(device: Device) -> None:
    device.refresh()
    status = device.status
    assert 0 <= status.queue_length < 1e12
    assert 0 <= status.eta_seconds < 1e12
    for text in (status.reason, status.trouble, device.description.technology):
        assert text.isprintable()
        assert len(text) <= 1000
    json.dumps(device.calibrations.data.values, allow_nan=False)
    assert 0 <= device.cost({"num_reads": 100}).qpu_seconds < 1e12
    age = device.calibrations.age_seconds
    assert age is None or age >= 0
    assert device.price is None or 0 <= device.price < 1e13


def check_job(device: Device, task: Task) -> None:
    """Run a job as far as it goes."""
    began = time.monotonic()
    try:
        job_id = device.jobs.submit(task)
    except QuantumError as error:
        assert_plain(str(error))
        return
    assert 0 < len(job_id) < 256
    assert job_id.isprintable()
    if not is_over(device, job_id, task):
        with suppress(QuantumError):
            device.jobs.cancel(job_id)
        return
    try:
        outcome = device.jobs.result(job_id, task)
    except QpuError as error:
        assert_plain(str(error))
        return
    assert_times(outcome)
    most = 1.02 * (time.monotonic() - began) + 2
    for seconds in (outcome.qpu_seconds, outcome.seconds):
        assert seconds is None or seconds <= most
    for text in (outcome.failure, outcome.lost):
        if text is not None:
            assert_plain(text)
    if outcome.calibration is not None:
        json.dumps(outcome.calibration.to_json(), allow_nan=False)
    if (result := outcome.result) is not None:
        verified(task.kind, task.payload, result.text, task.shots)
        info = json.dumps(json.loads(result.whole)["info"], allow_nan=False)
        assert info.isprintable()


def is_over(device: Device, job_id: str, task: Task) -> bool:
    """Poll a job a few times, also if that fails."""
    for _ in range(POLLS):
        try:
            if device.jobs.poll(job_id, task).state in OVER:
                return True
        except NotAccepted:
            device.refresh()
        except QuantumError as error:
            assert_plain(str(error))
    return False
