"""Problems that cwl-utils, the parser with which StreamFlow reads CWL, finds in files.

The import of cwl-utils takes a third of a second, so this module is imported only where it is
needed.
"""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

from cwl_utils.parser import (
    Workflow,
    cwl_v1_0,
    cwl_v1_1,
    cwl_v1_2,
    load_document_by_yaml,
)
from cwl_utils.parser.utils import static_checker
from schema_salad.exceptions import SchemaSaladException, ValidationException
from schema_salad.fetcher import DefaultFetcher
from schema_salad.utils import yaml_no_ts

from sf_quantum.checking.cwl import types
from sf_quantum.checking.cwl.processes import (
    CLASSES,
    SCATTER_METHODS,
    Entry,
    Position,
    Process,
)
from sf_quantum.checking.document import Document, FileProblem, nested, suggestion
from sf_quantum.files import KeyPath, mapping

# messages of cwl-utils
INVALID = re.compile(r"invalid field `([^`]*)`, expected one of: (.*)")
MISSING = re.compile(r"missing required field `([^`]*)`")
UNDEFINED = re.compile(r"undefined reference to `([^`]*)`")
MISMATCH = re.compile(
    r"Source '([^']*)' of type (.*?) is incompatible with sink '([^']*)' of type (.*)"
)
# Messages about the alternative forms of a value, which do not state the value's error.
VAGUE = re.compile(
    r"Expected (?!one of)|Value |tried |contains undefined reference to `_:"
)
UNKNOWN = "unknown field"
# valid values of fields, by field
VALUES = {
    "class": CLASSES,
    "scatterMethod": SCATTER_METHODS,
    "linkMerge": ("merge_nested", "merge_flattened"),
    "pickValue": ("first_non_null", "the_only_non_null", "all_non_null"),
    "loadListing": ("no_listing", "shallow_listing", "deep_listing"),
    "outputMethod": ("last", "all"),
}
# Other exceptions with which cwl-utils fails on malformed documents. StreamFlow does not catch
# them, so they end a run.
CRASHES = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError),
    *(TypeError, ValueError),
)
CWLTOOL = "http://commonwl.org/cwltool#"
# requirements of cwltool that need its namespace
EXTENSIONS = ("CUDARequirement", "Loop", "MPIRequirement", "Secrets", "ShmSize")
VERSIONS: dict[str, ModuleType] = {
    "v1.0": cwl_v1_0,
    "v1.1": cwl_v1_1,
    "v1.2": cwl_v1_2,
}


class Files(DefaultFetcher):
    """A fetcher that reads only local files, and assumes that all other URLs exist."""

    def __init__(self) -> None:
        super().__init__({}, None)

    def fetch_text(self, url: str, content_types: list[str] | None = None) -> str:
        if urlsplit(url).scheme != "file":
            raise OSError(url)
        return super().fetch_text(url, content_types)

    def check_exists(self, url: str) -> bool:
        return urlsplit(url).scheme != "file" or super().check_exists(url)


