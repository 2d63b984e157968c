"""Workload files and traces: what they mean, and one line for everything that is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sf_quantum.errors import InputError
from sf_quantum.files import mapping
from sf_quantum.planning import allocation_lines, experiment, random_draws
from sf_quantum.planning.experiment import Result
from sf_quantum.planning.simulation.application import ClassicalStep, QuantumStep
from sf_quantum.planning.simulation.strategies import (
    CoScheduled,
    Elastic,
    PerStep,
    Reserved,
    Strategy,
)
from sf_quantum.planning.workloads import reading
from sf_quantum.validation import ValidationErrors

WORKLOAD = """
partitions:
  compute: {nodes: 4, watts: 300, idle_watts: 100, price: 2}
  quantum: {nodes: 1}
qpus:
  qpu: {partition: quantum, setup_seconds: 10, shot_seconds: 0.1, price: 100, lease_price: 10}
applications:
  loop:
    repeats: 2
    phases:
      - {nodes: 2, seconds: 100}
      - {qpu: qpu, shots: 500}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "workload.yml"
    path.write_text(text)
    return path


def test_an_application_is_drawn(tmp_path: Path) -> None:
    workload = reading.load(write(tmp_path, WORKLOAD))
    (application,) = random_draws.applications(workload, 0)
    first, second, *_ = application.steps
    assert len(application.steps) == 4
    assert isinstance(first, ClassicalStep)
    assert first.nodes() == {"compute": 2}
    assert isinstance(second, QuantumStep)
    assert second.jobs == (60,)
    assert application.seconds == 320
    assert application.lease.expected_seconds == 120


def test_spread_is_relative_to_the_mean(tmp_path: Path) -> None:
    text = WORKLOAD.replace("seconds: 100", "seconds: 100, spread: 0.5")
    text = text.replace("repeats: 2", "repeats: 4000")
    (application,) = random_draws.applications(reading.load(write(tmp_path, text)), 0)
    times = [step.seconds for step in application.steps[::2]]
    mean = sum(times) / len(times)
    variance = sum((time - mean) ** 2 for time in times) / len(times)
    assert mean == pytest.approx(100, rel=0.03)
    assert variance**0.5 == pytest.approx(50, rel=0.05)


def test_no_job_is_drawn_that_no_window_lets_run(tmp_path: Path) -> None:
    """Between two windows there are 65 s, for jobs of 60 s with a wide spread."""
    window = "maintenance: [{at_seconds: 0, seconds: 15, every_seconds: 80}]"
    text = WORKLOAD.replace("price: 100", window).replace(
        "shots: 500", "shots: 500, spread: 0.5, jobs: 20"
    )
    text += "background: {quantum: [{per_hour: 3, seconds: 60}], warm_up_seconds: 9}\n"
    workload = reading.load(write(tmp_path, text))
    (application,) = random_draws.applications(workload, 0)
    jobs = [job for step in application.quantum_steps() for job in step.jobs]
    assert max(jobs) == 65
    assert isinstance(experiment.run(workload, PerStep(), []), experiment.Result)


def test_repetitions_have_their_own_draws(tmp_path: Path) -> None:
    text = WORKLOAD.replace("seconds: 100", "seconds: 100, spread: 0.5")
    workload = reading.load(write(tmp_path, text))
    assert random_draws.applications(workload, 0) == random_draws.applications(
        workload, 0
    )
    assert random_draws.applications(workload, 0) != random_draws.applications(
        workload, 1
    )


def test_measures_of_one_run(tmp_path: Path) -> None:
    text = (
        f"{WORKLOAD}overheads: {{step_seconds: 0, job_seconds: 0, resume_seconds: 0}}\n"
    )
    workload = reading.load(write(tmp_path, text))
    result = experiment.run(workload, CoScheduled(), [])
    assert isinstance(result, experiment.Result)
    assert {name: result.mean(name) for name in result.measured()} == pytest.approx(
        {
            "wall": 320,
            "wait": 0,
            "slowdown": 1,
            "makespan": 320,
            "node-seconds": 640,
            "quantum-node-seconds": 320,
            "qpu-seconds": 120,
            "lease-seconds": 320,
            "utilisation": 120 / 320,
            "gap": 100,
            # two nodes that compute for 200 s and idle for 120 s
            "energy": 2 * (200 * 300 + 120 * 100) / 3600,
            "cost": (640 * 2 + 120 * 100 + 320 * 10) / 3600,
        }
    )
    assert result.estimate("wall").half_width == 0


