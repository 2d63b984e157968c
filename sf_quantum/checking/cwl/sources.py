"""The sources of a CWL workflow's links: its inputs and its steps' outputs, with types."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from sf_quantum.checking.cwl import types
from sf_quantum.checking.cwl.processes import NESTED, Entry, Position, Process
from sf_quantum.checking.cwl.types import Types
from sf_quantum.checking.document import FileProblem, suggestion
from sf_quantum.files import JSON, KeyPath, listing, mapping

# a use of an input in an expression, with the input's name in {}
_USE = r"""inputs(?:\.|\[.?['"]){}\b"""
# sections of a workflow whose expressions may use its inputs
_EVALUATED = ("requirements", "hints", "inputs", "outputs")


@dataclass(frozen=True)
class Step:
    """A step and the process that it runs; ``run`` is ``None`` if this is unread or faulty."""

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
        """The inputs of the process that the step runs, by name."""
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
        """Return the type of an output as scatter, condition and loop change it."""
        output = self.outputs.get(name)
        kind = types.read(types.declared(output.body)) if output else ()
        if not kind:
            return ()
        # The condition applies to each job of a scatter, so the items of the list may be null.
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


class Sources:
    """The inputs and steps of one workflow, which its links may name as sources."""

    def __init__(self, position: Position, process: Process) -> None:
        self.position, self.document = position, position.document
        self.inputs = {entry.name: entry for entry in position.entries("inputs")}
        self.steps: dict[str, Step] = {}
        for entry in position.entries("steps"):
            step = position.inner(entry.body, entry.where, position.path)
            run = process.runs.get(step.place)
            if step.place in process.faulty or (run and run.place in process.faulty):
                run = None
            self.steps[entry.name] = Step(entry.name, step, run)
        self._source_names = {
            *self.inputs,
            *(f"{s.name}/{out}" for s in self.steps.values() for out in s.out),
        }

    def unused(self) -> set[str]:
        """Return the workflow's unused inputs; empty if parts of it were not read."""
        if not self.is_whole or not self.steps:
            return set()
        used = {
            self.name(str(source))
            for entry in (e for s in self.steps.values() for e in s.given.values())
            for source in listing(source_of(entry))
        }
        for output in self.position.entries("outputs"):
            sources = listing(mapping(output.body).get("outputSource"))
            used |= {self.name(str(source)) for source in sources}
        # Inputs may also be used in expressions, for example in requirements and formats.
        text = str([self.position.body.get(key) for key in _EVALUATED])
        return {
            name
            for name in self.inputs.keys() - used
            if not re.search(_USE.format(re.escape(name)), text)
        }

    @property
    def is_whole(self) -> bool:
        """Whether the workflow's inputs and steps were all read."""
        return self.position.is_whole("inputs", "steps") and all(
            step.position.is_whole("out") for step in self.steps.values()
        )

    def name(self, text: str) -> str:
        """Return a source as ``input`` or ``step/output``, even from a packed document."""
        if text in self._source_names or not (
            parts := text.rpartition("#")[2].split("/")
        ):
            return text
        short = "/".join(parts[-2:])
        if parts[-2:-1] and parts[-2] in self.steps:
            return short
        return parts[-1] if "#" in text else text

    def maker(self, text: str) -> Step | None:
        """Return the step that produces a source; ``None`` for an input of the workflow."""
        return self.steps.get(self.name(text).rpartition("/")[0])

    def check(self, value: JSON, where: KeyPath) -> Iterator[FileProblem]:
        """Check that the sources of a link exist, and that no source is listed twice."""
        for index, text in enumerate(value if isinstance(value, list) else []):
            if text in listing(value)[:index]:
                what = f"{text} is listed before, and StreamFlow takes it once"
                right = "let a step repeat it"
                yield self.document.problem((*where, index), what, right)
        if not self.is_whole:
            return
        for index, text in enumerate(listing(value)):
            if not isinstance(text, str) or self.name(text) in self._source_names:
                continue
            below = (*where, index) if isinstance(value, list) else where
            name = self.name(text)
            step, _, out = name.rpartition("/")
            right = suggestion(name, self._source_names, cutoff=0.4)
            if step in self.steps:
                what = f"step {step} has no output {out!r} in its out"
                right = suggestion(out, self.steps[step].out)
                if out in self.steps[step].outputs:
                    right = f"add {out} to the out of {step}"
            elif name in self.steps:
                what = f"{name} is a step"
                outs = ", ".join(f"{name}/{output}" for output in self.steps[name].out)
                right = f"name its output: {outs}"
            else:
                what = f"there is no input or output of a step {name!r}"
            yield self.document.problem(below, what, right)

    def type(self, text: str) -> Types:
        """Return the type of a source; unknown if its step has to scatter more inputs."""
        step = self.maker(text)
        return () if step and self._is_unscattered(step) else self.made(text)

    def _is_unscattered(self, step: Step) -> bool:
        """Return whether an input of a step gets a list of its type, but is not scattered."""
        return any(
            isinstance(source := source_of(entry), str)
            and (target := step.inputs.get(name)) is not None
            and name not in step.scatter
            and mapping(entry.body).get("valueFrom") is None
            and not types.fits(made := self.made(source), sink := _read(target))
            and types.fits(types.items(made), sink)
            for name, entry in step.given.items()
        )

    def made(self, text: str) -> Types:
        """Return the type of a source according to its declaration."""
        name = self.name(text)
        if name in self.inputs:
            return types.read(types.declared(self.inputs[name].body))
        step, _, out = name.rpartition("/")
        return self.steps[step].result(out) if step in self.steps else ()


def source_of(entry: Entry) -> JSON:
    """Return the sources of an entry of ``in``, in its short or its long form."""
    is_link = isinstance(entry.body, str | list) and not is_listed(entry)
    return entry.body if is_link else mapping(entry.body).get("source")


def is_listed(entry: Entry) -> bool:
    """Return whether an entry is an item of a list; a text is then a name, not a link."""
    return isinstance(entry.where[-1], int)


def _read(entry: Entry) -> Types:
    return types.read(types.declared(entry.body))
