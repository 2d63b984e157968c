"""Our connectors and our scheduler in real runs of StreamFlow."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sf_quantum.files import JSON
from tests.support import forking
from tests.support.journals import collect
from tests.support.waiting import SECONDS

if TYPE_CHECKING:
    from tests.support.projects import Project

pytestmark = pytest.mark.process

Until = Callable[[Callable[[], object], str], None]
REPORT_ENVIRONMENT = "env | grep -E 'QRMI|SFQ' | sort >env\nls -A >files"


def test_a_job_is_told_of_its_qpu_and_nobody_else_is(project: Project) -> None:
    project.deployment("qpu-0", "sfq.emulator", seed=1)
    project.solve("solve", "qpu-0", REPORT_ENVIRONMENT)
    assert project.run() == 0, project.log
    (completed,) = project.jobs("solve", "completed")
    folder = Path(str(completed["output"]))
    variables = dict(
        line.split("=", 1) for line in (folder / "env").read_text().splitlines()
    )
    token = variables.pop("qpu_0_QRMI_JOB_ACQUISITION_TOKEN")
    assert token not in project.log
    assert not any(
        token in path.read_text(errors="replace")
        for path in project.folder.rglob("*")
        if path.is_file() and path.name != "env"
    )
    assert variables.pop("qpu_0_SFQ_URL").startswith(f"unix:{project.temporary}/")
    assert variables.pop("QRMI_JOB_UID").isdigit()
    assert len(variables.pop("qpu_0_SFQ_JOB_KEY")) == 64
    run = project.events()[0]["run"]
    assert variables.pop("qpu_0_SFQ_PURPOSE") == f"{run}:/solve/0"
    del variables["SFQ_DRIVER"], variables["SFQ_TEST"]
    assert variables == {
        "QRMI_JOB_QPU_RESOURCES": "qpu_0",
        "QRMI_JOB_QPU_TYPES": "sfq",
        "QRMI_JOB_ID": "/solve/0",
        # nobody starts an emulator's service again
        "qpu_0_SFQ_PATIENCE_SECONDS": "0.8",
    }
    assert (folder / "files").read_text().split() == ["env", "files"]
    assert json.loads((folder / "out").read_text())["info"]["qpu"] == "qpu_0"
    assert project.leftovers() == []


def test_the_qpu_jobs_are_in_the_journal(project: Project) -> None:
    project.deployment(
        "qpu", "sfq.emulator", technology="superconducting", timeScale=0.01
    )
    project.solve("solve", "qpu")
    assert project.run() == 0, project.log
    events = project.events()
    (qpu,) = [event for event in events if event["event"] == "qpu"]
    assert qpu["job"] == "/solve/0"
    assert qpu["technology"] == "superconducting"
    assert qpu["state"] == "Completed"
    assert isinstance(qpu["qpu_seconds"], float)
    assert qpu["qpu_seconds"] > 1.0
    assert str(qpu["calibration"])
    assert events[0]["event"] == "run"
    assert events[0]["file"] == str(project.folder / "streamflow.yml")
    assert events[-1]["event"] == "end"
    assert events[-1]["status"] == "completed"


def test_a_job_that_never_used_its_lease_fails(project: Project) -> None:
    project.deployment("qpu", "sfq.emulator")
    project.step("idle", "echo nothing quantum >out", "qpu")
    assert project.run() == 1
    assert "Job /idle/0 succeeded but never used QPU qpu" in project.log
    assert project.events()[-1]["status"] == "failed"
    assert project.leftovers() == []


def test_a_stock_client_finds_the_emulated_qpu(project: Project) -> None:
    pytest.importorskip("dwave.system", reason="the extra dwave is not installed")
    program = project.folder / "ocean.py"
    program.write_text(
        "from dwave.system import DWaveSampler\n"
        "sampler = DWaveSampler()\n"
        "qubit = sampler.nodelist[0]\n"
        "print(sampler.sample_ising({qubit: 1.0}, {}, num_reads=10).first.energy)\n"
    )
    project.deployment("qpu", "sfq.emulator", qubits=40, clients=True)
    cache = f"DWAVE_CACHE_HOME={project.folder}/cache"
    project.step("ocean", f"{cache} {sys.executable} {program} >out", "qpu")
    assert project.run() == 0, project.log
    (job,) = [event for event in project.events() if event["event"] == "qpu"]
    assert job["state"] == "Completed"


def test_virtual_qpus_are_held_at_once(project: Project) -> None:
    # each waits for the other, so they end only if both have a lease at the same time
    meet = (
        "touch {0}/met-$1\nwhile [ $(ls {0}/met-* | wc -l) -lt 2 ]; do sleep 0.05; done"
    )
    project.deployment("qpu", "sfq.emulator", vqpus=2)
    for name in ("one", "two"):
        project.solve(name, "qpu", f"set -- {name}\n{meet.format(project.folder)}")
    assert project.run() == 0, project.log
    assert len(project.jobs("one", "completed") + project.jobs("two", "completed")) == 2


def test_scattered_jobs_sit_on_a_node_each(project: Project) -> None:
    project.deployment("nodes", "sfq.nodes", names=["c1", "c2", "c3"])
    meet = (
        "touch {0}/met-$1\nwhile [ $(ls {0}/met-* | wc -l) -lt 3 ]; do sleep 0.05; done"
    )
    project.step("work", meet.format(project.folder), "nodes", scatter=3)
    assert project.run() == 0, project.log
    running = project.jobs("work", "running")
    assert sorted(str(event["locations"]) for event in running) == [
        "['c1']",
        "['c2']",
        "['c3']",
    ]


def test_a_slow_service_holds_up_no_other_step(project: Project) -> None:
    # the service starts only when the other step has ended
    real = _fake_sfq(
        project, f"while [ ! -e {project.folder}/go ]; do sleep 0.05; done"
    )
    project.deployment("qpu", "sfq.emulator")
    project.deployment("nodes", "sfq.nodes", names=["c1"])
    project.solve("solve", "qpu")
    project.step("other", f"touch {project.folder}/go", "nodes")
    assert real
    assert project.run() == 0, project.log


def test_a_service_that_does_not_start_says_why(project: Project) -> None:
    _fake_sfq(project, "echo 'sfq serve: no more helium' >&2; exit 1")
    project.deployment("qpu", "sfq.emulator")
    project.solve("solve", "qpu")
    assert project.run() == 1
    assert (
        "The service of QPU qpu did not start: sfq serve: no more helium" in project.log
    )
    assert project.leftovers() == []


def test_a_service_that_dies_fails_its_job_with_a_reason(
    project: Project, until: Until
) -> None:
    project.deployment("qpu", "sfq.emulator", technology="neutral-atom", timeScale=1)
    project.solve("solve", "qpu")
    driver = project.start()
    until(project.on_qpu, "the QPU job")
    (service,) = project.commands("sfq serve")
    service.kill()
    assert driver.wait(timeout=SECONDS) == 1
    assert "it ended during the job" in project.log
    assert project.jobs("solve", "failed")
    assert project.leftovers() == []


def test_sfq_missing_on_the_location_is_said(project: Project) -> None:
    project.path = [path for path in project.path if not (Path(path) / "sfq").exists()]
    project.deployment("qpu", "sfq.emulator")
    project.solve("solve", "qpu")
    assert project.run() == 1
    assert "`sfq` is not on the PATH of" in project.log


def test_a_failed_attempt_is_repeated_and_counted(project: Project) -> None:
    flag = project.folder / "flag"
    project.deployment("qpu", "sfq.emulator")
    # the first attempt forgets its lease
    project.step(
        "solve",
        f"if [ -e {flag} ]; then sfq solve --problem {project.folder}/problem.json "
        f"--output out --reads 5; else touch {flag}; fi",
        "qpu",
    )
    project.extra["failureManager"] = {
        "type": "default",
        "config": {"max_retries": 3, "retry_delay": 0},
    }
    assert project.run() == 0, project.log
    statuses = [
        (event["attempt"], event["status"])
        for event in project.events()
        if event.get("step") == "/solve"
    ]
    assert (1, "recovery") in statuses
    assert (2, "completed") in statuses
    assert statuses.count((2, "completed")) == 1


def test_iterations_differ_from_scatter_indices_on_stock(
    project: Project,
) -> None:
    project.deployment("here", "local")
    again = "n=$(($1+1)); again=true; [ $n -lt 2 ] || again=false"
    score = f'{again}; echo "{{\\"n\\": $n, \\"again\\": $again, \\"score\\": 0.5}}"'
    project.step("many", "true", "here", scatter=3)
    project.step("score", f"{score} >cwl.output.json", "here")
    many, last = project.steps["many"], project.steps["score"]
    assert isinstance(many, dict)
    assert isinstance(last, dict)
    assert isinstance(last["run"], dict)
    assert isinstance(last["run"]["inputs"], dict)
    last["run"]["inputs"]["after"] = "Any"
    last["run"]["outputs"] = {"n": "int", "again": "boolean"}
    last["in"], last["out"] = {"n": "n", "after": "many/out"}, ["n", "again"]
    body: JSON = {
        "class": "Workflow",
        "inputs": {"n": "int", "ns": "int[]", "again": "boolean"},
        "outputs": {
            "n": {"type": "int", "outputSource": "score/n"},
            "again": {"type": "boolean", "outputSource": "score/again"},
        },
        "steps": {"many": many, "score": last},
    }
    loop: JSON = {
        "loopWhen": "$(inputs.again)",
        "loop": {"n": "n", "again": "again"},
        "outputMethod": "last",
    }
    project.document = {
        "$namespaces": {"cwltool": "http://commonwl.org/cwltool#"},
        "requirements": {
            "ScatterFeatureRequirement": {},
            "SubworkflowFeatureRequirement": {},
        },
        "outputs": {"n": {"type": "int", "outputSource": "loop/n"}},
        "steps": {
            "loop": {
                "run": body,
                "in": {"n": {"default": 0}, "ns": "ns", "again": {"default": True}},
                "out": ["n", "again"],
                "requirements": {"cwltool:Loop": loop},
            }
        },
    }
    project.bindings = {"loop/many": "here", "loop/score": "here"}
    assert project.run() == 0, project.log
    rows = collect(project.events())
    assert sorted((row.job, row.location, row.score) for row in rows) == [
        *((f"/loop/many/0.{i}.{n}", "here", None) for i in (0, 1) for n in (0, 1, 2)),
        ("/loop/score/0.0", "here", 0.5),
        ("/loop/score/0.1", "here", 0.5),
    ]


@pytest.mark.parametrize(
    ("deployment", "words"),
    [
        ("two", "which has 2 SSH nodes"),
        ("nodes", "which is neither local nor SSH"),
    ],
)
def test_what_cannot_be_wrapped_is_refused(
    project: Project, deployment: str, words: str
) -> None:
    project.deployment("two", "ssh", nodes=["a.invalid", "b.invalid"], username="me")
    project.deployment("nodes", "sfq.nodes", names=["c1"])
    project.deployment("qpu", "sfq.emulator", wraps=deployment)
    project.solve("solve", "qpu")
    assert project.run() == 1
    line = next(line for line in project.log.splitlines() if words in line)
    assert re.search(f"Deployment qpu cannot wrap {deployment}", line)
    assert "let it wrap a `local` deployment" in line


@pytest.mark.parametrize(
    ("type_", "config"),
    [
        ("sfq.emulator", {"technology": "abacus"}),
        ("sfq.emulator", {"vqpus": 0}),
        ("sfq.emulator", {"faults": {"fale": 0.1}}),
        ("sfq.emulator", {"timescale": 1}),
        ("sfq.nodes", {"names": []}),
        ("sfq.nodes", {"names": ["a", "a"]}),
    ],
)
def test_a_wrong_configuration_is_refused_before_anything_runs(
    project: Project, type_: str, config: dict[str, int]
) -> None:
    project.deployment("qpu", type_, **config)
    project.solve("solve", "qpu")
    assert project.run() == 1
    assert project.events() == []


def test_streamflow_shows_what_we_bring(project: Project) -> None:
    def shown(*words: str) -> str:
        return forking.run(["streamflow", *words], project.folder, os.environ)

    assert "sf_quantum" in shown("plugin", "list")
    extensions = shown("ext", "list")
    for name in ("sfq.emulator", "sfq.nodes", "sfq.rest", "sfq.ssh", "sfq.journal"):
        assert name in extensions
    assert "timeScale" in shown("ext", "show", "connector", "sfq.emulator")
    assert "names" in shown("ext", "show", "connector", "sfq.nodes")
    assert "renewCommand" in shown("ext", "show", "connector", "sfq.ssh")
    assert "directory" in shown("ext", "show", "scheduler", "sfq.journal")


def _fake_sfq(project: Project, before_serving: str) -> Path:
    """Put a command ``sfq`` first on the PATH that does something before it serves."""
    real = Path(project.path[0]) / "sfq"
    folder = project.folder / "bin"
    folder.mkdir()
    fake = folder / "sfq"
    fake.write_text(
        f'#!/bin/sh\nif [ "$1" = serve ]; then {before_serving}; fi\n'
        f'exec "{real}" "$@"\n'
    )
    fake.chmod(0o755)
    project.path.insert(0, str(folder))
    return real


def test_the_last_lines_say_why_a_run_has_failed(project: Project) -> None:
    project.debug = False
    project.deployment("host", "local")
    project.step("good", "true", "host")
    project.step("bad", "true", "host")
    script = "echo result\nseq 30 >&2\necho wrong >&2\nno-such-command\n"
    (project.folder / "bad.sh").write_text(script)
    # the file of the standard output has no errors
    run = project.steps["bad"]["run"]  # type: ignore[index, call-overload]
    run["stdout"] = "printed"  # type: ignore[index, call-overload]
    assert project.run() != 0
    assert "Traceback" not in project.log
    _, _, end = project.log.partition("FAILED Workflow execution\n")
    lines = end.splitlines()
    assert lines[0] == "/bad/0 on host failed with exit code 127:"
    assert lines[1:19] == [f"  {number}" for number in range(13, 31)]
    assert lines[19] == "  wrong"
    assert lines[20].endswith("no-such-command: not found")
    assert lines[21] == (
        "remedy: install the step's command on host, or put it on the PATH there"
    )
    assert lines[22] == f"report: sfq report {project.folder}/streamflow.yml"
    log = Path(lines[23].removeprefix("tracebacks: "))
    assert "Traceback" in log.read_text()
    assert len(lines) == 24
    row = next(row for row in collect(project.events()) if row.step == "bad")
    assert (row.status, row.exit_code) == ("failed", 127)
    assert "wrong" in row.error
    assert row.remedy


def test_a_step_without_its_output_says_so(project: Project) -> None:
    project.debug = False
    project.deployment("host", "local")
    project.step("bad", "true", "host")
    outputs = project.steps["bad"]["run"]["outputs"]  # type: ignore[index, call-overload]
    outputs["out"]["type"] = "File"  # type: ignore[index, call-overload]
    assert project.run() != 0
    _, _, end = project.log.partition("FAILED Workflow execution\n")
    assert end.startswith("/bad/0 on host failed:\n")
    assert "expected" in end.lower()
    (row,) = collect(project.events())
    assert (row.status, row.exit_code) == ("failed", None)
    assert row.error
