"""The gate over a batch system in memory, and how it reads Flux, without either installed."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sf_quantum.cli.batch import gating, slurm
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.leasing.batch_jobs import BatchJob, lease_request
from sf_quantum.qpu.leasing.gating import flux
from sf_quantum.qpu.leasing.gating.gate import Gate
from sf_quantum.qpu.leasing.gating.job_requests import parse_request
from sf_quantum.qpu.leasing.gating.scheduler import (
    Applicant,
    GatedJob,
    Scheduler,
    run_command,
)
from sf_quantum.qpu.leasing.held_leases import AcquireOptions
from sf_quantum.qpu.leasing.qpu_limits import QpuLimits
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.service.domain.jobs import Identity, Lease
from sf_quantum.service.http.auth import FixedIdentity
from tests.support.service import RunningService, running_service
from tests.support.waiting import SECONDS, until

HELD = GatedJob("ada", "qpu=qpu", True, True, True, "held")
ADMIN = FixedIdentity(Identity("operator", admin=True))


class FakeScheduler(Scheduler):
    """Jobs that the test changes."""

    title = "Fake"

    def __init__(self) -> None:
        super().__init__("one")
        self.listed: dict[str, GatedJob] = {}
        self.explained: dict[str, str] = {}

    def jobs(self) -> dict[str, GatedJob]:
        return {**self.listed}

    def applicant(self, job: str) -> Applicant:
        return Applicant(self.listed[job].user, "", "", {})

    def release(self, job: str) -> None:
        self.listed[job] = replace(self.listed[job], is_held=False, reason="busy")

    def hold(self, job: str) -> None:
        if not self.listed[job].is_pending:
            raise QpuError("it has started")
        self.listed[job] = replace(self.listed[job], is_held=True)

    def explain(self, job: str, text: str) -> None:
        self.explained[job] = text


class Site:
    """A gate over jobs in memory, and a service.

    :param others: services of further QPUs, by name
    """

    def __init__(
        self,
        service: RunningService,
        *,
        hold_seconds: float = 0.0,
        **others: RunningService,
    ) -> None:
        self.service = service
        self.scheduler = FakeScheduler()
        urls = {name: one.url for name, one in {"qpu": service, **others}.items()}

        def request(
            job: BatchJob, qpu: str, hints: LeaseHints
        ) -> tuple[Qpu, AcquireOptions]:
            user = self.scheduler.listed[job.id].user
            client = SfqQpu(qpu, urls[qpu], lease_options={"user": user})
            return client, lease_request(job, None, hints)

        qpus = [SfqQpu(name, url) for name, url in urls.items()]
        limits = [QpuLimits(name, 8, 4) for name in urls]
        self.gate = Gate(
            qpus, limits, request, self.scheduler, hold_seconds=hold_seconds
        )

    @property
    def held(self) -> list[Lease]:
        return self.service.queue.leases.held

    def look_until_held(self, count: int = 1) -> None:
        self.gate.poll()
        until(lambda: len(self.held) == count, "a lease")

    def look_until_released(self, job: str) -> None:
        def is_released() -> bool:
            self.gate.poll()
            return not self.scheduler.listed[job].is_held

        until(is_released, "the release of the job")

    def keys(self) -> list[str]:
        return [str(lease.key) for lease in self.held]


@pytest.fixture
def site() -> Iterator[Site]:
    with running_service(authenticate=ADMIN) as service:
        yield Site(service)


def test_a_held_job_is_released_with_a_lease_of_its_user(site: Site) -> None:
    site.scheduler.listed = {"f1": HELD}
    site.look_until_held()
    assert site.scheduler.listed["f1"].is_held
    site.gate.poll()
    assert not site.scheduler.listed["f1"].is_held
    assert (site.keys(), site.held[0].user) == (["fake-one-f1"], "ada")


def test_users_can_gate_their_own_jobs_without_being_admins() -> None:
    with running_service(
        authenticate=FixedIdentity(Identity("ada", admin=False))
    ) as service:
        site = Site(service)
        other = replace(HELD, user="eve")
        site.scheduler.listed = {"f1": other, "f2": HELD}
        site.look_until_held()
        assert site.keys() == ["fake-one-f2"]
        site.gate.poll()
        assert "only root and admins" in site.scheduler.explained["f1"]


def test_the_lease_of_a_job_ends_after_two_lists_without_it(site: Site) -> None:
    site.scheduler.listed = {"f1": HELD}
    site.look_until_held()
    site.scheduler.listed = {}
    site.gate.poll()
    assert site.held
    site.gate.poll()
    assert not site.held


def test_a_job_with_the_id_of_a_forgotten_one_has_another_lease(site: Site) -> None:
    site.scheduler.listed = {"f1": replace(HELD, submitted="1000")}
    site.look_until_released("f1")
    (earlier,) = site.held
    # The batch system has forgotten it, and the user's next job gets its id.
    site.scheduler.listed = {"f1": replace(HELD, submitted="1005")}
    site.look_until_released("f1")
    (lease,) = site.held
    assert lease.id != earlier.id
    assert lease.key == "fake-one-f1.1005"


def test_a_job_that_is_queued_again_keeps_its_lease(site: Site) -> None:
    site.scheduler.listed = {"f1": replace(HELD, submitted="1000")}
    site.look_until_released("f1")
    requeued = replace(site.scheduler.listed["f1"], submitted="", is_pending=False)
    site.scheduler.listed["f1"] = requeued
    for _ in range(3):
        site.gate.poll()
    assert site.keys() == ["fake-one-f1.1000"]


def test_a_job_whose_time_lies_ahead_gives_its_lease_back_at_once() -> None:
    """Slurm lets a job that it has queued again wait for two minutes."""
    with running_service(authenticate=ADMIN) as service:
        site = Site(service, hold_seconds=1000.0)
        site.scheduler.listed = {"f1": HELD}
        site.look_until_released("f1")
        waits = replace(site.scheduler.listed["f1"], may_start=False)
        site.scheduler.listed["f1"] = waits
        site.gate.poll()
        assert site.scheduler.listed["f1"].is_held
        until(lambda: not site.held, "no lease")


@pytest.mark.parametrize(
    ("asking", "message"),
    [
        ("other=2:1", "--asking: unknown QPU 'other'"),
        ("qpu=1:2", "--asking: 2 of 1 jobs"),
        ("qpu=2:0", "--asking: 0 of 2 jobs"),
    ],
)
def test_wrong_places_are_refused(asking: str, message: str, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    slurm.configure(parser)
    config = tmp_path / "qrmi_config.json"
    resource: dict[str, JSON] = {"name": "qpu", "type": "sfq"}
    resource["environment"] = {"SFQ_URL": "http://localhost:1"}
    config.write_text(json.dumps({"resources": [resource]}))
    words = ["gate", "--state", str(tmp_path), "--qrmi-config", str(config)]
    named = parser.parse_args([*words, "--qpu", "qpu", "--asking", asking])
    with pytest.raises(InputError, match=message):
        gating.make_gate(named, FakeScheduler())


def test_malformed_places_are_refused() -> None:
    with pytest.raises(ValueError, match="qpu=2"):
        QpuLimits.parse("qpu=2")


def test_a_lease_whose_key_has_no_time_is_its_jobs(site: Site) -> None:
    site.scheduler.listed = {"f1": HELD}
    site.look_until_released("f1")
    running = replace(site.scheduler.listed["f1"], submitted="1000", is_pending=False)
    site.scheduler.listed["f1"] = running
    site.gate.poll()
    assert site.keys() == ["fake-one-f1"]


def test_a_forgotten_jobs_request_serves_no_job_with_its_id(site: Site) -> None:
    held = site.service.acquire()
    site.scheduler.listed = {"f1": replace(HELD, submitted="1000")}
    site.gate.poll()
    until(lambda: site.service.queue.leases.waiting == 1, "its request")
    site.scheduler.listed = {"f1": replace(HELD, submitted="1005", user="eve")}
    site.gate.poll()
    until(lambda: site.service.queue.leases.waiting == 0, "no request")
    site.gate.poll()
    until(lambda: site.service.queue.leases.waiting == 1, "another request")
    site.service.ask("DELETE", f"/v1/leases/{held}")
    site.look_until_released("f1")
    (lease,) = site.held
    assert (lease.user, lease.key) == ("eve", "fake-one-f1.1005")


def test_the_refusal_of_a_forgotten_job_is_no_others(site: Site) -> None:
    refused = replace(HELD, request="qpu=none", submitted="1000")
    site.scheduler.listed = {"f1": refused}
    site.gate._refused["f1"] = math.inf
    site.gate.poll()
    site.scheduler.listed = {"f1": replace(HELD, submitted="1005", user="eve")}
    site.look_until_released("f1")
    assert [lease.user for lease in site.held] == ["eve"]


def test_a_job_that_is_queued_again_keeps_its_position(site: Site) -> None:
    site.scheduler.listed = {"f1": replace(HELD, submitted="1000")}
    site.look_until_released("f1")
    later = replace(HELD, submitted="1001")
    again = replace(site.scheduler.listed["f1"], submitted="")
    site.scheduler.listed = {"f1": again, "f2": later, "f3": later}
    # No job has nodes, so that each one's lease goes to the next.
    holders: list[str] = []

    def have_two_had_it() -> bool:
        site.gate.poll()
        keys = site.keys()
        if keys and keys != holders[-1:]:
            holders.extend(keys)
        return len(holders) >= 2

    until(have_two_had_it, "two leases")
    assert holders[:2] == ["fake-one-f2.1001", "fake-one-f1.1000"]


def test_jobs_ask_in_the_order_in_which_they_are_listed(site: Site) -> None:
    site.scheduler.listed = {"f9": HELD, "f10": HELD}
    site.look_until_held()
    assert site.keys() == ["fake-one-f9"]


def test_a_job_without_nodes_is_held_and_the_next_has_the_lease(site: Site) -> None:
    site.scheduler.listed = {"f1": HELD}
    site.look_until_held()
    site.gate.poll()
    site.scheduler.listed["f2"] = HELD
    site.gate.poll()
    until(lambda: site.keys() == ["fake-one-f2"], "the lease of the next")
    assert site.scheduler.listed["f1"].is_held
    assert site.scheduler.explained["f1"] == (
        "qpu: its lease had no nodes (busy), it asks again"
    )


def test_a_lease_is_renewed_while_its_job_waits_for_nodes() -> None:
    with running_service(authenticate=ADMIN) as service:
        site = Site(service, hold_seconds=SECONDS)
        site.scheduler.listed = {"f1": HELD}
        site.look_until_released("f1")
        (lease,) = site.held

        def seconds_left() -> float:
            return service.queue.leases.idle_seconds_left(lease) or 0.0

        whole = seconds_left()
        until(lambda: seconds_left() < whole - 0.1, "some of its idle time")
        left = seconds_left()
        site.gate.poll()
        assert seconds_left() > left


def test_a_job_that_starts_meanwhile_keeps_its_lease(site: Site) -> None:
    site.scheduler.listed = {"f1": HELD}
    site.look_until_held()
    site.scheduler.listed["f1"] = replace(HELD, is_held=False, is_pending=False)
    for _ in range(3):
        site.gate.poll()
    assert site.keys() == ["fake-one-f1"]


def test_a_job_with_another_qpu_asks_for_that_alone(site: Site) -> None:
    with running_service(authenticate=ADMIN) as other:
        site = Site(site.service, other=other)
        taken = site.service.acquire()
        site.scheduler.listed = {"f1": HELD}
        site.gate.poll()
        site.scheduler.listed = {"f1": replace(HELD, request="qpu=other")}
        site.look_until_released("f1")
        site.service.ask("DELETE", f"/v1/leases/{taken}")
        assert (site.held, len(other.queue.leases.held)) == ([], 1)
        assert not site.service.queue.leases.waiting


def test_a_lease_that_is_no_longer_wanted_is_given_back(site: Site) -> None:
    with running_service(authenticate=ADMIN) as other:
        site = Site(site.service, other=other)
        site.scheduler.listed = {"f1": HELD}
        site.look_until_held()
        site.scheduler.listed = {"f1": replace(HELD, request="qpu=other")}
        site.look_until_released("f1")
        assert (site.held, len(other.queue.leases.held)) == ([], 1)


def test_changed_bounds_are_those_of_the_lease(site: Site) -> None:
    site.scheduler.listed = {"f1": replace(HELD, request="qpu=qpu qpu-shots=9")}
    site.look_until_held()
    site.scheduler.listed = {"f1": replace(HELD, request="qpu=qpu qpu-shots=5")}
    site.look_until_released("f1")
    assert [lease.max_shots for lease in site.held] == [5]


def test_a_refused_job_with_another_request_asks_at_once(site: Site) -> None:
    eve = FixedIdentity(Identity("eve", admin=False))
    with running_service(authenticate=eve) as other:
        site = Site(site.service, other=other)
        site.scheduler.listed = {"f1": replace(HELD, request="qpu=other")}
        site.gate.poll()
        until(lambda: site.gate._requests["f1"][1].done(), "a refusal")
        site.gate.poll()
        assert "only root and admins" in site.scheduler.explained["f1"]
        site.scheduler.listed = {"f1": HELD}
        site.look_until_released("f1")


def test_leases_of_other_clusters_are_left_alone(site: Site) -> None:
    site.service.ask("POST", "/v1/leases", {"key": "fake-two-f1"})
    for _ in range(3):
        site.gate.poll()
    assert site.keys() == ["fake-two-f1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qpu-shots=5", "bounds without a QPU"),
        ("qpu=qpu qpu-shot=5", "unknown bound 'qpu-shot'"),
        ("qpu=qpu qpu-seconds=0", "expected a number of seconds above 0, not '0'"),
    ],
)
def test_a_wrong_request_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_request(text)


# As flux-core 0.88 prints them.
ROWS = [
    "fkMPzwq\tada\t\tDEPEND\t0\t28454158336",
    "feVtqQs\tada\t\tSCHED\t0\t24612175872",
    "f3tUdsQK\tada\t\tRUN\t16\t109924319232",
]
SPEC: dict[str, JSON] = {"qpu": "fresnel", "qpu-seconds": 30, "max-shots": 5}


class FakeFlux:
    """Answers of ``flux``."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.rows = ROWS
        self.owner = os.getuid()

    def __call__(self, _: str, *words: str) -> str:
        self.asked.append(words)
        match words:
            case ["getattr", "security.owner"]:
                return str(self.owner)
            case ["job", "urgency", *_] if ("queue", "status") in self._begun():
                raise QpuError("flux: urgency cannot be changed")
            case ["queue", "status", *_]:
                return (
                    f"{2 - self.asked.count(words)} alloc requests pending to scheduler"
                )
            case ["jobs", *_]:
                return "\n".join(self.rows)
            case ["job", "info", "feVtqQs", "jobspec"]:
                return json.dumps({"attributes": {"system": {"sfq": SPEC}}})
            case ["job", "info", *_]:
                return json.dumps({"attributes": {"system": {"sfq": 1}}})
            case ["kvs", "get", _] if ("kvs", "put") not in self._begun():
                raise QpuError("flux: flux-kvs: sfq.gate: No such file or directory")
        return "a1b2"

    def _begun(self) -> set[tuple[str, ...]]:
        return {words[:2] for words in self.asked}


