"""The end of a run in its journal, by StreamFlow's own scheduler and database."""

from __future__ import annotations

from pathlib import Path

from streamflow.core.config import BindingConfig
from streamflow.core.deployment import LocalTarget
from streamflow.core.workflow import Job, Status, Workflow
from streamflow.ext.utils import load_extensions
from streamflow.main import build_context

from sf_quantum.journal import newest, read
from sf_quantum.reporting.runs import Run


async def test_a_run_that_has_dropped_a_job_has_failed(tmp_path: Path) -> None:
    """StreamFlow 0.2.0rc3 may end a run while a job runs that no output depends on."""
    load_extensions()
    context = build_context(
        {
            "path": str(tmp_path / "sf.yml"),
            "workflows": {"main": {}},
            "database": {"type": "default", "config": {"connection": ":memory:"}},
            "scheduling": {"scheduler": {"type": "sfq.journal", "config": {}}},
        }
    )
    id_ = await context.database.add_workflow(
        "main", {}, Status.RUNNING.value, Workflow
    )
    target = LocalTarget(str(tmp_path))
    await context.deployment_manager.deploy(target.deployment)
    for name in ("/kept/0", "/loop/dropped/0.1", "/kept-collector/0"):
        job = Job(name, id_, {}, None, None, None)
        await context.scheduler.schedule(job, BindingConfig([target]), None)
        await context.scheduler.notify_status(name, Status.RUNNING)
    await context.scheduler.notify_status("/kept/0", Status.COMPLETED)
    await context.database.update_workflow(id_, {"status": Status.COMPLETED.value})
    await context.close()
    path = newest(tmp_path / ".streamflow/sfq")
    assert path is not None
    assert read(path)[-1]["status"] == "failed"
    assert {one["step"]: one["status"] for one in Run(path).report()} == {
        "kept": "completed",
        "loop/dropped": "failed",
    }
    [why] = Run(path).report().failures
    assert "let an output depend on it" in why
