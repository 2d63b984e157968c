"""A YAML file as StreamFlow reads it, with the line of each key."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sf_quantum import yaml
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, KeyPath, cannot_read, mapping
from sf_quantum.validation import dotted

# largest number of valid names in a message
SHOWN = 12
# minimum similarity of a misspelt key to the valid key, 0 to 1
MISSPELT = 0.8
# minimum similarity of a misspelt file name to the existing name, 0 to 1
NEAR = 0.75


@dataclass(frozen=True)
class FileProblem:
    """A problem in a file, printed as one line.

    :param line: number of the line, from 1; ``None`` if the problem concerns the whole file
    :param where: key path: keys and indices from the top of the file
    :param what: description of the problem
    :param right: how to fix the problem
    :param remark: whether the file can run despite the problem
    """

    file: str
    line: int | None
    where: KeyPath
    what: str
    right: str
    remark: bool = False

    @property
    def key(self) -> str:
        """The location as text, such as ``workflows.main.bindings[0].step``."""
        return dotted(self.where)

    def __str__(self) -> str:
        file = self.file if self.line is None else f"{self.file}:{self.line}"
        kind = "remark" if self.remark else ""
        parts = [file, kind, self.key, f"{self.what}; {self.right}"]
        return " ".join(": ".join(part for part in parts if part).split())


class UnreadableError(InputError):
    """A file that cannot be checked at all."""

    def __init__(self, problem: FileProblem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True)
class Document:
    """A YAML file whose content is a mapping.

    :param name: name of the file, as given by the user
    :param lines: line of each key and item by key path, from 1
    """

    name: str
    content: dict[str, JSON]
    lines: dict[KeyPath, int]

    @classmethod
    def read(cls, path: Path, kind: str, *, dates: bool = False) -> Document:
        """Read a file as StreamFlow does.

        :param kind: noun for the expected file ("StreamFlow file"), for the error message
        :param dates: see :func:`sf_quantum.yaml.parse`
        :raises UnreadableError: if the file is missing, not YAML, empty or not a mapping
        """
        name, line, right = str(path), None, f"expected a {kind}"
        try:
            parsed = yaml.parse(path.read_text(encoding="utf-8"), dates=dates)
            if isinstance(parsed.content, dict):
                return cls(name, parsed.content, parsed.lines)
            line = None if parsed.content is None else 1
            what = f"the file is {'empty' if line is None else 'not a mapping of keys'}"
        except (OSError, UnicodeDecodeError) as error:
            text = str(cannot_read(name, f"a {kind}", error)).removeprefix(f"{name}: ")
            what, _, right = text.partition("; ")
        except yaml.NotYamlError as error:
            line, what = error.line, f"not YAML ({error.why})"
            if line is not None:
                what = f"not YAML at column {error.column} ({error.why})"
        raise UnreadableError(FileProblem(name, line, (), what, right))

    @property
    def folder(self) -> Path:
        """The folder against which relative paths in the file are resolved."""
        return Path(self.name).parent

    def expanded(self, name: str) -> str:
        """Return a name with its prefix expanded according to ``$namespaces``."""
        prefix, colon, rest = name.partition(":")
        base = mapping(self.content.get("$namespaces")).get(prefix)
        return f"{base}{rest}" if colon and isinstance(base, str) else name

    def problem(self, where: KeyPath, what: str, right: str) -> FileProblem:
        """Return a problem at a key; its line is that of the nearest existing key above."""
        above = (where[:length] for length in range(len(where), -1, -1))
        line = next(self.lines[place] for place in above if place in self.lines)
        return FileProblem(self.name, line, where, what, right)

    def remark(self, where: KeyPath, what: str, right: str) -> FileProblem:
        """Return a :meth:`problem` that does not prevent a run."""
        return replace(self.problem(where, what, right), remark=True)

    def unknown(
        self, where: KeyPath, name: str, valid_names: Iterable[str], what: str
    ) -> Iterator[FileProblem]:
        """Yield a problem if the name is not one of the valid names."""
        if name not in valid_names:
            yield self.problem(where, what, suggestion(name, valid_names))


def nested(value: JSON, where: KeyPath) -> Iterator[tuple[KeyPath, JSON]]:
    """Yield the value and all values inside it, each with its key path."""
    yield where, value
    for key, item in mapping(value).items():
        yield from nested(item, (*where, key))
    for index, item in enumerate(value if isinstance(value, list) else []):
        yield from nested(item, (*where, index))


def is_misspelt(key: str, content: Mapping[str, JSON]) -> bool:
    """Return whether a key is missing because it is misspelt.

    The misspelt key is reported, so the missing key need not be reported.
    """
    return key not in content and bool(
        difflib.get_close_matches(key, content, 1, MISSPELT)
    )


def suggestion(word: str, valid_names: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return a suggestion for an unknown name.

    :param cutoff: minimum similarity, 0 to 1; lower for paths, since one missing level is a
        large part of a path
    :returns: a question with the closest valid name; if none is close, a list of the names
    """
    names = sorted(set(valid_names))
    if not names:
        return "none is defined"
    lower = {name.lower(): name for name in reversed(names)}
    if close := difflib.get_close_matches(word.lower(), lower, n=1, cutoff=cutoff):
        return f"did you mean {lower[close[0]]}?"
    more = ", ..." if len(names) > SHOWN else ""
    return f"known: {', '.join(names[:SHOWN])}{more}"


def near_file(path: Path) -> str | None:
    """Return a suggestion for a missing file: a similar name in the same folder, if any."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return None
    near = difflib.get_close_matches(path.name, names, 1, NEAR)
    return f"did you mean {near[0]}?" if near else None
