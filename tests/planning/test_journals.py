"""``sfq plan`` with journals of earlier runs, and for StreamFlow files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from sf_quantum.cli import main
from sf_quantum.errors import InputError
from sf_quantum.journal import DIRECTORY
from sf_quantum.planning import experiment
from sf_quantum.planning.measured import fitting, journals
from sf_quantum.planning.measured.fitting import Fit
from sf_quantum.planning.workloads import reading
from sf_quantum.planning.workloads.streamflow_workload import (
    CLASSICAL_SECONDS,
    QPU_SECONDS,
)
from tests.support.journals import Event, typed, write
from tests.support.planned_journals import (
    BESIDE,
    HELD,
    HOST,
    NOTICE,
    PENDING,
    QPU_JOB,
    QPU_JOBS,
    STEP,
    STREAMFLOW,
    TASKS,
    Writer,
    planned,
)

WORKLOAD = """
partitions: {batch: {nodes: 16}}
qpus: {pasqal: {setup_seconds: 2}}
applications:
  hybrid:
    phases:
      - {step: /loop/cluster, nodes: 2, seconds: 1}
      - {step: /loop/solve, qpu: pasqal, seconds: 1}
      - {step: /other, nodes: 1, seconds: 5}
repetitions: 2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "streamflow.yml"
    path.write_text(STREAMFLOW)
    return path.resolve()


def a_run(
    file: Path,
    iterations: int,
    end: str | None = "completed",
    waited: float = 0.0,
    around: Sequence[str] = (),
) -> list[Event]:
    """A run with a loop.

    :param waited: for nodes, by each job of the classical step
    :param around: steps before and after the loop
    """
    writer = Writer(file)
    for step in around[:1]:
        writer.slurm({f"{step}/0": 5.0})
    for number in range(iterations):
        jobs = {f"/loop/cluster/0.{number}.{n}": TASKS[n] for n in range(len(TASKS))}
        writer.slurm(jobs, waited=waited)
        writer.host(f"/loop/prepare/0.{number}", HOST)
        # of its time, 4 s are for the lease, and two times 1 s in the QPU's queue
        seconds = 4.0 + QPU_JOBS * (1.0 + QPU_JOB + BESIDE)
        writer.slurm({f"/loop/solve/0.{number}": seconds}, "quantum")
    for step in around[1:]:
        writer.slurm({f"{step}/0": 7.0})
    if end is not None:
        writer.add("end", writer.now, {"status": end})
    return writer.events


def fitted(*runs: list[Event]) -> Fit:
    found = fitting.fit(journals.EarlierRuns([[*typed(run)] for run in runs]))
    assert found is not None
    return found


def test_phases_are_what_ran(file: Path) -> None:
    cluster, solve = fitted(a_run(file, 2), a_run(file, 4)).phases
    assert (cluster.step, cluster.target) == ("/loop/cluster", ("hpc", "compute"))
    assert cluster.task_seconds == pytest.approx(TASKS)
    assert (cluster.nodes, cluster.partition, cluster.number) == (2, "batch", 6)
    assert cluster.host_seconds == 0
    assert solve.qpu == "pasqal"
    # without the lease, the QPU's queue, and what is computed beside the QPU
    assert solve.task_seconds == pytest.approx([QPU_JOB])
    assert solve.qpu_jobs == QPU_JOBS
    assert solve.between_seconds == pytest.approx(BESIDE)
    # the step on the driver's host, with what StreamFlow takes to begin it
    assert solve.host_seconds == pytest.approx(STEP + HOST)


def test_repetitions_have_a_spread(file: Path) -> None:
    repeats = fitted(a_run(file, 2), a_run(file, 4)).repeats
    assert (repeats.seconds, repeats.number) == (3, 2)
    assert repeats.spread == pytest.approx(1 / 3)


