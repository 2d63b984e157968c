"""Checks that the QPUs to which steps are bound can run them now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sf_quantum.candidates.decision import Exclusion, FilterRules, describe
from sf_quantum.candidates.targets import (
    StatusPoller,
    StatusReply,
    StatusSource,
    status_source,
    target_name,
)
from sf_quantum.check.candidates import TYPE
from sf_quantum.check.deployments import Binding, Deployments
from sf_quantum.check.document import Document, FileProblem
from sf_quantum.files import JSON, listing, mapping

# for all QPUs together
SECONDS = 5.0
# what `sfq solve` sends
KIND = "problem"
# a larger file is not read for its size
LARGEST_BYTES = 64 * 1024 * 1024


@dataclass
class Qpus:
    """The QPUs of one StreamFlow file.

    :param silent: why a QPU could not be queried, by its target's name
    """

    deployments: Deployments
    silent: dict[str, str] = field(default_factory=dict)

    def check(
        self, bindings: list[Binding], settings: Document | None
    ) -> Iterator[FileProblem]:
        """Find steps that none of their targets can run now.

        A step with a classical target, or with a QPU that could not be queried, passes.

        :param settings: the workflow's inputs
        """
        steps = [binding for binding in bindings if binding.kind == "step"]
        replies = self._poll(steps)
        for binding in steps:
            names = [target_name(t) for t in self.deployments.targets(binding).values()]
            if not names or not replies.keys() >= {*names}:
                continue  # it has a classical target
            size = _size(self.deployments, binding, settings)
            obstacles = {
                name: obstacle
                for name in names
                if (obstacle := _obstacle(replies[name], size)) is not None
            }
            if len(obstacles) == len({*names}):
                reasons = "; ".join(f"{name}: {obstacles[name]}" for name in names)
                what = f"{binding.path} cannot run now: {reasons}"
                right = "bind it elsewhere, or wait for the QPU"
                where = (*binding.where, "target")
                yield self.deployments.document.problem(where, what, right)

    def _poll(self, steps: list[Binding]) -> dict[str, StatusReply]:
        folder = self.deployments.document.folder
        sources: dict[str, StatusSource] = {
            target_name(target): source
            for binding in steps
            for target in self.deployments.targets(binding).values()
            if (source := status_source(target, folder)) is not None
        }
        if not sources:
            return {}
        replies = asyncio.run(StatusPoller(cooldown=0.0).poll(sources, SECONDS))
        self.silent |= {
            name: describe(reply)
            for name, reply in replies.items()
            if isinstance(reply, Exclusion)
        }
        return replies


def _obstacle(status: StatusReply, size: int) -> str | None:
    if isinstance(status, Exclusion):
        return None
    if not status.online:
        return status.reason or "the QPU is offline"
    if status.payloads and KIND not in status.payloads:
        return f"the QPU only runs {' and '.join(status.payloads)} jobs"
    if 0 < status.qubits < size:
        return f"{size} variables do not fit on {status.qubits} qubits"
    return None


def _size(deployments: Deployments, binding: Binding, settings: Document | None) -> int:
    """A lower bound of the number of variables of a step's problem.

    The rules of a candidate may name the input that holds it. Otherwise the smallest problem
    file among the workflow's inputs gives it, since any of them may be the step's.
    """
    inputs = settings.content if settings is not None else {}
    filters = mapping(deployments.document.content.get("bindingFilters"))
    for key in listing(binding.content.get("filters")):
        entry = mapping(filters.get(str(key)))
        if entry.get("type") == TYPE:
            rules = FilterRules(mapping(entry.get("config"))).of(binding.path)
            if isinstance(size := inputs.get(rules.variables or ""), int):
                return size
    folder = settings.folder if settings is not None else Path()
    sizes = [_variables(value, folder) for value in inputs.values()]
    return min((size for size in sizes if size), default=0)


def _variables(value: JSON, folder: Path) -> int:
    """The number of variables of a problem file; 0 for everything else."""
    file = mapping(value).get("path", mapping(value).get("location"))
    if not isinstance(file, str) or not file.endswith(".json"):
        return 0
    path = folder / file.removeprefix("file://")
    try:
        if path.stat().st_size > LARGEST_BYTES:
            return 0
        content: JSON = json.loads(path.read_bytes())
    except (OSError, ValueError):  # another check reports it
        return 0
    size = mapping(mapping(content).get("bqm")).get("num_variables")
    return size if isinstance(size, int) else 0
