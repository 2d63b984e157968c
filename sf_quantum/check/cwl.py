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

from sf_quantum.check.document import Document, FileProblem, UnreadableError, Where
from sf_quantum.files import JSON, listing, mapping

KIND = "CWL file"
CLASSES = ("Workflow", "CommandLineTool", "ExpressionTool", "Operation")
# included from other files, which are not read
FETCHED = ("$import", "$include", "$mixin")


@dataclass(frozen=True)
class Tool:
    """A command that a step runs.

    :param step: the step's path: ``/loop/solve``
    """

    step: str
    command: str
    document: Document
    where: Where
    body: dict[str, JSON]


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


@dataclass(frozen=True)
class Position:
    """A process in a document, and the step that runs it."""

    document: Document
    body: dict[str, JSON]
    where: Where
    path: str = "/"
    container: bool = False
    above: tuple[str, ...] = ()


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
    process.inputs = {
        name: _type(body) for name, body, _ in _entries(process, position, "inputs")
    }
    _walk(process, position)
    return process


def _open(file: str, folder: Path) -> Position:
    name, _, fragment = file.partition("#")
    document = Document.read(Path(normpath(folder / name)), KIND)
    body, where = _chosen(document, fragment)
    if body.get("class") not in CLASSES or "cwlVersion" not in document.content:
        what = "the file does not look like CWL"
        right = f"expected cwlVersion and a class, one of {', '.join(CLASSES)}"
        raise UnreadableError(document.problem(where, what, right))
    return Position(document, body, where)


def _chosen(document: Document, fragment: str) -> tuple[dict[str, JSON], Where]:
    if "$graph" not in document.content:
        return document.content, ()
    for index, body in enumerate(listing(document.content["$graph"])):
        if _name(str(mapping(body).get("id"))) == (fragment or "main"):
            return mapping(body), ("$graph", index)
    raise UnreadableError(
        document.problem(
            ("$graph",), f"no process {fragment or 'main'}", "name one of its processes"
        )
    )


def _walk(process: Process, position: Position) -> None:
    position = replace(
        position, container=position.container or _in_container(position.body)
    )
    match position.body.get("class"):
        case "Workflow":
            _ports(process, position, ("inputs", "outputs"))
            for name, body, key in _entries(process, position, "steps"):
                where = (*position.where, "steps", key)
                path = f"{position.path.rstrip('/')}/{name}"
                _step(
                    process,
                    replace(position, body=mapping(body), where=where, path=path),
                )
        case "CommandLineTool":
            _ports(process, position, ("inputs", "outputs"))
            if not position.container and (tool := _tool(position)):
                process.tools.append(tool)


def _step(process: Process, position: Position) -> None:
    process.steps.add(position.path)
    _ports(process, position, ("in", "out"))
    _sources(process, position)
    position = replace(
        position, container=position.container or _in_container(position.body)
    )
    run, where = position.body.get("run"), (*position.where, "run")
    if isinstance(run, dict):
        _walk(process, replace(position, body=run, where=where))
    elif isinstance(run, str) and "://" not in run:
        _run(process, position, run, where)
    else:
        process.unseen.add(position.path)


def _run(process: Process, position: Position, run: str, where: Where) -> None:
    file = Path(position.document.name)
    target = normpath(file.parent / run) if run[0] != "#" else f"{file}{run}"
    if target in position.above:
        what, right = f"{run} runs itself", "run another file"
        process.problems.append(position.document.problem(where, what, right))
        return
    try:
        inner = _open(target, Path())
    except UnreadableError as error:
        process.unseen.add(position.path)
        problem = error.problem
        if problem.line is None and not Path(problem.file).exists():
            what, right = f"{run}: no such file", "name an existing CWL file"
            problem = position.document.problem(where, what, right)
        process.problems.append(problem)
        return
    above = (*position.above, target)
    _walk(
        process,
        replace(inner, path=position.path, container=position.container, above=above),
    )


def _ports(process: Process, position: Position, sections: tuple[str, ...]) -> None:
    for section in sections:
        for name, _, _ in _entries(process, position, section):
            port = f"{position.path.rstrip('/')}/{name}"
            process.ports.add(port)
            if section in ("in", "inputs"):
                process.taken.add(port)


def _sources(process: Process, position: Position) -> None:
    above = position.path.rpartition("/")[0]
    for name, body, _ in _entries(process, position, "in"):
        source = body.get("source") if isinstance(body, dict) else body
        if isinstance(source, str) and "valueFrom" not in mapping(body):
            process.sources[f"{position.path}/{name}"] = f"{above}/{source}"


def _entries(
    process: Process, position: Position, name: str
) -> Iterator[tuple[str, JSON, str | int]]:
    """The named entries of a section, which is a mapping, or a list with ``id``.

    :returns: name, content, and key or index
    """
    section = position.body.get(name)
    if isinstance(section, dict):
        for key, body in section.items():
            if key in FETCHED:
                process.unseen.add(position.path)
            else:
                yield key, body, key
    for index, body in enumerate(section if isinstance(section, list) else []):
        identifier = body if isinstance(body, str) else mapping(body).get("id")
        if isinstance(identifier, str):
            yield _name(identifier), body, index
        else:
            process.unseen.add(position.path)


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


def _in_container(body: dict[str, JSON]) -> bool:
    for section in (body.get("requirements"), body.get("hints")):
        classes = (
            section
            if isinstance(section, dict)
            else {str(mapping(item).get("class")) for item in listing(section)}
        )
        if "DockerRequirement" in classes:
            return True
    return False


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
