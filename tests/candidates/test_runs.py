"""Quantum candidates in real runs of StreamFlow, inside a loop, with QPUs that fail."""

from __future__ import annotations

import json
import re
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sf_quantum.files import JSON, mapping
from sf_quantum.files import number as as_number
from sf_quantum.reporting.runs import Run
from tests.benchmarks.candidates import Faults, prepare, run
from tests.support import forking
from tests.support.candidate_runs import (
    bind,
    candidate,
    decisions,
    outcome,
    reasons,
    samples,
    scatter,
    summaries,
    where,
)
from tests.support.forking import BIN
from tests.support.journals import Event
from tests.support.service_process import QpuService
from tests.support.waiting import SECONDS

if TYPE_CHECKING:
    from tests.support.projects import Project

pytestmark = pytest.mark.process

Until = Callable[[Callable[[], object], str], None]
Serve = Callable[..., QpuService]
# minutes on the device, so that a job is certainly there when something happens
SLOW = ("--technology", "neutral-atom", "--time-scale", "1")
FAST = ("--time-scale", "0")
SOLVE = 'sfq solve --problem "$(dirname "$0")/problem.json" --output out --reads 5'


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts services that do not outlive the test."""
    made: list[QpuService] = []

    def start(*options: str) -> QpuService:
        made.append(QpuService(tmp_path / f"service{len(made)}", *options))
        made[-1].start()
        return made[-1]

    yield start
    for service in made:
        service.kill()


def _rest(project: Project, service: QpuService, **config: JSON) -> None:
    project.deployment("qpu", "sfq.rest", wraps="host", url=service.url, **config)


def _ended_well(project: Project) -> None:
    """The same kind of result, whoever made it."""
    assert outcome(project) == "completed", project.log
    told = samples(project)
    assert told["type"] == "SampleSet"
    info = told["info"]
    assert isinstance(info, dict)
    on_qpu = where(project)[-1] == "qpu"
    # the samples say what really ran
    assert (info["qpu"] is not None) == on_qpu


def test_a_qpu_that_is_free_takes_it(project: Project) -> None:
    project.deployment("qpu", "sfq.emulator", wraps="host", timeScale=0)
    candidate(project, variables="variables", maxVariables=2)
    assert project.run() == 0
    assert where(project) == ["qpu", "qpu"]
    assert reasons(project) == ["qpu is free"] * 2
    _ended_well(project)
    assert "/loop/solve/0.0 on qpu: qpu is free" in project.log


def test_a_problem_that_is_too_large_goes_to_the_classical_place(
    project: Project,
) -> None:
    project.deployment("qpu", "sfq.emulator", wraps="host", qubits=1)
    candidate(project, variables="variables")
    assert project.run() == 0
    assert where(project) == ["cpu", "cpu"]
    assert set(reasons(project)) == {"qpu takes up to 1 variables, the problem has 2"}
    _ended_well(project)


def test_a_qpu_that_is_closed_before_the_start(project: Project, serve: Serve) -> None:
    service = serve(*FAST)
    service.ask("POST", "/v1/device/close", {"message": "calibration"})
    _rest(project, service)
    candidate(project)
    assert project.run() == 0
    assert where(project) == ["cpu", "cpu"]
    assert set(reasons(project)) == {
        "qpu is offline: the QPU is closed: calibration",
    }
    _ended_well(project)


def test_a_qpu_that_is_closed_in_mid_job(
    project: Project, serve: Serve, until: Until
) -> None:
    service = serve(*SLOW)
    _rest(project, service)
    candidate(project)
    driver = project.start()
    until(lambda: service.jobs() == ["Running"], "the job on the QPU")
    service.ask("POST", "/v1/device/close", {"message": "helium is low"})
    assert driver.wait(SECONDS) == 0
    assert where(project) == ["cpu", "cpu"]
    _ended_well(project)
    first, second, third = reasons(project)
    assert first == "qpu is free"
    assert second.startswith("qpu failed an earlier attempt of this job (Job /loop")
    assert "lost its lease of QPU qpu" in second
    assert "helium is low" in second
    assert third.startswith("qpu is in cooldown for")
    assert service.held() == []
    assert service.jobs() == ["Cancelled"]


def test_a_service_that_dies_in_mid_job(
    project: Project, serve: Serve, until: Until
) -> None:
    project.deployment(
        "qpu", "sfq.emulator", wraps="host", technology="neutral-atom", timeScale=1
    )
    candidate(project)
    driver = project.start()
    until(project.on_qpu, "the job on the QPU")
    (service,) = project.commands("sfq serve")
    service.kill()
    assert driver.wait(SECONDS) == 0
    assert where(project) == ["cpu", "cpu"]
    _ended_well(project)
    assert "qpu failed an earlier attempt" in reasons(project)[1]
    # and is not asked during its cooldown
    assert "qpu is in cooldown for" in reasons(project)[2]


def test_a_lease_that_expires(project: Project, serve: Serve, tmp_path: Path) -> None:
    config = tmp_path / "service.yml"
    # long enough for a slow machine to come to the QPU job, which takes minutes
    config.write_text(json.dumps({"leases": {"total_seconds": 6}}))
    _rest(project, serve("--config", str(config), *SLOW))
    candidate(project, rounds=1)
    assert project.run() == 0
    assert where(project) == ["cpu"]
    _ended_well(project)
    # before the QPU job, on a machine that is slower yet
    assert "lease has ended: its time is over" in reasons(project)[1]


def test_a_lease_that_ends_before_the_job_uses_it(
    project: Project, serve: Serve, tmp_path: Path, until: Until
) -> None:
    config = tmp_path / "service.yml"
    config.write_text(json.dumps({"leases": {"total_seconds": 0.7}}))
    service = serve("--config", str(config), *FAST)
    _rest(project, service)
    gate = project.folder / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.02; done"
    candidate(project, rounds=1, script=f'{wait}\nexec sfq solve "$@"')
    driver = project.start()
    until(lambda: service.ask("GET", "/v1/leases?closed=true"), "a lease")
    until(lambda: not service.held(), "the lease's end")
    gate.touch()
    assert driver.wait(SECONDS) == 0
    assert where(project) == ["cpu"]
    _ended_well(project)
    assert "the lease has ended: its time is over" in reasons(project)[1]


def test_a_command_that_ends_well_without_its_output(
    project: Project, serve: Serve
) -> None:
    _rest(project, serve(*FAST))
    lose = '[ -z "${QRMI_JOB_ID:-}" ] || rm samples.json'
    candidate(project, script=f'sfq solve "$@"\n{lose}')
    assert project.run() == 0
    # the QPU does not rest: the output may be the step's own fault
    told = [d["targets"] for d in decisions(project)]
    assert told == [["qpu"], ["cpu"]] * 2
    words = "(exit status 0, but outputs are missing)"
    assert all(why.endswith(words) for why in reasons(project)[1::2])
    _ended_well(project)


def test_a_job_that_fails_is_said_in_one_line(project: Project, serve: Serve) -> None:
    _rest(project, serve(*FAST, "--faults", '{"fail": 1}'))
    candidate(project, cooldown=0)
    project.debug = False
    assert project.run() == 0
    assert where(project) == ["cpu", "cpu"]
    _ended_well(project)
    assert [d["quantum"] for d in decisions(project)] == [True, False] * 2
    said = "/loop/solve/0.1 failed on qpu and is retried: exit status 75, sfq solve:"
    assert said in project.log
    assert "the QPU failed" in project.log
    assert "Traceback" not in project.log


def test_a_target_that_failed_rests(project: Project, serve: Serve) -> None:
    _rest(project, serve(*FAST, "--faults", '{"fail": 1}'))
    candidate(project)
    assert project.run() == 0
    assert [d["quantum"] for d in decisions(project)] == [True, False, False]
    assert reasons(project)[2].startswith("qpu is in cooldown for ")


def test_a_budget_that_is_gone(project: Project, serve: Serve) -> None:
    # an annealer's job of five reads is charged 18.4 ms
    _rest(project, serve(*FAST))
    candidate(project, rounds=3, budget={"qpuSeconds": 0.04}, costs={"qpu": 2})
    assert project.run() == 0
    assert where(project) == ["qpu", "qpu", "cpu"]
    _ended_well(project)
    assert reasons(project)[2] == (
        "qpu would exceed the run's budget: 0.0031 of 0.04 QPU seconds left"
    )


def test_a_first_run_keeps_a_budget_below_a_jobs_cost(project: Project) -> None:
    # its service starts with its first job; a job of five reads is charged 18.4 ms
    project.deployment("qpu", "sfq.emulator", wraps="host")
    candidate(project, budget={"qpuSeconds": 0.01}, mixed="allow")
    assert project.run() == 0
    assert where(project) == ["cpu", "cpu"]
    assert summaries(project) == ["loop/solve: 2 on cpu (budget below a job's cost)"]
    assert [event for event in project.events() if event["event"] == "qpu"] == []


def test_a_run_says_that_its_budget_is_exceeded(project: Project, serve: Serve) -> None:
    _rest(project, serve(*FAST))
    # two QPU jobs of 18.4 ms each, where one is expected
    twice = 'sfq solve "$@"\nexec sfq solve "$@" --seed 7'
    candidate(project, script=twice, budget={"qpuSeconds": 0.03}, mixed="allow")
    assert project.run() == 0
    assert where(project) == ["qpu", "cpu"]
    excess = "qpu may not be used: the run's budget of 0.03 QPU seconds is exceeded by "
    assert reasons(project)[1] == f"{excess}0.0069, jobs that run included"
    said = "the budget of the run is exceeded: 0.0368986 of 0.03 QPU seconds used"
    assert f"\nwarning: {said}\n" in str(Run(project.folder).report())
    assert f"Filter candidate: {said}" in project.log


def test_a_run_says_that_a_cost_is_not_limited(project: Project, serve: Serve) -> None:
    _rest(project, serve(*FAST))
    candidate(project, rounds=2, budget={"cost": 0.001})
    assert project.run() == 0
    assert where(project) == ["qpu", "qpu"]
    said = (
        "the cost of a QPU second of qpu is unknown, so budget.cost does not limit it"
    )
    assert (
        str(Run(project.folder).report()).count(f"\nwarning: Filter candidate: {said}")
        == 1
    )


def test_bad_input_is_not_tried_again(project: Project) -> None:
    project.deployment("qpu", "sfq.emulator", wraps="host")
    candidate(project, rounds=1)
    (project.folder / "problem.json").write_text('{"no": "bqm"}')
    project.debug = False
    assert project.run() != 0
    assert len(decisions(project)) == 2  # only the QPU might have refused it
    assert "is not retried, because its input is invalid" in project.log
    assert "key 'bqm' is missing" in project.log
    assert "Traceback" not in project.log


def test_a_job_that_its_qpu_refuses_runs_elsewhere(
    project: Project, serve: Serve
) -> None:
    _rest(project, serve(*FAST, "--qubits", "1"))
    candidate(project, rounds=2)
    assert project.run() == 0
    assert where(project) == ["cpu", "cpu"]
    refused = [one for one in reasons(project) if "qpu cannot run this job" in one]
    assert len(refused) == 2  # the QPU, which may run others, is not in cooldown
    assert "do not fit on 1 qubits" in refused[0]


def test_fail_does_not_try_again(project: Project, serve: Serve) -> None:
    _rest(project, serve(*FAST, "--faults", '{"fail": 1}'))
    candidate(project, rounds=1, onFailure="fail")
    assert project.run() != 0
    assert len(decisions(project)) == 1
    assert "filter candidate says onFailure: fail" in project.log
    assert outcome(project) == "failed"


def test_without_a_failure_manager_the_filter_warns(project: Project) -> None:
    project.deployment("qpu", "sfq.emulator", wraps="host")
    candidate(project)
    del project.extra["failureManager"]
    assert project.run() == 0
    assert project.log.count("onFailure: fallback needs a failureManager") == 1


def test_a_classical_place_is_taken_as_long_as_one_is_free(project: Project) -> None:
    project.deployment("qpu", "sfq.emulator", wraps="host")
    candidate(project, prefer="classical")
    assert project.run() == 0
    assert where(project) == ["cpu", "cpu"]
    assert reasons(project) == ["cpu is free"] * 2


ENDS = re.compile(r"(\w+) would end in ([\d.]+) s")
# of a job in the queue; a machine that stands still for so long fails any test
OCCUPIED_SECONDS = 200.0


def test_the_earlier_end_as_the_queue_grows_and_drains(
    project: Project, serve: Serve, until: Until
) -> None:
    service = serve("--vqpus", "2", "--time-scale", "30")
    _rest(project, service)
    # half a second on the QPU, or four minutes in its queue, against four seconds beside it
    solve = '[ -n "${QRMI_JOB_ID:-}" ] || sleep 4\nexec sfq solve "$@"'
    candidate(project, rounds=6, prefer="earliest", script=solve)
    gates = project.folder / "gates"
    gates.mkdir()
    driver = project.start()

    def next_round() -> None:
        done = len(where(project))
        (gates / str(done - 1)).touch()
        until(lambda: len(where(project)) > done, f"round {done + 1}")

    until(lambda: where(project), "the first round")
    next_round()
    next_round()
    # each was measured once
    assert where(project)[:2] == ["qpu", "cpu"]
    occupant = service.occupy()
    next_round()
    service.release(occupant)
    next_round()
    service.occupy()
    next_round()
    # on a machine that stood still for a while, each may take longer than it should
    ends = [
        {name: float(seconds) for name, seconds in ENDS.findall(reason)}
        for reason in reasons(project)[2:]
    ]
    assert where(project)[2:] == [
        min(told, key=lambda name: told[name]) for told in ends
    ]
    assert [told["qpu"] > OCCUPIED_SECONDS for told in ends] == [False, True] * 2
    (gates / "5").touch()
    assert driver.wait(SECONDS) == 0
    _ended_well(project)


def test_ten_qpus_of_which_nine_do_not_answer(project: Project, serve: Serve) -> None:
    with ExitStack() as stack:
        names = [f"q{number}" for number in range(9)]
        for name in names:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            project.deployment(name, "sfq.rest", wraps="host", url=url)
        _rest(project, serve(*FAST))
        candidate(project)
        targets: list[JSON] = [{"deployment": n} for n in [*names, "qpu", "cpu"]]
        bind(project, {"/loop/solve": targets})
        assert project.run() == 0
    assert where(project) == ["qpu", "qpu"]
    # the second decision does not wait for them
    again = re.findall(
        r"QPU q\d did not answer in time and is queried again", project.log
    )
    assert len(again) == 9
    assert "QPU q0 did not answer within 2 s; it is considered offline" in project.log


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name, since the emulator's socket is made in it."""
    with tempfile.TemporaryDirectory(prefix="sfqt", dir="/tmp") as folder:
        yield Path(folder)


