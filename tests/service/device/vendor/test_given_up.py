"""A job that its vendor neither ends nor tells about is given up, and the next one starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from sf_quantum import backoff
from sf_quantum.backoff import Backoff
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import OVER
from sf_quantum.service.device.vendor import settings
from sf_quantum.service.device.vendor.device import QpuDevice
from sf_quantum.service.device.vendor.settings import QpuSettings
from sf_quantum.service.domain.settings import ServiceSettings
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.trouble import Kind, Stranger, TroubledProxy
from tests.support.vendor import Vendor
from tests.support.waiting import until

Run: TypeAlias = Callable[..., AbstractContextManager[RunningService]]
MAY_RUN_ON = "it is given up, and may run on at the vendor"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VENDOR", "ACCESS", "STATUS", "GIVEN_UP"):
        monkeypatch.setattr(backoff, name, Backoff(0.01, 0.02))


@pytest.fixture
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendor]:
    with Vendor(tmp_path / "vendor") as vendor:
        monkeypatch.syspath_prepend(vendor.site())
        yield vendor


@pytest.fixture
def proxy(vendor: Vendor) -> Iterator[TroubledProxy]:
    with Stranger() as stranger, TroubledProxy(vendor.url, stranger.url) as proxy:
        yield proxy


@pytest.fixture
def run(vendor: Vendor, proxy: TroubledProxy, tmp_path: Path) -> Run:
    """Run a service in front of the vendor, always with the same state."""

    @contextmanager
    def running(**keys: float) -> Iterator[RunningService]:
        given: dict[str, JSON] = {
            **{"refresh_seconds": 0.02, "poll_seconds": 0.02, "late_seconds": 0.1},
            **{"give_up_seconds": 0.3, **keys},
        }
        config = {**vendor.config, "url": proxy.url}
        settings = QpuSettings.model_validate(
            {"qpu": "acme", "name": "acme", "config": config, **given}
        )
        device = QpuDevice(settings)
        state = tmp_path / "service.sqlite"
        with running_service(
            device, state=state, settings=ServiceSettings(vqpus=4)
        ) as service:
            until(lambda: _status(service) == "online", "it is online")
            yield service
        device.close()

    return running


def _status(service: RunningService) -> JSON:
    return service.ask("GET", "/v1/device").json()["status"]


def submitted(service: RunningService, lease: str, key: str) -> str:
    body: dict[str, JSON] = {
        "problem": example_bqm(),
        "parameters": {"num_reads": 10},
        "idempotency_key": key,
    }
    return str(service.ask("POST", "/v1/jobs", body, lease=lease).json()["id"])


def over(service: RunningService, job: str) -> Mapping[str, JSON]:
    def ended() -> Mapping[str, JSON] | None:
        answer = service.ask("GET", f"/v1/jobs/{job}?wait=5").json()
        return answer if answer["state"] in OVER else None

    return until(ended, f"job {job} is over")


def audited(service: RunningService, action: str) -> list[dict[str, JSON]]:
    answer = service.ask("GET", "/v1/admin/audit")
    assert answer.status == 200, answer.body
    return [one for one in json.loads(answer.body) if one["action"] == action]


def stuck(service: RunningService, vendor: Vendor, lease: str, key: str = "a") -> str:
    """Submit a job that never ends at the vendor, and wait until it runs there."""
    vendor.next_jobs("never ends")
    job = submitted(service, lease, key)
    service.until(lease, "Running")
    return job


@pytest.mark.parametrize("kind", ["refusal", "too long", "error", "cut", "nested"])
def test_a_cancelled_job_is_given_up_and_the_next_starts(
    run: Run, vendor: Vendor, proxy: TroubledProxy, kind: Kind
) -> None:
    with run(ahead=0) as service:
        lease = service.acquire()
        job = stuck(service, vendor, lease)
        proxy.fault(kind, "/jobs/1")
        service.ask("DELETE", f"/v1/jobs/{job}")
        done = over(service, job)
        assert done["state"] == "Cancelled"
        assert MAY_RUN_ON in str(done["note"])
        # as it was expected: a set-up of 1,000 us, and ten shots of 10
        assert done["qpu_seconds"] == pytest.approx(1100e-6)
        (entry,) = audited(service, "give up")
        assert entry["parameters"] == {**entry["parameters"], "job": job}  # type: ignore[dict-item]
        next_job = submitted(service, lease, "b")
        until(lambda: len(vendor.counts()) == 2, "the next one is submitted")
        proxy.heal()
        # it is looked for, and cancelled
        until(lambda: audited(service, "find given up"), "it is found")
        assert over(service, next_job)["state"] == "Completed"
        (micros,) = (
            one.micros
            for one in vendor.counts().values()
            if one.ran == 1 and one.phases == ["stopped"]
        )
        found = service.ask("GET", f"/v1/jobs/{job}").json()
        assert found["qpu_seconds"] == pytest.approx(micros / 1e6)


@pytest.mark.parametrize("kind", ["refusal", "error"])
def test_a_job_that_alone_is_not_told_about_is_given_up(
    run: Run, vendor: Vendor, proxy: TroubledProxy, kind: Kind
) -> None:
    with run(ahead=0) as service:
        lease = service.acquire()
        job = stuck(service, vendor, lease)
        proxy.fault(kind, "/jobs/1", method="GET")
        done = over(service, job)
        assert done["state"] == "Failed"
        assert "only requests about it fail" in str(done["note"])
        assert over(service, submitted(service, lease, "b"))["state"] == "Completed"


def test_failing_requests_about_a_job_leave_the_status_asked(
    run: Run, vendor: Vendor, proxy: TroubledProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It would be given up only after this if they counted.
    monkeypatch.setattr(backoff, "STATUS", Backoff(3600.0, 3600.0))
    with run(ahead=0) as service:
        job = stuck(service, vendor, service.acquire())
        proxy.fault("error", "/jobs/1", method="GET")
        assert "only requests about it fail" in str(over(service, job)["note"])


def test_a_vendor_that_answers_nothing_is_waited_for(
    run: Run, vendor: Vendor, proxy: TroubledProxy
) -> None:
    with run() as service:
        lease = service.acquire()
        job = submitted(service, lease, "a")
        over(service, job)
        vendor.set(held=True)
        job = submitted(service, lease, "b")
        until(lambda: len(vendor.counts()) == 2, "it is there")
        proxy.fault("cut")
        until(lambda: _status(service) == "offline", "it is offline")
        # several times as long as one that is not answered for alone
        asked = len(proxy.asked)
        until(lambda: len(proxy.asked) > asked + 100, "it is asked for long")
        assert service.ask("GET", f"/v1/jobs/{job}").json()["state"] == "Queued"
        vendor.set(held=False)
        proxy.heal()
        assert over(service, job)["state"] == "Completed"


@pytest.mark.parametrize("answer", ["ignored", "refused"])
def test_an_overdue_job_is_given_up(
    run: Run, vendor: Vendor, proxy: TroubledProxy, answer: str
) -> None:
    with run(longest_seconds=0.1, ahead=0) as service:
        lease = service.acquire()
        proxy.fault("other" if answer == "ignored" else "refusal", method="DELETE")
        job = stuck(service, vendor, lease)
        done = over(service, job)
        assert done["state"] == "Failed"
        assert str(done["note"]).startswith("it ran for more than 0.1 s; ")
        assert MAY_RUN_ON in str(done["note"])
        next_job = submitted(service, lease, "b")
        until(lambda: len(vendor.counts()) == 2, "the next one is submitted")
        proxy.heal()
        assert over(service, next_job)["state"] == "Completed"


def test_a_restart_in_the_middle_keeps_the_end(
    run: Run, vendor: Vendor, proxy: TroubledProxy
) -> None:
    with run(give_up_seconds=3600.0) as service:
        lease = service.acquire()
        job = stuck(service, vendor, lease)
        proxy.fault("refusal", "/jobs/1")
        service.ask("DELETE", f"/v1/jobs/{job}")
        until(lambda: ("DELETE", "/jobs/1") in proxy.asked, "it is cancelled")
        # it stops although the cancellation is not done
    with run() as service:
        done = over(service, job)
        assert done["state"] == "Cancelled"
        assert MAY_RUN_ON in str(done["note"])
        proxy.heal()
        until(lambda: audited(service, "find given up"), "it is found")


def test_what_may_have_arrived_is_looked_for_later(
    run: Run, vendor: Vendor, proxy: TroubledProxy
) -> None:
    with run(ahead=0) as service:
        lease = service.acquire()
        vendor.next_jobs("never ends")
        proxy.fault("cut after", "/jobs", method="POST", times=1)
        proxy.fault("refusal", "/jobs?tag=")
        done = over(service, submitted(service, lease, "a"))
        assert (done["state"], len(vendor.counts())) == ("Failed", 1)
        assert MAY_RUN_ON in str(done["note"])
        proxy.heal()
        until(lambda: audited(service, "find given up"), "it is found")
        assert over(service, submitted(service, lease, "b"))["state"] == "Completed"
        assert sorted(one.phases for one in vendor.counts().values()) == [
            ["done"],
            ["stopped"],
        ]


def test_what_is_not_heard_for_long_is_offline(
    run: Run, proxy: TroubledProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "STALE_SECONDS", 0.2)
    with run() as service:
        proxy.fault("continue", "/machine")
        until(lambda: _status(service) == "offline", "it is offline")
        told = service.ask("GET", "/v1/device").json()
        assert "its status is" in str(told["reason"])
        proxy.heal()
        until(lambda: _status(service) == "online", "it is online again")
