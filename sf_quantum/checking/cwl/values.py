"""The values that a workflow's ports get from the file of inputs and from defaults."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import PurePosixPath

from sf_quantum.checking.cwl import types
from sf_quantum.checking.cwl.processes import Process
from sf_quantum.checking.document import Document, FileProblem
from sf_quantum.files import JSON, KeyPath, mapping


class Values:
    """The values of ports that are known before a run.

    :param settings: the file of inputs, if there is one
    :param bound: ports with a binding: their data is on a target
    """

    def __init__(
        self, process: Process, settings: Document | None, bound: Collection[str]
    ) -> None:
        self._process = process
        self._settings = settings
        self._content = settings.content if settings else {}
        self._bound = bound

    def find(self, port: str) -> tuple[Document, KeyPath, JSON] | None:
        """Return a port's value from the settings or a default, with its file and key path."""
        defaults, chain = self._process.defaults, self._process.chain(port)
        # Results of steps and of expressions are not known before a run.
        if chain[-1] not in self._process.taken - self._process.computed:
            return None
        name = chain[-1].removeprefix("/")
        given = self._content.get(name)
        if self._settings and given is not None and name in self._process.inputs:
            return self._settings, (name,), given
        matches = (
            defaults[chain_port]
            for chain_port in reversed(chain)
            if chain_port in defaults
        )
        return next(matches, None)

    def missing(self) -> Iterator[FileProblem]:
        """Find optional inputs that have no value, but are linked to a port that needs one."""
        process = self._process
        empty = {
            f"/{name}"
            for name, entry in process.inputs.items()
            if self._content.get(name) is None and f"/{name}" not in self._bound
            # Missing required inputs are reported by the check of the file of inputs.
            and types.is_optional(entry.body) and "default" not in mapping(entry.body)
        }
        needed = {
            port
            for port, body in process.declared.items()
            if not types.is_optional(body)
        } & process.links.keys()
        for port in sorted(needed):
            chain = process.chain(port)
            if chain[-1] not in empty or needed & {*chain[1:]}:
                continue
            if any(self._is_filled(chain_port) for chain_port in chain):
                continue
            name, step = chain[-1].removeprefix("/"), port.rpartition("/")[0]
            kind = types.shown(types.read(types.declared(process.declared[port])))
            what = f"{name} has no value, and {step} needs one ({kind})"
            right = f"add {name} to the file of inputs, or a default here"
            document, where = process.links[port]
            yield document.problem(where, what, right)
        root = process.root
        for entry in root.entries("outputs") if root else []:
            source = mapping(entry.body).get("outputSource")
            if root and f"/{source}" in empty and not types.is_optional(entry.body):
                what = f"{source} has no value, and the output {entry.name} needs one"
                right = f"add {source} to the file of inputs, or a default"
                where = (*entry.where, "outputSource")
                yield root.document.problem(where, what, right)

    def unequal(self) -> Iterator[FileProblem]:
        """Find steps whose scattered lists differ in length, if known before a run."""
        process = self._process
        for step in process.dotproducts:
            lengths = {}
            for name in step.scattered:
                port = f"{step.path}/{name}"
                if not self._is_certain(step.path, process.chain(port)[1:]):
                    continue
                with suppress(LookupError):
                    if isinstance(value := process.given(port, self._content), list):
                        lengths[name] = len(value)
            if len({*lengths.values()}) > 1:
                shown = ", ".join(f"{name} {size}" for name, size in lengths.items())
                what = f"the lists of step {step.path} differ in length: {shown}"
                right = "make them equally long, or use another scatterMethod"
                yield step.document.problem((*step.where, "scatter"), what, right)

    def _is_certain(self, step: str, ports: list[str]) -> bool:
        """Return whether a step certainly runs, and gets whole values of ports, not items."""
        above = {str(folder) for folder in PurePosixPath(step).parents}
        return not (above | {*ports}) & self._process.guarded

    def _is_filled(self, port: str) -> bool:
        """Return whether a port may get another value than its source's, or may need none."""
        process = self._process
        above = {str(folder) for folder in PurePosixPath(port).parents} | {port}
        is_made = port in process.computed or port in process.defaults
        return is_made or bool(above & process.guarded)
