"""The detection of jobs that no location of their targets could ever run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamflow.core.config import BindingConfig
from streamflow.core.deployment import Target
from streamflow.core.exception import WorkflowDefinitionException
from streamflow.core.scheduling import Hardware, HardwareRequirement
from streamflow.core.workflow import Job

from sf_quantum.text import plural

if TYPE_CHECKING:
    from streamflow.core.context import StreamFlowContext


class Feasibility:
    """Compares the requirements of jobs with the largest location of each target."""

    def __init__(self, context: StreamFlowContext) -> None:
        self._context = context
        # Deployment, service and requirements, if some location meets the requirements.
        self._possible: set[tuple[str, str | None, str]] = set()

    async def check(
        self,
        job: Job,
        binding_config: BindingConfig,
        requirement: HardwareRequirement | None,
    ) -> None:
        """Reject a job that no location of its targets could ever run.

        StreamFlow 0.2.0rc3 would let such a job wait without limit. If a filter chooses from
        the targets, they are not checked, since the check would deploy them.

        :raises WorkflowDefinitionException: if the job requires more than any target has
        """
        if requirement is None or binding_config.filters:
            return
        lacking = []
        for target in binding_config.targets:
            required = required_of(requirement, job, target)
            need = target.deployment.name, target.service, _shown(required)
            if need in self._possible:
                return
            largest = await self._largest(target, required)
            if largest is None:
                self._possible.add(need)
                return
            lacking.append(f"{target.deployment.name} has {_shown(largest)}")
        what = f"the job requires {_shown(required)}, and {'; '.join(lacking)}"
        raise WorkflowDefinitionException(what)

    async def _largest(self, target: Target, required: Hardware) -> Hardware | None:
        """Return the largest location of a target; ``None`` if a location may have enough."""
        name = target.deployment.name
        connector = self._context.deployment_manager.get_connector(name)
        if connector is None:
            return None
        locations = await connector.get_available_locations(service=target.service)
        hardware = [location.hardware for location in locations.values()]
        reported = [one for one in hardware if one is not None]
        if len(reported) < len(hardware) or not reported:
            return None
        if any(_has_enough(one, required) for one in reported):
            return None
        return max(reported, key=lambda one: one.cores)


def required_of(
    requirement: HardwareRequirement | None, job: Job, target: Target
) -> Hardware:
    """Return the hardware that a job requires from a target, as evaluated by StreamFlow."""
    if requirement is None:
        return Hardware()
    folder = target.workdir
    return requirement.eval(
        Job(job.name, job.workflow_id, job.inputs, folder, folder, folder)
    )


def _has_enough(hardware: Hardware, required: Hardware) -> bool:
    return hardware.cores >= required.cores and hardware.memory >= required.memory


def _shown(hardware: Hardware) -> str:
    """Describe the cores and the memory."""
    cores = plural(hardware.cores, "core")
    return f"{cores} and {hardware.memory:,.0f} MiB of memory"
