"""Reading and writing of YAML 1.2, as StreamFlow reads it.

A file's size, its depth and the number of values that its aliases stand for are bounded.
Without the last bound, aliases in a file of a kilobyte could stand for billions of values.
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
# Deepest nesting of lists and mappings; StreamFlow's own reader fails at about 240 levels.
MAX_DEPTH = 100
# Largest number of values that all aliases of a file together stand for.
MAX_ALIASED = 100_000
# ruamel's message if a key or an item is not indented like the previous key or item
_MISALIGNED = re.compile(
    r"expected <block end>, but found ('[?-]'|'<block \w+ start>')"
)


class NotYamlError(ValueError):
    """Text that is not YAML, or is beyond the bounds of this reader.

    :param why: what is wrong
    :param line: line of the error, from 1; ``None`` if the whole text is wrong
    :param column: column of the error, from 1; ``None`` if the whole text is wrong
    """

    def __init__(
        self, why: str, line: int | None = None, column: int | None = None
    ) -> None:
        super().__init__(why if line is None else f"line {line}: {why}")
        self.why, self.line, self.column = why, line, column


class _Constructor(SafeConstructor):
    """Reads a date as text, as CWL's readers do."""


_Constructor.add_constructor(
    "tag:yaml.org,2002:timestamp", lambda _, node: str(node.value)
)


@dataclass(frozen=True)
class Parsed:
    """A document, with the lines of its values.

    :param content: value of the document; all keys are text
    :param lines: line of each key and item, from 1; the key ``()`` is the document itself
    """

    content: JSON
    lines: dict[KeyPath, int]


def parse(text: str, *, dates: bool = False) -> Parsed:
    """Parse a YAML document.

    :param dates: whether to read dates as ``date`` objects instead of text; StreamFlow reads
        its own file so, and its schema then rejects the dates
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
        _check_aliases(root)
        content = _to_json(yaml.constructor.construct_document(root), dates=dates)
    except MaxDepthExceededError as error:
        raise _not_yaml(error, f"nested more than {MAX_DEPTH} deep") from error
    except MarkedYAMLError as error:
        raise _not_yaml(error, error.problem or error.context or "") from error
    except YAMLError as error:
        raise NotYamlError(" ".join(str(error).split())) from error
    except NotYamlError:
        raise
    # ruamel raises these errors for a value that does not match its tag, such as
    # !!bool maybe; Python raises ValueError for an integer of 5,000 digits
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise NotYamlError(f"a value cannot be read ({error})") from error
    return Parsed(
        content, {(): root.start_mark.line + 1, **dict(_line_numbers(root, ()))}
    )


def read(path: Path, kind: str) -> JSON:
    """Read a YAML file.

    :param kind: noun for the file in error messages
    :raises InputError: if the file is missing, not YAML, or beyond the bounds
    """
    try:
        return parse(path.read_text(encoding="utf-8")).content
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(path, kind, error) from error
    except NotYamlError as error:
        line = "" if error.line is None else f", line {error.line}"
        raise InputError(f"{path}{line}: not YAML: {error.why}") from error


def dump(content: JSON) -> str:
    """Format YAML, with each innermost list or mapping on one line."""
    return _dump(content, flow=None, width=80)


def dump_line(content: JSON) -> str:
    """Format YAML on one line."""
    text = _dump(content, flow=True, width=cast("int", math.inf))
    return text.removesuffix("...\n").strip()


def _dump(content: JSON, *, flow: bool | None, width: int) -> str:
    """Return JSON as YAML."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.width = flow, width
    # Set through __dict__ for mypy: ruamel's annotation allows only the default, None.
    yaml.__dict__["sort_base_mapping_type_on_output"] = False
    yaml.representer.ignore_aliases = lambda _: True
    text = _write(yaml, content)
    if "\x85" in text:  # a line break to YAML's readers, which ruamel does not escape
        yaml.allow_unicode = False
        text = _write(yaml, content)
    return text


def _write(yaml: YAML, content: JSON) -> str:
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


def _check_aliases(root: Node) -> None:
    """Check the keys, and the number and depth of the values that aliases stand for.

    Merge keys (``<<``) use aliases, so the values that they merge are also bounded.

    :raises MarkedYAMLError: if a key is a duplicate or not text, if an alias stands for a
        node that contains the alias, or if aliases stand for too many or too deep values
    """
    # Numbers of values and levels of each node, by the node's id; None while being counted.
    measures: dict[int, tuple[int, int] | None] = {}
    aliased = 0

    def measure(node: Node) -> tuple[int, int]:
        """Return the number and depth of the values in a node, with aliases expanded."""
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
    """Return the values inside a node; reject keys that are not text, or occur twice."""
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


def _to_json(value: object, *, dates: bool) -> JSON:
    """Return the value as JSON, with text for keys; reject YAML's other types."""
    if isinstance(value, dict):
        return {str(key): _to_json(item, dates=dates) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_json(item, dates=dates) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    if dates and isinstance(value, date):
        return cast("JSON", value)
    raise NotYamlError(f"a value is of YAML's type {type(value).__name__}; write text")


def _line_numbers(node: Node, where: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    """Yield the location and line of each key and item below a node."""
    children: list[tuple[str | int, Node, Node]] = []
    if isinstance(node, MappingNode):
        children = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, SequenceNode):
        children = [(index, item, item) for index, item in enumerate(node.value)]
    for part, marked, child in children:
        yield (*where, part), marked.start_mark.line + 1
        yield from _line_numbers(child, (*where, part))
