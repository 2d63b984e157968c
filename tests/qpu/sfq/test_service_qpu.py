"""The client of our service: answers, refusals, and all that goes wrong on the way."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from dimod import BinaryQuadraticModel

from sf_quantum import backoff, deadline
from sf_quantum.backoff import Backoff
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, mapping
from sf_quantum.net import munge
from sf_quantum.net.transport import Response, Unreachable
from sf_quantum.protocol.descriptions import Timing
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.protocol.tasks import (
    LeaseLost,
    NotAccepted,
    Outcome,
    Progress,
    Task,
    UnknownJob,
)
from sf_quantum.qpu import AuthenticationError, LeaseTooLate, NoLease, qrmi_config
from sf_quantum.qpu.leasing.held_leases import AcquireOptions, acquire
from sf_quantum.qpu.running import named
from sf_quantum.qpu.sampler import QpuSampler
from sf_quantum.qpu.sfq import service_client, service_jobs
from sf_quantum.qpu.sfq.credentials import Credentials
from sf_quantum.qpu.sfq.service_jobs import ServiceJobs
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.samplers.neal import NealSampler
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.settings import Faults
from sf_quantum.service.dialects.v1.jobs import INLINE_CHARACTERS
from sf_quantum.service.domain.settings import (
    ClassSettings,
    LeaseSettings,
    ServiceSettings,
)
from sf_quantum.service.http.tokens import Tokens, new_token, token_entry
from tests.support.scripted import Reply, Serve, scripted_server
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.waiting import SECONDS, until

PARAMETERS = {"num_reads": 10, "seed": 1, "num_sweeps": None}


@pytest.fixture
def bqm() -> dict[str, JSON]:
    return example_bqm()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "REQUEST", Backoff(0.01, 3.0))
    monkeypatch.setattr(service_client, "RETRY_SECONDS", 0.03)


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


def _job_side(service: RunningService, lease: str) -> SfqQpu:
    return SfqQpu("q", service.url, lease=lease)


def test_driver_side(service: RunningService) -> None:
    driver = SfqQpu.from_config("q", {"url": service.url})
    status = driver.status()
    assert (status.name, status.technology, status.online) == (
        "emulator",
        "annealer",
        True,
    )
    assert (status.reason, status.qubits, status.queue_length) == ("", 5000, 0)
    token = driver.acquire("step /solve")
    assert driver.status().leases == 1
    with pytest.raises(QpuError, match=r"QPU 'q' at unix:.*: the only vQPU is held"):
        driver.acquire()
    driver.release(token)
    driver.release(token)
    driver.release("of another life")
    assert driver.status().leases == 0


def test_sampler_gives_what_the_local_one_gives(
    service: RunningService, bqm: dict[str, JSON]
) -> None:
    model = BinaryQuadraticModel.from_serializable(bqm)
    sampler = _job_side(service, service.acquire()).sampler()
    remote = sampler.sample(model, num_reads=20, seed=3)
    local = NealSampler().sample(model, num_reads=20, seed=3)
    assert (remote.record == local.record).all()
    assert remote.variables == local.variables
    assert (remote.info["qpu"], remote.info["device"]) == ("q", "emulator")


@pytest.mark.parametrize("label", [frozenset({1}), b"x", ("a", frozenset({1}))])
def test_labels_that_json_changes_cost_no_qpu_job(
    service: RunningService, label: Hashable
) -> None:
    sampler = QpuSampler(_job_side(service, lease := service.acquire()))
    model = BinaryQuadraticModel({label: -1.0, "other": 1.0}, {}, "BINARY")
    for sample in (sampler.sample, lambda one: sampler.sample_multiple([one])):
        with pytest.raises(InputError, match="cannot be written in JSON"):
            sample(model)
    assert service.queue.store.jobs.latest(lease=lease) == []


@pytest.mark.parametrize("label", [1, 1.0, "1", True, 1.5, "\n", (1, "a"), 2**53 + 1])
def test_labels_that_json_keeps_come_back(
    service: RunningService, label: Hashable
) -> None:
    sampler = _job_side(service, service.acquire()).sampler()
    model = BinaryQuadraticModel({label: -1.0, "other": 1.0}, {}, "BINARY")
    assert sampler.sample(model, num_reads=2).first.sample == {label: 1, "other": 0}


def test_the_second_try_finds_the_job_of_the_first(
    service: RunningService, bqm: dict[str, JSON]
) -> None:
    lease = service.acquire()
    first, again = (_job_side(service, lease).solve(bqm, PARAMETERS) for _ in range(2))
    assert first == again
    assert len(service.queue.store.jobs.latest(lease=lease)) == 1
    _job_side(service, lease).solve(bqm, {**PARAMETERS, "seed": 2})
    assert len(service.queue.store.jobs.latest(lease=lease)) == 2


def test_without_a_seed_each_solution_has_samples_of_its_own(
    service: RunningService, bqm: dict[str, JSON]
) -> None:
    lease, asked = service.acquire(), {"num_reads": 20}
    qpu = _job_side(service, lease)
    samples = [qpu.solve(bqm, asked) for _ in range(3)]
    infos = [mapping(one["info"]) for one in samples]
    assert len({str(info["job"]) for info in infos}) == 3
    assert not any("found" in info for info in infos)
    # a second attempt finds them in the same order, and says so
    again = _job_side(service, lease)
    for info in infos:
        assert again.solve(bqm, asked)["info"] == {**info, "found": True}
    assert len(service.queue.store.jobs.latest(lease=lease)) == 3


def _again(service: RunningService, lease: str) -> SfqQpu:
    """The job's side of a job that is run again, under another lease."""
    return SfqQpu("q", service.url, lease=lease, job_key="the run's, the job's")