class Parser:
    """Reads the files of a workflow again, with cwl-utils.

    :ivar problems: unknown and missing fields, and other values that cwl-utils rejects
    :ivar faulty: files and key paths of the objects with these problems
    """

    def __init__(self, process: Process) -> None:
        self.problems: list[FileProblem] = []
        self.faulty: set[tuple[str, KeyPath]] = set()
        self._vague: list[FileProblem] = []
        self._parsed: list[tuple[Document, str, list[object]]] = []
        positions: dict[str, list[Position]] = {}
        for position in process.read.values():
            positions.setdefault(position.document.name, []).append(position)
        for read in positions.values():
            self._read(read)
        self.faulty |= {(p.file, p.where[:-1]) for p in self.problems if p.where}

    def rest(self, problems: list[FileProblem]) -> Iterator[FileProblem]:
        """Yield vague errors of files without other problems; if there are none, link errors.

        :param problems: all problems found so far
        """
        files = {problem.file for problem in problems}
        yield from (problem for problem in self._vague if problem.file not in files)
        if not problems:
            tools = {
                Path(document.name).absolute().as_uri(): processes[0]
                for document, _, processes in self._parsed
                if len(processes) == 1 and "$graph" not in document.content
            }
            for document, version, processes in self._parsed:
                for process in processes:
                    yield from _links(document, process, version, tools)

    def _read(self, read: list[Position]) -> None:
        """Read processes of one document with cwl-utils, and note the problems."""
        document = read[0].document
        version = str(document.content.get("cwlVersion"))
        if version not in VERSIONS:
            what = f"StreamFlow does not read version {version}"
            right = f"write one of {', '.join(VERSIONS)}"
            self.problems.append(document.problem(("cwlVersion",), what, right))
            return
        problems = [*_Requirements(document, VERSIONS[version]).check(read)]
        self.problems += problems
        try:
            parsed = _parse(document, version, read)
            self._parsed.append((document, version, parsed))
        except ValidationException as error:
            precise, vague = _sort_problems(document, error)
            lines = {problem.line for problem in problems}
            faulty, explained = _malformed_types(read, precise)
            self.faulty |= {(document.name, where) for where in faulty}
            self.problems += explained
            self.problems += (
                p
                for p in precise
                if p.line not in lines
                and not any(p.where[: len(one)] == one for one in faulty)
            )
            if not precise and not problems and not faulty:
                self._vague += vague
        except OSError:  # a part of the document is not in a local file
            return
        except CRASHES as error:
            self.problems += _crash_problems(document, error)


def _malformed_types(
    read: list[Position], found: list[FileProblem]
) -> tuple[list[KeyPath], list[FileProblem]]:
    """Explain why types are wrong; cwl-utils says for each kind of type why it is not that.

    :param found: problems that cwl-utils has found
    :returns: paths of the inputs and outputs with wrong types, and the problems; a type that
        does not exist is among the problems of the steps
    """
    faulty, problems = [], []
    for position in read:
        for entry in (*position.entries("inputs"), *position.entries("outputs")):
            declared = types.declared(entry.body)
            is_whole = isinstance(entry.body, dict)
            where = (*entry.where, "type") if is_whole else entry.where
            wrong = [*types.malformed(declared, where)]
            is_unknown = any(True for _ in types.unknown(declared, where))
            alternatives = [p for p in found if p.where[: len(where)] == where]
            if not wrong and not is_unknown and len(alternatives) > 1:
                what = "StreamFlow rejects this type"
                wrong = [types.Fault(where, what, "see CWL's documentation")]
            if wrong or is_unknown:
                faulty.append(entry.where)
            problems += [
                position.document.problem(one.where, one.what, one.right)
                for one in wrong
            ]
    return faulty, problems


def _parse(document: Document, version: str, read: list[Position]) -> list[object]:
    """Return the processes of a document, as cwl-utils reads them.

    :param read: positions of the processes that are used; StreamFlow does not read other
        processes of a packed document
    :raises ValidationException: if cwl-utils rejects a process
    :raises OSError: if a part of the document is not in a local file
    """
    path = Path(document.name).absolute()
    content = yaml_no_ts().load(io.StringIO(path.read_text(encoding="utf-8")))
    content.pop("$schemas", None)  # ontologies, which would be fetched from the network
    uri = path.as_uri()
    options = VERSIONS[version].LoadingOptions(fileuri=uri, fetcher=Files())
    graph = content.get("$graph")
    if graph is None:
        return [load_document_by_yaml(content, uri, options)]
    used = sorted({int(p.where[1]) for p in read if p.where[:1] == ("$graph",)})
    for index in used:
        graph[index]["cwlVersion"] = version
    return [load_document_by_yaml(graph[index], uri, options) for index in used]


