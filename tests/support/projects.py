"""Real runs of StreamFlow: a folder with a workflow of our own, and its driver."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from sf_quantum import journal
from sf_quantum.files import JSON
from sf_quantum.journal.events import parse
from tests.support import clustering_runs as clustering
from tests.support import forking, lab_site, waiting
from tests.support import sshd as serving
from tests.support.forking import BIN, Command
from tests.support.journals import Event, read
from tests.support.lab_supervisor import SYSTEM_PATH
from tests.support.plugin_site import Site, plugin_site

if TYPE_CHECKING:
    from dwave.cloud.solver import StructuredSolver

    from tests.support.service import RunningService

PROBLEM = {
    "bqm": {
        "type": "BinaryQuadraticModel",
        "version": {"bqm_schema": "3.0.0"},
        "use_bytes": False,
        "index_type": "int32",
        "bias_type": "float64",
        "num_variables": 2,
        "num_interactions": 1,
        "variable_labels": ["a", "b"],
        "variable_type": "BINARY",
        "offset": 0.0,
        "info": {},
        "linear_biases": [-1.0, -1.0],
        "quadratic_biases": [2.0],
        "quadratic_head": [0],
        "quadratic_tail": [1],
    }
}


class Project:
    """A folder with a StreamFlow file, whose drivers can be told from all others."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self.folder = folder
        # short, since sockets are made in it
        self.temporary = temporary
        self.mark = uuid.uuid4().hex
        self.deployments: dict[str, JSON] = {}
        self.bindings: dict[str, str] = {}
        self.steps: dict[str, JSON] = {}
        self.extra: dict[str, JSON] = {}
        self.debug = True
        # instead of one workflow with all steps side by side
        self.document: dict[str, JSON] = {}
        self._drivers: list[Command] = []
        self.path = [forking.stand_ins(), str(BIN), *os.environ["PATH"].split(":")]
        (folder / "problem.json").write_text(json.dumps(PROBLEM))

    def deployment(self, name: str, type_: str, **config: JSON) -> None:
        """Add a deployment; ``wraps`` is taken out of its configuration."""
        wraps = config.pop("wraps", None)
        self.deployments[name] = {
            "type": type_,
            "workdir": str(self.folder / "work"),
            "config": config,
            **({"wraps": wraps} if wraps else {}),
        }

    def step(self, name: str, script: str, deployment: str, scatter: int = 0) -> None:
        """Add a step that runs a shell script and keeps what it leaves in ``out``.

        :param deployment: or one of its services, after a slash
        """
        # CWL quotes an argument once, and a script in a file needs nothing of that
        path = self.folder / f"{name}.sh"
        path.write_text(f"{script}\n")
        self.steps[name] = {
            "run": {
                "class": "CommandLineTool",
                "baseCommand": ["sh", "-e", str(path)],
                "inputs": {"n": {"type": "int", "inputBinding": {}}},
                "outputs": {"out": {"type": "File?", "outputBinding": {"glob": "out"}}},
            },
            "in": {"n": {"default": 0}} if not scatter else {"n": "ns"},
            **({"scatter": "n"} if scatter else {}),
            "out": ["out"],
        }
        self.bindings[name] = deployment

    def solve(self, name: str, deployment: str, before: str = "") -> None:
        """Add a step that solves the problem of two variables with ``sfq solve``."""
        command = (
            f"sfq solve --problem {self.folder}/problem.json --output out --reads 5"
        )
        self.step(name, f"{before}\n{command}", deployment)

    def write(self) -> None:
        """Write the files."""
        outputs: dict[str, JSON] = {
            name: {"type": "Any", "outputSource": f"{name}/out"} for name in self.steps
        }
        self._write(
            "main.cwl",
            {
                "cwlVersion": "v1.2",
                "class": "Workflow",
                "requirements": {"ScatterFeatureRequirement": {}},
                "inputs": {"ns": {"type": "int[]", "default": [0, 1, 2]}},
                "outputs": outputs,
                "steps": self.steps,
                **self.document,
            },
        )
        bindings: list[JSON] = [
            {"step": f"/{step}", "target": _target(name)}
            for step, name in self.bindings.items()
        ]
        workflow: JSON = {
            "type": "cwl",
            "config": {"file": "main.cwl"},
            "bindings": bindings,
        }
        self._write(
            "streamflow.yml",
            {
                "version": "v1.0",
                "workflows": {"test": workflow},
                "deployments": self.deployments,
                "scheduling": {"scheduler": {"type": "sfq.journal", "config": {}}},
                "database": {
                    "type": "default",
                    "config": {"connection": str(self.folder / "streamflow.db")},
                },
                **self.extra,
            },
        )

    @property
    def environment(self) -> dict[str, str]:
        """The variables of its drivers."""
        return {
            **os.environ,
            "PATH": ":".join(self.path),
            "TMPDIR": str(self.temporary),
            "SFQ_TEST": self.mark,
        }

    def start_checked(self, *options: str) -> subprocess.Popen[str]:
        """Write the files and start ``sfq run``, whose outputs go to the folder ``out``."""
        self.write()
        return subprocess.Popen(
            ["sfq", "run", "streamflow.yml", "--outdir", "out", *options],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def start(self) -> Command:
        """Write the files and start a driver."""
        self.write()
        debug = ["--debug"] if self.debug else []
        with open(self.folder / "log", "wb") as log:
            driver = forking.Command(
                ["streamflow", "run", "streamflow.yml", *debug],
                self.folder,
                self.environment,
                log.fileno(),
                log.fileno(),
            )
        self._drivers.append(driver)
        return driver

    def run(self) -> int:
        """Run a driver to its end."""
        return self.start().wait(timeout=waiting.SECONDS)

    @property
    def log(self) -> str:
        """What the driver printed, with everything StreamFlow can say."""
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    @property
    def outputs(self) -> Any:
        """What ``streamflow run`` printed as the outputs of the workflow.

        They follow the last messages unless Python's output is unbuffered.
        """
        _, _, end = self.log.partition("COMPLETED workflow execution\n")
        _, start, text = f"\n{end}".partition("\n{")
        outputs, _ = json.JSONDecoder().raw_decode(start + text, 1)
        return outputs

    def events(self) -> list[Event]:
        """The last run's journal."""
        path = journal.newest(self.folder / journal.DIRECTORY)
        # before its first line, it is not yet known for a journal
        begun = path is not None and b"\n" in path.read_bytes()
        return read(path) if path and begun else []

    def jobs(self, step: str, status: str) -> list[Event]:
        """The journal's entries of a step that came to a status."""
        return [
            event
            for event in self.events()
            if event["event"] == "job"
            and event["step"] == f"/{step}"
            and event["status"] == status
        ]

    def processes(self) -> list[psutil.Process]:
        """This project's drivers and what they started, unless Slurm has lost it.

        ``proctrack/linuxproc`` follows parents, so it misses a process that is forked while
        its parent is killed (1 of 60 jobs cancelled at their start), as cgroups do not.
        """
        return [one for one in self.all_processes() if not _is_lost(one)]

    def all_processes(self) -> list[psutil.Process]:
        """This project's drivers and what they started."""
        mark, name = f"SFQ_TEST={self.mark}\0".encode(), f"{self.mark:.15}\n"
        drivers = [one.pid for one in self._drivers if one.poll() is None]
        found = []
        for pid in psutil.pids():
            with suppress(psutil.Error, OSError):
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                comm = Path(f"/proc/{pid}/comm").read_text()
                if pid in drivers or mark in environment or comm == name:
                    found.append(psutil.Process(pid))
        return found

    def leftovers(self) -> list[Path]:
        """What we left in the folder of temporary files."""
        return [*self.temporary.glob("sfq-*"), *self.folder.rglob(".sfq-*")]

    def commands(self, words: str) -> list[psutil.Process]:
        """Those whose command line has these words, less the shells that start them."""
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                line = " ".join(process.cmdline()).replace("/sfq ", "/ sfq ")
                if words in line and " -c " not in line:
                    found.append(process)
        return found

    def service_folder(self) -> Path:
        """Where the QPU service keeps its things, as the driver's debug log tells."""
        words = self.log.replace("'", " ").split()
        told = (word for word in words if re.fullmatch(".*/sfq-[0-9a-f]+/status", word))
        return Path(next(told, "/nowhere/status")).parent

    def on_qpu(self) -> bool:
        """Whether the service has a job that runs."""
        for path in self.service_folder().glob("state/*.sqlite"):
            with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as database:
                query = "SELECT count(*) FROM jobs WHERE state = 'Running'"
                if database.execute(query).fetchone()[0]:
                    return True
        return False

    def _write(self, name: str, content: JSON) -> None:
        (self.folder / name).write_text(json.dumps(content))


def _is_lost(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        parents = [one.name() for one in process.parents()]
        return "SLURMD_NODENAME" in process.environ() and not any(
            name.startswith("slurmstepd") for name in parents
        )
    return False


def _target(name: str) -> dict[str, JSON]:
    deployment, _, service = name.partition("/")
    return {"deployment": deployment, **({"service": service} if service else {})}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A project whose processes do not outlive the test."""
    temporary = Path(tempfile.mkdtemp(prefix="sfqt", dir="/tmp"))
    made = Project(tmp_path, temporary)
    yield made
    for path in (tmp_path / journal.DIRECTORY).glob("*.jsonl"):
        for line in path.read_bytes().splitlines():
            parse(line)
    for process in made.all_processes():
        with suppress(psutil.Error):  # it ends in that moment
            process.kill()
    shutil.rmtree(made.service_folder(), ignore_errors=True)
    shutil.rmtree(temporary)


@pytest.fixture
def until() -> Callable[[Callable[[], object], str], None]:
    """Waits for something to become true."""

    def wait(condition: Callable[[], object], what: str) -> None:
        waiting.until(condition, what)

    return wait


@pytest.fixture
def sshd(project: Project) -> Iterator[int]:
    """A real sshd whose sessions are the project's; its key is in ``sshd``."""
    environment = {"PATH": ":".join(project.path), "SFQ_TEST": project.mark}
    with serving.sshd(project.folder / "sshd", environment) as port:
        yield port


@pytest.fixture(scope="session")
def site(slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A lab with the site's plugins, and with a QPU for each test that needs one."""
    if lacking := lab_site.missing(SYSTEM_PATH):
        pytest.skip(lacking)
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    with plugin_site(base) as made:
        yield made


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> clustering.Run:
    """A run of ``deployments/emulator.yml``."""

    def run(folder: Path) -> None:
        clustering.Run("emulator.yml", folder).start()

    folder = clustering.once(tmp_path_factory, "emulated", run)
    return clustering.Run("emulator.yml", folder)


@pytest.fixture(scope="session")
def twice(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folders of the outputs of two runs of the same job with cwltool."""
    folder = clustering.once(tmp_path_factory, "cwltool", clustering.run_twice)
    return [folder / "first" / "out", folder / "second" / "out"]


@pytest.fixture
def solver(
    service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StructuredSolver]:
    """The solver of the module's service, by D-Wave's client."""
    from dwave.cloud import Client

    monkeypatch.setenv("DWAVE_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DWAVE_CONFIG_FILE", "")
    with Client.from_config(endpoint=f"{service.url}/sapi/v2", token="any") as client:
        yield client.get_solver()
