"""What is learnt from journals, and what a filter remembers of its jobs."""

from __future__ import annotations

import asyncio
import fcntl
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sf_quantum.candidates.attempts import (
    Attempts,
    Capacity,
    SharedState,
    expected_wait,
    shared_state,
)
from sf_quantum.candidates.decision import (
    Basis,
    Budget,
    CandidateJob,
    ClassicalTarget,
    Decision,
    Exclusion,
    Obstacle,
    QuantumTarget,
    Spending,
    StepRules,
    decide,
    explain,
)
from sf_quantum.candidates.history import MAX_JOBS, MAX_RUNS, History, JobTimes
from sf_quantum.files import JSON
from sf_quantum.journal import Journal, events
from sf_quantum.qpu import QpuStatus
from tests.support.journals import Event, append, typed, write
from tests.support.waiting import SECONDS

ONLINE = QpuStatus("q", "annealer", True, "", 50, 1, 0, 0, eta_seconds=0.0)


TO_QPU = Decision(Basis.QPU_PREFERRED, qpu=QuantumTarget("q"))
TO_CPU = Decision(Basis.CLASSICAL_FREE, classical=(ClassicalTarget("c"),))


def attempt(
    start: float, seconds: float, on: str, status: str = "completed", **qpu: JSON
) -> list[Event]:
    """The events of one attempt; with QPU keys, of one with a QPU job."""
    job: Event = {"event": "job", "job": "/s/0", "step": "/s", "tag": "0"}
    place: Event = {"deployment": on, "service": None, "locations": [on]}
    used: Event = {"event": "qpu", "job": "/s/0", "qpu_job": "1"}
    told = [used | qpu] if qpu else []
    return [
        {**job, "time": start, "status": "waiting", "deployment": None},
        {**job, **place, "time": start, "status": "fireable"},
        {**job, **place, "time": start, "status": "running"},
        *({**event, "time": start} for event in told),
        {**job, **place, "time": start + seconds, "status": status},
    ]


def learnt(*attempts: list[Event], budgeted: bool = True) -> History:
    history = History()
    history.add((event, budgeted) for events in attempts for event in typed(events))
    return history


def from_journals(record: Journal) -> History:
    history = History()
    history.add(history.read(record))
    return history


def test_a_step_takes_the_median_of_its_latest_jobs() -> None:
    history = learnt(*(attempt(n, n, "cpu") for n in range(1, 21)))
    assert history.times("/s", "cpu") == JobTimes(0.0, 0.0, 15.5)
    assert history.times("/s", "gpu") is None
    assert history.times("/t", "cpu") is None


def test_failures_teach_nothing_of_how_long_it_takes() -> None:
    assert learnt(attempt(0, 9, "cpu", "failed")).times("/s", "cpu") is None


def test_waiting_does_not_count_as_a_jobs_time() -> None:
    on_qpu = attempt(
        0,
        10.0,
        "q",
        lease_seconds=4.0,
        queued_seconds=3.0,
        ran_seconds=2.0,
        qpu_seconds=20.0,
    )
    assert learnt(on_qpu).times("/s", "q") == JobTimes(2.0, 20.0, 1.0)


def test_a_predicted_wait_replaces_that_of_earlier_jobs() -> None:
    events = attempt(0, 100.0, "c")
    slurm: Event = {"event": "slurm", "time": 99.0, "job": "/s/0", "submitted": 5.0}
    events.insert(-1, {**slurm, "started": 65.0})
    attempts = Attempts({}, cooldown=0)
    attempts.history.add((event, True) for event in typed(events))
    asked = attempts.begin("/s/0", "/s", StepRules())
    then = attempts.classical_target(asked, "c", Capacity())
    assert (then.wait, then.seconds) == (0.0, 100.0)
    now = attempts.classical_target(asked, "c", Capacity(), 500.0)
    assert (now.wait, now.seconds, now.end) == (500.0, 40.0, 540.0)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1))
