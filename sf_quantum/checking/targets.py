"""Checks of the targets of steps: quantum candidates, and QPUs that can run them now."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeGuard

from streamflow.core.deployment import Target

from sf_quantum.candidates.decision import (
    Exclusion,
    FilterRules,
    Obstacle,
    StepRules,
    describe,
    is_below,
    rounded,
)
from sf_quantum.candidates.targets import (
    StatusPoller,
    StatusReply,
    StatusSource,
    status_source,
    target_name,
)
from sf_quantum.checking import types
from sf_quantum.checking.cwl import Process
from sf_quantum.checking.deployments import EMULATOR, Binding, Deployments
from sf_quantum.checking.document import (
    Document,
    FileProblem,
    is_misspelt,
    suggestion,
)
from sf_quantum.files import JSON, KeyPath, listing, mapping, parse_json
from sf_quantum.journal import ADVICE, SCHEDULER
from sf_quantum.qpu import QpuStatus
from sf_quantum.qpu.configuration import token_fault

TYPE = "sfq.candidate"
SLURM = "sfq.slurm"
# Time limit of the queries to all QPUs together.
SECONDS = 5.0
# what `sfq solve` sends
KIND = "problem"
# a larger file is not read for its size
LARGEST_BYTES = 64 * 1024 * 1024


def check_filters(document: Document) -> Iterator[FileProblem]:
    """Check that there is a journal for filters; remark on those that no binding names."""
    scheduling = mapping(document.content.get("scheduling"))
    scheduler = mapping(scheduling.get("scheduler"))
    misspelt = (
        is_misspelt("scheduling", document.content)
        or is_misspelt("scheduler", scheduling)
        or is_misspelt(SCHEDULER, {str(scheduler.get("type")): None})
    )
    named = {
        name
        for workflow in mapping(document.content.get("workflows")).values()
        for binding in listing(mapping(workflow).get("bindings"))
        for name in listing(mapping(binding).get("filters"))
        if isinstance(name, str)
    }
    workflows = document.content.get("workflows")
    for name, entry in mapping(document.content.get("bindingFilters")).items():
        if mapping(entry).get("type") != TYPE or not isinstance(workflows, dict):
            continue
        where: KeyPath = ("bindingFilters", name)
        if scheduler.get("type") != SCHEDULER and not misspelt:
            what = f"{TYPE} learns from the run's journal, which is missing"
            yield document.problem(where, what, ADVICE)
        if name not in named:
            right = f"add filters: [{name}] to the binding of the step, or remove it"
            yield document.remark(where, "no binding names this filter", right)


def check_bindings(
    deployments: Deployments,
    bindings: list[Binding],
    process: Process,
    size: Callable[[Binding], int],
) -> Iterator[FileProblem]:
    """Check the bindings of a workflow that name an ``sfq.candidate``.

    :param size: gives the number of variables of a step's problem that the rules of its
        candidate name, or 0
    """
    filters = mapping(deployments.document.content.get("bindingFilters"))
    paths = [binding.path for binding in bindings if binding.kind == "step"]
    for name, entry in filters.items():
        filtered = [b for b in bindings if name in listing(b.content.get("filters"))]
        # what is wrong with a target is said once
        sound = all(deployments.is_sound(binding) for binding in filtered)
        if mapping(entry).get("type") == TYPE and filtered and sound:
            config = mapping(mapping(entry).get("config"))
            filter_check = _FilterCheck(
                deployments, name, config, filtered, paths, process, size
            )
            yield from filter_check.check()


def quantum_targets(deployments: Deployments, binding: Binding) -> list[str]:
    """The names of the quantum targets of a binding."""
    targets = deployments.targets(binding).values()
    return [target_name(t) for t in targets if status_source(t, Path()) is not None]


# types of an input whose value may be an int
_INT = {"int", "long", types.ANY, types.UNKNOWN}


@dataclass(frozen=True)
class _FilterCheck:
    """A filter and the bindings of one workflow that name it, one at least.

    :param paths: the steps of all bindings of the workflow
    """

    deployments: Deployments
    name: str
    config: dict[str, JSON]
    bindings: list[Binding]
    paths: list[str]
    process: Process
    size: Callable[[Binding], int]

    def check(self) -> Iterator[FileProblem]:
        yield from self._costs()
        yield from self._forecasts()
        yield from self._steps()
        yield from self._inputs()
        yield from self._sizes()
        for binding in self.bindings:
            yield from self._binding(binding)

    def _problem(self, where: KeyPath, what: str, right: str) -> FileProblem:
        below = ("bindingFilters", self.name, "config", *where)
        return self.deployments.document.problem(below, what, right)

    def _costs(self) -> Iterator[FileProblem]:
        for target in self._strangers():
            what = f"{target} is not a target of the candidates"
            right = suggestion(target, self._targets())
            yield self._problem(("costs", target), what, right)

    def _strangers(self) -> set[str]:
        """The names in ``costs`` that are not targets."""
        return mapping(self.config.get("costs")).keys() - self._targets()

    def _targets(self) -> set[str]:
        bound = map(self.deployments.targets, self.bindings)
        return {target_name(t) for targets in bound for t in targets.values()}

    def _forecasts(self) -> Iterator[FileProblem]:
        """Remark on predictions that no step would use."""
        rules, entries = FilterRules(self.config), mapping(self.config.get("steps"))
        step_rules = [
            rules.of(step) for step in (*entries, *(one.path for one in self.bindings))
        ]
        if all(one.forecast != "plan" for one in step_rules):
            return
        bound = map(self.deployments.targets, self.bindings)
        kinds = {t.deployment.type for targets in bound for t in targets.values()}
        where = ("bindingFilters", self.name, "config")
        document = self.deployments.document
        if not any(one.predicts for one in step_rules):
            what = "forecast: plan has no effect without prefer: earliest"
            yield document.remark(where, what, "add it, or omit forecast")
        elif SLURM not in kinds:
            what = f"forecast: plan has no effect, as no target is on {SLURM}"
            yield document.remark(where, what, "omit it")

    def _steps(self) -> Iterator[FileProblem]:
        bound = {binding.path for binding in self.bindings}
        for step in mapping(self.config.get("steps")):
            # an entry may apply to all steps below it, or to a step below a bound one
            if not any(is_below(step, b) or is_below(b, step) for b in bound):
                what = f"no binding of {step} names the filter {self.name}"
                right = suggestion(step, bound, cutoff=0.4)
                yield self._problem(("steps", step), what, right)

    def _inputs(self) -> Iterator[FileProblem]:
        """Check the keys that name an int input, of each tool that the filter binds.

        A job has the inputs of its tool alone, without further ones of the workflow's step.
        """
        rules, document = FilterRules(self.config), self.deployments.document
        inputs: dict[str, dict[str, set[str]]] = defaultdict(dict)
        for port, body in self.process.declared.items():
            path = PurePosixPath(port)
            inputs[str(path.parent)][path.name] = {
                kind.name for kind in types.read(types.declared(body))
            }
        for step in sorted(self.process.commands.keys() - self.process.unseen):
            above = [path for path in self.paths if is_below(step, path)]
            # the nearest binding is the one that applies
            if not any(
                max(above, key=len, default="") == b.path for b in self.bindings
            ):
                continue
            step_rules = rules.of(step)
            names = ("variables", step_rules.variables), ("reads", step_rules.reads)
            for key, name in names:
                kinds = inputs[step].get(name or "")
                if name is None or (kinds is not None and (not kinds or kinds & _INT)):
                    continue
                what = f"the tool of step {step} has no input {name!r}"
                if kinds:
                    what = (
                        f"input {name!r} of step {step} is {' or '.join(sorted(kinds))}"
                    )
                ints = [name for name, kinds in inputs[step].items() if kinds & _INT]
                right = f"{key} must name an int input of the tool"
                if ints:
                    right = f"{right}, one of: {', '.join(sorted(ints))}"
                yield document.problem(self._level(step, key), what, right)

    def _sizes(self) -> Iterator[FileProblem]:
        """Check that each step with a limit on its problem's size names its size."""
        rules, entries = FilterRules(self.config), mapping(self.config.get("steps"))
        bound = {binding.path for binding in self.bindings}
        steps = bound | {s for s in entries if any(is_below(s, b) for b in bound)}
        limits: dict[KeyPath, str] = {}
        for step in steps:
            below = any(step != other and is_below(other, step) for other in steps)
            if below or rules.of(step).variables is not None:
                continue  # a step below is checked instead
            levels: list[tuple[KeyPath, dict[str, JSON]]] = [((), self.config)]
            for name in sorted(name for name in entries if is_below(step, name)):
                levels.append((("steps", name), mapping(entries[name])))
            for key in ("maxVariables", "minVariables"):
                for where in [(*at, key) for at, keys in levels if key in keys][-1:]:
                    limits[where] = key
        for step in steps:
            step_rules = rules.of(step)
            least, most = step_rules.min_variables, step_rules.max_variables
            if least is not None and most is not None and least > most:
                what = f"minVariables is {least}, but maxVariables is {most}"
                right = f"no problem of {step} fits: write a smaller minVariables"
                yield self._problem(("minVariables",), what, right)
        for where, key in limits.items():
            what = f"{key} needs the number of variables of the step's problem"
            right = "name the int input that holds it: variables: INPUT"
            yield self._problem(where, what, right)

    def _binding(self, binding: Binding) -> Iterator[FileProblem]:
        document, path = self.deployments.document, binding.path
        rules = FilterRules(self.config).of(path)
        targets = self.deployments.targets(binding)
        quantum = quantum_targets(self.deployments, binding)
        where: KeyPath = (*binding.where, "target")
        if targets and not quantum:
            what = "a candidate without a quantum target has nothing to decide"
            yield document.problem(where, what, "add a quantum target")
        elif len(targets) == 1:
            what = "a candidate with one target has nothing to decide"
            yield document.problem(where, what, "add a classical target")
        manager = mapping(mapping(document.content.get("failureManager")).get("config"))
        allowed = manager.get("max_retries")
        # an attempt gets one quantum target, or all classical ones
        needed = len(quantum) + (len(quantum) < len(targets))
        if rules.fallback and isinstance(allowed, int) and allowed < needed:
            where = ("failureManager", "config", "max_retries")
            what = f"{path} needs {needed} attempts to try all its targets"
            yield document.problem(where, what, f"write {needed} or more")
        if quantum and len(quantum) < len(targets):
            yield from self._nothing(binding, rules, quantum)
        # one of the names in costs may be meant for the target
        priced = rules.limits_cost and not self._strangers()
        for where, target in targets.items() if priced else ():
            name, emulated = target_name(target), target.deployment.type == EMULATOR
            # real QPUs may report their cost
            if emulated and name not in mapping(self.config.get("costs")):
                what = f"{name} is emulated and free, so budget.cost does not limit it"
                right = f"set the cost of a QPU second: costs: {{{name}: ...}}"
                yield document.problem(where, what, right)

    def _nothing(
        self, binding: Binding, rules: StepRules, quantum: list[str]
    ) -> Iterator[FileProblem]:
        """Remark on limits that keep every job of a step from its QPUs."""
        path, costs = binding.path, mapping(self.config.get("costs"))
        prices = [
            price for q in quantum if isinstance(price := costs.get(q), int | float)
        ]
        price = min(prices) if len(prices) == len(quantum) else 0.0
        seconds, document = rules.expected_seconds or 0.0, self.deployments.document
        for scope, budget in (("run", rules.run), ("step", rules.step)):
            for key, limit, job in (
                ("qpuSeconds", budget.seconds, seconds),
                ("cost", budget.cost, seconds * price),
            ):
                if limit is None or math.isnan(limit) or math.isnan(job):
                    continue  # another check reports a NaN
                if limit >= job and (limit > 0 or key == "cost"):
                    continue
                where = (*self._level(path, "budget", of_steps=scope == "step"), key)
                what = f"no job of {path} goes to a QPU: the {scope}'s budget is 0"
                right = "write a larger budget, or bind the step to classical targets"
                if limit > 0:
                    what = (
                        f"no job of {path} goes to a QPU before a shorter one is known: "
                        f"expectedSeconds says that it takes {rounded(job)}, and the "
                        f"{scope}'s budget is {rounded(limit)}"
                    )
                    right = "write a larger budget, or the seconds that a job takes"
                yield document.remark(where, what, right)
        size = self.size(binding)
        for key, limit, is_excluded in (
            ("maxVariables", rules.max_variables, size > (rules.max_variables or size)),
            ("minVariables", rules.min_variables, size < (rules.min_variables or 0)),
        ):
            if size and is_excluded:
                what = f"no job of {path} goes to a QPU: {key} is {limit}, and its problem "
                what += f"has {size} variables"
                right = f"write another {key}, or bind the step to classical targets"
                yield document.remark(self._level(path, key), what, right)

    def _level(self, step: str, key: str, *, of_steps: bool = True) -> KeyPath:
        """The place of a key that applies to a step: the entry nearest to it, or the top.

        :param of_steps: whether the entries of steps count
        """
        entries = mapping(self.config.get("steps"))
        names = [
            n for n, e in entries.items() if is_below(step, n) and key in mapping(e)
        ]
        below = ("steps", max(names, key=len)) if of_steps and names else ()
        return ("bindingFilters", self.name, "config", *below, key)