def test_the_workflow_outlives_a_fault_in_each_iteration(
    short: Path,
) -> None:
    """``tests/benchmarks/candidates.py`` in short, on a machine that does other things."""
    limit = 4
    prepare(short, 600, limit, timeScale=5)
    tools = f"{forking.stand_ins()}:{BIN}"
    classical = run(short, "classical.yml", tools=tools)
    faults = Faults(classical.seconds / limit, seed=1)
    done = run(short, "candidates.yml", faults, tools)
    assert (classical.status, done.status) == (0, 0)
    assert faults.closed > 0
    solved = [row for row in done.solved if row.status == "completed"]
    assert len(solved) == limit
    assert all(row.why for row in done.solved)
    summary = json.loads((short / "out" / "summary.json").read_text())
    on_qpu = [told["qpu"] is not None for told in summary["per_iteration"]]
    assert on_qpu == [row.location == "qpu" for row in solved]
    # an attempt is lost only to a fault
    lost = len(done.solved) - limit
    assert lost <= faults.closed


def test_failures_lead_to_another_qpu_and_then_to_a_host(
    project: Project, serve: Serve
) -> None:
    candidate(project)
    failing = ("--faults", '{"fail": 1}')
    for name, options in (("first", failing), ("second", failing), ("third", ())):
        service = serve(*FAST, *options)
        project.deployment(name, "sfq.rest", wraps="host", url=service.url)
    names = ("first", "second", "cpu")
    targets: list[JSON] = [{"deployment": name} for name in names]
    bind(project, {"/loop/solve": targets})
    assert project.run() == 0
    told = [d["targets"] for d in decisions(project)]
    assert told == [["first"], ["second"], ["cpu"], ["cpu"]]
    # and with a limit on attempts that one more QPU would use up
    bind(project, {"/loop/solve": [*targets[:2], {"deployment": "third"}, targets[2]]})
    project.extra["failureManager"] = {"type": "default", "config": {"max_retries": 2}}
    assert project.run() == 0
    told = [d["targets"] for d in decisions(project)]
    assert told[:2] == [["first"], ["cpu"]]
    last = "last attempt (2 of 2); first failed an earlier attempt of this job ("
    assert reasons(project)[1].startswith(last)


