"""The outputs of a job, of which its workflow gets all or none."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import cast

from streamflow.core.deployment import Connector
from streamflow.core.exception import WorkflowExecutionException
from streamflow.core.recovery import recoverable
from streamflow.core.utils import get_entity_ids, make_future
from streamflow.core.workflow import Command, Job, Status
from streamflow.workflow.step import ExecuteStep
from streamflow.workflow.utils import get_job_token


def install() -> None:
    """Let no output of a failed attempt reach another step, in this process.

    StreamFlow 0.2.0rc3 passes on each output as soon as it is collected. If another output
    of the same attempt is missing or wrong, the job is retried, and the steps that follow
    mix the outputs of both attempts.
    """
    ExecuteStep._execute_command = _execute_command  # type: ignore[method-assign]


@recoverable  # type: ignore[untyped-decorator]
async def _execute_command(
    self: ExecuteStep, job: Job, connectors: MutableMapping[str, Connector]
) -> None:
    """Run an attempt, and put its outputs into their ports once all are collected."""
    output = await cast(Command, self.command).execute(job)
    if output.status == Status.FAILED:
        raise WorkflowExecutionException(
            f"FAILED Job {job.name} with error:\n\t{output.value}"
        )
    if output.status != Status.COMPLETED or self.terminated:
        return
    collected = await asyncio.gather(
        *(
            self.output_processors[name].process(
                job, make_future(output), connectors.get(name), recoverable=True
            )
            for name in self.output_ports
        )
    )
    job_token = get_job_token(job.name, self.get_job_port().token_list)
    inputs = get_entity_ids((*job.inputs.values(), job_token))
    ports = [self.workflow.ports[port] for port in self.output_ports.values()]
    tokens = [
        (port, await self._persist_token(token, port, inputs))
        for port, token in zip(ports, collected, strict=True)
        if token is not None
    ]
    for port, token in tokens:
        port.put(token)
    for port, token in tokens:
        await self.workflow.context.failure_manager.notify(port.name, token, job_token)