@dataclass
class Qpus:
    """The QPUs of one StreamFlow file.

    :param silent: why a QPU could not be queried, by its target's name
    """

    deployments: Deployments
    silent: dict[str, str] = field(default_factory=dict)

    def check(
        self, bindings: list[Binding], sizes: Callable[[Binding], int]
    ) -> Iterator[FileProblem]:
        """Find QPUs that refuse their user, and steps that no target can run now.

        A step with a classical target, or with a QPU that could not be queried, passes; of
        a QPU that takes no jobs now or was not queried, a remark tells.

        :param sizes: gives the number of variables of a step's problem, or 0
        """
        steps = [binding for binding in bindings if binding.kind == "step"]
        replies = self._poll(steps)
        yield from self._refusals(steps, replies)
        #: what remarks tell: by the cause, the targets and steps that it concerns
        causes: dict[tuple[str, str], _Concerned] = {}
        for binding in steps:
            targets = self.deployments.targets(binding)
            size, names = sizes(binding), [*map(target_name, targets.values())]
            obstacles = [_obstacle(replies[n], size) for n in names if n in replies]
            where: KeyPath = (*binding.where, "target")
            document = self.deployments.document
            if replies.keys() >= {*names} and obstacles and None not in obstacles:
                pairs = zip(names, obstacles, strict=True)
                reasons = "; ".join(f"{name}: {why}" for name, why in pairs)
                what = f"{binding.path} cannot run now: {reasons}"
                right = "bind it elsewhere, or wait for the QPU"
                yield document.problem(where, what, right)
                continue
            yield from self._undersized(binding, targets, replies, size)
            for where, name in zip(targets, names, strict=True):
                if cause := _cause(replies.get(name)):
                    concerned = causes.setdefault(cause, _Concerned(where))
                    concerned.targets[name] = concerned.steps[binding.path] = None
                    concerned.alone |= len(names) == 1
        for cause, concerned in causes.items():
            yield self._remark(cause, concerned)

    def _remark(self, cause: tuple[str, str], concerned: _Concerned) -> FileProblem:
        """Tell of a QPU that takes no jobs now, or was not queried."""
        kind, why = cause
        names, steps = " and ".join(concerned.targets), " and ".join(concerned.steps)
        if kind == "offline":
            what, right = f"{names}: {why}", f"{steps} runs elsewhere until it is open"
        else:
            what = f"{names} {why}"
            right = f"whether it can run {steps} is not checked"
            if concerned.alone:
                right = f"{right}, and the run needs it to answer"
        return self.deployments.document.remark(concerned.where, what, right)

    def _refusals(
        self, steps: list[Binding], replies: dict[str, StatusReply]
    ) -> Iterator[FileProblem]:
        """Find QPUs that refuse their user, each once."""
        refused = {n: reply for n, reply in replies.items() if _refused(reply)}
        for binding in steps:
            for target in self.deployments.targets(binding).values():
                if reply := refused.pop(name := target_name(target), None):
                    config = ("deployments", target.deployment.name, "config")
                    right = "name credentials that the service accepts"
                    what = f"{name} {describe(reply)}"
                    yield self.deployments.document.problem(config, what, right)

    def _undersized(
        self,
        binding: Binding,
        targets: dict[KeyPath, Target],
        replies: dict[str, StatusReply],
        size: int,
    ) -> Iterator[FileProblem]:
        """Find QPUs on which the problem of a step does not fit."""
        document = self.deployments.document
        for where, target in targets.items():
            name = target_name(target)
            if why := _too_small(replies.get(name), size):
                what = f"{name} can never run {binding.path}: {why}"
                if _is_candidate(document, binding):
                    right = "the other targets run it"
                    yield document.remark(where, what, right)
                else:
                    right = "remove the target, or name a filter sfq.candidate"
                    yield document.problem(where, what, right)

    def _poll(self, steps: list[Binding]) -> dict[str, StatusReply]:
        folder = self.deployments.document.folder
        sources: dict[str, StatusSource] = {
            target_name(target): source
            for binding in steps
            for target in self.deployments.targets(binding).values()
            if (source := status_source(target, folder)) is not None
            # another check reports the file
            and not token_fault(
                folder / str(target.deployment.config.get("tokenFile") or "")
            )
        }
        if not sources:
            return {}
        replies = asyncio.run(StatusPoller(cooldown=0.0).poll(sources, SECONDS))
        self.silent |= {
            name: describe(reply)
            for name, reply in replies.items()
            if isinstance(reply, Exclusion) and not _refused(reply)
        }
        return replies


