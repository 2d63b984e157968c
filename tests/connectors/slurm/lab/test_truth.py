"""What Slurm says is what the step gets: only COMPLETED with exit code 0 is success."""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from streamflow.core.exception import (
    WorkflowDefinitionException,
    WorkflowExecutionException,
)

from sf_quantum.connectors.slurm.transport.controller import Commands
from sf_quantum.files import JSON
from tests.lab import Lab
from tests.support.lab_conf import Options
from tests.support.slurm_jobs import StandIns, cluster
from tests.support.waiting import until_async

if TYPE_CHECKING:
    from tests.conftest import StartLab

pytestmark = pytest.mark.process

TRAPPED = "trap 'exit 0' TERM; echo set; sleep 100 & wait"


@pytest.fixture(scope="module")
def rough(start_lab: StartLab) -> Iterator[Lab]:
    """A lab whose daemons may be stopped."""
    extra = (
        "KillWait=1",
        "PartitionName=small Nodes=c[1-3] MaxNodes=1",
    )
    with start_lab(Options(cpus=16, preempt="CANCEL", extra=extra)) as lab:
        yield lab


@pytest.fixture
def forgetful(start_lab: StartLab) -> Iterator[Lab]:
    """A lab that forgets a job after seconds."""
    with start_lab(Options(nodes=1, qnodes=0, cpus=4, min_job_age=2)) as lab:
        yield lab


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    return StandIns(tmp_path / "stand-ins", monkeypatch)


async def test_a_script_that_fails(lab: Lab, tmp_path: Path) -> None:
    async with cluster(lab, tmp_path) as jobs:
        good, plain, child, script, crash, quiet = await asyncio.gather(
            jobs.run("echo well; echo done >&2"),
            jobs.failing("seq 30; echo wrong >&2; exit 3"),
            jobs.failing("sh -c 'kill -9 $$'"),
            jobs.failing("echo killed; kill -9 $PPID; sleep 5"),
            jobs.failing("kill -SEGV $PPID; sleep 5"),
            jobs.run("true"),
        )
    assert good == ("well\ndone", 0)
    assert quiet == ("", 0)
    assert re.fullmatch(
        r"Job /\w+/2: Slurm job \d+ is FAILED \(NonZeroExitCode\) with exit code 3 "
        r"after \d s; its last lines:\n12\n(.+\n)*30\nwrong",
        plain,
    )
    assert (
        "is FAILED (NonZeroExitCode) with exit code 137 and signal 9 (SIGKILL)" in child
    )
    assert "with signal 9 (SIGKILL)" in script
    assert script.endswith("; its last lines:\nkilled")
    assert "with signal 11 (SIGSEGV)" in crash
    assert crash.endswith("; it printed nothing")


async def test_cancelled(lab: Lab, tmp_path: Path) -> None:
    later: dict[str, JSON] = {"later": {"begin": "now+1hour"}}
    async with cluster(lab, tmp_path, services=later) as jobs:
        work = [
            asyncio.create_task(jobs.failing("echo begun; sleep 100")),
            asyncio.create_task(jobs.failing("sleep 100", "later")),
            # by luck only one is seen to end well: the others raise the odds
            *(asyncio.create_task(jobs.failing(TRAPPED)) for _ in range(8)),
        ]
        ids = await jobs.submitted(10)

        def begun() -> int:
            outputs = tmp_path.glob("work/.sfq-*/*.out")
            return sum(path.stat().st_size > 0 for path in outputs)

        await until_async(lambda: begun() == 9, "nine jobs to begin")
        for id_ in ids.values():
            lab.output("scancel", str(id_))
        running, pending, *trapped = await asyncio.gather(*work)
    assert f"Slurm job {ids['1']} is CANCELLED with signal 15" in running
    assert "; its last lines:\nbegun\n" in running
    assert f"Slurm job {ids['2']} is CANCELLED" in pending
    assert all("is CANCELLED" in text for text in trapped)
    assert lab.state(ids["1"]) == lab.state(ids["2"]) == "CANCELLED"


