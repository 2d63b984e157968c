"""One large request does not keep the others waiting."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.net.transport import Client
from tests.support.service import example_bqm
from tests.support.service_process import QpuService
from tests.support.suspending import suspended
from tests.support.waiting import SECONDS, until

pytestmark = pytest.mark.process

INTERACTIONS = 250_000


@pytest.fixture
def service(tmp_path: Path) -> Iterator[QpuService]:
    """A service that takes large bodies, and whose QPU takes its time."""
    config = tmp_path / "qpu.yml"
    config.write_text("limits: {body_mib: 32}\n")
    made = QpuService(
        *(
            tmp_path / "qpu",
            "--config",
            str(config),
            "--vqpus",
            "2",
            "--qubits",
            "5000",
        ),
        *("--time-scale", "100"),
    )
    made.start()
    yield made
    made.kill()


def large() -> dict[str, JSON]:
    """A complete problem of about 8 MB."""
    bqm = example_bqm()
    variables = 1000
    pairs = [(i, j) for i in range(variables) for j in range(i)][:INTERACTIONS]
    bqm["num_variables"] = variables
    bqm["variable_labels"] = [*range(variables)]
    bqm["linear_biases"] = [0.5] * variables
    bqm["num_interactions"] = len(pairs)
    bqm["quadratic_biases"] = [1 / (1 + number) for number in range(len(pairs))]
    bqm["quadratic_head"] = [head for head, _ in pairs]
    bqm["quadratic_tail"] = [tail for _, tail in pairs]
    return bqm


def test_others_are_answered_while_a_large_job_comes(service: QpuService) -> None:
    busy = service.occupy()  # so that the large one only waits
    lease = service.lease()
    body: dict[str, JSON] = {"problem": large(), "idempotency_key": "large"}
    assert len(json.dumps(body)) > 7_000_000
    client = Client(service.url, {"X-SFQ-Lease": lease})
    before = {child.pid for child in service.children()}
    with ThreadPoolExecutor(1) as pool:
        submitting = pool.submit(
            client.request, "POST", "/v1/jobs", body, timeout_seconds=SECONDS
        )
        # what reads it is held up, and so would be all that waited for it
        reader = until(
            lambda: next((c for c in service.children() if c.pid not in before), None),
            "a process that reads the large job",
        )
        with suspended(reader):
            service.ask("GET", "/v1/health")
            service.ask("GET", f"/v1/leases/{lease}")
            assert not submitting.done()
        assert submitting.result().status == 201
    service.release(lease)
    service.release(busy)
