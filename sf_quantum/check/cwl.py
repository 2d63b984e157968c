"""The steps, ports, tools and inputs of a CWL workflow, found by following ``run:``.

Only the parts that the checks need are read, in milliseconds instead of the second that a
CWL parser takes. A file that cwltool or StreamFlow rejects is checked all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from os.path import normpath
from pathlib import Path

from sf_quantum.check.document import Document, FileProblem, UnreadableError
from sf_quantum.files import JSON, listing, mapping
from sf_quantum.validation import KeyPath

KIND = "CWL file"
CLASSES = ("Workflow", "CommandLineTool", "ExpressionTool", "Operation")
# included from other files, which are not read
FETCHED = ("$import", "$include", "$mixin")


@dataclass(frozen=True)
class Tool:
    """A command that a step runs; ``step`` is the step's path: ``/loop/solve``."""

    step: str
    command: str
    document: Document
    where: KeyPath
    body: dict[str, JSON]


@dataclass(frozen=True)
class Position:
    """A process in a document, and the step that runs it.

    :param above: the processes that run it
    """

    document: Document
    body: dict[str, JSON]
    where: KeyPath
    path: str = "/"
    container: bool = False
    above: tuple[str, ...] = ()

    def inner(self, body: JSON, *keys: str | int, path: str) -> Position:
        """A step or process inside this one, and in its container if it has one."""
        return replace(
            self,
            body=mapping(body),
            where=(*self.where, *keys),
            path=path,
            container=self.in_container,
        )

    @property
    def in_container(self) -> bool:
        """Whether it, or a process that runs it, requires a container."""
        classes: set[str] = set()
        for section in (self.body.get("requirements"), self.body.get("hints")):
            classes |= mapping(section).keys()
            classes |= {str(mapping(item).get("class")) for item in listing(section)}
        return self.container or "DockerRequirement" in classes


@dataclass
class Process:
    """The content of a CWL file, as far as the checks need it.

    :param inputs: the types of the root's inputs, by name; optional ones end in ``?``
    :param taken: the ports that are inputs of any process
    :param sources: the port from which an input gets its value unchanged
    :param unseen: steps with parts that were not read, so that nothing below them can be
        checked; ``/`` is the workflow itself
    """

    inputs: dict[str, str] = field(default_factory=dict)
    steps: set[str] = field(default_factory=lambda: {"/"})
    ports: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    sources: dict[str, str] = field(default_factory=dict)
    tools: list[Tool] = field(default_factory=list)
    problems: list[FileProblem] = field(default_factory=list)
    unseen: set[str] = field(default_factory=set)

    def origin(self, port: str) -> str:
        """The port where a value originates; ``/name`` if it is an input of the root."""
        seen = {port}
        while (port := self.sources.get(port, port)) not in seen:
            seen.add(port)
        return port

    def walk(self, position: Position) -> None:
        """Read a process and all that it runs."""
        match position.body.get("class"):
            case "Workflow":
                self._ports(position, "inputs", "outputs")
                for name, body, key in self.entries(position, "steps"):
                    path = f"{position.path.rstrip('/')}/{name}"
                    self._step(position.inner(body, "steps", key, path=path))
            case "CommandLineTool":
                self._ports(position, "inputs", "outputs")
                if not position.in_container and (tool := _tool(position)):
                    self.tools.append(tool)

    def _step(self, step: Position) -> None:
        self.steps.add(step.path)
        self._ports(step, "in", "out")
        above = step.path.rpartition("/")[0]
        for name, body, _ in self.entries(step, "in"):
            source = body.get("source") if isinstance(body, dict) else body
            if isinstance(source, str) and "valueFrom" not in mapping(body):
                self.sources[f"{step.path}/{name}"] = f"{above}/{source}"
        run = step.body.get("run")
        if isinstance(run, dict):
            self.walk(step.inner(run, "run", path=step.path))
        elif isinstance(run, str) and "://" not in run:
            self._run(step, run)
        else:
            self.unseen.add(step.path)

    def _run(self, step: Position, run: str) -> None:
        where, file = (*step.where, "run"), Path(step.document.name)
        target = normpath(file.parent / run) if run[0] != "#" else f"{file}{run}"
        if target in step.above:
            what, right = f"{run} runs itself", "run another file"
            self.problems.append(step.document.problem(where, what, right))
            return
        try:
            inner = _open(target, Path())
        except UnreadableError as error:
            self.unseen.add(step.path)
            problem = error.problem
            if problem.line is None and not Path(problem.file).exists():
                what, right = f"{run}: no such file", "name an existing CWL file"
                problem = step.document.problem(where, what, right)
            self.problems.append(problem)
            return
        above, container = (*step.above, target), step.in_container
        self.walk(replace(inner, path=step.path, container=container, above=above))

    def _ports(self, position: Position, *sections: str) -> None:
        for section in sections:
            for name, _, _ in self.entries(position, section):
                port = f"{position.path.rstrip('/')}/{name}"
                self.ports.add(port)
                if section in ("in", "inputs"):
                    self.taken.add(port)

    def entries(
        self, position: Position, name: str
    ) -> Iterator[tuple[str, JSON, str | int]]:
        """Name, content, and key or index of the entries of a section."""
        section = position.body.get(name)
        if isinstance(section, dict):
            for key, body in section.items():
                if key in FETCHED:
                    self.unseen.add(position.path)
                else:
                    yield key, body, key
        for index, body in enumerate(section if isinstance(section, list) else []):
            identifier = body if isinstance(body, str) else mapping(body).get("id")
            if isinstance(identifier, str):
                yield _name(identifier), body, index
            else:
                self.unseen.add(position.path)


