"""Objects of JSON as dataclasses: what is read, what is refused, and with which words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pytest
from hypothesis import given, settings

from sf_quantum import structs
from sf_quantum.files import JSON
from sf_quantum.structs import WrongValue, expected
from tests.support.changed_json import ANY_JSON, changed


def _even(value: JSON) -> int:
    if not isinstance(value, int) or value % 2:
        raise expected("an even number", value)
    return value


@dataclass(frozen=True)
class Inner:
    even: Annotated[int, _even]
    note: str = ""


@dataclass(frozen=True)
class Outer:
    name: str
    class_: int
    inner: Inner
    seconds: float | None
    online: bool = False
    many: tuple[Inner, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    open: dict[str, JSON] | None = None


WHOLE: dict[str, JSON] = {
    "name": "q",
    "class": 5.0,
    "inner": {"even": 2},
    "seconds": 1,
    "online": True,
    "many": [{"even": 4, "note": "n"}],
    "counts": {"01": 3},
    "open": {"any": [None]},
}
LEAST: dict[str, JSON] = {"name": "q", "class": 5, "inner": {"even": 2}}


def test_fields_are_read_by_their_types() -> None:
    inner, many = Inner(2), (Inner(4, "n"),)
    expected = Outer("q", 5, inner, 1, True, many, {"01": 3}, {"any": [None]})
    assert structs.read(Outer, WHOLE) == expected


def test_missing_and_null_fields_have_their_defaults() -> None:
    expected = Outer("q", 5, Inner(2), None)
    assert structs.read(Outer, LEAST) == expected
    optional = dict.fromkeys(WHOLE.keys() - LEAST.keys())
    assert structs.read(Outer, {**optional, **LEAST, "more": 1}) == expected


def test_given_values_are_not_read() -> None:
    read = structs.read(Outer, {**LEAST, "name": 1}, name="given")
    assert read.name == "given"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": None}, "name: missing"),
        ({"name": 1}, "name: expected text, not 1"),
        ({"class": True}, "class: expected a whole number, not true"),
        ({"class": 1.5}, "class: expected a whole number, not 1.5"),
        ({"class": 10**13}, "class: expected a whole number, not 10000000000000"),
        ({"seconds": float("nan")}, "seconds: expected a number, not NaN"),
        ({"online": 1}, "online: expected true or false, not 1"),
        ({"inner": []}, "inner: expected an object, not a list"),
        ({"inner": {"even": 1}}, "inner.even: expected an even number, not 1"),
        ({"many": {}}, "many: expected a list, not an object"),
        ({"many": [{"even": 2}, {}]}, "many[1].even: missing"),
        ({"many": [None]}, "many[0]: expected an object, not null"),
        ({"counts": {"a\n": "1"}}, 'counts.a: expected a whole number, not "1"'),
    ],
)
def test_a_wrong_field_is_named_with_what_is_right(
    change: dict[str, JSON], message: str
) -> None:
    with pytest.raises(WrongValue) as error:
        structs.read(Outer, {**WHOLE, **change})
    assert str(error.value) == message


@settings(deadline=None)
@given(changed(WHOLE) | ANY_JSON)
def test_any_json_is_read_or_refused_in_one_line(content: JSON) -> None:
    message = ""
    try:
        structs.read(Outer, content)
    except WrongValue as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) < 250
