"""Shares of the QPU as Slurm gives them: by account, and by units of a gres or licence."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.service.domain.settings import (
    ClassSettings,
    PolicyChoice,
    ServiceSettings,
    Shares,
)
from tests.conftest import StartLab
from tests.support.lab_conf import Options
from tests.support.service import running_service

pytestmark = pytest.mark.process

USER = pwd.getpwuid(os.getuid()).pw_name
SETTINGS = ServiceSettings(
    vqpus=10,
    policy=PolicyChoice("fair-share"),
    user_projects={USER: ["first", "bio"]},
    classes=ClassSettings(partitions={"quantum": "test"}),
    shares=Shares(slurm_unit="qpu"),
)


def test_a_lease_has_the_share_of_its_slurm_job(
    start_lab: StartLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(nodes=1, qnodes=1, qpus=10, licenses="qpu:10,other:9")
    with start_lab(options) as lab, running_service(settings=SETTINGS) as service:
        for name, value in lab.environment.items():
            monkeypatch.setenv(name, value)
        work = "--wrap=sleep 1000", f"--output={tmp_path}/out", "--account=bio"
        gres = lab.submit("-pquantum", "--gres=qpu:3", *work)
        licences = lab.submit("-pcompute", "--licenses=other:2,qpu:4", *work)
        nothing = lab.submit("-pcompute", *work)

        def share(job: int, **asked: JSON) -> tuple[JSON, ...]:
            body = {"slurm_job_id": str(job), "user": USER, **asked}
            lease = service.ask("POST", "/v1/leases", body).json()
            return tuple(lease[key] for key in ("class", "project", "tenths"))

        assert share(gres) == ("test", "bio", 3)
        assert share(gres, project="first", tenths=2) == ("test", "first", 2)
        assert share(licences) == ("development", "bio", 4)
        assert share(nothing) == ("development", "bio", None)
        for cluster, account in (("lab", "bio"), ("another", "mine")):
            about: JSON = {"slurm_cluster": cluster, "account": "mine"}
            assert isinstance(about, dict)
            about |= {"slurm_job_id": str(nothing), "user": USER}
            told = service.ask("POST", "/v1/leases", about).json()
            assert (told["slurm_cluster"], told["slurm_account"]) == (cluster, account)
        # not the user's job: no more than what the request says
        assert share(gres, user="somebody") == ("development", None, None)
        warden: JSON = {"user_id": str(os.getuid()), "scheduler_job_id": str(gres)}
        assert isinstance(warden, dict)
        assert service.ask("POST", "/sessions", warden).status < 300
        held = service.queue.leases.held[-1]
        assert (held.job_class, held.project, held.tenths) == ("test", "bio", 3)
