"""Checks of a CWL workflow's links: from sources to the inputs of steps and to outputs."""

from __future__ import annotations

from collections.abc import Iterator

from sf_quantum.checking.cwl import types
from sf_quantum.checking.cwl.processes import Entry, Position, Process
from sf_quantum.checking.cwl.sources import Sources, Step, is_listed, source_of
from sf_quantum.checking.cwl.types import Types
from sf_quantum.checking.document import FileProblem, suggestion
from sf_quantum.files import JSON, KeyPath, listing, mapping

# the type of any list
LIST = types.array((types.Type(types.ANY),))
VALUE_FROM = "StepInputExpressionRequirement"
MULTIPLE = "MultipleInputFeatureRequirement"
# values of linkMerge and pickValue, which determine how several sources become one value
MERGE_NESTED, MERGE_FLATTENED = "merge_nested", "merge_flattened"
FIRST, ONLY, ALL = "first_non_null", "the_only_non_null", "all_non_null"


class Links:
    """The links of one workflow."""

    def __init__(self, sources: Sources, process: Process) -> None:
        self._sources = sources
        self._document = sources.document
        self._faulty = process.faulty
        self._mistyped: set[tuple[str, str]] = set()

    def check_inputs(self, step: Step) -> Iterator[FileProblem]:
        """Check the links to a step's inputs, and the outputs that the step lists."""
        yield from self._check_sources(step)
        yield from self._check_missing(step)
        yield from self._check_out(step)

    def check_output(self, output: Entry) -> Iterator[FileProblem]:
        """Check the link to an output of the workflow."""
        body, where = mapping(output.body), (*output.where, "outputSource")
        if (self._document.name, output.where) in self._faulty:
            return
        if "outputSource" not in body:
            what = f"the output {output.name} has no source"
            right = "add outputSource: STEP/OUTPUT"
            yield self._document.problem(output.where, what, right)
            return
        problems = [*self._sources.check(body["outputSource"], where)]
        yield from problems
        sink = types.read(body.get("type"))
        if not problems:
            yield from self._check_link(body["outputSource"], body, sink, where)

    def _check_link(
        self,
        value: JSON,
        body: JSON,
        sink: Types,
        where: KeyPath,
        *,
        step: Step | None = None,
        name: str = "",
    ) -> Iterator[FileProblem]:
        """Check that the type of each source matches the sink.

        :param body: body of the link, which may have ``linkMerge`` and ``pickValue``
        :param sink: types that the input or output accepts
        :param step: step to which the link leads; ``None`` for an output of the workflow
        :param name: name of the step's input
        """
        sources = [text for text in listing(value) if isinstance(text, str)]
        merge = mapping(body).get("linkMerge")
        if len(sources) > 1:
            merge = merge or MERGE_NESTED
            if MULTIPLE not in self._sources.position.features:
                what = "there are several sources"
                right = f"add {MULTIPLE}: {{}} to the requirements"
                yield self._document.problem(where, what, right)
                return
        pick = mapping(body).get("pickValue")
        for text in sources:
            source = self._sources.type(text)
            # a single source may be passed as it is, or as a list of one item
            forms = [source] if len(sources) == 1 or pick in (FIRST, ONLY) else []
            if merge == MERGE_NESTED or pick == ALL:
                forms.append(types.array(source))
            if merge == MERGE_FLATTENED:
                forms.append(types.array(types.items(source)))
            if not any(types.fits(form, sink) for form in forms):
                what, right = _misfit(text, source, sink)
                if len(sources) > 1:
                    what = f"{what}, linked by {pick or merge}"
                right += _scatter_remedy(step, name, forms, sink)
                if (what, right) not in self._mistyped:
                    yield self._document.problem(where, what, right)
                if (origin := self._sources.name(text)) in self._sources.inputs:
                    # The type of the workflow's input may be at fault. Note the input, so that
                    # other links and the input's value do not report the same fault.
                    self._faulty.add(
                        (self._document.name, self._sources.inputs[origin].where)
                    )
                    self._mistyped.add((what, right))

    def _check_sources(self, step: Step) -> Iterator[FileProblem]:
        """Check the sources of a step's inputs, and the types of these sources."""
        for entry in step.given.values():
            body, where, source = entry.body, entry.where, source_of(entry)
            below = (*where, "source") if isinstance(body, dict) else where
            problems = [*self._sources.check(source, below)]
            yield from problems
            value_from = mapping(body).get("valueFrom") is not None
            if value_from and VALUE_FROM not in step.position.features:
                right = f"add {VALUE_FROM}: {{}} to the requirements"
                yield self._document.problem(
                    where, "valueFrom needs a requirement", right
                )
            if not problems and {*step.scatter} <= step.given.keys():
                yield from self._check_types(step, entry, below)

    def _check_types(
        self, step: Step, entry: Entry, below: KeyPath
    ) -> Iterator[FileProblem]:
        """Check the types of an input's sources, or of its default."""
        name, body, where, source = (
            entry.name,
            entry.body,
            entry.where,
            source_of(entry),
        )
        target = step.inputs.get(name)
        if target is None or mapping(body).get("valueFrom") is not None:
            if name in step.scatter:  # valueFrom gets one item of the list
                yield from self._check_link(
                    source, body, LIST, below, step=step, name=name
                )
                yield from self._check_default(body, LIST, where)
            return
        sink = types.read(types.declared(target.body))
        if source is not None:
            if "default" in mapping(target.body) or "default" in mapping(body):
                sink = (*sink, types.Type(types.NULL))
            wanted = types.array(sink) if name in step.scatter else sink
            yield from self._check_link(
                source, body, wanted, below, step=step, name=name
            )
            yield from self._check_ignored_pick(source, body, wanted, where)
            yield from self._check_nulls(step, entry, wanted)
            if step.run:
                for text in listing(source):
                    yield from self._check_format(str(text), target, step.run, below)
        else:
            wanted = types.array(sink) if name in step.scatter else sink
            yield from self._check_default(body, wanted, where)

    def _check_default(
        self, body: JSON, wanted: Types, where: KeyPath
    ) -> Iterator[FileProblem]:
        """Check the default of a step's input, unless it has files, whose forms vary."""
        default = mapping(body).get("default")
        fault = types.fault(default, wanted, (*where, "default"))
        if fault and default is not None and not has_file(default):
            yield self._document.problem(fault.where, fault.what, fault.right)

    def _check_ignored_pick(
        self, source: JSON, body: JSON, sink: Types, where: KeyPath
    ) -> Iterator[FileProblem]:
        """Find a ``pickValue`` that a single source needs, but that StreamFlow ignores.

        For a step's input, StreamFlow 0.2.0rc3 applies ``pickValue`` only to a list of
        sources.
        """
        pick = mapping(body).get("pickValue")
        if pick is None or not isinstance(source, str):
            return
        if types.may_fail(self._sources.made(source), sink):
            what = f"StreamFlow ignores {pick} of one source"
            right = f"write a list: source: [{source}]"
            yield self._document.problem((*where, "pickValue"), what, right)

    def _check_nulls(
        self, step: Step, entry: Entry, sink: Types
    ) -> Iterator[FileProblem]:
        """Remark on outputs that may be null, although another step needs a value."""
        source, body = source_of(entry), mapping(entry.body)
        guarded = step.position.body.get("when") is not None
        if body.get("pickValue") is not None or guarded:
            return
        for text in map(str, listing(source)):
            maker = self._sources.maker(text)
            made = self._sources.made(text)
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
            verb = "have a null in it" if is_scattered else "be null"
            what = f"{text} may {verb} {why}, and the run fails then"
            right = f"add a default, or a when; {types.shown(sink)} is expected"
            if is_scattered:
                picked = "linkMerge: merge_flattened, pickValue: all_non_null"
                right = f"write {{source: [{text}], {picked}}}, or {right}"
            yield self._document.remark(entry.where, what, right)

    def _check_format(
        self, source: str, target: Entry, run: Position, where: KeyPath
    ) -> Iterator[FileProblem]:
        """Check that the source, a step's output, has the format that the input declares."""
        wanted, document = mapping(target.body).get("format"), run.document
        step, _, out = self._sources.name(source).rpartition("/")
        if not isinstance(wanted, str) or wanted.startswith("$") or not step:
            return
        maker = self._sources.steps[step]
        made = maker.format(out)
        if made is None and maker.run and _is_tool(maker.run):
            what = f"{out} of step {step} has no format"
            right = f"{wanted} is expected: add format: to the output"
            yield self._document.problem(where, what, right)
        if not isinstance(made, str) or made.startswith("$") or not maker.run:
            return
        names = (maker.run.document.expanded(made), document.expanded(wanted))
        if names[0] != names[1] and "$schemas" not in document.content:
            what = f"{out} of step {step} has the format {made}"
            yield self._document.problem(where, what, f"{wanted} is expected")

    def _check_missing(self, step: Step) -> Iterator[FileProblem]:
        """Find inputs that need a value, but get none."""
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
            yield self._document.problem(where, what, right)

    def _has_value(self, entry: Entry) -> bool:
        body = mapping(entry.body)
        if not isinstance(entry.body, dict):
            return entry.body is not None and not is_listed(entry)
        is_faulty = (self._document.name, entry.where) in self._faulty
        given = bool(body.get("source")) or "default" in body or "valueFrom" in body
        return is_faulty or given

    def _check_out(self, step: Step) -> Iterator[FileProblem]:
        """Check that the process that a step runs has the outputs that ``out`` lists."""
        if step.run is None or not step.run.is_whole("outputs"):
            return
        for name, entry in step.out.items():
            what = f"what step {step.name} runs has no output {name!r}"
            yield from self._document.unknown(entry.where, name, step.outputs, what)


def _misfit(text: str, source: Types, sink: Types) -> tuple[str, str]:
    """Return what a source is, or a field of it, and what is expected."""
    field, given, wanted = types.misfit(source, sink)
    what = f"{text} is {types.shown(given)}"
    if field:
        state = f"is {types.shown(given)}" if given else "is missing"
        what = f"the field {field} of {text} {state}"
    return what, f"{types.shown(wanted)} is expected"


def _scatter_remedy(
    step: Step | None, name: str, forms: list[Types], sink: Types
) -> str:
    """Return the change of ``scatter`` with which a source matches; empty if none does."""
    if step is None:
        return ""
    if name not in step.scatter:
        forms, change = [types.items(form) for form in forms], f"add {name} to"
    else:
        sink, change = types.items(sink), f"take {name} out of"
    fits = any(types.fits(form, sink) for form in forms)
    return f": {change} the scatter of step {step.name}" if fits else ""


def has_file(value: JSON) -> bool:
    return isinstance(value, dict) or any(isinstance(v, dict) for v in listing(value))


def _is_tool(position: Position) -> bool:
    return position.body.get("class") == "CommandLineTool"