@pytest.fixture
def fake_flux(monkeypatch: pytest.MonkeyPatch) -> FakeFlux:
    fake = FakeFlux()
    monkeypatch.setattr(flux, "run_command", fake)
    return fake


def test_jobs_of_flux_are_listed_in_the_order_of_submission(
    fake_flux: FakeFlux,
) -> None:
    jobs = flux.Flux().jobs()
    assert {id_: (job.is_held, job.may_start) for id_, job in jobs.items()} == {
        "feVtqQs": (True, True),
        "fkMPzwq": (True, False),
        "f3tUdsQK": (False, False),
    }
    assert [*jobs] == ["feVtqQs", "fkMPzwq", "f3tUdsQK"]
    assert not jobs["f3tUdsQK"].is_pending


def test_attributes_of_flux_jobs_are_read_once(fake_flux: FakeFlux) -> None:
    scheduler = flux.Flux()
    for _ in range(2):
        request = scheduler.jobs()["feVtqQs"].request
        assert request == "qpu=fresnel qpu-seconds=30 qpu-max_shots=5"
    asked = [words[2] for words in fake_flux.asked if words[:2] == ("job", "info")]
    assert asked == ["feVtqQs", "fkMPzwq"]


def test_a_list_that_flux_does_not_print_is_a_qpu_error(fake_flux: FakeFlux) -> None:
    fake_flux.rows = [*ROWS, "feVtqQs"]
    with pytest.raises(QpuError, match="flux jobs: not its list: "):
        flux.Flux().jobs()


