"""A lab and a QPU service whose admin is Slurm's user, for what runs on a site's hosts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.service.domain.jobs import Identity
from sf_quantum.service.http.auth import FixedIdentity
from tests.lab import Lab
from tests.support.service import RunningService, running_service
from tests.support.service_process import SFQ
from tests.support.waiting import SECONDS

SLURM = FixedIdentity(Identity("slurm", admin=True))
ENDED = ("COMPLETED", "FAILED", "CANCELLED")


def write_site_file(folder: Path, url: str) -> Path:
    """Write ``qrmi_config.json`` with the QPU ``qpu`` behind a service, and return its path."""
    file = folder / "qrmi_config.json"
    qpu: JSON = {"name": "qpu", "type": "sfq", "environment": {"SFQ_URL": url}}
    file.touch(0o600)
    file.write_text(json.dumps({"resources": [qpu]}))
    return file


class QpuSite:
    """The QPU that ``qrmi_config.json`` names, and what a site's daemon is told of it."""

    def __init__(self, folder: Path, admin: FixedIdentity) -> None:
        self.folder = folder
        self.config = folder / "qrmi_config.json"
        self._admin = admin

    @contextmanager
    def serving(
        self, vqpus: int = 1, *, authenticate: FixedIdentity | None = None
    ) -> Iterator[RunningService]:
        identity = authenticate or self._admin
        with running_service(authenticate=identity, vqpus=vqpus) as service:
            write_site_file(self.folder, service.url)
            try:
                yield service
            finally:
                # Who needs no service would otherwise wait for this one to answer.
                self.config.unlink()

    def words(self, act: str, *options: str) -> list[str]:
        """Return the arguments of ``sfq slurm`` or the like for a daemon."""
        selected = ["--qrmi-config", str(self.config), "--qpu", "qpu"]
        return [act, "--state", str(self.folder / "state"), *selected, *options]

    def held_lease(self) -> str:
        """The command that runs another under the lease of the gate."""
        return f"{SFQ[0]} lease --held --qrmi-config {self.config} --qpu qpu --"


class Site(QpuSite):
    """A lab with such a QPU."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        super().__init__(folder, SLURM)
        self.lab = lab

    def submit(self, script: str, *options: str) -> int:
        output = f"--output={self.folder}/%A.out"
        words = ("--partition=quantum", output, *options)
        return self.lab.submit(*words, "--wrap", script)

    def output(self, job: int) -> str:
        self.lab.wait_for(lambda: self.lab.state(job) in ENDED, f"{job} ends", SECONDS)
        return (self.folder / f"{job}.out").read_text()

    def reason(self, job: int) -> str:
        return self.lab.output("squeue", "-h", "-j", str(job), "-o", "%r")

    @contextmanager
    def environment(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Run Slurm's commands on the lab, and leave no job and no variable of a job."""
        for name, value in {**os.environ, **self.lab.environment}.items():
            monkeypatch.setenv(name, value)
        variables = dict(os.environ)
        yield
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        self.lab.run("scancel", "--partition=quantum")
