"""Checks of the QPUs to which steps are bound: whether they can run the steps now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

from streamflow.core.deployment import Target

from sf_quantum.candidates.decision import Exclusion, Obstacle, describe
from sf_quantum.candidates.targets import (
    StatusPoller,
    StatusReply,
    StatusSource,
    status_source,
    target_name,
)
from sf_quantum.checking.bindings.binding import Binding
from sf_quantum.checking.document import Document, FileProblem
from sf_quantum.checking.qpus.problem_sizes import ProblemSizes
from sf_quantum.files import KeyPath
from sf_quantum.qpu import JobSize, QpuStatus
from sf_quantum.qpu.configuration import token_fault

# Time limit for the queries to all QPUs together.
SECONDS = 5.0
# kind of payload that `sfq solve` sends
KIND = "problem"


@dataclass
class Qpus:
    """The QPUs of one StreamFlow file.

    :param silent: reasons why QPUs could not be queried, by target name
    """

    document: Document
    silent: dict[str, str] = field(default_factory=dict)

    def check(
        self, bindings: list[Binding], sizes: ProblemSizes
    ) -> Iterator[FileProblem]:
        """Find QPUs that reject their user, and steps that no target can run now.

        A step with a classical target, or with a QPU that could not be queried, passes the
        check. A remark reports each QPU that accepts no jobs now, or could not be queried.
        """
        steps = [binding for binding in bindings if binding.kind == "step"]
        replies = self._poll(steps)
        yield from self._refusals(steps, replies)
        #: targets and steps to remark on, by cause
        causes: dict[tuple[str, str], _Concerned] = {}
        for binding in steps:
            targets = binding.targets
            size, names = sizes.smallest(binding), [*map(target_name, targets.values())]
            obstacles = [_obstacle(replies[n], size) for n in names if n in replies]
            where: KeyPath = (*binding.where, "target")
            if replies.keys() >= {*names} and obstacles and None not in obstacles:
                pairs = zip(names, obstacles, strict=True)
                reasons = "; ".join(f"{name}: {why}" for name, why in pairs)
                what = f"{binding.path} cannot run now: {reasons}"
                right = "bind it elsewhere, or wait for the QPU"
                yield self.document.problem(where, what, right)
                continue
            yield from self._undersized(binding, targets, replies, size)
            for where, name in zip(targets, names, strict=True):
                if cause := _cause(replies.get(name)):
                    concerned = causes.setdefault(cause, _Concerned(where))
                    concerned.targets[name] = concerned.steps[binding.path] = None
                    concerned.alone |= len(names) == 1
                    concerned.candidates &= bool(binding.candidates)
        for cause, concerned in causes.items():
            yield self._remark(cause, concerned)

    def _remark(self, cause: tuple[str, str], concerned: _Concerned) -> FileProblem:
        """Remark on QPUs that accept no jobs now, or could not be queried."""
        kind, why = cause
        names, steps = " and ".join(concerned.targets), " and ".join(concerned.steps)
        if kind == "offline":
            what, right = f"{names}: {why}", f"{steps} runs elsewhere until it is open"
            if not concerned.candidates:
                right = f"a job of {steps} that StreamFlow starts there waits until it is open"
        else:
            what = f"{names} {why}"
            right = f"whether it can run {steps} is not checked"
            if concerned.alone:
                right = f"{right}, and the run needs it to answer"
        return self.document.remark(concerned.where, what, right)

    def _refusals(
        self, steps: list[Binding], replies: dict[str, StatusReply]
    ) -> Iterator[FileProblem]:
        """Find QPUs that reject their user; each is reported once."""
        refused = {n: reply for n, reply in replies.items() if _refused(reply)}
        for binding in steps:
            for target in binding.targets.values():
                if reply := refused.pop(name := target_name(target), None):
                    config = ("deployments", target.deployment.name, "config")
                    right = "name credentials that the service accepts"
                    what = f"{name} {describe(reply)}"
                    yield self.document.problem(config, what, right)

    def _undersized(
        self,
        binding: Binding,
        targets: dict[KeyPath, Target],
        replies: dict[str, StatusReply],
        size: int,
    ) -> Iterator[FileProblem]:
        """Find QPUs that are too small for the problem of a step."""
        document = self.document
        for where, target in targets.items():
            name = target_name(target)
            if why := _too_small(replies.get(name), size):
                what = f"{name} can never run {binding.path}: {why}"
                if binding.candidates:
                    right = "the other targets run it"
                    yield document.remark(where, what, right)
                else:
                    right = "remove the target, or name a filter sfq.candidate"
                    yield document.problem(where, what, right)

    def _poll(self, steps: list[Binding]) -> dict[str, StatusReply]:
        """Query the QPUs to which the steps are bound, and note those that do not answer."""
        folder = self.document.folder
        targets = (target for binding in steps for target in binding.targets.values())
        replies = poll((t for t in targets if not _has_token_fault(t, folder)), folder)
        self.silent |= {
            name: describe(reply)
            for name, reply in replies.items()
            if isinstance(reply, Exclusion) and not _refused(reply)
        }
        return replies


def poll(
    targets: Iterable[Target], folder: Path, size: JobSize | None = None
) -> dict[str, StatusReply]:
    """Query the QPUs of the quantum targets; return the replies by target name.

    :param folder: folder of the StreamFlow file
    :param size: size of the job for which the QPUs are to estimate times
    """
    sources: dict[str, StatusSource] = {
        target_name(target): source
        for target in targets
        if (source := status_source(target, folder, size)) is not None
    }
    if not sources:
        return {}
    return asyncio.run(StatusPoller(cooldown=0.0).poll(sources, SECONDS, size))


def _has_token_fault(target: Target, folder: Path) -> bool:
    """Return whether a target's token file has a fault, which another check reports."""
    file = folder / str(target.deployment.config.get("tokenFile") or "")
    return bool(token_fault(file))


@dataclass
class _Concerned:
    """The targets and the steps that a cause concerns; the keys are ordered sets.

    :param where: key path of the first target in the file
    :param alone: whether one of the steps has no other target
    :param candidates: whether all steps are quantum candidates
    """

    where: KeyPath
    targets: dict[str, None] = field(default_factory=dict)
    steps: dict[str, None] = field(default_factory=dict)
    alone: bool = False
    candidates: bool = True


def _cause(reply: StatusReply | None) -> tuple[str, str] | None:
    """Return kind and text of the reason to remark on a QPU; ``None`` if there is none."""
    if isinstance(reply, Exclusion):
        return None if _refused(reply) else ("silent", describe(reply))
    if reply is not None and not reply.online:
        return "offline", reply.reason or "the QPU is offline"
    return None


def _refused(reply: StatusReply | None) -> TypeGuard[Exclusion]:
    return isinstance(reply, Exclusion) and reply.cause is Obstacle.REFUSED


def _obstacle(status: StatusReply, size: int) -> str | None:
    """Return why a QPU cannot run a job of a size now; ``None`` if it can, or is silent."""
    if isinstance(status, Exclusion):
        return None
    if not status.online:
        return status.reason or "the QPU is offline"
    if status.payloads and KIND not in status.payloads:
        return f"the QPU only runs {' and '.join(status.payloads)} jobs"
    return _too_small(status, size)


def _too_small(status: StatusReply | None, size: int) -> str | None:
    if isinstance(status, QpuStatus) and 0 < status.qubits < size:
        return f"{size} variables do not fit on {status.qubits} qubits"
    return None