def test_a_predicted_wait_is_added_to_the_median_run_time(
    jobs: list[tuple[int, int]],
) -> None:
    """Of jobs that waited for nodes and then ran, for whole seconds each."""
    attempts = Attempts({}, cooldown=0)
    for pending, ran in jobs:
        events = attempt(0, pending + ran, "c")
        slurm: Event = {"event": "slurm", "time": 0, "job": "/s/0", "submitted": 0}
        events.insert(-1, {**slurm, "started": pending})
        attempts.history.add((event, True) for event in typed(events))
    asked = attempts.begin("/s/0", "/s", StepRules())
    latest = jobs[-MAX_JOBS:]
    then = attempts.classical_target(asked, "c", Capacity())
    assert then.end == median(sum(job) for job in latest)
    now = attempts.classical_target(asked, "c", Capacity(), 500.0)
    assert now.end == 500.0 + median(ran for _, ran in latest)


def test_what_was_spent_counts_once_whatever_came_of_it() -> None:
    lost = attempt(0, 1.0, "q", "recovery", qpu_seconds=2.0)
    paid = attempt(1, 1.0, "q", qpu="q", qpu_job="7", qpu_seconds=3.0)
    assert learnt(lost, paid).spent() == {"q": 5.0}
    assert learnt(lost, paid).spent("/s") == {"q": 5.0}
    assert learnt(lost, paid).spent("/t") == {}
    assert learnt(paid, budgeted=False).spent() == {}

    def found(seconds: float, qpu_job: str) -> list[Event]:
        told: dict[str, JSON] = {"qpu_seconds": seconds, "qpu_job": qpu_job}
        return attempt(2, 1.0, "q", "completed", qpu="q", found=True, **told)

    # told when it had not ended, and found again when it had
    assert learnt(paid, found(5.0, "7")).spent() == {"q": 5.0}
    # of a driver that was killed before it could write it down
    assert learnt(paid, found(5.0, "8")).spent() == {"q": 8.0}


def _begun(folder: Path, *, resumes: bool = False) -> Iterator[Journal]:
    made = Journal(folder, resumes=resumes)
    made.start("sf.yml", ["w"], {})
    yield made
    made.close()


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Journal]:
    """The journal of a run that goes on."""
    yield from _begun(tmp_path)


@pytest.fixture
def resuming(tmp_path: Path) -> Iterator[Journal]:
    """That of one that resumes earlier runs."""
    yield from _begun(tmp_path, resumes=True)


def _earlier(
    folder: Path,
    name: str,
    end: str | None,
    file: str = "sf.yml",
    *,
    resumes: bool = False,
) -> None:
    events: list[Event] = [
        {"time": 0, "event": "run", "file": file, "resumes": resumes}
    ]
    events += attempt(0, 4.0, "cpu") + attempt(4, 1.0, "q", qpu_seconds=7.0)
    events += [{"time": 9, "event": "end", "status": end}] if end else []
    write(folder / f"2020010{name}T000000Z-1.jsonl", events)


def test_earlier_runs_of_the_same_file_are_remembered(record: Journal) -> None:
    _earlier(record.path.parent, "1", "completed")
    _earlier(record.path.parent, "2", "completed", file="other.yml")
    (record.path.parent / "20200103T000000Z-1.jsonl").write_text("no journal\n")
    history = from_journals(record)
    assert history.times("/s", "cpu") == JobTimes(0.0, 0.0, 4.0)
    # that run is over, so what it spent is its own affair
    assert history.spent() == {}
    for event in attempt(10, 2.0, "cpu"):
        append(record, event)
    history.add(history.read(record))
    history.add(history.read(record))
    took = history.times("/s", "cpu")
    assert took is not None
    assert 1.9 < took.other_seconds < 2.1  # of 4 and of nearly 0


def test_a_qpu_that_does_not_tell_is_known() -> None:
    history = learnt(
        attempt(0, 1.0, "q", qpu_job="7"), attempt(2, 1.0, "a", qpu_job=None)
    )
    assert history.unmetered == {"a"}


# how earlier runs ended, and whether each resumed the one before, the first first
@pytest.mark.parametrize(
    ("runs", "spent"),
    [
        ([(None, False)], 7.0),
        ([("cancelled", False)], 7.0),
        ([("failed", False)], 7.0),
        ([("completed", False)], 7.0),
        ([("completed", False), (None, False)], 7.0),
        ([(None, False)] + [("completed", True)] * MAX_RUNS, 147.0),
        ([(None, False), (None, False)], 7.0),
        ([(None, False), ("failed", True)], 14.0),
        ([("failed", False), ("completed", True), (None, True)], 21.0),
    ],
)
def test_only_a_run_that_resumes_others_goes_on_with_their_budget(
    resuming: Journal, runs: list[tuple[str | None, bool]], spent: float
) -> None:
    for number, (end, resumes) in enumerate(runs, 1):
        _earlier(resuming.path.parent, f"1T{number:06}", end, resumes=resumes)
    assert from_journals(resuming).spent().get("q", 0.0) == spent
    anew = Journal(resuming.path.parent)
    anew.start("sf.yml", ["w"], {})
    try:
        assert from_journals(anew).spent() == {}
    finally:
        anew.close()


