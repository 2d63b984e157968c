"""Leases around jobs, with a QPU that does what the test tells, and no engine."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import pytest
from dimod.core.sampler import Sampler
from streamflow.core.deployment import ExecutionLocation
from streamflow.core.exception import (
    WorkflowDefinitionException,
    WorkflowExecutionException,
)
from streamflow.core.scheduling import AvailableLocation
from streamflow.deployment.connector.local import LocalConnector

from sf_quantum import backoff, deadline, qpu
from sf_quantum.backoff import Backoff
from sf_quantum.connectors import exit_codes, guardian, hints
from sf_quantum.connectors.exit_codes import ExitCodes
from sf_quantum.connectors.hints import JobHints
from sf_quantum.connectors.nodes import NodesConnector
from sf_quantum.connectors.quantum import leases, location
from sf_quantum.connectors.quantum.leases import (
    JobLease,
    LeaseFailure,
    LeasePool,
    LeaseRefused,
    LeaseWait,
)
from sf_quantum.connectors.quantum.running_steps import quantum_steps
from sf_quantum.connectors.rest import RestConnector
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.journal import Journal
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.protocol.tasks import LeaseJob
from sf_quantum.qpu import AuthenticationError, NoLease, Qpu, QpuStatus
from sf_quantum.qpu.leasing import held_leases
from sf_quantum.qpu.leasing.held_leases import (
    AcquireOptions,
    LeaseProblem,
    QpuLoss,
    QpuMonitor,
)
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from tests.support.waiting import SECONDS
from tests.support.waiting import until_async as until

pytestmark = pytest.mark.process

DONE: dict[str, JSON] = {"state": "Completed", "submitted": 1.0, "started": 3.5}


class ToldQpu(Qpu):
    """Keeps account of its leases, and fails when it is told to."""

    type = "told"
    made: list[ToldQpu]
    # raised by the calls to come, one each
    troubles: list[Exception]
    places = 1
    renewal: float | None = None
    silent = False

    def __init__(self, name: str, config: Mapping[str, JSON]) -> None:
        super().__init__(name)
        self.config = dict(config)
        self.held: list[str] = []
        self.opened = 0
        self.refused = 0
        self.renewed: list[str] = []
        self.done: dict[str, list[dict[str, JSON]]] = {}
        self.free = threading.Event()
        self.free.set()
        self.made.append(self)

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, JSON]) -> Self:
        if "url" not in config:
            raise InputError("url: missing")
        return cls(name, config)

    @classmethod
    def from_environment(cls, name: str, environment: Mapping[str, str]) -> Self:
        raise NotImplementedError

    def sampler(self) -> Sampler:
        raise NotImplementedError

    def status(self) -> QpuStatus:
        self.trouble()
        held = len(self.held)
        return QpuStatus(
            self.name, "told", True, "", 5, self.places, held, 0, calibration="c-1"
        )

    def acquire(self, job: str | None = None) -> str:
        self.trouble()
        if not self.free.is_set():
            self.refused += 1
            raise NoLease("all held")
        self.opened += 1
        token = f"secret-{self.opened}"
        self.held.append(token)
        return token

    def renew(self, token: str) -> float | None:
        self.trouble()
        self.renewed.append(token)
        if token not in self.held:
            raise InputError("ended")
        return self.renewal

    def release(self, token: str) -> None:
        self.trouble()
        with suppress(ValueError):
            self.held.remove(token)

    def jobs(self, token: str) -> list[LeaseJob] | None:
        # what a step leaves in the file of its lease stands for its QPU jobs
        jobs = self.done.get(token, [])
        return None if self.silent else [LeaseJob.read(job) for job in jobs]

    def environment(self, token: str) -> dict[str, str]:
        return {f"{self.name}_SFQ_URL": "u", f"{self.name}_TOKEN": token}

    def trouble(self) -> None:
        if self.troubles:
            raise self.troubles.pop(0)


class Step:
    """Runs shell scripts as jobs of a connector."""

    def __init__(self, connector: RestConnector, folder: Path) -> None:
        self.connector = connector
        self.folder = folder

    async def run(self, script: str, job: str = "/solve/0") -> tuple[str, int] | None:
        (location,) = (await self.connector.get_available_locations()).values()
        return await self.connector.run(
            location.location,
            ["sh", "-c", f"'{script}'"],
            workdir=str(self.folder),
            capture_output=True,
            job_name=job,
        )

    @property
    def qpu(self) -> ToldQpu:
        (made,) = ToldQpu.made
        return made


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    ToldQpu.made, ToldQpu.troubles = [], []
    monkeypatch.setattr(ToldQpu, "places", 1)
    monkeypatch.setattr(qpu, "load", lambda _: ToldQpu)
    monkeypatch.setattr(guardian, "current", lambda: Silent())
    monkeypatch.setattr(backoff, "LEASE", Backoff(0.002, 10.0))
    monkeypatch.setattr(held_leases, "RENEWAL_SECONDS", 0.0)


class Silent:
    """A guardian that takes note."""

    told: ClassVar[list[str]] = []

    def hold(self, *words: str) -> None:
        self.told.append(f"hold {words[-1]}")

    def release(self, token: str) -> None:
        self.told.append(f"release {token}")


@pytest.fixture
async def step(tmp_path: Path) -> AsyncIterator[Step]:
    made = _step(tmp_path)
    Silent.told.clear()
    await made.connector.deploy(False)
    yield made
    await made.connector.undeploy(False)
    assert made.qpu.held == []


def _step(folder: Path, **config: str | float) -> Step:
    local = LocalConnector("inner", "/", 2**16)
    config = {"url": "http://127.0.0.1:1", **config}
    connector = RestConnector("my-qpu", str(folder), local, None, **config)  # type: ignore[arg-type]
    return Step(connector, folder)


async def test_a_job_has_a_lease_while_it_runs_and_no_longer(step: Step) -> None:
    told = asyncio.create_task(step.run("env >env; ls -A >files; cat go"))
    go = step.folder / "go"
    os.mkfifo(go)
    await until(lambda: (step.folder / "files").exists())
    assert step.qpu.held == ["secret-1"]
    step.qpu.done["secret-1"] = [{"id": "j", **DONE}]
    await asyncio.to_thread(go.write_text, "gone")
    assert await told == ("gone", 0)
    assert step.qpu.held == []
    assert Silent.told == ["hold secret-1", "release secret-1"]
    variables = dict(
        line.split("=", 1) for line in (step.folder / "env").read_text().splitlines()
    )
    assert variables["QRMI_JOB_QPU_RESOURCES"] == "my_qpu"
    assert variables["QRMI_JOB_QPU_TYPES"] == "told"
    assert variables["QRMI_JOB_ID"] == "/solve/0"
    assert variables["my_qpu_TOKEN"] == "secret-1"
    assert not list(step.folder.glob(".sfq-*"))
    assert ".sfq-" not in (step.folder / "files").read_text()


@pytest.mark.parametrize(
    ("address", "refused"),
    [
        ("http://127.0.0.1:8787/sapi/v2", True),
        ("http://127.0.0.1:8787", True),
        ("http://127.0.0.1:87871/sapi/v2", False),
        ("", False),
    ],
)
def test_a_client_that_knows_no_lease_is_not_run_to_wait_for_it(
    address: str, refused: bool
) -> None:
    lines = location._checks(SfqQpu("q", "http://127.0.0.1:8787/"))
    done = subprocess.run(
        ["sh", "-c", "\n".join([*lines, "echo ran"])],
        env={**os.environ, "DWAVE_API_ENDPOINT": address},
        capture_output=True,
        text=True,
    )
    if refused:
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("DWAVE_API_ENDPOINT is the service of QPU 'q'")
        assert done.stderr.endswith("write clients: true in the deployment's config\n")
    else:
        assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


class Listener:
    """Keeps when the QPU is said to begin jobs."""

    def __init__(self) -> None:
        self.begins: list[float] = []

    def quantum_step_started(self, step: str) -> None:
        assert step == "/solve"

    def quantum_job_submitted(self, step: str, deployment: str, slurm_job: str) -> None:
        raise AssertionError

    def quantum_job_begins(self, step: str, job: str, seconds: float) -> None:
        assert (step, job) == ("/solve", "/solve/0")
        self.begins.append(seconds)

    def quantum_step_ended(self, step: str, *, completed: bool) -> None:
        assert completed


async def test_the_eta_of_a_qpu_job_is_followed_while_it_changes(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sf_quantum.connectors.quantum.leased_jobs.ETA_SECONDS", 0.001)
    listener = Listener()
    monkeypatch.setattr(quantum_steps, "listeners", [listener])
    go = step.folder / "go"
    os.mkfifo(go)
    job = asyncio.create_task(step.run("cat go"))
    queued: dict[str, JSON] = {"id": "j", "state": "Queued"}

    async def told(expected: float) -> None:
        await until(lambda: listener.begins[-1:] == [expected])

    # no QPU job yet, and one whose QPU tells no ETA
    await until(lambda: bool(step.qpu.held))
    step.qpu.done["secret-1"] = [queued]
    # a later one does not count
    step.qpu.done["secret-1"] = [{**queued, "eta_seconds": 40}, {**DONE, "id": "k"}]
    await told(40)
    step.qpu.done["secret-1"] = [{**queued, "eta_seconds": 90.5}]
    await told(90.5)
    # the QPU is closed
    step.qpu.done["secret-1"] = [{**queued, "eta_seconds": None}]
    await told(math.inf)
    with monkeypatch.context() as outage:
        silent = threading.Event()

        def gone(_: str) -> None:
            silent.set()
            raise QpuError("away")

        outage.setattr(step.qpu, "jobs", gone)
        await until(silent.is_set)
    started = time.time() - 5
    step.qpu.done["secret-1"] = [{**queued, "state": "Running", "started": started}]
    await until(lambda: listener.begins[-1] == pytest.approx(-5, abs=SECONDS))
    # another job goes first
    step.qpu.done["secret-1"] = [{**queued, "started": started, "eta_seconds": 7}]
    await told(7)
    step.qpu.done["secret-1"] = [{**DONE, "id": "j"}]
    await asyncio.to_thread(go.write_text, "gone")
    assert await job == ("gone", 0)


async def test_housekeeping_needs_no_lease(step: Step) -> None:
    (location,) = (await step.connector.get_available_locations()).values()
    ran = await step.connector.run(
        location.location, ["echo", "hello"], capture_output=True
    )
    assert ran == ("hello", 0)
    assert step.qpu.opened == 0


async def test_a_job_that_never_used_its_lease_fails(step: Step) -> None:
    with pytest.raises(WorkflowExecutionException, match="never used QPU my_qpu"):
        await step.run("true")


async def test_a_job_that_fails_by_itself_says_nothing_of_leases(step: Step) -> None:
    ran = await step.run("exit 3")
    assert ran is not None
    assert ran[1] == 3


async def test_a_success_code_does_not_replace_the_use_of_a_lease(step: Step) -> None:
    with (
        exit_codes.of_job(ExitCodes(success=[3])),
        pytest.raises(WorkflowExecutionException, match="never used QPU my_qpu"),
    ):
        await step.run("exit 3")


async def test_a_failure_code_0_says_nothing_of_leases(step: Step) -> None:
    with exit_codes.of_job(ExitCodes(failure=[0])):
        assert await step.run("true") == ("", 0)


async def test_a_qpu_that_keeps_no_account_is_believed(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToldQpu, "silent", True)
    assert await step.run("echo done") == ("done", 0)


async def test_a_qpu_that_keeps_no_account_is_in_the_journal(
    step: Step, record: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToldQpu, "silent", True)
    await step.run("true")
    *_, line = record.path.read_text().splitlines()
    told = json.loads(line)
    assert (told["event"], told["qpu"], told["qpu_job"]) == ("qpu", "my_qpu", None)


async def test_nothing_is_submitted_before_the_lease_is_there(step: Step) -> None:
    step.qpu.free.clear()
    job = asyncio.create_task(step.run("touch begun; exit 3"))
    await until(lambda: step.qpu.refused > 1)
    assert not job.done()
    assert not (step.folder / "begun").exists()
    step.qpu.free.set()
    await job
    assert (step.folder / "begun").exists()


async def test_a_job_cancelled_in_the_queue_leaves_no_lease(step: Step) -> None:
    step.qpu.free.clear()
    job = asyncio.create_task(step.run("true"))
    await until(lambda: step.qpu.refused > 0)
    job.cancel()
    step.qpu.free.set()
    with pytest.raises(asyncio.CancelledError):
        await job
    await until(lambda: not step.qpu.held)


async def test_a_job_cancelled_in_mid_work_gives_its_lease_back(step: Step) -> None:
    job = asyncio.create_task(step.run("touch begun; sleep 60"))
    await until(lambda: (step.folder / "begun").exists())
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert step.qpu.held == []


async def test_undeploy_stops_who_waits_and_who_works(tmp_path: Path) -> None:
    step = _step(tmp_path)
    await step.connector.deploy(False)
    works = asyncio.create_task(step.run("touch begun; sleep 60"))
    await until(lambda: (tmp_path / "begun").exists())
    step.qpu.free.clear()
    waits = asyncio.create_task(step.run("true", "/solve/1"))
    await until(lambda: step.qpu.refused > 0)
    await step.connector.undeploy(False)
    assert step.qpu.held == []
    for job in (waits, works):
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job


async def test_patience_ends_with_the_qpus_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = _step(tmp_path, wait=25)
    await step.connector.deploy(False)
    step.qpu.free.clear()
    clock = SimpleNamespace(monotonic=lambda: 10.0 * step.qpu.refused)
    monkeypatch.setattr(deadline, "time", clock)
    with pytest.raises(
        WorkflowExecutionException, match="no lease of QPU my_qpu: all held"
    ):
        await step.run("true")
    assert step.qpu.refused == 3
    await step.connector.undeploy(False)


async def test_a_job_gets_no_lease_after_its_latest_start(tmp_path: Path) -> None:
    step = _step(tmp_path, latestStart="1970-01-01T01:00:09+01:00")
    await step.connector.deploy(False)
    try:
        with pytest.raises(LeaseFailure, match="not granted by 1970-01-01T00:00:09Z"):
            await step.run("true")
        assert step.qpu.opened == 0
        # so a candidate does not count it as a failure
        assert hints.of("/solve/0").waited_out
        # the time of the step goes before that of the deployment
        hints.put("/solve/0", JobHints(LeaseHints(latest_start=time.time() + 600)))
        with pytest.raises(WorkflowExecutionException, match="never used QPU my_qpu"):
            await step.run("true")
    finally:
        hints.discard("/solve/0")
    assert step.qpu.opened == 1
    await step.connector.undeploy(False)


@pytest.fixture
def late() -> Iterator[None]:
    """A job whose wait is over before it comes to its lease."""
    wished = time.monotonic() - 600
    hints.put(
        "/solve/0", JobHints(wait_seconds=600, since=wished, has_alternative=True)
    )
    yield
    hints.discard("/solve/0")


@pytest.mark.usefixtures("late")
async def test_a_job_waits_for_what_is_left_of_its_wait(step: Step) -> None:
    step.qpu.free.clear()
    async with asyncio.timeout(SECONDS):
        with pytest.raises(
            WorkflowExecutionException, match="no lease of QPU my_qpu: all held"
        ):
            await step.run("true")


@pytest.mark.usefixtures("late")
async def test_its_qpu_jobs_wait_for_what_is_left_of_it_too(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[float | None] = []

    def check(watch: QpuMonitor) -> QpuLoss | None:
        if watch.wait_seconds is None:  # before the lease
            return None
        left.append(watch.wait_seconds)
        (step.folder / "looked").touch()
        return QpuLoss(LeaseProblem.QUEUE_WAIT, "q", seconds=600)

    monkeypatch.setattr(QpuMonitor, "check", check)
    with suppress(WorkflowExecutionException):
        await step.run("until [ -e looked ]; do sleep 0.01; done")
    assert left == [0.0]


async def test_trouble_is_borne_and_refusals_are_not(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    await until(
        lambda: step.connector._first_status is None
        or step.connector._first_status.done()
    )
    ToldQpu.troubles = [QpuError("down"), QpuError("down")]
    ran = await step.run("exit 3")
    assert ran is not None
    assert ran[1] == 3
    ToldQpu.troubles = [InputError("not you")]
    with pytest.raises(LeaseRefused, match="no lease of QPU my_qpu: not you"):
        await step.run("true")
    monkeypatch.setattr(AcquireOptions, "trouble_seconds", 0.0)
    ToldQpu.troubles = [QpuError("down for good")] * 9
    request = AcquireOptions("/a/0", trouble_seconds=0.01)
    assert step.connector._access is not None
    leases = await step.connector._access
    with pytest.raises(
        WorkflowExecutionException, match=r"good; given up after 0.01 s"
    ):
        await leases.acquire(request)
    ToldQpu.troubles = []


@pytest.fixture
def revoked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Has the QPU refuse its user from now on."""

    def revoke() -> None:
        def refuse(_: ToldQpu) -> None:
            raise AuthenticationError("token revoked")

        monkeypatch.setattr(ToldQpu, "trouble", refuse)

    monkeypatch.setattr(ToldQpu, "renewal", 0.01)
    monkeypatch.setattr(leases, "POLL_SECONDS", 0.01)
    return revoke