async def test_requeued(lab: Lab, tmp_path: Path) -> None:
    async with cluster(lab, tmp_path) as jobs:
        # the second run is the one that counts
        count = tmp_path / "runs"
        script = f"echo >>{count}; [ $(wc -l <{count}) -gt 1 ] || sleep 100; exit 7"
        work = asyncio.create_task(jobs.failing(script))
        await until_async(count.exists, "the first run")
        id_ = jobs.ids()["1"]
        lab.output("scontrol", "requeue", str(id_))
        # Slurm holds it for two minutes, less if it is told so; in the same second, its
        # node would take it for the first run ("already killed, do not launch")
        await until_async(lambda: lab.state(id_) == "PENDING", "the second run's turn")
        lab.output("scontrol", "update", f"JobId={id_}", "StartTime=now+2")
        text = await work
    assert "is FAILED (NonZeroExitCode) with exit code 7" in text
    assert "in run 2" in text


async def test_what_slurm_ends(rough: Lab, tmp_path: Path) -> None:
    services: dict[str, JSON] = {
        "first": {"nodelist": "c1", "partition": "compute", "time": "10"},
        "second": {"nodelist": "c2", "partition": "compute", "noRequeue": True},
        "third": {"nodelist": "c3", "partition": "compute", "exclusive": True},
    }
    async with cluster(rough, tmp_path, services=services) as jobs:
        work = [
            asyncio.create_task(jobs.failing("echo here; sleep 200", name))
            for name in services
        ]
        ids = await jobs.running(3)
        rough.submit(
            *("--partition=urgent", "--nodelist=c3", "--exclusive", "-o/dev/null"),
            *("--wrap", "true"),
        )
        preempted = await work[2]
        # a limit is whole minutes, but a minute can be made to be over
        rough.output("scontrol", "update", f"JobId={ids['1']}", "EndTime=now")
        rough.lose_node("c2")
        lost = await work[1]
        rough.start_node("c2")
        timeout = await work[0]
    assert f"Slurm job {ids['1']} is TIMEOUT (TimeLimit)" in timeout
    assert "; its last lines:\nhere\n" in timeout
    assert f"Slurm job {ids['2']} is NODE_FAIL" in lost
    assert f"Slurm job {ids['3']} is PREEMPTED" in preempted


@pytest.mark.parametrize("state", ["OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"])
async def test_what_a_lab_cannot_end(
    lab: Lab, tmp_path: Path, stand_ins: StandIns, state: str
) -> None:
    for name in ("squeue", "scontrol"):
        stand_ins.add(
            name,
            f'"$real" "$@" | sed "s/FAILED/{state}/"',
            # a pipe's exit code is its last command's
            "exit 0",
        )
    async with cluster(lab, tmp_path) as jobs:
        text = await jobs.failing("echo much; kill -9 $PPID; sleep 5")
    assert f"is {state} " in text
    assert text.endswith("its last lines:\nmuch")


@pytest.mark.parametrize("array", [False, True], ids=["job", "array"])
async def test_a_job_that_failed_with_exit_code_0_is_no_success(
    lab: Lab, tmp_path: Path, stand_ins: StandIns, array: bool
) -> None:
    for name in ("squeue", "scontrol"):
        stand_ins.add(name, '"$real" "$@" | sed "s/COMPLETED/FAILED/"', "exit 0")
    services: dict[str, JSON] = {"list": {"array": "1-2"} if array else {}}
    async with cluster(lab, tmp_path, services=services) as jobs:
        with pytest.raises(WorkflowExecutionException) as failure:
            await jobs.run("echo begun", "list")
    assert "is FAILED with exit code 0 after" in str(failure.value)
    lines = "begun\nbegun" if array else "begun"
    assert str(failure.value).endswith(f"its last lines:\n{lines}")


async def test_squeue_fails(lab: Lab, tmp_path: Path, stand_ins: StandIns) -> None:
    switch = stand_ins.switch("fails")
    switch.touch()
    stand_ins.add(
        "squeue",
        "[ ! -e $here/fails ] ||",
        "  { echo >>$here/asked; echo 'slurm_load_jobs error' >&2; exit 1; }",
    )
    async with cluster(lab, tmp_path) as jobs:
        work = [
            asyncio.create_task(jobs.run("sleep 3; echo well")),
            asyncio.create_task(jobs.run("sleep 3; exit 4")),
        ]
        results = await asyncio.gather(*work)
        switch.unlink()
    assert stand_ins.count("asked") > 0
    assert results[0] == ("well", 0)
    assert results[1][1] == 4