def test_nodes_that_arrive_after_a_hold_of_flux_refuse_it(fake_flux: FakeFlux) -> None:
    scheduler = flux.Flux()
    with pytest.raises(QpuError, match="urgency cannot be changed"):
        scheduler.hold("feVtqQs")
    statuses = [words for words in fake_flux.asked if words[0] == "queue"]
    assert len(statuses) == 2


def test_a_gate_of_another_user_than_the_owner_is_refused(fake_flux: FakeFlux) -> None:
    fake_flux.owner += 1
    with pytest.raises(
        InputError, match=f"owner of the instance, uid {fake_flux.owner}"
    ):
        flux.Flux()


def test_commands_of_batch_systems_run_in_the_locale_c(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert run_command("printenv", "LC_ALL") == "C.UTF-8"


def test_a_word_that_no_command_can_have_is_a_qpu_error() -> None:
    with pytest.raises(QpuError, match="null byte"):
        run_command("true", "\0")


def test_a_flux_instance_is_named_once(fake_flux: FakeFlux) -> None:
    assert {flux.Flux().name("f1").key for _ in range(2)} == {"flux-a1b2-f1"}
    puts = [words for words in fake_flux.asked if words[:2] == ("kvs", "put")]
    assert len(puts) == 1


def test_a_gate_waits_for_a_batch_system_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Exception] = [QpuError("refused"), QpuError("refused")]

    def make() -> Scheduler:
        if answers:
            raise answers.pop()
        raise InputError("it answers")

    monkeypatch.setattr(gating, "POLL_SECONDS", 0)
    args = argparse.Namespace(command="fake", act="gate", state=tmp_path)
    with pytest.raises(InputError, match="it answers"):
        gating.run_gate(args, make)
