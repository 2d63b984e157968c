"""Quantum services of ``sfq.slurm`` in real runs: on the lab, with and without SPANK."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sf_quantum.files import JSON, mapping
from tests.lab import Lab
from tests.support import lab_site
from tests.support.folders import EXAMPLES, ROOT
from tests.support.forking import Command
from tests.support.journals import collect, progress
from tests.support.lab_conf import Options
from tests.support.service_process import QpuService
from tests.support.slurm_jobs import cluster
from tests.support.waiting import SECONDS, until_async

if TYPE_CHECKING:
    from tests.conftest import StartLab
    from tests.support.projects import Project

pytestmark = pytest.mark.process

Until = Callable[[Callable[[], object], str], None]
SPANK = ROOT / "tests" / "support" / "spank"
OFFLOADING = EXAMPLES / "quantum-offloading"
# not one QPU job before all ten have their leases
MEET = """
touch {folder}/here-$1
while [ $(ls {folder}/here-* | wc -l) -lt {number} ]; do sleep 0.05; done"""

# A tool's streams, and what it writes to them.
STREAMS: dict[str, dict[str, JSON]] = {
    "alone": {"stdout": "f"},
    "apart": {"stdout": "f", "stderr": "g"},
    "together": {"stdout": "f", "stderr": "f"},
}
SOLVE = "sfq solve --problem {folder}/problem.json --output out --reads 5"
BOTH_STREAMS = f"""
{SOLVE} >/dev/null 2>&1
echo warning >&2
echo result"""
WAITING = b"sfq lease: waiting for a lease of QPU"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[QpuService]:
    """A QPU with ten virtual ones."""
    options = ("--time-scale", "0", "--noise", "0", "--vqpus", "10")
    made = QpuService(tmp_path / "service", *options)
    made.start()
    yield made
    made.kill()


@pytest.fixture(scope="module")
def definitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site's file, which tests fill; the plugin reads it when a job starts."""
    return tmp_path_factory.mktemp("site") / "qrmi_config.json"