def test_overheads_are_without_waits_for_nodes(file: Path) -> None:
    found = fitted(a_run(file, 2, waited=500.0), a_run(file, 2))
    step, job = found.overheads["step"], found.overheads["job"]
    assert step.seconds == pytest.approx(STEP)
    assert job.seconds == pytest.approx(PENDING + NOTICE)
    assert job.spread == pytest.approx(0.0, abs=1e-9)
    # four of eight jobs waited, for what Slurm takes as well
    assert found.queues["batch"].seconds == pytest.approx((500.0 + PENDING) / 2)
    assert found.queues["qnodes"].seconds == 0
    assert "resume" not in found.overheads
    # the nodes are released after the job's end
    assert found.overheads["job_held"].seconds == pytest.approx(HELD)


@pytest.mark.parametrize("seen", [[True], [False], [True, False]])
def test_earlier_runs_of_a_requeued_job_are_no_overhead(
    file: Path, seen: list[bool]
) -> None:
    writer = Writer(file)
    writer.slurm({"/loop/cluster/0.0": 40.0})
    writer.slurm({"/loop/cluster/0.1": 40.0}, lost=dict.fromkeys(seen, 1000.0))
    writer.slurm({"/loop/cluster/0.2": 40.0})
    writer.add("end", writer.now, {"status": "completed"})
    found = fitted(writer.events)
    job, held = found.overheads["job"], found.overheads["job_held"]
    assert (job.number, held.number) == (2, 2)
    assert job.seconds == pytest.approx(PENDING + NOTICE)
    assert held.seconds == pytest.approx(HELD)
    assert (found.queues["batch"].seconds, found.queues["batch"].number) == (0, 2)
    assert found.phases[0].task_seconds == pytest.approx([40.0])


def test_jobs_in_held_allocations_are_resumed(file: Path) -> None:
    events = a_run(file, 2)
    for event in events:
        if event["event"] == "slurm" and event["job"] == "/loop/cluster/0.1.0":
            event["allocation"] = "1"
    assert fitted(events).overheads["resume"].number == 1


def test_a_step_around_the_loop_runs_once(file: Path) -> None:
    phases = fitted(a_run(file, 2, around=("/first", "/last"))).phases
    assert [(phase.step, phase.only) for phase in phases] == [
        ("/first", "first"),
        ("/loop/cluster", None),
        ("/loop/solve", None),
        ("/last", "last"),
    ]


def test_a_slurm_job_without_an_end_yields_no_overhead(file: Path) -> None:
    """Its time would count from 1970."""
    events = a_run(file, 1)
    for event in events:
        if event["event"] == "slurm":
            event["ended"] = None
    assert all(one.seconds < 1000 for one in fitted(events).overheads.values())


def test_a_loop_inside_another_is_refused(file: Path) -> None:
    events = a_run(file, 1)
    for event in events:
        if "loops" in event:
            event["loops"] = 2
            event["tag"] = f"{event['tag']}.0"
            event["job"] = f"{event['job']}.0"
        elif event["event"] in ("slurm", "qpu", "allocation"):
            event["job"] = f"{event['job']}.0"
    with pytest.raises(InputError, match="a loop inside another"):
        fitting.fit(journals.EarlierRuns([[*typed(events)]]))


def unusable(folder: Path, file: Path) -> Iterator[Path]:
    yield write(folder / "1-failed.jsonl", a_run(file, 1, "failed"))
    yield write(folder / "2-killed.jsonl", a_run(file, 1, None))
    yield write(folder / "3-empty.jsonl", [])
    yield write(folder / "4-other.jsonl", a_run(Path("/other.yml"), 1))
    text = folder / "5-text.jsonl"
    text.write_text("not a journal\n")
    yield text