def test_a_concurrent_driver_spends_from_its_own_budget(resuming: Journal) -> None:
    _earlier(resuming.path.parent, "1", None)
    _earlier(resuming.path.parent, "2", None)
    (beside,) = resuming.path.parent.glob("20200102*")
    with beside.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        history = from_journals(resuming)
    assert history.spent() == {"q": 7.0}
    # but it teaches how long a job takes
    assert history.times("/s", "q") is not None


def test_other_files_runs_do_not_take_the_place_of_this_ones(record: Journal) -> None:
    folder = record.path.parent
    _earlier(folder, "1", "completed")
    for number in range(MAX_RUNS):
        _earlier(folder, f"2T{number:06}", "completed", file="other.yml")
    history = from_journals(record)
    assert history.times("/s", "cpu") == JobTimes(0.0, 0.0, 4.0)


async def test_decisions_that_overlap_know_what_was_spent(
    resuming: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    _earlier(resuming.path.parent, "1", None)
    attempts, read = Attempts({}, cooldown=0), History.read
    go, has_read = threading.Event(), threading.Event()

    def slow(history: History, record: Journal) -> list[tuple[events.Event, bool]]:
        recorded = read(history, record)
        has_read.set()
        go.wait(SECONDS)
        return recorded

    monkeypatch.setattr(History, "read", slow)
    await attempts.history.update(0.01)
    assert not attempts.history.is_read
    go.set()
    await attempts.history.update(60)
    assert attempts.history.is_read
    assert attempts.spending() == Spending(7.0)
    go.clear()
    has_read.clear()
    await asyncio.gather(attempts.history.update(0.01), attempts.history.update(0.02))
    assert attempts.spending() == Spending(7.0)
    # what is written while another's reading goes on is read after it
    assert await asyncio.to_thread(has_read.wait, 60)
    for event in attempt(9, 1.0, "q", qpu_seconds=2.0):
        append(resuming, event)
    asyncio.get_running_loop().call_later(0.05, go.set)
    await asyncio.gather(attempts.history.update(60), attempts.history.update(60))
    assert attempts.spending() == Spending(9.0)


def test_a_job_that_was_never_measured_is_promised_what_is_left() -> None:
    attempts = Attempts({}, cooldown=60)
    attempts.record_start(attempts.begin("/s/0", "/s", StepRules()), TO_QPU)
    assert attempts.spending().unmeasured
    assert attempts.spending("/s").unmeasured
    assert not attempts.spending("/t").unmeasured
    # its usage is in the journal when it has completed
    attempts.record_exit("/s/0", "q")
    assert attempts.spending().unmeasured
    attempts.record_completion("/s/0")
    assert not attempts.spending().unmeasured
    attempts.record_start(attempts.begin("/s/1", "/s", StepRules()), TO_CPU)
    assert not attempts.spending().unmeasured


def test_a_rested_target_is_not_taken_unasked() -> None:
    attempts = Attempts({}, cooldown=0)
    attempts.record_failure("/other", "q", "helium")
    told = attempts.quantum_target(attempts.begin("/s/0", "/s", StepRules()), "q", None)
    assert (told.cooldown, told.wait) == (Exclusion(Obstacle.NOT_QUERIED), None)


def test_a_job_that_ended_well_without_its_outputs_has_failed() -> None:
    attempts = Attempts({}, cooldown=60)
    attempts.record_start(attempts.begin("/s/0", "/s", StepRules()), TO_QPU)
    attempts.record_exit("/s/0", "q")
    again = attempts.begin("/s/0", "/s", StepRules())
    assert again.number == 2
    told = attempts.quantum_target(again, "q", ONLINE)
    assert told.failed == Exclusion(Obstacle.OUTPUTS_MISSING)
    assert told.cooldown is None
    attempts.record_exit("/s/0", "cpu")
    attempts.record_completion("/s/0")
    assert attempts.begin("/s/0", "/s", StepRules()).number == 1
    assert attempts.failures("/s/0") == {}


@pytest.mark.parametrize(
    ("leases", "queue", "eta", "sent", "seconds", "expected"),
    [
        (0, 0, 0.0, 0, None, 0.0),
        (0, 3, 40.0, 0, None, 40.0),
        # a QPU that tells no ETA
        (0, 0, None, 0, None, 0.0),
        (0, 3, None, 0, 5.0, 15.0),
        (0, 3, None, 0, None, None),
        # no lease is free: one like ours has to end first
        (2, 0, 0.0, 0, 5.0, 5.0),
        (2, 0, 7.0, 0, 5.0, 7.0),
        (2, 0, 0.0, 0, None, None),
        # of our own jobs some have no lease yet
        (1, 0, 0.0, 1, 5.0, 4.0),
        (1, 1, 3.0, 1, 5.0, 3.0),
        (1, 0, 0.0, 1, None, 0.0),
        (1, 0, 0.0, 2, 5.0, 8.0),
        (1, 0, 0.0, 4, 5.0, 16.0),
    ],
)
def test_how_long_a_qpu_lets_one_wait(
    leases: int,
    queue: int,
    eta: float | None,
    sent: int,
    seconds: float | None,
    expected: float | None,
) -> None:
    status = replace(
        ONLINE, vqpus=2, leases=leases, queue_length=queue, eta_seconds=eta
    )
    times = None if seconds is None else JobTimes(4.0, 4.0, seconds - 4.0)
    assert expected_wait(status, sent, times)[0] == expected


@pytest.mark.parametrize(
    ("leases", "queue", "sent", "measured", "known"),
    [
        (0, 0, 0, False, True),
        (1, 1, 1, False, True),
        # all leases are of this run, whose jobs take a known time
        (2, 0, 2, True, True),
        (2, 0, 4, True, True),
        (2, 0, 2, False, False),
        # others have leases, which end nobody knows when
        (2, 0, 1, True, False),
        (2, 0, 0, True, False),
    ],
)
def test_a_wait_for_the_leases_of_others_is_not_known(
    leases: int, queue: int, sent: int, measured: bool, known: bool
) -> None:
    status = replace(
        ONLINE, vqpus=2, leases=leases, queue_length=queue, eta_seconds=3.0
    )
    times = JobTimes(4.0, 4.0, 1.0)
    assert expected_wait(status, sent, times, measured=measured)[1] is known
    assert expected_wait(status, sent, None)[1] is (max(leases, sent) < 2)


@pytest.mark.parametrize("vqpus", [1, 2])
@pytest.mark.parametrize("max_wait", [300.0, 500.0])
@pytest.mark.parametrize("hint", [None, 4.0])
def test_reported_eta_is_a_known_bound_of_the_wait(
    vqpus: int, max_wait: float, hint: float | None
) -> None:
    # without a free lease the wait is longer by an unknown time
    rules = StepRules(max_wait=max_wait, expected_seconds=hint)
    status = replace(ONLINE, vqpus=vqpus, leases=1, queue_length=9, eta_seconds=412.0)
    attempts = Attempts({}, cooldown=60)
    qpu = attempts.quantum_target(attempts.begin("/s/0", "/s", rules), "q", status)
    assert qpu.known_wait == 412
    assert qpu.known_end == 412 + (hint or 0)
    decision = decide(rules, CandidateJob(), [qpu], [ClassicalTarget("c")], now=0)
    if max_wait < 412:
        assert decision.exclusions["q"] == Exclusion(Obstacle.LONG_WAIT, 412, max_wait)
    else:
        later = " or later and is waited for, 500 s at most" if vqpus == 1 else ""
        assert decision.targets == ("q",)
        assert explain(decision) == f"q would start in 412 s{later}"


def test_a_job_that_waited_in_vain_starts_no_cooldown() -> None:
    attempts = Attempts({}, cooldown=60)
    attempts.record_start(attempts.begin("/s/0", "/s", StepRules()), TO_QPU)
    attempts.rule_out("/s/0", "q", Exclusion(Obstacle.WAITED, limit=30.0))
    again = attempts.quantum_target(
        attempts.begin("/s/0", "/s", StepRules()), "q", ONLINE
    )
    assert again.failed == Exclusion(Obstacle.WAITED, limit=30.0)
    assert again.cooldown is None


def test_the_kinds_of_a_step_are_those_of_its_jobs() -> None:
    attempts = Attempts({}, cooldown=0)
    assert attempts.counts_by_kind("/s") == (0, 0)
    for number in range(3):
        attempts.record_start(attempts.begin(f"/s/{number}", "/s", StepRules()), TO_QPU)
    assert attempts.counts_by_kind("/s") == (3, 0)
    attempts.record_exit("/s/0", "q")
    attempts.record_completion("/s/0")
    attempts.record_failure("/s/1", "q", "helium")
    assert attempts.counts_by_kind("/s") == (2, 0)
    attempts.record_start(attempts.begin("/s/1", "/s", StepRules()), TO_CPU)
    assert attempts.counts_by_kind("/s") == (2, 1)
    assert attempts.counts_by_kind("/t") == (0, 0)


TELLING = replace(ONLINE, job_qpu_seconds=0.25, job_run_seconds=0.5)


def expected(
    status: QpuStatus, rules: StepRules, history: History | None = None
) -> tuple[QuantumTarget, str]:
    """What a job is expected to take on a QPU, and what is remarked on its hint."""
    attempts = Attempts({}, cooldown=60, state=SharedState(history))
    attempt = attempts.begin("/s/0", "/s", rules)
    return attempts.quantum_target(attempt, "q", status), attempts.estimates.remark(
        attempt, "q"
    )


def test_first_estimates_are_the_services() -> None:
    told, remark = expected(TELLING, StepRules())
    assert (told.qpu_seconds, remark) == (0.25, "")
    # the service knows nothing of what the job does beside the QPU
    assert told.seconds is None
    several, _ = expected(TELLING, StepRules(qpu_jobs=6))
    assert several.qpu_seconds == 1.5
    unknown, _ = expected(ONLINE, StepRules())
    assert (unknown.qpu_seconds, unknown.seconds) == (None, None)


def test_a_hint_is_for_what_the_service_does_not_tell() -> None:
    hinted, remark = expected(ONLINE, StepRules(expected_seconds=210.0))
    assert (hinted.qpu_seconds, hinted.seconds, remark) == (210.0, 210.0, "")
    told, remark = expected(TELLING, StepRules(expected_seconds=210.0))
    assert (told.qpu_seconds, told.seconds) == (0.25, None)
    assert remark == (
        "expectedSeconds: 210 is not used, since the service of q estimates 0.25 QPU "
        "seconds (0.5 s elapsed) for a job of 1000 reads"
    )
    assert expected(TELLING, StepRules(expected_seconds=0.2))[1] == ""


def test_what_was_measured_comes_before_the_service_and_the_hint() -> None:
    history = learnt(
        attempt(0, 10.0, "q", queued_seconds=3.0, ran_seconds=2.0, qpu_seconds=20.0)
    )
    for status in (ONLINE, TELLING):
        told, _ = expected(status, StepRules(expected_seconds=30.0), history)
        assert (told.qpu_seconds, told.seconds) == (20.0, 2.0 + 5.0)
    # the usage of a QPU that does not tell is not known from earlier jobs
    silent = learnt(attempt(0, 10.0, "q", qpu_job=None))
    told, _ = expected(ONLINE, StepRules(expected_seconds=30.0), silent)
    assert told.qpu_seconds == 30.0


def test_a_job_that_runs_gets_its_share_once_the_service_tells() -> None:
    attempts = Attempts({"q": 2.0}, cooldown=60)
    first = attempts.begin("/s/0", "/s", StepRules())
    attempts.quantum_target(first, "q", ONLINE)
    attempts.record_start(first, TO_QPU)
    assert attempts.spending().unmeasured
    attempts.quantum_target(attempts.begin("/s/1", "/s", StepRules()), "q", TELLING)
    assert attempts.spending() == Spending(0.25, 0.5)


def test_what_is_promised_is_not_promised_again() -> None:
    attempts = Attempts({"q": 0.5}, cooldown=60)
    policy = StepRules(expected_seconds=3.0)
    first = attempts.begin("/s/0", "/s", policy)
    attempts.record_start(first, TO_QPU)
    assert attempts.spending() == Spending(3.0, 1.5)
    assert attempts.spending("/s") == Spending(3.0, 1.5)
    assert attempts.spending("/t") == Spending()
    second = attempts.quantum_target(attempts.begin("/s/1", "/s", policy), "q", ONLINE)
    assert (second.wait, second.load) == (3.0, 1.0)
    attempts.record_completion("/s/0")
    assert attempts.spending() == Spending()
    assert attempts.running_on("q") == []


class _Budgeted:
    """Runs of a file, each resuming the one before, whose jobs use what is estimated."""

    def __init__(self, folder: Path, run: float, step: float) -> None:
        self._folder = folder
        self._rules = StepRules(run=Budget(run), step=Budget(step))
        self._count = 0
        # Jobs on the QPU, with their filter.
        self._sent: dict[str, Attempts] = {}
        #: QPU seconds charged and on their way, by step
        self.used: defaultdict[str, float] = defaultdict(float)
        self._begin()

    def _begin(self) -> None:
        self._record = Journal(self._folder, resumes=True)
        self._record.start("sf.yml", ["w"], {})
        self._filters = [Attempts({}, 0, shared_state()) for _ in range(2)]
        # No job goes to a QPU before.
        self.read()

    def send(self, number: int) -> None:
        """Let a filter decide on a new job of its step."""
        attempts, step = self._filters[number], f"/s{number}"
        self._count += 1
        job = f"{step}/0.{self._count}"
        self._write("job", job, status="waiting")
        asked = attempts.begin(job, step, self._rules)
        candidate = CandidateJob(
            spending_known=attempts.history.is_read,
            run=attempts.spending(),
            step=attempts.spending(step),
        )
        qpu = attempts.quantum_target(asked, "q", TELLING)
        classical = ClassicalTarget("c")
        decision = decide(self._rules, candidate, [qpu], [classical], now=0)
        attempts.record_start(asked, decision)
        self._write("job", job, status="running", deployment=decision.targets[0])
        if decision.quantum:
            self._sent[job] = attempts
            self.used[step] += TELLING.job_qpu_seconds or 0.0

    def end(self, error: str | None) -> None:
        """Let the QPU charge the oldest job, which completes unless there is an error."""
        for job, attempts in list(self._sent.items())[:1]:
            self._charge(job)
            attempts.record_exit(job, "q", error)
            if error is None:
                self._write("job", job, status="completed", deployment="q")
                attempts.record_completion(job)

    def read(self) -> None:
        """Let the filters read the journal, which may be late for a decision."""
        for history in {one.history for one in self._filters}:
            history.add(history.read(self._record))

    def resume(self, status: str) -> None:
        """End the run and resume it."""
        for job in list(self._sent):
            self._charge(job)
        self._write("end", "", status=status)
        self.close()
        self._begin()

    def close(self) -> None:
        self._record.close()

    def _charge(self, job: str) -> None:
        del self._sent[job]
        seconds = TELLING.job_qpu_seconds
        self._write("qpu", job, qpu="q", qpu_job=job, qpu_seconds=seconds)

    def _write(self, kind: str, job: str, **keys: JSON) -> None:
        step = job.rpartition("/")[0]
        append(self._record, {"event": kind, "job": job, "step": step, **keys})


_ACTIONS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 1)),
    st.tuples(st.just("end"), st.sampled_from([None, "helium"])),
    st.tuples(st.just("read")),
    st.tuples(st.just("resume"), st.sampled_from(["completed", "failed"])),
)


