"""Digests of everything on which a job's result depends, from StreamFlow's objects."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from streamflow.core.data import DataType
from streamflow.core.deployment import Connector, ExecutionLocation, Target
from streamflow.core.scheduling import Hardware
from streamflow.core.workflow import Job
from streamflow.workflow.utils import get_token_value

from sf_quantum.files import JSON, listing, mapping
from sf_quantum.journal.contents import digest, digest_script, of_file
from sf_quantum.journal.events import Inputs
from sf_quantum.version import __version__

if TYPE_CHECKING:
    from streamflow.core.context import StreamFlowContext

# Types of deployments whose configuration determines where and with which resources a job
# runs, but not its result.
PLACES = {"local", "ssh", "slurm", "pbs", "flux"}
PLACES |= {"sfq.nodes", "sfq.slurm", "sfq.ssh"}
# keys of their services that may nevertheless change a result: QPU, container, environment
_ENVIRONMENT = (
    "qpu container containerId export exportFile getUserEnv env envFile envRemove "
    "exportAllVariables variableList shellList file"
).split()
COMMAND = "streamflow.cwl.command.CWLCommand"
# parameters of a command that do not change its result
_LIMITS = ("time_limit",)
# separators of words in shell commands
_SEPARATORS = re.compile(r"[\s;|&()<>'\"`=]+")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")
# Variables of the driver that determine which libraries and modules a program loads.
_LOADING = {"LD_LIBRARY_PATH", "LOADEDMODULES", "PYTHONPATH"}
# variables that StreamFlow sets for each job
_OF_JOB = {"HOME", "TMPDIR"}
# maximum files with separate digests: an input with more gets a single digest, to keep events
# short
MOST_FILES = 64
_FILE_FIELDS = ("basename", "size", "checksum", "contents", "format")


class Uncertain(Exception):
    """The result of a job cannot be compared; the text is the reason, if known."""


class CommandDigests:
    """Digests of the steps' commands, each computed once."""

    def __init__(self) -> None:
        self._steps: dict[str, dict[str, JSON]] = {}
        # by step: the digest, and whether the command depends on the job's hardware
        self._digests: dict[str, tuple[str, bool]] = {}
        self._programs: dict[str, str] = {}

    def add(self, step: str, parameters: dict[str, JSON]) -> None:
        """Add a step, with its parameters in StreamFlow's database, if it runs a command."""
        if mapping(parameters.get("command")).get("type") == COMMAND:
            self._steps[step] = parameters

    async def of(self, step: str, hardware: Callable[[], Hardware]) -> str:
        """Return the digest of a step's command.

        :param hardware: function that returns the job's hardware, which some commands
            use
        :raises Uncertain: if the step runs no command, or its results must not be reused
        """
        if step not in self._steps:
            raise Uncertain
        if self._steps[step].get("recoverable") is not True:  # may be an expression
            raise Uncertain("its tool forbids it (WorkReuse)")
        command = mapping(mapping(self._steps[step]["command"]).get("params"))
        if command.get("inplace_update"):
            raise Uncertain("its tool changes its inputs (InplaceUpdateRequirement)")
        if step not in self._digests:
            self._digests[step] = await asyncio.to_thread(self._digest, command)
        digest, uses_hardware = self._digests[step]
        if not uses_hardware:
            return digest
        given = hardware()
        return _digest([digest, given.cores, given.memory])

    def _digest(self, command: dict[str, JSON]) -> tuple[str, bool]:
        text = json.dumps({**command, **dict.fromkeys(_LIMITS)}, sort_keys=True)
        texts = [*_texts({**command, "expression_lib": None})]
        words = {word for one in texts for word in _SEPARATORS.split(one)}
        programs: JSON = [*filter(None, map(self._program, sorted(words)))]
        names = {name for one in texts for name in _VARIABLE.findall(one)}
        names = (names | _LOADING) - _OF_JOB
        variables: JSON = {name: os.environ.get(name) for name in names}
        return _digest([text, programs, variables, __version__]), "runtime" in text

    def _program(self, word: str) -> str:
        """Return path and digest of a program on this machine; empty for any other word."""
        path = os.path.expandvars(os.path.expanduser(word))
        path = shutil.which(path) or path
        if path not in self._programs:
            digest = ""
            with suppress(OSError, ValueError):
                if os.path.isabs(path) and os.path.isfile(path):
                    # with the path, since equal interpreters may be of different
                    # environments
                    digest = f"{path} {of_file(path)}"
            # stored only when complete, since other threads digest other steps
            self._programs[path] = digest
        return self._programs[path]


