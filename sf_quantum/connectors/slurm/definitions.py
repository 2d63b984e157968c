"""Checks of a deployment, which reject invalid settings before its first job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from streamflow.core.exception import WorkflowDefinitionException

from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.allocation.elastic_rules import ElasticSettings
from sf_quantum.connectors.slurm.services import (
    SEVERAL_CLUSTERS,
    AllocationSettings,
    ReservedSettings,
    SlurmService,
    array_problem,
)
from sf_quantum.connectors.slurm.transport import rest
from sf_quantum.connectors.slurm.transport.slurmrestd import (
    RestError,
    Settings,
    Slurmrestd,
)
from sf_quantum.errors import InputError


def check(
    where: str,
    services: Mapping[str, SlurmService],
    default: AllocationSettings,
    template: Callable[[str], str],
    slurmrestd: Settings | None,
) -> None:
    """Check a deployment; the call blocks while a token for ``slurmrestd`` is created.

    :param where: name of the deployment in messages
    :param default: allocation settings of the services that have none
    :param template: function that returns the job script of a service, without a command
    :raises WorkflowDefinitionException: if a reserved service is not defined, a service
        with an array keeps an allocation, a key is not supported over slurmrestd,
        slurmrestd's token is missing, or clusters are named in a wrong place
    """
    strategies = [default, *(one.settings for one in services.values())]
    if slurmrestd is not None:
        _check_rest(where, services, strategies, template, slurmrestd)
    _check_reserved(where, services, strategies)
    for name, service in services.items():
        script = template(name)
        problem = array_problem(
            is_elastic=isinstance(service.settings or default, ElasticSettings),
            is_reserved=any(
                isinstance(one, ReservedSettings) and name in one.services
                for one in strategies
            ),
        )
        if problem is not None and service.is_array(script):
            raise WorkflowDefinitionException(
                f"{where}, service {name}: {'; '.join(problem)}."
            )
        if scripts.has_option(script, "-M", "--clusters"):
            raise WorkflowDefinitionException(
                f"{where}: the job template of service {name} names clusters; name them "
                "by the service's key `clusters`."
            )


def _check_reserved(
    where: str,
    services: Mapping[str, SlurmService],
    strategies: Collection[AllocationSettings | None],
) -> None:
    for one in strategies:
        if not isinstance(one, ReservedSettings):
            continue
        for name in one.services:
            if name not in services:
                raise WorkflowDefinitionException(
                    f"{where}: `reserve` names service {name}, which does not exist; its "
                    f"services: {', '.join(services) or 'none'}."
                )
        if len({services[name].clusters for name in one.services}) > 1:
            raise WorkflowDefinitionException(
                f"{where}: {'; '.join(SEVERAL_CLUSTERS)}."
            )


def _check_rest(
    where: str,
    services: Mapping[str, SlurmService],
    strategies: Collection[AllocationSettings | None],
    template: Callable[[str], str],
    settings: Settings,
) -> None:
    """Check the options, strategies, templates and token for ``slurmrestd``."""
    for name, service in services.items():
        for key, what, right in rest.unsupported(service.options):
            raise WorkflowDefinitionException(
                f"{where}, service {name}, {key}: {what}; {right}"
            )
    if any(
        isinstance(strategy, ReservedSettings | ElasticSettings)
        for strategy in strategies
    ):
        text = "; ".join(rest.ALLOCATION)
        raise WorkflowDefinitionException(f"{where}, allocation: {text}")
    for name in services:
        if scripts.directives(template(name)):
            text = "; ".join(rest.DIRECTIVES)
            raise WorkflowDefinitionException(f"{where}, service {name}: {text}")
    try:
        Slurmrestd(settings).token.get()
    except (InputError, RestError) as error:
        raise WorkflowDefinitionException(f"{where}, slurmrestd: {error}") from error
