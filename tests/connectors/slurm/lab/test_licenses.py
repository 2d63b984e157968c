"""``sfq slurm licenses``: Slurm starts a job when a vQPU is free, whatever happens meanwhile."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sf_quantum.cli import main
from sf_quantum.cli.batch import slurm
from sf_quantum.qpu.leasing.burst import controller
from sf_quantum.qpu.leasing.burst.licenses import Licenses
from sf_quantum.service.domain.jobs import Identity
from sf_quantum.service.http.auth import FixedIdentity
from tests.conftest import StartLab
from tests.support.lab_conf import Options
from tests.support.service_process import SFQ
from tests.support.site_daemons import Site
from tests.support.waiting import SECONDS

pytestmark = pytest.mark.process

RESERVATION = "sfq-qpu"
LOCAL, REMOTE = "qpu", "qpu@sfq"


@pytest.fixture(scope="module")
def site(
    start_lab: StartLab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A site with two licences in slurm.conf, and two in slurmdbd."""
    options = Options(nodes=1, qnodes=1, cpus=16, site=True, licenses=f"{LOCAL}:2")
    with start_lab(options) as lab:
        words = "name=qpu server=sfq servertype=sfq type=license count=2 cluster=lab"
        lab.output(
            *("sacctmgr", "--immediate", "add", "resource"),
            *(*words.split(), "percentallowed=100"),
        )
        yield Site(lab, tmp_path_factory.mktemp("licenses"))