@pytest.fixture(scope="module")
def spank_lab(
    start_lab: StartLab, definitions: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    """A lab with the plugin of tests/support/spank, and so with ``--qpu=``."""
    if shutil.which("gcc") is None or not Path("/usr/include/slurm/spank.h").exists():
        pytest.skip("no SPANK plugin can be built (apt-get install gcc libslurm-dev)")
    plugin = tmp_path_factory.mktemp("spank") / "qpu.so"
    lab_site.build_spank(SPANK / "qpu.c", plugin)
    line = f"{plugin} {sys.executable} {SPANK / 'helper.py'} {definitions}"
    with start_lab(Options(nodes=2, qpus=10, spank=(line,))) as lab:
        yield lab


def _define(file: Path, **urls: str) -> None:
    resources: list[JSON] = [
        {"name": name, "type": "sfq", "environment": {"SFQ_URL": url}}
        for name, url in urls.items()
    ]
    file.touch(0o600)
    file.write_text(json.dumps({"resources": resources}))


class Site:
    """A project whose steps run on a lab's services."""

    def __init__(
        self, project: Project, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.project = project
        self.lab = lab
        self._services: dict[str, str] = {}
        for key, value in lab.environment.items():
            monkeypatch.setenv(key, value)

    def deploy(self, services: JSON, **config: JSON) -> None:
        """Add the cluster, with the definitions of the project's own file."""
        self.project.deployment("host", "local")
        self.project.deployment(
            "cluster",
            "sfq.slurm",
            wraps="host",
            services=services,
            maxConcurrentJobs=20,
            qrmiConfig="qrmi_config.json",
            **config,
        )

    def step(self, name: str, service: str, script: str, scatter: int = 0) -> None:
        """Add a step on a service of the cluster."""
        self.project.step(name, script, "cluster", scatter)
        self._services[name] = service
        if scatter:
            numbers: list[JSON] = [*range(scatter)]
            ns: JSON = {"type": "int[]", "default": numbers}
            self.project.document["inputs"] = {"ns": ns}

    def solve(
        self, name: str, service: str, before: str = "", scatter: int = 0
    ) -> None:
        """Add a step that solves the project's problem."""
        problem = self.project.folder / "problem.json"
        line = f"sfq solve --problem {problem} --output out --reads 5"
        self.step(name, service, f"{before}\n{line}", scatter)

    def start(self) -> Command:
        """Start a driver."""
        bindings: list[JSON] = [
            {
                "step": f"/{step}",
                "target": {"deployment": "cluster", "service": service},
            }
            for step, service in self._services.items()
        ]
        workflow: dict[str, JSON] = {
            "type": "cwl",
            "config": {"file": "main.cwl"},
            "bindings": bindings,
        }
        self.project.extra["workflows"] = {"test": workflow}
        return self.project.start()

    def run(self) -> int:
        """Run a driver to its end."""
        return self.start().wait(timeout=SECONDS)

    def events(self, kind: str) -> list[dict[str, JSON]]:
        """The journal's entries of a kind."""
        return [event for event in self.project.events() if event["event"] == kind]

    def submissions(self) -> set[JSON]:
        """The jobs that Slurm was given."""
        return {event["slurm_job"] for event in self.events("allocation")}


@pytest.fixture
def site(
    project: Project, lab: Lab, service: QpuService, monkeypatch: pytest.MonkeyPatch
) -> Site:
    """A site without the plugin, whose QPU is ``a``."""
    _define(project.folder / "qrmi_config.json", a=service.url)
    return Site(project, lab, monkeypatch)


@pytest.fixture
def spank_site(
    project: Project,
    spank_lab: Lab,
    service: QpuService,
    definitions: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Site:
    """A site with the plugin, whose QPU is ``a``."""
    _define(definitions, a=service.url)
    _define(project.folder / "qrmi_config.json", a=service.url)
    return Site(project, spank_lab, monkeypatch)


def _quantum(**more: JSON) -> dict[str, JSON]:
    return {"partition": "quantum", "gres": "qpu:1", "qpu": ["a"], **more}


def test_ten_jobs_share_one_qpu_in_turn(site: Site, service: QpuService) -> None:
    site.deploy({"q": _quantum()})
    meet = MEET.format(folder=site.project.folder, number=10)
    site.solve("solve", "q", meet, scatter=10)
    assert site.run() == 0, site.project.log[-3000:]
    jobs = service.ask("GET", "/v1/jobs")
    assert isinstance(jobs, list)
    ran = sorted(
        (float(str(job["started"])), float(str(job["ended"])))
        for job in jobs
        if isinstance(job, dict) and job["state"] == "Completed"
    )
    assert len(ran) == 10
    assert all(ended <= after for (_, ended), (after, _) in pairwise(ran))
    told = site.events("qpu")
    assert {event["job"] for event in told} == {f"/solve/0.{n}" for n in range(10)}
    assert {(event["qpu"], event["state"]) for event in told} == {("a", "Completed")}
    assert {event["technology"] for event in told} == {"annealer"}
    assert service.held() == []
    usage = service.ask("GET", "/v1/accounting?by=slurm-job")
    assert isinstance(usage, dict)
    assert isinstance(usage["rows"], list)
    rows = [row for row in usage["rows"] if isinstance(row, dict)]
    assert {row["slurm_cluster"] for row in rows} == {"lab"}
    assert site.project.leftovers() == []
    assert service.url not in site.project.log


def test_a_job_on_nodes_uses_the_lease_of_the_driver(
    site: Site, service: QpuService
) -> None:
    """``sfq.rest`` over a service of the cluster: the lease is granted before Slurm is asked."""
    site.deploy({"nodes": {"partition": "compute"}})
    wraps: JSON = {"deployment": "cluster", "service": "nodes"}
    site.project.deployment("qpu", "sfq.rest", wraps=wraps, url=service.url)
    site.project.solve("solve", "qpu")
    assert site.project.run() == 0, site.project.log[-3000:]
    assert len(site.submissions()) == 1
    assert service.jobs() == ["Completed"]
    assert service.held() == []


def test_a_job_that_never_used_its_lease_fails(site: Site, service: QpuService) -> None:
    site.deploy({"q": _quantum()})
    site.step("idle", "q", "echo fine >out")
    assert site.run() != 0
    assert "Job /idle/0 succeeded but never used QPU a" in site.project.log
    assert service.held() == []


def test_a_job_with_a_success_code_fails_unless_it_used_its_qpu(site: Site) -> None:
    site.deploy({"q": _quantum()})
    for name, script in (("solve", SOLVE), ("idle", "")):
        script = script.format(folder=site.project.folder)
        site.step(name, "q", f"{script}\nexit 3")
        mapping(mapping(site.project.steps[name])["run"])["successCodes"] = [3]
        assert (site.run() == 0) == (name == "solve"), site.project.log[-3000:]
    assert "Job /idle/0 succeeded but never used QPU a" in site.project.log
    assert site.project.jobs("idle", "completed") == []


def test_the_messages_of_a_lease_are_in_no_file_of_a_tool(
    site: Site, service: QpuService, until: Until
) -> None:
    elastic: JSON = {"strategy": "elastic", "max": 3, "idle": 30}
    site.deploy(
        {
            "job": _quantum(),
            "kept": _quantum(allocation=elastic),
            "nodes": {"partition": "compute"},
        }
    )
    project = site.project
    wraps: JSON = {"deployment": "cluster", "service": "nodes"}
    project.deployment("rest", "sfq.rest", wraps=wraps, url=service.url)
    places = ("host", "cluster/job", "cluster/kept", "rest")
    outputs: dict[str, JSON] = {}
    for kind, streams in STREAMS.items():
        for place in places:
            name = f"{kind}-{place.rpartition('/')[2]}"
            project.step(name, BOTH_STREAMS.format(folder=project.folder), place)
            tool = mapping(mapping(project.steps[name])["run"])
            tool |= {**streams, "requirements": {"InlineJavascriptRequirement": {}}}
            tool["outputs"] = {key: _contents(file) for key, file in streams.items()}
            mapping(project.steps[name])["out"] = [*streams]
            for key in streams:
                source = f"{name}/{key}"
                outputs[f"{name}-{key}"] = {"type": "string", "outputSource": source}
    project.document["outputs"] = outputs
    leases = [service.lease() for _ in range(10)]
    driver = project.start()
    until(lambda: _waiting_jobs(project.folder) == 2 * len(STREAMS), "waiting jobs")
    for lease in leases:
        service.release(lease)
    assert driver.wait(timeout=SECONDS) == 0, project.log[-3000:]
    written = project.outputs
    for kind, streams in STREAMS.items():
        for key in streams:
            found = {written[f"{kind}-{p.rpartition('/')[2]}-{key}"] for p in places}
            assert found == {written[f"{kind}-host-{key}"]}
    assert written["alone-host-stdout"] == "result\n"
    assert "sfq lease: waiting for a lease of QPU" in project.log


async def test_the_message_of_a_failure_has_the_errors_of_its_lease(
    lab: Lab, service: QpuService, tmp_path: Path
) -> None:
    _define(tmp_path / "qrmi_config.json", a=service.url)
    leases = [service.lease() for _ in range(10)]
    services: dict[str, JSON] = {"q": _quantum()}
    async with cluster(
        lab, tmp_path, services=services, qrmiConfig="qrmi_config.json"
    ) as jobs:
        ends = asyncio.create_task(
            jobs.run(
                "sh -c 'echo result; echo bad >&2; exit 3'",
                "q",
                name="bad",
                stdout="f",
                stderr=asyncio.subprocess.STDOUT,
            )
        )
        await until_async(lambda: _waiting_jobs(tmp_path) == 1, "a waiting job")
        for lease in leases:
            service.release(lease)
        text, code = await ends
    assert code == 3
    _, _, last = text.partition("its last lines:\n")
    assert re.fullmatch(r"sfq lease: waiting for a lease of QPU .*\nbad", last)
    assert (tmp_path / "work/bad/f").read_text() == "result\n"


def _contents(file: JSON) -> JSON:
    """An output parameter with what a file contains."""
    binding: JSON = {
        "glob": file,
        "loadContents": True,
        "outputEval": "$(self[0].contents)",
    }
    return {"type": "string", "outputBinding": binding}


def _waiting_jobs(folder: Path) -> int:
    """The jobs whose `sfq lease` has printed, into some file, that it waits."""
    count = 0
    for path in (folder / "work").rglob("*"):
        with suppress(OSError):  # it has been removed
            count += path.is_file() and WAITING in path.read_bytes()
    return count


def test_no_node_is_asked_for_while_the_qpu_is_offline(
    site: Site, service: QpuService, until: Until
) -> None:
    service.ask("POST", "/v1/device/close", {"message": "maintenance"})
    site.deploy({"q": _quantum()})
    site.solve("solve", "q")
    driver = site.start()
    waits = "Job /solve/0 waits for QPU a: the QPU is closed: maintenance"
    until(lambda: waits in site.project.log, "the job's waiting")
    assert site.submissions() == set()
    service.ask("POST", "/v1/device/open", {})
    assert driver.wait(timeout=SECONDS) == 0, site.project.log[-3000:]
    assert "Job /solve/0 no longer waits for QPU a" in site.project.log
    assert site.project.log.count(waits) == 1
    (row,) = collect(site.project.events())
    assert row.waits.keys() >= {"a lease of a"}
    lines = [*progress(site.project.events())]
    assert lines[1].startswith(
        "waiting   /solve/0 for a: the QPU is closed: maintenance"
    )


def test_an_undefined_qpu_is_refused_before_a_submission(
    site: Site,
) -> None:
    site.deploy({"q": {**_quantum(), "qpu": ["aa"]}})
    site.solve("solve", "q")
    assert site.run() != 0
    assert "Deployment cluster, service q, qpu: " in site.project.log
    assert "unknown resource 'aa', did you mean 'a'?" in site.project.log
    assert site.submissions() == set()


def test_a_driver_that_is_stopped_gives_the_leases_back(
    site: Site, service: QpuService, until: Until
) -> None:
    site.deploy({"q": _quantum()})
    site.step("stay", "q", f"touch {site.project.folder}/on; sleep 60")
    driver = site.start()
    until((site.project.folder / "on").exists, "the job's start")
    assert len(service.held()) == 1
    driver.send_signal(signal.SIGINT)
    driver.wait(timeout=SECONDS)
    until(lambda: service.held() == [], "no lease")
    assert site.project.leftovers() == []


def test_each_job_of_an_allocation_has_a_lease_of_its_own(
    site: Site, service: QpuService
) -> None:
    template = site.project.folder / "template.sh"
    template.write_text("#!/bin/bash\nexport SITE=here\n{{streamflow_command}}\n")
    elastic: JSON = {"strategy": "elastic", "max": 1, "idle": 30}
    site.deploy({"q": _quantum(allocation=elastic, file=str(template))})
    site.solve("one", "q", 'test "$SITE" = here')
    site.solve("other", "q", 'test "$SITE" = here')
    assert site.run() == 0, site.project.log[-3000:]
    assert len(site.submissions()) == 1
    assert service.jobs() == ["Completed"] * 2
    assert {e["job"] for e in site.events("qpu")} == {"/one/0", "/other/0"}
    assert service.held() == []


def test_the_plugin_takes_the_lease_where_there_is_one(
    spank_site: Site, service: QpuService, until: Until
) -> None:
    # nothing of it but the script's own environment tells the command of its QPU
    spank_site.deploy(
        {
            "q": _quantum(),
            "kept": _quantum(allocation={"strategy": "elastic", "max": 1, "idle": 30}),
        }
    )
    spank_site.solve("solve", "q", 'test -n "$a_QRMI_JOB_ACQUISITION_TOKEN"')
    spank_site.solve("one", "kept")
    spank_site.solve("other", "kept")
    assert spank_site.run() == 0, spank_site.project.log[-3000:]
    assert service.jobs() == ["Completed"] * 3
    told = {(e["job"], e["state"]) for e in spank_site.events("qpu")}
    steps = ("solve", "one", "other")
    assert told == {(f"/{step}/0", "Completed") for step in steps}
    until(lambda: service.held() == [], "no lease")
    assert len(spank_site.submissions()) == 2


def test_the_lease_of_a_reserved_allocation_is_its_jobs(
    spank_site: Site, service: QpuService, until: Until
) -> None:
    spank_site.deploy(
        {"c": {"partition": "compute"}, "q": _quantum()},
        allocation={"strategy": "reserved", "reserve": ["c", "q"]},
    )
    spank_site.step("classical", "c", "echo fine >out")
    spank_site.solve("solve", "q", "test $SLURM_JOB_PARTITION = quantum")
    assert spank_site.run() == 0, spank_site.project.log[-3000:]
    assert service.jobs() == ["Completed"]
    until(lambda: service.held() == [], "no lease")


def test_under_the_plugin_a_job_that_never_used_its_lease_fails(
    spank_site: Site,
) -> None:
    spank_site.deploy({"q": _quantum()})
    spank_site.step("idle", "q", "echo fine >out")
    assert spank_site.run() != 0
    assert "Job /idle/0 succeeded but never used QPU a" in spank_site.project.log


def test_a_lease_that_the_plugin_did_not_get_is_no_classical_run(
    spank_site: Site, service: QpuService, definitions: Path, tmp_path: Path
) -> None:
    other = QpuService(tmp_path / "other", "--time-scale", "0")
    other.start()
    try:
        lease = other.lease()
        for file in (definitions, spank_site.project.folder / "qrmi_config.json"):
            _define(file, a=service.url, b=other.url)
        spank_site.deploy({"q": {**_quantum(), "qpu": ["a", "b"]}})
        spank_site.solve("solve", "q")
        assert spank_site.run() != 0
        other.release(lease)
    finally:
        other.kill()
    assert "plugin gave this job no lease of QPU b" in spank_site.project.log
    assert service.jobs() == []


def _offload(lab: Lab, folder: Path, *options: str) -> list[str]:
    run = [sys.executable, str(OFFLOADING / "run_on_slurm.py"), "--folder", str(folder)]
    done = lab.run(*run, "--iterations", "2", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_example_of_quantum_offloading(
    lab: Lab,
    spank_lab: Lab,
    service: QpuService,
    definitions: Path,
    tmp_path: Path,
) -> None:
    """The same file under ``sfq lease`` and under ``--qpu=``, with the same energies."""
    own = _offload(lab, tmp_path / "lease")
    _define(definitions, qpu=service.url)
    other = _offload(spank_lab, tmp_path / "spank", "--qrmi-config", str(definitions))
    for lines in (own, other):
        *energies, on, held = lines
        assert energies == own[: len(energies)]
        assert len(on.removeprefix("on ").split(", ")) == 3
        assert held.startswith("2 nodes held for ")
        assert ", 6 jobs on QPU qpu in " in held
    assert service.jobs() == ["Completed"] * 6
