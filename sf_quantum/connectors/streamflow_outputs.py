"""The outputs of a job: its workflow gets all of them or none, each of its declared type.

:data:`REPLACEMENTS` are for methods of StreamFlow 0.2.0rc3, for these reasons:

- It passes on each output as soon as it is collected. If another output of the same attempt
  is missing or wrong, the job is retried, and later steps mix the outputs of both attempts.
- It accepts a value for a list of one, a list of one for a value, a command's standard output
  for an output without a binding, and a value that is not a list for an empty scatter.
- If the lists of a scatter differ in length, it runs the first jobs before it fails. If a list
  is empty, it runs no job, and does not fail.
- If a job of a scatter could not be scheduled, it gathers only the outputs of the other jobs.
- If a list of a ``nested_crossproduct`` is empty, the result has wrong numbers of empty lists.
- ``loadContents`` strips the text of a remote file, and replaces the line breaks of a local one.
- On a remote host, ``glob`` splits names at spaces, and runs what is a command in the pattern.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
import os
import re
import shlex
from collections.abc import AsyncIterator, Iterable, Mapping, MutableMapping
from itertools import count
from pathlib import Path
from typing import Any, cast

from streamflow.core.deployment import Connector
from streamflow.core.exception import ProcessorTypeError, WorkflowExecutionException
from streamflow.core.recovery import recoverable
from streamflow.core.utils import get_entity_ids, get_tag, make_future
from streamflow.core.workflow import Command, CommandOutput, Job, Status, Token
from streamflow.cwl import processor as cwl
from streamflow.cwl.command import CWLCommand
from streamflow.cwl.step import CWLEmptyScatterConditionalStep, CWLExecuteStep
from streamflow.cwl.utils import infer_type_from_token
from streamflow.cwl.workflow import CWLOutputPathContextManager, CWLWorkflow
from streamflow.data.remotepath import LocalStreamFlowPath, RemoteStreamFlowPath
from streamflow.log_handler import logger
from streamflow.workflow.step import ExecuteStep, GatherStep
from streamflow.workflow.token import ListToken
from streamflow.workflow.utils import check_termination, get_job_token

from sf_quantum import journal
from sf_quantum.connectors import exit_codes
from sf_quantum.connectors.exit_codes import ExitCodes

#: prefixes of names in the folder of the outputs that the run itself uses
RESERVED = ("streamflow.log", ".streamflow.lock")
_Values = cwl.CWLCommandOutputProcessor
_Records = cwl.CWLObjectCommandOutputProcessor


def protect(folder: Path, earlier: Iterable[Path]) -> None:
    """Let a run overwrite outputs of earlier runs, but keep other files in its folder.

    StreamFlow 0.2.0rc3 gives a second output of the same name another name, but overwrites a
    file of that name in the folder.

    :param folder: absolute path of the folder of the workflow's outputs
    :param earlier: absolute paths of files and folders that earlier runs have written there
    """
    own, choose = {*earlier} - {folder, *folder.parents}, CWLWorkflow.get_output_path
    claimed = set[Path]()

    def claim(workflow: CWLWorkflow, path: Path) -> None:
        if path == folder:
            return
        if path.name.startswith(RESERVED):
            raise WorkflowExecutionException(
                f"{path} is a file of the run itself: name the output differently"
            )
        locations = workflow.context.data_manager.get_data_locations(str(path))
        if path not in claimed and any(one.location.local for one in locations):
            raise WorkflowExecutionException(
                f"{path} is an input of this run, and one of its outputs has that name: "
                "name another --outdir"
            )
        if os.path.lexists(path) and own.isdisjoint((path, *path.parents)):
            kept = _set_aside(path)
            journal.warn(
                f"{path} is not an output of this run or of those whose logs are in {folder}, "
                f"and is kept as {kept.name}"
            )
        claimed.add(path)
        own.add(path)
        logger.info(f"{journal.WRITING} {json.dumps(str(path))}")

    async def get_output_path(
        self: CWLWorkflow, unique: bool, *args: Any, **options: Any
    ) -> CWLOutputPathContextManager:
        context = await choose(self, unique, *args, **options)
        if unique:
            chosen = Path(str(context.path))
            try:
                # A link is renamed, and its target is not overwritten.
                claim(self, chosen.parent.resolve() / chosen.name)
            except (OSError, WorkflowExecutionException) as error:
                if context.event is not None:
                    context.event.set()  # another output may wait for the event
                raise WorkflowExecutionException(str(error)) from error
        return context

    CWLWorkflow.get_output_path = get_output_path  # type: ignore[method-assign]


def _set_aside(path: Path) -> Path:
    """Rename a file or folder like a numbered backup of GNU's ``cp --backup``."""
    names = (path.with_name(f"{path.name}.~{number}~") for number in count(1))
    kept = next(name for name in names if not os.path.lexists(name))
    path.rename(kept)
    return kept


