"""The steps, ports, tools and inputs of a CWL workflow, found by following ``run:``.

Only the parts that the checks need are read. This takes milliseconds, where a CWL parser takes
a second, and works even with files that cwltool or StreamFlow reject.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from os.path import normpath
from pathlib import Path

from sf_quantum.checking.document import (
    Document,
    FileProblem,
    UnreadableError,
    near_file,
    suggestion,
)
from sf_quantum.files import JSON, KeyPath, listing, mapping

KIND = "CWL file"
CLASSES = ("Workflow", "CommandLineTool", "ExpressionTool", "Operation")
# keys that include other files, which are not read
FETCHED = ("$import", "$include", "$mixin")
# With DOTPRODUCT, job n gets item n of each list. With NESTED and FLAT, there is a job for
# each combination of items; NESTED nests the lists of results.
DOTPRODUCT, NESTED, FLAT = SCATTER_METHODS = (
    "dotproduct",
    "nested_crossproduct",
    "flat_crossproduct",
)
# requirements that determine what is allowed elsewhere in a process
FEATURES = tuple(
    f"{name}Requirement"
    for name in (
        "Docker InlineJavascript MultipleInputFeature ScatterFeature SchemaDef "
        "ShellCommand StepInputExpression SubworkflowFeature"
    ).split()
)
# minimum similarity of a misspelt requirement to the valid name; the similarity of two valid
# names is at most 0.78
MISSPELT = 0.9


@dataclass(frozen=True)
class Tool:
    """A command that a step runs outside containers.

    :param step: path of the step, such as ``/loop/solve``
    :param command: first word of the command line
    :param where: key path of the field with the command: ``baseCommand`` or ``arguments``
    :param body: the ``CommandLineTool``
    :param shell: whether a shell reads the command
    """

    step: str
    command: str
    document: Document
    where: KeyPath
    body: dict[str, JSON]
    shell: bool


@dataclass(frozen=True)
class Entry:
    """An entry of a section such as ``inputs``, which is a mapping or a list."""

    name: str
    body: JSON
    where: KeyPath


@dataclass(frozen=True)
class Position:
    """A process in a document, or a step.

    :param where: key path in the document
    :param path: path of the step in the workflow; ``/`` is the workflow itself
    :param inherited: classes of the requirements and hints of enclosing steps and processes
    :param above: files (with ``#name``) that were followed from the workflow to this process
    """

    document: Document
    body: dict[str, JSON]
    where: KeyPath
    path: str = "/"
    inherited: frozenset[str] = frozenset()
    above: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, KeyPath]:
        """The file and the key path of the process; the same for all steps that run it."""
        return self.document.name, self.where

    def inner(self, body: JSON, where: KeyPath, path: str) -> Position:
        """Make the position of a step or process inside this one."""
        return replace(
            self, body=mapping(body), where=where, path=path, inherited=self.features
        )

    @property
    def requirements(self) -> list[Entry]:
        """The entries of ``requirements`` and ``hints``, named by class without namespace."""
        entries = []
        for section in ("requirements", "hints"):
            content = self.body.get(section)
            for key, body in mapping(content).items():
                entries.append(
                    Entry(_class_name(key), body, (*self.where, section, key))
                )
            for number, body in enumerate(content if isinstance(content, list) else []):
                name = _class_name(str(mapping(body).get("class")))
                entries.append(Entry(name, body, (*self.where, section, number)))
        return entries

    @property
    def scattered(self) -> list[str]:
        """The names of the step's scattered inputs."""
        return [local_name(str(name)) for name in listing(self.body.get("scatter"))]

    @property
    def features(self) -> frozenset[str]:
        """The classes of all requirements and hints, including inherited ones."""
        return self.inherited | {_corrected_class(entry) for entry in self.requirements}

    def entries(self, section: str) -> list[Entry]:
        """Return the entries of a section that are not included from other files."""
        content, above = self.body.get(section), (*self.where, section)
        entries = [
            Entry(key, body, (*above, key))
            for key, body in mapping(content).items()
            if key not in FETCHED
        ]
        for number, body in enumerate(content if isinstance(content, list) else []):
            name = body if isinstance(body, str) else mapping(body).get("id")
            if isinstance(name, str):
                entries.append(Entry(local_name(name), body, (*above, number)))
        return entries

    def is_whole(self, *sections: str) -> bool:
        """Whether no entry of the sections is included from another file."""
        contents = [self.body.get(section) for section in sections]
        sizes = [
            len(content) for content in contents if isinstance(content, dict | list)
        ]
        return sum(sizes) == sum(len(self.entries(section)) for section in sections)


@dataclass
class Process:
    """The parts of a CWL workflow and its processes that the checks need.

    A *port* is the path of an input or output, such as ``/solve/samples``.

    :param root: the process that the workflow names, if it could be read
    :param taken: ports that are inputs of steps or processes
    :param declared: declarations of the processes' inputs, by port
    :param sources: port from which an input gets its value unchanged, by the input's port
    :param defaults: default values of the inputs of steps and processes, by port, with their
        documents and key paths; a step's default takes precedence
    :param computed: ports of step inputs that have ``valueFrom`` or a list of sources
    :param links: document and key path of each step input, by port
    :param guarded: paths of steps that may be skipped or repeated, and ports of scattered
        inputs, which get single items of their lists
    :param dotproducts: steps that scatter several inputs with ``dotproduct``
    :param host_commands: commands that steps run outside containers, if no expression computes them
    :param command_line_tools: ``CommandLineTool`` processes, by the paths of the steps that run them
    :param read: processes that were read, by file, key path and inherited requirements
    :param runs: process that a step runs, by the step's file and key path
    :param faulty: files and key paths of objects with unknown or missing fields, and of inputs
        whose type does not fit a link's target; their further problems are not reported
    :param unseen: paths of steps with parts that were not read, so nothing below them can be
        checked; ``/`` is the workflow itself
    """

    root: Position | None = None
    steps: set[str] = field(default_factory=lambda: {"/"})
    ports: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    declared: dict[str, JSON] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, tuple[Document, KeyPath, JSON]] = field(default_factory=dict)
    computed: set[str] = field(default_factory=set)
    links: dict[str, tuple[Document, KeyPath]] = field(default_factory=dict)
    guarded: set[str] = field(default_factory=set)
    dotproducts: list[Position] = field(default_factory=list)
    host_commands: list[Tool] = field(default_factory=list)
    command_line_tools: dict[str, Position] = field(default_factory=dict)
    problems: list[FileProblem] = field(default_factory=list)
    read: dict[tuple[str, KeyPath, frozenset[str]], Position] = field(
        default_factory=dict
    )
    runs: dict[tuple[str, KeyPath], Position] = field(default_factory=dict)
    faulty: set[tuple[str, KeyPath]] = field(default_factory=set)
    unseen: set[str] = field(default_factory=set)
    # Documents are cached by file, since many steps may run the same tool.
    _documents: dict[Path, Document] = field(default_factory=dict)

    @property
    def inputs(self) -> dict[str, Entry]:
        """The inputs of the root, by name."""
        entries = self.root.entries("inputs") if self.root else []
        return {entry.name: entry for entry in entries}

    def origin(self, port: str) -> str:
        """Return the port from which a port's value originates; ``/name`` for a root input."""
        return self.chain(port)[-1]

    def chain(self, port: str) -> list[str]:
        """Return the ports that a port's value passes through, from the port to its origin."""
        chain = [port]
        while (port := self.sources.get(port, port)) not in chain:
            chain.append(port)
        return chain

    def given(self, port: str, settings: Mapping[str, JSON]) -> JSON:
        """Return the value that a port gets, if it is known before a run.

        :param settings: the values of the root's inputs
        :raises LookupError: if the value is known only in a run
        """
        chain = self.chain(port)
        origin = chain[-1]
        if origin not in self.taken or self.computed & {*chain}:
            raise LookupError(port)
        value = settings.get(origin.removeprefix("/"))
        for chain_port in reversed(chain):  # a default replaces a null
            if value is None and chain_port in self.defaults:
                *_, value = self.defaults[chain_port]
        return value

    def open(self, file: str, folder: Path) -> Position:
        """Return the process that ``file`` names after ``#``; without ``#``, the main process.

        :raises UnreadableError: if there is no such process
        """
        name, _, fragment = file.partition("#")
        path = Path(normpath(folder / name))
        if path not in self._documents:
            self._documents[path] = Document.read(path, KIND)
        return _position(self._documents[path], fragment)

    def walk(self, position: Position) -> None:
        """Read a process, and all processes that it runs."""
        self.read.setdefault((*position.place, position.inherited), position)
        match position.body.get("class"):
            case "Workflow":
                self._ports(position, "inputs", "outputs")
                self._mark_unseen(position, "steps")
                for step in position.entries("steps"):
                    path = f"{position.path.rstrip('/')}/{step.name}"
                    self._step(position.inner(step.body, step.where, path))
            case "ExpressionTool":
                self._ports(position, "inputs", "outputs")
            case "CommandLineTool":
                self._ports(position, "inputs", "outputs")
                self.command_line_tools[position.path] = position
                if "DockerRequirement" not in position.features and (
                    tool := _tool(position)
                ):
                    self.host_commands.append(tool)

    def _step(self, step: Position) -> None:
        """Note a step's ports and links, and read the process that it runs."""
        self.steps.add(step.path)
        self._ports(step, "in", "out")
        above = step.path.rpartition("/")[0]
        scattered = step.scattered
        self.guarded |= {f"{step.path}/{name}" for name in scattered}
        if len(scattered) > 1 and step.body.get("scatterMethod") == DOTPRODUCT:
            self.dotproducts.append(step)
        if "when" in step.body or any(e.name == "Loop" for e in step.requirements):
            self.guarded.add(step.path)
        for entry in step.entries("in"):
            body, port = entry.body, f"{step.path}/{entry.name}"
            self.links[port] = step.document, entry.where
            source = body.get("source") if isinstance(body, dict) else body
            if "valueFrom" in mapping(body) or isinstance(source, list):
                self.computed.add(port)
                continue
            if isinstance(source, str):
                self.sources[port] = f"{above}/{source}"
            if "default" in mapping(body):
                where = (*entry.where, "default")
                default = mapping(body)["default"]
                self.defaults[port] = step.document, where, default
        run = step.body.get("run")
        if isinstance(run, dict):
            inner = step.inner(run, (*step.where, "run"), step.path)
            self.runs[step.place] = inner
            self.walk(inner)
        elif isinstance(run, str) and "://" not in run:
            self._run(step, run)
        else:
            self.unseen.add(step.path)

    def _run(self, step: Position, run: str) -> None:
        """Read the process that a step names."""
        where, file = (*step.where, "run"), Path(step.document.name)
        target = normpath(file.parent / run) if run[0] != "#" else f"{file}{run}"
        if target in step.above:
            what, right = f"{run} runs itself", "run another file"
            self.problems.append(step.document.problem(where, what, right))
            self.runs.pop(step.place, None)
            return
        try:
            inner = self.open(target, Path())
        except UnreadableError as error:
            self.unseen.add(step.path)
            problem = error.problem
            if problem.line is None and not Path(problem.file).exists():
                right = near_file(Path(problem.file)) or "name an existing CWL file"
                problem = step.document.problem(where, f"{run}: no such file", right)
            self.problems.append(problem)
            return
        above, inherited = (*step.above, target), step.features
        inner = replace(inner, path=step.path, inherited=inherited, above=above)
        self.runs[step.place] = inner
        self.walk(inner)

    def _ports(self, position: Position, *sections: str) -> None:
        """Note the ports in sections of a process or step, and the defaults of inputs."""
        self._mark_unseen(position, *sections)
        for section in sections:
            for entry in position.entries(section):
                port = f"{position.path.rstrip('/')}/{entry.name}"
                self.ports.add(port)
                if section in ("in", "inputs"):
                    self.taken.add(port)
                if section == "inputs":
                    self.declared[port] = entry.body
                    if "default" in mapping(entry.body):
                        where = (*entry.where, "default")
                        default = mapping(entry.body)["default"]
                        value = position.document, where, default
                        self.defaults.setdefault(port, value)

    def _mark_unseen(self, position: Position, *sections: str) -> None:
        if not position.is_whole(*sections):
            self.unseen.add(position.path)


