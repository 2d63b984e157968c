"""The links of CWL workflows: sources, types, scatter, loops and conditions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from cwl_utils.errors import SubstitutionError

from sf_quantum.checking import types
from sf_quantum.checking.cwl import (
    DOTPRODUCT,
    FLAT,
    NESTED,
    Entry,
    Position,
    Process,
)
from sf_quantum.checking.document import FileProblem, suggestion
from sf_quantum.checking.expressions import JAVASCRIPT, Scope, expressions
from sf_quantum.checking.javascript import Scripts
from sf_quantum.checking.types import Types
from sf_quantum.files import JSON, KeyPath, listing, mapping

SCATTER = "ScatterFeatureRequirement"
LIST = types.array((types.Type(types.ANY),))
VALUE_FROM = "StepInputExpressionRequirement"
MULTIPLE = "MultipleInputFeatureRequirement"
# what ends up in an input for several sources
MERGE_NESTED, MERGE_FLATTENED = "merge_nested", "merge_flattened"
# sections of a workflow with expressions that may use its inputs
_USE = r"""inputs(?:\.|\[.?['"]){}\b"""
_EVALUATED = ("requirements", "hints", "inputs", "outputs")
# a condition that is an input of its step
# null in a condition, objects and numbers
_NEVER_BOOLEAN = re.compile(r"\$\((self|null|inputs|runtime(\.\w+)?)\)")
_INPUT = re.compile(r"\s*\$\(inputs\.(\w+)\)\s*")
_BOOLEAN = types.read("boolean")
FIRST, ONLY, ALL = "first_non_null", "the_only_non_null", "all_non_null"


def check(process: Process) -> Iterator[FileProblem]:
    """Check each workflow and tool that was read."""
    scripts = Scripts()
    if process.root is not None:
        yield from _untyped(process.root)
    for position in process.read.values():
        yield from _types(position)
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
            yield from _Workflow(position, process, scripts).check()
    yield from scripts.check()


def unused(process: Process) -> set[str]:
    """The inputs of the root that no step takes, as far as that is known."""
    root = process.root
    if root is None or root.body.get("class") != "Workflow":
        return set()
    return _Workflow(root, process, Scripts()).unused()


def _untyped(root: Position) -> Iterator[FileProblem]:
    """Find inputs and outputs of the root without a type, for which it has no ports.

    CWL v1.0 does not require a type. StreamFlow needs none of what a step runs.
    """
    if root.document.content.get("cwlVersion") != "v1.0":
        return
    for entry in (*root.entries("inputs"), *root.entries("outputs")):
        if types.declared(entry.body) is None:
            yield root.document.problem(entry.where, "type is missing", "add type:")


def _types(position: Position) -> Iterator[FileProblem]:
    """Find types that do not exist, and defaults of another type."""
    for entry in (*position.entries("inputs"), *position.entries("outputs")):
        body = entry.body if isinstance(entry.body, dict) else None
        where = (*entry.where, "type") if body else entry.where
        # a name may be one of those that the requirement defines
        is_defined = "SchemaDefRequirement" in position.features
        names = () if is_defined else types.unknown(types.declared(entry.body), where)
        for below, name in names:
            what = f"unknown type {name!r}"
            yield position.document.problem(below, what, suggestion(name, types.WORDS))
        if types.is_bare(types.read(types.declared(entry.body))):
            what = "a record that declares no fields takes none in StreamFlow"
            yield position.document.remark(where, what, "declare its fields")
        default, declared = mapping(body).get("default"), types.declared(entry.body)
        # files of a default are checked when they are needed
        if default is None or _has_file(default):
            continue
        fault = types.fault(default, types.read(declared), (*entry.where, "default"))
        if fault is not None:
            yield position.document.problem(fault.where, fault.what, fault.right)


def _has_file(value: JSON) -> bool:
    return isinstance(value, dict) or any(isinstance(v, dict) for v in listing(value))


@dataclass(frozen=True)
class _Step:
    """A step and what it runs; ``None`` if that was not read."""

    name: str
    position: Position
    run: Position | None

    @cached_property
    def given(self) -> dict[str, Entry]:
        """The entries of ``in``, by name."""
        return {entry.name: entry for entry in self.position.entries("in")}

    @cached_property
    def out(self) -> dict[str, Entry]:
        return {entry.name: entry for entry in self.position.entries("out")}

    @cached_property
    def inputs(self) -> dict[str, Entry]:
        """The inputs of what it runs."""
        entries = self.run.entries("inputs") if self.run else []
        return {entry.name: entry for entry in entries}

    @cached_property
    def outputs(self) -> dict[str, Entry]:
        entries = self.run.entries("outputs") if self.run else []
        return {entry.name: entry for entry in entries}

    @property
    def loop(self) -> Entry | None:
        entries = self.position.requirements
        return next((entry for entry in entries if entry.name == "Loop"), None)

    @property
    def scatter(self) -> list[str]:
        return self.position.scattered

    def result(self, name: str) -> Types:
        """The type of an output, after scatter, condition and loop."""
        output = self.outputs.get(name)
        kind = types.read(types.declared(output.body)) if output else ()
        if not kind:
            return ()
        # each job of a scatter may be skipped
        if self.position.body.get("when") is not None:
            kind = (*kind, types.Type(types.NULL))
        nested = self.position.body.get("scatterMethod") == NESTED
        for _ in range(len(self.scatter) if nested else bool(self.scatter)):
            kind = types.array(kind)
        method = mapping(self.loop.body if self.loop else None).get("outputMethod")
        if method in ("all", "all_iterations"):
            kind = types.array(kind)
        return kind

    def format(self, name: str) -> JSON:
        output = self.outputs.get(name)
        return mapping(output.body if output else None).get("format")


class _Workflow:
    """One workflow in its document."""

    def __init__(self, position: Position, process: Process, scripts: Scripts) -> None:
        self.position, self.document = position, position.document
        self.scripts = scripts
        self.inputs = {entry.name: entry for entry in position.entries("inputs")}
        self.steps: dict[str, _Step] = {}
        for entry in position.entries("steps"):
            step = position.inner(entry.body, entry.where, position.path)
            run = process.runs.get(step.place)
            if step.place in process.faulty or (run and run.place in process.faulty):
                run = None
            self.steps[entry.name] = _Step(entry.name, step, run)
        self.faulty = process.faulty
        self.mistyped: set[tuple[str, str]] = set()
        self.known = {
            *self.inputs,
            *(f"{s.name}/{out}" for s in self.steps.values() for out in s.out),
        }

    def check(self) -> Iterator[FileProblem]:
        """Check the links of each step, and those of the workflow's outputs."""
        for step in self.steps.values():
            yield from self._given(step)
            yield from self._missing(step)
            yield from self._out(step)
            yield from self._scatter(step)
            yield from self._loop(step)
            yield from self._expressions(step)
            yield from self._lonely(step)
        for output in self.position.entries("outputs"):
            yield from self._output(output)

    def _lonely(self, step: _Step) -> Iterator[FileProblem]:
        """Remark on steps for which no output of the workflow waits."""
        outputs = self.position.entries("outputs")
        if step.position.body.get("out") == [] and outputs:
            what = (
                f"no output depends on step {step.name}: the run fails if it still runs "
                "when all outputs are there"
            )
            right = "give it an output, and the workflow one with its outputSource"
            yield self.document.remark((*step.position.where, "out"), what, right)

    def unused(self) -> set[str]:
        """The inputs of the workflow that nothing uses; none if not all of it was read."""
        if not self._is_whole() or not self.steps:
            return set()
        used = {
            self._reference(str(source))
            for entry in (e for s in self.steps.values() for e in s.given.values())
            for source in listing(_source(entry))
        }
        for output in self.position.entries("outputs"):
            sources = listing(mapping(output.body).get("outputSource"))
            used |= {self._reference(str(source)) for source in sources}
        # expressions of requirements and of formats
        text = str([self.position.body.get(key) for key in _EVALUATED])
        return {
            name
            for name in self.inputs.keys() - used
            if not re.search(_USE.format(re.escape(name)), text)
        }

    def _is_whole(self) -> bool:
        return self.position.is_whole("inputs", "steps") and all(
            step.position.is_whole("out") for step in self.steps.values()
        )

    def _reference(self, text: str) -> str:
        """A source as ``input`` or ``step/output``, whatever it was packed as."""
        if text in self.known or not (parts := text.rpartition("#")[2].split("/")):
            return text
        short = "/".join(parts[-2:])
        if parts[-2:-1] and parts[-2] in self.steps:
            return short
        return parts[-1] if "#" in text else text

    def _sources(self, value: JSON, where: KeyPath) -> Iterator[FileProblem]:
        if not self._is_whole():
            return
        for index, text in enumerate(listing(value)):
            if not isinstance(text, str) or self._reference(text) in self.known:
                continue
            below = (*where, index) if isinstance(value, list) else where
            name = self._reference(text)
            step, _, out = name.rpartition("/")
            right = suggestion(name, self.known, cutoff=0.4)
            if step in self.steps:
                what = f"step {step} has no output {out!r} in its out"
                right = suggestion(out, self.steps[step].out)
                if out in self.steps[step].outputs:
                    right = f"add {out} to the out of {step}"
            elif name in self.steps:
                what = f"{name} is a step"
                outs = ", ".join(f"{name}/{one}" for one in self.steps[name].out)
                right = f"name its output: {outs}"
            else:
                what = f"there is no input or output of a step {name!r}"
            yield self.document.problem(below, what, right)

    def _type(self, text: str) -> Types:
        """The type of a source; unknown of a step whose scatter is missing."""
        step = self.steps.get(self._reference(text).rpartition("/")[0])
        return () if step and self._is_unscattered(step) else self._made(text)

    def _is_unscattered(self, step: _Step) -> bool:
        """Whether an input of a step gets a list of what it takes."""
        return any(
            isinstance(source := _source(entry), str)
            and (target := step.inputs.get(name)) is not None
            and name not in step.scatter
            and mapping(entry.body).get("valueFrom") is None
            and not types.fits(made := self._made(source), sink := _read(target))
            and types.fits(types.items(made), sink)
            for name, entry in step.given.items()
        )

    def _made(self, text: str) -> Types:
        name = self._reference(text)
        if name in self.inputs:
            return types.read(types.declared(self.inputs[name].body))
        step, _, out = name.rpartition("/")
        return self.steps[step].result(out) if step in self.steps else ()

    def _link(
        self,
        value: JSON,
        body: JSON,
        sink: Types,
        where: KeyPath,
        *,
        step: _Step | None = None,
        name: str = "",
    ) -> Iterator[FileProblem]:
        """Check that the type of each source fits.

        :param step: step that the link is for; None for an output of the workflow
        :param name: input of the step
        """
        sources = [text for text in listing(value) if isinstance(text, str)]
        merge = mapping(body).get("linkMerge")
        if len(sources) > 1:
            merge = merge or MERGE_NESTED
            if MULTIPLE not in self.position.features:
                what = "there are several sources"
                right = f"add {MULTIPLE}: {{}} to the requirements"
                yield self.document.problem(where, what, right)
                return
        pick = mapping(body).get("pickValue")
        for text in sources:
            source = self._type(text)
            # a single source may be given as it is, or as a list of one
            forms = [source] if len(sources) == 1 or pick in (FIRST, ONLY) else []
            if merge == MERGE_NESTED or pick == ALL:
                forms.append(types.array(source))
            if merge == MERGE_FLATTENED:
                forms.append(types.array(types.items(source)))
            if not any(types.fits(form, sink) for form in forms):
                what = f"{text} is {types.shown(source)}"
                if len(sources) > 1:
                    what = f"{what}, linked by {pick or merge}"
                right = f"{types.shown(sink)} is expected"
                right += _scatter_remedy(step, name, forms, sink)
                if (what, right) not in self.mistyped:
                    yield self.document.problem(where, what, right)
                if (origin := self._reference(text)) in self.inputs:
                    # its own type may be what is wrong, for all steps and its value
                    self.faulty.add((self.document.name, self.inputs[origin].where))
                    self.mistyped.add((what, right))

    def _given(self, step: _Step) -> Iterator[FileProblem]:
        """Check the sources of a step's inputs, and their types."""
        for entry in step.given.values():
            body, where, source = entry.body, entry.where, _source(entry)
            below = (*where, "source") if isinstance(body, dict) else where
            problems = [*self._sources(source, below)]
            yield from problems
            value_from = mapping(body).get("valueFrom") is not None
            if value_from and VALUE_FROM not in step.position.features:
                right = f"add {VALUE_FROM}: {{}} to the requirements"
                yield self.document.problem(
                    where, "valueFrom needs a requirement", right
                )
            if not problems and {*step.scatter} <= step.given.keys():
                yield from self._typed(step, entry, below)

    def _typed(
        self, step: _Step, entry: Entry, below: KeyPath
    ) -> Iterator[FileProblem]:
        """Check the types of an input's sources, or of its default."""
        name, body, where, source = entry.name, entry.body, entry.where, _source(entry)
        target = step.inputs.get(name)
        if target is None or mapping(body).get("valueFrom") is not None:
            if name in step.scatter:  # expressions get the items
                yield from self._link(source, body, LIST, below, step=step, name=name)
                yield from self._default(body, LIST, where)
            return
        sink = types.read(types.declared(target.body))
        if source is not None:
            if "default" in mapping(target.body) or "default" in mapping(body):
                sink = (*sink, types.Type(types.NULL))
            wanted = types.array(sink) if name in step.scatter else sink
            yield from self._link(source, body, wanted, below, step=step, name=name)
            yield from self._ignored_pick(source, body, wanted, where)
            yield from self._maybe_null(step, entry, wanted)
            if step.run:
                for text in listing(source):
                    yield from self._format(str(text), target, step.run, below)
        else:
            wanted = types.array(sink) if name in step.scatter else sink
            yield from self._default(body, wanted, where)

    def _default(
        self, body: JSON, wanted: Types, where: KeyPath
    ) -> Iterator[FileProblem]:
        """Check the default of a step's input, unless it has files, which differ in form."""
        default = mapping(body).get("default")
        fault = types.fault(default, wanted, (*where, "default"))
        if fault and default is not None and not _has_file(default):
            yield self.document.problem(fault.where, fault.what, fault.right)

    def _ignored_pick(
        self, source: JSON, body: JSON, sink: Types, where: KeyPath
    ) -> Iterator[FileProblem]:
        """Find a ``pickValue`` of one source that StreamFlow 0.2.0rc3 would have to apply.

        In the input of a step it applies it to lists of sources only.
        """
        pick = mapping(body).get("pickValue")
        if pick is None or not isinstance(source, str):
            return
        if types.may_fail(self._made(source), sink):
            what = f"StreamFlow ignores {pick} of one source"
            right = f"write a list: source: [{source}]"
            yield self.document.problem((*where, "pickValue"), what, right)

    def _maybe_null(
        self, step: _Step, entry: Entry, sink: Types
    ) -> Iterator[FileProblem]:
        """Remark on what a step makes, or may not, and another one needs."""
        source, body = _source(entry), mapping(entry.body)
        guarded = step.position.body.get("when") is not None
        if body.get("pickValue") is not None or guarded:
            return
        for text in map(str, listing(source)):
            maker = self.steps.get(self._reference(text).rpartition("/")[0])
            made = self._made(text)
            if len(listing(source)) > 1 and body.get("linkMerge") != MERGE_FLATTENED:
                made = types.array(made)
            if not maker or not types.may_fail(made, sink):
                continue
            is_skipped = maker.position.body.get("when") is not None
            is_scattered = is_skipped and bool(maker.scatter)
            skipped = (
                f"a job of step {maker.name}" if is_scattered else f"step {maker.name}"
            )
            why = f"if {skipped} is skipped" if is_skipped else "in some runs"
            null = "have a null in it" if is_scattered else "be null"
            what = f"{text} may {null} {why}, and the run fails then"
            right = f"add a default, or a when; {types.shown(sink)} is expected"
            if is_scattered:
                picked = "linkMerge: merge_flattened, pickValue: all_non_null"
                right = f"write {{source: [{text}], {picked}}}, or {right}"
            yield self.document.remark(entry.where, what, right)

    def _format(
        self, source: str, target: Entry, run: Position, where: KeyPath
    ) -> Iterator[FileProblem]:
        """Check the format of a file that a step makes, where both are named."""
        wanted, document = mapping(target.body).get("format"), run.document
        step, _, out = self._reference(source).rpartition("/")
        if not isinstance(wanted, str) or wanted.startswith("$") or not step:
            return
        maker = self.steps[step]
        made = maker.format(out)
        if made is None and maker.run and _is_tool(maker.run):
            what = f"{out} of step {step} has no format"
            right = f"{wanted} is expected: add format: to the output"
            yield self.document.problem(where, what, right)
        if not isinstance(made, str) or made.startswith("$") or not maker.run:
            return
        names = (maker.run.document.expanded(made), document.expanded(wanted))
        if names[0] != names[1] and "$schemas" not in document.content:
            what = f"{out} of step {step} has the format {made}"
            yield self.document.problem(where, what, f"{wanted} is expected")

    def _missing(self, step: _Step) -> Iterator[FileProblem]:
        """Find inputs that need a value and get none."""
        if not step.position.is_whole("in"):
            return
        extra = [name for name in step.given if name not in step.inputs]
        for name, entry in step.inputs.items():
            given = step.given.get(name)
            if types.is_optional(entry.body) or (given and self._has_value(given)):
                continue
            kind = types.shown(types.read(types.declared(entry.body)))
            what = f"step {step.name} has no value for the input {name} ({kind})"
            near = suggestion(name, extra) if extra else ""
            where = (*step.position.where, "in")
            if near.startswith("did"):
                wrong = near.removeprefix("did you mean ").rstrip("?")
                where, right = step.given[wrong].where, f"write {name} for {wrong}"
            else:
                right = f"add {name}: and a source"
            yield self.document.problem(where, what, right)

    def _has_value(self, entry: Entry) -> bool:
        body = mapping(entry.body)
        if not isinstance(entry.body, dict):
            return entry.body is not None and not _is_listed(entry)
        is_faulty = (self.document.name, entry.where) in self.faulty
        given = bool(body.get("source")) or "default" in body or "valueFrom" in body
        return is_faulty or given

    def _out(self, step: _Step) -> Iterator[FileProblem]:
        """Check that what a step runs has the outputs that ``out`` lists."""
        if step.run is None or not step.run.is_whole("outputs"):
            return
        for name, entry in step.out.items():
            what = f"what step {step.name} runs has no output {name!r}"
            yield from self.document.unknown(entry.where, name, step.outputs, what)

    def _scatter(self, step: _Step) -> Iterator[FileProblem]:
        body, where = step.position.body, (*step.position.where, "scatter")
        if "scatter" not in body:
            return
        if SCATTER not in step.position.features:
            right = f"add {SCATTER}: {{}} to the requirements"
            yield self.document.problem(where, "scatter needs a requirement", right)
        for name in step.scatter:
            what = f"step {step.name} has no input {name!r} in its in"
            yield from self.document.unknown(where, name, step.given, what)
        if len(step.scatter) > 1 and "scatterMethod" not in body:
            what = f"{len(step.scatter)} inputs are scattered"
            right = f"add scatterMethod: {DOTPRODUCT}, {NESTED} or {FLAT}"
            yield self.document.problem(where, what, right)

    def _loop(self, step: _Step) -> Iterator[FileProblem]:
        if (loop := step.loop) is None:
            return
        for key in ("scatter", "when"):
            if key in step.position.body:
                what = f"a step with a loop cannot have {key}"
                where = (*step.position.where, key)
                yield self.document.problem(where, what, "put it in a workflow inside")
        if "hints" in loop.where:
            right = "write it under requirements"
            yield self.document.problem(loop.where, "a loop is no hint", right)
        inner = Position(self.document, mapping(loop.body), loop.where)
        for entry in inner.entries("loop"):
            yield from self._loop_variable(step, entry)

    def _loop_variable(self, step: _Step, entry: Entry) -> Iterator[FileProblem]:
        what = f"step {step.name} has no input {entry.name!r} in its in"
        yield from self.document.unknown(entry.where, entry.name, step.given, what)
        is_link = isinstance(entry.body, str | list) and not _is_listed(entry)
        source = entry.body if is_link else mapping(entry.body).get("loopSource")
        where = entry.where if is_link else (*entry.where, "loopSource")
        target = step.inputs.get(entry.name)
        sink = types.read(types.declared(target.body)) if target else ()
        for text in listing(source):
            name = str(text).rpartition("/")[2]
            what = f"step {step.name} has no output {name!r} in its out"
            yield from self.document.unknown(where, name, step.out, what)
            output = step.outputs.get(name)
            kind = types.read(types.declared(output.body)) if output else ()
            fixed = "valueFrom" not in mapping(entry.body) and len(listing(source)) == 1
            if fixed and not types.fits(kind, sink):
                what = f"{name} is {types.shown(kind)}"
                right = f"{entry.name} of the next iteration is {types.shown(sink)}"
                yield self.document.problem(where, what, right)

    def _expressions(self, step: _Step) -> Iterator[FileProblem]:
        names = step.given if step.position.is_whole("in") else None
        has_javascript = JAVASCRIPT in step.position.features
        owner = f"step {step.name}"
        scope = Scope(self.document, owner, names, has_javascript, self.scripts)
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
                yield self.document.problem((*above, key), what, right)
            elif isinstance(when, str):
                yield from self._condition(step, when, (*above, key))

    def _condition(
        self, step: _Step, when: str, where: KeyPath
    ) -> Iterator[FileProblem]:
        """Check that a condition can be true or false."""
        right = "true or false is expected: compare it, as in $(inputs.NAME > 0)"
        with suppress(SubstitutionError):
            if [*expressions(when)] != [when.strip()]:
                what = "the condition is text, with an expression in it"
                yield self.document.problem(where, what, "write one expression only")
                return
        if _NEVER_BOOLEAN.fullmatch(when.strip()):
            what = f"{when.strip()} is never true or false"
            yield self.document.problem(where, what, right)
            return
        match = _INPUT.fullmatch(when.strip())
        entry = step.given.get(match[1]) if match else None
        source = _source(entry) if entry else None
        if entry is None or not isinstance(source, str):
            return
        changes = {"valueFrom", "default", "pickValue", "linkMerge"}
        if changes & mapping(entry.body).keys():
            return
        kind = self._type(source)
        if entry.name in step.scatter:
            kind = types.items(kind)
        if not types.fits(kind, _BOOLEAN):
            what = f"the input {entry.name} is {types.shown(kind)}"
            yield self.document.problem(where, what, right)
        elif self._reference(source) not in self.inputs and types.may_fail(
            kind, _BOOLEAN
        ):
            what = f"the input {entry.name} may be null, and the run fails then"
            yield self.document.remark(where, what, "add a default to it")

    def _output(self, output: Entry) -> Iterator[FileProblem]:
        body, where = mapping(output.body), (*output.where, "outputSource")
        if (self.document.name, output.where) in self.faulty:
            return
        if "outputSource" not in body:
            what = f"the output {output.name} has no source"
            right = "add outputSource: STEP/OUTPUT"
            yield self.document.problem(output.where, what, right)
            return
        problems = [*self._sources(body["outputSource"], where)]
        yield from problems
        sink = types.read(body.get("type"))
        if not problems:
            yield from self._link(body["outputSource"], body, sink, where)


def _scatter_remedy(
    step: _Step | None, name: str, forms: list[Types], sink: Types
) -> str:
    """Say how ``scatter`` has to change if that makes a source fit; otherwise nothing."""
    if step is None:
        return ""
    if name not in step.scatter:
        forms, change = [types.items(form) for form in forms], f"add {name} to"
    else:
        sink, change = types.items(sink), f"take {name} out of"
    fits = any(types.fits(form, sink) for form in forms)
    return f": {change} the scatter of step {step.name}" if fits else ""


def _source(entry: Entry) -> JSON:
    """The sources of an entry of ``in``, in either form."""
    is_link = isinstance(entry.body, str | list) and not _is_listed(entry)
    return entry.body if is_link else mapping(entry.body).get("source")


def _read(entry: Entry) -> Types:
    return types.read(types.declared(entry.body))


def _is_listed(entry: Entry) -> bool:
    """Whether an entry of a list is its name alone: ``in: [name]``."""
    return isinstance(entry.where[-1], int)


def _is_tool(position: Position) -> bool:
    return position.body.get("class") == "CommandLineTool"
