"""Errors of StreamFlow outside of its steps, which end a run without a failed job."""

from __future__ import annotations

import argparse
import asyncio
from types import SimpleNamespace

import pytest
from streamflow import main

from sf_quantum.files import JSON
from sf_quantum.journal.run_failure import workflow_error


@pytest.mark.parametrize("error", [RuntimeError("no outputs"), None])
async def test_an_error_outside_of_the_steps_is_found(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError | None
) -> None:
    """StreamFlow's own command, which closes its context before it logs the error."""
    found: list[BaseException | None] = []

    async def workflow(*_: object) -> None:
        if error is not None:
            raise error

    async def look() -> None:
        found.append(workflow_error(run))

    async def close() -> None:
        await asyncio.create_task(look())

    config: dict[str, dict[str, JSON]] = {"workflows": {"w": {}}}
    validator = SimpleNamespace(validate_file=lambda file: config)
    stand_ins = {
        "load_extensions": lambda: None,
        "SfValidator": lambda: validator,
        "build_context": lambda config: SimpleNamespace(close=close),
        "WorkflowConfig": lambda name, config: SimpleNamespace(type="cwl"),
        "cwl_main": workflow,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(main, name, stand_in)
    arguments = argparse.Namespace(name="w", streamflow_file="f.yml")
    run = asyncio.create_task(main._async_run(arguments))
    await asyncio.wait([run])
    assert found == [error]
    assert run.exception() is error
