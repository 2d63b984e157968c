"""Checks of one workflow of a StreamFlow file: bindings, CWL files, inputs and tools."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from os.path import normpath
from pathlib import Path, PurePosixPath

from sf_quantum.candidates.decision import is_within
from sf_quantum.checking.bindings import folders, resources
from sf_quantum.checking.bindings.binding import Binding, check_duplicates
from sf_quantum.checking.cwl import inputs, types
from sf_quantum.checking.cwl import steps as cwl_steps
from sf_quantum.checking.cwl.processes import Process, load
from sf_quantum.checking.cwl.values import Values
from sf_quantum.checking.deployments.references import Deployments
from sf_quantum.checking.document import (
    Document,
    FileProblem,
    UnreadableError,
    is_misspelt,
    near_file,
    suggestion,
)
from sf_quantum.checking.qpus.availability import Qpus
from sf_quantum.checking.qpus.candidate_filters import check_candidates
from sf_quantum.checking.qpus.problem_sizes import ProblemSizes
from sf_quantum.checking.tools.command_lines import ParserMaker
from sf_quantum.checking.tools.sfq_tools import SfqTools
from sf_quantum.files import KeyPath, mapping

# commands built into a shell (POSIX.1-2024, Shell Command Language, 2.15; bash)
BUILTINS = frozenset(
    ". : [ [[ { ( ! alias bg break builtin case cd command continue declare echo eval exec "
    "exit export false fc fg for getopts hash if jobs kill let local printf pwd read "
    "readonly return set shift shopt source test time times trap true type ulimit umask "
    "unalias unset until wait while".split()
)


class Workflow:
    """One entry of ``workflows``.

    :param parser_for: see :func:`sf_quantum.checking.check_file`
    """

    def __init__(
        self,
        name: str,
        deployments: Deployments,
        qpus: Qpus,
        parser_for: ParserMaker | None,
    ) -> None:
        self._qpus = qpus
        self.deployments = deployments
        self.document = deployments.document
        self.where: KeyPath = ("workflows", name)
        content = mapping(mapping(self.document.content["workflows"])[name])
        self.config = mapping(content.get("config"))
        where = (*self.where, "bindings")
        self.bindings = list(Binding.read(deployments, content.get("bindings"), where))
        #: ports whose data is on a target
        self.ports = {b.path for b in self.bindings if b.kind == "port"}
        self.process = self._read_process()
        self._parser_for = parser_for

    def check(self) -> Iterator[FileProblem]:
        """Check the bindings, the CWL files, the file of inputs and the tools."""
        for binding in self.bindings:
            yield from binding.check(is_step=binding.path in self.process.steps)
        yield from check_duplicates(self.bindings)
        misread = [*folders.check_files(self.document, self.config, self.where)]
        yield from misread
        yield from folders.check(self.deployments, self.bindings, self.where)
        if not misread:  # otherwise the parser would report false errors
            yield from self._check_cwl()
        yield from resources.check(self.deployments, self.process, self.bound)
        for binding in self.bindings:
            where = (*binding.where, binding.kind)
            yield from self._check_path(where, binding.kind, binding.path)
        yield from self._check_releases()
        settings = self.read_settings()
        given = settings if isinstance(settings, Document) else None
        sizes = ProblemSizes(self.process, given)
        yield from check_candidates(self.document, self.bindings, self.process, sizes)
        yield from self._qpus.check(self.bindings, sizes)
        tools = SfqTools(self.process, self._parser_for)
        values = Values(self.process, given, self.ports)
        yield from self._check_settings(settings, values, tools)
        yield from self._check_defaults()
        yield from values.missing()
        yield from values.unequal()
        yield from self._check_commands()
        yield from tools.check()

    def _check_cwl(self) -> Iterator[FileProblem]:
        """Check the CWL files."""
        problems = self.process.problems
        if not self.process.read:
            yield from problems
            return
        from sf_quantum.checking.cwl.parser import Parser

        parser = Parser(self.process)
        self.process.faulty |= parser.faulty
        places = {(problem.file, problem.line) for problem in problems}
        fields = [p for p in parser.problems if (p.file, p.line) not in places]
        problems = [*problems, *fields, *cwl_steps.check(self.process)]
        yield from problems
        yield from parser.rest([p for p in problems if not p.remark])

    def _read_process(self) -> Process:
        file, where = self.config.get("file"), (*self.where, "config", "file")
        if not isinstance(file, str) or "://" in file:
            return Process(unseen={"/"})
        if not (self.document.folder / file.partition("#")[0]).is_file():
            return Process(unseen={"/"}, problems=[self._no_file(file, where)])
        return load(file, self.document.folder)

    def _check_releases(self) -> Iterator[FileProblem]:
        """Check the steps after which allocations are released, if there is one workflow."""
        if len(mapping(self.document.content["workflows"])) > 1:
            return
        for cluster in self.deployments.clusters():
            for allocation, where in cluster.allocations():
                step = mapping(allocation.get("release")).get("after")
                if isinstance(step, str):
                    where = (*where, "release", "after")
                    yield from self._check_path(where, "step", step)

    def _check_path(
        self, where: KeyPath, kind: str, path: str
    ) -> Iterator[FileProblem]:
        """Check that the workflow has the step or port that a binding names."""
        if not path.startswith("/"):
            what = f"{path!r} is not an absolute path"
            yield self.document.problem(where, what, f"write /{path}")
            return
        paths = self.process.steps if kind == "step" else self.process.ports
        normalized = str(PurePosixPath(path))
        unseen = any(
            normalized != top and is_within(normalized, top)
            for top in self.process.unseen
        )
        if normalized not in paths and not unseen:
            what = f"the workflow has no {kind} {path}"
            # Suggest the same name at another level of the workflow, otherwise a similar path.
            named = {p for p in paths if Path(p).name == Path(normalized).name}
            right = suggestion(normalized, named or paths, cutoff=0 if named else 0.4)
            if where[-1] == "step" and normalized in self.process.ports:
                right = f"it is a port: write port: {path}"
            elif where[-1] == "port" and normalized in self.process.steps:
                right = f"it is a step: write step: {path}"
            yield self.document.problem(where, what, right)

    def read_settings(self) -> Document | FileProblem | None:
        """Return the file of inputs, or the problem with it; ``None`` if not configured."""
        file = self.config.get("settings")
        if not isinstance(file, str) or "://" in file:
            return None
        path = Path(normpath(self.document.folder / file))
        if not path.is_file():
            return self._no_file(file, (*self.where, "config", "settings"))
        try:
            return Document.read(path, "file of inputs")
        except UnreadableError as error:
            return error.problem

    def _check_settings(
        self, settings: Document | FileProblem | None, values: Values, tools: SfqTools
    ) -> Iterator[FileProblem]:
        """Check the file of inputs, and the tools to which its values are passed."""
        if isinstance(settings, FileProblem):
            yield settings
        elif isinstance(settings, Document):
            wrong: set[str] = set()
            ports = {path.lstrip("/") for path in self.ports}
            if "/" not in self.process.unseen and (root := self.process.root):
                problems = [*inputs.check(settings, self.process, root)]
                yield from problems
                wrong = {str(problem.where[0]) for problem in problems if problem.where}
                yield from tools.check_options(values, wrong)
                yield from tools.check_files(values, wrong | ports)
                yield from tools.check_samplers(values, self.bound)
            unused = cwl_steps.unused(self.process)
            for name in settings.content:
                if name in unused - ports:
                    what = "no step takes this input"
                    right = "pass it to a step, or remove it"
                    yield settings.remark((name,), what, right)
                if name not in ports | wrong:
                    value = settings.content[name]
                    yield from inputs.missing_files(settings, value, (name,))
        elif not ("settings" in self.config or is_misspelt("settings", self.config)):
            where = (*self.where, "config", "settings")
            needed = self.process.inputs.items()
            if names := [n for n, e in needed if not types.is_optional(e.body)]:
                what = f"settings is missing, and the workflow needs {', '.join(names)}"
                right = "name a file with their values"
                yield self.document.problem(where, what, right)

    def _check_commands(self) -> Iterator[FileProblem]:
        for tool in self.process.host_commands:
            command, step = tool.command, tool.step
            # A relative path with a folder starts at the job's folder, which is made later.
            if os.sep in command and not os.path.isabs(command):
                continue
            place = tool.document.name, tool.where[:-1]
            if (tool.shell and command in BUILTINS) or place in self.process.faulty:
                continue
            if self._is_local(step) and shutil.which(command) is None:
                what = f"{command} is not on the PATH of this host, where {step} runs"
                right = "install it, or bind the step elsewhere"
                yield tool.document.problem(tool.where, what, right)

    def _check_defaults(self) -> Iterator[FileProblem]:
        """Find missing files in the defaults.

        StreamFlow 0.2.0rc3 fails if a default's file is missing, even if the default is not
        used.
        """
        for position in self.process.read.values():
            steps = [
                position.inner(
                    entry.body, entry.where, f"{position.path.rstrip('/')}/{entry.name}"
                )
                for entry in position.entries("steps")
            ]
            entries = [(position, entry) for entry in position.entries("inputs")]
            entries += [(step, entry) for step in steps for entry in step.entries("in")]
            for holder, entry in entries:
                port = f"{holder.path.rstrip('/')}/{entry.name}"
                default = mapping(entry.body).get("default")
                if port not in self.ports:
                    where = (*entry.where, "default")
                    yield from inputs.missing_files(position.document, default, where)

    def bound(self, step: str) -> Binding | None:
        """Return the binding that applies to a step."""
        steps = [b for b in self.bindings if b.kind == "step"]
        bound = [b for b in steps if is_within(step, b.path)]
        # of several bindings of a step, StreamFlow uses the last
        bound.sort(key=lambda b: len(PurePosixPath(b.path).parts))
        return bound[-1] if bound else None

    def _is_local(self, step: str) -> bool:
        """Return whether a step may run on this host: bound to it, or not bound at all."""
        if (binding := self.bound(step)) is None:
            return True
        return any(map(self.deployments.is_local, binding.deployment_names))

    def _no_file(self, file: str, where: KeyPath) -> FileProblem:
        path = self.document.folder / file.partition("#")[0]
        right = near_file(path) or "a relative path starts at the StreamFlow file"
        return self.document.problem(where, f"{file}: no such file", right)
