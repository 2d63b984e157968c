"""Fixes of StreamFlow for outputs: a workflow gets a job's outputs together, and well-typed.

:data:`REPLACEMENTS` replaces methods of StreamFlow 0.2.0rc3, which has these errors:

- StreamFlow passes on each output as soon as it is collected. If another output of the same
  attempt is missing or wrong, the job is retried, and later steps mix outputs of two attempts.
- It accepts a single value for a list, a list of one for a single value, a command's standard
  output for an output without a binding, and, in an empty scatter, a value that is no list.
- If the lists of a scatter differ in length, it runs the first jobs before it fails. If one of
  them is empty, it runs no job, and does not fail.
- If a job of a scatter could not be scheduled, it gathers only the outputs of the other jobs.
- If a list of a ``nested_crossproduct`` is empty, the result has wrong numbers of empty lists.
- ``loadContents`` strips the text of a remote file, and changes line breaks of a local file.
- On a remote host, ``glob`` splits names at spaces, and runs commands in the pattern.
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

#: prefixes of the names that the run itself uses in the folder of the outputs
RESERVED = ("streamflow.log", ".streamflow.lock")
_ValueProcessor = cwl.CWLCommandOutputProcessor
_RecordProcessor = cwl.CWLObjectCommandOutputProcessor


def protect(folder: Path, earlier: Iterable[Path]) -> None:
    """Let a run overwrite outputs of earlier runs in its folder, but keep other files.

    If two outputs of a run have the same name, StreamFlow 0.2.0rc3 renames the second; but it
    overwrites a file of the same name that is already in the folder.

    :param folder: absolute path of the folder of the workflow's outputs
    :param earlier: absolute paths of files and folders that earlier runs have written to it
    """
    own, choose = {*earlier} - {folder, *folder.parents}, CWLWorkflow.get_output_path
    claimed = set[Path]()

    def claim(workflow: CWLWorkflow, path: Path) -> None:
        """Check that a run may write an output to a path; set aside a file that is there."""
        if path == folder:
            return
        if path.name.startswith(RESERVED):
            raise WorkflowExecutionException(
                f"{path} is a file of the run itself: name the output differently"
            )
        locations = workflow.context.data_manager.get_data_locations(str(path))
        if path not in claimed and any(known.location.local for known in locations):
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
        """Choose the path of an output as StreamFlow does, and claim the path."""
        context = await choose(self, unique, *args, **options)
        if unique:
            chosen = Path(str(context.path))
            try:
                # Only the folder is resolved: if the file is a link, the link itself is
                # renamed, and its target is not overwritten.
                claim(self, chosen.parent.resolve() / chosen.name)
            except (OSError, WorkflowExecutionException) as error:
                if context.event is not None:
                    context.event.set()  # another output may wait for the event
                raise WorkflowExecutionException(str(error)) from error
        return context

    CWLWorkflow.get_output_path = get_output_path  # type: ignore[method-assign]


def _set_aside(path: Path) -> Path:
    """Rename a file or folder like a numbered backup of GNU's ``cp``; return the new path."""
    names = (path.with_name(f"{path.name}.~{number}~") for number in count(1))
    kept = next(name for name in names if not os.path.lexists(name))
    path.rename(kept)
    return kept


@recoverable  # type: ignore[untyped-decorator]
async def _execute_command(
    self: ExecuteStep, job: Job, connectors: MutableMapping[str, Connector]
) -> None:
    """Run an attempt, and put its outputs into their ports when all have been collected."""
    with exit_codes.of_job(_exit_codes(self.command)):
        output = await cast(Command, self.command).execute(job)
    if output.status == Status.FAILED:
        raise WorkflowExecutionException(
            f"FAILED Job {job.name} with error:\n\t{output.value}"
        )
    if output.status != Status.COMPLETED or self.terminated:
        return
    if isinstance(output, cwl.CWLCommandOutput) and isinstance(output.value, str):
        # In CWL, a command's standard output is an output only if it is written to a file.
        output = output.update(None)
    # CWLExecuteStep has its own version of this method for CWL's WorkReuse, which is why its
    # check is called here.
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
    """Return the exit codes of a tool, for the connectors that run the command."""
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
                f"input {name} is scattered and must be a list, got {_describe_value(token.value)}"
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
    """Create the outputs of a scatter without jobs: empty lists, nested as the lists require.

    StreamFlow creates one empty list per scattered list, regardless of the lists' lengths.
    """
    tag = get_tag(inputs.values())
    lists = [len(inputs[name].value) for name in self.get_input_ports()]
    is_nested = self.scatter_method == "nested_crossproduct"
    value = _empty_result(lists, tag) if is_nested else ListToken([], tag=tag)
    for port in self.get_skip_ports().values():
        ids = get_entity_ids(inputs.values())
        port.put(await self._persist_token(value.update(value.value), port, ids))


