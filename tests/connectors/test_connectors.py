"""Our connectors without StreamFlow's engine: configuration, unwrapping, leases."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from jsonschema.validators import validator_for
from streamflow.core.deployment import ExecutionLocation
from streamflow.core.exception import (
    WorkflowDefinitionException,
    WorkflowExecutionException,
)
from streamflow.core.scheduling import AvailableLocation
from streamflow.deployment.connector.base import BaseConnector
from streamflow.deployment.connector.local import LocalConnector
from streamflow.deployment.connector.ssh import SSHConnector

from sf_quantum.connectors import guardian, wrapper
from sf_quantum.connectors.emulator import BackgroundService, EmulatorConnector
from sf_quantum.connectors.nodes import NodesConnector
from sf_quantum.connectors.quantum.location import QuantumConnector
from sf_quantum.connectors.rest import RestConnector
from sf_quantum.connectors.slurm.connector import SlurmConnector
from sf_quantum.connectors.wrapper import LocationWrapper
from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.journal.scheduler import JournalScheduler
from sf_quantum.qpu import JobSize
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.technologies import TECHNOLOGIES
from sf_quantum.service.domain.jobs import Size
from tests.support.waiting import SECONDS
from tests.support.waiting import until_async as until

# what StreamFlow itself gives to a constructor
IMPOSED = {"self", "deployment_name", "config_dir", "connector", "service", "context"}


@pytest.fixture
def local() -> LocalConnector:
    return LocalConnector("inner", "/", 2**16)


@pytest.fixture
def nodes(local: LocalConnector) -> NodesConnector:
    return NodesConnector("nodes", "/", local, None, names=["c1", "c2"])


def emulator(local: LocalConnector, name: str = "qpu") -> EmulatorConnector:
    return EmulatorConnector(name, "/", local, None, vqpus=3)


CLASSES = (EmulatorConnector, NodesConnector, RestConnector, JournalScheduler)


@pytest.mark.parametrize("class_", CLASSES)
def test_the_schema_has_the_keys_of_the_constructor(
    class_: (
        type[EmulatorConnector]
        | type[NodesConnector]
        | type[RestConnector]
        | type[JournalScheduler]
    ),
) -> None:
    schema = json.loads(class_.get_schema())
    parameters = inspect.signature(class_.__init__).parameters.items()
    given = {name: p for name, p in parameters if name not in IMPOSED}
    # the one key that Python reserves cannot be a parameter
    reserved = {"class"} if given.pop("others", None) else set()
    assert schema["properties"].keys() == given.keys() | reserved
    optional = {n: p.default for n, p in given.items() if p.default is not p.empty}
    assert schema.get("required", []) == [
        name for name in given if name not in optional
    ]
    for name, value in schema["properties"].items():
        if "default" in value and optional[name] is not None:
            assert value["default"] == optional[name]
    assert schema["unevaluatedProperties"] is False


def test_only_foreign_kinds_have_keys_outside_the_schema() -> None:
    schema = json.loads(RestConnector.get_schema())
    ours = {
        point.name
        for point in entry_points(group="sf_quantum.qpus")
        if point.value.startswith("sf_quantum.")
    }
    other = schema["if"]["properties"]["type"]["not"]
    assert {*other["enum"]} == ours
    assert schema["if"] == schema["anyOf"][-1]
    validator = validator_for(schema)(schema)
    known = {"url": "https://qpu.site"}
    assert validator.is_valid({"type": "acme", "keyFile": "a.key"})
    for type_ in ours:
        assert validator.is_valid({"type": type_, **known})
        assert not validator.is_valid({"type": type_, **known, "keyFile": "a.key"})
        assert not validator.is_valid({"type": type_})
    assert not validator.is_valid({**known, "keyFile": "a.key"})


def test_every_schema_has_an_id_of_its_own() -> None:
    ids = {json.loads(class_.get_schema())["$id"] for class_ in CLASSES}
    assert len(ids) == len(CLASSES)


@pytest.mark.parametrize(
    ("deployment", "name"),
    [("qpu", "qpu"), ("my-qpu.1", "my_qpu_1"), ("1st", "_1st"), ("è", "_")],
)
def test_the_qpus_name_can_start_a_shell_variable(
    local: LocalConnector, deployment: str, name: str
) -> None:
    assert emulator(local, deployment).qpu == name


async def test_nodes_are_one_job_locations_over_one(nodes: NodesConnector) -> None:
    locations = await nodes.get_available_locations()
    assert [location.name for location in locations.values()] == ["c1", "c2"]
    for location in locations.values():
        assert (location.slots, location.stacked) == (1, False)
        assert location.local  # so that StreamFlow starts no shell for its files
        assert location.location.mounts == {"/": "/"}
        assert location.location.wraps is not None
        assert location.location.wraps.name == "__LOCAL__"


@pytest.mark.parametrize("here", [True, False])
async def test_files_of_slurm_are_local_on_its_login_node_only(
    local: LocalConnector, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    login = await local.get_available_locations()
    login["__LOCAL__"].location.local = here

    async def locations(service: str | None = None) -> dict[str, AvailableLocation]:
        return {**login}

    monkeypatch.setattr(local, "get_available_locations", locations)
    slurm = SlurmConnector("slurm", "/", local, None)
    (location,) = (await slurm.get_available_locations()).values()
    assert location.local == here


async def test_the_emulator_has_a_slot_for_each_virtual_qpu(
    local: LocalConnector,
) -> None:
    (location,) = (await emulator(local).get_available_locations()).values()
    assert (location.name, location.slots) == ("qpu", 3)


@pytest.mark.parametrize("technology", TECHNOLOGIES)
def test_a_starting_emulator_has_the_price_of_its_service(technology: str) -> None:
    config: dict[str, JSON] = {"technology": technology, "timeScale": 0.5}
    status = EmulatorConnector.status("new", config, Path(), JobSize(9, reads=70))
    device = EmulatedDevice(technology=technology, time_scale=0.5)
    cost = device.cost({"num_reads": 70}, Size(9))
    assert status.job_qpu_seconds == cost.qpu_seconds
    assert status.job_run_seconds == cost.qpu_seconds / 2
    assert EmulatorConnector.status("new", config, Path()).job_qpu_seconds is None


class _NoGuardian:
    """Removes nothing: the test's own end does."""

    def remove(self, folder: str) -> None:
        return


