"""Which of a schema's alternatives was meant: ``oneOf`` and ``anyOf``.

Alternatives that are mappings are told apart by their *kind*, a key for which each of them
has one value only.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TypeAlias

from sf_quantum.check.document import mapping
from sf_quantum.files import JSON

Schema: TypeAlias = dict[str, JSON]


def likeness(schema: Schema, value: JSON) -> float:
    """How near the kind of a value comes to an alternative's, 0 to 1."""
    given = mapping(value)
    return max(
        (
            SequenceMatcher(None, str(given.get(key)), kind).ratio()
            for key, kind in _kinds(schema).items()
        ),
        default=0.0,
    )


def open_kind(schema: Schema, rivals: list[Schema]) -> Schema:
    """An alternative that also knows the kinds of the others, and so can name them."""
    kinds: Schema = {
        key: {"enum": [_kinds(rival)[key] for rival in rivals if key in _kinds(rival)]}
        for key in _kinds(schema)
    }
    return {**schema, "properties": {**mapping(schema.get("properties")), **kinds}}


def shortened(value: JSON, branches: list[Schema]) -> list[tuple[str, str]]:
    """A kind alone, where the alternative that is meant needs more than that.

    :returns: what is wrong and what would be right, if so
    """
    for branch in branches:
        for key, kind in _kinds(branch).items():
            more = [name for name in required(branch) if name != key]
            if value == kind and more:
                keys = ", ".join([f"{key}: {kind}", *(f"{name}: ..." for name in more)])
                return [(f"{kind} needs {' and '.join(more)}", f"write {{{keys}}}")]
    return []


def rivals(value: JSON, branches: list[Schema]) -> list[tuple[str, str]]:
    """Keys of which only one may be given: ``oneOf`` over nothing but ``required``.

    :returns: what is wrong and what would be right, if so
    """
    given = [
        key
        for branch in branches
        if set(branch) == {"required"}
        for key in required(branch)
        if key in mapping(value)
    ]
    return [(f"{' and '.join(given)} are both given", "keep one")] if given[1:] else []


def required(schema: Schema) -> list[str]:
    """The keys that a schema demands."""
    keys = schema.get("required")
    return [str(key) for key in keys] if isinstance(keys, list) else []


def schemas(value: JSON) -> list[Schema]:
    """The schemas in a list of them."""
    return [mapping(item) for item in value] if isinstance(value, list) else []


def _kinds(schema: Schema) -> dict[str, str]:
    return {
        key: str(mapping(sub)["const"])
        for key, sub in mapping(schema.get("properties")).items()
        if "const" in mapping(sub)
    }