def test_run_again_under_another_lease_it_finds_its_job(
    service: RunningService, bqm: dict[str, JSON]
) -> None:
    driver = SfqQpu("q", service.url)
    first = driver.acquire()
    samples = _again(service, first).solve(bqm, PARAMETERS)
    told = driver.jobs(first)
    assert told is not None
    assert [(job.state, job.found) for job in told] == [("Completed", False)]
    driver.release(first)
    second = driver.acquire()
    assert _again(service, second).solve(bqm, PARAMETERS) == samples
    # one QPU job in total, and the second lease knows that it was used
    told = driver.jobs(second)
    assert told is not None
    assert [(job.state, job.found) for job in told] == [("Completed", True)]
    assert [job.charged for job in told] == [False]
    # its use is charged to the first
    told = driver.jobs(first)
    assert told is not None
    assert [(job.found, job.charged) for job in told] == [(False, True)]


def test_a_lease_tells_when_its_pending_job_begins(bqm: dict[str, JSON]) -> None:
    """As the driver plans nodes by it."""
    with running_service(EmulatedDevice(technology="neutral-atom")) as service:
        lease = service.acquire()
        qpu = _job_side(service, lease)
        first = qpu.submit(_task(bqm, "a"))
        service.until(lease, "Running")
        second = qpu.submit(_task(bqm, "b"))
        jobs = SfqQpu("q", service.url).jobs(lease)
        assert jobs is not None
        running, pending = jobs
        assert (running.id, running.state) == (first, "Running")
        assert isinstance(running.started, float)
        assert (pending.id, pending.state) == (second, "Queued")
        assert isinstance(pending.eta_seconds, float)
        assert pending.eta_seconds > 0
        qpu.release(lease)


def test_run_again_after_its_job_was_cancelled_it_makes_another(
    bqm: dict[str, JSON],
) -> None:
    with running_service(EmulatedDevice(technology="neutral-atom")) as service:
        first = service.acquire()
        dead = threading.Thread(target=_solve, args=(_again(service, first), bqm))
        dead.start()
        service.until(first, "Running")
        # as the guardian does
        SfqQpu("q", service.url).release(first)
        dead.join()
        second = service.acquire()
        alive = threading.Thread(target=_solve, args=(_again(service, second), bqm))
        alive.start()
        service.until(second, "Running", 1)
        assert [job.state for job in service.queue.store.jobs.latest(lease=second)] == [
            "Cancelled",
            "Running",
        ]
        SfqQpu("q", service.url).release(second)
        alive.join()


def test_run_again_while_its_job_runs_it_takes_it_over(bqm: dict[str, JSON]) -> None:
    with running_service(EmulatedDevice(technology="neutral-atom"), vqpus=2) as service:
        first, second = service.acquire(), service.acquire()
        dead = threading.Thread(target=_solve, args=(_again(service, first), bqm))
        dead.start()
        job = service.until(first, "Running")
        alive = threading.Thread(target=_solve, args=(_again(service, second), bqm))
        alive.start()
        assert service.until(second, "Running") == job
        # the file knows it a moment before the queue does
        until(lambda: service.queue.jobs.busy(second), "it was not taken over")
        # the dead one's lease takes nothing with it
        SfqQpu("q", service.url).release(first)
        assert service.until(second, "Running") == job
        SfqQpu("q", service.url).release(second)
        dead.join()
        alive.join()


def _solve(qpu: SfqQpu, bqm: dict[str, JSON]) -> None:
    with suppress(QpuError, InputError):
        qpu.solve(bqm, PARAMETERS)


def test_a_lease_is_waited_for_in_the_services_queue(service: RunningService) -> None:
    driver = SfqQpu("q", service.url)
    first = driver.acquire()
    with pytest.raises(NoLease, match="QPU 'q' at unix:"):
        driver.acquire_waiting("j", wait_seconds=0.01, key="k")
    with ThreadPoolExecutor() as threads:
        waits = threads.submit(acquire, driver, AcquireOptions("j"))
        until(
            lambda: service.ask("GET", "/v1/device").json()["leases_waiting"],
            "it does not wait for a lease",
        )
        assert not waits.done()
        driver.release(first)
        assert waits.result(SECONDS)


def test_a_latest_start_in_maintenance_is_told_at_once(
    service: RunningService,
) -> None:
    driver, now = SfqQpu("q", service.url), time.time()
    window: dict[str, JSON] = {"starts": now - 1, "ends": now + 7200}
    assert service.ask("POST", "/v1/device/maintenance", window).status < 300
    request = AcquireOptions("j", hints=LeaseHints(latest_start=now + 3600))
    with pytest.raises(LeaseTooLate, match=r"cannot be granted by .*in maintenance"):
        acquire(driver, request)


