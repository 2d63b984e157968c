"""Checks of the steps of CWL workflows: types, scatter, loops and conditions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from cwl_utils.errors import SubstitutionError

from sf_quantum.checking.cwl import types
from sf_quantum.checking.cwl.expressions import JAVASCRIPT, Scope, expressions
from sf_quantum.checking.cwl.javascript import Scripts
from sf_quantum.checking.cwl.links import Links, has_file
from sf_quantum.checking.cwl.processes import (
    DOTPRODUCT,
    FLAT,
    NESTED,
    Entry,
    Position,
    Process,
)
from sf_quantum.checking.cwl.sources import Sources, Step, is_listed, source_of
from sf_quantum.checking.document import FileProblem
from sf_quantum.files import KeyPath, listing, mapping

SCATTER = "ScatterFeatureRequirement"
# conditions whose value is null, an object, text or a number, but never true or false
_NEVER_BOOLEAN = re.compile(r"\$\((self|null|inputs|runtime(\.\w+)?)\)")
# a condition that is an input of its step
_INPUT = re.compile(r"\s*\$\(inputs\.(\w+)\)\s*")
_BOOLEAN = types.read("boolean")


def check(process: Process) -> Iterator[FileProblem]:
    """Check each workflow and tool that was read."""
    scripts = Scripts()
    if process.root is not None:
        yield from _check_root_types(process.root)
    for position in process.read.values():
        yield from _check_types(position)
        names = {entry.name for entry in position.entries("inputs")}
        whole = position.is_whole("inputs")
        scope = Scope(
            position.document,
            "the process",
            names if whole else None,
            JAVASCRIPT in position.features,
            scripts,
        )
        yield from scope.check(position.body, position.where)
        if position.body.get("class") == "Workflow":
            sources = Sources(position, process)
            links, runs = Links(sources, process), _Runs(sources, scripts)
            for step in sources.steps.values():
                yield from links.check_inputs(step)
                yield from runs.check(step)
            for output in position.entries("outputs"):
                yield from links.check_output(output)
    yield from scripts.check()


def unused(process: Process) -> set[str]:
    """Return the inputs of the root that certainly nothing uses."""
    root = process.root
    if root is None or root.body.get("class") != "Workflow":
        return set()
    return Sources(root, process).unused()


def _check_root_types(root: Position) -> Iterator[FileProblem]:
    """Find inputs and outputs of the root without a type, for which StreamFlow makes no ports.

    CWL v1.0 does not require types, and StreamFlow does not need them in processes that steps
    run.
    """
    if root.document.content.get("cwlVersion") != "v1.0":
        return
    for entry in (*root.entries("inputs"), *root.entries("outputs")):
        if types.declared(entry.body) is None:
            yield root.document.problem(entry.where, "type is missing", "add type:")


def _check_types(position: Position) -> Iterator[FileProblem]:
    """Find types that do not exist, and defaults of another type."""
    for entry in (*position.entries("inputs"), *position.entries("outputs")):
        body = entry.body if isinstance(entry.body, dict) else None
        where = (*entry.where, "type") if body else entry.where
        # SchemaDefRequirement may define the name of a type.
        is_defined = "SchemaDefRequirement" in position.features
        faults = () if is_defined else types.unknown(types.declared(entry.body), where)
        for one in faults:
            yield position.document.problem(one.where, one.what, one.right)
        if types.is_bare(types.read(types.declared(entry.body))):
            what = "a record that declares no fields takes none in StreamFlow"
            yield position.document.remark(where, what, "declare its fields")
        default, declared = mapping(body).get("default"), types.declared(entry.body)
        # Files in defaults are checked by missing_files.
        if default is None or has_file(default):
            continue
        fault = types.fault(default, types.read(declared), (*entry.where, "default"))
        if fault is not None:
            yield position.document.problem(fault.where, fault.what, fault.right)


class _Runs:
    """Checks of the keys that determine whether and how often steps run."""

    def __init__(self, sources: Sources, scripts: Scripts) -> None:
        self._sources = sources
        self._document = sources.document
        self._scripts = scripts

    def check(self, step: Step) -> Iterator[FileProblem]:
        yield from self._check_scatter(step)
        yield from self._loop(step)
        yield from self._check_expressions(step)

    def _check_scatter(self, step: Step) -> Iterator[FileProblem]:
        """Check that the scattered inputs exist, and that ``scatterMethod`` is given."""
        body, where = step.position.body, (*step.position.where, "scatter")
        if "scatter" not in body:
            return
        if SCATTER not in step.position.features:
            right = f"add {SCATTER}: {{}} to the requirements"
            yield self._document.problem(where, "scatter needs a requirement", right)
        for name in step.scatter:
            what = f"step {step.name} has no input {name!r} in its in"
            yield from self._document.unknown(where, name, step.given, what)
        if len(step.scatter) > 1 and "scatterMethod" not in body:
            what = f"{len(step.scatter)} inputs are scattered"
            right = f"add scatterMethod: {DOTPRODUCT}, {NESTED} or {FLAT}"
            yield self._document.problem(where, what, right)

    def _loop(self, step: Step) -> Iterator[FileProblem]:
        """Check where a loop is declared, and its variables."""
        if (loop := step.loop) is None:
            return
        for key in ("scatter", "when"):
            if key in step.position.body:
                what = f"a step with a loop cannot have {key}"
                where = (*step.position.where, key)
                yield self._document.problem(where, what, "put it in a workflow inside")
        if "hints" in loop.where:
            right = "write it under requirements"
            yield self._document.problem(loop.where, "a loop is no hint", right)
        inner = Position(self._document, mapping(loop.body), loop.where)
        for entry in inner.entries("loop"):
            yield from self._check_loop_variable(step, entry)

    def _check_loop_variable(self, step: Step, entry: Entry) -> Iterator[FileProblem]:
        """Check which output an input gets in the next iteration, and its type."""
        what = f"step {step.name} has no input {entry.name!r} in its in"
        yield from self._document.unknown(entry.where, entry.name, step.given, what)
        is_link = isinstance(entry.body, str | list) and not is_listed(entry)
        source = entry.body if is_link else mapping(entry.body).get("loopSource")
        where = entry.where if is_link else (*entry.where, "loopSource")
        target = step.inputs.get(entry.name)
        sink = types.read(types.declared(target.body)) if target else ()
        for text in listing(source):
            name = str(text).rpartition("/")[2]
            what = f"step {step.name} has no output {name!r} in its out"
            yield from self._document.unknown(where, name, step.out, what)
            output = step.outputs.get(name)
            kind = types.read(types.declared(output.body)) if output else ()
            fixed = "valueFrom" not in mapping(entry.body) and len(listing(source)) == 1
            if fixed and not types.fits(kind, sink):
                what = f"{name} is {types.shown(kind)}"
                right = f"{entry.name} of the next iteration is {types.shown(sink)}"
                yield self._document.problem(where, what, right)

    def _check_expressions(self, step: Step) -> Iterator[FileProblem]:
        """Check a step's expressions, and the conditions of the step and of its loop."""
        names = step.given if step.position.is_whole("in") else None
        has_javascript = JAVASCRIPT in step.position.features
        owner = f"step {step.name}"
        scope = Scope(self._document, owner, names, has_javascript, self._scripts)
        yield from scope.check(step.position.body, step.position.where)
        loop = step.loop
        for key, holder, above in (
            ("when", step.position.body, step.position.where),
            (
                "loopWhen",
                mapping(loop.body if loop else None),
                loop.where if loop else (),
            ),
        ):
            when = holder.get(key)
            if when is not None and not (isinstance(when, str) and "$" in when):
                what = f"{when!r} is no expression"
                right = "write $(inputs.NAME), or JavaScript in $(...)"
                yield self._document.problem((*above, key), what, right)
            elif isinstance(when, str):
                yield from self._check_condition(step, when, (*above, key))

    def _check_condition(
        self, step: Step, when: str, where: KeyPath
    ) -> Iterator[FileProblem]:
        """Check that the value of a condition can be true or false."""
        right = "true or false is expected: compare it, as in $(inputs.NAME > 0)"
        with suppress(SubstitutionError):
            if [*expressions(when)] != [when.strip()]:
                what = "the condition is text, with an expression in it"
                yield self._document.problem(where, what, "write one expression only")
                return
        if _NEVER_BOOLEAN.fullmatch(when.strip()):
            what = f"{when.strip()} is never true or false"
            yield self._document.problem(where, what, right)
            return
        match = _INPUT.fullmatch(when.strip())
        entry = step.given.get(match[1]) if match else None
        source = source_of(entry) if entry else None
        if entry is None or not isinstance(source, str):
            return
        changes = {"valueFrom", "default", "pickValue", "linkMerge"}
        if changes & mapping(entry.body).keys():
            return
        kind = self._sources.type(source)
        if entry.name in step.scatter:
            kind = types.items(kind)
        if not types.fits(kind, _BOOLEAN):
            what = f"the input {entry.name} is {types.shown(kind)}"
            yield self._document.problem(where, what, right)
        elif self._sources.name(source) not in self._sources.inputs and types.may_fail(
            kind, _BOOLEAN
        ):
            what = f"the input {entry.name} may be null, and the run fails then"
            yield self._document.remark(where, what, "add a default to it")