async def test_a_job_ends_when_its_user_is_refused(
    step: Step, revoked: Callable[[], None]
) -> None:
    job = asyncio.create_task(step.run("touch begun; sleep 600"))
    await until(lambda: (step.folder / "begun").exists())
    revoked()
    with pytest.raises(LeaseRefused) as caught:
        await job
    said = "Job /solve/0 lost its lease of QPU my_qpu: token revoked"
    assert str(caught.value) == said
    step.qpu.held.clear()


async def test_a_job_whose_user_is_refused_is_not_tried_again(
    step: Step, revoked: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToldQpu, "renewal", None)
    os.mkfifo(step.folder / "go")
    job = asyncio.create_task(step.run("touch begun; cat go; exit 2"))
    await until(lambda: (step.folder / "begun").exists())
    revoked()
    await asyncio.to_thread((step.folder / "go").write_text, "")
    with pytest.raises(LeaseRefused, match="lost its lease of QPU my_qpu: token rev"):
        await job
    step.qpu.held.clear()


async def test_a_candidate_that_is_refused_is_tried_again(
    step: Step, revoked: Callable[[], None]
) -> None:
    hints.put("/solve/0", JobHints(has_alternative=True))
    os.mkfifo(step.folder / "go")
    job = asyncio.create_task(step.run("touch begun; cat go; exit 2"))
    await until(lambda: (step.folder / "begun").exists())
    revoked()
    await asyncio.to_thread((step.folder / "go").write_text, "")
    with pytest.raises(LeaseFailure, match="lost its lease of QPU my_qpu: token rev"):
        await job
    with pytest.raises(LeaseFailure, match="no lease of QPU my_qpu: token revoked"):
        await step.run("true")
    hints.discard("/solve/0")
    step.qpu.held.clear()


