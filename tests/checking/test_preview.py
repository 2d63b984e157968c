"""``sfq run --dry-run``: what a run would do now, by what the QPUs answer; nothing runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import sf_quantum
from sf_quantum.cli import main
from sf_quantum.files import JSON
from sf_quantum.protocol.run_times import TIMINGS
from sf_quantum.qpu import DEFAULT_READS, QpuStatus
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support.checked_projects import FILE, FILTERS, LAPTOP, QPU, write_files
from tests.support.journals import Event, write
from tests.support.service import RunningService, running_service

REQUIREMENTS = "requirements: {StepInputExpressionRequirement: {}}"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files()


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(EmulatedDevice(qubits=5, time_scale=0)) as running:
        yield running


def streamflow(url: str, *targets: str, rules: str = "") -> None:
    """Write a StreamFlow file, whose step is a quantum candidate if it has rules."""
    section = FILTERS.replace("{steps:", f"{{{rules}, steps:") if rules else ""
    text = FILE % (", ".join(targets), "choose" if rules else "", url, section)
    Path("sf.yml").write_text(text)


def dry_run(output: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = main(["run", "sf.yml", "--dry-run"])
    return code, output.readouterr().out.splitlines()


def test_a_candidate_goes_where_its_qpus_answers_send_it(
    service: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    streamflow(service.url, QPU, LAPTOP, rules="prefer: quantum")
    code, lines = dry_run(capsys)
    assert code == 0
    assert lines[1].split(maxsplit=2) == ["solve", "qpu", "qpu is free"]
    assert lines[-1].split() == "qpu annealer online 5 0 of 1 0 0.0 s".split()
    service.ask("POST", "/v1/device/close", {"message": "the laser is out"})
    code, lines = dry_run(capsys)
    assert code == 0
    assert lines[1].startswith("solve  laptop")
    assert lines[1].endswith("qpu is offline: the QPU is closed: the laser is out")
    assert "closed (the QPU is closed: the laser is out)" in lines[-1]
    assert not Path(".streamflow").exists()
    assert service.queue.leases.held == []


@pytest.mark.parametrize("reads", ["given", "default", "by rule", "computed", None])
def test_its_qpus_are_asked_for_a_job_of_its_size(
    reads: str | None, service: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a QPU answers depends on the size: the cost of a job, and when it would run."""
    rules = "prefer: quantum, reads: shots" if reads == "by rule" else "prefer: quantum"
    name = "shots" if reads == "by rule" else "reads"
    streamflow(service.url, QPU, LAPTOP, rules=rules)
    if reads is not None:
        tool, main_ = Path("tool.cwl").read_text(), Path("main.cwl").read_text()
        Path("tool.cwl").write_text(
            tool.replace("size: int}", f"size: int, {name}: int}}")
        )
        step = f"size: size, {name}: shots}}"
        default = {"type": "int", "default": 7}
        inputs = f"size: int, shots: {json.dumps(default)}}}"
        if reads == "computed":
            step = f"size: size, {name}: {{valueFrom: $(inputs.size)}}}}"
        Path("main.cwl").write_text(
            main_.replace("class: Workflow", f"class: Workflow\n{REQUIREMENTS}")
            .replace("size: int}", inputs)
            .replace("size: size}", step)
        )
    if reads in ("given", "by rule"):
        settings = json.loads(Path("job.yml").read_text())
        Path("job.yml").write_text(json.dumps({**settings, "shots": 42}))
    preview = sf_quantum.preview("sf.yml")
    status = preview.qpus["qpu"]
    assert isinstance(status, QpuStatus)
    expected = {"given": 42, "by rule": 42, "default": 7}.get(
        reads or "", DEFAULT_READS
    )
    seconds = TIMINGS["annealer"].job_seconds(expected)
    assert status.job_qpu_seconds == pytest.approx(seconds)
    late = preview.steps[0].why.endswith("the number of reads is known when it runs")
    assert late == (reads == "computed")


async def test_earlier_runs_tell_how_long_it_takes(service: RunningService) -> None:
    """In a coroutine, since a notebook has an event loop."""
    streamflow(service.url, QPU, LAPTOP, rules="prefer: earliest")
    write(Path(".streamflow/sfq/r.jsonl"), [*a_run(laptop=1.0, qpu=5.0)])
    (step,) = sf_quantum.preview("sf.yml").steps
    assert step.targets == ("laptop",)
    assert "laptop would end in 1 s, qpu would end in 5 s" in step.why