def _sort_problems(
    document: Document, error: ValidationException, entry: Entry | None = None
) -> tuple[list[FileProblem], list[FileProblem]]:
    """Return an error's precise problems, and its last problem, for use if none is precise."""
    leaves = [leaf for leaf in error.leaves() if leaf.message]
    precise = [
        _problem(document, leaf, entry)
        for leaf in leaves
        if not VAGUE.match(leaf.message)
    ]
    meant = {(p.where[:-1], p.right) for p in precise if p.what == UNKNOWN}
    # If a misspelt field is reported, leave out that the correct field is missing.
    kept = [
        p
        for p in precise
        if (p.where, f"did you mean {p.right.removeprefix('add ')[:-1]}?") not in meant
    ]
    return kept, [_problem(document, leaf, entry) for leaf in leaves[-1:]]


def _crash_problems(document: Document, error: Exception) -> Iterator[FileProblem]:
    """Yield the problems of a document with which cwl-utils, and so StreamFlow, crashes."""
    ids = [
        where
        for where, value in nested(document.content, ())
        if where[-1:] == ("id",) and not isinstance(value, str)
    ]
    for where in ids:
        yield document.problem(where, "the id is not text", "write a name")
    if not ids:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        yield _rejection(document, (), text)


def _links(
    document: Document, process: object, version: str, tools: Mapping[str, object]
) -> Iterator[FileProblem]:
    """Check the links of a workflow and the workflows inside it, as StreamFlow does.

    :param tools: processes that have been read, by URL; cwl-utils would otherwise read them
        again for each link
    """
    if not isinstance(process, Workflow):
        return
    process.cwlVersion = version
    for step in process.steps:
        yield from _links(document, step.run, version, tools)
        if isinstance(step.run, str) and step.run in tools:
            step.run = tools[step.run]
    logger = logging.getLogger("cwl_utils")
    level = logger.level
    logger.setLevel(logging.ERROR)  # warnings may concern correct links
    try:
        static_checker(process)
    except ValidationException as error:
        text = " ".join(str(error).split())
        if match := MISMATCH.search(text):
            yield _mismatch(document, process, *match.groups())
        else:
            yield _rejection(document, (), text)
    except OSError:  # a step's process is not in a local file
        return
    except CRASHES as error:
        yield from _crash_problems(document, error)
    finally:
        logger.setLevel(level)


def _mismatch(
    document: Document,
    process: Workflow,
    source: str,
    given: str,
    sink: str,
    wanted: str,
) -> FileProblem:
    """Return the problem that the types of a link do not match, with the link's line."""
    for step in process.steps:
        outputs = [getattr(output, "id", output) for output in step.out]
        if all(sink in map(_local, ids) for ids in ([i.id for i in step.in_], outputs)):
            what = f"what step {_local(step.id)} runs has an input {sink} and an output {sink}"
            right = (
                "give the two one type, or two names, since StreamFlow confuses them"
            )
            where: KeyPath = ("steps", _local(step.id), "in", sink)
            places = [p for p in document.lines if p[-1:] == (sink,)]
            where = where if where in places else next(iter(places), ())
            return document.problem(where, what, right)
    what = f"the source {source} is {_type(given)}"
    where = next((p for p in document.lines if p and p[-1] == sink), ())
    return document.problem(where, what, f"{_type(wanted)} is expected")


def _local(identifier: str) -> str:
    return identifier.rpartition("#")[2].rpartition("/")[2]


def _type(text: str) -> str:
    """The short form of a type that cwl-utils shows as JSON, with the ids that it has made."""
    try:
        return types.shown(types.read(json.loads(text)))
    except ValueError:
        return text.strip('"')[:80]


def _rejection(document: Document, where: KeyPath, text: str) -> FileProblem:
    what = f"StreamFlow rejects it: {text[:160]}"
    return document.problem(where, what, "see CWL's documentation")


