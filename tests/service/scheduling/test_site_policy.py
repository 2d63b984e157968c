"""A site's configuration chooses who is next, and the service keeps to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sf_quantum.files import JSON
from tests.support.service import example_bqm
from tests.support.service_process import QpuService

pytestmark = [
    pytest.mark.process,
    pytest.mark.devices("sfq", "dwave", "acme", always=["acme"]),
]

CONFIGURATION = """
policy: {type: fair-share, half_life_seconds: 3600}
shares:
  projects: {climate: 6, chemistry: 3}
user_projects: {ann: [climate], bob: [chemistry]}
vqpus: 4
device: {technology: neutral-atom}
"""


def position(job: JSON) -> JSON:
    assert isinstance(job, dict)
    return job["position"]


@pytest.mark.none_ahead
@pytest.mark.parametrize("restarted", [False, True])
def test_fair_shares_of_a_configuration(tmp_path: Path, restarted: bool) -> None:
    """Of jobs of two minutes, whose order follows from the shares alone."""
    path = tmp_path / "qpu.yml"
    path.write_text(CONFIGURATION)
    service = QpuService(tmp_path / "service", "--config", str(path))
    service.with_tokens("ann")
    service.start()
    try:
        device = service.ask("GET", "/v1/device")
        assert isinstance(device, dict)
        assert device["policy"] == "fair-share"
        leases = {}
        for user in ("operator", "ann", "bob"):
            lease = service.ask("POST", "/v1/leases", {"user": user})
            assert isinstance(lease, dict)
            leases[user] = str(lease["id"])
        jobs = {}
        for name in (
            "operator0",
            *[f"{u}{n}" for u in ("bob", "ann") for n in range(4)],
        ):
            body: dict[str, JSON] = {
                "problem": example_bqm(),
                "parameters": {"num_reads": 1},
                "idempotency_key": name,
            }
            job = service.ask("POST", "/v1/jobs", body, leases[name[:-1]])
            assert isinstance(job, dict)
            jobs[name] = str(job["id"])
        if restarted:
            service.kill()
            service.start()
        shown = {
            name: position(service.ask("GET", f"/v1/jobs/{id_}"))
            for name, id_ in jobs.items()
        }
        order = sorted(shown, key=lambda name: str(shown[name]))
        # two of 6 tenths for each of 3; where they are even, who came first
        assert order == [
            *("operator0", "bob0", "ann0", "ann1"),
            *("bob1", "ann2", "ann3", "bob2", "bob3"),
        ]
    finally:
        service.end()
