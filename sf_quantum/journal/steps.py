"""The steps of a run's workflows, read from StreamFlow's database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from streamflow.core.utils import get_job_step_name, get_job_tag
from streamflow.core.workflow import Status

from sf_quantum.files import mapping, number
from sf_quantum.journal.reuse import Reuse

if TYPE_CHECKING:
    from streamflow.core.context import StreamFlowContext

# suffixes of the steps that StreamFlow adds for a loop, and for a condition
LOOP = "-loop-combinator"
WHEN = "-when"


class Steps:
    """Loops, conditions and skipped jobs of the added workflows."""

    def __init__(self, context: StreamFlowContext) -> None:
        self._context = context
        self._workflows: set[int] = set()
        self._loops: set[str] = set()
        #: condition of each step, by the name of StreamFlow's step that evaluates it
        self.conditions: dict[str, str] = {}

    async def add(self, workflow: int, reuse: Reuse) -> None:
        """Read the steps of a workflow, and add them to ``reuse``."""
        if workflow in self._workflows:
            return
        self._workflows.add(workflow)
        for row in await self._context.database.get_workflow_steps(workflow):
            step = str(row["name"])
            # Loops are recorded, since a tag does not distinguish loops from scatters.
            if step.endswith(LOOP):
                self._loops.add(step.removesuffix(LOOP))
            if step.endswith(WHEN):
                expression = mapping(row["params"]).get("expression")
                self.conditions[step] = str(expression)
            reuse.add_step(step, row["params"])

    def depth(self, step: str) -> int:
        """Return the number of loops around a step."""
        return sum(PurePosixPath(step).is_relative_to(loop) for loop in self._loops)

    async def have_completed(self) -> bool:
        """Return whether all workflows are completed in the database."""
        for workflow in self._workflows:
            row = await self._context.database.get_workflow(workflow)
            if row["status"] != Status.COMPLETED.value:
                return False
        return True

    async def skipped(self, jobs: Collection[str]) -> AsyncIterator[tuple[str, str]]:
        """Yield step and tag of each job that a ``when`` has skipped.

        StreamFlow does not create these jobs: its conditional step outputs null instead of
        the job's outputs.

        :param jobs: names of the jobs that StreamFlow has created
        """
        database = self._context.database
        for workflow in self._workflows:
            for row in await database.get_workflow_steps(workflow):
                if not str(row["type"]).endswith(".CWLConditionalStep"):
                    continue
                step = str(row["name"]).removesuffix(WHEN)
                ran = _tags_below(step, jobs)
                ports = mapping(row["params"].get("skip_ports")).values()
                for port in [*ports][:1]:
                    for one in await database.get_port_tokens(int(number(port))):
                        token = await database.get_token(one)
                        if token["value"] is None and token["tag"] not in ran:
                            yield step, str(token["tag"])


def _tags_below(step: str, jobs: Collection[str]) -> set[str]:
    """Return the tags of a step's jobs, and the tags that are prefixes of these."""
    tags = (
        get_job_tag(name).split(".")
        for name in jobs
        if PurePosixPath(get_job_step_name(name)).is_relative_to(step)
    )
    return {".".join(tag[:count]) for tag in tags for count in range(1, len(tag) + 1)}