def test_hints_reach_the_service(project: Project, serve: Serve) -> None:
    service = serve(*FAST)
    _rest(project, service, pattern="balanced")
    own: JSON = {
        "/loop/solve": {"expectedSeconds": 0.25, "pattern": "qc-heavy", "priority": 0}
    }
    candidate(project, rounds=1, steps=own)
    assert project.run() == 0
    leases = service.ask("GET", "/v1/leases?closed=true")
    assert isinstance(leases, list)
    (lease,) = leases
    assert isinstance(lease, dict)
    assert (lease["expected_seconds"], lease["pattern"]) == (0.25, "qc-heavy")


def test_a_first_scatter_waits_for_the_qpu(project: Project, serve: Serve) -> None:
    # nothing was measured, and no hint was given: the ETA of all but one is unknown
    _rest(project, serve("--vqpus", "1", *FAST))
    scatter(project, 6, SOLVE, maxWait=600)
    assert project.run() == 0, project.log
    assert summaries(project) == ["solve: 6 on qpu"]


def test_a_lease_of_another_is_waited_for(
    project: Project, serve: Serve, until: Until
) -> None:
    service = serve("--vqpus", "1", *FAST)
    other = service.lease()
    _rest(project, service)
    candidate(project, rounds=1, maxWait=600)
    driver = project.start()
    until(lambda: _waits(project), "a job that waits for its lease")
    service.release(other)
    assert driver.wait(SECONDS) == 0
    assert where(project) == ["qpu"]
    said = "qpu has no known ETA and is waited for, 600 s at most"
    assert reasons(project) == [said]


