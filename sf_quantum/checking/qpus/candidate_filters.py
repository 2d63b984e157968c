"""Checks of filters of type ``sfq.candidate``, which choose targets for quantum candidates."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from streamflow.core.deployment import Target

from sf_quantum import qpu
from sf_quantum.candidates.decision import (
    FilterRules,
    StepRules,
    is_within,
    rounded,
)
from sf_quantum.candidates.targets import (
    target_name,
)
from sf_quantum.checking.bindings.binding import Binding
from sf_quantum.checking.cwl import types
from sf_quantum.checking.cwl.processes import Process
from sf_quantum.checking.deployments.references import (
    CANDIDATE,
    EMULATOR,
    REST,
    SLURM,
)
from sf_quantum.checking.document import (
    Document,
    FileProblem,
    is_misspelt,
    suggestion,
)
from sf_quantum.checking.qpus.problem_sizes import ProblemSizes
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, KeyPath, listing, mapping
from sf_quantum.journal import ADVICE, SCHEDULER
from sf_quantum.protocol.leases import A_TIME
from sf_quantum.qpu import qrmi_config


def check_filters(document: Document) -> Iterator[FileProblem]:
    """Check that filters have a journal; warn about filters that no binding names."""
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
        if mapping(entry).get("type") != CANDIDATE or not isinstance(workflows, dict):
            continue
        where: KeyPath = ("bindingFilters", name)
        if scheduler.get("type") != SCHEDULER and not misspelt:
            what = f"{CANDIDATE} learns from the run's journal, which is missing"
            yield document.problem(where, what, ADVICE)
        if name not in named:
            remedy = f"add filters: [{name}] to the binding of the step, or remove the filter"
            yield document.remark(where, "no binding names this filter", remedy)


def check_candidates(
    document: Document,
    bindings: list[Binding],
    process: Process,
    sizes: ProblemSizes,
) -> Iterator[FileProblem]:
    """Check bindings that name a filter of type ``sfq.candidate``.

    Warn about bindings that may need such a filter.
    """
    for binding in bindings:
        yield from _check_missing_filter(binding)
    filters = mapping(document.content.get("bindingFilters"))
    paths = [binding.path for binding in bindings if binding.kind == "step"]
    for name, entry in filters.items():
        filtered = [b for b in bindings if name in listing(b.content.get("filters"))]
        # The problems of targets are already reported.
        sound = all(binding.is_sound for binding in filtered)
        if mapping(entry).get("type") == CANDIDATE and filtered and sound:
            config = mapping(mapping(entry).get("config"))
            filter_check = _FilterCheck(
                document, name, config, filtered, paths, process, sizes
            )
            yield from filter_check.check()


def _check_missing_filter(binding: Binding) -> Iterator[FileProblem]:
    targets = len(binding.targets)
    is_mixed = 0 < len(binding.quantum_targets) < targets
    if binding.kind == "step" and is_mixed and not binding.content.get("filters"):
        what = (
            f"{binding.path} has quantum and classical targets, but no filter: StreamFlow "
            "starts each attempt on the target that is free first"
        )
        remedy = f"name a filter of type {CANDIDATE} to have sf_quantum choose"
        where: KeyPath = (*binding.where, "target")
        yield binding.deployments.document.remark(where, what, remedy)


# types of an input whose value may be an int
_INT = {"int", "long", types.ANY, types.UNKNOWN}


@dataclass(frozen=True)
class _FilterCheck:
    """A filter, and the bindings (at least one) of a workflow that name it.

    :param paths: paths of the steps in all bindings of the workflow
    """

    document: Document
    name: str
    config: dict[str, JSON]
    bindings: list[Binding]
    paths: list[str]
    process: Process
    sizes: ProblemSizes

    @cached_property
    def _rules(self) -> FilterRules:
        return FilterRules(self.config)

    def check(self) -> Iterator[FileProblem]:
        yield from self._check_costs()
        yield from self._check_times()
        yield from self._check_forecasts()
        yield from self._check_steps()
        yield from self._check_inputs()
        yield from self._check_sizes()
        for binding in self.bindings:
            yield from self._check_binding(binding)

    def _problem(self, where: KeyPath, what: str, remedy: str) -> FileProblem:
        below = ("bindingFilters", self.name, "config", *where)
        return self.document.problem(below, what, remedy)

    def _check_costs(self) -> Iterator[FileProblem]:
        for target in self._unknown_cost_names():
            what = f"{target} is not a target of any binding that names this filter"
            remedy = suggestion(target, self._targets())
            yield self._problem(("costs", target), what, remedy)

    def _unknown_cost_names(self) -> set[str]:
        """Return the names in ``costs`` that are not targets."""
        return mapping(self.config.get("costs")).keys() - self._targets()

    def _targets(self) -> set[str]:
        return {target_name(t) for b in self.bindings for t in b.targets.values()}

    def _check_times(self) -> Iterator[FileProblem]:
        """Check ``latestStart`` of the filter and of its steps."""
        for where, text in self._rules.wrong_times.items():
            if isinstance(text, str):  # the schema rejects other types
                yield self._problem(where, f"{text!r} is not allowed", f"use {A_TIME}")

    def _check_forecasts(self) -> Iterator[FileProblem]:
        """Warn about ``forecast: plan`` if no step uses the predictions."""
        rules, entries = self._rules, mapping(self.config.get("steps"))
        step_rules = [
            rules.of(step)
            for step in (*entries, *(binding.path for binding in self.bindings))
        ]
        if all(step_rule.forecast != "plan" for step_rule in step_rules):
            return
        kinds = {t.deployment.type for b in self.bindings for t in b.targets.values()}
        where = ("bindingFilters", self.name, "config")
        document = self.document
        if not any(step_rule.predicts for step_rule in step_rules):
            what = "forecast: plan has no effect without prefer: earliest"
            yield document.remark(where, what, "add it, or omit forecast")
        elif SLURM not in kinds:
            what = f"forecast: plan has no effect, as no target is on {SLURM}"
            yield document.remark(where, what, "omit it")

    def _check_steps(self) -> Iterator[FileProblem]:
        bound = {binding.path for binding in self.bindings}
        for step in mapping(self.config.get("steps")):
            # an entry may apply to all steps below it, or to a step below a bound step
            if not any(is_within(step, b) or is_within(b, step) for b in bound):
                what = f"no binding of {step} names the filter {self.name}"
                remedy = suggestion(step, bound, cutoff=0.4)
                yield self._problem(("steps", step), what, remedy)

    def _check_inputs(self) -> Iterator[FileProblem]:
        """Check that ``variables`` and ``reads`` name int inputs of each bound step's tool.

        A job gets only the inputs of its tool, not the other inputs of the workflow's step.
        """
        rules, document = self._rules, self.document
        inputs: dict[str, dict[str, set[str]]] = defaultdict(dict)
        for port, body in self.process.declared.items():
            path = PurePosixPath(port)
            inputs[str(path.parent)][path.name] = {
                kind.name for kind in types.read(types.declared(body))
            }
        for step in sorted(
            self.process.command_line_tools.keys() - self.process.unseen
        ):
            above = [path for path in self.paths if is_within(step, path)]
            # only the nearest binding applies
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
                    type_ = " or ".join(sorted(kinds))
                    what = f"input {name!r} of step {step} has the type {type_}"
                ints = [name for name, kinds in inputs[step].items() if kinds & _INT]
                remedy = f"{key} must name an int input of the tool"
                if ints:
                    remedy = f"{remedy}, one of: {', '.join(sorted(ints))}"
                yield document.problem(self._key_path(step, key), what, remedy)

    def _check_sizes(self) -> Iterator[FileProblem]:
        """Check that ``variables`` is set for each step whose problem's size is limited."""
        rules, entries = self._rules, mapping(self.config.get("steps"))
        bound = {binding.path for binding in self.bindings}
        steps = bound | {s for s in entries if any(is_within(s, b) for b in bound)}
        limits: dict[KeyPath, str] = {}
        for step in steps:
            below = any(step != other and is_within(other, step) for other in steps)
            if below or rules.of(step).variables is not None:
                continue  # steps inside this step are checked instead, or the size is known
            levels: list[tuple[KeyPath, dict[str, JSON]]] = [((), self.config)]
            for name in sorted(name for name in entries if is_within(step, name)):
                levels.append((("steps", name), mapping(entries[name])))
            for key in ("maxVariables", "minVariables"):
                for where in [(*at, key) for at, keys in levels if key in keys][-1:]:
                    limits[where] = key
        for step in steps:
            step_rules = rules.of(step)
            least, most = step_rules.min_variables, step_rules.max_variables
            if least is not None and most is not None and least > most:
                what = f"minVariables is {least}, but maxVariables is {most}"
                remedy = f"no problem of {step} fits: set a smaller minVariables"
                yield self._problem(("minVariables",), what, remedy)
        for where, key in limits.items():
            what = f"{key} needs the number of variables of the step's problem"
            remedy = "name the int input that holds it: variables: INPUT"
            yield self._problem(where, what, remedy)

    def _check_binding(self, binding: Binding) -> Iterator[FileProblem]:
        """Check a binding's targets, and that retries, hints, limits and costs suit them."""
        document, path = self.document, binding.path
        rules = self._rules.of(path)
        targets, quantum = binding.targets, binding.quantum_targets
        where: KeyPath = (*binding.where, "target")
        if targets and not quantum:
            what = "without a quantum target, the filter has nothing to decide"
            yield document.problem(where, what, "add a quantum target")
        elif len(targets) == 1:
            what = "with only one target, the filter has nothing to decide"
            yield document.problem(where, what, "add a classical target")
        manager = mapping(mapping(document.content.get("failureManager")).get("config"))
        allowed = manager.get("max_retries")
        # An attempt tries one quantum target, or all classical targets.
        needed = len(quantum) + (len(quantum) < len(targets))
        if rules.fallback and isinstance(allowed, int) and allowed < needed:
            where = ("failureManager", "config", "max_retries")
            what = f"{path} needs {needed} attempts to try all its targets"
            yield document.problem(where, what, f"use {needed} or more")
        yield from self._check_hints(binding, rules)
        if quantum and len(quantum) < len(targets):
            yield from self._check_limits_that_exclude_qpus(binding, rules, quantum)
        # An unknown name in costs may be meant for this target, and has already been reported.
        priced = rules.limits_cost and not self._unknown_cost_names()
        for where, target in targets.items() if priced else ():
            name, emulated = target_name(target), target.deployment.type == EMULATOR
            # Real QPUs may report their cost, so only emulated QPUs need a configured cost.
            if emulated and name not in mapping(self.config.get("costs")):
                what = f"{name} is emulated and costs nothing, so budget.cost does not "
                what += "limit it"
                remedy = f"set the cost of a QPU second: costs: {{{name}: ...}}"
                yield document.problem(where, what, remedy)

    def _check_hints(self, binding: Binding, rules: StepRules) -> Iterator[FileProblem]:
        """Find hints, such as a priority or a reservation, that a QPU would reject."""
        document, path = self.document, binding.path
        for key, hint in rules.hints.singly():
            refused = {}
            for target in binding.targets.values():
                for kind in self._kinds(target):
                    if problem := kind.hint_problem(hint):
                        refused[target_name(target)] = problem
            for name, problem in refused.items():
                why, _, remedy = problem.rpartition(": ")
                where, what = self._key_path(path, key), f"{name} can never run {path}"
                if refused.keys() >= {*binding.quantum_targets}:
                    yield document.problem(where, f"{what}: {why}", remedy)
                else:
                    remedy = f"leave {path} to the other targets, or {remedy}"
                    yield document.remark(where, f"{what}: {why}", remedy)

    def _kinds(self, target: Target) -> Iterator[type[qpu.Qpu]]:
        """Yield the classes of a target's QPUs; leave out QPUs whose class is unknown."""
        deployment = target.deployment
        config = {**deployment.config}
        types: list[JSON] = []
        if deployment.type == REST:
            types = [config.get("type", "sfq")]
        service = mapping(mapping(config.get("services")).get(target.service or ""))
        with suppress(InputError):  # other checks report the error
            if isinstance(file := config.get("qrmiConfig"), str):
                path = str(self.document.folder / Path(file).expanduser())
                names = map(str, listing(service.get("qpu")))
                types += [qrmi_config.read(path, name).type for name in names]
            for type_ in types:
                yield qpu.load(str(type_))

    def _check_limits_that_exclude_qpus(
        self, binding: Binding, rules: StepRules, quantum: list[str]
    ) -> Iterator[FileProblem]:
        """Warn about limits that keep every job of a step from its QPUs."""
        path, costs = binding.path, mapping(self.config.get("costs"))
        prices = [
            price for q in quantum if isinstance(price := costs.get(q), int | float)
        ]
        price = min(prices) if len(prices) == len(quantum) else 0.0
        seconds, document = rules.expected_seconds or 0.0, self.document
        for scope, budget in (("run", rules.run), ("step", rules.step)):
            for key, limit, usage in (
                ("qpuSeconds", budget.seconds, seconds),
                ("cost", budget.cost, seconds * price),
            ):
                if limit is None or math.isnan(limit) or math.isnan(usage):
                    continue  # another check reports NaN
                if limit >= usage and (limit > 0 or key == "cost"):
                    continue
                where = (*self._key_path(path, "budget", of_steps=scope == "step"), key)
                what = f"no job of {path} goes to a QPU: the {scope}'s budget is 0"
                remedy = "set a larger budget, or bind the step to classical targets"
                if limit > 0:
                    what = (
                        f"no job of {path} goes to a QPU unless it is known to need less than "
                        f"expectedSeconds implies: that is {rounded(usage)}, but the "
                        f"{scope}'s budget is {rounded(limit)}"
                    )
                    remedy = (
                        "set a larger budget, or set expectedSeconds to the QPU seconds that "
                        "a job takes"
                    )
                yield document.remark(where, what, remedy)
        if rules.latest_start is not None and rules.latest_start < time.time():
            what = f"no job of {path} goes to a QPU: latestStart has passed"
            remedy = "use a later time, or bind the step to classical targets"
            yield document.remark(self._key_path(path, "latestStart"), what, remedy)
        size = self.sizes.named(binding)
        for key, limit, is_excluded in (
            ("maxVariables", rules.max_variables, size > (rules.max_variables or size)),
            ("minVariables", rules.min_variables, size < (rules.min_variables or 0)),
        ):
            if size and is_excluded:
                what = f"no job of {path} goes to a QPU: {key} is {limit}, and its problem "
                what += f"has {size} variables"
                remedy = f"set another {key}, or bind the step to classical targets"
                yield document.remark(self._key_path(path, key), what, remedy)

    def _key_path(self, step: str, key: str, *, of_steps: bool = True) -> KeyPath:
        """Return the path of a key that applies to a step.

        The key is in the nearest entry of ``steps``, or at the top of the configuration.

        :param of_steps: whether the entries of ``steps`` are searched
        """
        entries = mapping(self.config.get("steps"))
        names = [
            n for n, e in entries.items() if is_within(step, n) and key in mapping(e)
        ]
        below = ("steps", max(names, key=len)) if of_steps and names else ()
        return ("bindingFilters", self.name, "config", *below, key)
