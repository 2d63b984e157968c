"""The proxies that lie for a vendor change what they lie about, and nothing else."""

from __future__ import annotations

import pytest

from sf_quantum.files import JSON
from tests.support import lying


@pytest.mark.parametrize("refusal", [{"detail": "busy"}, [], [{"error_msg": "busy"}]])
def test_a_refusal_of_a_submission_gets_no_id(refusal: JSON) -> None:
    change = lying.warden().change("one id")
    assert change is not None
    assert change("POST", "/jobs", refusal) == refusal
    assert change("POST", "/jobs", {"id": 1}) == {"id": 1}
    assert change("POST", "/jobs", refusal) == refusal
    assert change("POST", "/jobs", {"id": 2, "status": "PENDING"}) == {
        "id": 1,
        "status": "PENDING",
    }
