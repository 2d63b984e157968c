"""D-Wave's client and QRMI's, both from PyPI, in one queue at the same time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.service.device.emulator.atoms import runner
from sf_quantum.service.http.tokens import new_token, token_entry
from tests.support.waiting import until
from tests.support.warden_service import SEQUENCE, Service, serving

cloud = pytest.importorskip("dwave.cloud", reason="the extra dwave is not installed")
# a mount of its own, where MUNGE's default socket is the tests' own
pytestmark = [pytest.mark.process, pytest.mark.devices("sfq")]
READS, SHOTS = 200, 100


@pytest.mark.skipif(not runner.available(), reason="pulser-simulation is not installed")
def test_both_in_one_queue(
    alone: list[str],
    munge_socket: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DWAVE_CACHE_HOME", str(tmp_path / "cache"))
    token = new_token()
    tokens = tmp_path / "tokens.yml"
    tokens.touch(0o600)
    tokens.write_text(json.dumps([token_entry("ada", token, admin=False)]))
    config: dict[str, JSON] = {
        # of two kinds of user, each with the credential that its client can make
        "auth": {"mode": "munge", "munge": str(munge_socket), "tokens": str(tokens)},
        "device": {"technology": "annealer", "time_scale": 10, "qubits": 40},
        "vqpus": 2,
    }
    with serving(config, tmp_path) as url:
        service = Service(url, munge_socket, alone)
        stock = service.stock(os.geteuid())
        client = cloud.Client.from_config(endpoint=f"{url}/sapi/v2", token=token)
        try:
            stock("acquire")
            solver = client.get_solver()
            qubit = min(solver.nodes)
            # the one's problems wait for the other's, and the other way round
            first = solver.sample_ising({qubit: 1.0}, {}, num_reads=READS)
            until(lambda: first.remote_status is not None, "the first's acceptance")
            task = stock("task_start", SEQUENCE, str(SHOTS))
            last = solver.sample_ising({qubit: 1.0}, {}, num_reads=READS)
            assert first.sampleset.first.energy == -1.0
            assert last.sampleset.first.energy == -1.0
            stock.until(task, "TaskStatus.Completed")
            counts = json.loads(stock("task_result", task))["counter"]
            assert sum(counts.values()) == SHOTS
        finally:
            client.close()
            service.close()

        jobs = json.loads(service.ask("GET", "/acct/jobs").body)["data"]
        assert [job["shots"] for job in jobs] == [READS, SHOTS, READS]
        assert [job["status"] for job in jobs] == ["DONE"] * 3
        users = [job["user_id"] for job in jobs]
        assert users == ["ada", str(os.geteuid()), "ada"]
        # 18.02 ms and 85.86 us for each read or shot, whoever asks
        assert [job["qpu_seconds"] for job in jobs] == pytest.approx(
            [0.01802 + shots * 85.86e-6 for shots in (READS, SHOTS, READS)]
        )
        told = service.ask("GET", "/v1/leases?closed=true")
        leases = json.loads(told.body)
        assert {lease["user"] for lease in leases} >= {"ada"}
