"""Validation of YAML files against a model: reports all errors, each with its key."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, KeyPath, cannot_read, mapping
from sf_quantum.text import closest, unknown

# messages by pydantic's type of error
_MESSAGES = {
    "bool_type": "expected true or false",
    "dict_type": "expected keys and values",
    "finite_number": "expected a finite number",
    "float_type": "expected a number",
    "frozen_set_type": "expected a list",
    "greater_than": "expected more than {gt:g}",
    "greater_than_equal": "expected {ge:g} or more",
    "int_type": "expected a whole number",
    "less_than_equal": "expected {le:g} or less",
    "list_type": "expected a list",
    "missing": "missing",
    "model_type": "expected keys and values",
    "path_type": "expected a path",
    "string_type": "expected text",
}
#: keys of a StreamFlow file that no other file for sf_quantum has
STREAMFLOW = frozenset(("version", "workflows", "deployments"))
# similarity, from 0 to 1, from which on a key is regarded as misspelt
_MISSPELT = 0.75
_KEY = "[key]"  # last part of pydantic's location if the key itself is invalid


def empty_mapping(content: JSON) -> JSON:
    """Replace a missing value, such as a section with all keys commented out, with ``{}``."""
    return {} if content is None else content


class Section(BaseModel):
    """Part of a file; unknown keys are errors, and text is not converted to numbers.

    Numbers are finite: YAML's ``.inf`` and ``.nan`` are errors.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, content: JSON) -> JSON:
        return empty_mapping(content)


Model = TypeVar("Model", bound=Section)


class ValidationErrors(InputError):
    """All errors of an input.

    :param lines: one line per error
    :param keys: locations of the errors, if known
    """

    def __init__(self, lines: list[str], keys: Sequence[KeyPath] = ()) -> None:
        super().__init__("; ".join(lines))
        self._lines = lines
        self.keys = keys

    @property
    def lines(self) -> list[str]:
        return self._lines


def likeliest(content: Mapping[str, JSON], kinds: Mapping[str, Collection[str]]) -> str:
    """Return the kind of file that best matches the keys of a content.

    A misspelt key counts less, in proportion to its similarity to a key of the kind.

    :param kinds: keys of each kind of file; of equally likely kinds, the first is returned
    """

    def likeness(kind: str) -> float:
        return sum(
            SequenceMatcher(None, key, close[0]).ratio()
            for key in map(str, content)
            if (close := get_close_matches(key, kinds[kind], 1, _MISSPELT))
        )

    return max(kinds, key=likeness)


def validated(
    model: type[Model], content: JSON, name: Callable[[KeyPath, JSON], str]
) -> Model:
    """Validate a file's content.

    :param name: function that formats the location of an error and the value there, which
        is ``None`` if the key itself is invalid
    :raises ValidationErrors: if the content is invalid; it lists all errors
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        errors = _without_misspelt(model, content, error.errors())
        lines = [_line(model, content, details, name) for details in errors]
        raise ValidationErrors(lines, [details["loc"] for details in errors]) from None


def check_private(path: Path) -> None:
    """Reject a file that others can read, or that anyone but its owner can write.

    The file's group may read it, as with TLS keys in Debian and credentials of systemd
    (``LoadCredential=``).

    :raises InputError: if the mode is too open, or the file does not exist
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise cannot_read(path, "a secret", error) from error
    if mode & 0o037:
        raise InputError(f"{path}: mode {mode:04o} is open to others (chmod 600)")


def dotted(path: KeyPath) -> str:
    """Format a location in a file: ``classes.limits.test`` or ``tokens[2].user``."""
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in path
    ).removeprefix(".")


def _without_misspelt(
    model: type[Section], content: JSON, errors: list[ErrorDetails]
) -> list[ErrorDetails]:
    """Leave out the error for a missing key if the error for an unknown key suggests it."""
    meant = {
        (*parents, closest(str(key), _known_keys(model, content, parents)))
        for *parents, key in (
            error["loc"] for error in errors if error["type"] == "extra_forbidden"
        )
    }
    return [
        error
        for error in errors
        if error["type"] != "missing" or error["loc"] not in meant
    ]


def _line(
    model: type[Section],
    content: JSON,
    details: ErrorDetails,
    name: Callable[[KeyPath, JSON], str],
) -> str:
    """Return the line on an error: where it is, and what is wrong."""
    path, value = details["loc"], details["input"]
    if path[-1:] == (_KEY,):
        path, value = path[:-1], None
    # A text where keys are expected may be a credential, so it is not shown.
    if details["type"] in ("extra_forbidden", "dict_type"):
        value = None
    return f"{name(path, value)}: {_message(model, content, details)}"


def _message(model: type[Section], content: JSON, details: ErrorDetails) -> str:
    """Return what is wrong, and for misspelt words what is valid."""
    context = details.get("ctx", {})
    kind, value = details["type"], details["input"]
    if kind == "extra_forbidden":
        *parents, key = details["loc"]
        return unknown("key", str(key), _known_keys(model, content, parents))
    if kind == "literal_error":
        choices = re.findall("'([^']*)'", context["expected"])
        return unknown("value", str(value), choices)
    if kind == "value_error":
        return str(context["error"])
    message = _MESSAGES.get(kind)
    return message.format(**context) if message else details["msg"].lower()


def _known_keys(
    model: type[Section], content: JSON, parents: Sequence[int | str]
) -> list[str]:
    """Return the keys of the section of a model to which a path of keys leads."""
    section: type[BaseModel] | None = model
    for key in parents:
        content = mapping(content).get(str(key))
        if section is not None and key in section.model_fields:
            sections = [*_sections(section.model_fields[str(key)].annotation)]
            # If the annotation has several sections, the content names the type of the
            # section or, for a list, pydantic's location contains the type.
            named = mapping(content).get("type")
            if isinstance(content, list):
                named = next(
                    (parent for parent in parents if parent in map(_type, sections)),
                    None,
                )
            section = next(
                (candidate for candidate in sections if _type(candidate) == named),
                next(iter(sections), None),
            )
    return [*section.model_fields] if section is not None else []


def _sections(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation, such as the models of a list's items."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _sections(inner)


def _type(section: type[BaseModel]) -> JSON:
    field = section.model_fields.get("type")
    return None if field is None else cast("JSON", field.default)