async def test_the_controller_is_away(rough: Lab, tmp_path: Path) -> None:
    async with cluster(rough, tmp_path) as jobs:
        go = tmp_path / "go"
        wait = f"while [ ! -e {go} ]; do sleep 0.05; done"
        ends_well = asyncio.create_task(jobs.run(f"{wait}; echo well"))
        fails = asyncio.create_task(jobs.run(f"{wait}; exit 4"))
        lasts = asyncio.create_task(jobs.failing("sleep 200"))
        ids = await jobs.running(3)
        rough.stop_controller()
        try:
            late = asyncio.create_task(jobs.run("echo late"))
            go.touch()
            well = await ends_well
            bad = await fails
        finally:
            await asyncio.to_thread(rough.start_controller)
        assert await late == ("late", 0)
        # and what it says when it is back still counts
        rough.output("scancel", str(ids["3"]))
        cancelled = await lasts
    assert well == ("well", 0)
    assert bad[1] == 4
    assert "with exit code 4" in bad[0]
    assert "is CANCELLED" in cancelled


async def test_a_job_that_slurm_has_forgotten(
    forgetful: Lab, tmp_path: Path, stand_ins: StandIns
) -> None:
    blind = stand_ins.switch("blind")
    for name in ("squeue", "scontrol"):
        stand_ins.add(name, f'[ ! -e {blind} ] || [ -n "$SEES" ] || exit 1')
    async with cluster(forgetful, tmp_path) as jobs:
        go = tmp_path / "go"
        wait = f"while [ ! -e {go} ]; do sleep 0.05; done"
        # one that leaves a mark, and one that cannot
        marked = asyncio.create_task(jobs.run(f"{wait}; exit 4"))
        lost = asyncio.create_task(jobs.failing(f"{wait}; kill -9 $PPID; sleep 5"))
        ids = await jobs.running(2)
        blind.touch()
        go.touch()
        asked = "env", "SEES=1", "scontrol", "show", "job"

        def forgotten() -> bool:
            said = [forgetful.run(*asked, str(id_)).stderr for id_ in ids.values()]
            return all("Invalid job id" in text for text in said)

        await until_async(forgotten, "Slurm to forget")
        blind.unlink()
        text, code = await marked
        assert code == 4
        assert "is FAILED with exit code 4" in text
        text = await lost
    assert "is LOST (Slurm no longer knows it, and it left no exit code)" in text


async def test_sbatch_is_refused_for_a_passing_reason(
    lab: Lab, tmp_path: Path, stand_ins: StandIns, caplog: pytest.LogCaptureFixture
) -> None:
    stand_ins.add(
        "sbatch",
        "echo >>$here/tries",
        "[ $(wc -l <$here/tries) -gt 2 ] || {",
        "  echo 'sbatch: error: Batch job submission failed: '\\",
        "    'Unable to contact slurm controller (connect failure)' >&2; exit 1; }",
    )
    with _heard(caplog):
        async with cluster(lab, tmp_path) as jobs:
            assert await jobs.run("echo well") == ("well", 0)
    assert stand_ins.count("tries") == 3
    told = [
        re.sub(r"[\d.]+ s:", "a moment:", r.getMessage())
        for r in caplog.records
        if "cannot accept" in r.getMessage()
    ]
    assert told == 2 * [
        f"Slurm cannot accept job /{jobs.name}/1 now, next attempt in a moment: "
        "Batch job submission failed: Unable to contact slurm controller (connect "
        "failure)"
    ]


@pytest.mark.parametrize("unseen", [False, True], ids=["seen", "unseen"])
async def test_an_answer_of_sbatch_that_is_lost(
    lab: Lab, tmp_path: Path, stand_ins: StandIns, unseen: bool
) -> None:
    stand_ins.lose_first_answer()
    if unseen:
        # as if the controller had not come to it yet
        stand_ins.add("squeue", "[ $(wc -l <$here/tries) -gt 1 ] || exit 0")
    runs = tmp_path / "runs"
    async with cluster(lab, tmp_path) as jobs:
        text, code = await jobs.run(f"echo $SLURM_JOB_ID >>{runs}; sleep 2; exit 6")
    assert code == 6
    (ran,) = runs.read_text().split()
    assert f"Slurm job {ran} is FAILED" in text
    assert stand_ins.count("tries") in ((1, 2) if unseen else (1,))