def load(file: str, folder: Path) -> Process:
    """Read a workflow and all processes that it runs.

    :param file: the path, with ``#name`` for a process of a packed document
    :param folder: where a relative path starts
    """
    process = Process()
    try:
        position = _open(file, folder)
    except UnreadableError as error:
        process.problems.append(error.problem)
        process.unseen.add("/")
        return process
    for name, body, _ in process.entries(position, "inputs"):
        process.inputs[name] = _type(body)
    process.walk(position)
    return process


def _open(file: str, folder: Path) -> Position:
    name, _, fragment = file.partition("#")
    document = Document.read(Path(normpath(folder / name)), KIND)
    body, where = _chosen(document, fragment or "main")
    if body.get("class") not in CLASSES or "cwlVersion" not in document.content:
        what = "the file does not look like CWL"
        right = f"expected cwlVersion and a class, one of {', '.join(CLASSES)}"
        raise UnreadableError(document.problem(where, what, right))
    return Position(document, body, where)


def _chosen(document: Document, name: str) -> tuple[dict[str, JSON], KeyPath]:
    if "$graph" not in document.content:
        return document.content, ()
    for index, body in enumerate(listing(document.content["$graph"])):
        if _name(str(mapping(body).get("id"))) == name:
            return mapping(body), ("$graph", index)
    what, right = f"no process {name}", "name one of its processes"
    raise UnreadableError(document.problem(("$graph",), what, right))


def _name(identifier: str) -> str:
    return re.split("[#/]", identifier)[-1]


def _type(body: JSON) -> str:
    """An input's type; optional, or with a default, it ends in ``?``."""
    declared = body.get("type") if isinstance(body, dict) else body
    alternatives = [str(mapping(t).get("type", t)) for t in listing(declared)]
    names = [name for name in alternatives if name != "null"]
    optional = len(names) < len(alternatives) or "default" in mapping(body)
    return "|".join(names).rstrip("?") + (
        "?" if optional or any(name.endswith("?") for name in names) else ""
    )


def _tool(position: Position) -> Tool | None:
    for key in ("baseCommand", "arguments"):
        words = listing(position.body.get(key))
        if words:
            first = words[0]
            if not isinstance(first, str) or re.search(r"\$[({]", first):
                return None
            where = (*position.where, key)
            return Tool(position.path, first, position.document, where, position.body)
    return None