@dataclass
class _Concerned:
    """What a cause concerns: an ordered set of targets and one of steps.

    :param where: the first of the targets in the file
    :param alone: whether one of the steps has no other target
    """

    where: KeyPath
    targets: dict[str, None] = field(default_factory=dict)
    steps: dict[str, None] = field(default_factory=dict)
    alone: bool = False


def _cause(reply: StatusReply | None) -> tuple[str, str] | None:
    """Why a QPU may not run a step, if a remark is to tell: its kind, and the text."""
    if isinstance(reply, Exclusion):
        return None if _refused(reply) else ("silent", describe(reply))
    if reply is not None and not reply.online:
        return "offline", reply.reason or "the QPU is offline"
    return None


def _refused(reply: StatusReply | None) -> TypeGuard[Exclusion]:
    return isinstance(reply, Exclusion) and reply.cause is Obstacle.REFUSED


def _obstacle(status: StatusReply, size: int) -> str | None:
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


def _is_candidate(document: Document, binding: Binding) -> bool:
    filters = mapping(document.content.get("bindingFilters"))
    names = map(str, listing(binding.content.get("filters")))
    return any(mapping(filters.get(name)).get("type") == TYPE for name in names)


def named_size(
    deployments: Deployments,
    process: Process,
    settings: Document | None,
    binding: Binding,
) -> int:
    """The number of variables in the input that a candidate's rules name for it, or 0."""
    given = settings.content if settings is not None else {}
    filters = mapping(deployments.document.content.get("bindingFilters"))
    for key in listing(binding.content.get("filters")):
        entry = mapping(filters.get(str(key)))
        if entry.get("type") == TYPE:
            rules = FilterRules(mapping(entry.get("config"))).of(binding.path)
            with suppress(LookupError):
                size = process.given(f"{binding.path}/{rules.variables}", given)
                if type(size) is int:
                    return size
    return 0


def problem_size(
    deployments: Deployments,
    process: Process,
    settings: Document | None,
    binding: Binding,
) -> int:
    """A lower bound of the number of variables of a step's problem.

    The rules of a candidate may name the input that holds it. Otherwise the smallest problem
    file among the workflow's inputs gives it, since any of them may be the step's.
    """
    if size := named_size(deployments, process, settings, binding):
        return size
    given = settings.content if settings is not None else {}
    folder = settings.folder if settings is not None else Path()
    sizes = [_variables(value, folder) for value in given.values()]
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
        content: JSON = parse_json(path.read_bytes())
    except (OSError, ValueError):  # another check reports it
        return 0
    size = mapping(mapping(content).get("bqm")).get("num_variables")
    return size if isinstance(size, int) else 0
