"""``allocation: elastic``: nodes taken when jobs want them, and kept a while."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.quantum.running_steps import quantum_steps
from sf_quantum.connectors.slurm import sbatch_options
from sf_quantum.files import JSON
from tests.conftest import StartLab
from tests.lab import Lab
from tests.support.lab_conf import Options
from tests.support.slurm_jobs import StandIns
from tests.support.slurm_site import NODE, QPU, Site, allocation_id, site
from tests.support.waiting import SECONDS, until_async

pytestmark = pytest.mark.process

JOB = "echo $SLURM_JOB_ID"
HOLD = "--wrap=sleep 300"


@pytest.fixture(autouse=True)
def nothing_is_planned() -> Iterator[None]:
    """What a quantum step took in one test is nothing to another."""
    yield
    assert quantum_steps.listeners == []


@pytest.fixture(scope="module")
def small(start_lab: StartLab) -> Iterator[Lab]:
    """A lab with room for three jobs on its classical nodes, all for one test at a time."""
    with start_lab(Options(cpus=1)) as lab:
        yield lab


def elastic(**settings: JSON) -> dict[str, JSON]:
    return {"strategy": "elastic", **settings}


def meet(folder: Path, count: int) -> str:
    """A job that waits until so many have begun, however slow the machine is."""
    met = folder / "met"
    met.mkdir(exist_ok=True)
    others = f"[ $(ls {met} | wc -l) -ge {count} ]"
    return f"touch {met}/$SLURM_JOB_ID; until {others}; do sleep 0.1; done; {JOB}"


async def test_the_next_job_has_the_nodes_of_the_last(lab: Lab, tmp_path: Path) -> None:
    async with site(lab, tmp_path, elastic(idle=600)) as held:
        first = await held.run(JOB)
        assert [await held.run(JOB) for _ in range(3)] == [first] * 3
        assert list(held.queue()) == [int(first)]
    # the jobs in one allocation are told apart, with their own times
    jobs = held.events("slurm")
    assert [job["allocation"] for job in jobs] == [first] * 4
    assert [job["state"] for job in jobs] == ["COMPLETED"] * 4


async def test_nodes_for_which_no_job_comes_are_given_back(
    lab: Lab, tmp_path: Path
) -> None:
    async with site(lab, tmp_path, elastic(idle=1)) as held:
        first = await held.run(JOB)
        await held.counts(0)
        assert await held.run(JOB) != first


async def test_jobs_at_once_have_allocations_of_their_own(
    lab: Lab, tmp_path: Path
) -> None:
    async with site(lab, tmp_path, elastic()) as held:
        command = meet(tmp_path, 4)
        assert len(set(await asyncio.gather(*[held.run(command) for _ in "1234"]))) == 4
        assert len(held.queue()) == 4


async def test_jobs_share_nodes_wherever_they_work(lab: Lab, tmp_path: Path) -> None:
    async with site(lab, tmp_path, elastic(idle=60)) as held:
        first = await held.run(f"pwd; {JOB}", step="a/0")
        second = await held.run(f"pwd; {JOB}", step="b/0")
    work = tmp_path / "work"
    assert first.split()[0] == str(work / "a" / "0")
    assert second.split() == [str(work / "b" / "0"), first.split()[1]]


async def test_a_job_has_no_nodes_whose_time_is_nearly_up(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services: JSON = {"node": {**NODE, "time": "60"}}
    # one that is kept would be in the way for ever
    settings = elastic(max=1, keep=1, idle=60)
    # between two looks at the queue
    monkeypatch.setattr(
        "sf_quantum.connectors.slurm.transport.spool_shell.POLL_SECONDS", 0.2
    )
    stand_ins = StandIns(tmp_path / "stand-ins", monkeypatch)
    stand_ins.add("squeue", 'echo >>"$here/polls"')
    async with site(
        lab, tmp_path, settings, services=services, pollingInterval=0.2
    ) as held:

        async def seen(allocation: str) -> None:
            """Wait until the connector knows when an allocation ends, or has ended."""
            polls = stand_ins.count("polls")

            def known() -> bool:
                # without any allocation it looks no more, and has noted their ends
                (told,) = [
                    one for one in held.held() if str(allocation_id(one)) == allocation
                ]
                return told.released is not None or (
                    stand_ins.count("polls") > polls + 2
                )

            await until_async(known, "squeue")

        first = await held.run(f"sleep 2; {JOB}", step="long/0")
        await seen(first)
        # for more than an hour a new one is tried, which has no more time
        second, _ = await held.cluster.run(JOB, "node", timeout=4000)
        assert second != first
        assert await held.run(JOB, step="short/0") == second
        lab.output("scontrol", "update", f"JobId={second}", "EndTime=now+1")
        await seen(second)
        # the last job of this step took longer
        assert await held.run(JOB, step="long/1") not in (first, second)
        await held.counts(1)


async def test_there_are_never_more_than_the_most(lab: Lab, tmp_path: Path) -> None:
    async with site(lab, tmp_path, elastic(max=2, idle=1, keep=1)) as held:
        jobs = await asyncio.gather(*[held.run(f"sleep 0.3; {JOB}") for _ in range(6)])
        assert len(set(jobs)) == 2
        assert len(held.held()) == 2
        # of which one is kept for good
        await held.counts(1)
        await held.run("sleep 1.5", "qpu")
        assert len(held.queue()) == 1


async def test_requests_that_no_job_waits_for_are_taken_back(
    small: Lab, tmp_path: Path
) -> None:
    others = small.submit("--output=/dev/null", "--array=1-2", HOLD)
    async with site(small, tmp_path, elastic()) as held:
        first = held.start(f"sleep 2; {JOB}")
        await held.counts(1)
        second, third = held.start(JOB), held.start(JOB)
        await held.counts(2, "PENDING")
        # one that is not wanted any more
        third.cancel()
        await held.counts(1, "PENDING")
        # the other gets what has become free
        assert await second == await first
        await held.counts(0, "PENDING")
        assert list(held.queue().values()) == ["RUNNING"]
    small.run("scancel", str(others))
    assert [bool(one.holds) for one in held.held()] == [True, False, False]


async def test_a_job_that_waits_holds_up_no_other(small: Lab, tmp_path: Path) -> None:
    others = small.submit("--output=/dev/null", "--array=1-3", HOLD)
    async with site(small, tmp_path, elastic()) as held:
        waiting = held.start(JOB)
        await held.counts(1, "PENDING")
        await held.run("true", "qpu")
        assert not waiting.done()
        small.run("scancel", str(others))
        await waiting


async def test_what_slurm_refuses_fails_the_job(lab: Lab, tmp_path: Path) -> None:
    services: JSON = {"node": {"partition": "nowhere"}}
    async with site(lab, tmp_path, elastic(), services=services) as held:
        jobs = [held.run("true") for _ in range(2)]
        for error in await asyncio.gather(*jobs, return_exceptions=True):
            assert isinstance(error, WorkflowExecutionException)
            assert "invalid partition specified: nowhere" in str(error)
    assert held.held() == []


async def refuse(held: Site) -> str:
    """Cancel the first of two requests, and wait until the connector knows.

    :returns: the other one
    """
    first, other = sorted(held.queue())
    held.lab.run("scancel", str(first))
    await until_async(
        lambda: [one for one in held.held() if one.released], "the refusal"
    )
    return str(other)


async def test_a_refusal_fails_no_job_that_another_request_may_serve(
    small: Lab, tmp_path: Path
) -> None:
    others = small.submit("--output=/dev/null", "--array=1-3", HOLD)
    async with site(small, tmp_path, elastic(keep=2)) as held:
        first, second = held.start(JOB), held.start(JOB)
        await held.counts(2, "PENDING")
        # what would be kept is still asked for
        second.cancel()
        other = await refuse(held)
        small.run("scancel", str(others))
        assert await first == other


async def test_fewer_nodes_will_do_where_most_are_refused(
    small: Lab, tmp_path: Path
) -> None:
    others = small.submit("--output=/dev/null", "--array=1-3", HOLD)
    services: JSON = {"node": {"partition": "compute", "nodes": "1-3"}}
    async with site(small, tmp_path, elastic(patience=0.5), services=services) as held:
        job = held.start(JOB)
        await held.counts(2, "PENDING")
        other = await refuse(held)
        small.run("scancel", str(others))
        assert await job == other


async def test_what_nobody_has_foreseen_fails_the_job(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise TypeError("a mistake\nof ours")

    async with site(lab, tmp_path, elastic()) as held:
        monkeypatch.setattr(sbatch_options, "holder_options", fail)
        async with asyncio.timeout(SECONDS):
            with pytest.raises(WorkflowExecutionException) as error:
                await held.run("true", step="one")
        assert re.fullmatch(
            r"Job /\w+/one: TypeError: a mistake of ours", str(error.value)
        )
        # and no other
        monkeypatch.undo()
        await held.run("true")


async def test_while_a_quantum_step_runs_there_is_what_is_kept(
    lab: Lab, tmp_path: Path
) -> None:
    async with site(lab, tmp_path, elastic(idle=600, keep=1)) as held:
        await asyncio.gather(*[held.run(meet(tmp_path, 3)) for _ in range(3)])
        assert len(held.queue()) == 3
        # on a deployment of any kind
        with quantum_steps.running("/solve/0"):
            await held.counts(1)
            # and one that comes meanwhile goes at once
            await asyncio.gather(*[held.run("sleep 0.5") for _ in range(2)])
            await held.counts(1)
        await held.run("sleep 0.1")


async def test_fewer_nodes_will_do_after_a_while(small: Lab, tmp_path: Path) -> None:
    other = small.submit("--output=/dev/null", "--exclusive", HOLD)
    services: JSON = {"node": {"partition": "compute", "nodes": "1-3"}}
    async with site(small, tmp_path, elastic(patience=2), services=services) as held:
        nodes = await held.run("srun hostname | wc -l; echo $SLURM_JOB_NUM_NODES")
        assert nodes.split() == ["2", "2"]
    small.run("scancel", str(other))
    # the request for all of them was taken back
    assert [[hold.nodes for hold in one.holds] for one in held.held()] == [[], [2]]


async def test_nodes_are_asked_for_ahead_of_the_quantum_steps_end(
    small: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forecast = "sf_quantum.connectors.slurm.allocation.forecast"
    follows = f"{forecast}.FOLLOWS_SECONDS"
    monkeypatch.setattr(follows, SECONDS)
    # on a slow machine, a step takes longer than ever
    monkeypatch.setattr(f"{forecast}.LATER_SECONDS", SECONDS)
    async with site(small, tmp_path, elastic(ahead=True, idle=0)) as held:

        async def classical(number: int) -> set[str]:
            folder = tmp_path / f"{number}"
            folder.mkdir()
            # at the same time, so that they need two allocations
            jobs = [held.run(meet(folder, 2)) for _ in range(2)]
            return set(await asyncio.gather(*jobs))

        @asynccontextmanager
        async def full() -> AsyncIterator[None]:
            """Other users' jobs are on all nodes."""
            hold = ("--output=/dev/null", "--array=1-3", HOLD)
            others = small.submit(*hold)

            def running() -> bool:
                lines = small.output(
                    "squeue", "-h", "-r", "-j", str(others), "-o", "%T"
                )
                return lines.split() == ["RUNNING"] * 3

            await until_async(running, "the others")
            yield
            small.run("scancel", str(others))

        await classical(1)
        await held.counts(0)
        # nothing is asked for the first time
        with quantum_steps.running("/solve/0"):
            await asyncio.sleep(2)
        assert len(held.held()) == 2
        # what comes now has to wait, for as long as the step takes
        async with full():
            coming = asyncio.create_task(classical(2))
            await held.counts(2, "PENDING")
            await asyncio.sleep(2)
        await coming
        await held.counts(0)
        # this time nodes are asked for so early that they are there
        with ExitStack() as step:
            async with full():
                step.enter_context(quantum_steps.running("/solve/0"))
                await held.counts(2, "PENDING")
                assert len(held.held()) == 6
            # and wait for the step's end
            await held.counts(2)
        ahead = {str(allocation_id(one)) for one in held.held()[4:]}
        assert await classical(3) == ahead
        assert len(held.held()) == 6
        # where nobody comes they are given back
        with quantum_steps.running("/solve/0"):
            await held.counts(2)
            monkeypatch.setattr(follows, 0.5)
        await held.counts(0)


