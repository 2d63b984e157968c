"""A Flux instance of three brokers on this machine, for tests of what runs in one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from sf_quantum.files import JSON, mapping
from tests.support.waiting import SECONDS, until

BROKERS = 3
MISSING = "flux is not installed"


def is_installed() -> bool:
    return shutil.which("flux") is not None


class FluxInstance:
    """An instance whose jobs are on disk, so that they survive its brokers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._state = folder / "flux"
        self._state.mkdir()
        self._run = folder / "run"
        self._run.mkdir()
        self.environment = {"FLUX_URI": f"local://{self._run}/local-0"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        started = self.folder / "started"
        started.unlink(missing_ok=True)
        script = f"touch {started}; exec sleep infinity"
        options = [
            f"--test-size={BROKERS}",
            f"--test-rundir={self._run}",
            f"--setattr=statedir={self._state}",
            # Brokers that are killed forget the jobs since the last checkpoint.
            "--conf=kvs.checkpoint-period=1s",
        ]
        # The tests' own variables are not those of jobs.
        outer = {k: v for k, v in os.environ.items() if not k.startswith("FLUX_")}
        with open(self.folder / "flux.log", "ab") as log:
            self._process = subprocess.Popen(
                ["flux", "start", *options, "sh", "-c", script],
                env=outer,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(started.exists, "the instance", SECONDS)

    def kill(self) -> None:
        """Kill all brokers, as if their machines had lost their power."""
        if self._process is None:
            return
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._process.pid)
            for one in [process, *process.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
        self._process.wait()

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["flux", *words],
            env={**os.environ, **self.environment, "FLUX_F58_FORCE_ASCII": "1"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def output(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        out = f"--output={self.folder}/{{{{id}}}}.out"
        return self.output("submit", out, *options, "sh", "-c", script)

    def job(self, job: str) -> Mapping[str, JSON]:
        return mapping(json.loads(self.output("jobs", "-a", "--json", job)))

    def state(self, job: str) -> str:
        return str(self.job(job)["state"])

    def ended(self, job: str) -> str:
        """Wait for the end of a job, and return its result."""
        until(lambda: self.state(job) == "INACTIVE", f"{job} ends", SECONDS)
        return str(self.job(job)["result"])


@contextmanager
def running(folder: Path) -> Iterator[FluxInstance]:
    instance = FluxInstance(folder)
    instance.start()
    try:
        yield instance
    finally:
        instance.kill()
