"""What is learnt from journals, and what a filter remembers."""

from __future__ import annotations

import asyncio
import fcntl
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sf_quantum.candidates.decision import Decision, Spent
from sf_quantum.candidates.history import RUNS, History, Past, Took
from sf_quantum.candidates.ledger import Ledger, Room, wait
from sf_quantum.candidates.policy import Policy
from sf_quantum.files import JSON
from sf_quantum.journal import Event, Journal
from sf_quantum.qpu import QpuStatus

ONLINE = QpuStatus("q", "annealer", True, "", 50, 1, 0, 0, eta_seconds=0.0)


def attempt(
    start: float, seconds: float, on: str, status: str = "completed", **qpu: JSON
) -> list[Event]:
    """The events of one attempt; with QPU keys, of one with a QPU job."""
    job: Event = {"event": "job", "job": "/s/0", "step": "/s", "tag": "0"}
    place: Event = {"deployment": on, "service": None, "locations": [on]}
    told: list[Event] = [{"event": "qpu", "job": "/s/0", **qpu}] if qpu else []
    return [
        {**job, "time": start, "status": "waiting", "deployment": None},
        {**job, **place, "time": start, "status": "fireable"},
        {**job, **place, "time": start, "status": "running"},
        *({**event, "time": start} for event in told),
        {**job, **place, "time": start + seconds, "status": status},
    ]


def told(*attempts: list[Event], paid: bool = True) -> History:
    history = History()
    for events in attempts:
        for event in events:
            history.add(event, paid=paid)
    return history


def test_a_step_takes_the_median_of_its_latest_jobs() -> None:
    history = told(*(attempt(n, n, "cpu") for n in range(1, 21)))
    assert history.took("/s", "cpu") == Took(0.0, 0.0, 15.5)
    assert history.took("/s", "gpu") is None
    assert history.took("/t", "cpu") is None


def test_failures_teach_nothing_of_how_long_it_takes() -> None:
    assert told(attempt(0, 9, "cpu", "failed")).took("/s", "cpu") is None


def test_waiting_for_a_lease_and_in_the_queue_is_not_the_jobs_own_time() -> None:
    on_qpu = attempt(
        *(0, 10.0, "q"),
        lease_seconds=4.0,
        queued_seconds=3.0,
        ran_seconds=2.0,
        qpu_seconds=20.0,
    )
    assert told(on_qpu).took("/s", "q") == Took(2.0, 20.0, 1.0)


def test_what_was_spent_counts_whatever_came_of_it_and_no_qpu_job_twice() -> None:
    lost = attempt(0, 1.0, "q", "recovery", qpu_seconds=2.0)
    paid = attempt(1, 1.0, "q", qpu="q", qpu_job="7", qpu_seconds=3.0)
    assert told(lost, paid).spent() == {"q": 5.0}
    assert told(lost, paid).spent("/s") == {"q": 5.0}
    assert told(lost, paid).spent("/t") == {}
    assert told(paid, paid=False).spent() == {}

    def found(seconds: float, qpu_job: str) -> list[Event]:
        told: dict[str, JSON] = {"qpu_seconds": seconds, "qpu_job": qpu_job}
        return attempt(2, 1.0, "q", "completed", qpu="q", found=True, **told)

    # told when it had not ended, and found again when it had
    assert told(paid, found(5.0, "7")).spent() == {"q": 5.0}
    # of a driver that was killed before it could write it down
    assert told(paid, found(5.0, "8")).spent() == {"q": 8.0}


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Journal]:
    """The journal of a run that goes on."""
    made = Journal(tmp_path)
    made.start("sf.yml", ["w"], {})
    yield made
    made.close()


def _earlier(folder: Path, name: str, end: str | None, file: str = "sf.yml") -> None:
    events: list[Event] = [{"time": 0, "event": "run", "file": file}]
    events += attempt(0, 4.0, "cpu") + attempt(4, 1.0, "q", qpu_seconds=7.0)
    events += [{"time": 9, "event": "end", "status": end}] if end else []
    lines = "".join(f"{json.dumps(event)}\n" for event in events)
    (folder / f"2020010{name}T000000Z-1.jsonl").write_text(lines)


