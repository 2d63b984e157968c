"""YAML files checked against a model: all errors at once, each with its key."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TypeAlias, TypeVar, cast, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, cannot_read
from sf_quantum.samplers import unknown

Where: TypeAlias = tuple[int | str, ...]
# our messages by the type of pydantic's error
_WORDS = {
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
    "string_type": "expected a text",
}
_KEY = "[key]"  # pydantic ends the location of an error in a key with this


def empty_mapping(content: JSON) -> JSON:
    """Read a key without a value, with all below it commented out, as a mapping."""
    return {} if content is None else content


class Section(BaseModel):
    """Part of a file; unknown keys are errors, and no text is read as a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, content: JSON) -> JSON:
        return empty_mapping(content)


Model = TypeVar("Model", bound=Section)


class Wrong(InputError):
    """All errors of an input.

    :param lines: one per error
    """

    def __init__(self, lines: list[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, of which PyYAML takes the last."""

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, JSON]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(
                    problem="a key is a text, not a list or a mapping",
                    problem_mark=key.start_mark,
                )
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key.value!r} is there twice",
                    problem_mark=key.start_mark,
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, kind: str) -> JSON:
    """Read a YAML file.

    :param kind: what it should be, for the error
    :raises InputError: if it is missing or not YAML
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(path, kind, error) from error
    try:
        # a subclass of SafeLoader
        return cast("JSON", yaml.load(text, _Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML: {error}") from error


def validated(
    model: type[Model], content: JSON, name: Callable[[Where, JSON], str]
) -> Model:
    """Validate a file's content.

    :param name: names the location of an error and the value there, which is ``None``
        where the key itself is wrong
    :raises Wrong: with every error
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        lines = [_line(model, details, name) for details in error.errors()]
        raise Wrong(lines) from None


def check_private(path: Path) -> None:
    """Refuse a file that others may read, or anyone but its owner write.

    Its group may read it: Debian shares TLS keys so, and systemd its credentials
    (``LoadCredential=``).

    :raises InputError: naming the mode, or if there is no such file
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise cannot_read(path, "a secret", error) from error
    if mode & 0o037:
        raise InputError(f"{path}: mode {mode:04o} is open to others (chmod 600)")


def dotted(where: Where) -> str:
    """Format a location in a file: ``classes.limits.test`` or ``tokens[2].user``."""
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in where
    ).removeprefix(".")


def _line(
    model: type[Section], details: ErrorDetails, name: Callable[[Where, JSON], str]
) -> str:
    where, value = details["loc"], details["input"]
    if where[-1:] == (_KEY,):
        where, value = where[:-1], None
    if details["type"] == "extra_forbidden":
        value = None
    return f"{name(where, value)}: {_words(model, details)}"


def _words(model: type[Section], details: ErrorDetails) -> str:
    context = details.get("ctx", {})
    kind, value = details["type"], details["input"]
    if kind == "extra_forbidden":
        *above, key = details["loc"]
        return unknown("key", str(key), _keys(model, tuple(above)))
    if kind == "literal_error":
        choices = re.findall("'([^']*)'", context["expected"])
        return unknown("value", str(value), choices)
    if kind == "value_error":
        return str(context["error"])
    words = _WORDS.get(kind)
    return words.format(**context) if words else details["msg"].lower()


def _keys(model: type[Section], where: Where) -> list[str]:
    """List the keys that are known at a location."""
    here: type[BaseModel] | None = model
    for key in where:
        if here is not None and key in here.model_fields:
            annotation = here.model_fields[str(key)].annotation
            here = next(
                (
                    found
                    for found in (annotation, *get_args(annotation))
                    if isinstance(found, type) and issubclass(found, BaseModel)
                ),
                None,
            )
    return [*here.model_fields] if here is not None else []