@recoverable  # type: ignore[untyped-decorator]
async def _execute_command(
    self: ExecuteStep, job: Job, connectors: MutableMapping[str, Connector]
) -> None:
    """Run an attempt, and put its outputs into their ports once all are collected."""
    with exit_codes.of_job(_exit_codes(self.command)):
        output = await cast(Command, self.command).execute(job)
    if output.status == Status.FAILED:
        raise WorkflowExecutionException(
            f"FAILED Job {job.name} with error:\n\t{output.value}"
        )
    if output.status != Status.COMPLETED or self.terminated:
        return
    if isinstance(output, cwl.CWLCommandOutput) and isinstance(output.value, str):
        # In CWL, a command's standard output is an output only by way of a file.
        output = output.update(None)
    # CWL's WorkReuse, for which CWLExecuteStep overrides the method that is replaced here
    reusable = self._is_recoverable(job) if isinstance(self, CWLExecuteStep) else True
    collected = await asyncio.gather(
        *(
            self.output_processors[name].process(
                job, make_future(output), connectors.get(name), recoverable=reusable
            )
            for name in self.output_ports
        )
    )
    job_token = get_job_token(job.name, self.get_job_port().token_list)
    inputs = get_entity_ids((*job.inputs.values(), job_token))
    ports = [self.workflow.ports[port] for port in self.output_ports.values()]
    tokens = [
        (port, await self._persist_token(token, port, inputs))
        for port, token in zip(ports, collected, strict=True)
        if token is not None
    ]
    for port, token in tokens:
        port.put(token)
    for port, token in tokens:
        await self.workflow.context.failure_manager.notify(port.name, token, job_token)


def _exit_codes(command: Command | None) -> ExitCodes:
    """The exit codes of a tool, for the connectors that run the command."""
    if not isinstance(command, CWLCommand):
        return ExitCodes()
    return ExitCodes(command.success_codes or (), command.failure_codes or ())


async def _eval(
    self: CWLEmptyScatterConditionalStep, inputs: MutableMapping[str, Token]
) -> bool:
    """Return whether a scatter has jobs.

    :raises WorkflowExecutionException: if an input is not a list, or if the lists differ in
        length although each job gets one item of each list
    """
    lengths = {}
    for name, token in inputs.items():
        if not isinstance(token, ListToken):
            raise WorkflowExecutionException(
                f"input {name} is scattered and must be a list, got {_shown(token.value)}"
            )
        lengths[name] = len(token.value)
    if self.scatter_method == "dotproduct" and len({*lengths.values()}) > 1:
        shown = ", ".join(f"{name} {size}" for name, size in lengths.items())
        raise WorkflowExecutionException(
            f"its lists differ in length: {shown}; make them equally long"
        )
    return all(lengths.values())


async def _on_false(
    self: CWLEmptyScatterConditionalStep, inputs: MutableMapping[str, Token]
) -> None:
    """Make the outputs of a scatter without jobs: empty lists, nested by its lists' lengths.

    StreamFlow makes one empty list per scattered list, regardless of the lists' lengths.
    """
    tag = get_tag(inputs.values())
    lists = [len(inputs[name].value) for name in self.get_input_ports()]
    is_nested = self.scatter_method == "nested_crossproduct"
    value = _nothing(lists, tag) if is_nested else ListToken([], tag=tag)
    for port in self.get_skip_ports().values():
        ids = get_entity_ids(inputs.values())
        port.put(await self._persist_token(value.update(value.value), port, ids))