async def test_a_lease_is_renewed_while_it_is_held(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToldQpu, "renewal", 0.01)
    job = asyncio.create_task(step.run("touch begun; sleep 60"))
    await until(lambda: len(step.qpu.renewed) > 3)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    await until(
        lambda: all(thread.name != "sfq-renew" for thread in threading.enumerate())
    )


async def test_a_lease_of_the_run_serves_one_job_after_the_other(
    tmp_path: Path,
) -> None:
    step = _step(tmp_path, lease="run")
    await step.connector.deploy(False)
    for number in (1, 2):
        step.qpu.done["secret-1"] = [{"id": f"{n}", **DONE} for n in range(number)]
        assert await step.run("true", f"/solve/{number}") is not None
        assert step.qpu.held == ["secret-1"]
    # the third does nothing on the QPU: what those before it did is not its own
    with pytest.raises(WorkflowExecutionException, match="never used"):
        await step.run("true", "/solve/3")
    # a job that failed may have left anything: its lease serves no other
    await step.run("exit 1")
    assert step.qpu.held == []
    await step.run("exit 1")
    assert step.qpu.opened == 2
    await step.connector.undeploy(False)


async def test_a_kept_lease_is_not_kept_with_work_left_on_the_qpu(
    tmp_path: Path,
) -> None:
    step = _step(tmp_path, lease="run")
    await step.connector.deploy(False)
    step.qpu.done["secret-1"] = [{"id": "1", "state": "Running"}]
    await step.run("true")
    assert step.qpu.held == []
    await step.connector.undeploy(False)