def test_what_is_honoured_is_in_the_answer(service: RunningService) -> None:
    latest = time.time() + 3600
    hints = LeaseHints(latest_start=latest, priority=0)
    token = acquire(SfqQpu("q", service.url), AcquireOptions("j", hints=hints))
    lease = service.ask("GET", f"/v1/leases/{token}").json()
    honoured = {"latest_start": latest, "priority": 0, "reservation": None}
    assert lease["honoured"] == honoured


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (LeaseHints(priority=1001), "refuses: priority: "),
        (
            LeaseHints(reservation="r"),
            "reservation: this QPU has no reservations: omit",
        ),
    ],
)
def test_what_the_service_does_not_honour_is_refused(
    service: RunningService, hint: LeaseHints, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        acquire(SfqQpu("q", service.url), AcquireOptions("j", hints=hint))
    assert service.queue.leases.held == []


def test_a_lease_asked_for_again_is_the_same(service: RunningService) -> None:
    driver = SfqQpu("q", service.url)
    first = driver.acquire_waiting("j", wait_seconds=0, key="k")
    assert driver.acquire_waiting("j", wait_seconds=0, key="k") == first


def test_hints_of_one_lease_go_before_those_of_all(service: RunningService) -> None:
    config: dict[str, JSON] = {
        "url": service.url,
        "expectedSeconds": 5.0,
        "pattern": "balanced",
    }
    driver = SfqQpu.from_config("q", config)
    hints = LeaseHints(expected_seconds=0.5)
    for request in (AcquireOptions(hints=hints), AcquireOptions()):
        token = acquire(driver, request)
        lease = service.queue.store.leases.get(token)
        assert lease is not None
        expected = 0.5 if request.hints is hints else 5.0
        assert (lease.expected_seconds, lease.pattern) == (expected, "balanced")
        driver.release(token)


def test_a_lease_that_runs_out_is_renewed_in_time() -> None:
    settings = ServiceSettings(leases=LeaseSettings(idle_seconds=30))
    with running_service(settings=settings) as service:
        driver = SfqQpu("q", service.url)
        token = driver.acquire()
        again = driver.renew(token)
        assert again is not None
        assert 5 < again <= 10
        driver.release(token)
        for ended in (token, "unknown"):
            with pytest.raises(LeaseLost, match="refuses"):
                driver.renew(ended)
    with running_service(
        settings=ServiceSettings(leases=LeaseSettings(idle_seconds=None))
    ) as service:
        driver = SfqQpu("q", service.url)
        assert driver.renew(driver.acquire()) is None


def test_times_left_are_those_that_the_service_tells(service: RunningService) -> None:
    driver = SfqQpu("q", service.url)
    again = driver.renew(driver.acquire())
    assert again is not None
    assert 200 < again <= 300
    service.ask("POST", "/v1/device/maintenance", {"starts": time.time() + 600})
    left = driver.status().maintenance_seconds
    assert left is not None
    assert 500 < left <= 600


def test_a_lease_is_of_the_project_that_is_asked_for() -> None:
    with running_service() as service:
        user = service.ask("GET", f"/v1/leases/{service.acquire()}").json()["user"]
    settings = ServiceSettings(user_projects={str(user): ["climate", "chemistry"]})
    with running_service(settings=settings) as service:
        config: dict[str, JSON] = {"url": service.url, "project": "chemistry"}
        driver = SfqQpu.from_config("q", config)
        lease = service.ask("GET", f"/v1/leases/{driver.acquire('step')}").json()
        assert lease["project"] == "chemistry"


@pytest.mark.process
def test_what_a_lease_is_asked_for_with(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "hpc")
    monkeypatch.setenv("SLURM_JOB_ACCOUNT", "physics")
    monkeypatch.delenv("SLURM_JOB_PARTITION", raising=False)
    config: dict[str, JSON] = {
        "url": service.url,
        "class": "test",
        "expectedSeconds": 12,
        "pattern": "balanced",
    }
    driver = SfqQpu.from_config("q", config)
    lease = service.ask("GET", f"/v1/leases/{driver.acquire('step')}").json()
    told = {key: lease[key] for key in ("class", "expected_seconds", "pattern", "job")}
    assert told == {
        "class": "test",
        "expected_seconds": 12,
        "pattern": "balanced",
        "job": "step",
    }
    assert (lease["slurm_job_id"], lease["slurm_cluster"]) == ("77", "hpc")
    assert lease["slurm_account"] == "physics"


def test_a_lease_of_a_lower_class_says_so() -> None:
    settings = ServiceSettings(vqpus=2, classes=ClassSettings(highest="test"))
    with running_service(settings=settings) as service:
        asked = {
            name: SfqQpu("q", service.url, lease_options={"class": name})
            for name in ("production", "test")
        }
        lowered = asked["production"]
        said = lowered.shortfall(token := lowered.acquire())
        assert said is not None
        assert said.startswith("class test, not production as requested")
        assert lowered.shortfall(token) is None
        assert asked["test"].shortfall(asked["test"].acquire()) is None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "url: missing"),
        ({"url": 5}, "url: expected text"),
        ({"url": "unix:/s", "urll": "x"}, "did you mean 'url'"),
        ({"url": "unix:/s", "munge": "socket"}, "munge: expected true, false or"),
        ({"url": "unix:/s", "tokenFile": "/nowhere"}, "/nowhere"),
        (
            {"url": "http://elsewhere.invalid"},
            "http is for this machine only; use https",
        ),
    ],
)
def test_wrong_configurations(config: dict[str, JSON], words: str) -> None:
    with pytest.raises(InputError, match=words):
        SfqQpu.from_config("q", config)


@pytest.mark.parametrize(
    ("munge", "told_so"),
    [(True, "1"), (False, None), ("/run/munge/socket", "/run/munge/socket")],
)
def test_the_job_is_told_how_to_ask(munge: bool | str, told_so: str | None) -> None:
    driver = SfqQpu.from_config("q", {"url": "unix:/s", "munge": munge})
    variables = driver.environment("token")
    assert variables.get("q_SFQ_MUNGE") == told_so
    told = SfqQpu.from_environment("q", variables)
    assert told.environment("token") == variables
    with pytest.raises(InputError, match="q_SFQ_PATIENCE_SECONDS: expected seconds"):
        SfqQpu.from_environment("q", {**variables, "q_SFQ_PATIENCE_SECONDS": "long"})


