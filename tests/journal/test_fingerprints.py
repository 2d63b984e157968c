"""What the result of a job depends on, and what it does not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from streamflow.core.context import StreamFlowContext
from streamflow.core.deployment import (
    DeploymentConfig,
    ExecutionLocation,
    Target,
    WrapsConfig,
)
from streamflow.core.scheduling import Hardware
from streamflow.core.workflow import Job, Token
from streamflow.deployment.connector.local import LocalConnector
from streamflow.workflow.token import ListToken

from sf_quantum.files import JSON
from sf_quantum.journal.events import Inputs
from sf_quantum.journal.fingerprints import (
    MOST_FILES,
    CommandDigests,
    Uncertain,
    of_folder,
    of_inputs,
    of_target,
)
from tests.support.engine_steps import command, step

FILE: dict[str, JSON] = {
    "class": "File",
    "basename": "points.csv",
    "path": "/one/points.csv",
    "dirname": "/one",
    "location": "file:///one/points.csv",
    "size": 3,
    "checksum": "sha1$1",
}


def context(
    deployments: Mapping[str, JSON] | None = None, folder: Path | None = None
) -> StreamFlowContext:
    """As much of StreamFlow's context as is asked for."""
    place = SimpleNamespace(
        deployment="host",
        location=ExecutionLocation("host", "host", local=True),
        path=str(folder),
    )
    made: StreamFlowContext = SimpleNamespace(  # type: ignore[assignment]
        config={"deployments": {**(deployments or {})}},
        data_manager=SimpleNamespace(
            get_data_locations=lambda path, data_type: [place] if folder else []
        ),
        deployment_manager=SimpleNamespace(
            get_connector=lambda name: LocalConnector(name, ".")
        ),
    )
    return made


async def inputs(folder: Path | None = None, **values: JSON) -> Inputs:
    tokens = {
        name: (
            ListToken([Token(one) for one in value])
            if isinstance(value, list)
            else Token(value)
        )
        for name, value in values.items()
    }
    return await of_inputs(context(folder=folder), Job("/a/0", 1, tokens, "", "", ""))


async def test_the_place_of_a_file_is_not_its_content() -> None:
    moved = {**FILE, "path": "/two/points.csv", "location": "file:///two/points.csv"}
    assert await inputs(points=FILE) == await inputs(points=moved)


@pytest.mark.parametrize(
    "other",
    [
        {**FILE, "checksum": "sha1$2"},
        {**FILE, "basename": "other.csv"},
        {**FILE, "secondaryFiles": [FILE]},
        [FILE],
        None,
    ],
    ids=["content", "name", "secondary", "list", "none"],
)
async def test_another_file_is_another_input(other: JSON) -> None:
    assert await inputs(points=FILE) != await inputs(points=other)


async def test_the_files_of_an_input_have_digests_of_their_own() -> None:
    other = {**FILE, "checksum": "sha1$2"}
    before, now = await inputs(n=1, p=[FILE, FILE]), await inputs(n=1, p=[FILE, other])
    name = str(FILE["basename"])
    assert [*before["p"]] == [name, f"{name} (2)", ""]
    differing = {part for part in before["p"] if before["p"][part] != now["p"][part]}
    assert differing == {f"{name} (2)"}
    assert before["n"] == now["n"]
    many: list[JSON] = [FILE] * (MOST_FILES + 1)
    assert [*(await inputs(p=many))["p"]] == [""]
    assert await inputs(p=many) != await inputs(p=[*many[1:], other])


async def test_values_are_inputs() -> None:
    assert await inputs(n=1, m=2) == await inputs(m=2, n=1)
    assert await inputs(n=1) != await inputs(n=2)
    assert await inputs(n=[FILE, FILE]) != await inputs(n=[FILE])


async def test_a_folder_is_compared_by_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")
    folder: JSON = {"class": "Directory", "basename": "in", "path": "/in"}
    before = await inputs(tmp_path, given=folder)
    assert before == await inputs(tmp_path, given=folder)
    (tmp_path / "file").write_text("2")
    assert before != await inputs(tmp_path, given=folder)


