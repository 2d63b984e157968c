"""The reason of a failed run: one line that says why and where, whatever has failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from sf_quantum import journal
from sf_quantum.cli import main
from sf_quantum.files import JSON, mapping
from sf_quantum.journal.events import End
from sf_quantum.workflows import runs
from sf_quantum.workflows.checks import check, refuse_problems
from sf_quantum.workflows.driver import Driver, started
from tests.support import forking
from tests.support.cwl_documents import needs_javascript
from tests.support.forking import BIN
from tests.support.waiting import SECONDS

pytestmark = pytest.mark.process

FEATURES = (
    "ScatterFeature InlineJavascript StepInputExpression MultipleInputFeature "
    "SubworkflowFeature"
).split()
LOOP = "http://commonwl.org/cwltool#"


def tool(script: str, *, outputs: dict[str, JSON], **inputs: JSON) -> JSON:
    return {
        "class": "CommandLineTool",
        "baseCommand": ["sh", "-c", script],
        "inputs": inputs,
        "outputs": outputs,
    }


def writes(output: JSON, declared: JSON, **inputs: JSON) -> JSON:
    script = f"echo '{json.dumps({'o': output})}' > cwl.output.json"
    return tool(script, outputs={"o": declared}, **inputs)


def step(
    run: JSON, *, in_: dict[str, JSON] | None = None, out: str = "o", **body: JSON
) -> JSON:
    return {"run": run, "in": in_ or {}, "out": [out], **body}


def workflow(
    steps: dict[str, JSON],
    source: JSON = "a/o",
    type_: JSON = "Any",
    inputs: JSON = None,
    **output: JSON,
) -> dict[str, JSON]:
    return {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "$namespaces": {"cwltool": LOOP},
        "requirements": {f"{name}Requirement": {} for name in FEATURES},
        "inputs": inputs or {},
        "outputs": {"o": {"type": type_, "outputSource": source, **output}},
        "steps": steps,
    }


NUMBER = writes(1, "int", n="Any")
EXPRESSION: dict[str, JSON] = {"class": "ExpressionTool", "inputs": {}}
N: JSON = {"n": {"type": "int", "default": 3}}


def loop(**body: JSON) -> JSON:
    return {"cwltool:Loop": {"loop": {"n": "o"}, "outputMethod": "last", **body}}


# what fails, and the line that says so
FAILURES: dict[str, tuple[dict[str, JSON], str]] = {
    "valueFrom with a reference": (
        workflow(
            {"a": step(NUMBER, in_={"n": {"default": 1, "valueFrom": "$(self.x)"}})}
        ),
        "valueFrom of a/n: ",
    ),
    "valueFrom with JavaScript": (
        workflow(
            {
                "a": step(
                    NUMBER,
                    in_={"n": {"default": 1, "valueFrom": "${throw 'bad luck'}"}},
                )
            }
        ),
        "valueFrom of a/n: JavaScript: bad luck",
    ),
    "when": (
        workflow(
            {"a": step(NUMBER, when="$(inputs.n + 0)", in_={"n": "n"})},
            type_="Any?",
            inputs=N,
        ),
        "when of a: Conditional 'when' must evaluate to 'true' or 'false': it is "
        "$(inputs.n + 0)",
    ),
    "pickValue": (
        workflow(
            {
                "a": step(NUMBER, in_={"n": "n"}),
                "b": step(NUMBER, in_={"n": "n"}),
            },
            ["a/o", "b/o"],
            inputs=N,
            pickValue="the_only_non_null",
        ),
        "pickValue of o: Expected only one source to be non-null",
    ),
    "a token that is not optional": (
        workflow(
            {
                "a": step(
                    {
                        **EXPRESSION,
                        "outputs": {"portfolios": "Any"},
                        "expression": "${return {'portfolios': null}}",
                    },
                    out="portfolios",
                ),
                "b": step(NUMBER, in_={"n": "a/portfolios"}),
            },
            "b/o",
        ),
        "the value of b/n: Token n is of type `Any`: it cannot be null",
    ),
    "a gathered token": (
        workflow(
            {
                "a": step(NUMBER, scatter="n", when="$(inputs.n > 1)", in_={"n": "ns"}),
                "b": step(tool("", outputs={"o": "Any?"}, n="int[]"), in_={"n": "a/o"}),
            },
            "b/o",
            "Any?",
            inputs={"ns": {"type": "int[]", "default": [1, 2]}},
        ),
        "b/n: ",
    ),
    "loopWhen": (
        workflow(
            {
                "a": step(
                    NUMBER,
                    requirements=loop(loopWhen="$(inputs.n + 0)"),
                    in_={"n": "n"},
                )
            },
            inputs=N,
        ),
        "loopWhen of a: ",
    ),
    "a variable of a loop": (
        workflow(
            {
                "a": step(
                    NUMBER,
                    requirements=loop(
                        loopWhen="$(inputs.n < 9)",
                        loop={"n": {"loopSource": "o", "valueFrom": "$(self.x.y)"}},
                    ),
                    in_={"n": "n"},
                )
            },
            inputs=N,
        ),
        "valueFrom of a",
    ),
    "null for a loop that takes any value": (
        workflow(
            {"a": step(NUMBER, requirements=loop(loopWhen="$(true)"), in_={"n": "n"})},
            inputs={"n": "Any?"},
        ),
        "the value of a/n: Token n is of type `Any`: it cannot be null.",
    ),
    "an output of a loop that is none of its inputs": (
        workflow(
            {
                "a": step(
                    writes("text", "Any?", n="int?"),
                    requirements=loop(loopWhen="$(true)"),
                    in_={"n": "n"},
                )
            },
            type_="Any?",
            inputs={"n": "Any?"},
        ),
        "the value of a/n: No suitable token processors in n:",
    ),
    "the output of a loop that was not run": (
        workflow(
            {
                "a": step(
                    writes(1, "Any?", n="Any?"),
                    requirements=loop(loopWhen="$(false)"),
                    in_={"n": "n"},
                ),
                "c": step(writes(1, "Any", n="int"), in_={"n": "a/o"}),
            },
            source="c/o",
            inputs={"n": "Any?"},
        ),
        "the value of c/n: Token n is not optional.",
    ),
    "an expression tool": (
        workflow(
            {
                "a": step(
                    {
                        **EXPRESSION,
                        "outputs": {"o": "Any"},
                        "expression": "${throw 'no'}",
                    }
                )
            }
        ),
        "/a/0 on local failed:   JavaScript: no",
    ),
    "an output of another type": (
        workflow({"a": step(writes("text", "int"))}),
        "/a/0 on local failed:   No suitable token processors in o:",
    ),
    "a missing output": (
        workflow(
            {
                "a": step(
                    tool(
                        "",
                        outputs={"o": {"type": "File", "outputBinding": {"glob": "o"}}},
                    )
                )
            }
        ),
        "/a/0 on local failed:   No suitable token processors in o:",
    ),
    "a command": (
        workflow(
            {"a": step(tool("echo wrong >&2; exit 3", outputs={"o": "Any?"}))},
            type_="Any?",
        ),
        "/a/0 on local failed with exit code 3:   wrong",
    ),
}


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The progress of runs whose drivers are forked, from a folder of their own."""

    streamflow = f"{forking.stand_ins()}/streamflow run sf.yml --outdir results"
    script = f"read -r order && exec {streamflow} >results/streamflow.log 2>&1"

    wait = journal.await_new

    def await_any(
        folder: Path, pid: int, known: set[Path], alive: Callable[[], bool]
    ) -> Path | None:
        # The forked driver has another process id than its stand-in, so any is right.
        return wait(folder, cast(int, "*"), known, alive)

    # a fork has imported it before, and this process checks
    monkeypatch.setattr(runs, "begun", partial(started, ["sh", "-c", script]))
    monkeypatch.setattr(Driver, "check", lambda _, file: refuse_problems(check(file)))
    monkeypatch.setattr(journal, "await_new", await_any)
    monkeypatch.setenv("PATH", f"{forking.stand_ins()}:{BIN}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return []


def write(document: dict[str, JSON], **streamflow: JSON) -> str:
    Path("main.cwl").write_text(json.dumps(document))
    workflow_: dict[str, JSON] = {
        "type": "cwl",
        "config": {"file": "main.cwl", "settings": "job.yml"},
    }
    Path("job.yml").write_text("{}")
    if bindings := streamflow.pop("bindings", None):
        workflow_["bindings"] = bindings
    file: dict[str, JSON] = {
        "version": "v1.0",
        "workflows": {"test": workflow_},
        "scheduling": {"scheduler": {"type": "sfq.journal", "config": {}}},
        "database": {
            "type": "default",
            "config": {"connection": "sf.db"},
        },
        **streamflow,
    }
    Path("sf.yml").write_text(json.dumps(file))
    return "sf.yml"


@needs_javascript
@pytest.mark.parametrize("name", FAILURES)
def test_a_failed_run_says_why_and_where(name: str, lines: list[str]) -> None:
    document, line = FAILURES[name]
    with pytest.raises(runs.RunFailed) as failure:
        runs.run(write(document), progress=lines.append)
    run = failure.value.run
    assert run is not None, failure.value.lines
    assert lines[-1].startswith("run failed: ")
    # as the progress of the run, and its report
    told = " ".join(str(run.report()).splitlines())
    listed = " ".join(" ".join(run.report().failures).splitlines())
    texts = [" ".join(failure.value.lines), " ".join(lines), told, listed]
    assert [text.count(line) for text in texts] == [1, 1, 1, 1]
    assert len(run.report().failures) == 1
    end = run.events()[-1]
    assert isinstance(end, End)
    assert line.replace(":   ", ": ") in str(end.reason)
    assert len(str(end.reason).splitlines()) == 1
    assert (end.job is not None) == line.startswith("/a/0 on local")


def the_reason(lines: list[str], document: dict[str, JSON], **streamflow: JSON) -> str:
    with pytest.raises(runs.RunFailed) as failure:
        runs.run(write(document, **streamflow), progress=lines.append)
    told = " ".join(failure.value.lines)
    assert failure.value.run is None or told in " ".join(lines)
    return " ".join(told.split())


def at(name: str, type_: str, config: JSON, **deployment: JSON) -> dict[str, JSON]:
    """A deployment on which step ``a`` runs."""
    return {
        "deployments": {name: {"type": type_, "config": config, **deployment}},
        "bindings": [{"step": "/a", "target": {"deployment": name}}],
    }


ONE = workflow({"a": step(NUMBER, in_={"n": "n"})}, inputs=N)


def test_a_folder_that_cannot_be_made_is_named(lines: list[str]) -> None:
    there = at("host", "local", {}, workdir="/proc/nowhere")
    reason = the_reason(lines, ONE, **there)
    assert reason.startswith("/a/0 on host failed: ")
    assert "/proc/nowhere" in reason


def test_a_deployment_that_cannot_be_reached_is_named(lines: list[str]) -> None:
    Path("key").touch(0o600)
    config: JSON = {
        "nodes": ["127.0.0.1:1"],
        "username": "ann",
        "sshKey": "key",
        "retries": 1,
    }
    reason = the_reason(lines, ONE, **at("cluster", "ssh", config))
    assert reason == "/a/0 failed: cluster: Invalid private key"


def test_cores_that_no_location_has_are_named(lines: list[str]) -> None:
    """The number is known when the job runs, so it passes the check."""
    cores: JSON = {"ResourceRequirement": {"coresMin": "$(inputs.n)"}}
    run: JSON = {**mapping(NUMBER), "requirements": cores}
    inputs: JSON = {"n": {"type": "int", "default": 123456}}
    document = workflow({"a": step(run, in_={"n": "n"})}, inputs=inputs)
    reason = the_reason(lines, document, **at("host", "local", {}))
    assert reason.startswith(
        "/a/0 failed: host: the job requires 123,456 cores and 256 MiB"
    )
    assert "; host has " in reason.replace(", and host has", "; host has")


def test_a_database_that_cannot_be_written_is_named(lines: list[str]) -> None:
    database: JSON = {"type": "default", "config": {"connection": "/proc/nowhere/a.db"}}
    reason = the_reason(lines, ONE, database=database)
    assert reason.startswith("StreamFlow ended with exit code 1: FileNotFoundError: ")
    assert "/proc/nowhere" in reason
    assert "the run has not begun; log: results/streamflow.log" in reason


def test_an_output_that_cannot_be_collected_is_named(lines: list[str]) -> None:
    file: JSON = {"type": "File", "outputBinding": {"glob": "made"}}
    document = workflow(
        {"a": step(tool("echo > made", outputs={"o": file}))}, type_="File"
    )
    Path("results/made").mkdir(parents=True)
    reason = the_reason(lines, document)
    assert reason.startswith("the workflow's output o: ")


def test_a_driver_that_was_killed_is_said_to_be(
    lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    journals = Path(journal.DIRECTORY).resolve()
    pid = f"$(sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p' {journals}/*.jsonl)"
    document = workflow(
        {"a": step(tool(f"kill -9 {pid}; sleep 9", outputs={"o": "Any?"}))},
        type_="Any?",
    )
    reason = the_reason(lines, document)
    assert reason.startswith("StreamFlow was ended by SIGKILL, as the system does when")
    assert main(["report", "sf.yml"]) == 0
    assert "run ended without its last event: " in capsys.readouterr().out


FULL = """\
mount -t tmpfs -o size=400k tmpfs "$1"
cp main.cwl job.yml sf.yml "$1"
cd "$1"
exec "$2" -c '
import sys
from sf_quantum.cli import main
sys.exit(main(["run", "sf.yml"]))'
"""


@pytest.mark.skipif(
    subprocess.run(["unshare", "-rm", "true"], check=False).returncode != 0,
    reason="file systems cannot be mounted in a namespace here",
)
@pytest.mark.parametrize(
    ("kilobytes", "where"),
    [(200, "the workflow's output o: [Errno 28]"), (400, "/a/0 on host failed")],
)
def test_a_full_disk_is_said_to_be(
    lines: list[str], tmp_path: Path, kilobytes: int, where: str
) -> None:
    """It also ends the run, though StreamFlow cannot close its database."""
    del lines
    disk = tmp_path / "disk"
    disk.mkdir()
    file: JSON = {"type": "File", "outputBinding": {"glob": "made"}}
    script = f"head -c {kilobytes}k /dev/zero > made"
    steps: dict[str, JSON] = {"a": step(tool(script, outputs={"o": file}))}
    host = at("host", "local", {}, workdir=f"{disk}/work")
    write(workflow(steps, type_="File"), **host)
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-ec", FULL, "sh", disk, sys.executable],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 1, done
    (line,) = [one for one in done.stdout.splitlines() if one.startswith(where)]
    assert "No space left on device" in done.stdout
    assert line or done.stdout.splitlines()[-2].startswith("run failed: ")


def test_an_attempt_that_was_recovered_is_no_reason(
    lines: list[str], tmp_path: Path
) -> None:
    """Step ``a`` has failed once, and runs again when ``b`` ends the run."""
    again = tmp_path / "again"
    first = f"if [ ! -e {again} ]; then touch {again}; exit 4; fi; sleep 3"
    second = f"until [ -e {again} ]; do sleep 0.1; done; exit 3"
    steps = {
        "a": step(tool(first, outputs={"o": "Any?"})),
        "b": step(tool(second, outputs={"o": "Any?"})),
    }
    document = workflow(steps, ["a/o", "b/o"], {"type": "array", "items": ["null"]})
    retry: JSON = {"type": "default", "config": {"max_retries": 2, "retry_delay": 0}}
    reason = the_reason(lines, document, failureManager=retry)
    assert "/b/0 on local failed with exit code 3" in reason
    assert "/a/0 on local" not in reason


@needs_javascript
def test_jobs_that_a_when_leaves_out_are_skipped(lines: list[str]) -> None:
    odd = step(NUMBER, scatter="n", when="$(inputs.n % 2 == 1)", in_={"n": "ns"})
    inner = workflow({"c": step(NUMBER, in_={"n": "n"})}, "c/o", inputs={"n": "int"})
    del inner["cwlVersion"], inner["$namespaces"]
    steps: dict[str, JSON] = {
        "odd": odd,
        "never": step(NUMBER, when="$(inputs.n > 9)", in_={"n": "n"}),
        "below": step(inner, when="$(inputs.n > 9)", in_={"n": "n"}),
        "above": step(inner, when="$(inputs.n < 9)", in_={"n": "n"}),
    }
    ns: JSON = {"type": "int[]", "default": [1, 2, 3, 4]}
    three: JSON = {"type": "int", "default": 3}
    some: JSON = {"type": "array", "items": ["null", "int"]}
    sources: list[JSON] = ["never/o", "below/o", "above/o"]
    document = workflow(steps, sources, some, inputs={"ns": ns, "n": three})
    mapping(document["outputs"])["p"] = {"type": some, "outputSource": "odd/o"}
    run = runs.run(write(document), progress=lines.append)
    for line in (
        "skipped   odd: 2 jobs (when)",
        "skipped   /never/0 (when)",
        "skipped   /below/0 (when)",
    ):
        assert lines.count(line) == 1, lines
    assert lines[-1].startswith("run completed: 7 jobs, 4 of them skipped (when), 0 ")
    report = run.report()
    skipped = sorted(str(one["job"]) for one in report if one["status"] == "skipped")
    assert skipped == ["/below/0", "/never/0", "/odd/0.1", "/odd/0.3"]
    assert len(report) == 7
    assert str(report).count(" skipped") == 4 + 1
