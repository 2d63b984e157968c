"""The end of a run in its journal, by StreamFlow's own scheduler and database."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from streamflow.core.config import BindingConfig
from streamflow.core.context import StreamFlowContext
from streamflow.core.deployment import LocalTarget
from streamflow.core.exception import WorkflowExecutionException
from streamflow.core.workflow import Job, Status, Workflow
from streamflow.ext.utils import load_extensions
from streamflow.log_handler import logger
from streamflow.main import build_context
from streamflow.scheduling.scheduler import DefaultScheduler

from sf_quantum.connectors import hints
from sf_quantum.journal import current, newest, read
from sf_quantum.journal.events import End
from sf_quantum.reporting.runs import Report, Run


def _context(folder: Path) -> StreamFlowContext:
    load_extensions()
    return build_context(
        {
            "path": str(folder / "sf.yml"),
            "workflows": {"main": {}},
            "database": {"type": "default", "config": {"connection": ":memory:"}},
            "scheduling": {"scheduler": {"type": "sfq.journal", "config": {}}},
        }
    )


async def ended(
    folder: Path,
    jobs: Mapping[str, Sequence[Status]],
    outcome: Status = Status.COMPLETED,
) -> Report:
    """The report of a run that StreamFlow ends, as completed by default.

    :param jobs: what StreamFlow says of each job, after it was scheduled
    """
    context = _context(folder)
    id_ = await context.database.add_workflow(
        "main", {}, Status.RUNNING.value, Workflow
    )
    target = LocalTarget(str(folder))
    await context.deployment_manager.deploy(target.deployment)
    for name, statuses in jobs.items():
        job = Job(name, id_, {}, None, None, None)
        await context.scheduler.schedule(job, BindingConfig([target]), None)
        for status in statuses:
            await context.scheduler.notify_status(name, status)
    await context.database.update_workflow(id_, {"status": outcome.value})
    await context.close()
    path = newest(folder / ".streamflow/sfq")
    assert path is not None
    assert isinstance(read(path)[-1], End)
    return Run(path).report()


async def test_a_run_that_has_dropped_a_job_has_failed(tmp_path: Path) -> None:
    """StreamFlow 0.2.0rc3 may end a run while a job runs that no output depends on."""
    report = await ended(
        tmp_path,
        {
            "/kept/0": [Status.RUNNING, Status.COMPLETED],
            "/loop/dropped/0.1": [Status.RUNNING],
            "/kept-collector/0": [Status.RUNNING],
        },
    )
    assert report.status == "failed"
    assert {one["step"]: one["status"] for one in report} == {
        "kept": "completed",
        "loop/dropped": "failed",
    }
    [why] = report.failures
    assert "let an output depend on it" in why


async def test_the_reason_is_the_failure_that_was_not_recovered(tmp_path: Path) -> None:
    failed = [Status.RUNNING, Status.FAILED]
    jobs = {
        "/a/0.0": [Status.RUNNING, Status.RECOVERY],
        "/a/0.1": failed,
        "/a/0.2": failed,
        "/b-collector/0": failed,
        "/c/0": [Status.RUNNING, Status.RECOVERY, Status.COMPLETED],
    }
    report = await ended(tmp_path, jobs, outcome=Status.FAILED)
    end = Run(report.path).events()[-1]
    assert isinstance(end, End)
    assert (end.job, end.status) == ("/a/0.1", "failed")
    assert str(end.reason).startswith("/a/0.1 on local failed")
    assert len(report.failures) == 2


async def test_a_run_without_a_dropped_job_has_completed(tmp_path: Path) -> None:
    report = await ended(
        tmp_path,
        {
            "/done/0": [Status.RUNNING, Status.COMPLETED],
            # for the recovery of another, which then did not need it
            "/back/0": [Status.RUNNING, Status.COMPLETED, Status.ROLLBACK],
            "/left/0": [Status.SKIPPED],
            "/done-collector/0": [Status.RUNNING],
        },
    )
    assert report.status == "completed"
    assert not report.failures


@pytest.mark.parametrize(
    "end", [Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.RECOVERY]
)
async def test_hints_are_forgotten_when_an_attempt_ends(
    tmp_path: Path, end: Status
) -> None:
    context, name = _context(tmp_path), "/solve/0"
    id_ = await context.database.add_workflow(
        "main", {}, Status.RUNNING.value, Workflow
    )
    target = LocalTarget(str(tmp_path))
    await context.deployment_manager.deploy(target.deployment)
    for _ in range(2):
        job = Job(name, id_, {}, None, None, None)
        await context.scheduler.schedule(job, BindingConfig([target]), None)
        assert hints.of(name).is_bound_once
        await context.scheduler.notify_status(name, Status.RUNNING)
        await context.scheduler.notify_status(name, end)
        assert not hints.of(name).is_bound_once
    await context.close()


async def test_a_job_that_begins_when_the_run_ends_is_cancelled(tmp_path: Path) -> None:
    """The engine takes away its deployment, which is not why the run has failed."""
    context = _context(tmp_path)
    id_ = await context.database.add_workflow(
        "main", {}, Status.RUNNING.value, Workflow
    )
    target = LocalTarget(str(tmp_path))
    await context.deployment_manager.deploy(target.deployment)
    for name in ("/solve/0.0", "/solve/0.1"):
        job = Job(name, id_, {}, None, None, None)
        await context.scheduler.schedule(job, BindingConfig([target]), None)
    journal = current()
    assert journal is not None

    async def begin() -> None:
        """Do as StreamFlow's steps do with a job, while the run's leases end."""
        status = Status.FAILED
        try:
            await context.scheduler.notify_status("/solve/0.1", Status.RUNNING)
        except asyncio.CancelledError:
            status = Status.CANCELLED
        except WorkflowExecutionException as error:
            logger.error(error)
        await context.scheduler.notify_status("/solve/0.1", status)

    journal.before_end.append(begin)
    await context.scheduler.notify_status("/solve/0.0", Status.FAILED)
    await context.database.update_workflow(id_, {"status": Status.FAILED.value})
    await context.close()
    report = Run(journal.path).report()
    assert [one["status"] for one in report] == ["failed", "cancelled"]
    assert len(report.failures) == 1


async def test_a_job_that_waits_when_the_run_ends_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine takes away its location, which is not why the run has failed."""
    context, waits, taken = _context(tmp_path), asyncio.Event(), asyncio.Event()
    id_ = await context.database.add_workflow(
        "main", {}, Status.RUNNING.value, Workflow
    )
    target = LocalTarget(str(tmp_path))
    await context.deployment_manager.deploy(target.deployment)
    binding = BindingConfig([target])
    await context.scheduler.schedule(
        Job("/solve/0.0", id_, {}, None, None, None), binding, None
    )

    async def wait(*_: object) -> None:
        waits.set()
        await taken.wait()
        raise AttributeError("'NoneType' object has no attribute 'name'")

    monkeypatch.setattr(DefaultScheduler, "schedule", wait)
    waiting = asyncio.create_task(
        context.scheduler.schedule(
            Job("/solve/0.1", id_, {}, None, None, None), binding, None
        )
    )
    await waits.wait()
    await context.scheduler.notify_status("/solve/0.0", Status.FAILED)
    await context.database.update_workflow(id_, {"status": Status.FAILED.value})
    closing = asyncio.create_task(context.close())
    await asyncio.sleep(0)
    taken.set()
    with pytest.raises(AttributeError):
        await waiting
    await closing
    path = newest(tmp_path / ".streamflow/sfq")
    assert path is not None
    report = Run(path).report()
    assert [one["status"] for one in report] == ["failed", "cancelled"]
    assert all("NoneType" not in why for why in report.failures)