@pytest.mark.parametrize(
    "strategy",
    [CoScheduled(), Reserved(), PerStep(), Elastic(), Elastic(keep=1, ahead=True)],
    ids=lambda strategy: strategy.name,
)
def test_energy_is_that_of_work_and_of_idle_nodes(
    tmp_path: Path, strategy: Strategy
) -> None:
    def energies(**watts: str) -> Result:
        text = WORKLOAD.replace("watts: 300, idle_watts: 100", watts["compute"])
        text = text.replace("nodes: 1}", f"nodes: 1, {watts['quantum']}}}")
        text += "background: {jobs: [{per_hour: 20, seconds: 300, most_nodes: 3}]}\n"
        found = experiment.run(reading.load(write(tmp_path, text)), strategy, [])
        assert isinstance(found, Result)
        return found

    held = "watts: 200, idle_watts: 200"
    all_held = energies(compute=held, quantum=held)
    node_seconds = all_held.mean("node-seconds") + all_held.mean("quantum-node-seconds")
    assert all_held.mean("energy") == pytest.approx(node_seconds * 200 / 3600)
    # two phases on two nodes for 100 s, and two on a QPU for 60 s, with each strategy
    work = energies(compute="watts: 300", quantum="watts: 50")
    assert work.mean("energy") == pytest.approx((400 * 300 + 120 * 50) / 3600)


def test_a_time_limit_of_all_jobs_leaves_nothing_to_backfill(tmp_path: Path) -> None:
    """Two jobs of others run from 0 on, and one that needs all nodes is next."""
    recorded = [
        f"1 {at} 0 {seconds} {nodes} -1 -1 {nodes} {seconds} -1 1 1 1 -1 1 -1 -1 -1\n"
        for at, seconds, nodes in ((0, 200, 1), (0, 1000, 1), (10, 100, 4))
    ]
    (tmp_path / "jobs.swf").write_text("".join(recorded))

    def wall(estimates: str) -> float:
        text = WORKLOAD.replace("repeats: 2", f"{estimates}\n    at_seconds: 20")
        text += "background: {warm_up_seconds: 0, traces: [{file: jobs.swf}]}\n"
        workload = reading.load(write(tmp_path, text))
        others = reading.recorded(workload, tmp_path / "workload.yml")
        result = experiment.run(workload, PerStep(), others)
        assert isinstance(result, experiment.Result)
        return result.mean("wall")

    # by its estimate, a step of 100 s ends before the second job does, or not
    assert wall("margin: 1") < 900 < wall("limit_seconds: 5000")


def test_the_load_of_others_is_the_same_with_each_strategy(tmp_path: Path) -> None:
    text = (
        f"{WORKLOAD}"
        "background:\n"
        "  jobs: [{per_hour: 20, seconds: 300, most_nodes: 3}]\n"
        "  quantum: [{per_hour: 10, seconds: 60}]\n"
    )
    workload = reading.load(write(tmp_path, text))
    quiet = experiment.run(reading.load(write(tmp_path, WORKLOAD)), PerStep(), [])
    results = [
        experiment.run(workload, strategy, [])
        for strategy in (CoScheduled(), PerStep(), PerStep(), Elastic(keep=1))
    ]
    co_scheduled, per_step, again, _ = results
    assert isinstance(quiet, experiment.Result)
    assert isinstance(co_scheduled, experiment.Result)
    assert isinstance(per_step, experiment.Result)
    assert isinstance(again, experiment.Result)
    assert per_step.repetitions == again.repetitions
    assert per_step.mean("wall") > quiet.mean("wall")
    # the difference of pairs is more certain than that of the means
    difference = co_scheduled.relative(per_step, "node-seconds")
    apart = co_scheduled.estimate("node-seconds").half_width
    assert difference.half_width < apart
    assert difference.mean > 0


def test_a_strategy_for_which_the_cluster_is_too_small(tmp_path: Path) -> None:
    text = WORKLOAD.replace("partition: quantum", "partition: compute")
    text = text.replace("nodes: 2", "nodes: 4")
    workload = reading.load(write(tmp_path, text))
    found = experiment.run(workload, CoScheduled(), [])
    assert found == "holds 5 nodes of compute at the same time, but compute has 4"
    assert isinstance(experiment.run(workload, PerStep(), []), experiment.Result)


