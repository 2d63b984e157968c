"""Checks of tools that call ``sfq``: their command lines, and the values passed to options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from sf_quantum import samplers
from sf_quantum.checking.bindings.binding import Binding
from sf_quantum.checking.cwl.processes import Process, Tool
from sf_quantum.checking.cwl.values import Values
from sf_quantum.checking.document import FileProblem
from sf_quantum.checking.tools import command_lines, input_files
from sf_quantum.checking.tools.command_lines import Line, ParserMaker
from sf_quantum.files import KeyPath, mapping


class SfqTools:
    """The tools of a workflow that call ``sfq``.

    :param parser_for: see :func:`sf_quantum.checking.check_file`; ``None`` to read no tools
    """

    def __init__(self, process: Process, parser_for: ParserMaker | None) -> None:
        self._process = process
        self._lines: list[tuple[Tool, Line]] = []
        for tool in process.host_commands if parser_for else []:
            position = process.command_line_tools[tool.step]
            if parser_for and position.place not in process.faulty:
                line = command_lines.read(position, parser_for)
                self._lines += [(tool, line)] if line else []

    def check(self) -> Iterator[FileProblem]:
        """Check the command lines."""
        for tool, line in self._lines:
            for fault in line.faults:
                yield tool.document.problem(fault.where, fault.what, fault.right)

    def check_options(
        self, values: Values, wrong: Collection[str]
    ) -> Iterator[FileProblem]:
        """Check that options accept the values of the inputs that are passed to them.

        :param wrong: inputs with a wrong value, which is already reported
        """
        for tool, line in self._lines:
            for flag, port in self._options(tool):
                setting, option = values.find(port), line.options.get(flag)
                if setting is None or option is None:
                    continue
                document, where, value = setting
                if not isinstance(value, str | int | float) or where[0] in wrong:
                    continue
                if what := command_lines.rejection(option, str(value)):
                    right = f"{tool.step} passes it to sfq {line.command} {flag}"
                    yield document.problem(where, what, right)

    def check_files(
        self, values: Values, unread: Collection[str]
    ) -> Iterator[FileProblem]:
        """Check files that are passed to the tools, each once.

        :param unread: inputs that are not read, since their files are on a target or they are
            faulty
        """
        seen: set[tuple[input_files.Reader, KeyPath, str]] = set()
        for tool, line in self._lines:
            options = dict(self._options(tool))
            label = self._label(values, line, options)
            for flag, port in options.items():
                reader = input_files.READERS.get((line.command, flag))
                setting = values.find(port)
                if reader is None or setting is None or label is None:
                    continue
                document, where, value = setting
                key = (reader, (document.name, *where), label)
                if where[0] in unread or key in seen:
                    continue
                seen.add(key)
                use = f"{tool.step} passes it to sfq {line.command} {flag}"
                file = input_files.Use(document, where, use)
                yield from input_files.check(file, value, reader, label or None)

    def _label(self, values: Values, line: Line, options: dict[str, str]) -> str | None:
        """Return the column of ``--label``: empty without the option, ``None`` if unknown."""
        if (word := line.values.get("--label")) is not None:
            return word.literal
        if "--label" not in options:
            return ""
        setting = values.find(options["--label"])
        return setting[2] if setting and isinstance(setting[2], str) else None

    def check_samplers(
        self, values: Values, bound: Callable[[str], Binding | None]
    ) -> Iterator[FileProblem]:
        """Find samplers that ignore the QPU of the target on which they run.

        :param bound: function that returns the binding that applies to a step
        """
        for tool, line in self._lines:
            binding = bound(tool.step)
            if line.command != "solve" or binding is None:
                continue
            setting = values.find(dict(self._options(tool)).get("--sampler", ""))
            if word := line.values.get("--sampler"):
                setting = tool.document, word.where, word.literal
            if setting is None:
                continue
            document, where, name = setting
            for target in binding.quantum_targets:
                # the circuits of qaoa run on the QPU, if it accepts circuits
                if name in samplers.names() and name != "qaoa":
                    what = f"{name} never uses the QPU {target}, where {tool.step} runs"
                    right = "write auto, or bind the step to a classical location"
                    yield document.problem(where, what, right)

    def _options(self, tool: Tool) -> Iterator[tuple[str, str]]:
        """Yield the options that a tool's inputs set, each with the port of its value."""
        position = self._process.command_line_tools[tool.step]
        for entry in position.entries("inputs"):
            binding = mapping(mapping(entry.body).get("inputBinding"))
            flag = binding.get("prefix")
            if isinstance(flag, str) and "valueFrom" not in binding:
                yield flag.rstrip("="), f"{tool.step.rstrip('/')}/{entry.name}"
