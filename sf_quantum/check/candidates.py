"""Quantum candidates: a filter's configuration against the steps and targets it is for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from sf_quantum.candidates.decision import FilterRules, is_below
from sf_quantum.candidates.targets import status_source, target_name
from sf_quantum.check.cwl import Process
from sf_quantum.check.deployments import Binding, Deployments
from sf_quantum.check.document import Problem, Where, listing, mapping, suggestion
from sf_quantum.files import JSON

TYPE = "sfq.candidate"
EMULATOR = "sfq.emulator"
JOURNAL = "sfq.journal"
ADVICE = "add scheduling: {scheduler: {type: sfq.journal, config: {}}}"


def check(
    deployments: Deployments, bindings: list[Binding], process: Process
) -> Iterator[Problem]:
    """Look over the bindings of a workflow that name a filter of this type."""
    filters = mapping(deployments.document.content.get("bindingFilters"))
    for name, entry in filters.items():
        if mapping(entry).get("type") != TYPE:
            continue
        own = [b for b in bindings if name in listing(b.content.get("filters"))]
        config = mapping(mapping(entry).get("config"))
        yield from _filter(deployments, name, config, own, process)
        for binding in own:
            yield from _targets(deployments, binding)
            yield from _attempts(deployments, binding, config)
            yield from _prices(deployments, binding, config)


def quantum(deployments: Deployments, binding: Binding) -> list[str]:
    """Name the quantum targets of a binding."""
    targets = deployments.targets(binding).values()
    return [target_name(t) for t in targets if status_source(t, Path()) is not None]


def unused(deployments: Deployments) -> Iterator[Problem]:
    """Look whether each filter of this type is there for a step."""
    document = deployments.document
    named = {
        name
        for workflow in mapping(document.content.get("workflows")).values()
        for binding in listing(mapping(workflow).get("bindings"))
        for name in listing(mapping(binding).get("filters"))
        if isinstance(name, str)
    }
    for name, entry in mapping(document.content.get("bindingFilters")).items():
        if mapping(entry).get("type") == TYPE and name not in named:
            right = f"add filters: [{name}] to the binding of the step"
            where = ("bindingFilters", name)
            yield document.problem(where, "no binding names this filter", right)


def scheduler(deployments: Deployments) -> Iterator[Problem]:
    """Look whether there is a journal to learn from."""
    document = deployments.document
    scheduling = mapping(mapping(document.content.get("scheduling")).get("scheduler"))
    if scheduling.get("type") == JOURNAL:
        return
    for name, entry in mapping(document.content.get("bindingFilters")).items():
        if mapping(entry).get("type") == TYPE:
            what = f"{TYPE} learns from the run's journal, and there is none"
            yield document.problem(("bindingFilters", name), what, ADVICE)


def _filter(
    deployments: Deployments,
    name: str,
    config: dict[str, JSON],
    bindings: list[Binding],
    process: Process,
) -> Iterator[Problem]:
    where: Where = ("bindingFilters", name, "config")
    document = deployments.document
    targets = {
        target_name(t) for b in bindings for t in deployments.targets(b).values()
    }
    for target in mapping(config.get("costs")) if bindings else {}:
        if target not in targets:
            what = f"{target} is no target of the candidates"
            right = suggestion(target, targets)
            yield document.problem((*where, "costs", target), what, right)
    steps = {b.path for b in bindings}
    for step in mapping(config.get("steps")):
        # a step may be named for all that are below it, or be below what is bound
        if bindings and not any(_related(step, bound) for bound in steps):
            what = f"no binding of {step} names the filter {name}"
            right = suggestion(step, steps, cutoff=0.4)
            yield document.problem((*where, "steps", step), what, right)
    own = {**dict.fromkeys(steps, config), **mapping(config.get("steps"))}
    for step, told in own.items():
        below = where if step in steps and told is config else (*where, "steps", step)
        yield from _variables(deployments, step, mapping(told), below, process)
    yield from _unsized(deployments, where, config, steps)


def _unsized(
    deployments: Deployments, where: Where, config: dict[str, JSON], bound: set[str]
) -> Iterator[Problem]:
    """Look whether each step that has a limit on problems' sizes tells their sizes."""
    policies, told = FilterRules(config), mapping(config.get("steps"))
    known = bound | {step for step in told if any(is_below(step, b) for b in bound)}
    found: dict[Where, str] = {}
    for step in known:
        if any(step != other and is_below(other, step) for other in known):
            continue  # that one is the step, or nearer to it
        if policies.of(step).variables is not None:
            continue
        places = [(where, config)]
        for name in sorted((n for n in told if is_below(step, n)), key=len):
            places.append(((*where, "steps", name), mapping(told[name])))
        for key in ("maxVariables", "minVariables"):
            for place in [(*at, key) for at, keys in places if key in keys][-1:]:
                found[place] = key
    for place, key in found.items():
        what = f"{key} is for a step that does not tell how many variables it has"
        right = "name its int input that does: variables: INPUT"
        yield deployments.document.problem(place, what, right)