async def test_a_kept_lease_that_nobody_takes_up_is_given_back(tmp_path: Path) -> None:
    step = _step(tmp_path, lease="run", idle=0.02)
    await step.connector.deploy(False)
    step.qpu.done["secret-1"] = [{"id": "1", **DONE}]
    await step.run("true")
    await until(lambda: not step.qpu.held)
    await step.connector.undeploy(False)


async def test_a_kept_lease_that_ran_out_is_replaced(tmp_path: Path) -> None:
    step = _step(tmp_path, lease="run")
    await step.connector.deploy(False)
    step.qpu.done = {f"secret-{n}": [{"id": f"{n}", **DONE}] for n in (1, 2)}
    await step.run("true")
    step.qpu.held.clear()
    step.qpu.troubles = [InputError("ended")]
    await step.run("true")
    assert step.qpu.held == ["secret-2"]
    await step.connector.undeploy(False)
    assert step.qpu.held == []


async def test_a_kept_lease_whose_user_was_refused_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToldQpu, "renewal", 0.01)
    step = _step(tmp_path, lease="run")
    await step.connector.deploy(False)
    step.qpu.done = {f"secret-{n}": [{"id": f"{n}", **DONE}] for n in (1, 2)}
    await step.run("true")
    # until the token file is replaced
    ToldQpu.troubles.append(AuthenticationError("token revoked"))
    await until(
        lambda: all(thread.name != "sfq-renew" for thread in threading.enumerate())
    )
    assert await step.run("true") is not None
    assert step.qpu.held == ["secret-2"]
    await step.connector.undeploy(False)


