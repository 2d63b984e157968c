"""Checks whether locations meet the steps' requirements: cores, memory, containers.

If no location has as many cores as a job requires, StreamFlow 0.2.0rc3 lets the job wait
without limit and without a message. It runs containers only on deployments with one location.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psutil

from sf_quantum.checking.bindings.binding import Binding
from sf_quantum.checking.cwl.processes import Position, Process
from sf_quantum.checking.deployments.references import Deployments, deployment_of
from sf_quantum.checking.document import FileProblem
from sf_quantum.files import JSON, KeyPath, listing, mapping

RESOURCES, DOCKER = "ResourceRequirement", "DockerRequirement"
# keys of DockerRequirement that name an image, or may include its name
IMAGES = {"dockerPull", "dockerImageId", "$import"}
NODES = "sfq.nodes"
MEBIBYTE = 2**20


def check(
    deployments: Deployments,
    process: Process,
    bound: Callable[[str], Binding | None],
) -> Iterator[FileProblem]:
    """Check each tool against the targets of its step.

    :param bound: function that returns the binding of a step
    """
    for step, tool in process.command_line_tools.items():
        binding = bound(step)
        yield from _check_hardware(deployments, tool, step, binding)
        yield from _check_image(tool)
        if binding is not None and DOCKER in tool.features:
            yield from _check_container(deployments, step, binding)


def _check_hardware(
    deployments: Deployments, tool: Position, step: str, binding: Binding | None
) -> Iterator[FileProblem]:
    """Find steps that can only run on this host, but require more than it has."""
    names = binding.deployment_names if binding else []
    # Locations of other deployments have slots, or unknown hardware.
    if any(deployments.get(name).get("type") != "local" for name in names):
        return
    available = {
        "coresMin": len(psutil.Process().cpu_affinity()),
        "ramMin": psutil.virtual_memory().total // MEBIBYTE,
    }
    for entry in tool.requirements:
        overridden = entry.where[-2] == "hints" and RESOURCES in tool.inherited
        if entry.name != RESOURCES or overridden:
            continue
        for key, most in available.items():
            wanted = mapping(entry.body).get(key)
            if isinstance(wanted, int | float) and wanted > most:
                what = (
                    f"{key} is {wanted}, but this host, where {step} runs, has {most}"
                )
                right = f"write {most} or less, or bind the step elsewhere"
                where: KeyPath = (*entry.where, key)
                yield tool.document.problem(where, what, right)


def _check_image(tool: Position) -> Iterator[FileProblem]:
    """Find container requirements that do not name an image that StreamFlow can get."""
    for entry in tool.requirements:
        if entry.name == DOCKER and not IMAGES & mapping(entry.body).keys():
            what = "StreamFlow needs dockerPull or dockerImageId"
            yield tool.document.problem(entry.where, what, "name the image")


def _check_container(
    deployments: Deployments, step: str, binding: Binding
) -> Iterator[FileProblem]:
    """Find a step with a container that is bound to a deployment with several locations."""
    for where, target in binding.references:
        name = deployment_of(target)
        nodes: list[JSON] = listing(deployments.config(name).get("names"))
        if deployments.get(name).get("type") == NODES and len(nodes) > 1:
            what = (
                f"{step} runs in a container ({DOCKER}), for which StreamFlow needs a "
                f"deployment with one location; {name} has {len(nodes)}"
            )
            right = "bind it to a deployment of type local, or with one name"
            yield deployments.document.problem(where, what, right)
