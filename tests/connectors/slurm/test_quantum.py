"""The QPUs of ``sfq.slurm``'s services, without Slurm: what wraps a job, what is asked."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, MutableSequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from streamflow.core.data import StreamWrapper
from streamflow.core.deployment import ExecutionLocation
from streamflow.core.exception import (
    WorkflowDefinitionException,
    WorkflowExecutionException,
)
from streamflow.deployment.connector.local import LocalConnector

from sf_quantum import backoff
from sf_quantum.backoff import Backoff
from sf_quantum.connectors import exit_codes, hints
from sf_quantum.connectors.exit_codes import ExitCodes
from sf_quantum.connectors.hints import JobHints
from sf_quantum.connectors.quantum.leases import LeaseFailure, LeasePool, LeaseRefused
from sf_quantum.connectors.slurm import quantum
from sf_quantum.connectors.slurm.quantum import QpuUse, ServiceQpus
from sf_quantum.connectors.slurm.queue import SlurmQueue
from sf_quantum.connectors.slurm.sbatch_options import holder_options, words
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.slurm.transport.controller import Commands
from sf_quantum.connectors.slurm.transport.login import LoginNode
from sf_quantum.connectors.slurm.transport.spool_shell import SpoolShell
from sf_quantum.files import JSON
from sf_quantum.journal import Journal
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.protocol.tasks import LeaseJob
from sf_quantum.qpu import selection
from sf_quantum.qpu.leasing import account
from sf_quantum.qpu.leasing.held_leases import AcquireOptions
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support.journals import read
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.waiting import SECONDS, until_async

pytestmark = pytest.mark.process

BIN = Path(sys.executable).parent
LINE = "cd {folder} && sfq solve --problem problem.json --output 'it'\"'\"'s out' --reads 5"
JOB = LeaseJob("1", "Completed", found=False)


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(EmulatedDevice(time_scale=0)) as running:
        yield running


@pytest.fixture
def definitions(tmp_path: Path) -> Path:
    """A site's file with two QPUs, one of them none of this deployment's."""
    return _define(tmp_path, a="unix:/nowhere/a", other="unix:/nowhere/other")


@pytest.fixture
def reachable(tmp_path: Path, service: RunningService) -> Path:
    """A site's file with one QPU that answers."""
    return _define(tmp_path, a=service.url)


def _define(folder: Path, **urls: str) -> Path:
    resources: list[JSON] = [
        {"name": name, "type": "sfq", "environment": {"SFQ_URL": url}}
        for name, url in urls.items()
    ]
    file = folder / "qrmi_config.json"
    file.write_text(json.dumps({"resources": resources}))
    return file


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    connector = LocalConnector("host", str(tmp_path), 2**16)
    (found,) = (await connector.get_available_locations()).values()
    yield (made := Site(connector, found.location, tmp_path))
    await made.queue.close()
    await connector.undeploy(False)


class Site:
    """This machine as the login node."""

    def __init__(
        self, connector: LocalConnector, location: ExecutionLocation, folder: Path
    ) -> None:
        self.connector = connector
        self.location = location
        self.spool = folder / "spool"
        login = LoginNode(connector, location, str(self.spool), "run")
        self.queue = SlurmQueue(SpoolShell(login), Commands(login), "cluster", 1.0, 60)

    def quantum(self, config: Path | None, *qpus: str) -> ServiceQpus:
        """The QPUs of one service."""
        service = SlurmService(qpu=list(qpus))
        service.name = "q"
        file = None if config is None else str(config)
        return ServiceQpus("cluster", [service], file)

    def use(self, job: str) -> QpuUse:
        """Of QPU a, under the plugin."""
        self.spool.mkdir(exist_ok=True)
        name = job.strip("/").replace("/", "-")
        return QpuUse(job, ["a"], True, str(self.spool / name), None)

    def left(self, use: QpuUse, *runs: account.CommandRun) -> None:
        """Leave what the job's nodes leave."""
        lines = "".join(f"{account.dumps(ran)}\n" for ran in runs)
        Path(f"{use.account}.12").write_text(lines)