def _nothing(lengths: list[int], tag: str) -> ListToken:
    """The result of a nested scatter with an empty list."""
    first, *others = lengths
    return ListToken([_nothing(others, tag) for _ in range(first)], tag=tag)


async def _gather(self: GatherStep, key: str) -> None:
    """Gather the outputs of a scatter; if an output is missing after a failure, fail.

    Without a failure, the workflow is that of a retry, which gathers only some outputs.
    """
    # The step replaces the size in its own table when it gathers incomplete outputs; the size
    # in the port stays, near the end of a list with the sizes of all iterations of a loop.
    tokens = reversed(self.get_size_port().token_list)
    sizes = (
        token.value
        for token in tokens
        if token.tag == key and not check_termination(token)
    )
    gathered = len(self.token_map[key])
    if next(sizes, gathered) != gathered and any(
        step.status is Status.FAILED for step in self.workflow.steps.values()
    ):
        await self.terminate(Status.FAILED)
    else:
        await _gather_all(self, key)


_gather_all = GatherStep._gather
_value = _Values.process
_from_files = _Values._process_command_output
_from_json = _Values._process_command_output_json
_as_record = _Records._process
_field_by_field = _Records._propagate


async def process(
    self: _Values,
    job: Job,
    command_output: asyncio.Future[CommandOutput],
    connector: Connector | None = None,
    recoverable: bool = False,
) -> Token | None:
    """Collect an output; an empty list is not null, even if the output is optional."""
    token = await _value(self, job, command_output, connector, recoverable)
    output = await command_output
    is_json = isinstance(output, cwl.CWLOutputJSONCommandOutput)
    if is_json and output.value == [] and token is not None:
        return ListToken([], tag=token.tag)
    return token


async def _process_command_output(self: _Values, *args: Any) -> Any:
    value = await _from_files(self, *args)
    # A glob returns a list of one file; CWL also accepts such a list from an expression.
    if not (self.single and _has_files(self)) and (
        self.glob is None or self.output_eval is not None
    ):
        _check_shape(self, value)
    return value


async def _process_command_output_json(self: _Values, *args: Any) -> Any:
    value = await _from_json(self, *args)
    _check_shape(self, value)
    return value


async def _process(
    self: _Records,
    job: Job,
    command_output: asyncio.Future[CommandOutput],
    connector: Connector | None = None,
    recoverable: bool = False,
) -> Token | None:
    value, required = (await command_output).value, _required(self)
    if value is None and not required:  # the record may be optional
        return await _as_record(self, job, command_output, connector, recoverable)
    if isinstance(value, list) is self.single:
        _refuse(self.name, "record" if self.single else "record[]", value)
    for record in [value] if self.single else value:
        for field in required if isinstance(record, Mapping) else ():
            if field not in record:
                _refuse(self.name, f"record with the field {field}", record)
    return await _as_record(self, job, command_output, connector, recoverable)


async def _propagate(
    self: _Records,
    job: Job,
    command_output: asyncio.Future[CommandOutput],
    connector: Connector | None = None,
    recoverable: bool = False,
) -> Token:
    """Collect each field with its own binding, unless the record is given as one value."""
    output = await command_output
    whole = self.output_eval or isinstance(output, cwl.CWLOutputJSONCommandOutput)
    if whole and (output.value is not None or _required(self)):
        _refuse(self.name, "record", output.value)
    return await _field_by_field(self, job, command_output, connector, recoverable)


def _required(records: _Records) -> set[str]:
    """The fields of a record that must not be null."""
    return {
        field
        for field, processor in records.processors.items()
        if isinstance(processor, _Values) and not processor.optional
    }


def _has_files(processor: _Values) -> bool:
    return not {"File", "Directory"}.isdisjoint(_types(processor))


def _types(processor: _Values) -> list[str]:
    types = processor.token_type or "Any"
    return [types] if isinstance(types, str) else [*types]