@given(
    st.lists(_ACTIONS, min_size=5, max_size=40), st.integers(1, 3), st.integers(1, 3)
)
def test_filters_and_resumed_runs_keep_their_budgets(
    actions: list[tuple[str, Any]], run: int, step: int
) -> None:
    # Budgets of so many jobs and a half.
    limits = [(jobs + 0.5) * (TELLING.job_qpu_seconds or 0.0) for jobs in (run, step)]
    with tempfile.TemporaryDirectory() as folder:
        runs = _Budgeted(Path(folder), *limits)
        try:
            for name, *arguments in actions:
                getattr(runs, name)(*arguments)
                assert sum(runs.used.values()) <= limits[0]
                assert max(runs.used.values(), default=0.0) <= limits[1]
        finally:
            runs.close()


def test_a_reservation_lasts_until_its_usage_is_read(tmp_path: Path) -> None:
    runs = _Budgeted(tmp_path, 0.3, 0.3)  # one job of 0.25 s fits
    try:
        runs.send(0)
        runs.end(None)
        runs.send(1)
        assert sum(runs.used.values()) == TELLING.job_qpu_seconds
    finally:
        runs.close()


def test_filters_of_a_run_share_reservations_and_prices(record: Journal) -> None:
    first, second = (Attempts(costs, 0, shared_state()) for costs in ({}, {"q": 2.0}))
    assert first.history is second.history
    asked = first.begin("/s/0", "/s", StepRules(expected_seconds=3.0))
    first.record_start(asked, TO_QPU)
    assert first.spending() == second.spending() == Spending(3.0, 6.0)
    assert second.running_on("q") == ["/s/0"]
    assert second.spending("/t") == Spending()
    # another run has its own
    record.close()
    assert Attempts({}, 0, shared_state()).spending() == Spending()


