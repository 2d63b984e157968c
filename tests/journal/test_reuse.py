"""Which results of earlier runs a job gets, and what the journal says about it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from streamflow.core.config import BindingConfig
from streamflow.core.context import StreamFlowContext
from streamflow.core.deployment import Connector, DeploymentConfig, Target
from streamflow.core.scheduling import AvailableLocation, Hardware, JobAllocation
from streamflow.core.workflow import Job, Status, Token
from streamflow.deployment.connector.local import LocalConnector

from sf_quantum import journal
from sf_quantum.journal.results import SAME
from sf_quantum.journal.reuse import Reusable, Reuse, ReuseFilter
from tests.support.engine_steps import step
from tests.support.journals import append, read


class Nowhere(LocalConnector):
    """A deployment none of whose locations is left."""

    async def get_available_locations(
        self, service: str | None = None
    ) -> MutableMapping[str, AvailableLocation]:
        return {}


def target(name: str, type_: str = "local") -> Target:
    return Target(DeploymentConfig(name, type_, {}))


def reuse(*connectors: Connector, **tool: str) -> Reuse:
    """Of a run that has a step, on these deployments."""
    known = {one.deployment_name: one for one in connectors}
    context: StreamFlowContext = SimpleNamespace(  # type: ignore[assignment]
        config={}, deployment_manager=SimpleNamespace(get_connector=known.get)
    )
    made = Reuse(context)
    made.add_step("/a", step(**tool))
    return made


def run(folder: Path) -> journal.Journal:
    made = journal.Journal(folder / "journals", resumes=True)
    made.start("f.yml", [], {})
    return made


def job(output: Path | None = None, **inputs: int) -> Job:
    tokens = {name: Token(value) for name, value in inputs.items()}
    return Job("/a/0", 1, tokens, "", str(output) if output else "", "")


@pytest.fixture
async def earlier(tmp_path: Path) -> Path:
    """A run that has completed a job; the folder of its outputs."""
    output = tmp_path / "output"
    output.mkdir()
    (output / "out").write_text("1")
    local = LocalConnector("host", str(tmp_path))
    first = run(tmp_path)
    append(first, {"event": "job", "job": "/a/0", "status": "running"})
    made = reuse(local)
    await made.prepare(job(n=1), Hardware)
    made.ended("/a/0", 3)
    (place,) = (await local.get_available_locations()).values()
    allocation = JobAllocation(
        "/a/0", target("host"), [place.location], Status.RUNNING, Hardware()
    )
    await made.completed(first, job(output, n=1), allocation)
    first.close()
    return output


async def found(
    folder: Path,
    made: Reuse,
    given: Job,
    *targets: Target,
    filters: Sequence[ReuseFilter] = (),
) -> tuple[Reusable | None, list[tuple[str | None, str]]]:
    """The result of a job, and what the journal has about it: the run and the reason."""
    second = run(folder)
    try:
        await made.prepare(given, Hardware)
        binding = BindingConfig([*targets], [])
        result = await made.find(second, given, binding, filters)
    finally:
        second.close()
    events = [one for one in read(second.path) if one["event"] == "reuse"]
    return result, [
        (None if one["run"] is None else str(one["run"]), str(one["reason"]))
        for one in events
    ]


def local(folder: Path, name: str = "host") -> LocalConnector:
    return LocalConnector(name, str(folder))


async def test_a_job_gets_its_result(tmp_path: Path, earlier: Path) -> None:
    made = reuse(local(tmp_path))
    result, told = await found(tmp_path, made, job(n=1), target("host"))
    assert result is not None
    assert (result.result.output, result.result.exit_code) == (str(earlier), 3)
    first, _ = sorted((tmp_path / "journals").glob("*.jsonl"))
    assert told == [(first.stem, "its inputs, command and environment are the same")]


async def test_it_is_looked_for_on_each_target_of_its_kind(
    tmp_path: Path, earlier: Path
) -> None:
    made = reuse(local(tmp_path, "two"), Nowhere("one", "."))
    targets = [target("one"), target("two"), target("three", "docker")]
    result, _ = await found(tmp_path, made, job(n=1), *targets)
    assert result is not None
    assert result.target.deployment.name == "two"


async def test_it_runs_again_if_anything_has_changed(
    tmp_path: Path, earlier: Path
) -> None:
    made = reuse(local(tmp_path), Nowhere("gone", "."))
    changed = reuse(local(tmp_path), stdout="elsewhere")
    host = target("host")
    for at, given, where, reason in [
        (made, job(n=2), host, "its input n has another value"),
        (changed, job(n=1), host, "its command or environment has changed"),
        (made, job(n=1), target("box", "docker"), "its target has changed"),
        (made, job(n=1), target("gone"), "its location is gone"),
    ]:
        assert await found(tmp_path, at, given, where) == (None, [(None, reason)])
    (earlier / "out").write_text("2")
    result = await found(tmp_path, reuse(local(tmp_path)), job(n=1), host)
    assert result == (None, [(None, "its outputs have changed")])
    shutil.rmtree(earlier)
    result = await found(tmp_path, reuse(local(tmp_path)), job(n=1), host)
    assert result == (None, [(None, "its outputs are gone")])


async def test_nothing_is_said_of_a_job_that_has_never_run(
    tmp_path: Path, earlier: Path
) -> None:
    other = Job("/a/1", 1, {}, "", "", "")
    made = reuse(local(tmp_path))
    assert await found(tmp_path, made, other, target("host")) == (None, [])


async def test_a_job_that_had_not_completed_runs_again(tmp_path: Path) -> None:
    first = run(tmp_path)
    append(first, {"event": "job", "job": "/a/0", "status": "running"})
    first.close()
    made = reuse(local(tmp_path))
    expected = [(None, "it was not completed")]
    assert await found(tmp_path, made, job(), target("host")) == (None, expected)


async def test_an_interrupted_job_is_not_compared_with_an_older_result(
    tmp_path: Path, earlier: Path
) -> None:
    second = run(tmp_path)
    append(second, {"event": "job", "job": "/a/0", "status": "running"})
    second.close()
    made = reuse(local(tmp_path))
    expected = [(None, "it was not completed")]
    assert await found(tmp_path, made, job(n=2), target("host")) == (None, expected)
    # its older result is still reused where it is the job's
    result, _ = await found(tmp_path, made, job(n=1), target("host"))
    assert result is not None


@pytest.mark.parametrize("status", ["completed", "reused"])
async def test_a_damaged_result_is_the_reason_to_run_again(
    tmp_path: Path, earlier: Path, status: str
) -> None:
    (path,) = (tmp_path / "journals").glob("*.jsonl")
    first, running, result = path.read_text().splitlines()
    completed = json.dumps({**json.loads(running), "status": status})
    lines = [first, running, result.replace('"job"', '"jo"'), completed]
    path.write_text("".join(f"{one}\n" for one in lines))
    made = reuse(local(tmp_path))
    expected = [(None, "the journal has no whole result of it")]
    assert await found(tmp_path, made, job(n=1), target("host")) == (None, expected)


class Says:
    """A filter that gives a reason against each result, or none."""

    def __init__(self, why: str) -> None:
        self.why = why
        self.asked: list[str] = []

    async def why_not_reused(
        self, job: Job, targets: Sequence[Target], target: Target
    ) -> str:
        self.asked.append(f"{job.name} {target.deployment.name} of {len(targets)}")
        return self.why


@pytest.mark.parametrize("why", ["", "it ran on host, and qpu is free"])
async def test_a_filter_has_a_say_in_what_is_reused(
    tmp_path: Path, earlier: Path, why: str
) -> None:
    made, says = reuse(local(tmp_path)), Says(why)
    result, told = await found(tmp_path, made, job(n=1), target("host"), filters=[says])
    assert (result is None) == bool(why)
    assert says.asked == ["/a/0 host of 1"]
    assert told[0][1] == (why or SAME)


async def test_a_candidate_is_not_completed_by_a_run_before_the_latest(
    tmp_path: Path, earlier: Path
) -> None:
    second = run(tmp_path)
    append(second, {"event": "job", "job": "/a/0", "status": "running"})
    second.close()
    made, says = reuse(local(tmp_path)), Says("")
    expected = (None, [(None, "it was not completed")])
    given = (tmp_path, made, job(n=1), target("host"))
    assert await found(*given, filters=[says]) == expected
    assert says.asked == []


async def test_a_job_whose_outputs_are_unknown_has_no_result(tmp_path: Path) -> None:
    record = run(tmp_path)
    made = reuse(local(tmp_path))
    (place,) = (await local(tmp_path).get_available_locations()).values()
    allocation = JobAllocation(
        "/a/0", target("host"), [place.location], Status.RUNNING, Hardware()
    )
    # its folder is gone
    await made.prepare(job(), Hardware)
    made.ended("/a/0", 0)
    await made.completed(record, job(tmp_path / "none"), allocation)
    # it ran no command
    await made.prepare(job(), Hardware)
    await made.completed(record, job(tmp_path), allocation)
    record.close()
    text = record.path.read_text().splitlines()
    assert [json.loads(line)["event"] for line in text] == ["run"]


async def place(folder: Path, made: Reuse) -> Path:
    """Put a result's outputs into a job's folder, which has a staged input."""
    result, _ = await found(folder, made, job(n=1), target("host"))
    assert result is not None
    new = folder / "new"
    new.mkdir()
    (folder / "input").write_text("input")
    (new / "out").symlink_to(folder / "input")
    connector = made.outputs(result.connector, result.result, lambda *_: None)
    done = await connector.run(
        result.location.location, ["false"], workdir=str(new), job_name="/a/0"
    )
    assert done == ("", 3)
    assert (new / "out").read_text() == "1"
    assert (folder / "input").read_text() == "input"
    return new


@pytest.mark.process
async def test_outputs_are_linked(tmp_path: Path, earlier: Path) -> None:
    new = await place(tmp_path, reuse(local(tmp_path)))
    assert (new / "out").samefile(earlier / "out")


@pytest.mark.process
async def test_outputs_are_copied_if_a_step_may_write_to_them(
    tmp_path: Path, earlier: Path
) -> None:
    made = reuse(local(tmp_path))
    made.add_step("/b", step(inplace_update=True))
    new = await place(tmp_path, made)
    (new / "out").write_text("changed in place")
    assert (earlier / "out").read_text() == "1"


@pytest.mark.process
async def test_outputs_are_copied_if_not_all_can_be_linked(
    tmp_path: Path, earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    # as with a file of another user
    (tools / "cp").write_text('#!/bin/sh\n/bin/cp "$@"; test "$1" != -alf\n')
    (tools / "cp").chmod(0o755)
    made = reuse(local(tmp_path))
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    new = await place(tmp_path, made)
    assert not (new / "out").samefile(earlier / "out")