async def test_an_answer_about_an_array_that_is_lost(
    lab: Lab, tmp_path: Path, stand_ins: StandIns
) -> None:
    stand_ins.lose_first_answer()
    stand_ins.add("squeue", "[ $(wc -l <$here/tries) -gt 1 ] || exit 0")
    runs = tmp_path / "runs"
    async with cluster(lab, tmp_path, services={"list": {"array": "1-3"}}) as jobs:
        task = f"echo $SLURM_ARRAY_TASK_ID >>{runs}; sleep 1"
        assert await jobs.run(task, "list") == ("", 0)
    assert sorted(runs.read_text().split()) == ["1", "2", "3"]
    assert stand_ins.count("tries") in (1, 2)


async def test_sbatch_is_refused_for_good(
    lab: Lab, tmp_path: Path, stand_ins: StandIns
) -> None:
    account = "Invalid account or account/partition combination specified"
    stand_ins.add(
        "sbatch",
        "echo >>$here/tries",
        # a lab has no accounts that could be wrong
        f'case "$*" in *--account*) echo "sbatch: error: Batch job submission failed: '
        f'{account}" >&2; exit 1;; esac',
    )
    services: dict[str, JSON] = {
        "partition": {"partition": "nowhere"},
        "gres": {"gres": "gpu:1"},
        "account": {"account": "nobody"},
        "option": {"time": "soon"},
    }
    async with cluster(lab, tmp_path, services=services) as jobs:
        texts = await asyncio.gather(*(jobs.failing("true", name) for name in services))
    assert texts[0].startswith(f"Slurm refuses job /{jobs.name}/1: ")
    assert "Invalid partition name specified" in texts[0]
    assert "Invalid generic resource (gres) specification" in texts[1]
    assert account in texts[2]
    assert "Invalid --time specification" in texts[3]
    assert stand_ins.count("tries") == len(services)


