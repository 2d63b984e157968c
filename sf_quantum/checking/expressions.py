"""Expressions in CWL: what they refer to, and whether they need JavaScript."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sf_quantum.checking.document import Document, FileProblem, suggestion
from sf_quantum.files import JSON, KeyPath, mapping

JAVASCRIPT = "InlineJavascriptRequirement"
# fields whose text is never evaluated; the other processes are checked on their own
LITERAL = frozenset(
    "doc label id name run steps default baseCommand symbols expressionLib class type "
    "cwlVersion source outputSource loopSource scatter out".split()
)
RUNTIME = ("outdir", "tmpdir", "cores", "ram", "outdirSize", "tmpdirSize", "exitCode")
# what a parameter reference may start with; null is a value of its own
ROOTS = ("inputs", "self", "runtime", "null")
# members of every object of JavaScript
MEMBERS = ("hasOwnProperty", "toString", "propertyIsEnumerable", "constructor")
START = re.compile(r"(?<!\\)\$[({]")
# a parameter reference (CWL v1.2, CommandLineTool, section 3.4)
SEGMENT = r"\.\w+|\['(?:[^'\\]|\\.)*'\]|\[\"(?:[^\"\\]|\\.)*\"\]|\[\d+\]"
REFERENCE = re.compile(rf"\$\((\w+)((?:{SEGMENT})*)\)")
MENTION = re.compile(r"\b(inputs|runtime)(?:\.(\w+)|\[(['\"])([^'\"]+)\3\])")


@dataclass(frozen=True)
class Scope:
    """What the expressions of a process or a step may use.

    :param owner: the process or step, for messages
    :param inputs: their names; ``None`` if not all are known
    :param javascript: whether ``InlineJavascriptRequirement`` is there
    """

    document: Document
    owner: str
    inputs: Collection[str] | None
    javascript: bool

    def check(self, value: JSON, where: KeyPath) -> Iterator[FileProblem]:
        """Check all expressions in a value."""
        for key, item in mapping(value).items():
            if key not in LITERAL and not key.startswith("$"):
                yield from self.check(item, (*where, key))
        for index, item in enumerate(value if isinstance(value, list) else []):
            yield from self.check(item, (*where, index))
        if isinstance(value, str) and (start := START.search(value)):
            yield from self._text(value[start.start() :], where)

    def _text(self, text: str, where: KeyPath) -> Iterator[FileProblem]:
        starts = [match.start() for match in START.finditer(text)]
        found = [REFERENCE.match(text, start) for start in starts]
        if text.count("(") > text.count(")"):
            what, right = f"{text[:40]!r} has no end", "add the closing parenthesis"
            yield self.document.problem(where, what, right)
        elif not self.javascript and None in found:
            what = f"{text[:40]!r} is JavaScript"
            right = f"add {JAVASCRIPT}: {{}} to the requirements"
            yield self.document.problem(where, what, right)
        for match in found if not self.javascript else ():
            if match and match[1] not in ROOTS:
                what = f"{match[0]} starts with none of {', '.join(ROOTS[:3])}"
                right = suggestion(match[1], ROOTS[:3])
                yield self.document.problem(where, what, right)
        for root, plain, _, quoted in dict.fromkeys(MENTION.findall(text)):
            name = plain or quoted
            known = RUNTIME if root == "runtime" else self.inputs
            if known is not None and name not in (*known, *MEMBERS):
                what = f"{root}.{name}: {self.owner} has no input {name}"
                if root == "runtime":
                    what = f"there is no runtime.{name}"
                yield self.document.problem(where, what, suggestion(name, known))
