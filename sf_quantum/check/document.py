"""A YAML file as StreamFlow reads it, with the line of each key."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, cannot_read

Where: TypeAlias = tuple[str | int, ...]
SHOWN = 12


class Mark(Protocol):
    """A position in a YAML text, counted from 0."""

    line: int
    column: int


class Node(Protocol):
    """A node of ruamel's YAML tree; ``value`` is text, nodes or pairs of nodes."""

    start_mark: Mark
    value: str | list[Node | tuple[Node, Node]]


@dataclass(frozen=True)
class FileProblem:
    """A problem of a file; its text is one line.

    :param line: counted from 1; None if the problem concerns the file as a whole
    :param where: keys and indices from the top of the file
    :param right: how to fix it
    """

    file: str
    line: int | None
    where: Where
    what: str
    right: str

    def __str__(self) -> str:
        file = self.file if self.line is None else f"{self.file}:{self.line}"
        parts = [file, dotted(self.where), f"{self.what}; {self.right}"]
        return " ".join(": ".join(part for part in parts if part).split())


class UnreadableError(InputError):
    """A file that cannot be checked at all."""

    def __init__(self, problem: FileProblem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True)
class Document:
    """A YAML mapping, the file's name as given by the user, and the nodes of its keys."""

    name: str
    content: dict[str, JSON]
    root: Node

    @classmethod
    def read(cls, path: Path, kind: str) -> Document:
        """Read a file as StreamFlow does: ruamel, YAML 1.2, no key twice.

        :param kind: of the file ("StreamFlow file"), for the error message
        :raises UnreadableError: if it is missing, not YAML, empty or not a mapping
        """
        name = str(path)
        try:
            text = path.read_text(encoding="utf-8")
            content = _keys_as_text(YAML(typ="safe", pure=True).load(text))
            root = YAML(typ="safe", pure=True).compose(text)
        except (OSError, UnicodeDecodeError) as error:
            text = str(cannot_read(name, kind, error)).removeprefix(f"{name}: ")
            what, _, right = text.partition("; ")
            raise UnreadableError(FileProblem(name, None, (), what, right)) from error
        except YAMLError as error:
            raise _unreadable(name, *_yaml_trouble(error), kind) from error
        if content is None:
            raise _unreadable(name, None, "the file is empty", kind)
        if not isinstance(content, dict):
            raise _unreadable(name, 1, "the file is not a mapping of keys", kind)
        return cls(name, content, cast(Node, root))

    @property
    def folder(self) -> Path:
        """The folder in which relative paths of the file start."""
        return Path(self.name).parent

    def problem(self, where: Where, what: str, right: str) -> FileProblem:
        """A problem at a key, or at the nearest existing key above it."""
        return FileProblem(self.name, self.line(where), where, what, right)

    def line(self, where: Where) -> int:
        """The line, counted from 1, of a key or of the nearest existing key above it."""
        node, line = self.root, self.root.start_mark.line
        for part in where:
            found = _child(node, part)
            if found is None:
                break
            line, node = found
        return line + 1


def dotted(where: Where) -> str:
    """Write a path of keys and indices: ``bindings[2].target``."""
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in where
    ).removeprefix(".")


def suggestion(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """A suggestion for an unknown name.

    :param cutoff: the required similarity, 0 to 1; lower for paths, of which one missing
        level is a large part
    :returns: the closest known name, or else the known names
    """
    names = sorted(set(known))
    if not names:
        return "none is defined"
    lower = {name.lower(): name for name in reversed(names)}
    if close := difflib.get_close_matches(word.lower(), lower, n=1, cutoff=cutoff):
        return f"did you mean {lower[close[0]]}?"
    more = ", ..." if len(names) > SHOWN else ""
    return f"known: {', '.join(names[:SHOWN])}{more}"


def _unreadable(name: str, line: int | None, what: str, kind: str) -> UnreadableError:
    return UnreadableError(FileProblem(name, line, (), what, f"expected a {kind}"))


def _yaml_trouble(error: YAMLError) -> tuple[int | None, str]:
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return None, "not YAML"
    # for a duplicate key, the rest of ruamel's text is advice to programmers
    why = (error.problem or error.context or "").split(" with value")[0]
    mark = error.problem_mark
    return mark.line + 1, f"not YAML at column {mark.column + 1} ({why})"


def _keys_as_text(value: JSON) -> JSON:
    if isinstance(value, dict):
        return {str(key): _keys_as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_keys_as_text(item) for item in value]
    return value


def _child(node: Node, part: str | int) -> tuple[int, Node] | None:
    if isinstance(node.value, str):
        return None
    for index, item in enumerate(node.value):
        if isinstance(item, tuple):
            key, value = item
            if key.value == part:
                return key.start_mark.line, value
        elif index == part:
            return item.start_mark.line, item
    return None
