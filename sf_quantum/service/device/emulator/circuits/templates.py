"""Templates: the common text of circuits that differ only in angles.

A loop sends the same circuit repeatedly, with other angles; its template is read once.
In a template, an identifier replaces each number that is the whole angle of a gate, outside
definitions and blocks. The identifier is the same operand as the number, so a text and its
template have the same meaning. If this is in doubt, the text has no template.
"""

from __future__ import annotations

import math
import re

#: identifier that replaces a number in a template, followed by its index
HOLE = "_sfq_angle_"
# Maximum number of holes: a template with more holes takes longer to read than the text.
MOST_HOLES = 1000
_HEAD = re.compile(r"\s*OPENQASM\s+3(?:\.\d+)?\s*;")
# Comments of one line; IQM's dialect begins each text with one. If such a comment may be
# inside a string or a comment of several lines, the text has no template.
_COMMENT = re.compile(r"//[^\r\n]*")
# comments of several lines, annotations, modifiers, pragmas, and characters that only Python
# regards as digits or blanks
_DOUBTFUL = re.compile(rf"/\*|[@#']|[^\t\n\r -~π]|{HOLE}")
_INCLUDED = '"stdgates.inc"'
# Numbers, and multiples and fractions of pi, which Qiskit's exporter writes in this form. A
# quotient of integers does not match, as OpenQASM drops its remainder.
_NUMBER = (
    r"(?:(-)\s*)?(?:((?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)"
    r"|(?:(\d+)\s*\*\s*)?pi(?:\s*/\s*(\d+))?)"
)
_ANGLE = re.compile(rf"\s*{_NUMBER}\s*")
# A gate with angles: text before the angles, with the gate's name; angles; other text.
_CALL = re.compile(r"(\s*(\w+)\s*\()([^()]*)(\)\s*[\w$][\w\s\[\],$]*)")
_PARTS = re.compile(r"([;{}])")
# words that begin other statements with brackets
_OTHERS = frozenset("if while for switch return gphase".split())


def template_of(text: str) -> tuple[str, tuple[float, ...]]:
    """Return a text's template, and the numbers that it replaces.

    :returns: the text itself, and no numbers, if it has no template
    """
    bare = _COMMENT.sub("", text)
    if not _HEAD.match(bare) or _DOUBTFUL.search(bare):
        return text, ()
    if bare.count('"') != 2 * bare.count(_INCLUDED):
        return text, ()
    parts, depth = _PARTS.split(bare), 0
    angles: list[float] = []
    for n in range(0, len(parts) - 1, 2):
        part, end = parts[n], parts[n + 1]
        if depth == 0 and end == "{" and not part.lstrip().startswith("gate "):
            return text, ()
        if depth == 0 and end == ";":
            parts[n] = _replaced(part, angles)
        depth += (end == "{") - (end == "}")
    if not angles or len(angles) > MOST_HOLES or not all(map(math.isfinite, angles)):
        return text, ()
    return "".join(parts), tuple(angles)


def _replaced(statement: str, angles: list[float]) -> str:
    """Replace the numbers among the angles of a statement, if it is a gate; collect them."""
    call = _CALL.fullmatch(statement)
    if call is None or call[2] in _OTHERS:
        return statement
    given = call[3].split(",")
    for n, one in enumerate(given):
        if (match := _ANGLE.fullmatch(one)) is not None:
            given[n] = f"{HOLE}{len(angles)}"
            angles.append(_value(match))
    return f"{call[1]}{','.join(given)}{call[4]}"


def _value(match: re.Match[str]) -> float:
    sign, number, factor, divisor = match.groups()
    if number is not None:
        value = float(number)
    else:  # the parser computes in this order; another order may round differently
        below = float(divisor or 1)
        value = float(factor or 1) * math.pi / below if below else math.nan
    return -value if sign else value