@pytest.mark.parametrize("last", [None, 3, 7])
def test_a_size_that_is_computed_is_that_of_the_last_run(
    last: int | None, service: RunningService
) -> None:
    streamflow(service.url, QPU, LAPTOP, rules="prefer: quantum")
    main_ = Path("main.cwl").read_text()
    Path("main.cwl").write_text(
        main_.replace("class: Workflow", f"class: Workflow\n{REQUIREMENTS}").replace(
            "size: size}", "size: {valueFrom: $(inputs.size)}}"
        )
    )
    # The size of a problem in a file of this workflow's inputs would be known.
    Path("problem.json").rename("problem.bqm")
    settings = Path("job.yml").read_text().replace("problem.json", "problem.bqm")
    Path("job.yml").write_text(settings)
    run = [*a_run(qpu=5.0)]
    decision: Event = {
        **{"time": 1.0, "event": "decision", "job": "/solve/0", "step": "/solve"},
        **{"quantum": True, "targets": ["qpu"], "variables": last, "reads": 10},
    }
    write(Path(".streamflow/sfq/r.jsonl"), [run[0], decision, *run[1:]])
    (step,) = sf_quantum.preview("sf.yml").steps
    assert step.targets == ("qpu" if last != 7 else "laptop",)
    assumed = f"; assumed as in the last run: {last} variables"
    assert step.why.endswith(assumed if last else "is known when it runs")


def test_what_no_target_can_run_is_told(
    service: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    streamflow(service.url, QPU, "{deployment: other}", rules="maxVariables: 2")
    other = f'  other: {{type: sfq.rest, config: {{url: "{service.url}"}}}}\n'
    text = Path("sf.yml").read_text()
    Path("sf.yml").write_text(text.replace("  laptop:", f"{other}  laptop:"))
    told = sf_quantum.preview("sf.yml")
    assert (told.ok, told.steps[0].targets) == (False, ())
    code, lines = dry_run(capsys)
    assert code == 2
    assert " ".join(lines[1].split()).startswith("solve nothing qpu is limited to 2")
    # and what is wrong with the file, as without --dry-run
    Path("main.cwl").unlink()
    assert main(["run", "sf.yml", "--dry-run"]) == 2
    assert "main.cwl: no such file" in capsys.readouterr().err


def test_steps_without_a_filter_keep_all_their_targets(
    service: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    streamflow("unix:/nowhere.sock", QPU, LAPTOP)
    code, lines = dry_run(capsys)
    assert (code, lines[1]) == (0, "solve  qpu or laptop")
    assert lines[-1].startswith("qpu  -           could not be queried: ")
    edited = Path("sf.yml").read_text().replace("step: /solve", "step: /other")
    Path("main.cwl").write_text(
        f"{Path('main.cwl').read_text()}"
        "  other: {run: tool.cwl, in: {problem: problem, size: size}, out: []}\n"
    )
    Path("sf.yml").write_text(edited)
    _, lines = dry_run(capsys)
    assert lines[1].split(maxsplit=2) == ["solve", "local", "no binding names it"]
    assert lines[2].split(maxsplit=1) == ["other", "qpu or laptop"]


def test_it_is_told_to_programs_too(
    service: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    streamflow(service.url, QPU)
    assert main(["run", "sf.yml", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["steps"] == [
        {"workflow": "main", "step": "/solve", "targets": ["qpu"], "why": ""}
    ]
    assert (told["ok"], told["qpus"]["qpu"]["online"]) == (True, True)
    assert main(["run", "sf.yml", "--json"]) == 2
    assert "--json: only with --dry-run" in capsys.readouterr().err


def a_run(**seconds: float) -> Iterator[Event]:
    """The journal of a run in which the step took some seconds on each target."""
    yield {
        "time": 0.0,
        "event": "run",
        "run": "r",
        "file": str(Path("sf.yml").resolve()),
    }
    began = time.time() - 1000
    for number, (target, lasted) in enumerate(seconds.items()):
        common: dict[str, JSON] = {
            "event": "job",
            "job": f"/solve/0.{number}",
            "step": "/solve",
            "deployment": target,
            "service": None,
        }
        yield {**common, "time": began, "status": "waiting"}
        yield {**common, "time": began, "status": "running"}
        yield {**common, "time": began + lasted, "status": "completed"}


def test_a_folder_of_outputs_without_access_is_refused(
    service: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    streamflow(service.url, QPU, LAPTOP)
    Path("out").touch()
    assert main(["run", "sf.yml", "--dry-run", "--outdir", "out/new"]) == 2
    said = capsys.readouterr().err
    assert "out/new: cannot be written: Not a directory; name an --outdir" in said