async def test_contents_that_are_unknown_are_compared_with_nothing() -> None:
    with pytest.raises(Uncertain, match="the contents of an input are unknown"):
        await inputs(points={**FILE, "checksum": None})
    with pytest.raises(Uncertain):
        await inputs(given={"class": "Directory", "basename": "in", "path": "/in"})


async def test_a_command_is_all_of_its_tool_but_the_time_limit() -> None:
    assert await command(step(time_limit=3)) == await command(step())
    assert await command(step(environment={"A": "1"})) != await command(step())


async def test_the_programs_that_a_command_names_are_part_of_it(tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text("exit 0")
    for tool in (
        step(base_command=["sh", str(script)]),
        step(processors=[{"params": {"expression": f"sh {script}"}}]),
        step(processors=[{"params": {"expression": f"date; sh '{script}'; date"}}]),
        step(processors=[{"params": {"processor": {"prefix": f"--run={script}"}}}]),
        step(environment={"TOOL": str(script)}),
    ):
        before = await command(tool)
        assert before == await command(tool)
        script.write_text(f"{script.read_text()} # changed")
        assert before != await command(tool)


async def test_a_program_on_the_path_is_part_of_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    before = await command(step(base_command=["tool"]))
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert before != await command(step(base_command=["tool"]))


async def test_steps_that_start_at_once_see_the_same_program(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.touch()
    os.truncate(program, 10_000_000)  # it takes a while to read
    digests, names = CommandDigests(), ("/a", "/b", "/c")
    for name in names:
        digests.add(name, step(base_command=[str(program)]))
    read = await asyncio.gather(*(digests.of(name, Hardware) for name in names))
    assert len({*read}) == 1


async def test_variables_that_a_command_reads_are_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = step(processors=[{"params": {"expression": "train ${SFQ_MODEL}"}}])
    monkeypatch.setenv("SFQ_MODEL", "small")
    before, other = await command(tool), await command(step())
    monkeypatch.setenv("SFQ_MODEL", "large")
    assert before != await command(tool)
    assert other == await command(step())
    # the job has its own
    tool = step(processors=[{"params": {"expression": "ls $TMPDIR"}}])
    before = await command(tool)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert before == await command(tool)
    # whatever reads it
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert other != await command(step())


async def test_a_script_is_found_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SFQ_TOOLS", str(tmp_path))
    tool = step(processors=[{"params": {"expression": "sh $SFQ_TOOLS/script.sh"}}])
    before = await command(tool)
    (tmp_path / "script.sh").write_text("exit 0")
    assert before != await command(tool)


async def test_equal_programs_of_two_environments_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = set()
    for environment in ("one", "two"):
        folder = tmp_path / environment
        folder.mkdir()
        (folder / "tool").write_text("#!/bin/sh\n")
        (folder / "tool").chmod(0o755)
        with monkeypatch.context() as changed:
            changed.setenv("PATH", f"{folder}:{os.environ['PATH']}")
            digests.add(await command(step(base_command=["tool"])))
    assert len(digests) == 2


async def test_hardware_matters_to_commands_that_use_it() -> None:
    hardware = [Hardware, lambda: Hardware(cores=2)]
    alike = {await command(step(), one) for one in hardware}
    assert len(alike) == 1
    tool = step(processors=[{"params": {"expression": "$(runtime.cores)"}}])
    assert len({await command(tool, one) for one in hardware}) == 2


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({**step(), "recoverable": False}, "its tool forbids it (WorkReuse)"),
        (
            {**step(), "recoverable": "$(inputs.again)"},
            "its tool forbids it (WorkReuse)",
        ),
        (
            step(inplace_update=True),
            "its tool changes its inputs (InplaceUpdateRequirement)",
        ),
        ({"command": {"type": "streamflow.cwl.command.CWLExpressionCommand"}}, ""),
        ({}, ""),
    ],
)
async def test_some_steps_are_never_reused(
    parameters: dict[str, JSON], reason: str
) -> None:
    with pytest.raises(Uncertain) as raised:
        await command(parameters)
    assert str(raised.value) == reason