@pytest.fixture(autouse=True)
def _environment(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with site.environment(monkeypatch):
        yield
    if RESERVATION in controller.reserved_licenses():
        site.lab.output("scontrol", "delete", f"ReservationName={RESERVATION}")


def licenses(site: Site, license_: str = LOCAL) -> Licenses:
    """Make what keeps the licences in this process, whose looks the test calls."""
    parser = argparse.ArgumentParser()
    slurm.configure(parser)
    words = site.words("licenses", "--license", f"qpu={license_}")
    return slurm.make_licenses(parser.parse_args(words))


def withheld(site: Site) -> str | None:
    with_licenses = site.lab.output("scontrol", "-o", "show", "reservation")
    assert with_licenses.count("ReservationName") <= 1
    return controller.reserved_licenses().get(RESERVATION)


def wait_refused(site: Site, job: int) -> None:
    """Wait until Slurm has tried to start a job, and lacked a licence."""
    site.lab.wait_for(lambda: site.reason(job) == "Licenses", f"{job} waits", SECONDS)


def wait_running(site: Site, job: int) -> None:
    site.lab.wait_for(lambda: site.lab.state(job) == "RUNNING", f"{job} runs", SECONDS)


def leased(site: Site, script: str) -> str:
    """The command that runs a script with a lease."""
    lease = f"{SFQ[0]} lease --qrmi-config {site.config} --qpu qpu --"
    return f"{lease} sh -c '{script}'"


def until_exists(file: Path) -> str:
    return f"until [ -e {file} ]; do sleep 0.1; done"


@pytest.mark.parametrize("license_", [LOCAL, REMOTE])
def test_a_job_starts_when_another_user_releases_a_vqpu(
    site: Site, license_: str
) -> None:
    with site.serving() as service:
        keeper, lease = licenses(site, license_), service.acquire()
        keeper.poll()
        assert withheld(site) == f"{license_}:2"
        job = site.submit(leased(site, "echo ran"), f"--licenses={license_}:1")
        wait_refused(site, job)
        service.ask("DELETE", f"/v1/leases/{lease}")
        keeper.poll()
        assert withheld(site) == f"{license_}:1"
        assert site.output(job).splitlines() == ["ran"]


def test_the_lease_of_a_licensed_job_withholds_no_license(
    site: Site, tmp_path: Path
) -> None:
    with site.serving(vqpus=2) as service:
        keeper = licenses(site)
        script = leased(site, until_exists(tmp_path / "end"))
        jobs = [site.submit(script, "--licenses=qpu:1") for _ in range(2)]
        site.lab.wait_for(
            lambda: len(service.queue.leases.held) == 2, "two leases", SECONDS
        )
        keeper.poll()
        assert withheld(site) is None
        (tmp_path / "end").touch()
        for job in jobs:
            site.output(job)


def test_while_the_qpu_is_closed_no_job_starts_and_others_run_on(
    site: Site, tmp_path: Path
) -> None:
    with site.serving(vqpus=2) as service:
        keeper = licenses(site)
        first = site.submit(until_exists(tmp_path / "end"), "--licenses=qpu:1")
        wait_running(site, first)
        service.ask("POST", "/v1/device/close", {"message": "new laser"})
        keeper.poll()
        assert withheld(site) == "qpu:2"
        second = site.submit("true", "--licenses=qpu:1")
        wait_refused(site, second)
        assert site.lab.state(first) == "RUNNING"
        service.ask("POST", "/v1/device/open")
        keeper.poll()
        site.output(second)
        (tmp_path / "end").touch()
        site.output(first)
        assert site.lab.state(first) == "COMPLETED"


def test_a_service_that_is_away_is_logged_once_and_grants_none(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    with site.serving(vqpus=2):
        keeper = licenses(site)
    for _ in range(3):
        keeper.poll()
    assert withheld(site) == "qpu:2"
    assert len(caplog.messages) == 1
    with site.serving(vqpus=2):
        # The service that is back has another address.
        keeper._qpus = licenses(site)._qpus
        keeper.poll()
    assert caplog.messages[1:] == ["qpu: answers again after 3 failures"]
    assert withheld(site) is None


def test_a_controller_that_is_away_is_logged_once(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("WARNING")
    with site.serving(vqpus=1):
        keeper = licenses(site)
        with monkeypatch.context() as patch:
            patch.setenv("PATH", "/nonexistent")
            for _ in range(2):
                keeper.poll()
        assert [line[:14] for line in caplog.messages] == ["Slurm: squeue:"]
        keeper.poll()
    assert caplog.messages[1:] == ["Slurm: answers again after 2 failures"]
    assert withheld(site) == "qpu:1"


def test_a_reservation_that_is_deleted_is_made_again(site: Site) -> None:
    with site.serving() as service:
        keeper = licenses(site)
        service.acquire()
        keeper.poll()
        site.lab.output("scontrol", "delete", f"ReservationName={RESERVATION}")
        keeper.poll()
        assert withheld(site) == "qpu:2"


def test_numbers_that_are_right_are_not_written(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.serving():
        keeper = licenses(site)
        keeper.poll()
        assert withheld(site) == "qpu:1"
        monkeypatch.setattr(
            controller, "reserve", lambda *_, **__: pytest.fail("wrote")
        )
        keeper.poll()


@contextmanager
def running(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    """Run the daemon with one of two vQPUs leased, until it has written that."""
    with site.serving(vqpus=2) as service:
        service.acquire()
        process = subprocess.Popen([*SFQ, "slurm", *site.words("licenses")])
        try:
            site.lab.wait_for(lambda: withheld(site) == "qpu:1", "a look", SECONDS)
            yield process
        finally:
            process.kill()
            process.wait()


def test_a_daemon_that_is_terminated_withholds_nothing(site: Site) -> None:
    with running(site) as process:
        process.terminate()
        assert process.wait(SECONDS) == 143
    assert withheld(site) is None


def test_a_second_daemon_is_refused(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(site):
        assert main(["slurm", *site.words("licenses")]) == 2
        assert withheld(site) == "qpu:1"
    assert "another process uses it" in capsys.readouterr().err


def test_a_license_that_slurm_lacks_is_refused(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    words = site.words("licenses", "--license", "qpu=qpus@sfq")
    with site.serving():
        assert main(["slurm", *words]) == 2
    assert capsys.readouterr().err.strip() == (
        "sfq slurm: unknown licence of Slurm 'qpus@sfq', did you mean 'qpu@sfq'? "
        "(known: qpu, qpu@sfq)"
    )


def test_a_user_who_is_not_an_admin_is_refused(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with site.serving(authenticate=FixedIdentity(Identity("ada", admin=False))):
        assert main(["slurm", *site.words("licenses")]) == 2
    assert "admin" in capsys.readouterr().err


def test_two_qpus_with_one_license_are_refused(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with site.serving():
        content = json.loads(site.config.read_text())
        content["resources"].append({**content["resources"][0], "name": "other"})
        site.config.write_text(json.dumps(content))
        words = ["--qpu", "other", "--license", "other=qpu"]
        assert main(["slurm", *site.words("licenses", *words)]) == 2
    assert "two QPUs cannot have the same licence" in capsys.readouterr().err
