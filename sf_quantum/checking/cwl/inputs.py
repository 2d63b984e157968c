"""Checks of the file of inputs against the workflow's inputs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from urllib.parse import unquote

from sf_quantum.checking.cwl import types
from sf_quantum.checking.cwl.processes import Entry, Position, Process
from sf_quantum.checking.document import (
    NEAR,
    Document,
    FileProblem,
    near_file,
    nested,
    suggestion,
)
from sf_quantum.files import JSON, KeyPath, mapping

# Characters that a shell interprets in a path that begins with "/".
SPECIAL = re.compile(r"[\s\"$&'();<>\\`|]")
# scheme with which a URL begins (RFC 3986, section 3.1)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def check(
    settings: Document, process: Process, root: Position
) -> Iterator[FileProblem]:
    """Check the values in the file, and that no required value is missing."""
    inputs = process.inputs
    absent = [name for name in inputs if name not in settings.content]
    for name, value in settings.content.items():
        if name in inputs:
            if (root.document.name, inputs[name].where) in process.faulty:
                continue
            problems = [*_value(settings, inputs[name], value)]
            yield from problems or _files(settings, inputs[name], value, root.document)
        # cwl:requirements, $namespaces and the like are not inputs
        elif not (":" in name or name.startswith("$")):
            yield _unknown_input(settings, name, inputs, absent)
    for name in absent:
        body = inputs[name].body
        if (root.document.name, inputs[name].where) in process.faulty:
            continue
        near = difflib.get_close_matches(name, settings.content, 1, NEAR)
        if not types.is_optional(body) and not (near and near[0] not in inputs):
            kind = types.shown(types.read(types.declared(body)))
            right = f"add {name}: (its type is {kind})"
            yield settings.problem((), f"the input {name} is missing", right)


def _unknown_input(
    settings: Document, name: str, inputs: Collection[str], absent: Collection[str]
) -> FileProblem:
    """Return the problem, or the remark, that the workflow has no such input."""
    what = "the workflow has no such input"
    if near := difflib.get_close_matches(name, absent, 1, NEAR):
        return settings.problem((name,), what, f"did you mean {near[0]}?")
    ignored = f"{what}, StreamFlow ignores it"
    return settings.remark((name,), ignored, suggestion(name, inputs))


def _value(settings: Document, entry: Entry, value: JSON) -> Iterator[FileProblem]:
    if value is None and "default" in mapping(entry.body):
        return
    declared = types.read(types.declared(entry.body))
    if fault := types.fault(value, declared, (entry.name,)):
        yield settings.problem(fault.where, fault.what, fault.right)


def _files(
    settings: Document, entry: Entry, value: JSON, workflow: Document
) -> Iterator[FileProblem]:
    """Check the fields of files, and the files' format if the input declares one."""
    wanted = mapping(entry.body).get("format")
    for where, item in nested(value, (entry.name,)):
        content = mapping(item)
        kind = content.get("class")
        if not isinstance(kind, str) or kind not in types.FILES:
            continue
        # the check of the type does not look into a value of type Any
        if fault := types.fault(item, types.read(kind), where):
            yield settings.problem(fault.where, fault.what, fault.right)
        for key in content:
            if key not in types.FILE_FIELDS[kind] and ":" not in key:
                right = suggestion(key, types.FILE_FIELDS[kind])
                yield settings.problem((*where, key), "unknown key", right)
        inside = {"secondaryFiles", "listing"} & {*where}
        named = isinstance(wanted, str) and not wanted.startswith("$")
        if kind != "File" or inside or not named:
            continue
        given = content.get("format")
        if given is None:
            right = f"add format: {wanted}, which the workflow expects"
            yield settings.problem(where, "the file has no format", right)
        elif "$schemas" not in workflow.content:
            # StreamFlow reads the inputs with the workflow's namespaces
            full = workflow.expanded(settings.expanded(str(given)))
            if full != workflow.expanded(str(wanted)):
                what, right = f"the format is {given}", f"{wanted} is expected"
                yield settings.problem((*where, "format"), what, right)


def missing_files(
    document: Document, value: JSON, place: KeyPath
) -> Iterator[FileProblem]:
    """Find files and folders in a value that do not exist, or have the wrong class."""
    for where, item in nested(value, place):
        kind = mapping(item).get("class")
        file = types.file_name(item)
        if kind not in types.FILES or not isinstance(file, str) or "://" in file[5:]:
            continue
        if "://" in file and not file.startswith("file://"):
            continue
        plain = file.removeprefix("file://")
        names = [plain, unquote(plain)]
        name = next((n for n in names if (document.folder / n).exists()), None)
        if name is not None and (read := _misread(name)):
            what = f"{name!r} names the file {read!r} to StreamFlow"
            right = "rename it; it may have neither % nor tabs or line breaks"
            yield document.problem(where, what, right)
            continue
        if _SCHEME.match(plain) and name == plain:
            what = f"StreamFlow takes {plain!r} for a URL, since it begins as one"
            yield document.problem(where, what, f"write ./{plain}")
            continue
        path = document.folder / (name or plain)
        if name is None:
            right = near_file(path) or "a relative path starts at this file"
            yield document.problem(where, f"{file}: no such file", right)
        elif path.is_dir() != (kind == "Directory"):
            other = "Directory" if path.is_dir() else "File"
            right = f"write class: {other}, or name a {str(kind).lower()}"
            yield document.problem(where, f"{file} is not a {kind}", right)


def _misread(name: str) -> str | None:
    """Return the name as StreamFlow misreads it; ``None`` if it reads the name correctly."""
    read = re.sub(r"[\t\n\r]", "", unquote(name))
    return None if read == name else read


def named(special: str) -> str:
    """Return the text with which a message names one or more special characters."""
    return "a space" if special.isspace() else special or "no character"
