"""Expressions in CWL: their references, and whether they need JavaScript."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cwl_utils.errors import SubstitutionError
from cwl_utils.expression import scanner

from sf_quantum.checking.cwl.javascript import Scripts
from sf_quantum.checking.document import Document, FileProblem, suggestion
from sf_quantum.files import JSON, KeyPath, mapping

JAVASCRIPT = "InlineJavascriptRequirement"
# Fields whose text is never evaluated, or, as with processes inside a process, is checked
# separately.
LITERAL = frozenset(
    "doc label id name run steps default baseCommand symbols expressionLib class type "
    "cwlVersion source outputSource loopSource scatter out".split()
)
# names after "runtime." (CWL v1.2, CommandLineTool, section 3.4)
RUNTIME = ("outdir", "tmpdir", "cores", "ram", "outdirSize", "tmpdirSize", "exitCode")
# names with which a parameter reference may begin; null is the value null
ROOTS = ("inputs", "self", "runtime", "null")
# members that every object has in JavaScript
MEMBERS = ("hasOwnProperty", "toString", "propertyIsEnumerable", "constructor")
# a parameter reference (CWL v1.2, CommandLineTool, section 3.4)
SEGMENT = r"\.\w+|\['(?:[^'\\]|\\.)*'\]|\[\"(?:[^\"\\]|\\.)*\"\]|\[\d+\]"
REFERENCE = re.compile(rf"\$\((\w+)((?:{SEGMENT})*)\)")
# A use of an input or of runtime. Comments and strings of JavaScript also match, as a whole,
# so that a use inside them is not found.
MENTION = re.compile(
    r"\b(inputs|runtime)(?:\.(\w+)|\[(['\"])([^'\"]+)\3\])"
    r"|//[^\n]*|/\*.*?(?:\*/|\Z)|'(?:[^'\\]|\\.)*(?:'|\\?\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\\?\Z)"
    r"|`(?:[^`\\]|\\.)*(?:`|\\?\Z)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Scope:
    """The names that expressions of a process or a step may use.

    :param owner: noun for the process or step in messages
    :param inputs: names of the inputs of the process or step; ``None`` if some are unknown
    :param javascript: whether ``InlineJavascriptRequirement`` applies
    :param scripts: collection to which expressions in JavaScript are added
    """

    document: Document
    owner: str
    inputs: Collection[str] | None
    javascript: bool
    scripts: Scripts

    def check(self, value: JSON, where: KeyPath) -> Iterator[FileProblem]:
        """Check all expressions in a value."""
        for key, item in mapping(value).items():
            if key not in LITERAL and not key.startswith("$"):
                yield from self.check(item, (*where, key))
        for index, item in enumerate(value if isinstance(value, list) else []):
            yield from self.check(item, (*where, index))
        if isinstance(value, str) and "$" in value:
            yield from self._text(value, where)

    def _text(self, text: str, where: KeyPath) -> Iterator[FileProblem]:
        """Check all expressions in a text."""
        try:
            in_text = [*expressions(text)]
        except SubstitutionError:
            start = text[text.index("$") :]
            what = f"{start[:40]!r} has no end"
            right = "add the closing parenthesis or brace"
            yield self.document.problem(where, what, right)
            return
        for expression in in_text:
            yield from self._expression(expression, where)

    def _expression(self, text: str, where: KeyPath) -> Iterator[FileProblem]:
        """Check an expression's form, and the inputs and parts of ``runtime`` that it uses."""
        reference = REFERENCE.fullmatch(text)
        if not self.javascript and reference is None:
            what = f"{text[:40]!r} is JavaScript"
            right = f"add {JAVASCRIPT}: {{}} to the requirements"
            yield self.document.problem(where, what, right)
        elif not self.javascript and reference and reference[1] not in ROOTS:
            what = f"{text} starts with none of {', '.join(ROOTS[:3])}"
            right = suggestion(reference[1], ROOTS[:3])
            yield self.document.problem(where, what, right)
        elif reference is None:
            self.scripts.add(text, self.document, where)
        mentions = (match.groups() for match in MENTION.finditer(text) if match[1])
        for root, plain, _, quoted in dict.fromkeys(mentions):
            name = plain or quoted
            names = RUNTIME if root == "runtime" else self.inputs
            if names is not None and name not in (*names, *MEMBERS):
                what = f"{root}.{name}: {self.owner} has no input {name}"
                if root == "runtime":
                    what = f"there is no runtime.{name}"
                yield self.document.problem(where, what, suggestion(name, names))


def expressions(text: str) -> Iterator[str]:
    """Yield the expressions in a text, found as cwltool and StreamFlow find them.

    :raises SubstitutionError: if an expression has no end
    """
    while (span := scanner(text)) is not None:
        if text[span[0]] == "$":  # otherwise the match is an escape
            yield text[slice(*span)]
        text = text[span[1] :]