def test_each_request_has_a_munge_credential_of_its_own(
    scripted: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = iter(["MUNGE:1:", "MUNGE:2:"])
    monkeypatch.setattr(munge, "encode", lambda socket: f"{next(made)}{socket}")
    server = scripted([(503, {}), (404, {})])
    driver = SfqQpu.from_config("q", {"url": server.url, "munge": "/socket"})
    driver.release("token")
    assert server.credentials == ["MUNGE:1:/socket", "MUNGE:2:/socket"]


def test_a_refusal_names_service_token_file_and_reason(
    scripted: Serve, tmp_path: Path
) -> None:
    file = tmp_path / "ada.token"
    file.write_text("secret")
    server = scripted(
        [
            (401, {"detail": "unknown bearer token", "field": "Authorization"}),
            (403, {"detail": "only root and admins acquire leases"}),
            (403, {"detail": "the lease has ended", "field": "X-SFQ-Lease"}),
        ]
    )
    driver = SfqQpu.from_config("q", {"url": server.url, "tokenFile": str(file)})
    refusals = f"QPU 'q' at {server.url} refuses: {{}} (token file {file})"
    with pytest.raises(AuthenticationError) as caught:
        driver.renew("token")
    reason = "Authorization: unknown bearer token"
    assert str(caught.value) == refusals.format(reason)
    with pytest.raises(AuthenticationError) as caught:
        driver.status()
    assert str(caught.value) == refusals.format("only root and admins acquire leases")
    with pytest.raises(LeaseLost, match="the lease has ended"):
        driver.renew("token")


def test_who_sends_no_token_is_told_how(scripted: Serve) -> None:
    needs: dict[str, JSON] = {
        "detail": "needs a bearer token",
        "field": "Authorization",
    }
    server = scripted([(401, needs), (403, {"detail": "only admins may do this"})])
    driver = SfqQpu.from_config("q", {"url": server.url})
    with pytest.raises(AuthenticationError, match=r"bearer token \(--token-file, or "):
        driver.status()
    with pytest.raises(AuthenticationError, match=r"only admins may do this$"):
        driver.status()


def test_a_token_that_is_replaced_is_used_from_then_on(tmp_path: Path) -> None:
    tokens, made = tmp_path / "tokens.yml", [new_token(), new_token()]
    tokens.touch(0o600)
    file = tmp_path / "ada.token"
    file.write_text(made[0])
    tokens.write_text(json.dumps([token_entry("ada", made[0], admin=False)]))
    with running_service(authenticate=Tokens(tokens)) as service:
        driver = SfqQpu.from_config("q", {"url": service.url, "tokenFile": str(file)})
        lease = driver.acquire()
        tokens.write_text(json.dumps([token_entry("ada", made[1], admin=False)]))
        with pytest.raises(AuthenticationError, match="unknown bearer token"):
            driver.renew(lease)
        file.write_text(made[1])
        content = tokens.read_text()
        tokens.write_text("- nonsense")
        with pytest.raises(QpuError, match="ask an admin") as caught:
            driver.renew(lease)
        assert not isinstance(caught.value, AuthenticationError)
        tokens.write_text(content)
        driver.renew(lease)
        file.unlink()  # for a moment, while it is replaced
        driver.release(lease)


def test_a_failed_job_is_tried_anew(bqm: dict[str, JSON]) -> None:
    with running_service(
        EmulatedDevice(time_scale=0, faults=Faults(offline=1))
    ) as service:
        lease = service.acquire()
        for jobs in (1, 2, 3):
            with pytest.raises(QpuError, match="the job failed: the QPU is offl"):
                _job_side(service, lease).solve(bqm, PARAMETERS)
            assert len(service.queue.store.jobs.latest(lease=lease)) == jobs


def test_refusals_keep_the_words_of_the_service(
    service: RunningService, bqm: dict[str, JSON]
) -> None:
    # not the job's fault: it was given the lease, and another attempt gets another
    with pytest.raises(QpuError, match="refuses: X-SFQ-Lease: needs a lease"):
        _job_side(service, "unknown").solve(bqm, PARAMETERS)
    lease = service.acquire()
    service.ask("DELETE", f"/v1/leases/{lease}")
    with pytest.raises(QpuError, match="refuses: X-SFQ-Lease: the lease was released"):
        _job_side(service, lease).solve(bqm, PARAMETERS)
    with pytest.raises(
        InputError, match=r"refuses: parameters\.num_reads: Input should"
    ):
        _job_side(service, service.acquire()).solve(bqm, {"num_reads": 0})


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_interrupted_it_cancels_its_job(
    bqm: dict[str, JSON],
    monkeypatch: pytest.MonkeyPatch,
    interruption: type[BaseException],
) -> None:
    monkeypatch.setattr(service_jobs, "CANCEL_SECONDS", SECONDS)
    with running_service(EmulatedDevice(technology="neutral-atom")) as service:
        lease = service.acquire()
        job_side = _job_side(service, lease)

        def interrupted(*_: JSON) -> None:
            service.until(lease, "Running")
            raise interruption

        monkeypatch.setattr(ServiceJobs, "follow", interrupted)
        with pytest.raises(interruption):
            job_side.solve(bqm, PARAMETERS)
        service.until(lease, "Cancelled")
        assert len(service.queue.store.jobs.latest(lease=lease)) == 1


def test_cancelled_by_the_operator(bqm: dict[str, JSON]) -> None:
    with running_service(EmulatedDevice(technology="neutral-atom")) as service:
        lease = service.acquire()

        def cancel() -> None:
            service.ask("DELETE", f"/v1/jobs/{service.until(lease, 'Running')}")

        operator = threading.Thread(target=cancel)
        operator.start()
        with pytest.raises(QpuError, match=r"the job was cancelled$"):
            _job_side(service, lease).solve(bqm, PARAMETERS)
        operator.join()


def test_stopped_under_a_waiting_job(bqm: dict[str, JSON]) -> None:
    with running_service(EmulatedDevice(technology="neutral-atom"), vqpus=2) as service:
        first, second = service.acquire(), service.acquire()
        errors: list[str] = []

        def solve(lease: str) -> None:
            try:
                _job_side(service, lease).solve(bqm, PARAMETERS)
            except QpuError as error:
                errors.append(str(error))

        threads = [
            threading.Thread(target=solve, args=(lease,)) for lease in (first, second)
        ]
        threads[0].start()
        service.until(first, "Running")
        threads[1].start()
        service.until(second, "Queued")
        service.queue.request_stop()
        for thread in threads:
            thread.join(SECONDS)
    assert len(errors) == 2
    assert all("in trouble: the service is being stopped" in error for error in errors)


def test_a_credential_that_cannot_be_sent_is_not_shown() -> None:
    with pytest.raises(InputError, match="X-SFQ-Lease: the value is not") as error:
        SfqQpu("q", "unix:/s", lease="secret\n")
    assert "secret" not in str(error.value)


def test_nobody_listens(bqm: dict[str, JSON]) -> None:
    for url in ("unix:/nowhere/socket", "http://127.0.0.1:1"):
        with pytest.raises(
            QpuError, match=f"QPU 'q' at {url} does not answer: "
        ) as error:
            SfqQpu("q", url, lease="lease").solve(bqm, PARAMETERS)
        assert error.value.exit_code == 75
        assert str(error.value).endswith(
            " (tried for 0.03 s, which q_SFQ_PATIENCE_SECONDS sets)"
        )
        assert "\n" not in str(error.value)


@pytest.fixture
def scripted() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda replies: stack.enter_context(scripted_server(replies))


SAMPLES: dict[str, JSON] = {"type": "SampleSet", "info": {}}


def test_lost_connections_are_tried_again_with_the_same_key(
    scripted: Serve, bqm: dict[str, JSON], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_client, "RETRY_SECONDS", SECONDS)
    queued: dict[str, JSON] = {"id": "j", "state": "Queued"}
    done: dict[str, JSON] = {"id": "j", "state": "Completed"}
    replies: list[Reply] = [
        None,
        None,
        (201, queued),
        None,
        (200, done),
        (200, SAMPLES),
    ]
    server = scripted(replies)
    assert SfqQpu("q", server.url, lease="t").solve(bqm, PARAMETERS) == SAMPLES
    assert len(server.keys) == 3
    assert len(set(server.keys)) == 1


def test_patience_begins_when_the_service_does_not_answer(
    scripted: Serve, bqm: dict[str, JSON], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0])
    monkeypatch.setattr(deadline, "time", clock)
    monkeypatch.setattr(service_client, "RETRY_SECONDS", SECONDS)
    queued: dict[str, JSON] = {"id": "j", "state": "Queued"}
    done: dict[str, JSON] = {"id": "j", "state": "Completed"}

    def replies() -> Iterator[Reply]:
        yield 201, queued
        passed[0] += 10 * SECONDS  # and then the connection is lost
        yield None
        yield 200, done
        yield 200, SAMPLES

    server = scripted([])
    server.replies = replies()
    assert SfqQpu("q", server.url, lease="t").solve(bqm, PARAMETERS) == SAMPLES


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ([(500, {})], "is in trouble: HTTP status 500"),
        ([(503, {"detail": "full", "field": None})] * 9, "is in trouble: full"),
        ([(429, {"detail": "later"})] * 9, "is in trouble: later"),
        ([(200, {"what": "ever"})], "its answer is not a job, is it sfq serve?"),
        ([(201, {"id": "j", "state": "Gone"})], "its answer is not a job"),
        (
            [(201, {"id": "j", "state": "Running"}), (404, {})],
            "no longer knows the job",
        ),
        (
            [(201, {"id": "j", "state": "Running"})],
            "does not answer: .*ended during the job",
        ),
        ([(201, {"id": "j", "state": "Completed"}), (200, {})], "is not a sample set"),
    ],
)
def test_a_service_in_trouble(
    scripted: Serve, bqm: dict[str, JSON], replies: list[Reply], words: str
) -> None:
    server = scripted(replies)
    with pytest.raises(QpuError, match=words):
        SfqQpu("q", server.url, lease="t").solve(bqm, PARAMETERS)