@pytest.mark.process
def test_unusable_journals_are_left_out_and_counted(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = file.parent / DIRECTORY
    write(folder / "9-good.jsonl", a_run(file, 2))
    assert len([*unusable(folder, file)]) == 5
    assert main(["plan", str(file), "--repetitions", "2"]) == 0
    text = capsys.readouterr().out
    assert "measured in 1 journal:" in text
    (left_out,) = (line for line in text.splitlines() if "journals left out" in line)
    for why in (
        "1 of runs that did not complete",
        "1 without an end",
        "1 empty",
        "1 of other files",
        "1 not journals",
    ):
        assert why in left_out


@pytest.mark.process
def test_no_usable_journal_is_one_line(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed, *_, text = unusable(file.parent / "runs", file)
    assert main(["plan", str(file), "--journal", str(failed)]) == InputError.exit_code
    error = capsys.readouterr().err
    assert "no completed run" in error
    assert "1 of runs that did not complete" in error
    assert main(["plan", str(file), "--journal", str(text)]) == InputError.exit_code
    assert "5-text.jsonl, line 1: not an event" in capsys.readouterr().err
    missing = str(file.parent / "missing")
    assert main(["plan", str(file), "--journal", missing]) == InputError.exit_code
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{missing}: No such file or directory; expected a journal" in error


def test_only_the_latest_runs_count(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "LATEST_RUNS", 1)
    folder = file.parent / "runs"
    write(folder / "1.jsonl", a_run(file, 3))
    write(folder / "2.jsonl", a_run(file, 5))
    found = journals.read([folder])
    fit = fitting.fit(found)
    assert fit is not None
    assert fit.repeats.seconds == 5
    assert dict(found.left_out) == {"older than the latest 1": 1}


def test_a_workload_takes_times_from_journals(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = file.parent / "workload.yml"
    workload.write_text(WORKLOAD)
    journal = write(file.parent / "run.jsonl", a_run(file, 3))
    saved = file.parent / "saved.yml"
    words = [str(workload), "--journal", str(journal), "--save", str(saved)]
    found = planned(capsys, *words)
    assert "resume_seconds" in found["default_overheads"]
    assert "job_seconds" not in found["default_overheads"]
    read = reading.load(saved).applications["hybrid"]
    cluster, solve, other = read.phases
    assert cluster.task_seconds == [*TASKS]
    assert (solve.seconds, solve.jobs) == (QPU_JOB - 2, QPU_JOBS)
    assert other.seconds == 5
    assert (read.repeats, read.repeats_spread) == (3, 0)
    assert found["sources"]["assumed"] == ["phases of hybrid: /other"]


def test_journals_of_other_steps_are_refused(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = file.parent / "workload.yml"
    workload.write_text(WORKLOAD.replace("/loop", "/else"))
    journal = write(file.parent / "run.jsonl", a_run(file, 1))
    command = ["plan", str(workload), "--journal", str(journal)]
    assert main(command) == InputError.exit_code
    assert (
        "a step of the journals: /loop/cluster, /loop/solve" in capsys.readouterr().err
    )


@pytest.mark.process
def test_a_streamflow_file_without_journals_has_stated_defaults(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = planned(capsys, str(file))
    assert found["current"] == "elastic keep 2"
    names = [one["strategy"] for one in found["strategies"]]
    assert names[:3] == ["elastic keep 2", "per-step", "reserved"]
    assumed = found["sources"]["assumed"]
    assert f"/loop/cluster {CLASSICAL_SECONDS:g} s" in assumed
    assert f"/loop/solve {QPU_SECONDS:g} s" in assumed
    wall = found["strategies"][1]["measures"]["wall"]["mean"]
    # two steps with their overheads
    expected = CLASSICAL_SECONDS + QPU_SECONDS + 2 * (0.2 + 2.3)
    assert wall == pytest.approx(expected)


@pytest.mark.process
def test_a_streamflow_file_with_journals(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file.parent / DIRECTORY / "1.jsonl", a_run(file, 3, waited=100.0))
    saved = file.parent / "saved.yml"
    assert main(["plan", str(file), "--save", str(saved), "--minimise", "wall"]) == 0
    text = capsys.readouterr().out
    assert "the file has elastic keep 2 now; the change: wall time -" in text
    # waiting once for nodes is better than in each iteration
    lines = text.split("\n\n")[2]
    content = yaml.safe_load(lines)
    allocation = content["deployments"]["hpc"]["config"]["allocation"]
    assert allocation == {
        "strategy": "reserved",
        # StreamFlow runs one job at once, and sfq check refuses nodes for more
        "reserve": {"compute": 1, "quantum": 1},
        "release": {"after": "/loop/solve", "times": 3},
    }
    batch = reading.load(saved).partitions["batch"]
    assert batch.nodes == 4
    assert batch.queue_seconds == pytest.approx(100 + PENDING)
    assert "wait for nodes of batch: 102 s" in text


@pytest.mark.process
def test_the_deployment_bounds_the_jobs_at_once(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file.parent / DIRECTORY / "1.jsonl", a_run(file, 3))

    def wall() -> float:
        per_step = next(
            one
            for one in planned(capsys, str(file))["strategies"]
            if one["strategy"] == "per-step"
        )
        return float(per_step["measures"]["wall"]["mean"])

    one_at_once = wall()
    file.write_text(
        STREAMFLOW.replace("allocation:", "maxConcurrentJobs: 2\n      allocation:")
    )
    # the shorter task of each of three iterations, and its overheads
    assert one_at_once - wall() == pytest.approx(
        3 * (min(TASKS) + PENDING + NOTICE), rel=0.1
    )


@pytest.mark.process
def test_the_allocation_of_a_service_comes_first(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = STREAMFLOW.replace("nodes: 2}", "nodes: 2, allocation: per-step}")
    file.write_text(text)
    assert planned(capsys, str(file))["current"] == "per-step"
    assert main(["plan", str(file), "--minimise", "wall"]) == 0
    shown = capsys.readouterr().out
    assert "the file has per-step now" in shown
    assert "# and no allocation in its services compute" in shown


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "type: sfq.slurm",
            "type: local",
            "no step is bound to a deployment of sfq.slurm",
        ),
        ("  hybrid:", "  other: {}\n  hybrid:", "expected one to plan, there are 2"),
    ],
)
def test_streamflow_files_that_cannot_be_planned(
    file: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    file.write_text(STREAMFLOW.replace(old, new))
    assert main(["plan", str(file)]) == InputError.exit_code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_phases_at_the_ends_and_on_the_host(tmp_path: Path) -> None:
    path = tmp_path / "workload.yml"
    path.write_text("""
partitions: {batch: {nodes: 4, queue_seconds: 50, queue_spread: 0}}
qpus: {}
overheads: {step_seconds: 1, job_seconds: 2, resume_seconds: 0}
applications:
  hybrid:
    repeats: 3
    phases:
      - {seconds: 100, only: first}
      - {task_seconds: [10, 20], host_seconds: 5}
      - {seconds: 30, only: last}
strategies: [{type: per-step}]
repetitions: 2
""")
    workload = reading.load(path)
    result = experiment.run(workload, workload.strategies[0], [])
    assert not isinstance(result, str)
    steps = 100 + 3 * (5 + 20) + 30
    assert result.mean("wall") == pytest.approx(steps + 5 * (1 + 2 + 50))
    assert result.mean("node-seconds") == pytest.approx(100 + 3 * 30 + 30)


def test_overheads_are_drawn_with_their_spread(tmp_path: Path) -> None:
    path = tmp_path / "workload.yml"
    path.write_text("""
partitions: {batch: {nodes: 4}}
overheads: {step_seconds: 10, job_seconds: 20, step_spread: 0.5, job_spread: 0.5}
applications: {hybrid: {repeats: 50, phases: [{seconds: 1}]}}
strategies: [{type: per-step}]
repetitions: 20
""")
    workload = reading.load(path)
    result = experiment.run(workload, workload.strategies[0], [])
    assert not isinstance(result, str)
    estimate = result.estimate("wall")
    assert 0 < estimate.half_width < 0.1 * estimate.mean
    assert abs(estimate.mean - 50 * 31) < 2 * estimate.half_width


def test_a_list_of_tasks_excludes_a_number(tmp_path: Path) -> None:
    path = tmp_path / "workload.yml"
    path.write_text(
        "{partitions: {a: {nodes: 1}}, applications: {h: {phases: "
        "[{task_seconds: [1, 2], tasks: 2}]}}}"
    )
    with pytest.raises(InputError, match=r"phases\[0\]\.tasks: task_seconds has those"):
        reading.load(path)