def test_a_job_that_waited_in_vain_does_not_hold_up_others(
    project: Project, serve: Serve
) -> None:
    service = serve("--vqpus", "1", *FAST)
    service.lease()
    _rest(project, service)
    candidate(project, rounds=2, maxWait=0.5)
    assert project.run() == 0, project.log
    assert where(project) == ["cpu", "cpu"]
    # the second round waits for the QPU as the first did: it has not failed
    assert [d["targets"] for d in decisions(project)] == [["qpu"], ["cpu"]] * 2
    said = "qpu did not start this job within 0.5 s (maxWait)"
    assert reasons(project)[1::2] == [said] * 2
    why = "loop/solve: 2 on cpu (not started within maxWait)"
    assert summaries(project) == [why]


def _waits(project: Project) -> bool:
    return any(
        event["event"] == "lease" and event["status"] == "waiting"
        for event in project.events()
    )


def _open_a_gate(
    project: Project,
    serve: Serve,
    until: Until,
    action: tuple[str, str],
    *,
    mixed: str = "warn",
    max_wait: float = 600.0,
) -> int:
    """Run two rounds, open or close the QPU before each, and tell how the run ended."""
    service = serve(*FAST)
    _rest(project, service)
    candidate(project, mixed=mixed, maxWait=max_wait)
    gates = project.folder / "gates"
    gates.mkdir()
    service.ask("POST", f"/v1/device/{action[0]}", {"message": "laser"})
    driver = project.start()
    until(lambda: where(project), "the first round")
    service.ask("POST", f"/v1/device/{action[1]}", {"message": "laser"})
    for number in range(2):
        (gates / str(number)).touch()
    return driver.wait(SECONDS)