async def of_inputs(context: StreamFlowContext, job: Job) -> Inputs:
    """Return the digests of a job's inputs.

    :raises Uncertain: if a file or folder has no digest
    """
    return {
        name: _parts(await _content(context, get_token_value(token)))
        for name, token in job.inputs.items()
    }


def of_target(context: StreamFlowContext, target: Target) -> str:
    """Return the digest of a target's parts that may affect a result.

    These are its kind, QPU, container, and the files that its configuration names.
    """
    deployment = target.deployment
    given: dict[str, JSON] = {"type": deployment.type, "config": {**deployment.config}}
    if deployment.wraps is not None:
        given["wraps"] = {**vars(deployment.wraps)}
    deployments = mapping(context.config.get("deployments"))
    layers = [*_layers(deployments, deployment.name, given, target.service)]
    folder = os.path.dirname(str(context.config.get("path", "")))
    return _digest([layers, [*_files(layers, folder)]])


async def of_folder(
    connector: Connector, location: ExecutionLocation, folder: str
) -> str | None:
    """Return the digest of a folder of a location; ``None`` if the folder is missing."""
    if location.local:
        return await asyncio.to_thread(digest, folder)
    command = ["sh", "-c", shlex.quote(digest_script(folder))]
    result = await connector.run(location, command, capture_output=True)
    return (result[0].strip() or None) if result and result[1] == 0 else None


def _layers(
    deployments: dict[str, JSON], name: str, deployment: dict[str, JSON], service: JSON
) -> Iterator[JSON]:
    """Yield the settings of a deployment, and of those it wraps, that may affect results."""
    type_, config = deployment.get("type"), mapping(deployment.get("config"))
    if type_ in PLACES:
        chosen = mapping(mapping(config.get("services")).get(str(service)))
        chosen = {"file": config.get("file"), **chosen}
        yield [type_, *(chosen.get(key) for key in _ENVIRONMENT)]
    else:  # the name identifies a QPU; for a DockerRequirement, it is random
        yield [type_, name if name in deployments else "", config, service]
    if wraps := deployment.get("wraps"):
        inner = mapping(wraps) or {"deployment": wraps}
        wrapped = str(inner.get("deployment"))
        yield from _layers(
            deployments,
            wrapped,
            mapping(deployments.get(wrapped)),
            inner.get("service"),
        )


def _files(layers: Sequence[JSON], folder: str) -> Iterator[JSON]:
    """Yield the digests of the files that layers name, such as templates and images."""
    for layer in layers:
        type_, *settings = listing(layer)
        # the files of QPUs are left out, since they are tokens
        if type_ in PLACES or not str(type_).startswith("sfq."):
            for text in _texts(settings):
                with suppress(OSError, ValueError):
                    path = os.path.join(folder, text)
                    yield of_file(path) if os.path.isfile(path) else None


def _texts(value: JSON) -> Iterator[str]:
    """Yield all texts in a value, without the names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


async def _content(context: StreamFlowContext, value: JSON) -> JSON:
    """Return a value with the contents of its files and folders instead of their paths."""
    if isinstance(value, list):
        return [await _content(context, one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get("class") not in ("File", "Directory"):
        return {key: await _content(context, one) for key, one in value.items()}
    content = {key: value.get(key) for key in _FILE_FIELDS}
    if value["class"] == "Directory":
        content["checksum"] = await _of_directory(context, str(value.get("path")))
    if content["checksum"] is content["contents"] is None:
        raise Uncertain("the contents of an input are unknown")
    others = await _content(context, value.get("secondaryFiles"))
    return {**content, "secondaryFiles": others}


def _parts(content: JSON) -> dict[str, str]:
    """Return the digests of an input's files by name, and of the rest under an empty name."""
    files: dict[str, JSON] = {}
    rest = _without_files(content, files)
    if len(files) > MOST_FILES:
        rest, files = content, {}
    return {name: _digest(one) for name, one in {**files, "": rest}.items()}


def _without_files(content: JSON, files: dict[str, JSON]) -> JSON:
    """Return a value with numbers in place of its files, which are moved to ``files``."""
    if isinstance(content, list):
        return [_without_files(one, files) for one in content]
    if not isinstance(content, dict):
        return content
    if not {*_FILE_FIELDS, "secondaryFiles"} <= content.keys():
        return {key: _without_files(one, files) for key, one in content.items()}
    number, name = len(files), str(content["basename"])
    files[f"{name} ({number + 1})" if name in files else name] = content
    return number


async def _of_directory(context: StreamFlowContext, path: str) -> str | None:
    for place in context.data_manager.get_data_locations(
        path, data_type=DataType.PRIMARY
    ):
        connector = context.deployment_manager.get_connector(place.deployment)
        if connector is not None:
            return await of_folder(connector, place.location, place.path)
    return None


def _digest(value: JSON) -> str:
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()