async def test_a_service_that_ended_early_is_told_from_a_lazy_job(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: str) -> None:
        step.qpu.held.clear()
        raise QpuError("no answer")

    monkeypatch.setattr(step.qpu, "release", gone)
    with pytest.raises(WorkflowExecutionException, match="it is unknown whether"):
        await step.run("true")
    # the guardian has not been told that it is given back
    assert Silent.told == ["hold secret-1"]


async def test_places_are_the_qpus_as_soon_as_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToldQpu, "places", 5)
    ToldQpu.troubles = [QpuError("not yet")]
    local = LocalConnector("inner", "/", 2**16)
    connector = RestConnector("q", "/", local, None, url="u", vqpus=2)
    await connector.deploy(False)
    (first,) = (await connector.get_available_locations()).values()
    assert (first.name, first.slots) == ("q", 2)
    await until(lambda: connector._slots == 5)
    (then,) = (await connector.get_available_locations()).values()
    assert then.slots == 5
    await connector.undeploy(False)


async def test_places_are_shared_out_among_inner_locations() -> None:
    local = LocalConnector("inner", "/", 2**16)
    nodes = NodesConnector("nodes", "/", local, None, names=["a", "b", "c"])
    connector = RestConnector("q", "/", nodes, None, url="u", vqpus=4)
    locations = await connector.get_available_locations()
    assert [(key, place.slots) for key, place in locations.items()] == [
        *(("a", 2), ("b", 1), ("c", 1)),
    ]
    few = RestConnector("q", "/", nodes, None, url="u", vqpus=1)
    assert [*await few.get_available_locations()] == ["a"]
    ran = await connector.run(
        locations["b"].location, ["echo", "inside"], capture_output=True
    )
    assert ran == ("inside", 0)