def test_a_busy_service_is_asked_again_when_it_says(
    scripted: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_client, "RETRY_SECONDS", SECONDS)
    server = scripted([(503, {}, {"Retry-After": "1"}), (200, {})])
    began = time.monotonic()
    SfqQpu("q", server.url).release("token")
    assert time.monotonic() - began >= 1.0


def test_unreadable_tokens_are_reported_soon(
    scripted: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_client, "RETRY_SECONDS", SECONDS)
    monkeypatch.setattr(service_client, "TOKENS_SECONDS", 0.0)
    refusal = {"detail": "the tokens file is empty", "field": "Authorization"}
    server = scripted([(503, refusal), (200, {})])
    with pytest.raises(QpuError, match="Authorization: the tokens file is empty"):
        SfqQpu("q", server.url).release("token")


def _task(bqm: dict[str, JSON], tag: str = "t") -> Task:
    return Task(tag, "problem", json.dumps(bqm), {"num_reads": 10, "seed": 1})


def test_a_tagged_job_ends_as_its_service_says(
    service: RunningService, bqm: dict[str, JSON]
) -> None:
    qpu, task = _job_side(service, service.acquire()), _task(bqm)
    job_id = qpu.submit(task)
    assert qpu.submit(task) == job_id
    until(lambda: qpu.poll(job_id).state == "Completed", "the job's end")
    outcome = qpu.result(job_id, task)
    job = service.ask("GET", f"/v1/jobs/{job_id}").json()
    whole = service.ask("GET", f"/v1/jobs/{job_id}/result").json()
    assert outcome.result is not None
    info = {**mapping(whole["info"]), "qpu": "q", "device": "emulator"}
    whole |= {"info": info}
    assert json.loads(outcome.result.whole) == whole
    assert outcome.result.info == whole["info"]
    assert '"info": {' not in outcome.result.text
    assert (outcome.qpu_seconds, outcome.seconds) == (
        job["qpu_seconds"],
        job["seconds"],
    )
    assert outcome.calibration is not None
    assert outcome.calibration.to_json() == job["calibration"]
    assert outcome.calibration.to_json().keys() == {"id", "time", "values"}
    with pytest.raises(InputError, match="key"):
        qpu.submit(Task("t", "problem", task.payload, {"num_reads": 11}))


def test_jobs_in_the_queue_tell_position_and_eta(bqm: dict[str, JSON]) -> None:
    with running_service(EmulatedDevice(technology="neutral-atom")) as service:
        lease = service.acquire()
        qpu = _job_side(service, lease)
        running, queued = (qpu.submit(_task(bqm, tag)) for tag in "ab")
        service.until(lease, "Running")
        assert qpu.poll(running).state == "Running"
        progress = qpu.poll(queued)
        assert (progress.state, progress.position) == ("Queued", 1)
        assert progress.eta_seconds is not None
        job = mapping(service.ask("GET", f"/v1/jobs/{running}").json())
        run_seconds = float(str(job["expected_run_seconds"]))
        assert 100 < progress.eta_seconds <= run_seconds
        with pytest.raises(QpuError, match="is Queued"):
            qpu.result(queued, _task(bqm, "b"))
        qpu.cancel(running)
        outcome = qpu.result(running, _task(bqm, "a"))
        assert (outcome.result, outcome.failure) == (None, None)
        assert outcome.qpu_seconds is not None
        assert outcome.qpu_seconds > 0


