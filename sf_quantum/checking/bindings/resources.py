"""Checks whether locations meet the steps' requirements: cores, memory, containers.

StreamFlow 0.2.0rc3 lets a job wait without limit, and without a message, for cores that no
location has; and it runs containers only on a deployment with one location.
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
IMAGES = {"dockerPull", "dockerImageId", "$import"}
NODES = "sfq.nodes"
MEBIBYTE = 2**20


def check(
    deployments: Deployments,
    process: Process,
    bound: Callable[[str], Binding | None],
) -> Iterator[FileProblem]:
    """Check each tool against the targets of its step.

    :param bound: returns the binding of a step
    """
    for step, tool in process.commands.items():
        binding = bound(step)
        yield from _hardware(deployments, tool, step, binding)
        yield from _image(tool)
        if binding is not None and DOCKER in tool.features:
            yield from _container(deployments, step, binding)


def _hardware(
    deployments: Deployments, tool: Position, step: str, binding: Binding | None
) -> Iterator[FileProblem]:
    """Find steps that require more than this host has, and have no other target."""
    names = binding.deployment_names if binding else []
    # a wrapper's locations have slots instead
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
        for key, has in available.items():
            wanted = mapping(entry.body).get(key)
            if isinstance(wanted, int | float) and wanted > has:
                what = f"{key} is {wanted}, but this host, where {step} runs, has {has}"
                right = f"write {has} or less, or bind the step elsewhere"
                where: KeyPath = (*entry.where, key)
                yield tool.document.problem(where, what, right)


def _image(tool: Position) -> Iterator[FileProblem]:
    """Find containers whose image StreamFlow cannot get."""
    for entry in tool.requirements:
        if entry.name == DOCKER and not IMAGES & mapping(entry.body).keys():
            what = "StreamFlow needs dockerPull or dockerImageId"
            yield tool.document.problem(entry.where, what, "name the image")


def _container(
    deployments: Deployments, step: str, binding: Binding
) -> Iterator[FileProblem]:
    """Find containers on several locations of one deployment."""
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