class _Requirements:
    """Checks each requirement against its own class; cwl-utils itself tries all classes."""

    def __init__(self, document: Document, module: ModuleType) -> None:
        self.document, self.module = document, module
        self.known = [
            name
            for name, kind in vars(module).items()
            if "class" in getattr(kind, "attrs", ())
            and name not in (*CLASSES, "File", "Directory", "ProcessGenerator")
        ]

    def check(self, read: list[Position]) -> Iterator[FileProblem]:
        """Check the requirements of processes, and of the steps in them."""
        places: dict[KeyPath, Entry] = {}
        for position in read:
            steps = [
                position.inner(e.body, e.where, "") for e in position.entries("steps")
            ]
            for holder in (position, *steps):
                places |= {entry.where: entry for entry in holder.requirements}
        for entry in places.values():
            yield from self._entry(entry)

    def _entry(self, entry: Entry) -> Iterator[FileProblem]:
        """Check one requirement or hint."""
        if entry.name in ("$import", "$include", "None"):
            return
        key = entry.where[-1]
        given = key if isinstance(key, str) else str(mapping(entry.body).get("class"))
        full = self.document.expanded(given)
        if entry.name in EXTENSIONS and full != f"{CWLTOOL}{entry.name}":
            what = f"{given} is not {CWLTOOL}{entry.name}"
            right = (
                f'write cwltool:{entry.name}, and $namespaces: {{cwltool: "{CWLTOOL}"}}'
            )
            yield self.document.problem(entry.where, what, right)
            return
        kind = getattr(self.module, entry.name, None)
        if entry.name not in self.known or kind is None:
            is_hint = "hints" in entry.where
            near = get_close_matches(entry.name, self.known, n=1, cutoff=0.8)
            what = f"unknown requirement {entry.name}"
            if not is_hint:
                right = suggestion(entry.name, self.known)
                yield self.document.problem(entry.where, what, right)
            elif near:
                yield self.document.remark(
                    entry.where, what, f"did you mean {near[0]}?"
                )
            return
        uri = Path(self.document.name).absolute().as_uri()
        options = self.module.LoadingOptions(fileuri=uri, fetcher=Files())
        content = {**mapping(entry.body), "class": entry.name}
        try:
            kind.fromDoc(content, uri, options)
        except ValidationException as error:
            precise, vague = _sort_problems(self.document, error, entry)
            yield from precise or vague


def _problem(
    document: Document, leaf: SchemaSaladException, entry: Entry | None = None
) -> FileProblem:
    """Return the problem that an error states, at the error's line or inside the entry.

    :param leaf: innermost error
    :param entry: requirement that the error concerns, if any
    """
    text = " ".join(leaf.message.split())
    match = INVALID.search(text) or MISSING.search(text) or UNDEFINED.search(text)
    name = re.split("[#/]", unquote(match[1]))[-1] if match else ""
    places = [
        place
        for place, line in document.lines.items()
        if (entry and place[: len(entry.where)] == entry.where)
        or (leaf.start and line == leaf.start[0])
    ]
    contents = dict(nested(document.content, ()))
    exact = [p for p in places if (p and p[-1] == name) or contents.get(p) == name]
    where = min(exact or places, key=len, default=())
    is_choice = text.startswith("Expected one of") or "valid values" in text
    for place in places if is_choice else ():
        values, value = VALUES.get(str(place[-1]) if place else ""), contents.get(place)
        if values and value not in values:
            what = f"unknown {place[-1]} {value!r}"
            return document.problem(place, what, suggestion(str(value), values))
    if match is None:
        return _rejection(document, where, text)
    if match.re is INVALID:
        right = suggestion(name, re.findall("`([^`]*)`", match[2]))
        return document.problem(where, UNKNOWN, right)
    if match.re is MISSING:
        where = where if not exact else where[:-1]
        return document.problem(where, f"{name} is missing", f"add {name}:")
    if where and (values := VALUES.get(str(where[-1]))):
        what = f"unknown {where[-1]} {name!r}"
        return document.problem(where, what, suggestion(name, values))
    what = f"it refers to {name!r}, which does not exist"
    return document.problem(where, what, "write a name that exists")