def test_the_result_of_another_submission_is_refused(bqm: dict[str, JSON]) -> None:
    with running_service(EmulatedDevice(time_scale=0)) as service:
        lease = service.acquire()
        qpu = _job_side(service, lease)
        own, others = (_task(bqm, tag) for tag in "ab")
        job_id = qpu.submit(others)
        service.until(lease, "Completed")
        with pytest.raises(QpuError, match="asked about job a, and tells of b"):
            qpu.result(job_id, own)
        assert qpu.result(job_id, others).result is not None


def test_only_ones_own_jobs_are_found_by_their_keys(
    bqm: dict[str, JSON], tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.yml"
    tokens.touch(0o600)
    made = {user: new_token() for user in ("ada", "bob", "admin")}
    tokens.write_text(
        json.dumps([token_entry(u, made[u], admin=u == "admin") for u in made])
    )
    with running_service(vqpus=3, authenticate=Tokens(tokens)) as service:
        found: dict[str, str | None] = {}
        for user, token in made.items():
            (file := tmp_path / user).write_text(token)
            config: dict[str, JSON] = {"url": service.url, "tokenFile": str(file)}
            driver = SfqQpu.from_config("q", config)
            variables = driver.environment(driver.acquire("test"))
            qpu = SfqQpu.from_environment("q", variables)
            if user == "ada":
                job_id = qpu.submit(_task(bqm, "a&b=1"))
                assert qpu.find("a") is None
            found[user] = qpu.find("a&b=1")
    assert found == {"ada": job_id, "bob": None, "admin": None}


def test_a_lost_lease_is_told_from_a_refusal(
    service: RunningService, bqm: dict[str, JSON]
) -> None:
    lease = service.acquire()
    qpu = _job_side(service, lease)
    job_id = qpu.submit(_task(bqm))
    until(lambda: qpu.poll(job_id).state == "Completed", "the job's end")
    service.ask("DELETE", f"/v1/leases/{lease}")
    with pytest.raises(LeaseLost, match="the lease was released"):
        qpu.submit(_task(bqm, "another"))
    # what was submitted under it is still known
    assert qpu.find("t") == job_id
    assert qpu.result(job_id, _task(bqm)).result is not None


def test_a_closed_service_accepts_no_job(
    service: RunningService, bqm: dict[str, JSON]
) -> None:
    qpu = _job_side(service, service.acquire())
    service.ask("POST", "/v1/device/close", {"message": "helium"})
    with pytest.raises(
        NotAccepted, match="takes no job now: the QPU is closed: helium"
    ):
        qpu.submit(_task(bqm))
    assert qpu.find("t") is None


def test_what_the_service_says_of_its_device() -> None:
    with running_service(EmulatedDevice(technology="superconducting")) as service:
        described = SfqQpu("q", service.url).describe()
    assert (described.technology, described.qubits) == ("superconducting", 5000)
    assert described.kinds == ("problem", "sequence", "circuit")
    assert described.timing == Timing(9.75, 250e-6, 0.0)
    assert described.calibration is not None
    assert described.calibration.to_json().keys() == {"id", "time", "values"}
    assert (described.out_of_service, described.shots) == (frozenset(), None)
    assert described.topology is None


@pytest.mark.parametrize("kind", ["pegasus", "zephyr"])
def test_what_the_service_says_of_an_annealer(kind: str) -> None:
    out = frozenset({34, 35})
    device = EmulatedDevice(topology=kind, qubits=40, out_of_service=out, shots=9)
    with running_service(device) as service:
        described = SfqQpu("q", service.url).describe()
    told = replace(device.description, calibration=described.calibration)
    assert described == replace(told, specs=device.specs())
    assert described.topology is not None
    assert {type(pair) for pair in described.topology.couplers} == {tuple}


@pytest.mark.parametrize(
    "graph",
    [
        *([], {}, {"kind": "square", "shape": 2}, {"shape": [2], "couplers": {}}),
        *(
            {"kind": "square", "shape": [2], "couplers": [coupler]}
            for coupler in (
                [1],
                [1, -1],
                [1, "2"],
                [1, 2.0],
                [1, True],
                [1, 10**13],
                [1, 2, 3],
                1,
            )
        ),
    ],
)
def test_a_graph_that_is_none(scripted: Serve, graph: JSON) -> None:
    server = scripted([(200, {"technology": "annealer"}), (200, graph)])
    with pytest.raises(QpuError):
        SfqQpu("q", server.url).describe()


JOB: dict[str, JSON] = {"id": "j", "state": "Completed", "idempotency_key": "t"}


@pytest.mark.parametrize(
    ("reply", "expected", "words", "seconds"),
    [
        ((503, {"detail": "draining"}), NotAccepted, "draining", None),
        ((429, {}, {"Retry-After": "7"}), NotAccepted, "429", 7.0),
        ((429, {}, {"Retry-After": "1e9"}), NotAccepted, "429", None),
        ((429, {}, {"Retry-After": "9" * 400}), NotAccepted, "429", 86400.0),
        ((408, {}), NotAccepted, "408", None),
        ((500, {}), QpuError, "in trouble: HTTP status 500", None),
        ((502, {}), QpuError, "in trouble: HTTP status 502", None),
        ((504, {}), QpuError, "in trouble: HTTP status 504", None),
        (None, QpuError, "closed without an answer", None),
        ((201, "<html>"), QpuError, "is not a job", None),
        ((201, [JOB]), QpuError, "is not a job", None),
        ((422, {"detail": "wrong"}), InputError, "refuses: wrong", None),
        ((413, {}), InputError, "refuses: HTTP status 413", None),
        ((401, {"detail": "who"}), AuthenticationError, "refuses: who", None),
        ((403, {"detail": "who"}), AuthenticationError, "refuses: who", None),
        ((403, {"field": "X-SFQ-Lease"}), LeaseLost, "X-SFQ-Lease", None),
    ],
)
def test_after_which_answers_there_may_be_a_job(
    scripted: Serve,
    bqm: dict[str, JSON],
    reply: Reply,
    expected: type[Exception],
    words: str,
    seconds: float | None,
) -> None:
    server = scripted([reply])
    with pytest.raises(expected, match=words) as caught:
        SfqQpu("q", server.url, lease="l").submit(_task(bqm))
    assert type(caught.value) in (expected, Unreachable)
    assert "\n" not in str(caught.value)
    if isinstance(caught.value, NotAccepted):
        assert caught.value.retry_seconds == seconds
    # a submission is never repeated here
    assert server.keys == ["t"]


def test_a_token_that_cannot_be_sent_is_no_fault_of_a_job(
    service: RunningService, bqm: dict[str, JSON], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("token")
    known = Credentials(str(file))
    qpu = SfqQpu("q", service.url, credentials=known, lease=service.acquire())
    file.write_text("t\u00f6ken")
    with pytest.raises(NotAccepted, match="Authorization: the value is not printable"):
        qpu.submit(_task(bqm))


def test_nothing_was_submitted_where_nobody_listens(bqm: dict[str, JSON]) -> None:
    for url in ("unix:/nowhere/socket", "http://127.0.0.1:1"):
        with pytest.raises(NotAccepted, match="does not answer"):
            SfqQpu("q", url, lease="l").submit(_task(bqm))


RESULT = '{"counter": {"a, \\"info\\": {}": 1}, "info": {"seed": 1, "info": {}}}'


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((200, "<html>"), "the result of job j is malformed"),
        ((200, ""), "the result of job j is malformed"),
        ((200, [1]), "the result of job j is malformed"),
        ((200, {"counter": {}}), "the result of job j is malformed"),
        ((200, {"counter": {}, "info": 1}), "the result of job j is malformed"),
        ((200, RESULT[:-2]), "the result of job j is malformed"),
        ((200, "x" * 1001), "more than 1,000 bytes"),
        ((200, RESULT, {"Content-Length": "900"}), r"IncompleteRead\(\d+ bytes read, "),
        ((503, {}), "HTTP status 503"),
        ((404, {"detail": "no such job"}), "no such job"),
        (None, "without an answer"),
    ],
)
def test_a_result_that_is_none(
    scripted: Serve, monkeypatch: pytest.MonkeyPatch, reply: Reply, words: str
) -> None:
    server = scripted([(200, JOB), reply])
    qpu = SfqQpu("q", server.url, lease="l")
    monkeypatch.setattr(qpu.service._client, "_most_bytes", 1000)
    with pytest.raises(QpuError, match=words) as caught:
        qpu.result("j", _task({}))
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, UnknownJob) == (
        reply is not None and reply[0] == 404
    )


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<html>",
        '{"counter": {"0": 1}}',
        '{"counter": {"0": "1"}}\n{"next": 1, "over": true, "state": "Completed"}',
        '{"counter": {"2": 1}}\n{"next": 1, "over": true, "state": "Completed"}',
        '{"counter": 1}\n{"next": 1, "over": true, "state": "Completed"}',
        '{"next": Infinity, "over": true, "state": "Completed"}',
        '{"next": 0, "over": false, "state": "Completed"}',
        '{"next": 0, "over": true, "state": "Running"}',
        '{"next": 7, "over": false, "state": "Running"}',
        '{"counter": {"0": 1}}\n{"next": 0, "over": false, "state": "Running"}',
        "[" * 1000 + "]" * 1000,
        "[1]\n[2]",
    ],
)
def test_counts_that_are_none(scripted: Serve, body: str) -> None:
    server = scripted([(200, body)])
    with pytest.raises(QpuError, match="the results of job j are malformed"):
        [*SfqQpu("q", server.url, lease="l").counters("j")]


