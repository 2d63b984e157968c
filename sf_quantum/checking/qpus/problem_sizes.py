"""The sizes of the problems that steps solve, if they are known before a run."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sf_quantum.candidates.decision import FilterRules
from sf_quantum.checking.bindings.binding import Binding
from sf_quantum.checking.cwl import types
from sf_quantum.checking.cwl.processes import Process
from sf_quantum.checking.document import Document
from sf_quantum.files import JSON, mapping, parse_json

# largest problem file in bytes that is read for the size of its problem
LARGEST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class ProblemSizes:
    """The numbers of variables of a workflow's problems; 0 if unknown.

    :param settings: the file of inputs, if there is one
    """

    process: Process
    settings: Document | None

    def named(self, binding: Binding) -> int:
        """Return the size from the input that a candidate's ``variables`` names."""
        given = self.settings.content if self.settings is not None else {}
        for config in binding.candidates:
            rules = FilterRules(config).of(binding.path)
            with suppress(LookupError):
                size = self.process.given(f"{binding.path}/{rules.variables}", given)
                if type(size) is int:
                    return size
        return 0

    def smallest(self, binding: Binding) -> int:
        """Return a lower bound of the size of a step's problem.

        A candidate's configuration may name the input with the size. Otherwise the bound is
        the size of the smallest problem file among the workflow's inputs, since the step may
        get any of these files.
        """
        if (size := self.named(binding)) or self.settings is None:
            return size
        folder = self.settings.folder
        sizes = [_variables(value, folder) for value in self.settings.content.values()]
        return min((size for size in sizes if size), default=0)


def _variables(value: JSON, folder: Path) -> int:
    """Return the number of variables in a problem file; 0 for any other value."""
    file = types.file_name(value)
    if not isinstance(file, str) or not file.endswith(".json"):
        return 0
    path = folder / file.removeprefix("file://")
    try:
        if path.stat().st_size > LARGEST_BYTES:
            return 0
        content: JSON = parse_json(path.read_bytes())
    except (OSError, ValueError):  # another check reports the error
        return 0
    size = mapping(mapping(content).get("bqm")).get("num_variables")
    return size if isinstance(size, int) else 0