async def test_an_earlier_run_predicts_what_follows_the_first_step(
    small: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FOLLOWS_SECONDS", "LATER_SECONDS"):
        monkeypatch.setattr(
            f"sf_quantum.connectors.slurm.allocation.forecast.{name}", SECONDS
        )
    go = tmp_path / "go"
    go.touch()
    for run in range(2):
        async with site(small, tmp_path, elastic(ahead=True, idle=0)) as held:
            # the same workflow
            held.cluster.name = "workflow"
            await held.run(JOB, step=f"first/{run}")
            solving = held.start(
                f"until [ -e {go} ]; do sleep 0.1; done", "qpu", f"solve/{run}"
            )
            if run:
                await held.counts(2)
                go.touch()
            await solving
            (folder := tmp_path / f"{run}").mkdir()
            jobs = [f"last/{run}{n}" for n in range(2)]
            command = meet(folder, 2)
            await asyncio.gather(*[held.run(command, step=job) for job in jobs])
            assert len(held.held()) == 3
        go.unlink(missing_ok=True)


def shown(lab: Lab, job: str, key: str) -> str:
    """What ``scontrol`` says of a job."""
    text = lab.output("scontrol", "--oneliner", "show", "job", job)
    (value,) = re.findall(rf"\b{key}=(\S+)", text)
    return str(value)


async def test_a_short_allocation_starts_in_a_gap_of_the_schedule(
    small: Lab, tmp_path: Path
) -> None:
    services: JSON = {"node": {**NODE, "time": "2:00:00"}}
    settings = elastic(ahead=True, idle=0.5)
    async with site(small, tmp_path, settings, services=services) as held:
        job, _ = await held.cluster.run(JOB, "node", timeout=100)
        assert minutes(small, job) == 120
        await held.counts(0)
        # one node is free, for 20 minutes
        others = [
            small.submit(
                "--output=/dev/null", f"--time={time}", f"--nodes={nodes}", HOLD
            )
            for time, nodes in ((20, 2), (60, 3))
        ]
        async with asyncio.timeout(SECONDS):
            job, _ = await held.cluster.run(JOB, "node", timeout=100)
        assert 4 <= minutes(small, job) <= 20
        # nor may one that may take any time be ended by that
        waiting = held.start(JOB)
        await held.counts(1, "PENDING")
        (other,) = (
            str(one) for one, state in held.queue().items() if state == "PENDING"
        )
        assert shown(small, other, "TimeMin") == "N/A"
        assert minutes(small, other) == 120
        small.run("scancel", *map(str, others))
        assert await waiting == other


def minutes(lab: Lab, job: str) -> float:
    """The time limit of a job."""
    limit = shown(lab, job, "TimeLimit")
    # that of a lab's partition is in days
    if limit == "UNLIMITED" or "-" in limit:
        return math.inf
    hours, rest, _ = limit.split(":")
    return 60 * int(hours) + int(rest)


async def test_slurm_is_told_when_the_last_job_of_an_allocation_ends(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sf_quantum.connectors.slurm.allocation.slurm_allocation.BEGIN_SECONDS", 0.1
    )
    settings = elastic(ahead=True, idle=60)
    async with site(lab, tmp_path, settings, pollingInterval=0.2) as held:
        go, begun = tmp_path / "go", tmp_path / "begun"
        wait = f"echo >>{begun}; until [ -e {go} ]; do sleep 0.1; done; {JOB}"

        def start(step: str, limit: int) -> asyncio.Task[tuple[str, int]]:
            run = held.cluster.run(wait, "node", step, timeout=limit)
            return asyncio.create_task(run)

        go.touch()
        first, _ = await start("some/0", 600)
        # a job of the step "last" is the last one before a quantum step
        assert await start("last/0", 600) == (first, 0)
        assert minutes(lab, first) == math.inf
        with quantum_steps.running("/solve/0"):
            await held.counts(0)
        go.unlink()
        requested = time.monotonic()
        some = start("some/1", 600)
        await held.counts(1)
        (job,) = held.queue()
        go.touch()
        await some
        assert minutes(lab, str(job)) == math.inf
        go.unlink()
        last = start("last/1", 600)
        # with two minutes to spare
        await until_async(lambda: minutes(lab, str(job)) < math.inf, "the limit")
        age = (time.monotonic() - requested) / 60
        assert 12 <= minutes(lab, str(job)) <= 14 + age
        go.touch()
        assert await last == (str(job), 0)
        # nobody has waited for another one; it came all the same
        await held.counts(0)
        other, _ = await start("some/2", 600)
        go.unlink()
        following = start("last/2", 600)
        jobs = 6
        await until_async(lambda: len(begun.read_text()) == jobs, "it to begin")
        await asyncio.sleep(1)
        assert minutes(lab, other) == math.inf
        go.touch()
        assert await following == (other, 0)
        await asyncio.sleep(1)
        assert list(held.queue()) == [int(other)]


class Listener:
    """Touches a file when a quantum job begins."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def quantum_step_started(self, step: str) -> None: ...

    def quantum_job_submitted(
        self, step: str, deployment: str, slurm_job: str
    ) -> None: ...

    def quantum_job_begins(self, step: str, job: str, seconds: float) -> None:
        assert -SECONDS < seconds <= 1
        self.file.touch()

    def quantum_step_ended(self, step: str, *, completed: bool) -> None:
        assert completed


@pytest.mark.parametrize("strategy", ["per-step", "elastic"])
async def test_it_is_told_when_slurm_has_nodes_for_a_quantum_job(
    lab: Lab, tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    with monkeypatch.context() as patch:
        patch.setattr(quantum_steps, "listeners", [Listener(begun)])
        async with site(lab, tmp_path, strategy) as held:
            await held.run(f"until [ -e {begun} ]; do sleep 0.1; done", "qpu")


async def test_slurm_itself_waits_for_the_end_of_its_own_quantum_job(
    small: Lab, tmp_path: Path
) -> None:
    settings = elastic(ahead="dependent", idle=0)
    services: dict[str, JSON] = {"node": NODE, "qpu": {**QPU, "allocation": "per-step"}}
    async with site(small, tmp_path, settings, services=services) as held:

        async def classical() -> set[str]:
            jobs = [held.run(f"sleep 0.3; {JOB}") for _ in range(2)]
            return set(await asyncio.gather(*jobs))

        for number in range(2):
            await classical()
            await held.counts(0)
            solving = held.start(f"sleep {2 + number}", "qpu", f"solve/{number}")
            if number:
                # they are in the queue from the start, and hold no node
                await held.counts(2, "PENDING")
                (quantum,) = held.queue("qpu")
                # earlier ones may still be COMPLETING
                pending = [job for job, s in held.queue().items() if s == "PENDING"]
                for job in pending:
                    text = small.output("scontrol", "show", "job", str(job))
                    assert f"Dependency=afterany:{quantum}" in text
            await solving
        assert await classical() == {str(allocation_id(one)) for one in held.held()[4:]}
        assert len(held.held()) == 6
    ended = held.held("qpu")[-1].released
    assert ended is not None
    for one in held.held()[4:]:
        assert one.granted is not None
        assert one.granted - ended > -1
        assert one.requested is not None
        assert one.requested < ended - 1
