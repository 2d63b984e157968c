"""D-Wave's annealers, with a client that reaches no service."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from dimod import BinaryQuadraticModel

from sf_quantum.qpu.dwave import DWaveEmbedded, DWaveQpu

CONNECTION = {"endpoint": "http://127.0.0.1:1/sapi/v2", "token": "t"}


@pytest.mark.parametrize(("lease", "cancelled"), [("a", ["a"]), (None, [])])
def test_an_interrupted_sampler_cancels_the_problems_of_its_lease_only(
    monkeypatch: pytest.MonkeyPatch, lease: str | None, cancelled: list[str]
) -> None:
    system = pytest.importorskip("dwave.system", reason="the extra dwave is missing")
    child = nullcontext(SimpleNamespace(properties={}))
    monkeypatch.setattr(system, "DWaveSampler", lambda **_: child)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    released: list[str] = []
    monkeypatch.setattr(DWaveEmbedded, "_embedded", interrupted)
    monkeypatch.setattr(DWaveQpu, "release", lambda _, token: released.append(token))
    sampler = DWaveQpu("q", CONNECTION, lease).sampler()
    with pytest.raises(KeyboardInterrupt):
        sampler.sample(BinaryQuadraticModel("BINARY"))
    assert released == cancelled