def _check_shape(processor: _Values, value: object) -> None:
    """Check that a value is a list if a list is declared, and only then.

    :raises ProcessorTypeError: otherwise
    """
    types = _types(processor)
    # StreamFlow does not record whether an enum is an item of a list.
    if types == ["enum"] or (value is None and processor.optional):
        return
    is_any = processor.single and "Any" in types
    if value is None if is_any else isinstance(value, list) is processor.single:
        suffix = "" if processor.single else "[]"
        _refuse(processor.name, " or ".join(one + suffix for one in types), value)


def _refuse(name: str, expected: str, value: object) -> None:
    raise ProcessorTypeError(
        f"Expected {name} of type {expected}, got {_shown(value)}."
    )


def _shown(value: object) -> str:
    return "null" if value is None else f"{infer_type_from_token(value)} {value!r:.80}"


async def _read_local(
    self: LocalStreamFlowPath,
    n: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
) -> str:
    """Read the first ``n`` bytes of a file of this machine as they are."""

    def read() -> bytes:
        with Path(self).open("rb") as file:
            return file.read(n)

    return _text(await asyncio.to_thread(read), encoding, errors)


async def _read_remote(
    self: RemoteStreamFlowPath,
    n: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
) -> str:
    """Read the first ``n`` bytes of a remote file as they are."""
    if (inner := await self._get_inner_path()) != self:
        return await inner.read_text(n, encoding, errors)
    path = shlex.quote(str(self))
    first = ["cat", path] if n < 0 else ["head", "-c", str(n), path]
    # The status of a pipe is that of its last command.
    exists = ["test", "-f", path, "&&", "test", "-r", path, "&&"]
    content = await _output(self, [*exists, *first, "|", "base64"])
    return _text(content, encoding, errors)


async def _glob_remote(
    self: RemoteStreamFlowPath, pattern: str, *, case_sensitive: bool | None = None
) -> AsyncIterator[RemoteStreamFlowPath]:
    """Find remote files, whatever their names; only ``*``, ``?`` and ``[`` are special."""
    if await self._get_inner_path() != self or not pattern or pattern.startswith("/"):
        async for path in _glob(self, pattern, case_sensitive=case_sensitive):
            yield path
        return
    words = f"{shlex.quote(str(self))}/{_SPECIAL.sub(_quoted, pattern)}"
    names = ["test", "-e", '"$1"', "&&", "printf", r"'%s\0'", '"$@"']
    command = ["set", "--", words, ";", "{", *names, ";", "}", "|", "base64"]
    for name in (await _output(self, command)).decode().split("\0")[:-1]:
        yield self.with_segments(name)


async def _output(path: RemoteStreamFlowPath, command: list[str]) -> bytes:
    """Run a command on a path's host that prints base64, since connectors strip output."""
    result, status = await path.connector.run(
        location=path.location, command=command, capture_output=True
    ) or ("", None)
    if status != 0:
        raise WorkflowExecutionException(
            f"{path} on {path.location} cannot be read: {result or 'no such file'}"
        )
    return base64.b64decode(result)


def _quoted(special: re.Match[str]) -> str:
    return shlex.quote(special[0])


def _text(content: bytes, encoding: str | None, errors: str | None) -> str:
    # A character that the limit cuts is left out.
    decoder = codecs.getincrementaldecoder(encoding or "utf-8")(errors or "strict")
    return decoder.decode(content)


# What a shell may take for more than a character of a pattern.
_SPECIAL = re.compile(r"[^\w./*?\[\]!^-]+")
_glob = RemoteStreamFlowPath.glob
#: class or module, name, and what replaces it there
REPLACEMENTS: tuple[tuple[type, str, Any], ...] = (
    (ExecuteStep, "_execute_command", _execute_command),
    (CWLEmptyScatterConditionalStep, "_eval", _eval),
    (CWLEmptyScatterConditionalStep, "_on_false", _on_false),
    (GatherStep, "_gather", _gather),
    (_Values, "process", process),
    (_Values, "_process_command_output", _process_command_output),
    (_Values, "_process_command_output_json", _process_command_output_json),
    (_Records, "_process", _process),
    (_Records, "_propagate", _propagate),
    (LocalStreamFlowPath, "read_text", _read_local),
    (RemoteStreamFlowPath, "read_text", _read_remote),
    (RemoteStreamFlowPath, "glob", _glob_remote),
)