def target(
    type_: str, config: dict[str, JSON], service: str | None = None, name: str = "t"
) -> str:
    known: dict[str, JSON] = {"host": {"type": "local", "config": {}}, "t": {}, "u": {}}
    deployment = DeploymentConfig(name, type_, config, wraps=WrapsConfig("host"))
    return of_target(context(known), Target(deployment, service=service))


def test_where_and_with_how_much_is_not_what() -> None:
    def slurm(**service: JSON) -> dict[str, JSON]:
        return {"services": {"s": {**service}}}

    before = target("sfq.slurm", slurm(partition="a", qpu=["q"]), "s")
    assert before == target("sfq.slurm", slurm(partition="b", qpu=["q"]), "s", "u")
    assert before != target("sfq.slurm", slurm(partition="a", qpu=["r"]), "s")
    assert target("sfq.nodes", {"names": ["a"]}) == target("sfq.nodes", {"names": []})


def test_the_qpu_and_the_container_are_what() -> None:
    annealer: dict[str, JSON] = {"technology": "annealer"}
    before = target("sfq.emulator", annealer)
    assert before == target("sfq.emulator", annealer)
    assert before != target("sfq.emulator", {**annealer, "seed": 1})
    assert before != target("sfq.emulator", annealer, name="u")
    assert target("docker", {"image": "a"}) != target("docker", {"image": "b"})
    assert target("docker", {}) != target("sfq.nodes", {})


def test_the_name_of_a_docker_requirement_is_random() -> None:
    image: dict[str, JSON] = {"image": "a"}
    assert target("docker", image, name="x7") == target("docker", image, name="y8")


@pytest.mark.parametrize(
    "change",
    [
        {"container": "b.oci"},
        {"export": "MODEL=large"},
        {"file": "other.sh"},
        {"variableList": "MODEL=large"},
        {"envFile": "other.env"},
    ],
    ids=lambda change: "".join(change),
)
def test_the_environment_that_a_service_makes_is_what(change: dict[str, JSON]) -> None:
    before: dict[str, JSON] = {"container": "a.oci", "export": "NONE", "file": "a.sh"}
    digests = {
        target("sfq.slurm", {"services": {"s": service}}, "s")
        for service in (before, {**before, **change})
    }
    assert len(digests) == 2


def test_the_files_of_a_target_are_compared_by_contents(tmp_path: Path) -> None:
    template, token = tmp_path / "node.sh", tmp_path / "token"
    image = tmp_path / "tool.sif"
    targets: list[tuple[str, dict[str, JSON]]] = [
        ("slurm", {"services": {"s": {"file": str(template)}}}),
        ("singularity", {"image": f"{image}"}),
        ("sfq.rest", {"url": "unix:/q", "tokenFile": str(token)}),
    ]

    def digests(text: str) -> list[str]:
        for file in (template, token, image):
            file.write_text(text)
        return [target(type_, config, "s") for type_, config in targets]

    changed = [a != b for a, b in zip(digests("1"), digests("2"), strict=True)]
    assert changed == [True, True, False]  # a new token is the same QPU


def test_what_a_target_wraps_counts() -> None:
    def on(host: dict[str, JSON]) -> str:
        deployment = DeploymentConfig("t", "sfq.nodes", {}, wraps=WrapsConfig("host"))
        return of_target(context({"host": host}), Target(deployment))

    local: dict[str, JSON] = {"type": "local"}
    assert on(local) == on({**local, "workdir": "/elsewhere"})
    # as it is written in a StreamFlow file
    inner: dict[str, JSON] = {"type": "docker", "config": {"image": "a"}}
    assert on(inner) != on(local)
    assert on({"type": "ssh", "wraps": "host2"}) != on({"type": "ssh"})


@pytest.mark.process
async def test_a_folder_that_cannot_be_asked_for_has_no_digest(tmp_path: Path) -> None:
    elsewhere = ExecutionLocation("host", "host", local=False)
    connector = LocalConnector("host", str(tmp_path))
    assert await of_folder(connector, elsewhere, str(tmp_path / "none")) is None
    digest = await of_folder(connector, elsewhere, str(tmp_path))
    (tmp_path / "file").touch()
    assert await of_folder(connector, elsewhere, str(tmp_path)) not in (digest, None)
