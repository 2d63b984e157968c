"""Lists of jobs: their pages, and their forecasts from one pass over the queue."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.dialects.v1 import jobs as v1
from sf_quantum.service.dialects.warden import routes as warden
from sf_quantum.service.domain.jobs import (
    Forecast,
    Identity,
    Job,
    JobClass,
    LeaseRequest,
    Submission,
)
from sf_quantum.service.domain.settings import PolicyChoice, ServiceSettings
from sf_quantum.service.queue.forecasts import Listed
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.long_work import LongWork
from sf_quantum.service.scheduling.pending import PendingJobs
from sf_quantum.service.scheduling.work import PendingJob
from tests.support.service import example_bqm, running_queue

pytestmark = pytest.mark.devices("sfq", "dwave", "acme")

ADMIN = Identity("root", admin=True)
CLASSES: tuple[JobClass, ...] = ("development", "production", "test")


async def filled(queue: JobQueue, jobs: int) -> list[Job]:
    """Submit jobs of three users, which stay pending."""
    # so that no job starts
    await queue.device_lock.acquire()
    leases = []
    for job_class in CLASSES:
        who = Identity(job_class, admin=False)
        request = LeaseRequest(job_class=job_class, expected_seconds=60)
        leases.append((who, (await queue.leases.acquire(who, request)).id))
    submitted = []
    for number in range(jobs):
        who, lease = leases[number % len(leases)]
        parameters = {"num_reads": 10 + number, "seed": 1, "num_sweeps": 10}
        job = Submission("problem", example_bqm(), parameters, f"job {number}")
        submitted.append((await queue.submit(who, lease, job))[0])
    return submitted


@pytest.mark.parametrize("policy", ["fifo", "classes", "fair-share", "interleave"])
async def test_the_forecasts_of_a_list_come_from_one_pass(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ServiceSettings(vqpus=3, policy=PolicyChoice(policy))
    shown: list[tuple[Job, Forecast | None]] = []
    threads: set[threading.Thread] = set()

    def show(listed: Sequence[Listed]) -> None:
        threads.add(threading.current_thread())
        shown.extend(listed)

    async with running_queue(tmp_path, EmulatedDevice(), settings) as queue:
        jobs = await filled(queue, 9)
        single = [queue.forecasts.of(job) for job in jobs]
        orders = list[int]()
        order = PendingJobs.order

        def counted(pending: PendingJobs) -> Sequence[PendingJob]:
            orders.append(len(pending))
            return order(pending)

        monkeypatch.setattr(PendingJobs, "order", counted)
        monkeypatch.setattr(PendingJobs, "work_ahead", None)
        await queue.reader.page(ADMIN, show)
        queue.device_lock.release()
        monkeypatch.undo()
    assert len(orders) == 1
    assert threading.main_thread() not in threads
    assert [job.id for job, _ in shown] == [job.id for job in jobs]
    for (_, listed), alone in zip(shown, single, strict=True):
        assert listed is not None
        assert alone is not None
        assert listed.position == alone.position
        assert listed.eta_seconds == pytest.approx(alone.eta_seconds, abs=1)


async def test_pages_lead_to_the_first_job(tmp_path: Path) -> None:
    async with running_queue(
        tmp_path, EmulatedDevice(), ServiceSettings(vqpus=3)
    ) as queue:
        submitted = await filled(queue, 5)
        pages = []
        before = None
        while True:
            answer = await v1.jobs(queue, ADMIN, limit=2, before=before)
            listed = json.loads(bytes(answer.body))
            pages.append([job["id"] for job in listed])
            if "link" not in answer.headers:
                break
            before = listed[0]["id"]
            address = f'</v1/jobs?limit=2&before={before}>; rel="next"'
            assert answer.headers["link"] == address
        queue.device_lock.release()
    ids = [job.id for job in submitted]
    assert pages == [ids[3:], ids[1:3], ids[:1]]


async def test_a_list_of_wardens_jobs_has_results_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warden, "RESULT_BYTES", 25)
    async with running_queue(
        tmp_path, EmulatedDevice(), ServiceSettings(vqpus=3)
    ) as queue:
        for job in await filled(queue, 3):
            result = "x" * 10
            queue.store.progress.finish(
                job.number, "Completed", note=None, used=(0, 0), result=result
            ).result()
        answer = await warden.jobs(queue, ADMIN)
        listed: list[JSON] = [job["results"] for job in json.loads(bytes(answer.body))]
        queue.device_lock.release()
    assert listed == [None, "x" * 10, "x" * 10]


async def test_long_work_pauses_for_its_own_time_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    work = LongWork("test")
    waited = 0.2
    # as on a machine that does not get to it
    await work.run(lambda: threading.Event().wait(waited))
    await work.run(lambda: None)
    assert 0 < pauses[0] < waited