@pytest.mark.parametrize(
    "strategy", [PerStep(), Elastic(), Elastic(keep=1), Reserved()]
)
def test_at_most_so_many_jobs_of_workflows_at_once(
    tmp_path: Path, strategy: Strategy
) -> None:
    """Both tasks of a step that is run twice take 100 s: at once, or one after the other."""
    text = WORKLOAD.replace("{nodes: 2, seconds: 100}", "{tasks: 2, seconds: 100}")
    at_once = reading.load(write(tmp_path, text))
    text = text.replace("{nodes: 4,", "{nodes: 4, most_jobs: 1,")
    in_turn = reading.load(write(tmp_path, text))
    walls = []
    for workload in (at_once, in_turn):
        found = experiment.run(workload, strategy, [])
        assert isinstance(found, Result)
        walls.append(found.mean("wall"))
    job_seconds = in_turn.overheads.job_seconds
    assert walls[1] - walls[0] == pytest.approx(2 * 100, abs=3 * job_seconds)


def test_reserved_holds_nodes_for_the_tasks_that_run_at_once(tmp_path: Path) -> None:
    """The lines for the StreamFlow file, too, as ``sfq check`` demands."""
    text = WORKLOAD.replace("{nodes: 2, seconds: 100}", "{tasks: 3, seconds: 100}")
    text = text.replace("{nodes: 4,", "{nodes: 4, most_jobs: 2,")
    workload = reading.load(write(tmp_path, text))
    (application,) = random_draws.applications(workload, 0)
    assert Reserved().holds(application)["compute"] == 2
    # a program runs all of them
    assert CoScheduled().holds(application)["compute"] == 3
    keys = allocation_lines.config(workload, Reserved(), "loop")
    assert keys["maxConcurrentJobs"] == 2
    assert mapping(keys["allocation"])["reserve"] == {"compute": 2, "qpu": 1}
    kept = allocation_lines.config(workload, Elastic(keep=5), "loop")["allocation"]
    assert kept == {"strategy": "elastic", "keep": 2}


def test_each_strategy_holds_the_nodes_of_a_client(tmp_path: Path) -> None:
    """Those of the reservation too, which ``sfq.slurm`` then requests."""
    one = reading.load(write(tmp_path, WORKLOAD))
    text = WORKLOAD.replace("quantum: {nodes: 1}", "quantum: {nodes: 3}")
    text = text.replace("shots: 500", "shots: 500, nodes: 3")
    three = reading.load(write(tmp_path, text))
    (application,) = random_draws.applications(three, 0)
    for strategy in (CoScheduled(), Reserved(), PerStep(), Elastic()):
        assert strategy.holds(application)["quantum"] == 3
        held = [
            measured.mean("quantum-node-seconds")
            for workload in (one, three)
            if not isinstance(measured := experiment.run(workload, strategy, []), str)
        ]
        assert held[1] == pytest.approx(3 * held[0])
        services = mapping(allocation_lines.config(three, strategy, "loop")["services"])
        assert mapping(services["qpu"])["nodes"] == "3"


