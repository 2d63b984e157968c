"""The one reader of YAML files, and their writer: YAML 1.2, as StreamFlow reads it.

A file's size, its depth and the number of values that its aliases stand for are bounded:
aliases in a file of a kilobyte could otherwise stand for any number of values.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import cast

from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, KeyPath, cannot_read

# Largest file in bytes: ruamel reads about 200 kB a second.
MAX_BYTES = 16 * 2**20
# Deepest list or mapping; StreamFlow's own reader fails at about 240.
MAX_DEPTH = 100
# Most values that all aliases of a file stand for.
MAX_ALIASED = 100_000
# ruamel's message about a key or an item whose indentation differs from the one before
_MISALIGNED = re.compile(
    r"expected <block end>, but found ('[?-]'|'<block \w+ start>')"
)


class NotYamlError(ValueError):
    """Text that is not YAML, or is beyond the bounds of this reader.

    :param why: what is wrong
    :param line: counted from 1; ``None`` if the whole text is wrong
    :param column: likewise
    """

    def __init__(
        self, why: str, line: int | None = None, column: int | None = None
    ) -> None:
        super().__init__(why if line is None else f"line {line}: {why}")
        self.why, self.line, self.column = why, line, column


class _Constructor(SafeConstructor):
    """Keeps text that looks like a date as text, as CWL's readers do."""


_Constructor.add_constructor(
    "tag:yaml.org,2002:timestamp", lambda _, node: str(node.value)
)


@dataclass(frozen=True)
class Parsed:
    """A document, and where its values are.

    :param content: value of the document; all keys are text
    :param lines: line of each key and item, counted from 1; ``()`` is the document itself
    """

    content: JSON
    lines: dict[KeyPath, int]


def parse(text: str, *, dates: bool = False) -> Parsed:
    """Parse a YAML document.

    :param dates: whether to read dates as ``date``, as StreamFlow does in its own file,
        whose schema then rejects them; else a date is text
    :raises NotYamlError: if the text is not YAML, or is beyond the bounds
    """
    if len(text) > MAX_BYTES:
        raise NotYamlError(f"more than {MAX_BYTES // 2**20} MB")
    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth = MAX_DEPTH
    if not dates:
        yaml.Constructor = _Constructor
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an anchor may be defined twice
            root = yaml.compose(text)
        if root is None:
            return Parsed(None, {})
        _check(root)
        content = _plain(yaml.constructor.construct_document(root), dates=dates)
    except MaxDepthExceededError as error:
        raise _not_yaml(error, f"nested more than {MAX_DEPTH} deep") from error
    except MarkedYAMLError as error:
        raise _not_yaml(error, error.problem or error.context or "") from error
    except YAMLError as error:
        raise NotYamlError(" ".join(str(error).split())) from error
    except NotYamlError:
        raise
    # ruamel raises these for a value that does not fit its tag, such as !!bool maybe, and
    # Python for an integer of 5,000 digits
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise NotYamlError(f"a value cannot be read ({error})") from error
    return Parsed(content, {(): root.start_mark.line + 1, **dict(_lines(root, ()))})


def read(path: Path, kind: str) -> JSON:
    """Read a YAML file.

    :param kind: what the file should be, for the message
    :raises InputError: if it is missing, not YAML, or beyond the bounds
    """
    try:
        return parse(path.read_text(encoding="utf-8")).content
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(path, kind, error) from error
    except NotYamlError as error:
        line = "" if error.line is None else f", line {error.line}"
        raise InputError(f"{path}{line}: not YAML: {error.why}") from error


def dump(content: JSON) -> str:
    """Write YAML: the innermost lists and mappings in one line each."""
    return _dumped(content, flow=None, width=80)


def dump_line(content: JSON) -> str:
    """Write YAML in one line."""
    text = _dumped(content, flow=True, width=cast("int", math.inf))
    return text.removesuffix("...\n").strip()


def _dumped(content: JSON, *, flow: bool | None, width: int) -> str:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.width = flow, width
    # ruamel annotates this attribute as None, the type of its default
    yaml.__dict__["sort_base_mapping_type_on_output"] = False
    yaml.representer.ignore_aliases = lambda _: True
    text = _written(yaml, content)
    if "\x85" in text:  # a line break to YAML's readers, which ruamel does not escape
        yaml.allow_unicode = False
        text = _written(yaml, content)
    return text


def _written(yaml: YAML, content: JSON) -> str:
    stream = io.StringIO()
    yaml.dump(content, stream)
    return stream.getvalue()


def _not_yaml(error: MarkedYAMLError, why: str) -> NotYamlError:
    if _MISALIGNED.match(why):
        why = "its indentation does not fit the lines around it"
    mark = error.problem_mark
    if mark is None:
        return NotYamlError(why)
    return NotYamlError(why, mark.line + 1, mark.column + 1)


def _check(root: Node) -> None:
    """Check the keys, and the number and depth of the values that aliases stand for.

    Merge keys (``<<``) use aliases, so the values that they merge are also bounded.

    :raises MarkedYAMLError: if a key is duplicate or not text, if an alias stands for a
        node that contains it, or if aliases stand for too many or too deep values
    """
    # Number of values and levels of each node, by its id; None while they are counted.
    measures: dict[int, tuple[int, int] | None] = {}
    aliased = 0

    def measure(node: Node) -> tuple[int, int]:
        nonlocal aliased
        if id(node) in measures:
            measured = measures[id(node)]
            if measured is None:
                raise _marked(node, "an alias stands for what contains it")
            aliased += measured[0]
            if aliased > MAX_ALIASED:
                raise _marked(node, f"its aliases stand for over {MAX_ALIASED} values")
            return measured
        measures[id(node)] = None
        parts = [measure(child) for child in _children(node)]
        levels = 1 + max((below for _, below in parts), default=0)
        if levels > MAX_DEPTH:
            raise _marked(
                node, f"nested more than {MAX_DEPTH} deep through its aliases"
            )
        measured = 1 + sum(size for size, _ in parts), levels
        measures[id(node)] = measured
        return measured

    measure(root)


def _children(node: Node) -> list[Node]:
    if isinstance(node, SequenceNode):
        return list(node.value)
    if not isinstance(node, MappingNode):
        return []
    seen = set()
    for key, _ in node.value:
        if not isinstance(key, ScalarNode):
            raise _marked(key, "a key must be text, not a list or a mapping")
        if key.value in seen:
            raise _marked(key, f"duplicate key {key.value!r}")
        seen.add(key.value)
    return [value for _, value in node.value]


def _marked(node: Node, why: str) -> MarkedYAMLError:
    return MarkedYAMLError(problem=why, problem_mark=node.start_mark)


def _plain(value: object, *, dates: bool) -> JSON:
    """Return the value with text for keys; YAML's own types are not JSON."""
    if isinstance(value, dict):
        return {str(key): _plain(item, dates=dates) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, dates=dates) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    if dates and isinstance(value, date):
        return cast("JSON", value)
    raise NotYamlError(f"a value is of YAML's type {type(value).__name__}; write text")


def _lines(node: Node, where: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    """Yield the location and line of each key and item below a node."""
    children: list[tuple[str | int, Node, Node]] = []
    if isinstance(node, MappingNode):
        children = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, SequenceNode):
        children = [(index, item, item) for index, item in enumerate(node.value)]
    for part, marked, child in children:
        yield (*where, part), marked.start_mark.line + 1
        yield from _lines(child, (*where, part))
