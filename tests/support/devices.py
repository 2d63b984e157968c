"""Real clients in place of the emulated device: the vendor is a second service, or Acme.

A test about the service runs over any of them: what it asks of its emulated device, that
of the second service has. :func:`in_place_of` is for a service in the tests' own process,
:func:`configured` for ``sfq serve``.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import pytest

from sf_quantum.files import JSON
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.technologies import TECHNOLOGIES
from sf_quantum.service.device.interface import Device
from sf_quantum.service.device.vendor.device import QpuDevice
from tests.support import forking
from tests.support.vendor import Control, Vendor, VendorProcess

Kind: TypeAlias = Literal["emulated", "sfq", "dwave", "acme"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# of an annealer, since each client of it reads the whole graph: D-Wave's is the slowest
MOST_QUBITS, MOST_OF_DWAVE = 300, 40
# of Acme's, and the set-up of its jobs
ACME_QUBITS, ACME_SHOTS, LEAST_SECONDS = 64, 100_000, 1e-3
MICROSECONDS = 1e6
#: what takes the place of emulated devices; ``conftest.py`` changes it
chosen: Kind = "emulated"
#: jobs that wait at the vendor while one runs; ``conftest.py`` changes it
ahead = 0
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
                **_front(kind, device, config),
                "poll_seconds": 0.01,
                "refresh_seconds": 0.1,
            }
        )
        front.refresh()
        assert front.status.online, front.status.reason
        try:
            yield front
        finally:
            front.close()


def _front(
    kind: Kind, device: EmulatedDevice, config: dict[str, JSON]
) -> dict[str, JSON]:
    """Make the configuration of a device that has the place of an emulated one."""
    known: dict[str, JSON] = {"qpu": kind, "name": device.name, "ahead": ahead}
    return {**known, "cost_per_second": device.cost_per_second, "config": config}


@contextmanager
def _served(
    kind: Kind, device: EmulatedDevice, folder: Path, serve: Serve
) -> Iterator[dict[str, JSON]]:
    if kind == "sfq":
        if device.technology == "annealer":
            device = device.model_copy(
                update={"qubits": min(device.qubits, MOST_QUBITS)}
            )
        with serve(device, folder, False) as url:
            yield _client(kind, url, folder)
        return
    pytest.importorskip("dwave.system", reason="the extra dwave is missing")
    device = device.model_copy(update=_annealer(device, MOST_OF_DWAVE))
    with pytest.MonkeyPatch.context() as patch, serve(device, folder, True) as url:
        patch.setenv("DWAVE_CACHE_HOME", str(folder / "cache"))
        yield _client(kind, url, folder)


def _client(kind: Kind, url: str, folder: Path) -> dict[str, JSON]:
    """Make the configuration of the client of a vendor that is a second service."""
    if kind == "sfq":
        return {"url": url}
    token = folder / "token"
    token.write_text("any")
    return {"url": f"{url}/sapi/v2", "tokenFile": str(token)}


def _annealer(device: EmulatedDevice, most: int) -> dict[str, JSON]:
    """What makes an annealer of a device, whose jobs last as long as they did."""
    longer = (
        device.hardware.timing.setup_seconds
        / TECHNOLOGIES["annealer"].timing.setup_seconds
    )
    return {
        "technology": "annealer",
        "qubits": min(device.qubits, most),
        "time_scale": longer * device.time_scale,
    }


@contextmanager
def _acme(device: EmulatedDevice, folder: Path) -> Iterator[dict[str, JSON]]:
    with Vendor(folder) as vendor, pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(vendor.site())
        _like(vendor, device)
        yield vendor.config


def _like(vendor: Control, device: EmulatedDevice) -> None:
    shot, least = (
        device.hardware.timing.job_seconds(1),
        device.hardware.timing.setup_seconds,
    )
    scale = device.time_scale * MICROSECONDS
    vendor.set(
        qubits=min(device.qubits, ACME_QUBITS),
        shots=device.shots or ACME_SHOTS,
        setup=max(least * scale, LEAST_SECONDS * MICROSECONDS),
        shot=(shot - least) * scale,
    )


# of a service that is a process of its own


@dataclass(frozen=True)
class Configured:
    """What a service that is a process of its own has for its device.

    :param device: the section ``device`` of its configuration file
    :param environment: more variables of its process
    :param runs: the vendor's database, and the query for the tags of the jobs that it has
        begun to run, in their order
    """

    device: dict[str, JSON]
    environment: dict[str, str] = field(default_factory=dict)
    runs: tuple[Path, str] | None = None

    def ran(self) -> list[str]:
        """The tags of the jobs that the vendor has begun to run, in their order."""
        assert self.runs is not None, "the emulated device has no vendor"
        path, query = self.runs
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return [tag for (tag,) in database.execute(query)]


@contextmanager
def configured(device: Mapping[str, JSON], folder: Path) -> Iterator[Configured]:
    """Make the device that was chosen, for a service that is a process of its own.

    The vendor is another process, which goes on whatever becomes of the service.

    :param device: the section of an emulated device
    :param folder: of the vendor's state; it is made
    """
    kind = chosen
    if kind == "emulated":
        yield Configured({**device})
        return
    # as from a configuration file, where devices are not ideal by default
    wanted = EmulatedDevice.from_config(device)
    making = _acme_process(wanted, folder) if kind == "acme" else None
    with making or _second_service(kind, {**device}, wanted, folder) as made:
        front = {**_front(kind, wanted, made.device), "type": "qpu"}
        # more often than a site would have it
        often = {"poll_seconds": 0.05, "refresh_seconds": 0.2, "late_seconds": 0.5}
        yield replace(made, device={**front, **often})


@contextmanager
def _acme_process(device: EmulatedDevice, folder: Path) -> Iterator[Configured]:
    with VendorProcess(folder) as vendor:
        _like(vendor, device)
        query = "SELECT tag FROM jobs WHERE ran > 0 ORDER BY started"
        runs = folder / "acme.sqlite", query
        yield Configured(vendor.config, {"PYTHONPATH": vendor.site()}, runs)


@contextmanager
def _second_service(
    kind: Kind, section: dict[str, JSON], device: EmulatedDevice, folder: Path
) -> Iterator[Configured]:
    folder.mkdir()
    if kind == "dwave":
        pytest.importorskip("dwave.system", reason="the extra dwave is missing")
        section |= _annealer(device, MOST_QUBITS)
    file, state = folder / "vendor.yml", folder / "state"
    file.write_text(json.dumps({"device": section, "state": str(state)}))
    command = [f"{forking.stand_ins()}/sfq", "serve", "--config", str(file)]
    # it ends with the tests, at the latest
    command += ["--port", "0", "--until-eof"]
    with (
        open(folder / "log", "wb") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (folder / "log").read_text()
            config = _client(kind, json.loads(line)["url"], folder)
            cache = {"DWAVE_CACHE_HOME": str(folder / "cache")}
            query = (
                "SELECT coalesce(json_extract(metadata, '$.label'), key) FROM jobs"
                " WHERE started IS NOT NULL ORDER BY started"
            )
            yield Configured(config, cache, (state / "service.sqlite", query))
        finally:
            process.kill()
