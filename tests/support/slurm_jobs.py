"""Jobs on a lab through the connector ``sfq.slurm``, without a driver's second to start."""

from __future__ import annotations

import getpass
import itertools
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from streamflow.core.deployment import Connector
from streamflow.core.exception import WorkflowExecutionException
from streamflow.deployment.connector.local import LocalConnector

from sf_quantum.connectors.slurm.connector import SlurmConnector
from sf_quantum.files import JSON
from tests.lab import Lab
from tests.support.waiting import until_async

if TYPE_CHECKING:
    from tests.support.projects import Project


class Cluster:
    """A deployment of the connector.

    :param folder: for the jobs' work directories
    :param inner: the wrapped one; by default that of the local machine
    """

    def __init__(
        self,
        lab: Lab,
        folder: Path,
        config: dict[str, JSON],
        inner: Connector | None = None,
    ) -> None:
        self.lab = lab
        self.folder = folder
        inner = inner or LocalConnector("local", str(folder))
        # as StreamFlow does it: the schema has checked what is in there
        make: Callable[..., SlurmConnector] = SlurmConnector
        self.connector = make(
            *("cluster", str(folder), inner, None),
            **{"maxConcurrentJobs": 100, "pollingInterval": 1, **config},
        )
        # tests that share a lab tell their jobs by it
        self.name = uuid.uuid4().hex[:8]
        self._numbers = itertools.count(1)

    async def run(
        self,
        command: str,
        service: str | None = None,
        name: str = "",
        **options: str | int | dict[str, str] | None,
    ) -> tuple[str, int]:
        """Run a job.

        :param command: for the shell of the job's script
        :returns: what it printed, or what is wrong, and its exit code
        """
        name = name or str(next(self._numbers))
        folder = self.folder / "work" / name
        folder.mkdir(parents=True)
        found = await self.connector.get_available_locations(service)
        (location,) = found.values()
        run: Callable[..., Awaitable[tuple[str, int] | None]] = self.connector.run
        result = await run(
            location.location,
            [command],
            workdir=str(folder),
            capture_output=True,
            job_name=f"/{self.name}/{name}",
            **options,
        )
        assert result is not None
        return result

    async def failing(self, command: str, service: str | None = None) -> str:
        """Run a job that fails, and give its message."""
        try:
            text, code = await self.run(command, service)
        except WorkflowExecutionException as error:
            return str(error)
        assert code != 0, text
        return text

    def spools(self) -> list[Path]:
        """The folders that the connector keeps beside the jobs' own."""
        return list(self.folder.rglob(".sfq-*"))

    def ids(self) -> dict[str, int]:
        """The Slurm jobs in the queue, by the job's number."""
        lines = self.lab.output("squeue", "-h", "-o", "%A %j").splitlines()
        jobs = [line.partition(f" {self.name}/") for line in lines]
        return {name: int(id_) for id_, ours, name in jobs if ours}

    async def submitted(self, count: int = 1) -> dict[str, int]:
        """Wait until there are so many jobs in Slurm's queue."""
        await until_async(lambda: len(self.ids()) == count, f"{count} jobs")
        return self.ids()

    async def running(self, count: int = 1) -> dict[str, int]:
        """Wait until so many jobs run."""

        def run() -> bool:
            states = [self.lab.state(id_) for id_ in self.ids().values()]
            return states == ["RUNNING"] * count

        await until_async(run, f"{count} running jobs")
        return self.ids()


@asynccontextmanager
async def cluster(
    lab: Lab, folder: Path, inner: Connector | None = None, /, **config: JSON
) -> AsyncIterator[Cluster]:
    """Deploy the connector, and undeploy it at the end; nothing of it is left then."""
    made = Cluster(lab, folder, config, inner)
    with pytest.MonkeyPatch.context() as patch:
        for key, value in lab.environment.items():
            patch.setenv(key, value)
        try:
            yield made
        finally:
            await made.connector.undeploy(False)
        # where the driver could not see to it, the login node's shell does
        await until_async(lambda: made.spools() == [], "the spool to go")


class StandIns:
    """Commands of Slurm's names, first on the PATH, that show what a lab cannot.

    :param folder: for them; what they have done is written there
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        folder.mkdir()
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def add(self, name: str, *lines: str) -> None:
        """Put a shell script in the place of a command; ``$real`` is the real one."""
        real = shutil.which(name, path=os.environ["PATH"].partition(":")[2])
        script = self._folder / name
        head = ["#!/bin/sh", f"real={real} here={self._folder}"]
        script.write_text("\n".join([*head, *lines, 'exec "$real" "$@"', ""]))
        script.chmod(0o755)

    def lose_first_answer(self) -> None:
        """Let sbatch submit its job, and tell of it only if it is tried again."""
        self.add(
            "sbatch",
            "echo >>$here/tries",
            '[ $(wc -l <$here/tries) -gt 1 ] || { "$real" "$@" >/dev/null',
            "  echo 'Socket timed out on send/recv operation' >&2; exit 1; }",
        )

    def count(self, name: str) -> int:
        """How many lines a stand-in has written to a file of that name."""
        path = self._folder / name
        return len(path.read_text().splitlines()) if path.exists() else 0

    def switch(self, name: str) -> Path:
        """A file that a stand-in looks for."""
        return self._folder / name


def over_ssh(project: Project, port: int) -> None:
    """Add the deployment ``host``: this machine, as its SSH server shows it."""
    project.deployment(
        "host",
        "ssh",
        nodes=[f"127.0.0.1:{port}"],
        username=getpass.getuser(),
        sshKey=str(project.folder / "sshd" / "user"),
        checkHostKey=False,
    )