def test_jobs_of_both_kinds_are_warned_of(
    project: Project, serve: Serve, until: Until
) -> None:
    assert _open_a_gate(project, serve, until, ("open", "close")) == 0
    assert where(project) == ["qpu", "cpu"]
    assert summaries(project) == [
        "warning: loop/solve: 1 on qpu, 1 on cpu (QPU closed); results of QPUs and of "
        "classical targets are mixed"
    ]
    said = "jobs of step /loop/solve run on QPUs and on classical targets"
    assert project.log.count(said) == 1


def test_mixed_allow_is_quiet(project: Project, serve: Serve, until: Until) -> None:
    closing = ("open", "close")
    assert _open_a_gate(project, serve, until, closing, mixed="allow") == 0
    assert summaries(project) == ["loop/solve: 1 on qpu, 1 on cpu (QPU closed)"]
    assert "run on QPUs and on classical targets" not in project.log


def test_mixed_refuse_ends_a_run_whose_qpu_is_closed(
    project: Project, serve: Serve, until: Until
) -> None:
    project.debug = False
    closing = ("open", "close")
    ended = _open_a_gate(project, serve, until, closing, mixed="refuse", max_wait=0.5)
    assert ended != 0
    assert where(project) == ["qpu"]
    assert outcome(project) == "failed"
    said = (
        "No target is left for job /loop/solve/0.1: qpu did not start this job within "
        "0.5 s (maxWait); cpu is left out, since other jobs of this step ran on QPUs "
        "(mixed: refuse)"
    )
    failures = [e for e in project.events() if said in str(e.get("error"))]
    assert failures[0]["job"] == "/loop/solve/0.1"
    assert "Traceback" not in project.log