def test_info_is_told_from_what_looks_like_it(scripted: Serve) -> None:
    server = scripted([(200, JOB), (200, RESULT)])
    outcome = SfqQpu("q", server.url, lease="l").result("j", _task({}))
    assert outcome.result is not None
    assert outcome.result.info == {"seed": 1, "info": {}}
    assert outcome.result.whole == RESULT


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ((200, []), None),
        ((200, [JOB]), "j"),
        ((200, [{**JOB, "idempotency_key": "other"}]), QpuError),
        ((200, {}), QpuError),
        ((200, [1]), QpuError),
        ((200, "<html>"), QpuError),
        ((500, []), QpuError),
        (None, QpuError),
    ],
)
def test_looking_a_job_up(
    scripted: Serve, reply: Reply, found: str | type[QpuError] | None
) -> None:
    qpu = SfqQpu("q", scripted([reply]).url, lease="l")
    if isinstance(found, type):
        with pytest.raises(found, match=r"QPU 'q' at http://127"):
            qpu.find("t")
    else:
        assert qpu.find("t") == found


@pytest.mark.parametrize(
    "reply", [(200, {"state": "Odd"}), (200, {"state": []}), (200, "x"), (200, {})]
)
def test_a_state_that_nobody_knows(scripted: Serve, reply: Reply) -> None:
    with pytest.raises(QpuError, match="its answer is not a job"):
        SfqQpu("q", scripted([reply]).url, lease="l").poll("j")


@pytest.mark.parametrize(
    "told", ["NaN", "Infinity", "-Infinity", "1e999", "-1", "1e300", "1" * 400, "true"]
)
def test_numbers_that_are_none(scripted: Serve, told: str) -> None:
    keys = (
        "qpu_seconds seconds eta_seconds position cost_per_second queue_length".split()
    )
    numbers = ", ".join(f'"{key}": {told}' for key in keys)
    job = f'{{"state": "Cancelled", {numbers}}}'
    device = f'{{"name": "q", "technology": "t", "status": "online", {numbers}}}'
    server = scripted([(200, job), (200, job), (200, device)])
    qpu = SfqQpu("q", server.url, lease="l")
    assert qpu.poll("j") == Progress("Cancelled")
    assert qpu.result("j", _task({})) == Outcome()
    status = qpu.status()
    assert (status.eta_seconds, status.cost_per_second) == (None, None)
    assert (status.position, status.queue_length) == (0, 0)


