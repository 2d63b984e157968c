"""Hints of leases, as files, requests and kinds of QPUs have them."""

from __future__ import annotations

from sf_quantum.files import JSON
from sf_quantum.protocol.leases import LeaseHints


def test_hints_are_completed_where_they_say_nothing() -> None:
    own = LeaseHints(expected_seconds=2.0, priority=0)
    others = LeaseHints(expected_seconds=9.0, pattern="balanced", priority=3)
    assert own.completed(others) == LeaseHints(2.0, "balanced", priority=0)
    assert LeaseHints().completed(others) == others


def test_a_request_has_the_fields_that_are_said() -> None:
    hints = LeaseHints(latest_start=9.0, priority=0, job_class="test", max_shots=5)
    assert hints.to_json() == {
        "latest_start": 9.0,
        "priority": 0,
        "class": "test",
        "max_shots": 5,
    }


def test_hints_of_a_file_are_named_as_there() -> None:
    config: dict[str, JSON] = {
        "expectedSeconds": 2,
        "priority": 1,
        "reservation": "r",
        "name": "q",
    }
    hints = LeaseHints.read(config, 9.0)
    assert hints == LeaseHints(2, None, 9.0, 1, "r")
    assert dict(hints.singly()) == {
        "expectedSeconds": LeaseHints(expected_seconds=2),
        "latestStart": LeaseHints(latest_start=9.0),
        "priority": LeaseHints(priority=1),
        "reservation": LeaseHints(reservation="r"),
    }


def test_a_priority_may_have_a_decimal_point() -> None:
    """The schema takes 5.0 for an integer."""
    assert LeaseHints.read({"priority": 5.0}).to_json() == {"priority": 5}


def test_a_hint_of_the_wrong_type_is_none() -> None:
    wrong: dict[str, JSON] = {
        "expectedSeconds": "2",
        "pattern": 1,
        "priority": 1.5,
        "reservation": [],
    }
    assert LeaseHints.read(wrong) == LeaseHints()
