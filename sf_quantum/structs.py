"""JSON objects as dataclasses: read once on input, or rejected with a one-line message."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from sf_quantum.files import JSON, integer, is_number
from sf_quantum.text import shortened

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
# function that converts a value of JSON
Reader = Callable[[JSON], object]
# maximum number of characters of a value in a message
_MAX_SHOWN = 60


class WrongValue(ValueError):
    """A wrong value in JSON; the text states the place, the fault and what is expected.

    :param where: path of the field, such as ``jobs[2].state``
    """

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(f"{where}: {what}" if where else what)
        self._what = what
        self._where = where

    def within(self, part: str) -> WrongValue:
        """Return the error with ``part``, a key or an index, put before its path."""
        separator = "." if self._where and not self._where.startswith("[") else ""
        return WrongValue(self._what, f"{part}{separator}{self._where}")


def expected(right: str, value: JSON) -> WrongValue:
    """Return the error for a value where ``right`` (such as ``a list``) is expected."""
    if isinstance(value, dict | list):
        shown = "an object" if isinstance(value, dict) else "a list"
    else:
        shown = json.dumps(value)
    return WrongValue(f"expected {right}, not {shortened(shown, _MAX_SHOWN)}")


def read(kind: type[T], content: JSON, **values: object) -> T:
    """Read an object as a dataclass, whose fields are the keys (``class_`` for ``class``).

    A field's type is a scalar, a ``Literal`` of texts, a dataclass, a list, tuple or ``dict``
    of these, ``JSON``, or ``Annotated`` with the function that reads the value. A field that
    has a default or accepts ``None`` may be missing or ``null``. Other keys are ignored.

    :param values: values of fields that the caller has already read
    :raises WrongValue: if a field is missing, or has another type
    """
    if not isinstance(content, dict):
        raise expected("an object", content)
    for field in _fields(kind):
        if field.name in values:
            continue
        if (value := content.get(field.key)) is not None:
            values[field.name] = _read_inside(field.key, field.read, value)
        elif field.is_nullable:
            values[field.name] = None
        elif field.is_required:
            raise WrongValue("missing", field.key)
    make: Callable[..., T] = kind
    return make(**values)


class _Field(NamedTuple):
    """A field of a dataclass, and how it is read."""

    name: str
    key: str
    read: Reader
    is_required: bool
    is_nullable: bool


@cache
def _fields(kind: type[DataclassInstance]) -> list[_Field]:
    """Return the fields of a class, each with the function that reads its value."""
    # The type JSON is recursive, and some versions of Python cannot resolve it.
    hints = get_type_hints(kind, localns={"JSON": object}, include_extras=True)
    return [
        _Field(
            field.name,
            field.name.removesuffix("_"),
            reader(hints[field.name]),
            required := field.default is field.default_factory is MISSING,
            required
            and types.NoneType in get_args(_without_annotation(hints[field.name])),
        )
        for field in fields(kind)
    ]


def _without_annotation(hint: type) -> type:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def reader(hint: type) -> Reader:
    """Return the function that reads a value of this type, except ``null``."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        read_value: Reader = inner[1]
        return read_value
    if origin is Literal:
        return partial(_literal, inner)
    if origin in (Union, types.UnionType):
        (other,) = [one for one in inner if one is not types.NoneType]
        return reader(other)
    if origin in (list, tuple, frozenset):
        return partial(_list, origin, reader(inner[0]))
    if origin in (dict, Mapping):
        return partial(_dict, reader(inner[1]))
    if is_dataclass(hint):
        return partial(read, hint)
    return _SCALARS[hint]


def _read_inside(part: int | str, reader: Reader, value: JSON) -> object:
    try:
        return reader(value)
    except WrongValue as error:
        name = f"[{part}]" if isinstance(part, int) else shortened(part, _MAX_SHOWN)
        raise error.within(name) from None


def _list(kind: type[list[object]], each: Reader, value: JSON) -> object:
    if not isinstance(value, list):
        raise expected("a list", value)
    return kind(_read_inside(n, each, item) for n, item in enumerate(value))


def _dict(each: Reader, value: JSON) -> object:
    if not isinstance(value, dict):
        raise expected("an object", value)
    return {key: _read_inside(key, each, item) for key, item in value.items()}


def _text(value: JSON) -> str:
    if not isinstance(value, str):
        raise expected("text", value)
    return value


def _literal(words: tuple[str, ...], value: JSON) -> str:
    if value not in words:
        raise expected(" or ".join(map(str, words)), value)
    return str(value)


def _bool(value: JSON) -> bool:
    if not isinstance(value, bool):
        raise expected("true or false", value)
    return value


def whole(value: JSON) -> int:
    """Read a whole number.

    :raises WrongValue: if the value is not a whole number
    """
    if (number := integer(value)) is None:
        raise expected("a whole number", value)
    return number


def number(value: JSON) -> float:
    """Read a number.

    :raises WrongValue: if the value is not one
    """
    if not is_number(value):
        raise expected("a number", value)
    return value


_SCALARS: Mapping[type, Reader] = {
    bool: _bool,
    float: number,
    int: whole,
    object: lambda value: value,
    str: _text,
}