def test_mixed_refuse_keeps_to_the_classical_target(
    project: Project, serve: Serve, until: Until
) -> None:
    opening = ("close", "open")
    assert _open_a_gate(project, serve, until, opening, mixed="refuse") == 0
    assert where(project) == ["cpu", "cpu"]
    assert summaries(project) == [
        "loop/solve: 2 on cpu (1 QPU closed; 1 as the others)"
    ]


@pytest.mark.parametrize("prefer", ["quantum", "classical"])
def test_a_status_2_that_is_a_success_completes_a_candidate(
    project: Project, serve: Serve, prefer: str
) -> None:
    project.deployment("qpu", "sfq.rest", wraps="host", url=serve(*FAST).url)
    scatter(project, 1, f"{SOLVE}; exit 2", prefer=prefer, onFailure="fail")
    run = mapping(mapping(project.steps["solve"])["run"])
    project.steps["solve"] = {
        **mapping(project.steps["solve"]),
        "run": {**run, "successCodes": [2]},
    }
    assert project.run() == 0, project.log
    on = [str(event["deployment"]) for event in project.jobs("solve", "completed")]
    assert on == ["qpu" if prefer == "quantum" else "cpu"]


BUDGET_JOBS = 4


def _costs(service: QpuService) -> float:
    """What the service charges for a job of as many reads as ``sfq solve`` takes."""
    device = service.ask("GET", "/v1/device?reads=1000")
    assert isinstance(device, dict)
    return float(str(device["job_qpu_seconds"]))


@pytest.mark.parametrize("emulated", [False, True])
def test_a_budget_takes_as_many_jobs_as_fit(
    project: Project, serve: Serve, emulated: bool
) -> None:
    service = serve(*FAST, "--vqpus", "6")
    if emulated:  # its service starts with the first job
        project.deployment("qpu", "sfq.emulator", wraps="host", timeScale=0, vqpus=6)
    else:
        _rest(project, service)
    most = (BUDGET_JOBS + 0.5) * _costs(service)
    budget: JSON = {"qpuSeconds": most}
    scatter(project, 6, SOLVE.replace(" --reads 5", ""), budget=budget)
    assert project.run() == 0, project.log
    (line,) = summaries(project)
    assert line.startswith("warning: solve: ")
    # A job may be over, and have cost less than was expected, before another is decided.
    spent = [
        as_number(e["qpu_seconds"]) for e in project.events() if e["event"] == "qpu"
    ]
    assert sum(spent) <= most
    assert len(spent) == BUDGET_JOBS or (emulated and len(spent) == BUDGET_JOBS + 1)
    assert f"{len(spent)} on qpu, {6 - len(spent)} on cpu (budget spent)" in line


# An annealer's job of the default number of reads is charged 0.104 s, so two of them fit.
TWO_JOBS: JSON = {"qpuSeconds": 0.25}
SOLVE_FULLY = SOLVE.replace(" --reads 5", "")


