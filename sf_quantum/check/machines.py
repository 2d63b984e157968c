"""The QPUs that steps are bound to, asked whether they can run them as they are now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sf_quantum.candidates.asking import Answer, Asker, Source, name, source
from sf_quantum.candidates.policy import Policies
from sf_quantum.check.candidates import TYPE, targets_of
from sf_quantum.check.deployments import Deployments
from sf_quantum.check.document import Document, Problem, listing, mapping
from sf_quantum.files import JSON
from sf_quantum.qpu import QpuStatus

if TYPE_CHECKING:
    from sf_quantum.check.workflows import Binding

# for all of them together
SECONDS = 5.0
# what `sfq solve` sends
KIND = "problem"
# a larger file is not read for its size
LARGEST_BYTES = 64 * 1024 * 1024


@dataclass
class Machines:
    """The QPUs of one StreamFlow file, each asked once.

    :param silent: those that could not be asked, and why
    """

    deployments: Deployments
    silent: dict[str, str] = field(default_factory=dict)

    def check(
        self, bindings: list[Binding], settings: Document | None
    ) -> Iterator[Problem]:
        """Look for steps that no target can run now.

        One that has another target besides, or whose QPU cannot be asked, may run.

        :param settings: the workflow's inputs
        """
        steps = [binding for binding in bindings if binding.kind == "step"]
        answers = self._answers(steps)
        for binding in steps:
            targets = [name(t) for t in targets_of(self.deployments, binding).values()]
            if not targets or not answers.keys() >= {*targets}:
                continue  # it has a place that is no QPU, for which no file is read
            size = _size(self.deployments, binding, settings)
            why = {target: _refusal(answers[target], size) for target in targets}
            if all(why.values()):
                words = "; ".join(f"{target}: {why[target]}" for target in targets)
                what = f"{binding.path} cannot run now: {words}"
                right = "bind it elsewhere, or wait for the QPU"
                yield self.deployments.document.problem(
                    (*binding.where, "target"), what, right
                )

    def _answers(self, steps: list[Binding]) -> dict[str, Answer]:
        sources: dict[str, Source] = {}
        for binding in steps:
            for target in targets_of(self.deployments, binding).values():
                asked = source(target, self.deployments.document.folder)
                if asked is not None:
                    sources[name(target)] = asked
        answers = (
            asyncio.run(Asker(cooldown=0.0).ask(sources, SECONDS)) if sources else {}
        )
        self.silent |= {
            target: answer
            for target, answer in answers.items()
            if isinstance(answer, str)
        }
        return answers


def _refusal(answer: Answer, size: int) -> str | None:
    if not isinstance(answer, QpuStatus):
        return None
    if not answer.online:
        return answer.reason or "it is not online"
    if answer.payloads and KIND not in answer.payloads:
        return f"it runs {' and '.join(answer.payloads)} only"
    if 0 < answer.qubits < size:
        return f"{size} variables do not fit on its {answer.qubits} qubits"
    return None


def _size(deployments: Deployments, binding: Binding, settings: Document | None) -> int:
    """How many variables a step's problem has at least, as far as it is known.

    A candidate says the name of the input that tells it; else it is the smallest of
    the problem files among the workflow's inputs, since any of them may be the step's.
    """
    inputs = settings.content if settings is not None else {}
    filters = mapping(deployments.document.content.get("bindingFilters"))
    for key in listing(binding.content.get("filters")):
        entry = mapping(filters.get(str(key)))
        if entry.get("type") == TYPE:
            told = Policies(mapping(entry.get("config"))).of(binding.path).variables
            if isinstance(size := inputs.get(told or ""), int):
                return size
    folder = settings.folder if settings is not None else Path()
    sizes = [_variables(value, folder) for value in inputs.values()]
    return min((size for size in sizes if size), default=0)


def _variables(value: JSON, folder: Path) -> int:
    """The variables of a problem file; 0 for everything else."""
    file = mapping(value).get("path", mapping(value).get("location"))
    if not isinstance(file, str) or not file.endswith(".json"):
        return 0
    path = folder / file.removeprefix("file://")
    try:
        if path.stat().st_size > LARGEST_BYTES:
            return 0
        content: JSON = json.loads(path.read_bytes())
    except (OSError, ValueError):  # which another check is for
        return 0
    size = mapping(mapping(content).get("bqm")).get("num_variables")
    return size if isinstance(size, int) else 0