async def test_a_job_that_can_never_start_is_reported(
    rough: Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    services: dict[str, JSON] = {
        "large": {"partition": "small", "nodes": "2"},
        "drained": {"nodelist": "c3"},
        "special": {"constraint": "special"},
        "busy": {"begin": "now+1hour"},
    }
    reasons = ("PartitionNodeLimit", "ReqNodeNotAvail", "BadConstraints")
    rough.output("scontrol", "update", "NodeName=c3", *_features("special"))
    rough.output("scontrol", "update", "NodeName=c3", "State=DRAIN", "Reason=test")
    with _heard(caplog):
        async with cluster(rough, tmp_path, services=services) as jobs:
            work = [
                asyncio.create_task(jobs.failing("true", name)) for name in services
            ]
            await jobs.submitted(4)
            rough.output("scontrol", "update", "NodeName=c3", *_features("none"))
            await until_async(
                lambda: all(f"({reason}" in caplog.text for reason in reasons),
                "three reports",
            )
            rough.output("scancel", *map(str, rough.jobs()))
            texts = await asyncio.gather(*work)
    rough.output("scontrol", "update", "NodeName=c3", "State=RESUME")
    assert all("is CANCELLED" in text for text in texts)
    told = [
        r.getMessage() for r in caplog.records if "may never start" in r.getMessage()
    ]
    assert sum("BeginTime" in line for line in told) == 0
    assert len(told) == len(set(told))
    assert any(
        re.fullmatch(
            r"Job /\w+/1 may never start: Slurm job \d+ is pending \(PartitionNodeLimit\)",
            line,
        )
        for line in told
    )


async def test_what_a_job_gets_and_gives(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "strict.sh").write_text(
        "#!/bin/bash\n#SBATCH --job-name=strict\n#SBATCH --output=%j-%x.txt\n"
        "#SBATCH --error=wrong.txt\n\nset -eu\nmodule=loaded\n{{streamflow_command}}\n"
        "echo failing >&2\nfalse\necho not here\n"
    )
    (tmp_path / "array.sh").write_text(
        "#!/bin/sh\n#SBATCH --array=1-3\n#SBATCH --output=/dev/null\n"
        "{{streamflow_command}}\n"
    )
    services: dict[str, JSON] = {
        "strict": {"file": "strict.sh"},
        "array": {"file": "array.sh"},
        "list": {"array": "1-3", "jobName": "of-my-own"},
    }
    odd = 'a\'b "c" $HOME `id` \\ %j'
    each = tmp_path / "each"
    each.mkdir()
    (tmp_path / "in %j").write_text("from a file")
    async with (
        cluster(lab, tmp_path, services=services) as jobs,
        asyncio.TaskGroup() as group,
    ):
        strict = group.create_task(
            jobs.run('echo "$module $SLURM_JOB_NAME"; sh -c "echo wrong >&2"', "strict")
        )
        tasks = group.create_task(
            jobs.run(f"touch {each}/$SLURM_ARRAY_TASK_ID", "array")
        )
        bad = group.create_task(
            jobs.failing("[ $SLURM_ARRAY_TASK_ID -ne 2 ] || exit 9", "list")
        )
        environment = group.create_task(
            jobs.run('printf "%s" "$ODD"', environment={"ODD": odd})
        )
        streams = group.create_task(
            jobs.run(
                "sh -c 'cat; echo bad >&2'",
                name="streams",
                stdin=str(tmp_path / "in %j"),
                stdout="out %j",
                stderr="err",
            )
        )
        much = group.create_task(
            jobs.run("head -c 1000000 /dev/zero | tr '\\0' x; echo; echo end")
        )
        deaf = group.create_task(jobs.run("sh -c 'kill -INT $$; echo deaf'; echo $?"))
    text, code = strict.result()
    assert code == 1
    assert text.endswith("its last lines:\nloaded strict\nwrong\nfailing")
    (out,) = (tmp_path / "work/1").glob("*-strict.txt")
    assert out.read_text() == "loaded strict\nwrong\n"
    assert tasks.result() == ("", 0)
    assert {path.name for path in each.iterdir()} == {"1", "2", "3"}
    assert "is FAILED (NonZeroExitCode) with exit code 9" in bad.result()
    assert environment.result() == (odd, 0)
    assert streams.result() == ("", 0)
    folder = tmp_path / "work/streams"
    assert (folder / "out %j").read_text() == "from a file"
    assert (folder / "err").read_text() == "bad\n"
    text, _ = much.result()
    assert len(text) == 1_000_004
    assert text.endswith("x\nend")
    assert deaf.result() == ("130", 0)


async def test_a_job_that_is_not_wanted_any_more(lab: Lab, tmp_path: Path) -> None:
    async with cluster(lab, tmp_path) as jobs:
        work = asyncio.create_task(jobs.run("sleep 100"))
        id_ = (await jobs.submitted())["1"]
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        await until_async(lambda: lab.state(id_) == "CANCELLED", "its end")
        assert await jobs.run("echo next") == ("next", 0)


@pytest.mark.parametrize("allocation", ["per-step", "elastic"])
async def test_errors_and_time_limits_of_a_tool(
    lab: Lab, tmp_path: Path, allocation: str
) -> None:
    wait = "sh -c 'echo begun; sleep 100 & wait'"
    # it ends well when it is told to end, and still has not succeeded
    polite = """sh -c 'trap "exit 0" TERM; sleep 100 & wait'"""
    services: dict[str, JSON] = {"list": {"array": "1-2", "allocation": "per-step"}}
    async with (
        cluster(lab, tmp_path, allocation=allocation, services=services) as jobs,
        asyncio.TaskGroup() as group,
    ):
        bad = group.create_task(
            _error(jobs.run("sh -c 'echo bad >&2; exit 3'", name="bad", stderr="err"))
        )
        late = group.create_task(_error(jobs.run(wait, timeout=1)))
        polite_ = group.create_task(_error(jobs.run(polite, timeout=1)))
        early = group.create_task(jobs.run("echo early", timeout=3))
        array = group.create_task(_error(jobs.run(wait, "list", timeout=1)))
    assert bad.result().endswith("its last lines:\nbad")
    assert (tmp_path / "work/bad/err").read_text() == "bad\n"
    end = r"is TIMEOUT \(its time limit of 1 s\) with exit code 124 after \d+ s; "
    assert re.search(rf"{end}its last lines:\nbegun", late.result())
    assert re.search(end, polite_.result())
    assert re.search(end, array.result())
    assert early.result() == ("early", 0)


@pytest.mark.parametrize("allocation", ["per-step", "elastic"])
async def test_a_file_has_only_what_its_tool_writes_there(
    lab: Lab, tmp_path: Path, allocation: str
) -> None:
    for name, directive in (("plain", ""), ("own", "#SBATCH --error=err-%j\n")):
        (tmp_path / f"{name}.sh").write_text(
            f"#!/bin/sh\n{directive}echo banner\necho module >&2\n"
            "{{streamflow_command}}\n"
        )
    services: dict[str, JSON] = {
        "plain": {"file": "plain.sh"},
        "own": {"file": "own.sh", "allocation": "per-step"},
    }
    both = "sh -c 'echo result; echo warning >&2; exit {}'"
    alone: dict[str, Any] = {"stdout": "f", "stderr": asyncio.subprocess.STDOUT}
    async with (
        cluster(lab, tmp_path, allocation=allocation, services=services) as jobs,
        asyncio.TaskGroup() as group,
    ):

        def start(
            name: str, service: str, code: int = 0, command: str = both, **streams: Any
        ) -> asyncio.Task[tuple[str, int]]:
            streams = streams or alone
            return group.create_task(
                jobs.run(command.format(code), service, name=name, **streams)
            )

        good = start("good", "plain")
        bad = start("bad", "plain", 3)
        apart = start("apart", "plain", 3, stdout="f", stderr="g")
        together = start("together", "plain", 3, stdout="f", stderr="f")
        own = start("own", "own", 3)
    folder = tmp_path / "work"
    for name in ("good", "bad", "apart", "own"):
        assert (folder / name / "f").read_text() == "result\n", name
    assert (folder / "apart/g").read_text() == "warning\n"
    assert (folder / "together/f").read_text() == "result\nwarning\n"
    assert good.result() == ("banner\nmodule\nwarning", 0)
    messages = {
        "banner\nmodule\nwarning": [bad, apart, own],
        "banner\nmodule\nresult\nwarning": [together],
    }
    for lines, tasks in messages.items():
        for task in tasks:
            text, code = task.result()
            assert (code, text.partition("its last lines:\n")[2]) == (3, lines)


async def test_each_task_of_an_array_has_its_own_output(
    lab: Lab, tmp_path: Path
) -> None:
    head = "#!/bin/sh\n#SBATCH --array=1-3%1 --output=out-%a"
    (tmp_path / "own.sh").write_text(f"{head}\n{{{{streamflow_command}}}}\n")
    services: dict[str, JSON] = {"list": {"array": "1-3%1"}, "own": {"file": "own.sh"}}
    lines = [f"task {number}" for number in (1, 2, 3)]
    speak = "echo task $SLURM_ARRAY_TASK_ID"
    async with (
        cluster(lab, tmp_path, services=services) as jobs,
        asyncio.TaskGroup() as group,
    ):
        started = [group.create_task(jobs.run(speak, name)) for name in services]
        bad = group.create_task(
            jobs.failing(f"{speak}; [ $SLURM_ARRAY_TASK_ID -ne 1 ] || exit 3", "list")
        )
    for task in started:
        assert task.result() == ("\n".join(lines), 0)
    assert bad.result().partition("its last lines:\n")[2].splitlines() == lines


async def test_an_array_that_never_starts_is_told_with_its_reason(
    lab: Lab, tmp_path: Path
) -> None:
    head = "#!/bin/sh\n#SBATCH --array=1-2 --begin=now+1hour --output=out-%a"
    (tmp_path / "own.sh").write_text(f"{head}\n{{{{streamflow_command}}}}\n")
    services: dict[str, JSON] = {
        "list": {"array": "1-2", "begin": "now+1hour"},
        "own": {"file": "own.sh"},
    }
    async with (
        cluster(lab, tmp_path, services=services) as jobs,
        asyncio.TaskGroup() as group,
    ):
        waiting = [
            group.create_task(jobs.failing("echo begun", name)) for name in services
        ]
        ids = await jobs.submitted(len(services))
        lab.output("scancel", *map(str, ids.values()))
    for task in waiting:
        assert " is CANCELLED " in task.result()
        assert task.result().endswith("; it printed nothing")


async def test_a_failure_is_told_though_its_files_are_unknown(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(*_: object) -> str:
        raise WorkflowExecutionException("The output of a job cannot be read: lost")

    async def forgotten(*_: object) -> str:
        return ""

    head = "#!/bin/sh\n#SBATCH --array=1-2 --output=out-%a"
    (tmp_path / "own.sh").write_text(f"{head}\n{{{{streamflow_command}}}}\n")
    services: dict[str, JSON] = {"own": {"file": "own.sh"}}
    async with cluster(lab, tmp_path, services=services) as jobs:
        monkeypatch.setattr(Commands, "files", unknown)
        bad, good = await asyncio.gather(
            jobs.failing("exit 3", "own"), jobs.failing("echo well", "own")
        )
        monkeypatch.setattr(Commands, "files", forgotten)
        empty = await jobs.failing("echo well", "own")
    assert " with exit code 3 " in bad
    assert bad.endswith("; its output cannot be read")
    assert good == "The output of a job cannot be read: lost"
    assert empty.endswith(": Slurm no longer knows the job's output files")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_an_array_that_shares_a_file_is_refused(
    lab: Lab, tmp_path: Path, stream: str
) -> None:
    services: dict[str, JSON] = {"list": {"array": "1-2"}}
    async with cluster(lab, tmp_path, services=services) as jobs:
        with pytest.raises(WorkflowExecutionException) as refusal:
            await jobs.run("echo result", "list", **{stream: "f"})
        assert jobs.ids() == {}
    assert str(refusal.value) == (
        f"Job /{jobs.name}/1: the tasks of an array would overwrite each other's output in "
        "f: remove the option array from the service list, and let the workflow scatter "
        "the step"
    )


@pytest.mark.parametrize(
    ("allocation", "remedy"),
    [
        ("elastic", "give the service allocation: per-step"),
        (
            {"strategy": "reserved", "reserve": ["list"]},
            "take the service out of reserve",
        ),
    ],
)
async def test_an_array_that_keeps_an_allocation_is_refused(
    lab: Lab, tmp_path: Path, allocation: JSON, remedy: str
) -> None:
    services: dict[str, JSON] = {"list": {"array": "1-2"}}
    refusal = f"an array; remove array, or {remedy}\\.$"
    async with cluster(lab, tmp_path, services=services, allocation=allocation) as jobs:
        with pytest.raises(WorkflowDefinitionException, match=refusal):
            await jobs.connector.deploy(False)


async def _error(running: Awaitable[tuple[str, int]]) -> str:
    """What is wrong with a job that fails."""
    try:
        text, code = await running
    except WorkflowExecutionException as error:
        return str(error)
    assert code != 0
    return text


async def test_a_pipe_is_refused(lab: Lab, tmp_path: Path) -> None:
    async with cluster(lab, tmp_path) as jobs:
        with pytest.raises(WorkflowExecutionException, match="cannot have a pipe"):
            await jobs.run("true", stdout=asyncio.subprocess.PIPE)


def _features(name: str) -> list[str]:
    return [f"AvailableFeatures={name}", f"ActiveFeatures={name}"]


def _heard(caplog: pytest.LogCaptureFixture) -> _Heard:
    return _Heard(caplog)


class _Heard:
    """StreamFlow's logger, which tells no other, is heard in between."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._handler = caplog.handler
        self._logger = logging.getLogger("streamflow")

    def __enter__(self) -> None:
        self._logger.addHandler(self._handler)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self._handler)


async def test_a_script_that_is_longer_than_an_argument_may_be(
    lab: Lab, tmp_path: Path
) -> None:
    # as of a step that gathers 3,000 files
    names = [f"/{'long' * 12}/part {number}" for number in range(3000)]
    command = "printf '%s\\n' " + " ".join(map(shlex.quote, names)) + " | wc -lc"
    assert len(command) > 128 * 1024
    services: dict[str, JSON] = {"kept": {"allocation": "elastic"}}
    async with cluster(lab, tmp_path, services=services) as jobs:
        counts = await asyncio.gather(jobs.run(command), jobs.run(command, "kept"))
    size = sum(len(name) + 1 for name in names)
    assert [(text.split(), code) for text, code in counts] == 2 * [
        (["3000", str(size)], 0)
    ]


async def test_what_users_set_for_themselves_changes_nothing(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {
        "SQUEUE_FORMAT": "%i",
        "SQUEUE_FORMAT2": "jobid",
        "SQUEUE_STATES": "PENDING",
        "SQUEUE_PARTITION": "quantum",
        "SQUEUE_USERS": "nobody",
        "SLURM_TIME_FORMAT": "relative",
        "SLURM_CLUSTERS": "elsewhere",
        "SBATCH_CLUSTERS": "elsewhere",
        "SBATCH_WAIT": "1",
        "SBATCH_ARRAY_INX": "1-3",
        "SCANCEL_INTERACTIVE": "true",
        "SCANCEL_STATE": "PENDING",
        "LC_ALL": "C.UTF-8",
        "LANG": "de_DE.UTF-8",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    services: dict[str, JSON] = {"kept": {"allocation": "elastic"}}
    plain = [name for name in variables if not name.startswith("S")]
    shown = "echo " + " ".join(f"${name}" for name in ("SQUEUE_FORMAT", *plain))
    async with cluster(lab, tmp_path, services=services) as jobs:
        alone, kept, failing = await asyncio.gather(
            jobs.run(shown), jobs.run(shown, "kept"), jobs.failing("exit 3")
        )
        # a job has the environment of its user
        assert alone == kept == ("%i C.UTF-8 de_DE.UTF-8", 0)
        assert "with exit code 3" in failing
        for name in variables:
            monkeypatch.delenv(name)
        lasting = asyncio.create_task(jobs.failing("sleep 100"))
        (id_,) = (await jobs.running()).values()
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        lasting.cancel()
        with suppress(asyncio.CancelledError):
            await lasting
        for name in variables:
            monkeypatch.delenv(name)
        await until_async(lambda: lab.state(id_) == "CANCELLED", "its end")


async def test_a_comment_of_a_users_own_hides_no_job(
    lab: Lab, tmp_path: Path, stand_ins: StandIns
) -> None:
    stand_ins.lose_first_answer()
    services: dict[str, JSON] = {"own": {"comment": "qpu-seconds=10 a b"}}
    async with cluster(lab, tmp_path, services=services) as jobs:
        ran = "scontrol show job $SLURM_JOB_ID | grep Comment="
        text, code = await jobs.run(ran, "own")
    assert code == 0
    assert text.endswith(" qpu-seconds=10 a b")
    assert stand_ins.count("tries") == 1


async def test_jobs_of_which_the_controller_has_lost_its_record(
    start_lab: StartLab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    services: dict[str, JSON] = {
        "later": {"begin": "now+1hour"},
        "kept": {"allocation": "elastic", "begin": "now+1hour"},
        "held": {
            "allocation": {"strategy": "reserved", "reserve": ["held", "both"]},
            "begin": "now+1hour",
        },
        "both": {},
        "list": {"array": "1-2", "begin": "now+1hour"},
    }
    names = ["later", "kept", "held"]
    runs = tmp_path / "runs"
    with start_lab(Options(nodes=4, qnodes=0)) as lab, _heard(caplog):
        async with cluster(lab, tmp_path, services=services) as jobs:
            work = [asyncio.create_task(jobs.run("echo well", name)) for name in names]
            task = f"echo $SLURM_ARRAY_TASK_ID >>{runs}"
            array = asyncio.create_task(jobs.run(task, "list"))
            await until_async(lambda: len(lab.jobs()) == 5, "the jobs")
            before = {*lab.jobs()}
            lab.kill_controller()
            for file in (lab.folder / "state").glob("job_state*"):
                file.unlink()
            await asyncio.to_thread(lab.start_controller)
            assert lab.jobs() == []
            await until_async(lambda: len(lab.jobs()) == 5, "the jobs once more")
            assert {*lab.jobs()} == before
            for id_ in before:
                lab.run("scontrol", "update", f"JobId={id_}", "StartTime=now")
            assert await asyncio.gather(*work) == 3 * [("well", 0)]
            assert await array == ("", 0)
    assert sorted(runs.read_text().split()) == ["1", "2"]