@pytest.mark.parametrize("lazy", [True, False])
async def test_files_are_found_from_the_streamflow_file(
    tmp_path: Path, lazy: bool
) -> None:
    file = tmp_path / "streamflow.yml"
    file.touch()
    local = LocalConnector("inner", "/", 2**16)
    connector = RestConnector(
        "q",
        str(tmp_path if lazy else file),
        local,
        None,
        url="u",
        tokenFile="keys/token",
        **{"class": "test"},  # type: ignore[arg-type]
    )
    await connector.deploy(False)
    (made,) = ToldQpu.made
    assert made.config == {
        "url": "u",
        "tokenFile": str(tmp_path / "keys" / "token"),
        "class": "test",
    }
    await connector.undeploy(False)


async def test_a_wrong_configuration_is_refused_at_deployment() -> None:
    local = LocalConnector("inner", "/", 2**16)
    connector = RestConnector("q", "/", local, None, resource="c")
    with pytest.raises(WorkflowDefinitionException, match="Deployment q: url: missing"):
        await connector.deploy(False)


async def test_without_an_inner_location_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local = LocalConnector("inner", "/", 2**16)

    async def none(service: str | None = None) -> dict[str, AvailableLocation]:
        return {}

    monkeypatch.setattr(local, "get_available_locations", none)
    connector = RestConnector("q", "/", local, None, url="u")
    with pytest.raises(
        WorkflowExecutionException, match=r"deployment inner, .* has no location"
    ):
        await connector.get_available_locations()


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "journal")
    made.start("f", [], {})
    yield made
    made.close()


