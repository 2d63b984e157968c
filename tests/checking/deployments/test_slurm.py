"""``sfq check`` against Slurms that answer, that are not there and that keep silent."""

from __future__ import annotations

import getpass
import json
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sf_quantum.checking.deployments.slurm import listings
from sf_quantum.cli import main
from sf_quantum.files import JSON
from tests.lab import Lab
from tests.support.checked_files import sinfo, slurm_lists
from tests.support.slurm_rest import Rest, rest
from tests.support.sshd import sshd

if TYPE_CHECKING:
    from tests.support.plugin_site import Site

pytestmark = pytest.mark.process

ServiceOn = Callable[..., tuple[int, list[str]]]

OK = "sf.yml: OK (1 workflow, 3 deployments)"
CWL = """\
cwlVersion: v1.2
class: Workflow
inputs: {}
outputs: {}
steps:
  work:
    run: {class: CommandLineTool, baseCommand: "true", inputs: {}, outputs: {}}
    in: {}
    out: []
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("main.cwl").write_text(CWL)


def written(
    partition: str | None = "compute",
    inner: dict[str, JSON] | None = None,
    *,
    also_local: bool = False,
    service: dict[str, JSON] | None = None,
    **config: JSON,
) -> None:
    """Write a StreamFlow file with a step that is bound to a cluster."""
    target: list[JSON] = [{"deployment": "cluster", "service": "s"}]
    if also_local:
        target.append({"deployment": "laptop"})
    workflow: JSON = {
        "type": "cwl",
        "config": {"file": "main.cwl"},
        "bindings": [{"step": "/work", "target": target}],
    }
    named: dict[str, JSON] = {} if partition is None else {"partition": partition}
    services: JSON = {"s": {**named, **(service or {})}}
    wraps = "front" if inner else "laptop"
    cluster: JSON = {
        "type": "sfq.slurm",
        "config": {"services": services, **config},
        "wraps": wraps,
    }
    front: JSON = {"type": "ssh", "config": inner or {"nodes": ["127.0.0.1:1"]}}
    deployments: JSON = {
        "laptop": {"type": "local", "config": {}},
        "front": front,
        "cluster": cluster,
    }
    content = {
        "version": "v1.0",
        "workflows": {"w": workflow},
        "deployments": deployments,
    }
    Path("sf.yml").write_text(json.dumps(content, indent=1))


def checked(capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """The exit code and the lines of ``sfq check``, without the places of findings."""
    code = main(["check", "sf.yml"])
    lines = capsys.readouterr().out.splitlines()
    return code, [re.sub(r"^sf.yml:\d+: ", "", line) for line in lines]


@pytest.fixture
def service_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> ServiceOn:
    """Checks a service on a cluster, which has the given lines of ``sinfo``."""

    def check(service: dict[str, JSON], *lines: str) -> tuple[int, list[str]]:
        slurm_lists(tmp_path / "bin", monkeypatch, "\n".join(lines))
        written(None, service=service)
        return checked(capsys)

    return check


def has_typo(capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether a misspelt partition, and nothing else, is a problem."""
    code, lines = checked(capsys)
    (line,) = lines
    return code == 2 and line.endswith(
        "Slurm has no partition 'computer'; did you mean compute?"
    )