def load(file: str, folder: Path) -> Process:
    """Read a workflow, and all processes that it runs.

    :param file: path of the file, with ``#name`` for a process of a packed document
    :param folder: base of a relative path
    """
    process = Process()
    try:
        process.root = process.open(file, folder)
    except UnreadableError as error:
        process.problems.append(error.problem)
        process.unseen.add("/")
        return process
    process.walk(process.root)
    return process


def local_name(identifier: str) -> str:
    """Return the last part of an identifier, which may be relative, absolute or packed."""
    return re.split("[#/]", identifier)[-1]


def _class_name(name: str) -> str:
    """Return a class without its namespace: ``Loop`` for ``cwltool:Loop``."""
    return re.split("[#:/]", name)[-1]


def _corrected_class(entry: Entry) -> str:
    """Return the class of a requirement, corrected if it is misspelt.

    The misspelling is reported separately. A misspelt hint is not corrected, since unknown
    hints are ignored.
    """
    is_hint = "hints" in entry.where
    near = [] if is_hint else get_close_matches(entry.name, FEATURES, 1, MISSPELT)
    return near[0] if near else entry.name


def _position(document: Document, fragment: str) -> Position:
    """Return the position of a process in a document.

    :raises UnreadableError: if there is no such process, or the document is not CWL
    """
    body, where = _find_process(document, fragment or "main")
    given = body.get("class")
    if "class" in body and given not in CLASSES and "cwlVersion" in document.content:
        what, right = f"unknown class {given!r:.40}", suggestion(str(given), CLASSES)
        raise UnreadableError(document.problem((*where, "class"), what, right))
    if body.get("class") not in CLASSES or "cwlVersion" not in document.content:
        what = "the file does not look like CWL"
        right = f"expected cwlVersion and a class, one of {', '.join(CLASSES)}"
        raise UnreadableError(document.problem(where, what, right))
    return Position(document, body, where)


def _find_process(document: Document, name: str) -> tuple[dict[str, JSON], KeyPath]:
    """Return a process of a document, which may be packed, and its key path."""
    if "$graph" not in document.content:
        return document.content, ()
    for index, body in enumerate(listing(document.content["$graph"])):
        if local_name(str(mapping(body).get("id"))) == name:
            return mapping(body), ("$graph", index)
    what, right = f"no process {name}", "name one of its processes"
    raise UnreadableError(document.problem(("$graph",), what, right))


def _tool(position: Position) -> Tool | None:
    """Return a tool's command; ``None`` if it has none, or an expression computes it."""
    for key in ("baseCommand", "arguments"):
        words = listing(position.body.get(key))
        if words:
            first = words[0]
            if not isinstance(first, str) or re.search(r"\$[({]", first):
                return None
            where, body = (*position.where, key), position.body
            shell = "ShellCommandRequirement" in position.features
            return Tool(position.path, first, position.document, where, body, shell)
    return None