@pytest.mark.process
async def test_the_service_ends_though_a_lease_cannot_be_given_back(
    local: LocalConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guardian, "current", _NoGuardian)
    folder = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    connector = emulator(local)
    await connector.deploy(False)
    assert connector._access is not None
    qpu = connector._job_client(await connector._access)
    assert qpu.status().online

    async def failing(_: QuantumConnector, external: bool) -> None:
        raise WorkflowExecutionException("its location is gone")

    monkeypatch.setattr(QuantumConnector, "undeploy", failing)
    with pytest.raises(WorkflowExecutionException, match="location is gone"):
        await connector.undeploy(False)
    with pytest.raises(QpuError, match="does not answer"):
        qpu.status()


async def test_the_service_ends_though_its_undeployment_is_cancelled(
    local: LocalConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector, stopped = emulator(local), asyncio.Event()

    class Service:
        async def stop(self) -> None:
            stopped.set()

    async def start() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()  # its end takes a while

    starting = asyncio.create_task(start())
    await asyncio.sleep(0)
    monkeypatch.setattr(connector, "_access", starting)
    monkeypatch.setattr(connector, "_background", Service())
    undeploying = asyncio.create_task(connector.undeploy(False))
    await until(starting.cancelling)
    undeploying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await undeploying
    assert stopped.is_set()
    starting.cancel()


async def test_a_service_is_refused(
    nodes: NodesConnector, local: LocalConnector
) -> None:
    for connector in (nodes, emulator(local)):
        with pytest.raises(WorkflowDefinitionException, match="has no service fast"):
            await connector.get_available_locations("fast")


@pytest.mark.process
async def test_commands_and_copies_work_on_the_inner_location(
    nodes: NodesConnector, tmp_path: Path
) -> None:
    c1, c2 = await _locations(nodes)
    result = await nodes.run(c1, ["echo", "hello"], capture_output=True)
    assert result == ("hello", 0)
    (tmp_path / "source").write_text("content")
    await nodes.copy_local_to_remote(f"{tmp_path}/source", f"{tmp_path}/a", [c1])
    await nodes.copy_remote_to_remote(f"{tmp_path}/a", f"{tmp_path}/b", [c2], c1)
    await nodes.copy_remote_to_remote(f"{tmp_path}/b", f"{tmp_path}/c", [c2], c1, nodes)
    await nodes.copy_remote_to_local(f"{tmp_path}/c", f"{tmp_path}/d", c2)
    assert (tmp_path / "d").read_text() == "content"
    writer = await nodes.get_stream_writer(["tee", f"{tmp_path}/e"], c1)
    async with writer as stream:
        await stream.write(b"written")
    reader = await nodes.get_stream_reader(["cat", f"{tmp_path}/e"], c1)
    async with reader as stream:
        assert await stream.read(100) == b"written"
    shell = await nodes.get_shell(["sh"], c2)
    assert await shell.execute(["echo", "shell"], capture_output=True) == ("shell", 0)
    await shell.close()


async def test_a_copy_within_ssh_stays_on_the_host(
    nodes: NodesConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    async def copy(
        src: str,
        dst: str,
        locations: list[ExecutionLocation],
        source_location: ExecutionLocation,
        source_connector: LocationWrapper | None,
        read_only: bool,
    ) -> None:
        seen.extend([locations[0].name, source_location.name, str(source_connector)])

    monkeypatch.setattr(nodes.connector, "copy_remote_to_remote", copy)
    c1, c2 = await _locations(nodes)
    await nodes.copy_remote_to_remote("a", "b", [c2], c1, nodes)
    assert seen == ["__LOCAL__", "__LOCAL__", "None"]


@pytest.mark.parametrize(
    ("nodes", "transfer", "words"),
    [
        (["a", "b"], None, "has 2 SSH nodes"),
        (["a"], "b", "sends its data through another node"),
        (["a"], None, None),
    ],
)
def test_one_ssh_host_is_one_machine(
    nodes: list[str], transfer: str | None, words: str | None
) -> None:
    connector = SSHConnector("host", "/", nodes=nodes, dataTransferConnection=transfer)
    assert wrapper._problem(connector) == words


async def test_only_a_machine_can_be_wrapped(
    nodes: NodesConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guardian, "current", lambda: None)
    await nodes.deploy(False)
    outer = NodesConnector("outer", "/", nodes, None, names=["c1"])
    with pytest.raises(WorkflowDefinitionException, match="neither local nor SSH"):
        await outer.deploy(False)


def test_the_services_folder_is_short_and_unforeseeable(
    local: LocalConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = ExecutionLocation("l", "d")
    sockets = {BackgroundService(local, location, "q", []).socket for _ in range(2)}
    assert len(sockets) == 2
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "long" * 30)
    socket = BackgroundService(local, location, "q", []).socket
    assert socket.startswith("/tmp/sfq-")
    remote = SSHConnector("host", "/", nodes=["a"])
    assert BackgroundService(remote, location, "q", []).socket.startswith("/tmp/sfq-")


@pytest.mark.process
async def test_messages_of_a_login_shell_are_not_the_services(
    local: LocalConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = local.run

    async def noisy(*args: object, **options: object) -> tuple[str, int]:
        result = await shell(*args, **options)  # type: ignore[arg-type]
        assert result is not None
        return f"stty: not a terminal\nno locale\n{result[0]}", result[1]

    monkeypatch.setattr(local, "run", noisy)
    (found,) = (await local.get_available_locations()).values()
    # shorter than a test's own folder, as a socket's path has to be
    with tempfile.TemporaryDirectory() as parent:
        monkeypatch.setattr(tempfile, "tempdir", parent)
        service = BackgroundService(local, found.location, "q", [])
        folder = Path(service.socket).parent
        folder.mkdir()
        (folder / "log").write_text("loading\nno more helium\n")
        (folder / "status").touch()  # about to be written
        await service._check(late=False)
        (folder / "status").write_text("1\n")
        with pytest.raises(WorkflowExecutionException, match="start: no more helium"):
            await service._check(late=False)
    await BaseConnector.undeploy(local, False)


# a service that never answers: asleep, at work, or gone with its shell
STARTS = {
    "asleep": "sleep 60",
    "busy": "while :; do :; done",
    "gone": "kill -9 $PPID; exit",
}


@pytest.mark.process
@pytest.mark.parametrize("kind", STARTS)
async def test_a_service_is_given_up_by_its_cpu_time(
    kind: str, local: LocalConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = (await local.get_available_locations()).values()
    with tempfile.TemporaryDirectory() as parent:
        sfq = Path(parent) / "sfq"
        sfq.write_text(f"#!/bin/sh\n{STARTS[kind]}\n")
        sfq.chmod(0o755)
        monkeypatch.setenv("PATH", f"{parent}:{os.environ['PATH']}")
        monkeypatch.setattr(tempfile, "tempdir", parent)
        # far less than a shell that does nothing needs of a busy host
        monkeypatch.setattr("sf_quantum.connectors.emulator.START_SECONDS", 0.3)
        service = BackgroundService(local, found.location, "q", [])
        with pytest.raises(WorkflowExecutionException, match=r"no CPU time for 0\.3 s"):
            await service.start()
        if kind != "gone":
            used = await service._cpu_seconds()
            assert used > 0.3 if kind == "busy" else used <= 0.3
            pid = int((Path(service.socket).parent / "pid").read_text())
            os.kill(pid, signal.SIGKILL)
        await service.stop()
    await BaseConnector.undeploy(local, False)


async def _locations(connector: NodesConnector) -> list[ExecutionLocation]:
    found = (await connector.get_available_locations()).values()
    return [location.location for location in found]


@pytest.mark.process
async def test_a_service_that_is_starting_is_stopped_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not read its input yet, by whose end a service stops."""
    (tmp_path / "sfq").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "sfq").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("sf_quantum.connectors.emulator.STOP_SECONDS", SECONDS)
    connector = LocalConnector("host", str(tmp_path))
    (found,) = (await connector.get_available_locations()).values()
    service = BackgroundService(connector, found.location, "qpu", [])
    starting = asyncio.create_task(service.start())
    folder = Path(service.socket).parent
    await until(
        lambda: (folder / "pid").exists() and (folder / "pid").read_text() != ""
    )
    starting.cancel()
    await asyncio.wait([starting])
    async with asyncio.timeout(SECONDS / 2):
        await service.stop()
    assert not folder.exists()