@pytest.fixture
def here(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lab's is the Slurm of this host."""
    for name, value in lab.environment.items():
        monkeypatch.setenv(name, value)


def submits() -> bool:
    """Whether sbatch would accept a job here and now."""
    command = ["sbatch", "--test-only", "--wrap=true"]
    return subprocess.run(command, capture_output=True).returncode == 0


def test_a_slurm_on_this_host_lists_its_partitions(
    here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    written()
    assert checked(capsys) == (0, [OK])
    written("computer")
    assert has_typo(capsys)


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        (
            {"gres": "qpu:5"},
            "qpu:5 is more than a node of partition p has: 4; write 4 or ",
        ),
        (
            {"gpusPerNode": "3"},
            "gpu:3 is more than a node of partition p has: 2; write 2",
        ),
        ({"gres": "qpu:b:1"}, "no node of partition p has gres qpu:b; "),
        ({"gres": "gpu:2,qpu:a:4"}, ""),
        ({"gres": "none"}, ""),
    ],
)
def test_a_gres_that_no_node_has_is_told(
    request_: dict[str, JSON],
    line: str,
    service_on: ServiceOn,
) -> None:
    """Slurm refuses such a job, or the plugin of a site that knows the gres takes it."""
    code, (said, *_) = service_on(
        request_, sinfo(("p*", 1), gres="qpu:a:4,gpu:2"), sinfo(("other", 1))
    )
    assert code == (2 if " is more than" in line else 0)
    assert line in said
    assert (said == OK) == (not line)


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        ({"time": "90"}, "time: 90 is above the time limit of partition p: 1:00:00"),
        ({"time": "1:00:01"}, "time: 1:00:01 is above the time limit of partition p"),
        ({"time": "60"}, ""),
        ({"time": "59:59"}, ""),
        ({"time": "90", "qos": "long"}, ""),
        ({"time": "90", "partition": "other"}, ""),
        ({"time": "90", "partition": "p,other"}, ""),
        ({"memPerCpu": "4000M", "cpusPerTask": 4}, ""),
        (
            {"memPerCpu": "4000M", "cpusPerTask": 5},
            "memPerCpu: for a task, 20000 MB is more than a node of partition p has",
        ),
        ({"array": "1-3"}, "array: Slurm runs each step once for each task"),
    ],
)
def test_what_slurm_probably_never_starts_is_remarked_on(
    request_: dict[str, JSON],
    line: str,
    service_on: ServiceOn,
) -> None:
    code, said = service_on(
        request_, sinfo(("p*", 1), limit="1:00:00"), sinfo(("other", 1))
    )
    assert code == 0
    assert any(line in one for one in said) if line else said == [OK]


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        ({"cpusPerTask": 9}, "cpusPerTask: 9 is more than a node of partition p has"),
        ({"cpusPerTask": 8}, ""),
        ({"mem": "16G"}, "mem: 16384 MB is more than a node of partition p has: 16000"),
        ({"mem": "16384000K"}, ""),
        ({"mem": "16384001K"}, "mem: 16001 MB is more than a node of partition p has"),
        ({"mem": "16000"}, ""),
        ({"mem": "0"}, ""),
        ({"mem": "1T", "partition": "p,other"}, "mem: 1048576 MB is more than a node"),
        ({"memPerCpu": "17G"}, "memPerCpu: for a task, 17408 MB is more than a node"),
        ({"nodelist": "p[1-2]"}, ""),
        ({"nodelist": "p[2-3],q1"}, "nodelist: partition p has no node p3 or q1; its "),
        (
            {"nodelist": "other1"},
            "nodelist: partition p has no node other1; its nodes ",
        ),
        ({"nodelist": "other1", "partition": "p,other"}, ""),
        ({"nodelist": "/a/file"}, ""),
        ({"nodelist": "feature{big}"}, ""),
    ],
)
def test_what_slurm_never_starts_is_a_problem(
    request_: dict[str, JSON],
    line: str,
    service_on: ServiceOn,
) -> None:
    code, (said, *_) = service_on(
        {"partition": "p", **request_}, sinfo(("p*", 2)), sinfo(("other", 1))
    )
    assert code == (2 if line else 0)
    assert line in said
    assert (said == OK) == (not line)


@pytest.mark.parametrize(
    "request_", [{"cpusPerTask": 9}, {"mem": "17G"}, {"nodelist": "other1"}]
)
def test_a_service_without_a_partition_may_go_to_another(
    request_: dict[str, JSON],
    service_on: ServiceOn,
) -> None:
    """Its template may name one, or a plugin of the site choose one."""
    code, (said, *_) = service_on(request_, sinfo(("p*", 2)), sinfo(("other", 1)))
    assert code == 0
    assert next(iter(request_)) in said


@pytest.mark.parametrize(
    ("export", "is_remarked"),
    [
        ("NONE", True),
        ("X=1,HOME", True),
        ("ALL,X=1", False),
        ("all", False),
        ("PATH,X", False),
    ],
)
def test_an_environment_without_the_drivers_path_is_told(
    export: str,
    is_remarked: bool,
    service_on: ServiceOn,
) -> None:
    code, (said, *_) = service_on({"export": export}, sinfo(("p*", 2)))
    assert code == 0
    text = f"export: {export} does not pass the driver's PATH on to jobs; add ALL"
    assert (text in said) == is_remarked == (said != OK)


