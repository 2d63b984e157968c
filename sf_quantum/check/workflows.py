"""Checks of workflows: bindings, CWL files, inputs and tools."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from os.path import normpath
from pathlib import Path, PurePosixPath
from types import NoneType
from typing import TypeAlias
from urllib.parse import unquote

from sf_quantum import samplers
from sf_quantum.candidates.decision import is_below
from sf_quantum.check import cwl
from sf_quantum.check.deployments import Binding
from sf_quantum.check.document import (
    Document,
    FileProblem,
    UnreadableError,
    nested,
    suggestion,
)
from sf_quantum.check.targets import Qpus, check_bindings, quantum_targets
from sf_quantum.files import JSON, listing, mapping
from sf_quantum.validation import KeyPath

OURS = "sfq"
#: gives the options of an ``sfq`` command by their flags; empty for unknown commands
Commands: TypeAlias = Callable[[str], Mapping[str, argparse.Action]]
#: the primitive types of CWL in YAML (CWL v1.2, CommandLineTool, section 5.1.1)
PRIMITIVE: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "string": (str,),
}


class Workflow:
    """One entry of ``workflows``.

    :param commands: see :func:`sf_quantum.check.check_file`
    """

    def __init__(self, name: str, qpus: Qpus, commands: Commands) -> None:
        deployments = qpus.deployments
        self.qpus = qpus
        self.commands = commands
        self.deployments = deployments
        self.document = deployments.document
        self.where: KeyPath = ("workflows", name)
        content = mapping(mapping(self.document.content["workflows"])[name])
        self.config = mapping(content.get("config"))
        where = (*self.where, "bindings")
        self.bindings = list(Binding.read(content.get("bindings"), where))
        self.process = self._read_process()

    def check(self) -> Iterator[FileProblem]:
        """Check the bindings, the CWL file, the settings and the tools."""
        for binding in self.bindings:
            yield from self._references(binding)
        yield from self.process.problems
        for binding in self.bindings:
            where = (*binding.where, binding.kind)
            yield from self._path(where, binding.kind, binding.path)
        yield from self._releases()
        yield from check_bindings(self.deployments, self.bindings, self.process)
        settings = self._read_settings()
        inputs = settings if isinstance(settings, Document) else None
        yield from self.qpus.check(self.bindings, inputs)
        yield from self._settings(settings)
        yield from self._tools()

    def _read_process(self) -> cwl.Process:
        file, where = self.config.get("file"), (*self.where, "config", "file")
        if not isinstance(file, str) or "://" in file:
            return cwl.Process(unseen={"/"})
        if not (self.document.folder / file.partition("#")[0]).is_file():
            return cwl.Process(unseen={"/"}, problems=[self._no_file(file, where)])
        return cwl.load(file, self.document.folder)

    def _references(self, binding: Binding) -> Iterator[FileProblem]:
        for where, target in binding.targets:
            yield from self.deployments.target(target, where)
            if binding.kind == "port" and "workdir" not in target:
                right = "add workdir: the folder that holds the port's data"
                yield self.document.problem(where, "workdir is missing", right)
        known = mapping(self.document.content.get("bindingFilters"))
        for index, name in enumerate(listing(binding.content.get("filters"))):
            if isinstance(name, str):
                where = (*binding.where, "filters", index)
                what = f"bindingFilters has no {name!r}"
                yield from self.document.unknown(where, name, known, what)

    def _releases(self) -> Iterator[FileProblem]:
        """Check the steps after which allocations are released, if there is one workflow."""
        if len(mapping(self.document.content["workflows"])) > 1:
            return
        for cluster in self.deployments.clusters():
            for allocation, where in cluster.allocations():
                step = mapping(allocation.get("release")).get("after")
                if isinstance(step, str):
                    where = (*where, "release", "after")
                    yield from self._path(where, "step", step)

    def _path(self, where: KeyPath, kind: str, path: str) -> Iterator[FileProblem]:
        if not path.startswith("/"):
            what = f"{path!r} is not an absolute path"
            yield self.document.problem(where, what, f"write /{path}")
            return
        known = self.process.steps if kind == "step" else self.process.ports
        clean = str(PurePosixPath(path))
        unseen = any(
            clean != top and is_below(clean, top) for top in self.process.unseen
        )
        if clean not in known and not unseen:
            what = f"the workflow has no {kind} {path}"
            right = suggestion(clean, known, cutoff=0.4)
            if where[-1] == "step" and clean in self.process.ports:
                right = f"it is a port: write port: {path}"
            yield self.document.problem(where, what, right)

    def _read_settings(self) -> Document | FileProblem | None:
        """The file of inputs, if the configuration names one, or why there is none."""
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

    def _settings(
        self, settings: Document | FileProblem | None
    ) -> Iterator[FileProblem]:
        if isinstance(settings, FileProblem):
            yield settings
        elif isinstance(settings, Document):
            if "/" not in self.process.unseen:
                yield from _inputs(settings, self.process)
                yield from self._tool_inputs(settings)
                yield from self._samplers(settings)
            elsewhere = {b.path.lstrip("/") for b in self.bindings if b.kind == "port"}
            for name, value in settings.content.items():
                if name not in elsewhere:
                    yield from _missing_files(settings, name, value)
        elif not isinstance(self.config.get("settings"), str):
            where = (*self.where, "config", "settings")
            if names := [
                n for n, t in self.process.inputs.items() if not t.endswith("?")
            ]:
                what = f"settings is missing, and the workflow needs {', '.join(names)}"
                right = "name a file with their values"
                yield self.document.problem(where, what, right)

    def _tools(self) -> Iterator[FileProblem]:
        for tool in self.process.tools:
            command, step = tool.command, tool.step
            # a path with a folder is relative to the job's folder
            if os.sep in command and not os.path.isabs(command):
                continue
            if self._is_local(step) and shutil.which(command) is None:
                what = f"{command} is not on the PATH of this host, where {step} runs"
                right = "install it, or bind the step elsewhere"
                yield tool.document.problem(tool.where, what, right)

    def _tool_inputs(self, settings: Document) -> Iterator[FileProblem]:
        """Check inputs of ``sfq`` tools against the options to which they are passed."""
        for tool in self.process.tools:
            command = _subcommand(tool)
            known = self.commands(command) if command else {}
            for flag, name in _options(tool, self.process):
                value = settings.content.get(name)
                if flag in known and (what := _rejection(known[flag], value)):
                    right = f"{tool.step} passes it to sfq {command} {flag}"
                    yield settings.problem((name,), what, right)

    def _samplers(self, settings: Document) -> Iterator[FileProblem]:
        """Find samplers that ignore the QPU of their location."""
        for tool in self.process.tools:
            binding = self._bound(tool.step)
            if _subcommand(tool) != "solve" or binding is None:
                continue
            key = dict(_options(tool, self.process)).get("--sampler", "")
            name = settings.content.get(key)
            for target in quantum_targets(self.deployments, binding):
                # the circuits of qaoa run on a QPU that takes some
                if name in samplers.names() and name != "qaoa":
                    what = f"{name} never uses the QPU {target}, where {tool.step} runs"
                    right = "write auto, or bind the step to a classical location"
                    yield settings.problem((key,), what, right)

    def _bound(self, step: str) -> Binding | None:
        """The binding that applies to a step."""
        steps = [b for b in self.bindings if b.kind == "step"]
        bound = [b for b in steps if is_below(step, b.path)]
        # of several bindings of a step, StreamFlow uses the last
        bound.sort(key=lambda b: len(PurePosixPath(b.path).parts))
        return bound[-1] if bound else None

    def _is_local(self, step: str) -> bool:
        """Whether the step may run on this host: bound to it, or not bound at all."""
        if (binding := self._bound(step)) is None:
            return True
        names = [t.get("deployment", t.get("model")) for _, t in binding.targets]
        return any(map(self.deployments.is_local, map(str, names)))

    def _no_file(self, file: str, where: KeyPath) -> FileProblem:
        right = "a relative path starts at the StreamFlow file"
        return self.document.problem(where, f"{file}: no such file", right)


def _inputs(settings: Document, process: cwl.Process) -> Iterator[FileProblem]:
    for name, value in settings.content.items():
        # cwl:requirements, $namespaces and the like are not inputs
        if not (":" in name or name.startswith("$")):
            what = "the workflow has no such input"
            yield from settings.unknown((name,), name, process.inputs, what)
        kind = process.inputs.get(name, "").rstrip("?")
        if kind in ("File", "Directory") and not isinstance(value, dict | None):
            right = f"write {{class: {kind}, path: ...}}"
            yield settings.problem((name,), f"the value is not a {kind}", right)
        elif kind in PRIMITIVE and type(value) not in (*PRIMITIVE[kind], NoneType):
            right = f"its type is {kind}"
            yield settings.problem((name,), f"{value!r:.40} does not fit", right)
    for name, kind in process.inputs.items():
        if name not in settings.content and not kind.endswith("?"):
            right = f"add {name}: (its type is {kind})"
            yield settings.problem((), f"the input {name} is missing", right)


def _subcommand(tool: cwl.Tool) -> str | None:
    """The command of ``sfq`` that a tool runs, if any."""
    match listing(tool.body.get("baseCommand")):
        case [str(first), str(second), *_] if first == OURS:
            return second
    return None


def _options(tool: cwl.Tool, process: cwl.Process) -> Iterator[tuple[str, str]]:
    """The options of a tool, each with the workflow's input that is its value."""
    for name, body in mapping(tool.body.get("inputs")).items():
        flag = mapping(mapping(body).get("inputBinding")).get("prefix")
        origin = process.origin(f"{tool.step.rstrip('/')}/{name}").removeprefix("/")
        if isinstance(flag, str) and origin in process.inputs:
            yield flag, origin


def _rejection(option: argparse.Action, value: JSON) -> str | None:
    """Why an option rejects a value; None if it accepts it or the value is not scalar."""
    if not isinstance(value, str | int | float):
        return None
    try:
        parsed = option.type(str(value)) if callable(option.type) else value
    except argparse.ArgumentTypeError as error:
        return str(error)
    except ValueError:
        return f"{value!r:.40} does not fit"
    if option.choices is not None and parsed not in option.choices:
        return f"{value!r:.40}: one of {', '.join(map(str, option.choices))} expected"
    return None


def _missing_files(settings: Document, name: str, value: JSON) -> Iterator[FileProblem]:
    for where, item in nested(value, (name,)):
        content = mapping(item)
        if content.get("class") in ("File", "Directory"):
            file = content.get("location", content.get("path"))
            if isinstance(file, str) and not _exists(file, settings.folder):
                right = "a relative path starts at this file"
                yield settings.problem(where, f"{file}: no such file", right)


def _exists(file: str, folder: Path) -> bool:
    file = file.removeprefix("file://")
    return "://" in file or any((folder / f).exists() for f in (file, unquote(file)))