def _empty_result(lengths: list[int], tag: str) -> ListToken:
    """Return the result of a nested scatter over lists of which one is empty."""
    first, *others = lengths
    return ListToken([_empty_result(others, tag) for _ in range(first)], tag=tag)


async def _gather(self: GatherStep, key: str) -> None:
    """Gather the outputs of a scatter; if an output is missing after a failure, fail.

    If an output is missing without a failure, this is a retry, which gathers only some
    outputs.
    """
    # The size is read from the port, since the step replaces the size in its own table when it
    # gathers incomplete outputs. The port has the sizes of all iterations of a loop, the
    # latest at the end.
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
        await _original_gather(self, key)


# StreamFlow's own methods, which the replacements call
_original_gather = GatherStep._gather
_original_process_output = _ValueProcessor.process
_original_process_files = _ValueProcessor._process_command_output
_original_process_json = _ValueProcessor._process_command_output_json
_original_process_record = _RecordProcessor._process
_original_propagate = _RecordProcessor._propagate


async def process(
    self: _ValueProcessor,
    job: Job,
    command_output: asyncio.Future[CommandOutput],
    connector: Connector | None = None,
    recoverable: bool = False,
) -> Token | None:
    """Collect an output; do not replace an empty list with null if the output is optional."""
    token = await _original_process_output(
        self, job, command_output, connector, recoverable
    )
    output = await command_output
    is_json = isinstance(output, cwl.CWLOutputJSONCommandOutput)
    if is_json and output.value == [] and token is not None:
        return ListToken([], tag=token.tag)
    return token


async def _process_command_output(self: _ValueProcessor, *args: Any) -> Any:
    value = await _original_process_files(self, *args)
    # For a single file, a list of one is accepted: a glob returns such a list, and CWL also
    # accepts it from an expression.
    if not (self.single and _has_files(self)) and (
        self.glob is None or self.output_eval is not None
    ):
        _check_shape(self, value)
    return value


async def _process_command_output_json(self: _ValueProcessor, *args: Any) -> Any:
    value = await _original_process_json(self, *args)
    _check_shape(self, value)
    return value


async def _process(
    self: _RecordProcessor,
    job: Job,
    command_output: asyncio.Future[CommandOutput],
    connector: Connector | None = None,
    recoverable: bool = False,
) -> Token | None:
    """Collect a record, after checking that no required field is missing."""
    value, required = (await command_output).value, _required_fields(self)
    if value is None and not required:  # the record may be optional
        return await _original_process_record(
            self, job, command_output, connector, recoverable
        )
    if isinstance(value, list) is self.single:
        _raise_type_error(self.name, "record" if self.single else "record[]", value)
    for record in [value] if self.single else value:
        for field in required if isinstance(record, Mapping) else ():
            if field not in record:
                _raise_type_error(self.name, f"record with the field {field}", record)
    return await _original_process_record(
        self, job, command_output, connector, recoverable
    )


async def _propagate(
    self: _RecordProcessor,
    job: Job,
    command_output: asyncio.Future[CommandOutput],
    connector: Connector | None = None,
    recoverable: bool = False,
) -> Token:
    """Collect each field of a record with its own binding; refuse any other value."""
    output = await command_output
    whole = self.output_eval or isinstance(output, cwl.CWLOutputJSONCommandOutput)
    if whole and (output.value is not None or _required_fields(self)):
        _raise_type_error(self.name, "record", output.value)
    return await _original_propagate(self, job, command_output, connector, recoverable)


def _required_fields(records: _RecordProcessor) -> set[str]:
    """Return the fields of a record that must not be null."""
    return {
        field
        for field, processor in records.processors.items()
        if isinstance(processor, _ValueProcessor) and not processor.optional
    }


def _has_files(processor: _ValueProcessor) -> bool:
    return not {"File", "Directory"}.isdisjoint(_types(processor))


def _types(processor: _ValueProcessor) -> list[str]:
    types = processor.token_type or "Any"
    return [types] if isinstance(types, str) else [*types]