def _variables(
    deployments: Deployments,
    step: str,
    config: dict[str, JSON],
    where: Where,
    process: Process,
) -> Iterator[Problem]:
    variables = config.get("variables")
    if not isinstance(variables, str) or "/" in process.unseen:
        return
    inputs = {
        PurePosixPath(port).name
        for port in process.taken
        if PurePosixPath(port).is_relative_to(step) and port != step
    }
    if inputs and variables not in inputs:
        what = f"step {step} has no input {variables!r}"
        right = suggestion(variables, inputs)
        yield deployments.document.problem((*where, "variables"), what, right)


def _targets(deployments: Deployments, binding: Binding) -> Iterator[Problem]:
    bound = deployments.targets(binding)
    sources = [status_source(target, Path()) for target in bound.values()]
    where = (*binding.where, "target")
    if sources and not any(sources):
        what = "a candidate without a QPU has nothing to decide"
        yield deployments.document.problem(where, what, "list a quantum target too")
    elif len(sources) == 1:
        what = "a candidate with one target has nothing to decide"
        yield deployments.document.problem(where, what, "list a classical target too")


def _attempts(
    deployments: Deployments, binding: Binding, config: dict[str, JSON]
) -> Iterator[Problem]:
    """Look whether there are attempts enough for all that a job may fall back to."""
    document = deployments.document
    manager = mapping(mapping(document.content.get("failureManager")).get("config"))
    most = manager.get("max_retries")
    sources = [status_source(t, Path()) for t in deployments.targets(binding).values()]
    # an attempt gets one quantum target, or all classical ones
    need = sum(source is not None for source in sources) + (None in sources)
    if not FilterRules(config).of(binding.path).fallback:
        return
    if isinstance(most, int) and most < need:
        what = f"{most} attempts in all, and {binding.path} has {need} places to try"
        where: Where = ("failureManager", "config", "max_retries")
        yield document.problem(where, what, f"write {need} or more")


def _prices(
    deployments: Deployments, binding: Binding, config: dict[str, JSON]
) -> Iterator[Problem]:
    """Look whether a limit on costs has costs; of other QPUs the run tells, which asks."""
    policy, told = FilterRules(config).of(binding.path), mapping(config.get("costs"))
    if policy.run.cost is None and policy.step.cost is None:
        return
    for where, target in deployments.targets(binding).items():
        name = target_name(target)
        if target.deployment.type == EMULATOR and name not in told:
            what = f"{name} is emulated and has no price, so budget.cost sets no limit"
            right = f"say what a QPU second costs there: costs: {{{name}: ...}}"
            yield deployments.document.problem(where, what, right)


def _related(step: str, bound: str) -> bool:
    return is_below(step, bound) or is_below(bound, step)
