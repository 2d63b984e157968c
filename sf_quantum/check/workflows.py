"""Checks of workflows: bindings, CWL files, inputs and tools."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from os.path import normpath
from pathlib import Path, PurePosixPath
from types import NoneType
from typing import TypeAlias
from urllib.parse import unquote

from sf_quantum import samplers
from sf_quantum.candidates.decision import is_below
from sf_quantum.check import candidates, cwl, slurm
from sf_quantum.check.deployments import Binding
from sf_quantum.check.document import (
    Document,
    FileProblem,
    UnreadableError,
    Where,
    suggestion,
)
from sf_quantum.check.qpus import Qpus
from sf_quantum.files import JSON, listing, mapping

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
        self.document = deployments.document
        self.deployments = deployments
        self.where: Where = ("workflows", name)
        content = mapping(mapping(self.document.content["workflows"])[name])
        self.config = mapping(content.get("config"))
        self.bindings = [
            binding
            for index, item in enumerate(listing(content.get("bindings")))
            if (
                binding := Binding.read((*self.where, "bindings", index), mapping(item))
            )
        ]

    def check(self) -> Iterator[FileProblem]:
        """Check the bindings, the CWL file, the settings and the tools."""
        for binding in self.bindings:
            yield from self._references(binding)
        process = cwl.Process(unseen={"/"})
        file, where = self.config.get("file"), (*self.where, "config", "file")
        if isinstance(file, str) and "://" not in file:
            if not (self.document.folder / file.partition("#")[0]).is_file():
                yield self._no_file(file, where)
            else:
                process = cwl.load(file, self.document.folder)
        yield from process.problems
        for binding in self.bindings:
            where = (*binding.where, binding.kind)
            yield from self._path(where, binding.kind, binding.path, process)
        yield from self._releases(process)
        yield from candidates.check_bindings(self.deployments, self.bindings, process)
        yield from self.qpus.check(self.bindings, self._inputs())
        yield from self._settings(process)
        yield from self._tools(process)

    def _inputs(self) -> Document | None:
        file = self.config.get("settings")
        if not isinstance(file, str) or "://" in file:
            return None
        with suppress(UnreadableError):
            path = Path(normpath(self.document.folder / file))
            return Document.read(path, "file of inputs")
        return None

    def _references(self, binding: Binding) -> Iterator[FileProblem]:
        for where, target in binding.targets:
            yield from self.deployments.target(target, where)
            if binding.kind == "port" and "workdir" not in target:
                right = "add workdir: the folder that holds the port's data"
                yield self.document.problem(where, "workdir is missing", right)
        known = mapping(self.document.content.get("bindingFilters"))
        for index, name in enumerate(listing(binding.content.get("filters"))):
            if isinstance(name, str) and name not in known:
                where = (*binding.where, "filters", index)
                what = f"bindingFilters has no {name!r}"
                yield self.document.problem(where, what, suggestion(name, known))

    def _releases(self, process: cwl.Process) -> Iterator[FileProblem]:
        """Check the steps after which allocations are released, if there is one workflow."""
        if len(mapping(self.document.content["workflows"])) > 1:
            return
        for _, config, where in self.deployments.clusters():
            for allocation, below in slurm.allocations(config, where):
                step = mapping(allocation.get("release")).get("after")
                if isinstance(step, str):
                    below = (*below, "release", "after")
                    yield from self._path(below, "step", step, process)

    def _path(
        self, where: Where, kind: str, path: str, process: cwl.Process
    ) -> Iterator[FileProblem]:
        if not path.startswith("/"):
            what = f"{path!r} is not an absolute path"
            yield self.document.problem(where, what, f"write /{path}")
            return
        known = process.steps if kind == "step" else process.ports
        clean = str(PurePosixPath(path))
        unseen = any(clean != top and is_below(clean, top) for top in process.unseen)
        if clean not in known and not unseen:
            what = f"the workflow has no {kind} {path}"
            right = suggestion(clean, known, cutoff=0.4)
            if where[-1] == "step" and clean in process.ports:
                right = f"it is a port: write port: {path}"
            yield self.document.problem(where, what, right)

    def _settings(self, process: cwl.Process) -> Iterator[FileProblem]:
        file, where = self.config.get("settings"), (*self.where, "config", "settings")
        if isinstance(file, str) and "://" in file:
            return
        if not isinstance(file, str):
            if names := [n for n, t in process.inputs.items() if not t.endswith("?")]:
                what = f"settings is missing, and the workflow needs {', '.join(names)}"
                yield self.document.problem(
                    where, what, "name a file with their values"
                )
            return
        path = Path(normpath(self.document.folder / file))
        if not path.is_file():
            yield self._no_file(file, where)
            return
        try:
            settings = Document.read(path, "file of inputs")
        except UnreadableError as error:
            yield error.problem
            return
        if "/" not in process.unseen:
            yield from _inputs(settings, process)
            yield from _tool_inputs(settings, process, self.commands)
            yield from self._samplers(settings, process)
        elsewhere = {b.path.lstrip("/") for b in self.bindings if b.kind == "port"}
        for name, value in settings.content.items():
            if name not in elsewhere:
                yield from _missing_files(settings, value, (name,))

    def _tools(self, process: cwl.Process) -> Iterator[FileProblem]:
        for tool in process.tools:
            if not self._is_local(tool.step) or _is_installed(tool.command):
                continue
            what = f"{tool.command} is not on the PATH of this host, where {tool.step} runs"
            right = "install it, or bind the step elsewhere"
            yield tool.document.problem(tool.where, what, right)

    def _samplers(
        self, settings: Document, process: cwl.Process
    ) -> Iterator[FileProblem]:
        """Find samplers that ignore the QPU of their location."""
        for tool in process.tools:
            binding = self._bound(tool.step)
            if _subcommand(tool) != "solve" or binding is None:
                continue
            key = dict(_options(tool, process)).get("--sampler", "")
            name = settings.content.get(key)
            for target in candidates.quantum_targets(self.deployments, binding):
                if name in samplers.names():
                    what = f"{name} never uses the QPU {target}, where {tool.step} runs"
                    right = "write auto, or bind the step to a classical location"
                    yield settings.problem((key,), what, right)

    def _bound(self, step: str) -> Binding | None:
        """The binding that applies to a step."""
        bound = [
            b for b in self.bindings if b.kind == "step" and is_below(step, b.path)
        ]
        # of several bindings of a step, StreamFlow uses the last
        return max(
            reversed(bound),
            key=lambda b: len(PurePosixPath(b.path).parts),
            default=None,
        )

    def _is_local(self, step: str) -> bool:
        """Whether the step may run on this host: bound to it, or not bound at all."""
        binding = self._bound(step)
        if binding is None:
            return True
        targets = [target for _, target in binding.targets]
        names = [
            str(target.get("deployment", target.get("model"))) for target in targets
        ]
        return any(map(self.deployments.is_local, names))

    def _no_file(self, file: str, where: Where) -> FileProblem:
        what = f"{file}: no such file"
        right = "a relative path starts at the StreamFlow file"
        return self.document.problem(where, what, right)


def _is_installed(command: str) -> bool:
    # relative to the job's folder
    if os.sep in command and not os.path.isabs(command):
        return True
    return shutil.which(command) is not None


def _inputs(settings: Document, process: cwl.Process) -> Iterator[FileProblem]:
    for name, value in settings.content.items():
        # cwl:requirements, $namespaces and the like are not inputs
        if name not in process.inputs and not (":" in name or name.startswith("$")):
            right = suggestion(name, process.inputs)
            yield settings.problem((name,), "the workflow has no such input", right)
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


def _tool_inputs(
    settings: Document, process: cwl.Process, commands: Commands
) -> Iterator[FileProblem]:
    """Check inputs of ``sfq`` tools against the options to which they are passed."""
    for tool in process.tools:
        command = _subcommand(tool)
        known = commands(command) if command else {}
        for flag, name in _options(tool, process):
            value = settings.content.get(name)
            if flag in known and (what := _rejection(known[flag], value)):
                right = f"{tool.step} passes it to sfq {command} {flag}"
                yield settings.problem((name,), what, right)


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


def _missing_files(
    settings: Document, value: JSON, where: Where
) -> Iterator[FileProblem]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _missing_files(settings, item, (*where, index))
    if not isinstance(value, dict):
        return
    if value.get("class") in ("File", "Directory"):
        file = value.get("location", value.get("path"))
        if isinstance(file, str) and not _exists(file, settings.folder):
            right = "a relative path starts at this file"
            yield settings.problem(where, f"{file}: no such file", right)
    for key, item in value.items():
        yield from _missing_files(settings, item, (*where, key))


def _exists(file: str, folder: Path) -> bool:
    file = file.removeprefix("file://")
    return "://" in file or any((folder / f).exists() for f in (file, unquote(file)))