@pytest.mark.parametrize(
    ("told", "note", "failure"),
    [
        ("closed: helium", "closed: helium", "job j: cancelled: closed: helium"),
        ("cancelled", "", "job j: cancelled"),
    ],
)
def test_why_a_job_was_cancelled(
    scripted: Serve, told: str, note: str, failure: str
) -> None:
    server = scripted([(200, {"state": "Cancelled", "note": told})])
    outcome = SfqQpu("q", server.url, lease="l").result("j", _task({}))
    assert outcome == Outcome(note=note)
    assert named(outcome, "j").failure == failure


def test_the_identity_is_where_jobs_are(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    plain = {"url": "http://127.0.0.1:9"}
    more = {"url": "http://127.0.0.1:9/", "class": "test", "project": "p"}
    more["tokenFile"] = str(tmp_path / "token")
    here, again, there = (
        SfqQpu.from_config("q", config).identity
        for config in (plain, more, {"url": "http://127.0.0.1:8"})
    )
    assert here == again != there


@pytest.mark.parametrize(
    ("told", "pause"), [("-1", 0.0), ("NaN", 0.0), ("6", 2.0), ("null", None)]
)
def test_a_lease_that_expires_is_renewed_whenever_that_is(
    scripted: Serve, told: str, pause: float | None
) -> None:
    server = scripted([(200, f'{{"idle_seconds_left": {told}}}')])
    assert SfqQpu("q", server.url).renew("l") == pause


def _small(number: int, reads: int = 20) -> Task:
    parameters = {"num_reads": reads, "seed": number}
    return Task(f"loop-{number}", "problem", json.dumps(example_bqm()), parameters)


def test_a_small_job_is_run_by_one_request(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    qpu = _job_side(service, service.acquire())
    send, sent = qpu.service.send, []

    def noted(
        method: str, path: str, body: bytes, *, timeout_seconds: float, retry: bool
    ) -> Response:
        sent.append(method)
        return send(method, path, body, timeout_seconds=timeout_seconds, retry=retry)

    with monkeypatch.context() as patch:
        patch.setattr(qpu.service, "send", noted)
        outcomes = [qpu.run_job(_small(number)) for number in range(3)]
    assert sent == ["POST"] * 3
    for number, outcome in enumerate(outcomes):
        assert outcome.result is not None
        fetched = qpu.result(str(outcome.result.info["job"]), _small(number))
        assert fetched.result is not None
        assert json.loads(fetched.result.text) == json.loads(outcome.result.text)
        assert replace(fetched, result=outcome.result) == outcome


def test_a_large_result_is_fetched_by_itself(service: RunningService) -> None:
    qpu = _job_side(service, service.acquire())
    outcome = qpu.run_job(_small(1, 10_000))
    assert outcome.result is not None
    assert len(outcome.result.text) > INLINE_CHARACTERS


def test_a_job_that_fails_says_why(bqm: dict[str, JSON]) -> None:
    device = EmulatedDevice(time_scale=0.0, faults=Faults(fail=1.0))
    with running_service(device) as service:
        outcome = _job_side(service, service.acquire()).run_job(_small(1))
        assert outcome.result is None
        assert str(outcome.failure).endswith(": the QPU failed")


def test_an_interrupted_run_cancels_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_service(EmulatedDevice(time_scale=1e6)) as service:
        monkeypatch.setattr(service_jobs, "POLL_SECONDS", 0.01)
        qpu = _job_side(service, service.acquire())

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(ServiceJobs, "follow", interrupt)
        with pytest.raises(KeyboardInterrupt):
            qpu.run_job(_small(1))
        until(lambda: service.queue.store.jobs.latest()[0].state == "Cancelled")


@pytest.mark.parametrize("wait", ["61", "-1", "nan", "soon"])
def test_how_long_a_submission_may_wait_is_checked(
    service: RunningService, bqm: dict[str, JSON], wait: str
) -> None:
    lease = service.acquire()
    for extra in ("", " " * 100_000):  # a large body is read in another way
        body = json.dumps({"problem": bqm, "idempotency_key": "k"}) + extra
        client = SfqQpu("q", service.url, lease=lease).service
        with pytest.raises(InputError, match="wait"):
            client.send("POST", f"/v1/jobs?wait={wait}", body.encode())
    assert not service.queue.store.jobs.latest()


def test_a_large_submission_is_answered_at_once_and_whole(
    bqm: dict[str, JSON],
) -> None:
    with running_service(EmulatedDevice(time_scale=1e6)) as service:
        qpu = SfqQpu("q", service.url, lease=service.acquire())
        given: dict[str, JSON] = {"problem": bqm, "idempotency_key": "k"}
        body = json.dumps({**given, "repeatable": True}) + " " * 100_000
        # it never ends by itself
        job = qpu.service.send("POST", "/v1/jobs?wait=60", body.encode()).json()
        assert (job["repeatable"], job["result"]) == (True, None)
        qpu.cancel(str(job["id"]))


def test_a_large_job_is_run_all_the_same(service: RunningService) -> None:
    qpu = _job_side(service, service.acquire())
    task = replace(_small(1), payload=json.dumps(example_bqm()) + " " * 100_000)
    outcome = qpu.run_job(task)
    assert outcome.result is not None
    assert outcome.result.info["job"]


def test_paths_of_a_site_file_start_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    paths = {"qpu.token": "site/qpu.token", "/a/t": "/a/t", "~/t": "home/t"}
    for given, expected in paths.items():
        environment = {"SFQ_URL": "unix:qpu.sock", "SFQ_TOKEN_FILE": given}
        entry = {"name": "qpu", "type": "sfq", "environment": environment}
        Path("site/qrmi.json").write_text(json.dumps({"resources": [entry]}))
        found = qrmi_config.read("site/qrmi.json", "qpu").environment
        assert found == {
            "SFQ_URL": f"unix:{tmp_path}/site/qpu.sock",
            "SFQ_TOKEN_FILE": str(tmp_path / expected),
        }
