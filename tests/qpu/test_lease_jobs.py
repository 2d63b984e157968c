"""The QPU jobs of a lease, as a service lists them."""

from __future__ import annotations

import math

from sf_quantum.protocol.tasks import LeaseJob


def test_values_that_cannot_be_are_unknown() -> None:
    odd = {"id": 7, "state": None, "submitted": "now", "seconds": -1, "found": 1}
    assert LeaseJob.read({**odd, "qpu_seconds": math.nan}) == LeaseJob("7")


def test_no_eta_is_not_an_eta_that_nobody_can_say() -> None:
    assert LeaseJob.read({}).eta_seconds is None
    assert LeaseJob.read({"eta_seconds": None}).eta_seconds == math.inf
    assert LeaseJob.read({"eta_seconds": 4}).eta_seconds == 4