def test_a_failed_target_is_reported_and_rests_for_all_jobs() -> None:
    attempts = Attempts({}, cooldown=60)
    asked = attempts.begin("/s/0", "/s", StepRules())
    attempts.record_start(asked, TO_QPU)
    attempts.record_failure("/s/0", "q", "helium")
    again = attempts.begin("/s/0", "/s", StepRules())
    assert again.number == 2
    target = attempts.quantum_target(again, "q", ONLINE)
    assert target.failed == Exclusion(Obstacle.FAILED, detail="helium")
    other = attempts.quantum_target(
        attempts.begin("/s/1", "/s", StepRules()), "q", ONLINE
    )
    assert other.failed is None
    assert other.cooldown is not None
    assert other.cooldown.cause is Obstacle.COOLDOWN
    assert other.cooldown.detail == "helium"
    assert 0 < other.cooldown.value <= 60
    attempts.record_completion("/s/0")
    assert attempts.begin("/s/0", "/s", StepRules()).number == 1
    assert attempts.failures("/s/0") == {}


def test_an_attempt_of_which_nothing_was_heard_has_failed() -> None:
    attempts = Attempts({}, cooldown=0)
    attempts.record_start(attempts.begin("/s/0", "/s", StepRules()), TO_QPU)
    attempts.begin("/s/0", "/s", StepRules())
    assert attempts.failures("/s/0") == {"q": Exclusion(Obstacle.NO_RESULT)}