def _run(
    use: QpuUse, folder: Path, line: str = LINE, **environment: str
) -> tuple[int, str]:
    (folder / "problem.json").write_text(json.dumps({"bqm": example_bqm()}))
    done = subprocess.run(
        ["/bin/sh", "-c", use.command(line.format(folder=folder))],
        env={
            "PATH": f"{BIN}:/usr/bin:/bin",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "SLURM_JOB_ID": "12",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def _accounts(use: QpuUse) -> list[account.CommandRun]:
    return account.loads(Path(f"{use.account}.12").read_text())


async def test_a_job_whose_user_is_refused_is_not_tried_again(site: Site) -> None:
    qpus, use = site.quantum(None, "a"), site.use("/solve/0")
    refused = account.CommandRun(2, [], refusal="QPU 'a' refuses: token revoked")
    site.left(use, refused)
    with pytest.raises(LeaseRefused, match=r"/solve/0 got no lease, .*token revoked"):
        await qpus.settle(site.queue, use, good=False)
    elsewhere = replace(use, hints=JobHints(has_alternative=True))
    site.left(elsewhere, refused)
    with pytest.raises(LeaseFailure, match=r"/solve/0 got no lease, .*token revoked"):
        await qpus.settle(site.queue, elsewhere, good=False)


@pytest.mark.parametrize("waited_out", [False, True])
async def test_job_without_a_lease_in_time_is_waited_out(
    site: Site, waited_out: bool
) -> None:
    qpus, use = site.quantum(None, "a"), site.use("/late/0")
    hints.put(use.job, JobHints(wait_seconds=5.0))
    try:
        site.left(use, account.CommandRun(75, [], waited_out=waited_out))
        await qpus.settle(site.queue, use, good=False)
        assert hints.of(use.job).waited_out == waited_out
    finally:
        hints.discard(use.job)


async def test_a_success_code_does_not_replace_a_lease_or_its_use(site: Site) -> None:
    qpus, use = site.quantum(None, "a"), site.use("/coded/0")
    used = [account.LeaseUsage("a", [JOB])]
    with exit_codes.of_job(ExitCodes(success=[2, 3, 75])):
        site.left(use, account.CommandRun(3, used))
        await qpus.settle(site.queue, use, good=True)
        site.left(use, account.CommandRun(3, [account.LeaseUsage("a", [])]))
        with pytest.raises(WorkflowExecutionException, match="never used QPU a"):
            await qpus.settle(site.queue, use, good=True)
        site.left(use, account.CommandRun(2, [], refusal="token revoked"))
        with pytest.raises(LeaseRefused, match="got no lease"):
            await qpus.settle(site.queue, use, good=True)
        late = account.CommandRun(75, [], waited_out=True)
        hints.put(use.job, JobHints(wait_seconds=5.0))
        try:
            site.left(use, late)
            with pytest.raises(
                WorkflowExecutionException, match="no lease of QPU a in"
            ):
                await qpus.settle(site.queue, use, good=True)
            assert hints.of(use.job).waited_out
        finally:
            hints.discard(use.job)
        # another run of the same Slurm job got its lease
        site.left(use, late, account.CommandRun(3, used))
        await qpus.settle(site.queue, use, good=True)


def test_a_command_runs_under_leases_of_its_own(
    service: RunningService, tmp_path: Path
) -> None:
    use = QpuUse("/solve/0", ["a"], False, str(tmp_path / "an account"), None)
    assert _run(use, tmp_path, a_SFQ_URL=service.url) == (0, "")
    assert (tmp_path / "it's out").exists()
    (ran,) = _accounts(use)
    assert ran.used
    assert service.queue.leases.held == []


def test_a_command_runs_under_the_leases_that_slurm_took(
    service: RunningService, tmp_path: Path
) -> None:
    use = QpuUse("/solve/0", ["a"], True, str(tmp_path / "account"), None)
    told = {
        "SLURM_JOB_QPU_RESOURCES": "a",
        "SLURM_JOB_QPU_TYPES": "sfq",
        "a_SFQ_URL": service.url,
        "a_QRMI_JOB_ACQUISITION_TOKEN": service.acquire(),
    }
    assert _run(use, tmp_path, **told) == (0, "")
    (ran,) = _accounts(use)
    assert ran.used
    assert len(service.queue.leases.held) == 1
    # one of them was not to be had
    both = QpuUse("/solve/0", ["a", "b"], True, str(tmp_path / "other"), None)
    code, said = _run(both, tmp_path, **told)
    assert (code, said) == (
        75,
        "sfq: Slurm's SPANK plugin gave this job no lease of QPU b\n",
    )


def test_where_the_nodes_have_no_sfq_use_is_not_known(tmp_path: Path) -> None:
    use = QpuUse("/solve/0", ["a"], True, str(tmp_path / "account"), None)
    told = {"QRMI_JOB_QPU_RESOURCES": "a", "PATH": "/usr/bin:/bin"}
    code, said = _run(use, tmp_path, **told)
    assert code == 127
    assert "sfq: not found" in said
    assert _accounts(use) == [account.CommandRun(0, [account.LeaseUsage("a", None)])]


def test_the_option_is_for_the_plugin_and_the_first_component() -> None:
    classical, one = SlurmService(partition="c"), SlurmService(
        partition="q", qpu=["a", "b"]
    )
    assert words(one) == ['--partition="q"']
    one.spank = True
    assert words(one) == ['--partition="q"', '--qpu="a,b"']
    components = holder_options("s", [classical, one, one]).split(" : ")
    assert [part.count('--qpu="a,b"') for part in components] == [1, 0, 0]


def test_a_name_that_is_not_defined(site: Site, definitions: Path) -> None:
    site.quantum(definitions, "a").check()
    site.quantum(None, "b").check()
    with pytest.raises(WorkflowDefinitionException) as error:
        site.quantum(definitions, "b").check()
    assert str(error.value) == (
        f"Deployment cluster, service q, qpu: {definitions}: unknown resource 'b' "
        "(known: a, other)"
    )


async def test_a_qpu_that_does_not_answer_is_waited_for_a_while(
    site: Site,
    definitions: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.setattr(quantum, "TROUBLE_SECONDS", 0.5)
    monkeypatch.setattr(backoff, "CLUSTER", Backoff(0.1, 0.1))
    qpus = site.quantum(definitions, "a")
    with caplog.at_level(logging.INFO, "streamflow"):
        for job in ("/one/0", "/other/0"):
            await qpus.online(site.queue, job, ["a"])
    waits, submitted, over = (record.getMessage() for record in caplog.records)
    assert waits.startswith("Job /one/0 waits for QPU a: QPU 'a' at unix:")
    assert waits.endswith("; if this lasts 0 s, the job is submitted all the same")
    assert "jobs are submitted although QPU 'a' at unix:" in submitted
    assert over == "Job /one/0 no longer waits for QPU a"
    brought = site.spool / "qrmi_config.json"
    assert stat.S_IMODE(brought.stat().st_mode) == 0o600
    assert stat.S_IMODE(site.spool.stat().st_mode) == 0o700
    assert [r["name"] for r in json.loads(brought.read_text())["resources"]] == ["a"]


class _Cut(LocalConnector):
    """A connection that is lost twice while something is brought."""

    cuts = 2

    async def get_stream_writer(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]:
        if self.cuts:
            self.cuts -= 1
            # what is read to its end is not refused
            first = ["{", "head", "-c", "40;", "cat", ">/dev/null;", "}"]
            command = [*first, "|", *command]
            command = ["sh", "-c", shlex.quote(" ".join(command))]
        return await super().get_stream_writer(command, location)


async def test_half_a_file_is_no_file(
    tmp_path: Path,
    service: RunningService,
    reachable: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.setattr(backoff, "CLUSTER", Backoff(0.1, 0.1))
    connector = _Cut("host", str(tmp_path), 2**16)
    (found,) = (await connector.get_available_locations()).values()
    site = Site(connector, found.location, tmp_path)
    try:
        await site.quantum(reachable, "a").online(site.queue, "/one/0", ["a"])
        brought = site.spool / "qrmi_config.json"
        assert [r["name"] for r in json.loads(brought.read_text())["resources"]] == [
            "a"
        ]
        assert [file.name for file in site.spool.glob("qrmi*")] == [brought.name]
    finally:
        await site.queue.close()
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(f"Job /one/0 waits: {reachable} cannot be copied to ")
    assert told.endswith(": the file arrived incomplete")


@pytest.fixture
def put_hints() -> Iterator[Callable[[JobHints], None]]:
    """Wishes something for the job ``/one/0``."""
    yield partial(hints.put, "/one/0")
    hints.discard("/one/0")


async def test_a_candidate_leaves_a_qpu_that_is_offline(
    site: Site,
    service: RunningService,
    reachable: Path,
    monkeypatch: pytest.MonkeyPatch,
    put_hints: Callable[[JobHints], None],
) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    service.ask("POST", "/v1/device/close", {"message": "helium"})
    qpus = site.quantum(reachable, "a")
    put_hints(JobHints(has_alternative=True))
    with pytest.raises(
        LeaseFailure,
        match=r"Job /one/0 got no lease of QPU a: the QPU is offline \(.*helium\)",
    ):
        await qpus.lend(site.queue, "/one/0", ["a"])


async def test_a_candidate_bears_silence_for_its_longest_wait(
    site: Site,
    definitions: Path,
    monkeypatch: pytest.MonkeyPatch,
    put_hints: Callable[[JobHints], None],
) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    qpus = site.quantum(definitions, "a")
    put_hints(JobHints(wait_seconds=0.2, has_alternative=True))
    with pytest.raises(
        LeaseFailure,
        match="Job /one/0 got no lease of QPU a: QPU 'a' at unix:",
    ):
        await qpus.lend(site.queue, "/one/0", ["a"])


async def test_a_candidate_leaves_a_login_node_that_is_silent(
    site: Site,
    definitions: Path,
    monkeypatch: pytest.MonkeyPatch,
    put_hints: Callable[[JobHints], None],
) -> None:
    monkeypatch.setattr(quantum, "ASK_SECONDS", 0.1)
    qpus = site.quantum(definitions, "a")
    # its shell ends without a word, as that of a connection that is lost does
    site.queue.login.local = False
    monkeypatch.setattr(LocalConnector, "run", _lost)
    put_hints(JobHints(wait_seconds=0.1, has_alternative=True))
    async with asyncio.timeout(SECONDS):
        with pytest.raises(
            WorkflowExecutionException,
            match="Job /one/0 is not submitted: the login node does not answer",
        ):
            await qpus.lend(site.queue, "/one/0", ["a"])


async def test_a_job_that_can_run_nowhere_else_asks_with_pauses(
    site: Site,
    definitions: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "CLUSTER", Backoff(0.2, 0.2, jitter=0.0))
    qpus, asked = site.quantum(definitions, "a"), 0

    async def ask(*_: object) -> list[quantum._QpuState]:
        nonlocal asked
        asked += 1
        return [quantum._QpuState("a", "offline", "helium")]

    monkeypatch.setattr(qpus, "_states", ask)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await qpus.online(site.queue, "/one/0", ["a"])
    assert 0 < asked <= 6


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Journal]:
    """The journal of a run in progress."""
    made = Journal(tmp_path / "journal")
    made.start("sf.yml", ["w"], {})
    yield made
    made.close()


def _told(record: Journal, job: str) -> list[tuple[str, str]]:
    """What a job's wait is in the journal: each status, with the reason."""
    return [
        (str(event["status"]), str(event["reason"]))
        for event in read(record.path)
        if event["event"] == "lease" and event["job"] == job
    ]


class Both:
    """One job on a location with a QPU, and one of a service with the same QPU."""

    def __init__(self, site: Site, definitions: Path, url: str) -> None:
        self.pool = LeasePool(selection.client("sfq", "a", {"url": url}))
        self.qpus = site.quantum(definitions, "a")
        self.site = site

    def start(self, trouble_seconds: float) -> list[asyncio.Task[object]]:
        options = AcquireOptions("/one/0", trouble_seconds=trouble_seconds)
        return [
            asyncio.create_task(self.pool.acquire(options)),
            asyncio.create_task(self.qpus.online(self.site.queue, "/two/0", ["a"])),
        ]


async def test_both_kinds_of_jobs_wait_for_a_closed_qpu(
    site: Site,
    service: RunningService,
    reachable: Path,
    monkeypatch: pytest.MonkeyPatch,
    record: Journal,
) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.setattr(backoff, "CLUSTER", Backoff(0.1, 0.1))
    service.ask("POST", "/v1/device/close", {"message": "helium"})
    both = Both(site, reachable, service.url)
    jobs = both.start(SECONDS)
    jobs_of = ("/one/0", "/two/0")
    await until_async(lambda: all(_told(record, job) for job in jobs_of), "two waits")
    assert not any(job.done() for job in jobs)
    service.ask("POST", "/v1/device/open", {})
    await asyncio.gather(*jobs)
    await both.pool.close()
    (first, why), (granted, _) = _told(record, "/one/0")
    (second, same), (submitted, _) = _told(record, "/two/0")
    assert (first, second) == ("waiting", "waiting")
    assert (granted, submitted) == ("granted", "submitted")
    assert "helium" in same
    assert same in why


async def test_both_kinds_of_jobs_give_up_a_qpu_that_stops(
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record: Journal,
) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.setattr(backoff, "CLUSTER", Backoff(0.1, 0.1))
    with running_service(EmulatedDevice(time_scale=0)) as service:
        both = Both(site, _define(tmp_path, a=service.url), service.url)
        # it answers the login node, so this is no QPU that only nodes reach
        await both.qpus.online(site.queue, "/before/0", ["a"])
    monkeypatch.setattr(quantum, "TROUBLE_SECONDS", 0.5)
    jobs = both.start(0.5)
    errors = await asyncio.gather(*jobs, return_exceptions=True)
    await both.pool.close()
    texts = [re.sub(r"^Job \S+ |, --wait.*$", "", str(error)) for error in errors]
    assert all(isinstance(error, LeaseFailure) for error in errors)
    assert texts[0].startswith("got no lease of QPU a: QPU 'a' at ")
    assert texts[0].endswith("; given up after 0.5 s")
    assert texts[0] == texts[1]
    one, two = _told(record, "/one/0"), _told(record, "/two/0")
    assert one == two
    assert [status for status, _ in one] == ["waiting", "given-up"]


async def _lost(*_: object, **__: object) -> tuple[str, int]:
    return "", 255


async def test_on_the_node_it_waits_for_what_is_left(
    site: Site,
    service: RunningService,
    tmp_path: Path,
    put_hints: Callable[[JobHints], None],
) -> None:
    service.acquire()
    put_hints(
        JobHints(
            LeaseHints(expected_seconds=5, pattern="qc-heavy"),
            0.3,
            has_alternative=True,
        )
    )
    use = await site.quantum(None, "a").lend(site.queue, "/one/0", ["a"])
    assert use.hints.wait_seconds is not None
    assert 0 <= use.hints.wait_seconds < 0.3
    assert use.waited == 0  # the process that looked at the QPU is not a wait
    site.spool.mkdir(exist_ok=True)
    code, said = _run(use, tmp_path, a_SFQ_URL=service.url)
    assert code == 75
    assert "waiting for a lease of QPU a" in said


@pytest.mark.parametrize("spank", [False, True])
def test_a_candidate_on_a_node_leaves_an_offline_qpu(
    service: RunningService, tmp_path: Path, spank: bool
) -> None:
    told = {"a_SFQ_URL": service.url}
    if spank:
        token = service.acquire()
        told |= {"a_QRMI_JOB_ACQUISITION_TOKEN": token}
        told |= {"SLURM_JOB_QPU_RESOURCES": "a", "SLURM_JOB_QPU_TYPES": "sfq"}
    service.ask("POST", "/v1/device/close", {"message": "helium"})
    job_hints = JobHints(has_alternative=True)
    use = QpuUse("/solve/0", ["a"], spank, str(tmp_path / "account"), None, job_hints)
    code, said = _run(use, tmp_path, "exec sleep 60", **told)
    assert code == 75
    why = "sfq lease: QPU a is offline: the QPU is closed: helium"
    assert said.splitlines()[-1].startswith(why)


def test_hints_reach_the_service(service: RunningService, tmp_path: Path) -> None:
    hints = LeaseHints(5, "qc-heavy", 1e10, 0)
    use = QpuUse(
        *("/solve/0", ["a"], False, str(tmp_path / "account"), None),
        JobHints(hints, wait_seconds=10),
    )
    assert _run(use, tmp_path, a_SFQ_URL=service.url) == (0, "")
    (lease,) = service.queue.store.leases.latest()
    assert (lease.expected_seconds, lease.pattern) == (5, "qc-heavy")
    assert lease.latest_start == 1e10


def test_a_reservation_reaches_the_service_as_it_is_written(
    service: RunningService, tmp_path: Path
) -> None:
    job_hints = JobHints(LeaseHints(reservation="it's; monday"))
    use = QpuUse("/one/0", ["a"], False, str(tmp_path / "account"), None, job_hints)
    code, said = _run(use, tmp_path, a_SFQ_URL=service.url)
    assert code == 2
    assert "reservation: this QPU has no reservations" in said


async def test_hints_that_slurm_does_not_pass_on_are_a_warning(
    site: Site,
    service: RunningService,
    caplog: pytest.LogCaptureFixture,
    put_hints: Callable[[JobHints], None],
) -> None:
    put_hints(JobHints(LeaseHints(priority=3, latest_start=1e10, pattern="balanced")))
    qpus = site.quantum(None, "a")
    qpus._has_plugin = True
    await qpus.lend(site.queue, "/one/0", ["a"])
    assert "latestStart, priority: not passed on to the QPU" in caplog.text


async def test_where_nobody_can_be_asked_jobs_are_submitted(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    qpus = site.quantum(None, "a")
    for job in ("/one/0", "/other/0"):
        await qpus.online(site.queue, job, ["a"])
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.endswith("so jobs are submitted: sfq is not installed there")


async def test_a_lease_that_jobs_share_is_used_by_each(site: Site) -> None:
    qpus = site.quantum(None, "a")
    ran = account.CommandRun(0, [account.LeaseUsage("a", [JOB])])
    first, second = site.use("/one/0"), site.use("/other/0")
    for _ in range(2):  # as often as it is tried
        site.left(first, ran)
        await qpus.settle(site.queue, first, good=True)
    assert list(site.spool.glob("*.12")) == []
    site.left(second, ran)
    with pytest.raises(WorkflowExecutionException, match="never used QPU a"):
        await qpus.settle(site.queue, second, good=True)
    site.left(
        second,
        account.CommandRun(0, [account.LeaseUsage("a", [JOB, replace(JOB, id="2")])]),
    )
    await qpus.settle(site.queue, second, good=True)


async def test_a_result_that_may_not_be_the_qpus_is_none(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantum, "READ_ATTEMPTS", 1)
    qpus, use = site.quantum(None, "a"), site.use("/one/0")
    site.left(use, account.CommandRun(0, [account.LeaseUsage("a", None, "it is gone")]))
    with pytest.raises(WorkflowExecutionException, match=r"is unknown: it is gone"):
        await qpus.settle(site.queue, use, good=True)
    with pytest.raises(WorkflowExecutionException, match="sfq lease left no account"):
        await qpus.settle(site.queue, use, good=True)
    # what it was interrupted in counts for nothing
    interrupted = account.CommandRun(143, [account.LeaseUsage("a", [])])
    site.left(use, interrupted, account.CommandRun(0, [account.LeaseUsage("a", [JOB])]))
    await qpus.settle(site.queue, use, good=True)
    site.left(use, interrupted)
    await qpus.settle(site.queue, use, good=False)
