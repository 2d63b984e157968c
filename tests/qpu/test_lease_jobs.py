"""The QPU jobs of a lease, as a service lists them."""

from __future__ import annotations

import math

import pytest

from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import LeaseJob
from sf_quantum.structs import WrongValue


def test_numbers_that_cannot_be_are_unknown() -> None:
    odd = {"id": "7", "state": None, "submitted": "now", "seconds": -1}
    assert LeaseJob.read({**odd, "qpu_seconds": math.nan}) == LeaseJob("7")


@pytest.mark.parametrize("odd", [{"id": 7}, {"state": []}, {"found": 1}], ids=str)
def test_a_field_of_another_type_is_refused(odd: dict[str, JSON]) -> None:
    with pytest.raises(WrongValue, match=f"^{next(iter(odd))}: expected "):
        LeaseJob.read(odd)


def test_no_eta_is_not_an_eta_that_nobody_can_say() -> None:
    assert LeaseJob.read({}).eta_seconds is None
    assert LeaseJob.read({"eta_seconds": None}).eta_seconds == math.inf
    assert LeaseJob.read({"eta_seconds": 4}).eta_seconds == 4