def test_a_doubtful_exit_status_fails_after_a_second_attempt() -> None:
    attempts = Attempts({}, cooldown=60)
    for job in ("/s/0", "/s/1"):
        attempts.record_start(attempts.begin(job, "/s", StepRules()), TO_QPU)
        attempts.record_exit(job, "q", "exit status 3")
    attempts.record_completion("/s/1")
    assert (
        attempts.quantum_target(
            attempts.begin("/s/1", "/s", StepRules()), "q", ONLINE
        ).cooldown
        is None
    )
    again = attempts.quantum_target(
        attempts.begin("/s/0", "/s", StepRules()), "q", ONLINE
    )
    assert again.failed == Exclusion(Obstacle.FAILED, detail="exit status 3")
    assert again.cooldown is not None


def test_the_state_of_a_qpu_follows_from_its_status() -> None:
    attempts = Attempts({"dear": 3.0}, cooldown=0)
    asked = attempts.begin("/s/0", "/s", StepRules())
    closed = replace(ONLINE, online=False, reason="helium", cost_per_second=0.5)
    assert attempts.quantum_target(asked, "q", closed).offline == Exclusion(
        Obstacle.OFFLINE, detail="helium"
    )
    assert attempts.quantum_target(asked, "q", closed).cost == 0.5
    assert attempts.quantum_target(asked, "dear", closed).cost == 3.0
    silent = attempts.quantum_target(asked, "q", Exclusion(Obstacle.NO_ANSWER))
    assert (silent.offline, silent.wait) == (Exclusion(Obstacle.NO_ANSWER), None)


def test_a_full_place_is_waited_for() -> None:
    attempts = Attempts({}, cooldown=0)
    asked = attempts.begin("/s/0", "/s", StepRules())
    assert attempts.classical_target(asked, "c", Capacity(2, 1)).free
    full = attempts.classical_target(asked, "c", Capacity(2, 0))
    # how long a job takes there is not known
    assert (full.free, full.wait, full.seconds) == (False, 0.0, None)