def test_applications_that_wait_for_one_another(tmp_path: Path) -> None:
    """Two keep the two nodes that both need for the clients of their quantum phases."""
    text = WORKLOAD.replace("partition: quantum", "partition: compute")
    text = text.replace("repeats: 2", "count: 2")
    workload = reading.load(write(tmp_path, text))
    kept, per_step = (
        experiment.run(workload, one, []) for one in (Elastic(keep=1), PerStep())
    )
    assert isinstance(kept, experiment.Result)
    assert isinstance(per_step, experiment.Result)
    # until the time limits of these allocations, twice the expected time
    assert kept.mean("wall") > 2 * per_step.mean("wall")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seconds: 100", "seconds: -1", "phases[0].seconds -1: expected 1e-09"),
        (", seconds: 100", "", "phases[0].seconds: missing"),
        (
            "seconds: 100",
            "seconds: .inf",
            "phases[0].seconds inf: expected a finite number",
        ),
        (
            "seconds: 100",
            'seconds: "100"',
            "phases[0].seconds '100': expected a number",
        ),
        ("nodes: 2", "nodes: 5", "phases[0].nodes 5: partition compute has 4"),
        ("nodes: 2", "nodes: 2, least: 3", "phases[0].least 3: more than nodes, 2"),
        (
            "nodes: 2",
            "node: 2",
            "phases[0].node: unknown key 'node', did you mean 'nodes'?",
        ),
        ("shots: 500", "", "phases[1]: expected either seconds or shots"),
        (
            "repeats: 2",
            "margin: 3\n    limit_seconds: 9",
            "loop: expected either margin or limit_seconds",
        ),
        (
            "shots: 500",
            "shots: 500, tasks: 2",
            "phases[1].tasks: only for phases on nodes",
        ),
        ("nodes: 2", "nodes: 2, jobs: 2", "phases[0].jobs: only for phases on a QPU"),
        (
            "shots: 500",
            "shots: 500, nodes: 2",
            "phases[1].nodes 2: partition quantum has 1",
        ),
        (", shot_seconds: 0.1", "", "phases[1].shots 500: qpu has no shot_seconds"),
        (
            "qpu: qpu",
            "qpu: qpo",
            "phases[1].qpu: unknown QPU 'qpo', did you mean 'qpu'?",
        ),
        (
            "partition: quantum",
            "partition: q",
            "qpus.qpu.partition: unknown partition 'q'",
        ),
        (
            "repeats: 2",
            "strategy: x",
            "applications.loop.strategy: unknown key 'strategy'",
        ),
        (
            "price: 100",
            "maintenance: [{at_seconds: 0, seconds: 30, every_seconds: 80}]",
            "phases[1]: longer than the time between two maintenance windows of qpu",
        ),
        (
            "price: 100",
            "failures: {between_seconds: 50, repair_seconds: 1}",
            "phases[1]: longer than the mean time between two failures of qpu",
        ),
        (
            "price: 100",
            "policy: {type: fair-shares}",
            "qpus.qpu.policy: unknown policy 'fair-shares', did you mean 'fair-share'?",
        ),
        (
            "price: 100",
            "policy: {type: fair-share, half_life: 2}",
            "qpus.qpu.policy: unknown key 'half_life'",
        ),
        (
            "  quantum: {nodes: 1}",
            "  quantum: {nodes: 1}\n  qpu:qpu: {nodes: 1}",
            "partitions.qpu:qpu: the vQPUs of qpu are counted by this name",
        ),
        (
            "repeats: 2",
            "repeats: 2, count: 9, per_hour: 32",
            "qpus.qpu: the applications and others need 3840 s of QPU time per hour, "
            "and there are 3600",
        ),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in WORKLOAD
    text = WORKLOAD.replace(old, new).replace("repeats: 2, ", "repeats: 2\n    ")
    path = write(tmp_path, text.replace("count: 9, ", "count: 9\n    "))
    with pytest.raises(ValidationErrors) as caught:
        reading.load(path)
    (line,) = caught.value.lines
    assert line.startswith(f"{path}: ")
    assert message in line