@pytest.mark.parametrize(
    ("left", "has_alternative", "end"),
    [
        (math.inf, False, ""),
        (120.0, False, "; if this lasts 120 s, the attempt fails"),
        (120.0, True, "; if this lasts 120 s, another target is chosen"),
    ],
)
async def test_a_wait_says_how_long_it_lasts_and_what_is_then(
    left: float, has_alternative: bool, end: str, record: Journal
) -> None:
    hints.put("/solve/0", JobHints(has_alternative=has_alternative))
    wait = LeaseWait("q", "/solve/0")
    wait.tell("it is gone", left)
    wait.tell("it is gone", left - 1)
    wait.over("granted")
    hints.discard("/solve/0")
    lines = map(json.loads, record.path.read_text().splitlines()[1:])
    assert [(one["status"], one["reason"]) for one in lines] == [
        ("waiting", f"it is gone{end}"),
        ("granted", "it is gone"),
    ]


async def test_qpu_jobs_are_in_the_journal(step: Step, record: Journal) -> None:
    step.qpu.done["secret-1"] = [
        {"id": "j", "qpu_seconds": 2.0, "seconds": 0.5, "found": True, **DONE}
    ]
    await step.run("true")
    *_, line = record.path.read_text().splitlines()
    told = json.loads(line)
    del told["time"]
    assert told.pop("lease_seconds") == 0
    assert told == {
        "event": "qpu",
        "job": "/solve/0",
        "qpu": "my_qpu",
        "technology": "told",
        "calibration": "c-1",
        "qpu_job": "j",
        "state": "Completed",
        "queued_seconds": 2.5,
        "ran_seconds": 0.5,
        "qpu_seconds": 2.0,
        "found": True,
    }
    assert "secret" not in line


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file be removed: the location is gone by then."""
    run = LocalConnector.run

    async def gone(
        self: LocalConnector,
        location: ExecutionLocation,
        command: list[str],
        **rest: Any,
    ) -> tuple[str, int] | None:
        if command[0] == "rm":
            raise WorkflowExecutionException("ssh: connection lost")
        return await run(self, location, command, **rest)

    monkeypatch.setattr(LocalConnector, "run", gone)


@pytest.mark.usefixtures("cut_off")
async def test_a_location_that_is_gone_keeps_no_lease(step: Step) -> None:
    ran = await step.run("exit 3")
    assert ran is not None
    assert ran[1] == 3
    assert step.qpu.held == []


@pytest.mark.usefixtures("cut_off")
async def test_undeploy_gives_all_back_though_the_location_is_gone(
    tmp_path: Path,
) -> None:
    step = _step(tmp_path)
    await step.connector.deploy(False)
    works = [
        asyncio.create_task(step.run(f"touch begun{n}; sleep 60", f"/solve/{n}"))
        for n in (1, 2)
    ]
    await until(lambda: len(list(tmp_path.glob("begun*"))) == 2)
    await step.connector.undeploy(False)
    assert step.qpu.held == []
    for job in works:
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job


async def test_a_cancel_during_cleanup_gives_the_lease_back(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LocalConnector.run
    removing = asyncio.Event()

    async def slow(
        self: LocalConnector,
        location: ExecutionLocation,
        command: list[str],
        **rest: Any,
    ) -> tuple[str, int] | None:
        if command[0] == "rm":
            removing.set()
            await asyncio.sleep(60)
        return await run(self, location, command, **rest)

    monkeypatch.setattr(LocalConnector, "run", slow)
    job = asyncio.create_task(step.run("true"))
    await removing.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert step.qpu.held == []


async def test_a_lease_whose_account_cannot_be_had_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = _step(tmp_path, lease="run")
    await step.connector.deploy(False)

    def gone(_: str) -> None:
        raise QpuError("no answer")

    monkeypatch.setattr(step.qpu, "jobs", gone)
    with pytest.raises(WorkflowExecutionException, match="it is unknown whether"):
        await step.run("true")
    assert step.qpu.held == []
    await step.connector.undeploy(False)


async def test_a_job_that_is_run_again_finds_its_own_qpu_job(
    tmp_path: Path, record: Journal
) -> None:
    step = _step(tmp_path, lease="run")
    await step.connector.deploy(False)
    step.qpu.done["secret-1"] = [{"id": "1", **DONE}]
    assert await step.run("true", "/solve/0") is not None
    assert await step.run("true", "/solve/0") is not None
    with pytest.raises(WorkflowExecutionException, match="never used"):
        await step.run("true", "/solve/1")
    await step.connector.undeploy(False)
    told = [json.loads(line) for line in record.path.read_text().splitlines()]
    assert [one["job"] for one in told if one["event"] == "qpu"] == ["/solve/0"]


async def test_a_shortfall_of_leases_is_said_once(
    step: Step, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ToldQpu, "shortfall", lambda *_: "class test, not production")
    for _ in range(2):
        await step.run("exit 1")
    assert [one.message for one in caplog.records if one.levelname == "WARNING"] == [
        "Leases of QPU my_qpu have class test, not production"
    ]


async def test_a_job_cancelled_at_a_kept_lease_leaves_it_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = _step(tmp_path, lease="run", idle=600)
    await step.connector.deploy(False)
    step.qpu.done["secret-1"] = [{"id": "1", **DONE}]
    await step.run("true")
    asked, answer = threading.Event(), threading.Event()

    def slow(_: str) -> None:
        asked.set()
        answer.wait(SECONDS)

    monkeypatch.setattr(step.qpu, "renew", slow)
    job = asyncio.create_task(step.run("true", "/solve/1"))
    await until(asked.is_set)
    assert step.connector._access is not None
    (await step.connector._access)._keep_seconds = 0.02
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    answer.set()
    # kept for no longer than any
    await until(lambda: not step.qpu.held)
    await step.connector.undeploy(False)


async def test_a_lease_given_back_under_a_job_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = _step(tmp_path, lease="run")
    await step.connector.deploy(False)
    pool = _pool(step)
    lease = await pool.acquire(AcquireOptions("a"))
    await pool.release(lease)
    assert await pool.settle(lease, "a", keep=True) == []
    # of a kind whose leases do not expire, so that renewing it does not fail
    monkeypatch.setattr(step.qpu, "renew", lambda _: None)
    assert (await pool.acquire(AcquireOptions("b"))).token == "secret-2"
    await step.connector.undeploy(False)


async def test_a_cancelled_release_still_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "THREADS", 1)
    step = _step(tmp_path)
    await step.connector.deploy(False)
    pool = _pool(step)
    assert step.connector._first_status is not None
    await step.connector._first_status
    lease = await pool.acquire(AcquireOptions("a"))
    free = threading.Event()
    busy = asyncio.create_task(pool._in_thread(free.wait))
    await asyncio.sleep(0)
    releasing = asyncio.create_task(pool.release(lease))
    for _ in range(3):  # until the call waits for the only thread
        await asyncio.sleep(0)
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    free.set()
    await busy
    await until(lambda: not step.qpu.held)
    await step.connector.undeploy(False)


async def test_a_job_cancelled_when_its_lease_is_granted_gives_it_back(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    hints.put("/solve/0", JobHints(has_alternative=True))
    acquire, granted = LeasePool.acquire, asyncio.Event()

    async def acquired(pool: LeasePool, request: AcquireOptions) -> JobLease:
        lease = await acquire(pool, request)
        granted.set()
        return lease

    monkeypatch.setattr(LeasePool, "acquire", acquired)
    job = asyncio.create_task(step.run("true"))
    # woken in the same turn of the loop as the job, and before it
    await granted.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    hints.discard("/solve/0")
    assert step.qpu.opened == 1
    assert not step.qpu.held


async def test_a_lease_granted_while_the_pool_closes_is_given_back(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, qpu = _pool(step), step.qpu
    acquiring, grant = asyncio.Event(), threading.Event()
    loop, acquire = asyncio.get_running_loop(), qpu.acquire

    def late(job: str | None = None) -> str:
        loop.call_soon_threadsafe(acquiring.set)
        grant.wait()
        return acquire(job)

    monkeypatch.setattr(qpu, "acquire", late)
    job = asyncio.create_task(pool.acquire(AcquireOptions("a")))
    await acquiring.wait()
    await pool.close()
    grant.set()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert qpu.opened == 1
    assert not qpu.held


def _pool(step: Step) -> LeasePool:
    assert step.connector._access is not None
    return step.connector._access.result()