def test_earlier_runs_of_the_same_file_are_remembered(record: Journal) -> None:
    _earlier(record.path.parent, "1", "completed")
    _earlier(record.path.parent, "2", "completed", file="other.yml")
    (record.path.parent / "20200103T000000Z-1.jsonl").write_text("no journal\n")
    past = Past(record)
    past.take(past.read())
    assert past.history.took("/s", "cpu") == Took(0.0, 0.0, 4.0)
    # that run is over, so what it spent is its own affair
    assert past.history.spent() == {}
    for event in attempt(10, 2.0, "cpu"):
        event = dict(event)
        del event["time"]
        record.write(str(event.pop("event")), **event)
    past.take(past.read())
    past.take(past.read())
    took = past.history.took("/s", "cpu")
    assert took is not None
    assert 1.9 < took.beside_seconds < 2.1  # of 4 and of nearly 0


def test_a_qpu_that_does_not_tell_is_known() -> None:
    history = told(
        attempt(0, 1.0, "q", qpu_job="7"), attempt(2, 1.0, "a", qpu_job=None)
    )
    assert history.silent == {"a"}


def test_a_run_that_was_killed_and_taken_up_spends_from_the_same_budget(
    record: Journal,
) -> None:
    _earlier(record.path.parent, "1", "completed")
    _earlier(record.path.parent, "2", None)
    past = Past(record)
    past.take(past.read())
    assert past.history.spent() == {"q": 7.0}


def test_a_driver_that_lives_beside_this_one_spends_from_its_own_budget(
    record: Journal,
) -> None:
    _earlier(record.path.parent, "1", None)
    _earlier(record.path.parent, "2", None)
    (beside,) = record.path.parent.glob("20200102*")
    with beside.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        past = Past(record)
        past.take(past.read())
    assert past.history.spent() == {"q": 7.0}
    # but it teaches how long a job takes
    assert past.history.took("/s", "q") is not None


def test_other_files_runs_do_not_take_the_place_of_this_ones(record: Journal) -> None:
    folder = record.path.parent
    _earlier(folder, "1", "completed")
    for number in range(RUNS):
        _earlier(folder, f"2T{number:06}", "completed", file="other.yml")
    past = Past(record)
    past.take(past.read())
    assert past.history.took("/s", "cpu") == Took(0.0, 0.0, 4.0)


