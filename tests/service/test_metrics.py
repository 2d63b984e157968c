"""``/metrics``: what is counted, who may read it, and that Prometheus' own tool likes it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as families

from sf_quantum.files import JSON
from sf_quantum.service import metrics
from sf_quantum.service.config import Configuration
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.settings import Faults
from sf_quantum.service.domain.jobs import Lease, Submission
from sf_quantum.service.domain.settings import (
    QualitySettings,
    ServiceSettings,
)
from sf_quantum.service.http.tokens import Tokens, new_token, token_entry
from sf_quantum.service.http.traffic import DURATIONS, Traffic
from sf_quantum.service.queue.observations import Observations
from sf_quantum.service.store.store import Store
from tests.support.service import (
    RunningService,
    UntilInterrupted,
    example_bqm,
    running_service,
)
from tests.support.waiting import until

pytestmark = pytest.mark.devices("sfq", "dwave", "acme")


def told(service: RunningService, **headers: str) -> dict[tuple[str, str], float]:
    """What a scrape says, by name and labels."""
    answer = service.ask("GET", "/metrics", headers=headers)
    assert answer.status == 200
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in families(answer.body.decode())
        for sample in family.samples
    }


def submit(
    service: RunningService, lease: str, key: str, reads: int = 10
) -> dict[str, str]:
    body: dict[str, JSON] = {
        "problem": example_bqm(),
        "parameters": {"num_reads": reads},
        "idempotency_key": key,
    }
    answer = service.ask("POST", "/v1/jobs", body, lease=lease)
    job: dict[str, str] = json.loads(answer.body)
    return job


def acquired(service: RunningService, job_class: str) -> str:
    body: dict[str, JSON] = {"class": job_class}
    return str(service.ask("POST", "/v1/leases", body).json()["id"])


def over(service: RunningService, job: dict[str, str]) -> str:
    answer = service.ask("GET", f"/v1/jobs/{job['id']}?wait=60").json()
    return str(answer["state"])


@pytest.fixture
def promtool() -> str:
    return shutil.which("promtool") or pytest.skip("promtool is not installed")


# gates and a job that fails
@pytest.mark.process
@pytest.mark.devices("sfq")
def test_promtool_finds_nothing_to_say(promtool: str) -> None:
    device = EmulatedDevice(time_scale=0, noise=1, technology="superconducting")
    settings = ServiceSettings(quality=QualitySettings(every_seconds=1e6))
    with running_service(device, settings=settings) as service:
        quality = service.telemetry.quality
        assert quality is not None
        until(lambda: quality.last, "no quality job ended")
        text = service.ask("GET", "/metrics").body
    assert b"sfq_quality_success_ratio 0." in text
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_jobs_are_counted_by_class_and_end() -> None:
    device = EmulatedDevice(time_scale=0, seed=1)
    with running_service(device, vqpus=3) as service:
        jobs = [
            submit(service, acquired(service, name), name)
            for name in ("production", "test", "development")
        ]
        assert [over(service, job) for job in jobs] == ["Completed"] * 3
        counts = told(service)
        for name in ("production", "test", "development"):
            assert counts["sfq_jobs_total", f"{name},Completed"] == 1
            assert counts["sfq_queue_wait_seconds_count", name] == 1
            waits = [
                value
                for (metric, labels), value in counts.items()
                if metric == "sfq_queue_wait_seconds_bucket" and labels.startswith(name)
            ]
            assert waits == sorted(waits)
            assert waits[-1] == 1
        assert counts["sfq_jobs_total", "quality,Completed"] == 0
        assert counts["sfq_leases_held", ""] == counts["sfq_leases_limit", ""] == 3
        used = sum(
            value
            for (name, _), value in counts.items()
            if name == "sfq_qpu_seconds_total"
        )
        assert used == pytest.approx(
            sum(j.qpu_seconds for j in service.queue.store.jobs.latest())
        )


# its runner is the emulated device's
@pytest.mark.devices("sfq")
@pytest.mark.none_ahead
def test_failures_cancellations_and_preemptions_are_counted() -> None:
    device = EmulatedDevice(time_scale=0, runners={"problem": UntilInterrupted()})
    with running_service(device, vqpus=3) as service:
        low, high = acquired(service, "development"), acquired(service, "production")
        first, second = submit(service, low, "a"), submit(service, low, "b")
        service.until(low, "Running")
        counts = told(service)
        assert counts["sfq_queue_jobs", "development"] == 1
        assert counts["sfq_device_state", "busy"] == 1
        service.ask("DELETE", f"/v1/jobs/{second['id']}")
        assert over(service, submit(service, high, "c")) == "Completed"
        assert over(service, first) == "Completed"
        counts = told(service)
        [(begin, end)] = service.queue.observations.interrupted
        assert 0 < end - begin < time.time() - begin < 60
    assert counts["sfq_job_interruptions_total", "development,preempted"] == 1
    assert counts["sfq_jobs_total", "development,Cancelled"] == 1
    assert counts["sfq_jobs_total", "development,Completed"] == 1
    assert counts["sfq_queue_jobs", "development"] == 0
    failing = EmulatedDevice(time_scale=0, faults=Faults(fail=1))
    with running_service(failing) as service:
        lease = service.acquire()
        assert over(service, submit(service, lease, "a")) == "Failed"
        assert told(service)["sfq_jobs_total", "development,Failed"] == 1


# the device of a vendor goes on with its jobs
@pytest.mark.devices("sfq")
def test_jobs_that_a_restart_ends_or_interrupts_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "service.sqlite"
    store = Store(path)
    for key, ends in (("a", True), ("b", False)):
        lease = Lease(
            *(key, "ann", "test", None, None, None, None, None, None),
            opened=1.0,
            expires=None,
        )
        store.leases.add(lease).result()
        asked = Submission("problem", example_bqm(), {"num_reads": 1}, key)
        stored, _ = store.jobs.add(lease, asked, 1.0).result()
        store.progress.start(stored.number).result()
        if ends:
            store.leases.close(key, "released", "cancelled").result()
    store.close()
    with running_service(state=path) as service:
        counts = told(service)
    assert counts["sfq_jobs_total", "test,Cancelled"] == 1
    assert counts["sfq_job_interruptions_total", "test,interrupted"] == 1


def test_busy_seconds_grow_while_a_job_runs_and_states_add_up() -> None:
    now = [0.0]
    observed = Observations(lambda: now[0])
    now[0] = 2.0
    observed.enter("closed")
    now[0] = 5.0
    observed.enter("closed")
    assert observed.seconds == {
        "busy": 0,
        "waiting": 0,
        "idle": 0,
        "held": 0,
        "draining": 0,
        "closed": 3,
        "offline": 2,
    }
    with running_service(EmulatedDevice(technology="superconducting")) as service:
        lease = service.acquire()
        job = submit(service, lease, "a")
        service.until(lease, "Running")
        before = told(service)["sfq_device_busy_seconds_total", ""]
        after = told(service)["sfq_device_busy_seconds_total", ""]
        assert 0 <= before < after < 60
        service.ask("DELETE", f"/v1/jobs/{job['id']}")


# a thousand shots take an annealer no time
@pytest.mark.devices("sfq", "acme")
def test_a_device_whose_jobs_would_run_into_maintenance_is_held() -> None:
    with running_service(EmulatedDevice(technology="neutral-atom")) as service:
        lease = service.acquire()
        soon: dict[str, JSON] = {"starts": time.time() + 60, "ends": time.time() + 900}
        service.ask("POST", "/v1/device/maintenance", soon)
        assert told(service)["sfq_device_state", "idle"] == 1
        job = submit(service, lease, "a", 1000)
        counts = told(service)
        assert counts["sfq_queue_jobs", "development"] == 1
        assert counts["sfq_device_state", "held"] == 1
        assert counts["sfq_device_state", "idle"] == 0
        assert told(service)["sfq_device_state_seconds_total", "held"] > 0
        service.ask("DELETE", f"/v1/jobs/{job['id']}")
        assert told(service)["sfq_device_state", "held"] == 0


def test_a_scrape_reads_nothing_from_the_disk() -> None:
    with running_service(EmulatedDevice(time_scale=0)) as service:
        lease = service.acquire()
        over(service, submit(service, lease, "a"))
        queue, telemetry = service.queue, service.telemetry
    # the file is closed and gone by now: to ask it would fail
    registry = metrics.registered(queue, telemetry, Traffic())
    text = generate_latest(registry).decode()
    assert "sfq_state_free_bytes" not in text
    assert 'sfq_jobs_total{class="development",state="Completed"} 1.0' in text


def test_requests_are_counted_by_route_and_nobody_makes_new_ones() -> None:
    with running_service() as service:
        lease = service.acquire()
        for path in (lease, "x", "y"):
            service.ask("GET", f"/v1/leases/{path}")
        service.ask("GET", "/v1/jobs")
        before = told(service)
        for number in range(20):
            service.ask("GET", f"/made-up/{number}")
            service.ask("LOCK", f"/v1/jobs/{number}")
        after = told(service)
    leases = "/v1/leases/{lease_id}"
    assert before["sfq_http_requests_total", "POST,/v1/leases,2xx"] == 1
    assert before["sfq_http_requests_total", f"GET,{leases},2xx"] == 1
    assert before["sfq_http_requests_total", f"GET,{leases},4xx"] == 2
    assert before["sfq_http_request_seconds_count", leases] == 3
    assert before["sfq_http_request_seconds_bucket", f"+Inf,{leases}"] == 3
    buckets = [
        before["sfq_http_request_seconds_bucket", f"{bound},{leases}"]
        for bound in DURATIONS
    ]
    assert buckets == sorted(buckets)
    assert 0 < before["sfq_http_request_seconds_sum", leases] < 3 * 60
    assert after["sfq_http_requests_total", "GET,other,4xx"] == 20
    assert after["sfq_http_requests_total", "other,/v1/jobs/{job_id},4xx"] == 20
    new = {labels for name, labels in after.keys() - before.keys() if "total" in name}
    assert new == {
        *("GET,other,4xx", "other,/v1/jobs/{job_id},4xx", "GET,/metrics,2xx")
    }


def test_the_disk_and_the_last_failed_write(tmp_path: Path) -> None:
    path = tmp_path / "service.sqlite"
    last = "sfq_state_last_failed_write_timestamp_seconds", ""
    with running_service(state=path) as service:
        service.acquire()
        counts = told(service)
        assert counts["sfq_state_free_bytes", ""] > 0
        log = path.with_name("service.sqlite-wal")
        size = path.stat().st_size + log.stat().st_size
        assert counts["sfq_state_database_bytes", ""] == size
        assert counts[last] == 0
        store = service.queue.store
        store.change(lambda db: db.execute("PRAGMA query_only = ON") and None).result()
        began = time.time()
        with pytest.raises(sqlite3.OperationalError):
            store.change(lambda db: db.execute("DELETE FROM jobs")).result()
        assert began <= told(service)[last] <= time.time()
        store._writer.execute("PRAGMA query_only = OFF")
        assert told(service)[last] < (now := time.time())
        with pytest.raises(sqlite3.OperationalError):
            store.change(lambda db: db.execute("SELECT * FROM nowhere")).result()
        assert now <= told(service)[last]


def tokens(folder: Path) -> tuple[Tokens, dict[str, str]]:
    made = {user: new_token() for user in ("beatrix", "prometheus", "operator")}
    entries = [token_entry(u, made[u], admin=u == "operator") for u in made]
    path = folder / "tokens.yml"
    path.touch(0o600)
    path.write_text(json.dumps(entries))
    headers = {user: f"Bearer {token}" for user, token in made.items()}
    return Tokens(path), headers


@pytest.mark.parametrize(
    ("public", "statuses"), [(True, [200] * 5), (False, [401, 401, 403, 200, 200])]
)
def test_who_may_read(tmp_path: Path, public: bool, statuses: list[int]) -> None:
    known, headers = tokens(tmp_path)
    asked = [{}, {"Authorization": "Bearer no"}] + [
        {"Authorization": value} for value in headers.values()
    ]
    with running_service(authenticate=known, public_metrics=public) as service:
        answers = [service.ask("GET", "/metrics", headers=one) for one in asked]
        assert [answer.status for answer in answers] == statuses


def test_no_user_and_no_secret_is_told(tmp_path: Path) -> None:
    known, headers = tokens(tmp_path)
    user = {"Authorization": headers["beatrix"]}
    with running_service(authenticate=known) as service:
        body: dict[str, JSON] = {"job": "of the moon project"}
        answer = service.ask("POST", "/v1/leases", body, headers=user)
        lease = str(answer.json()["id"])
        text = service.ask("GET", "/metrics").body.decode()
        assert "sfq_leases_held 1.0" in text
        for word in ("beatrix", lease, "moon"):
            assert word not in text


def test_metrics_are_public_by_default_on_this_machine_only() -> None:
    for listen, public in (({}, True), ({"host": "192.0.2.1"}, False)):
        config = Configuration.model_validate({"listen": listen})
        assert config.public_metrics is public
    said = Configuration.model_validate({"metrics": {"public": False}})
    assert not said.public_metrics
    assert said.metrics.users == ["prometheus"]
