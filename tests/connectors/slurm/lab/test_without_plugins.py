"""Leases of batch jobs where Slurm has no plugins: ``deployments/slurm/sbatch-leased.sh``."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import StartLab
from tests.lab import Lab
from tests.support.folders import ROOT
from tests.support.lab_conf import Options
from tests.support.service import RunningService, running_service
from tests.support.service_process import SFQ
from tests.support.waiting import SECONDS

SUBMIT = str(ROOT / "deployments" / "slurm" / "sbatch-leased.sh")
# The job stays in the queue.
WAITING = ("--begin=now+1hour", "--output=/dev/null", "--wrap", "true")


@contextmanager
def submitting(
    lab: Lab, *words: str, options: Sequence[str] = (), **environment: str
) -> Iterator[tuple[RunningService, subprocess.Popen[bytes], str]]:
    """Submit a job under a lease, and yield the job's id when it is in the queue."""
    mark = secrets.token_hex(4)
    found: list[str] = []

    def is_queued() -> bool:
        lines = lab.output("squeue", "-h", "-o", "%A %k")
        found[:] = re.findall(rf"(\d+) {mark}", lines)
        return bool(found)

    with running_service() as service:
        command = [SUBMIT, f"--comment={mark}", *words]
        process = subprocess.Popen(
            [*SFQ, "lease", "--url", service.url, *options, "--", *command],
            env={**os.environ, **lab.environment, **environment},
            stdout=subprocess.DEVNULL,
        )
        try:
            lab.wait_for(is_queued, "the job", SECONDS)
            yield service, process, found[0]
        finally:
            process.kill()
            process.wait()
            lab.run("scancel", *found)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_cancels_the_job_with_its_lease(
    lab: Lab, number: signal.Signals
) -> None:
    with submitting(lab, *WAITING) as (service, process, job):
        process.send_signal(number)
        assert process.wait(SECONDS) == 143
        assert lab.state(int(job)) == "CANCELLED"
        assert not service.queue.leases.held


def test_elsewhere_cancels_the_job_if_the_qpu_closes(lab: Lab) -> None:
    options = ["--exit-if-offline"]
    with submitting(lab, *WAITING, options=options) as (service, process, job):
        service.ask("POST", "/v1/device/close", {"message": "new laser"})
        assert process.wait(SECONDS) == 75
        assert lab.state(int(job)) == "CANCELLED"
        assert not service.queue.leases.held


def test_a_job_has_its_lease_if_the_site_exports_nothing(
    lab: Lab, tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH --export=NONE\nenv | grep ACQUISITION\n"
        f"until [ -e {tmp_path / 'seen'} ]; do sleep 0.1; done\nexit 3\n"
    )
    words = (f"--output={tmp_path / 'output'}", "--partition=compute", str(script))
    with submitting(lab, *words, SBATCH_EXPORT="NONE") as (service, process, _):
        (lease,) = service.queue.leases.held
        (tmp_path / "seen").touch()
        assert process.wait(SECONDS) == 3
        assert lease.id in (tmp_path / "output").read_text()


def test_a_cancelled_job_is_reported_as_cancelled(
    lab: Lab, capfd: pytest.CaptureFixture[str]
) -> None:
    with submitting(lab, *WAITING) as (_, process, job):
        lab.output("scancel", job)
        assert process.wait(SECONDS) == 1
    assert re.search(r"the job lease-.* was cancelled\n", capfd.readouterr().err)


def test_a_job_that_slurm_forgets_is_no_success(
    start_lab: StartLab, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        start_lab(Options(nodes=1, qnodes=0)) as own,
        submitting(own, *WAITING) as (_, process, _),
    ):
        own.kill_controller()
        # it writes its jobs some seconds later, of which a kill leaves none
        shutil.rmtree(own.folder / "state")
        (own.folder / "state").mkdir()
        own.start_controller()
        assert process.wait(SECONDS) == 1
        assert "whether it has run is unknown" in capfd.readouterr().err


def test_a_killed_sfq_lease_leaves_a_job_that_the_lease_survives(lab: Lab) -> None:
    with submitting(lab, *WAITING) as (service, process, job):
        process.kill()
        process.wait()
        assert lab.state(int(job)) == "PENDING"
        # until the idle limit ends it
        assert len(service.queue.leases.held) == 1