async def test_decisions_that_overlap_know_what_was_spent(
    record: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    _earlier(record.path.parent, "1", None)
    ledger, read = Ledger({}, cooldown=0), Past.read
    go, has_read = threading.Event(), threading.Event()

    def slow(past: Past) -> list[tuple[Event, bool]]:
        events = read(past)
        has_read.set()
        go.wait(60)
        return events

    monkeypatch.setattr(Past, "read", slow)
    await ledger.update(0.01)
    assert not ledger.known
    go.set()
    await ledger.update(60)
    assert ledger.known
    assert ledger.spent() == Spent(7.0)
    go.clear()
    has_read.clear()
    await asyncio.gather(ledger.update(0.01), ledger.update(0.02))
    assert ledger.spent() == Spent(7.0)
    # what is written while another's reading goes on is read after it
    assert await asyncio.to_thread(has_read.wait, 60)
    for event in attempt(9, 1.0, "q", qpu_seconds=2.0):
        told = {key: value for key, value in event.items() if key != "time"}
        record.write(str(told.pop("event")), **told)
    asyncio.get_running_loop().call_later(0.05, go.set)
    await asyncio.gather(ledger.update(60), ledger.update(60))
    assert ledger.spent() == Spent(9.0)


def test_a_job_that_was_never_measured_is_promised_what_is_left() -> None:
    ledger = Ledger({}, cooldown=60)
    ledger.send(ledger.ask("/s/0", "/s", Policy()), TO_QPU)
    assert ledger.spent().unmeasured
    assert ledger.spent("/s").unmeasured
    assert not ledger.spent("/t").unmeasured
    ledger.end("/s/0", "q")
    assert not ledger.spent().unmeasured
    ledger.send(ledger.ask("/s/1", "/s", Policy()), Decision(False, ("c",), ""))
    assert not ledger.spent().unmeasured


def test_a_target_that_was_not_asked_is_not_taken_although_its_rest_is_over() -> None:
    ledger = Ledger({}, cooldown=0)
    ledger.fail("/other", "q", "helium")
    told = ledger.quantum(ledger.ask("/s/0", "/s", Policy()), "q", None)
    assert (told.rests, told.wait) == ("rested when the others were asked", None)


def test_a_job_that_ended_well_without_its_outputs_has_failed() -> None:
    ledger = Ledger({}, cooldown=60)
    ledger.send(ledger.ask("/s/0", "/s", Policy()), TO_QPU)
    ledger.end("/s/0", "q")
    again = ledger.ask("/s/0", "/s", Policy())
    assert again.attempt == 2
    told = ledger.quantum(again, "q", ONLINE)
    assert told.failed == "failed this job before (ended well, but without its outputs)"
    assert told.rests == ""
    ledger.end("/s/0", "cpu")
    ledger.complete("/s/0")
    assert ledger.ask("/s/0", "/s", Policy()).attempt == 1
    assert ledger.failures("/s/0") == {}


@pytest.mark.parametrize(
    ("leases", "queue", "eta", "sent", "seconds", "expected"),
    [
        (0, 0, 0.0, 0, None, 0.0),
        (0, 3, 40.0, 0, None, 40.0),
        # a QPU that tells no ETA
        (0, 0, None, 0, None, 0.0),
        (0, 3, None, 0, 2.0, 6.0),
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
    device = None if seconds is None else 4.0
    assert wait(status, sent, seconds, device) == expected


TO_QPU = Decision(True, ("q",), "")


def test_what_is_promised_is_not_promised_again() -> None:
    ledger = Ledger({"q": 0.5}, cooldown=60)
    policy = Policy(expected_seconds=3.0)
    first = ledger.ask("/s/0", "/s", policy)
    ledger.send(first, TO_QPU)
    assert ledger.spent() == Spent(3.0, 1.5)
    assert ledger.spent("/s") == Spent(3.0, 1.5)
    assert ledger.spent("/t") == Spent()
    second = ledger.quantum(ledger.ask("/s/1", "/s", policy), "q", ONLINE)
    assert (second.wait, second.load) == (3.0, 1.0)
    ledger.complete("/s/0")
    assert ledger.spent() == Spent()
    assert ledger.sent_to("q") == []


def test_a_target_that_failed_is_told_to_its_job_and_rests_for_all() -> None:
    ledger = Ledger({}, cooldown=60)
    asked = ledger.ask("/s/0", "/s", Policy())
    ledger.send(asked, TO_QPU)
    ledger.fail("/s/0", "q", "helium")
    again = ledger.ask("/s/0", "/s", Policy())
    assert again.attempt == 2
    target = ledger.quantum(again, "q", ONLINE)
    assert target.failed == "failed this job before (helium)"
    other = ledger.quantum(ledger.ask("/s/1", "/s", Policy()), "q", ONLINE)
    assert other.failed == ""
    assert other.rests == "rests for 60 s after a failure (helium)"
    ledger.complete("/s/0")
    assert ledger.ask("/s/0", "/s", Policy()).attempt == 1
    assert ledger.failures("/s/0") == {}


def test_an_attempt_of_which_nothing_was_heard_has_failed() -> None:
    ledger = Ledger({}, cooldown=0)
    ledger.send(ledger.ask("/s/0", "/s", Policy()), TO_QPU)
    ledger.ask("/s/0", "/s", Policy())
    assert ledger.failures("/s/0") == {"q": "gave no result"}


def test_an_exit_status_that_may_be_a_success_is_a_failure_once_it_is_tried_again() -> (
    None
):
    ledger = Ledger({}, cooldown=60)
    for job in ("/s/0", "/s/1"):
        ledger.send(ledger.ask(job, "/s", Policy()), TO_QPU)
        ledger.doubt(job, "q", "exit status 3")
    ledger.complete("/s/1")
    assert ledger.quantum(ledger.ask("/s/1", "/s", Policy()), "q", ONLINE).rests == ""
    again = ledger.quantum(ledger.ask("/s/0", "/s", Policy()), "q", ONLINE)
    assert again.failed == "failed this job before (exit status 3)"
    assert again.rests


def test_a_status_becomes_words() -> None:
    ledger = Ledger({"dear": 3.0}, cooldown=0)
    asked = ledger.ask("/s/0", "/s", Policy())
    closed = replace(ONLINE, online=False, reason="helium", cost_per_second=0.5)
    assert ledger.quantum(asked, "q", closed).trouble == "is offline: helium"
    assert ledger.quantum(asked, "q", closed).cost == 0.5
    assert ledger.quantum(asked, "dear", closed).cost == 3.0
    silent = ledger.quantum(asked, "q", "does not answer")
    assert (silent.trouble, silent.wait) == ("does not answer", None)


def test_a_full_place_is_waited_for() -> None:
    ledger = Ledger({}, cooldown=0)
    asked = ledger.ask("/s/0", "/s", Policy())
    assert ledger.classical(asked, "c", Room(2, 1)).free
    full = ledger.classical(asked, "c", Room(2, 0))
    # how long a job takes there is not known
    assert (full.free, full.wait, full.seconds) == (False, 0.0, None)