def test_filters_of_a_run_share_its_budget(project: Project, serve: Serve) -> None:
    _rest(project, serve(*FAST, "--vqpus", "4"))
    project.step("again", SOLVE_FULLY, "qpu", scatter=2)
    scatter(project, 2, SOLVE_FULLY)
    targets: list[JSON] = [{"deployment": name} for name in ("qpu", "cpu")]
    bound = {"/solve": targets, "/again": targets}
    bind(project, bound, ("candidate", "other"), budget=TWO_JOBS, mixed="allow")
    assert project.run() == 0, project.log
    assert len([e for e in project.events() if e["event"] == "qpu"]) == 2


def test_resuming_a_completed_run_keeps_its_budget(
    project: Project, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    _rest(project, serve(*FAST, "--vqpus", "4"))
    scatter(project, 4, SOLVE_FULLY, budget=TWO_JOBS, mixed="allow")
    assert project.run() == 0, project.log
    assert len([e for e in project.events() if e["event"] == "qpu"]) == 2
    monkeypatch.setenv("SFQ_RESUME", "1")
    assert project.run() == 0, project.log
    # The budget has too little left, so no classical result is replaced.
    assert [e for e in project.events() if e["event"] == "qpu"] == []
    reused = [e["run"] for e in project.events() if e["event"] == "reuse"]
    assert len(reused) == 4
    assert None not in reused


def test_a_budget_of_nothing_is_named_and_spends_nothing(
    project: Project, serve: Serve
) -> None:
    _rest(project, serve(*FAST))
    scatter(project, 2, SOLVE, budget={"qpuSeconds": 0})
    assert project.run() == 0, project.log
    assert summaries(project) == ["solve: 2 on cpu (budget is 0)"]
    (reason,) = {*reasons(project)}
    assert reason == "qpu may not be used: the run's budget is 0 QPU seconds"


def test_a_free_qpu_runs_a_job_that_does_not_wait(
    project: Project, serve: Serve
) -> None:
    _rest(project, serve(*FAST))
    scatter(project, 1, SOLVE, maxWait=0)
    assert project.run() == 0, project.log
    assert summaries(project) == ["solve: 1 on qpu"]


def test_a_hint_of_another_time_scale_sends_no_job_away(
    project: Project, serve: Serve
) -> None:
    _rest(project, serve(*FAST))
    scatter(project, 4, SOLVE, maxWait=60, expectedSeconds=210)
    assert project.run() == 0, project.log
    assert summaries(project) == ["solve: 4 on qpu"]
    remark = "expectedSeconds: 210 is not used, since the service of qpu estimates "
    assert sum(remark in reason for reason in reasons(project)) == 1
    assert project.log.count(remark) == 1


@pytest.mark.parametrize(
    ("state", "reuses", "expected"),
    [("open", False, ["qpu"]), ("open", True, []), ("close", False, [])],
)
def test_a_classical_result_is_not_reused_for_an_open_qpu(
    project: Project,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    reuses: bool,
    expected: list[str],
) -> None:
    service = serve(*FAST)
    service.ask("POST", "/v1/device/close", {"message": "laser"})
    _rest(project, service)
    script = f"{SOLVE}\n[ $1 -eq 0 ] || [ -e {project.folder}/go ]"
    scatter(project, 2, script, mixed="allow", reuseClassical=reuses)
    # the second job fails, so that the run is one to resume
    assert project.run() != 0
    first = "/solve/0.0"
    assert [e["deployment"] for e in _completed(project, first)] == ["cpu"]
    (project.folder / "go").touch()
    service.ask("POST", f"/v1/device/{state}", {"message": "laser"})
    monkeypatch.setenv("SFQ_RESUME", "1")
    assert project.run() == 0, project.log
    assert [e["deployment"] for e in _completed(project, first)] == expected
    (reuse,) = (
        e for e in project.events() if e["event"] == "reuse" and e["job"] == first
    )
    if expected:
        assert reuse["reason"] == "it ran on cpu, and qpu is free"
    assert (reuse["run"] is None) == bool(expected)


def _completed(project: Project, job: str) -> list[Event]:
    return [e for e in project.jobs("solve", "completed") if e["job"] == job]
