"""Fixes of StreamFlow for the commands of jobs, and the files of their output.

:data:`REPLACEMENTS` replaces functions and methods of StreamFlow 0.2.0rc3, as otherwise

- the items of a list are not quoted on a command line;
- a shell expands ``$``, backquotes, quotes and backslashes in values of environment variables;
- a command's standard error is also written to the file of its standard output;
- a text of ``InitialWorkDirRequirement`` is not written into a folder that does not exist.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import Mapping, MutableMapping, MutableSequence
from types import ModuleType
from typing import Any

import cwl_utils.parser
from streamflow.core import utils
from streamflow.core.context import StreamFlowContext
from streamflow.core.deployment import ExecutionLocation
from streamflow.core.workflow import CommandTokenProcessor
from streamflow.cwl import translator
from streamflow.cwl import utils as values
from streamflow.cwl.command import CWLCommand
from streamflow.data.remotepath import StreamFlowPath
from streamflow.deployment.connector.queue_manager import QueueManagerConnector

# Characters that a shell interprets between double quotes.
SPECIAL = re.compile(r'[\\"$`]')


def create_command(
    class_name: str,
    command: MutableSequence[str],
    environment: MutableMapping[str, str] | None = None,
    workdir: str | None = None,
    stdin: int | str | None = None,
    stdout: int | str = asyncio.subprocess.STDOUT,
    stderr: int | str = asyncio.subprocess.STDOUT,
) -> str:
    """Return a command for a shell; values of environment variables are not expanded.

    If only the standard output is written to a file, the standard error takes its place as the
    output that the connector returns: connectors of this machine do not keep the standard
    error of a process.
    """
    quoted = {
        name: SPECIAL.sub(r"\\\g<0>", value)
        for name, value in (environment or {}).items()
    }
    if isinstance(stdout, str) and stderr == asyncio.subprocess.STDOUT:
        command = [*command, "2>&1"]  # before the shell redirects the output
    return _write_command(class_name, command, quoted, workdir, stdin, stdout, stderr)


async def run(
    self: QueueManagerConnector,
    location: ExecutionLocation,
    command: MutableSequence[str],
    *,
    stdout: int | str = asyncio.subprocess.STDOUT,
    stderr: int | str = asyncio.subprocess.STDOUT,
    **options: Any,
) -> tuple[str, int] | None:
    """Run a batch job of StreamFlow, with its errors in the file of its output.

    Without a file for the errors, PBS writes a separate file into the folder of the outputs.
    """
    if stderr == asyncio.subprocess.STDOUT:
        stderr = stdout
    return await _run_batch_job(
        self, location, command, stdout=stdout, stderr=stderr, **options
    )


def _create_command(
    cwl_element: cwl_utils.parser.CommandLineTool, *args: Any, **options: Any
) -> CWLCommand:
    """Create a command; its standard error is in a file only if the tool declares this."""
    command = _create_tool_command(cwl_element, *args, **options)
    if command.stdout is not None and command.stderr is None:
        # Connectors return this stream, so that it can be used in messages.
        command.stderr = asyncio.subprocess.STDOUT  # type: ignore[assignment]
    return command


def _get_command_token_processor_from_input(
    cwl_element: Any, port_type: Any, *args: Any, **options: Any
) -> CommandTokenProcessor:
    """Quote the items of a list, and the result of an expression, for the shell.

    StreamFlow assumes that these are quoted, but only items with their own binding are.
    """
    binding = cwl_element.inputBinding
    if binding is not None and binding.shellQuote is None:
        named = options.get("schema_def_types") or {}
        if binding.valueFrom is not None or (
            _has_list(port_type, named) and _is_unquoted(port_type, named)
        ):
            binding.shellQuote = True
    return _get_processor(cwl_element, port_type, *args, **options)


def _has_list(type_: Any, named: Mapping[str, Any]) -> bool:
    if isinstance(type_, list):
        return any(_has_list(alternative, named) for alternative in type_)
    return isinstance(
        named.get(type_, type_) if isinstance(type_, str) else type_,
        cwl_utils.parser.ArraySchema,
    )


def _is_unquoted(type_: Any, named: Mapping[str, Any]) -> bool:
    """Return whether no part of a value is quoted because it has its own binding.

    This is false for records: if the fields of a record have no binding, StreamFlow makes an
    empty word of the record.
    """
    if isinstance(type_, list):
        return all(_is_unquoted(alternative, named) for alternative in type_)
    if isinstance(type_, str) and type_ in named:
        return _is_unquoted(named[type_], named)
    if isinstance(type_, cwl_utils.parser.ArraySchema):
        is_bound = getattr(type_, "inputBinding", None) is not None
        return not is_bound and _is_unquoted(type_.items, named)
    return not isinstance(type_, cwl_utils.parser.RecordSchema)


async def _write_remote_file(
    *,
    context: StreamFlowContext,
    location: ExecutionLocation,
    content: str,
    path: str,
    relpath: str,
) -> None:
    """Write a file of a job, in a new folder if its name begins with one."""
    if posixpath.dirname(relpath):
        file = StreamFlowPath(path, context=context, location=location)  # type: ignore[abstract]
        await file.parent.mkdir(parents=True, exist_ok=True)
    await _write_file(
        context=context,
        location=location,
        content=content,
        path=path,
        relpath=relpath,
    )


# StreamFlow's own functions, which the replacements call
_write_file = values._write_remote_file
_create_tool_command = translator._create_command
_get_processor = translator._get_command_token_processor_from_input
_run_batch_job = QueueManagerConnector.run
_write_command = utils.create_command

#: class or module, name of its function or method, and the replacement
REPLACEMENTS: tuple[tuple[type | ModuleType, str, Any], ...] = (
    (utils, "create_command", create_command),
    (QueueManagerConnector, "run", run),
    (values, "_write_remote_file", _write_remote_file),
    (translator, "_create_command", _create_command),
    (
        translator,
        "_get_command_token_processor_from_input",
        _get_command_token_processor_from_input,
    ),
)