@pytest.mark.parametrize("missing", ["configuration", "commands"])
def test_a_run_that_cannot_submit_is_refused(
    missing: str,
    slurm: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    why = (
        "sinfo: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host; "
        "Could not establish a configuration source"
    )
    if missing == "configuration":
        monkeypatch.delenv("SLURM_CONF")
        assert not submits()
    else:
        (tmp_path / "bin").mkdir()
        for name in ("true", "timeout"):
            (tmp_path / "bin" / name).symlink_to(f"/usr/bin/{name}")
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        why = "sbatch is not on the PATH"
    written()
    said = f"deployments.cluster: jobs of cluster cannot be submitted from here: {why}"
    right = "run it on a login node, or wrap a deployment that reaches one"
    assert checked(capsys) == (2, [f"{said}; {right}"])
    # it runs where other targets take the step
    written(also_local=True)
    right = "the other targets of its steps have to run them"
    assert checked(capsys) == (0, [f"remark: {said}; {right}", OK])


@pytest.mark.parametrize("wrong", ["missing", "misspelt"])
def test_a_run_without_a_valid_slurm_conf_is_refused(
    wrong: str,
    slurm: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slurm's commands retry for a minute while there is no such file."""
    file = tmp_path / "slurm.conf"
    monkeypatch.setenv("SLURM_CONF", str(file))
    message = f"cannot stat file {file}"
    if wrong == "misspelt":
        file.write_text("ClusterName=x\nSlurmctldHost=localhost\nPartitionNam=p\n")
        message = "Parsing error at unrecognized key: PartitionNam"
    written()
    code, (line,) = checked(capsys)
    assert code == 2
    assert "jobs of cluster cannot be submitted from here: sinfo" in line
    assert message in line


def test_a_controller_that_is_down_is_a_remark(
    lab: Lab,
    here: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = Path(lab.environment["SLURM_CONF"]).read_text()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    down = re.sub("SlurmctldPort=.*", f"SlurmctldPort={port}", text)
    assert down != text
    (tmp_path / "slurm.conf").write_text(down)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    written("computer")
    code, (remark, _) = checked(capsys)
    assert code == 0
    assert remark.startswith(
        "remark: deployments.cluster: Slurm of cluster could not be"
    )
    assert "its partitions, nodes and gres are not checked" in remark


@pytest.fixture
def login(lab: Lab, tmp_path: Path) -> Iterator[dict[str, JSON]]:
    """The configuration of a login node of the lab."""
    with sshd(tmp_path / "sshd", lab.environment) as port:
        yield {
            "nodes": [f"127.0.0.1:{port}"],
            "username": getpass.getuser(),
            "sshKey": str(tmp_path / "sshd" / "user"),
            "checkHostKey": False,
        }


def test_a_slurm_behind_ssh_lists_its_partitions(
    login: dict[str, JSON], capsys: pytest.CaptureFixture[str]
) -> None:
    written(inner=login)
    assert checked(capsys) == (0, [OK])
    written("computer", login)
    assert has_typo(capsys)


def test_a_login_node_that_refuses_its_user_is_a_problem(
    login: dict[str, JSON], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(inner={**login, "sshKey": str(tmp_path / "sshd" / "ca")})
    code, (line,) = checked(capsys)
    assert code == 2
    assert "jobs of cluster cannot be submitted from here: front: Permission" in line


def test_a_login_node_that_refuses_connections_is_a_remark(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    written(inner={"nodes": [f"127.0.0.1:{port}"], "username": "ada"})
    code, (remark, ok) = checked(capsys)
    assert (code, ok) == (0, OK)
    assert "Slurm of cluster could not be asked (front: " in remark


def test_a_login_node_that_keeps_silent_is_a_remark(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listings, "SECONDS", 0.5)
    # the kernel accepts the connection, and nobody reads what it says
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        written(inner={"nodes": [f"127.0.0.1:{port}"], "username": "ada"})
        code, (remark, ok) = checked(capsys)
    assert (code, ok) == (0, OK)
    assert "Slurm of cluster could not be asked (no answer within 0.5 s)" in remark


def test_a_login_node_without_a_user_is_a_problem(
    login: dict[str, JSON], capsys: pytest.CaptureFixture[str]
) -> None:
    del login["username"]
    written(inner=login)
    code, (line,) = checked(capsys)
    assert code == 2
    assert "jobs of cluster cannot be submitted from here: front has no user" in line


def test_a_command_for_credentials_is_left_to_the_run(
    login: dict[str, JSON], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(inner={**login, "renewCommand": f"touch {tmp_path}/ran"})
    file = Path("sf.yml")
    file.write_text(file.read_text().replace('"ssh"', '"sfq.ssh"'))
    code, (remark, _) = checked(capsys)
    assert code == 0
    assert "could not be asked (only a run uses the renewCommand of front)" in remark
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def daemon(site: Site) -> Iterator[Rest]:
    with rest(site.lab) as made:
        yield made


def test_a_slurm_behind_slurmrestd_lists_its_partitions(
    daemon: Rest, capsys: pytest.CaptureFixture[str]
) -> None:
    written(slurmrestd=daemon.config)
    assert checked(capsys) == (0, [OK])
    written("computer", slurmrestd=daemon.config)
    assert has_typo(capsys)
    daemon.kill()
    code, (remark, _) = checked(capsys)
    assert code == 0
    assert "could not be asked (slurmrestd does not answer: " in remark


def test_clusters_with_the_same_cause_share_a_line(
    slurm: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    written()
    content = json.loads(Path("sf.yml").read_text())
    content["deployments"]["north"] = content["deployments"]["cluster"]
    bindings = content["workflows"]["w"]["bindings"]
    bindings[0]["target"].append({"deployment": "north", "service": "s"})
    Path("sf.yml").write_text(json.dumps(content))
    code, (line,) = checked(capsys)
    assert code == 2
    assert "jobs of cluster and north cannot be submitted from here" in line
