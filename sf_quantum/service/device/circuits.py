"""The circuits of a job's payload: one, several, or one with sets of parameter values."""

from __future__ import annotations

from sf_quantum.files import JSON
from sf_quantum.samplers.problem import FieldError


def texts(content: JSON) -> tuple[list[str], int]:
    """Return the OpenQASM texts of a payload, and the number of its circuits.

    :raises FieldError: if the content is not a text, a list of texts, or a program with values
    """
    match content:
        case str():
            return [content], 1
        case [_, *_] if all(isinstance(text, str) for text in content):
            return [str(text) for text in content], len(content)
        case {
            "program": str(text),
            "values": [_, *_] as values,
            **rest,
        } if not rest and all(isinstance(one, dict) for one in values):
            return [text], len(values)
    detail = "expected OpenQASM, a list of such texts, or program and values"
    raise FieldError("circuit", detail)