def test_clients_on_the_host_of_the_driver_have_no_nodes(tmp_path: Path) -> None:
    text = WORKLOAD.replace("partition: quantum, ", "")
    text = text.replace("shots: 500", "shots: 500, nodes: 2")
    with pytest.raises(ValidationErrors) as caught:
        reading.load(write(tmp_path, text))
    (line,) = caught.value.lines
    assert "phases[1].nodes: the QPU has no partition, so its client runs on" in line


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "background: {jobs: [{per_hour: 10, nodes: 3, most_nodes: 9, seconds: 9}]}",
            "background.jobs[0].most_nodes 9: partition compute has 4",
        ),
        (
            "background: {jobs: [{per_hour: 60, nodes: 4, seconds: 70}]}",
            "partitions.compute.nodes 4: the applications and the jobs of others need "
            "4.667 on average",
        ),
        (
            "background: {quantum: [{per_hour: 60, seconds: 60}]}",
            "qpus.qpu: the applications and others need 3600 s of QPU time per hour",
        ),
        (
            "background: {quantum: [{per_hour: 1, seconds: 90}]}",
            "background.quantum[0].seconds 90.0: longer than the mean time between two",
        ),
        (
            "strategies: [{type: per-step}, {type: elastic, kepe: 1}]",
            "strategies[1].kepe: unknown key 'kepe', did you mean 'keep'?",
        ),
        (
            "strategies: [{type: elastic, keep: -1}]",
            "strategies[0].keep -1: expected 0",
        ),
        ("repetitions: 1", "repetitions 1: expected 2 or more"),
        (
            "strategies: [{type: elastic, keep: 3, max: 2}]",
            "].keep 3: more than max, 2",
        ),
        (
            "strategies: [{type: per-step}, {type: per-step}]",
            "per-step is there already",
        ),
        ("repetitions: 99999", "repetitions 99999: expected 10000 or less"),
        ("scheduling: {queue_seconds: 1.0e-9}", "expected 0, or 0.1 or more"),
    ],
)
def test_more_that_cannot_be(tmp_path: Path, more: str, message: str) -> None:
    failures = "failures: {between_seconds: 80, repair_seconds: 1}"
    text = WORKLOAD.replace("price: 100", failures)
    with pytest.raises(ValidationErrors) as caught:
        reading.load(write(tmp_path, f"{text}{more}\n"))
    (line,) = caught.value.lines
    assert message in line
    assert "(known: )" not in line, "names no key that there is"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("repeats: 2", "repeats: 600000", "loop: the applications have 1,200,000 "),
        (
            "repeats: 2",
            "repeats: 9\n    count: 1000000",
            "18,000,000 tasks and QPU jobs",
        ),
        (
            "nodes: 2, seconds",
            "tasks: 1000000, seconds",
            "2,000,002 tasks and QPU jobs",
        ),
        ("shots: 500", "shots: 500, jobs: 1000000", "2,000,002 tasks and QPU jobs"),
        ("seconds: 100", "seconds: 1.0e+300", "seconds 1e+300: expected 1e+09 or less"),
        ("seconds: 100", "seconds: 1.0e-320", "seconds 1e-320: expected 1e-09 or more"),
        ("seconds: 100", "seconds: 1, spread: 1.0e+200", "expected 1000 or less"),
    ],
)
def test_what_would_not_end_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in WORKLOAD
    with pytest.raises(ValidationErrors, match=re.escape(message)):
        reading.load(write(tmp_path, WORKLOAD.replace(old, new)))


def test_more_jobs_of_others_than_can_be_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_draws, "MOST_JOBS", 50)
    text = (
        f"{WORKLOAD}background: {{jobs: [{{per_hour: 60, seconds: 9}}], "
        "quantum: [{per_hour: 9, seconds: 9}], warm_up_seconds: 7200}\n"
    )
    workload = reading.load(write(tmp_path, text))
    with pytest.raises(InputError, match="others submit more than 50 jobs in 1 h"):
        experiment.run(workload, CoScheduled(), [])


def test_the_gap_before_the_applications_is_no_gap(tmp_path: Path) -> None:
    """A job of others ends 990 s before them; they leave the QPU idle once."""
    trace = "# sfq-qpu-trace: 1\nsubmitted,device_seconds\n0,10\n1010,5\n"
    (tmp_path / "qpu.csv").write_text(trace)
    traces = "quantum_traces: [{file: qpu.csv}]"
    text = f"{WORKLOAD}background: {{warm_up_seconds: 1000, {traces}}}\n"
    workload = reading.load(write(tmp_path, text))
    recorded = reading.recorded(workload, tmp_path / "workload.yml")
    result = experiment.run(workload, CoScheduled(), recorded)
    assert isinstance(result, experiment.Result)
    # between its two QPU jobs; the other's second one waits for the lease
    assert result.mean("gap") == pytest.approx(100)


def test_a_trace_is_load(tmp_path: Path) -> None:
    """One job holds three of four nodes for 1,000 s, from 100 s before the applications."""
    rest = "3 -1 -1 3 1000 -1 1 1 1 -1 1 -1 -1 -1\n"
    # the first job is at 0
    text = f"1 50 0 10 {rest}2 450 0 1000 {rest}"
    (tmp_path / "jobs.swf").write_text(text)
    traces = "[{file: jobs.swf, from_seconds: 300}]"
    text = f"{WORKLOAD}background: {{warm_up_seconds: 200, traces: {traces}}}\n"
    workload = reading.load(write(tmp_path, text))
    recorded = reading.recorded(workload, tmp_path / "workload.yml")
    result = experiment.run(workload, CoScheduled(), recorded)
    assert isinstance(result, experiment.Result)
    job_seconds = workload.overheads.job_seconds
    assert result.mean("wall") == pytest.approx(900 + 320)
    assert job_seconds > 0