def _check_shape(processor: _ValueProcessor, value: object) -> None:
    """Check that a value is a list if, and only if, a list is declared.

    :raises ProcessorTypeError: if it is not
    """
    types = _types(processor)
    # StreamFlow does not record whether an enum is an item of a list.
    if types == ["enum"] or (value is None and processor.optional):
        return
    is_any = processor.single and "Any" in types
    if value is None if is_any else isinstance(value, list) is processor.single:
        suffix = "" if processor.single else "[]"
        _raise_type_error(
            processor.name, " or ".join(type_ + suffix for type_ in types), value
        )


def _raise_type_error(name: str, expected: str, value: object) -> None:
    raise ProcessorTypeError(
        f"Expected {name} of type {expected}, got {_describe_value(value)}."
    )


def _describe_value(value: object) -> str:
    return "null" if value is None else f"{infer_type_from_token(value)} {value!r:.80}"


async def _read_local(
    self: LocalStreamFlowPath,
    n: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
) -> str:
    """Read the first ``n`` bytes of a file on this machine, without changing line breaks."""

    def read() -> bytes:
        with Path(self).open("rb") as file:
            return file.read(n)

    return _decode(await asyncio.to_thread(read), encoding, errors)


async def _read_remote(
    self: RemoteStreamFlowPath,
    n: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
) -> str:
    """Read the first ``n`` bytes of a remote file, without stripping them."""
    if (inner := await self._get_inner_path()) != self:
        return await inner.read_text(n, encoding, errors)
    path = shlex.quote(str(self))
    first = ["cat", path] if n < 0 else ["head", "-c", str(n), path]
    # The file is tested first, since the status of a pipe is only the last command's.
    exists = ["test", "-f", path, "&&", "test", "-r", path, "&&"]
    content = await _read_output(self, [*exists, *first, "|", "base64"])
    return _decode(content, encoding, errors)


async def _glob_remote(
    self: RemoteStreamFlowPath, pattern: str, *, case_sensitive: bool | None = None
) -> AsyncIterator[RemoteStreamFlowPath]:
    """Find remote files of any name; only ``*``, ``?`` and ``[`` are special characters."""
    if await self._get_inner_path() != self or not pattern or pattern.startswith("/"):
        async for path in _original_glob(self, pattern, case_sensitive=case_sensitive):
            yield path
        return
    words = f"{shlex.quote(str(self))}/{_SPECIAL.sub(_quote_match, pattern)}"
    names = ["test", "-e", '"$1"', "&&", "printf", r"'%s\0'", '"$@"']
    command = ["set", "--", words, ";", "{", *names, ";", "}", "|", "base64"]
    for name in (await _read_output(self, command)).decode().split("\0")[:-1]:
        yield self.with_segments(name)


async def _read_output(path: RemoteStreamFlowPath, command: list[str]) -> bytes:
    """Return the output of a command on a path's host.

    The command prints base64, since connectors strip the output.
    """
    result, status = await path.connector.run(
        location=path.location, command=command, capture_output=True
    ) or ("", None)
    if status != 0:
        raise WorkflowExecutionException(
            f"{path} on {path.location} cannot be read: {result or 'no such file'}"
        )
    return base64.b64decode(result)


def _quote_match(special: re.Match[str]) -> str:
    return shlex.quote(special[0])


def _decode(content: bytes, encoding: str | None, errors: str | None) -> str:
    # If the limit on bytes cuts the last character, the character is left out.
    decoder = codecs.getincrementaldecoder(encoding or "utf-8")(errors or "strict")
    return decoder.decode(content)


# Characters of a pattern that are quoted, since a shell might give them another meaning.
_SPECIAL = re.compile(r"[^\w./*?\[\]!^-]+")
_original_glob = RemoteStreamFlowPath.glob
#: class, name of its method, and the replacement
REPLACEMENTS: tuple[tuple[type, str, Any], ...] = (
    (ExecuteStep, "_execute_command", _execute_command),
    (CWLEmptyScatterConditionalStep, "_eval", _eval),
    (CWLEmptyScatterConditionalStep, "_on_false", _on_false),
    (GatherStep, "_gather", _gather),
    (_ValueProcessor, "process", process),
    (_ValueProcessor, "_process_command_output", _process_command_output),
    (_ValueProcessor, "_process_command_output_json", _process_command_output_json),
    (_RecordProcessor, "_process", _process),
    (_RecordProcessor, "_propagate", _propagate),
    (LocalStreamFlowPath, "read_text", _read_local),
    (RemoteStreamFlowPath, "read_text", _read_remote),
    (RemoteStreamFlowPath, "glob", _glob_remote),
)
