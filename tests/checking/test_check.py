"""``sfq check``: one line for each thing that is wrong, none for what is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from sf_quantum.checking import check_file, schema
from sf_quantum.cli import main, parser_for
from sf_quantum.qpu.vendors.dwave import DWaveQpu
from tests.support.checked_files import sinfo as lists
from tests.support.checked_files import slurm_lists

FILE = "sf.yml"
GOOD = """\
version: v1.0
workflows:
  main:
    type: cwl
    config:
      file: cwl/main.cwl
      settings: job.yml
    bindings:
      - step: /prepare
        target: {deployment: laptop}
      - step: /loop/solve
        target:
          - {deployment: cluster, service: quantum}
          - {deployment: laptop}
        filters: [mix]
      - port: /archive
        target: {deployment: cluster, workdir: /data}
deployments:
  laptop:
    type: local
    config: {}
    workdir: work
  front:
    type: ssh
    config: {nodes: [login.example.org], username: me, sshKey: key}
  cluster:
    type: slurm
    config:
      maxConcurrentJobs: 4
      services:
        quantum: {partition: qpu, gres: "qpu:1", file: job.sh}
    wraps: front
bindingFilters:
  mix: {type: shuffle, config: {}}
failureManager: {type: default, config: {max_retries: 3}}
scheduling:
  scheduler: {type: default, config: {retry_delay: 1}}
database: {type: default, config: {connection: work/sf.db}}
"""
MAIN = """\
cwlVersion: v1.2
class: Workflow
inputs:
  points: File
  archive: File
  limit: {type: int, default: 10}
  seed: int?
outputs: {}
steps:
  prepare:
    run: tool.cwl
    in: {points: points}
    out: [table]
  loop:
    run:
      class: Workflow
      inputs: {table: File}
      outputs: {}
      steps:
        - id: solve
          run: tool.cwl
          in: [{id: points, source: table}]
          out: [table]
    in: {table: prepare/table}
    out: []
"""
TOOL = """\
cwlVersion: v1.2
class: CommandLineTool
baseCommand: [cat, -n]
inputs: {points: File}
outputs: {table: stdout}
"""
JOB = """\
points: {class: File, path: points.csv}
archive: {class: File, path: far.csv}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with everything that GOOD names."""
    monkeypatch.chdir(tmp_path)
    Path("cwl").mkdir()
    for name, text in {
        FILE: GOOD,
        "cwl/main.cwl": MAIN,
        "cwl/tool.cwl": TOOL,
        "job.yml": JOB,
        "job.sh": "{{streamflow_command}}",
        "key": "",
        "points.csv": "x\n1\n",
    }.items():
        Path(name).write_text(text)


def edited(name: str, old: str, new: str) -> None:
    text = Path(name).read_text()
    assert text.count(old) == 1
    Path(name).write_text(text.replace(old, new))


def found(name: str = FILE) -> list[str]:
    return [str(problem) for problem in check_file(name, parser_for).problems]


def test_a_good_file_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", FILE]) == 0
    assert capsys.readouterr().out == "sf.yml: OK (1 workflow, 3 deployments)\n"


def test_every_problem_of_every_file_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    edited(FILE, "retry_delay", "retrydelay")
    edited(FILE, "/prepare", "/prepair")
    edited("cwl/main.cwl", "run: tool.cwl\n    in", "run: tol.cwl\n    in")
    assert main(["check", FILE, "none.yml"]) == 2
    assert capsys.readouterr().out.splitlines() == [
        "sf.yml:9: workflows.main.bindings[0].step: the workflow has no step /prepair;"
        " did you mean /prepare?",
        "sf.yml:37: scheduling.scheduler.config.retrydelay: unknown key;"
        " did you mean retry_delay?",
        "cwl/main.cwl:11: steps.prepare.run: tol.cwl: no such file;"
        " did you mean tool.cwl?",
        "none.yml: cannot be read as a StreamFlow file or a service's configuration:"
        " No such file or directory; name a readable file",
    ]


EXPECTED = "expected a StreamFlow file or a service's configuration"
NOT_YAML = [
    ("", f"sf.yml: the file is empty; {EXPECTED}"),
    (
        "- a\n",
        f"sf.yml:1: the file is not a mapping of keys; {EXPECTED}",
    ),
    (
        "a: 1\nb: ]\n",
        "sf.yml:2: not YAML at column 4 (expected the node content, but found ']');"
        f" {EXPECTED}",
    ),
    (
        "a:\n  b: [1]\n    c: 2\n",
        "sf.yml:3: not YAML at column 5 (its indentation does not fit the lines around it);"
        f" {EXPECTED}",
    ),
    (
        "a: 1\na: 2\n",
        "sf.yml:2: not YAML at column 1 (duplicate key 'a');" f" {EXPECTED}",
    ),
]


@pytest.mark.parametrize(("text", "line"), NOT_YAML)
def test_not_a_yaml_mapping(text: str, line: str) -> None:
    Path(FILE).write_text(text)
    assert found() == [line]


BINDING = "workflows.main.bindings"
KEYS = {
    "top level": ("database:", "databse:", "38: databse: unknown key; did you mean database?"),
    "section that others refer to": ("bindingFilters:", "bindingFilter:", "33: bindingFilter: unknown key; did you mean bindingFilters?"),
    "key that others need": ("settings:", "setting:", "7: workflows.main.config.setting: unknown key; did you mean settings?"),
    "key that belongs inside": ("laptop}\n      - step", "laptop}\n        service: a\n      - step", f"11: {BINDING}[0].service: unknown key; write it inside target"),
    "key that belongs inside what is missing": ("target: {deployment: laptop}\n      - step", "deployment: laptop\n      - step", f"10: {BINDING}[0].deployment: unknown key; write it inside target"),
    "key of a connector outside its config": ("type: slurm\n", "type: slurm\n    pollingInterval: 1\n", "28: deployments.cluster.pollingInterval: unknown key; write it inside config"),
    "key that belongs beside": ("config: {}\n    work", "config: {wraps: front}\n    work", "21: deployments.laptop.config.wraps: unknown key; write it beside config"),
    "workflow": ("bindings:", "binding: []\n    bindings:", "8: workflows.main.binding: unknown key; did you mean bindings?"),
    "workflow config": ("settings:", "setting: x\n      settings:", "7: workflows.main.config.setting: unknown key; did you mean settings?"),
    "binding": ("filters:", "filter:", f"15: {BINDING}[1].filter: unknown key; did you mean filters?"),
    "target": ("workdir: /data", "workdir: /data, locatons: 2", f"17: {BINDING}[2].target.locatons: unknown key; did you mean locations?"),
    "deployment": ("workdir: work", "workDir: work", "22: deployments.laptop.workDir: unknown key; did you mean workdir?"),
    "config, closed": ("config: {}\n    work", "config: {bufferSize: 1}\n    work", "21: deployments.laptop.config.bufferSize: unknown key; did you mean transferBufferSize?"),
    "config, unevaluated": ("maxConcurrentJobs", "maxconcurentjobs", "29: deployments.cluster.config.maxconcurentjobs: unknown key; did you mean maxConcurrentJobs?"),
    "service, open in its schema": ("partition:", "partitoin:", "31: deployments.cluster.config.services.quantum.partitoin: unknown key; did you mean partition?"),
    "service of any name": ("quantum: {partition", "GPU: {nodez: 1}\n        quantum: {partition", "31: deployments.cluster.config.services.GPU.nodez: unknown key; did you mean nodes?"),
    "filter": ("shuffle, config: {}", "shuffle, config: {seed: 1}", "34: bindingFilters.mix.config.seed: unknown key; none is defined"),
    "failure manager": ("max_retries", "maxRetries", "35: failureManager.config.maxRetries: unknown key; did you mean max_retries?"),
    "scheduling": ("scheduler:", "sheduler:", "37: scheduling.sheduler: unknown key; did you mean scheduler?"),
    "database": ("connection:", "conection: x, connection:", "38: database.config.conection: unknown key; did you mean connection?"),
}  # fmt: skip


VALUES = {
    "type": ("type: slurm", "type: slrum", "27: deployments.cluster.type: unknown type 'slrum'; did you mean slurm?"),
    "missing type": ("    type: local\n", "", "19: deployments.laptop: type is missing; add type:"),
    "missing config": ("    config: {}\n", "", "19: deployments.laptop: config is missing; add config:"),
    "empty config": ("config: {}\n    work", "config:\n    work", "21: deployments.laptop.config: the value is empty; write a mapping of keys, {} for none"),
    "wrong kind": ("Jobs: 4", "Jobs: many", "29: deployments.cluster.config.maxConcurrentJobs: 'many' has the wrong type; write a whole number"),
    "number for text": ("{partition: qpu,", "{partition: 1,", '31: deployments.cluster.config.services.quantum.partition: 1 has the wrong type; write text: "1"'),
    "neither kind": ("nodes: [login.example.org]", "nodes: [1]", "25: deployments.front.config.nodes[0]: 1 has the wrong type; write text or a mapping of keys"),
    "range": ("config: {}\n    work", "config: {transferBufferSize: 0}\n    work", "21: deployments.laptop.config.transferBufferSize: 0 is not allowed; write 1 or more"),
    "list": ("local\n    config: {}", "sfq.nodes\n    config: {names: []}", "21: deployments.laptop.config.names: [] is not allowed; list at least 1"),
    "pattern": ("local\n    config: {}", "sfq.nodes\n    config: {names: [a/b]}", "21: deployments.laptop.config.names[0]: 'a/b' is not allowed; write what matches ^[A-Za-z0-9][A-Za-z0-9._-]*$"),
    "version": ("v1.0", "v2.0", "1: version: unknown version 'v2.0'; write version: v1.0"),
    "rivals": ("{deployment: laptop}\n      - step", "{deployment: laptop, model: laptop}\n      - step", f"10: {BINDING}[0].target: deployment and model are both given; keep one"),
    "name": ("  mix: {", "  b: {type: shuffle}\n  mix: {", "34: bindingFilters.b: config is missing; add config:"),
}  # fmt: skip

NAMES = {
    "deployment of a target": ("deployment: laptop}\n      - step", "deployment: labtop}\n      - step", f"10: {BINDING}[0].target.deployment: there is no deployment 'labtop'; did you mean laptop?"),
    "service": ("service: quantum", "service: quantom", f"13: {BINDING}[1].target[0].service: deployment cluster has no service 'quantom'; did you mean quantum?"),
    "filter": ("[mix]", "[mux]", f"15: {BINDING}[1].filters[0]: bindingFilters has no 'mux'; did you mean mix?"),
    "wrapped deployment": ("wraps: front", "wraps: font", "32: deployments.cluster.wraps: there is no deployment 'font'; did you mean front?"),
    "wrapped service": ("wraps: front", "wraps: {deployment: front, service: a}", "32: deployments.cluster.wraps.service: deployment front has no service 'a'; none is defined"),
    "wraps nothing": ("workdir: work\n", "wraps: front\n", "22: deployments.laptop.wraps: a deployment of type local cannot wrap another; remove wraps"),
    "wraps itself": ("wraps: front", "wraps: cluster", "32: deployments.cluster.wraps: the deployment wraps itself (cluster -> cluster); wrap another deployment"),
    "policy": ("workdir: work\n", "scheduling_policy: best\n", "22: deployments.laptop.scheduling_policy: scheduling.policies has no 'best'; known: __DEFAULT__"),
    "port without workdir": (", workdir: /data", "", f"17: {BINDING}[2].target: workdir is missing; add workdir: the folder that holds the port's data"),
    "step": ("step: /loop/solve", "step: /solve", f"11: {BINDING}[1].step: the workflow has no step /solve; did you mean /loop/solve?"),
    "port as a step": ("step: /prepare", "step: /prepare/points", f"9: {BINDING}[0].step: the workflow has no step /prepare/points; it is a port: write port: /prepare/points"),
    "step of another level": ("step: /prepare", "step: /loop/prepare", f"9: {BINDING}[0].step: the workflow has no step /loop/prepare; did you mean /prepare?"),
    "port": ("port: /archive", "port: /achive", f"16: {BINDING}[2].port: the workflow has no port /achive; did you mean /archive?"),
    "relative step": ("step: /prepare", "step: prepare", f"9: {BINDING}[0].step: 'prepare' is not an absolute path; write /prepare"),
}  # fmt: skip

FILES = {
    "workflow": ("cwl/main.cwl", "cwl/man.cwl", "6: workflows.main.config.file: cwl/man.cwl: no such file; did you mean main.cwl?"),
    "settings": ("job.yml", "jop.yml", "7: workflows.main.config.settings: jop.yml: no such file; did you mean job.yml?"),
    "workflow elsewhere": ("cwl/main.cwl", "wf/main.cwl", "6: workflows.main.config.file: wf/main.cwl: no such file; a relative path starts at the StreamFlow file"),
    "no settings": ("      settings: job.yml\n", "", "5: workflows.main.config.settings: settings is missing, and the workflow needs points, archive; name a file with their values"),
    "key": ("sshKey: key", "sshKey: kee", "25: deployments.front.config.sshKey: kee: no such file; name an existing file"),
    "nested key": ("[login.example.org]", "[{hostname: a, passwordFile: no}]", "25: deployments.front.config.nodes[0].passwordFile: no: no such file; name an existing file"),
    "job template": ("job.sh", "jop.sh", "31: deployments.cluster.config.services.quantum.file: jop.sh: no such file; did you mean job.sh?"),
}  # fmt: skip


CASES = {"key": KEYS, "value": VALUES, "name": NAMES, "file": FILES}


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        pytest.param(*case, id=f"{what}, {name}")
        for what, cases in CASES.items()
        for name, case in cases.items()
    ],
)
def test_one_line_for_one_fault(old: str, new: str, line: str) -> None:
    Path("far.csv").touch()  # some cases take away the port that lies elsewhere
    edited(FILE, old, new)
    assert found() == [f"{FILE}:{line}"]


# edits of "maxConcurrentJobs: 4" in GOOD, once its cluster is one of sfq.slurm
SLURM = {
    "strategy alone": ("allocation: elastik", "allocation: unknown allocation 'elastik'; did you mean elastic?"),
    "strategy that needs more": ("allocation: reserved", "allocation: reserved needs reserve; write {strategy: reserved, reserve: ...}"),
    "strategy": ("allocation: {strategy: reservd, reserve: [quantum]}", "allocation.strategy: unknown strategy 'reservd'; did you mean reserved?"),
    "strategy, less like it": ("allocation: {strategy: all, keep: 0}", "allocation.strategy: unknown strategy 'all'; known: elastic, per-step, reserved"),
    "no strategy": ("allocation: {keep: 1}", "allocation: strategy is missing; add strategy:"),
    "no mapping": ("allocation: [elastic]", "allocation: ['elastic'] has the wrong type; write text or a mapping of keys"),
    "key": ("allocation: {strategy: elastic, kep: 1}", "allocation.kep: unknown key; did you mean keep?"),
    "key of another strategy": ("allocation: {strategy: per-step, keep: 1}", "allocation.keep: unknown key; known: strategy"),
    "misspelt key that is needed": ("allocation: {strategy: reserved, reserv: [quantum]}", "allocation.reserv: unknown key; did you mean reserve?"),
    "key below": ("allocation: {strategy: reserved, reserve: [quantum], release: {after: /prepare, time: 2}}", "allocation.release.time: unknown key; did you mean times?"),
    "number": ("allocation: {strategy: elastic, idle: -1}", "allocation.idle: -1 is not allowed; write 0 or more"),
    "reserved service": ("allocation: {strategy: reserved, reserve: [quantum, quantom]}", "allocation.reserve[1]: deployment cluster has no service 'quantom'; did you mean quantum?"),
    "reserved service, counted": ("allocation: {strategy: reserved, reserve: {quantom: 1}}", "allocation.reserve.quantom: deployment cluster has no service 'quantom'; did you mean quantum?"),
    "released after": ("allocation: {strategy: reserved, reserve: [quantum], release: {after: /lop/solve}}", "allocation.release.after: the workflow has no step /lop/solve; did you mean /loop/solve?"),
    "reserved for nobody": ("allocation: {strategy: reserved, reserve: [quantum, quantum]}", "allocation: reserve for quantum is 2, but maxConcurrentJobs allows 1 at once; write maxConcurrentJobs: 2 or more"),
    "kept for nobody": ("allocation: {strategy: elastic, keep: 3}", "allocation: keep is 3, but maxConcurrentJobs allows 1 at once; write maxConcurrentJobs: 3 or more"),
    "none may be kept": ("allocation: {strategy: elastic, max: 0}", "allocation.max: 0 is not allowed; write 1 or more"),
    "key of the deployment": ("alocation: elastic", "alocation: unknown key; did you mean allocation?"),
    "file of QPUs": ("qrmiConfig: none.json", "qrmiConfig: none.json: no such file; name an existing file"),
    "no token": ("slurmrestd: {url: https://site}", "slurmrestd: tokenFile is missing; add tokenFile:"),
    "token": ("slurmrestd: {url: https://site, tokenFile: none}", "slurmrestd.tokenFile: none: no such file; name an existing file"),
    "key of slurmrestd": ("slurmrestd: {url: https://site, tokenCommand: x, tokn: y}", "slurmrestd.tokn: unknown key; did you mean tokenFile?"),
    "file of other things": ("qrmiConfig: job.json", "qrmiConfig: job.json: resources: expected a list; give the path of a qrmi_config.json for QRMI's SPANK plugin"),
}  # fmt: skip
SERVICE = {
    "key": ("partitoin: qpu", "partitoin: unknown key; did you mean partition?"),
    "key of StreamFlow's": ('minpucs: "2"', "minpucs: unknown key; did you mean mincpus?"),
    "key of ours": ("qpus: [a]", "qpus: unknown key; did you mean qpu?"),
    "strategy": ("allocation: {strategy: elstic}", "allocation.strategy: unknown strategy 'elstic'; did you mean elastic?"),
    "reserved service": ("allocation: {strategy: reserved, reserve: [quantom]}", "allocation.reserve[0]: deployment cluster has no service 'quantom'; did you mean quantum?"),
    "QPU": ("qpu: [fresno, fresnl]", "qpu[1]: qrmi_config.json has no QPU 'fresnl'; did you mean fresno?"),
    "all clusters": ("clusters: all", "clusters: expected the names of clusters; write them with commas, without blanks; of `all`, those meant"),
    "no list of QPUs": ("qpu: fresno", "qpu: 'fresno' has the wrong type; write a list"),
}  # fmt: skip


@pytest.fixture
def cluster() -> None:
    """The cluster is one of ``sfq.slurm``."""
    edited(FILE, "type: slurm", "type: sfq.slurm")
    edited(FILE, "login.example.org", "127.0.0.1:1")
    Path("job.json").write_text("{}")
    Path("qrmi_config.json").write_text('{"resources": [{"name": "fresno"}]}')


@pytest.mark.process
@pytest.mark.parametrize(("new", "line"), SLURM.values(), ids=SLURM)
def test_a_cluster(cluster: None, new: str, line: str) -> None:
    edited(FILE, "maxConcurrentJobs: 4", new)
    assert found() == [f"{FILE}:29: deployments.cluster.config.{line}"]


@pytest.mark.process
def test_partitions_are_asked_of_the_slurm_that_is_here(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited(FILE, "wraps: front", "wraps: laptop")
    lines = lists(("compute", 3), ("qpus", 1))
    sinfo = slurm_lists(tmp_path / "bin", monkeypatch, lines)
    where = "deployments.cluster.config.services.quantum.partition"
    said = f"{where}: Slurm has no partition 'qpu'; did you mean qpus?"
    assert [line.partition(": ")[2] for line in found()] == [said]
    edited(FILE, "partition: qpu", "clusters: 'north,south', partition: qpu")
    assert found() == []
    edited(FILE, "clusters: 'north,south', ", "")
    sinfo.write_text("#!/bin/sh\nexit 1")  # as without a controller
    assert found() == []


@pytest.mark.process
def test_reservations_fit_into_their_partitions(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited(FILE, "wraps: front", "wraps: laptop")
    edited(FILE, "partition: qpu", "partition: qpus")
    reserve = "allocation: {strategy: reserved, reserve: {quantum: 4}}"
    edited(FILE, "maxConcurrentJobs: 4", f"maxConcurrentJobs: 4\n      {reserve}")
    # a line for each kind of nodes
    lines = lists(("compute", 9), ("qpus", 1), ("qpus", 2))
    slurm_lists(tmp_path / "bin", monkeypatch, lines)
    (line,) = found()
    assert "reserve has 4 nodes, but partition qpus has 3; write as many" in line
    edited(FILE, "quantum: 4", "quantum: 3")
    assert found() == []
    edited(FILE, "partition: qpus", "partition: qpus, nodes: 4")
    said = " ".join(found())
    assert "reserve has 12 nodes, but partition qpus has 3" in said
    assert "it has 4 nodes, but partition qpus has 3" in said


@pytest.mark.process
def test_ranges_of_a_reservation_are_counted_as_slurm_does(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the last component take the most of their ranges."""
    edited(FILE, "wraps: front", "wraps: laptop")
    edited(FILE, "partition: qpu", "partition: qpus, nodes: 1-2")
    reserve = "allocation: {strategy: reserved, reserve: {quantum: 2}}"
    edited(FILE, "maxConcurrentJobs: 4", f"maxConcurrentJobs: 4\n      {reserve}")
    lines = lists(("compute", 9), ("qpus", 2))
    slurm_lists(tmp_path / "bin", monkeypatch, lines)
    (line,) = found()
    assert "reserve has 3 nodes, but partition qpus has 2" in line
    edited(FILE, "quantum: 2", "quantum: 1")
    assert found() == []


@pytest.mark.parametrize(("new", "line"), SERVICE.values(), ids=SERVICE)
def test_a_service_of_a_cluster(cluster: None, new: str, line: str) -> None:
    edited(FILE, "maxConcurrentJobs: 4", "qrmiConfig: qrmi_config.json")
    edited(FILE, "partition: qpu", new)
    where = f"{FILE}:31: deployments.cluster.config.services.quantum"
    assert found() == [f"{where}.{line}"]


@pytest.mark.process
def test_a_cluster_without_a_shell(cluster: None) -> None:
    new = "slurmrestd: {url: https://site, tokenCommand: x}\n      allocation: elastic"
    edited(FILE, "maxConcurrentJobs: 4", new)
    Path("job.sh").write_text("#!/bin/sh\n#SBATCH --mem=1G\n")
    edited(FILE, "partition: qpu", "exclusive: true")
    where = "deployments.cluster.config"
    service = f"{where}.services.quantum"
    first, second, third = found()
    assert first == (
        f"{FILE}:30: {where}.allocation: elastic and reserved start steps with srun, "
        "which slurmrestd cannot do; write allocation: per-step"
    )
    assert second == (
        f"{FILE}:32: {service}.file: slurmrestd does not read the #SBATCH lines of a "
        "template; write their options as keys of the service"
    )
    assert third.startswith(
        f"{FILE}:32: {service}.exclusive: slurmrestd does not accept this option; it "
    )


def test_an_allocation_in_two_clusters(cluster: None) -> None:
    new = "{strategy: reserved, reserve: [quantum, other]}"
    edited(FILE, "Jobs: 4\n", f"Jobs: 4\n      allocation: {new}\n")
    edited(
        FILE, "partition: qpu", "clusters: north}\n        other: {partition: compute"
    )
    assert [line.partition("config.")[2] for line in found()] == [
        "allocation.reserve: an allocation is in one cluster, but its services name different "
        "ones; give all services of `reserve` the same `clusters`"
    ]


def test_more_kept_than_there_may_be(cluster: None) -> None:
    new = "{strategy: elastic, keep: 3, max: 2}"
    edited(FILE, "Jobs: 4\n", f"Jobs: 4\n      allocation: {new}\n")
    assert found() == [
        f"{FILE}:30: deployments.cluster.config.allocation: keep is 3, but max is 2;"
        " write a value of keep that is at most max"
    ]


ALLOCATIONS = [
    "per-step",
    "elastic",
    "{strategy: per-step}",
    "{strategy: elastic, keep: 1, max: 4, idle: 0, patience: 9.5, ahead: true, urgency: 0}",
    "{strategy: reserved, reserve: [quantum], idle: 3}",
    "{strategy: reserved, reserve: {quantum: 2}, release: {after: /loop/solve, times: 2}}",
]


@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_nothing_is_said_of_a_good_cluster(cluster: None, allocation: str) -> None:
    new = f"allocation: {allocation}\n      qrmiConfig: qrmi_config.json"
    edited(FILE, "Jobs: 4\n", f"Jobs: 4\n      {new}\n")
    edited(FILE, "partition: qpu", f"qpu: [fresno], allocation: {allocation}")
    assert found() == []


INPUTS = {
    "unknown": ("points:", "seeds: 3\npoints:", "1: seeds: the workflow has no such input; did you mean seed?"),
    "missing": ("points: {class: File, path: points.csv}\n", "", "1: the input points is missing; add points: (its type is File)"),
    "missing file": ("points.csv", "point.csv", "1: points: point.csv: no such file; did you mean points.csv?"),
    "text for a file": ("{class: File, path: points.csv}", "points.csv", "1: points: the value is not a File; write {class: File, path: ...}"),
    "text for a number": ("points:", "limit: high\npoints:", "1: limit: 'high' does not fit; its type is int"),
    "truth for a number": ("points:", "limit: true\npoints:", "1: limit: True does not fit; its type is int"),
    "not YAML": ("points:", "{:", "2: not YAML at column 1 (expected ',' or '}', but got '<scalar>'); expected a file of inputs"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line"), INPUTS.values(), ids=INPUTS)
def test_inputs(old: str, new: str, line: str) -> None:
    edited("job.yml", old, new)
    assert found() == [f"job.yml:{line}"]


def test_a_file_that_is_not_cwl() -> None:
    Path("cwl/main.cwl").write_text("a: 1\n")
    assert found() == [
        "cwl/main.cwl:1: the file does not look like CWL; expected cwlVersion and a class, one"
        " of Workflow, CommandLineTool, ExpressionTool, Operation"
    ]


def test_a_workflow_that_runs_itself() -> None:
    edited("cwl/main.cwl", "run: tool.cwl\n    in", "run: main.cwl\n    in")
    assert found() == [
        "cwl/main.cwl:11: steps.prepare.run: main.cwl runs itself; run another file"
    ]


def test_a_tool_that_is_not_on_the_path() -> None:
    edited("cwl/tool.cwl", "cat", "no-such-tool")
    assert found() == [
        "cwl/tool.cwl:3: baseCommand: no-such-tool is not on the PATH of this host,"
        f" where {step} runs; install it, or bind the step elsewhere"
        for step in ("/prepare", "/loop/solve")
    ]


def test_nothing_is_said_of_tools_elsewhere() -> None:
    edited("cwl/tool.cwl", "cat", "no-such-tool")
    edited(FILE, "step: /prepare", "step: /")
    edited(FILE, "          - {deployment: laptop}\n", "")
    edited(
        FILE, "{deployment: laptop}\n      - step", "{deployment: front}\n      - step"
    )
    assert found() == []


def test_nothing_is_said_of_tools_in_containers() -> None:
    edited("cwl/tool.cwl", "cat", "no-such-tool")
    edited("cwl/main.cwl", "steps:\n  p", "hints: {DockerRequirement: {}}\nsteps:\n  p")
    assert found() == []


def test_our_locations_run_tools_where_what_they_wrap_does() -> None:
    edited("cwl/tool.cwl", "cat", "no-such-tool")
    edited(FILE, "/loop/solve", "/loop")
    edited(FILE, "local\n    config: {}", "sfq.nodes\n    config: {names: [a]}")
    assert len(found()) == 2
    edited(FILE, "workdir: work\n", "wraps: front\n")
    assert found() == []


def test_keys_of_our_own_connectors() -> None:
    edited(FILE, "local\n    config: {}", "sfq.emulator\n    config: {timescale: 0}")
    assert found() == [
        "sf.yml:21: deployments.laptop.config.timescale: unknown key;"
        " did you mean timeScale?"
    ]


FALLBACK = (
    "onFailure: fallback needs a failureManager, which is missing; add failureManager:"
    " {type: default, config: {max_retries: 3}} or write onFailure: fail"
)


@pytest.mark.parametrize("manager", ["", "failureManager: {type: dummy, config: {}}\n"])
def test_fallback_without_a_failure_manager(manager: str) -> None:
    old = "failureManager: {type: default, config: {max_retries: 3}}\n"
    edited(FILE, old, manager)
    assert found() == []
    edited(FILE, "shuffle, config: {}", "sfq.candidate, config: {}")
    line = f"sf.yml:34: bindingFilters.mix.config.onFailure: {FALLBACK}"
    assert line in found()
    edited(FILE, "candidate, config: {}", "candidate, config: {onFailure: fail}")
    assert line not in found()


def candidate(targets: str, config: str) -> None:
    """Make /loop/solve a candidate, whose tool has the int input n."""
    edited("cwl/tool.cwl", "inputs: {points: File}", "inputs: {points: File, n: int?}")
    edited(FILE, "{deployment: cluster, service: quantum}\n", f"{targets}\n")
    edited(FILE, "shuffle, config: {}", f"sfq.candidate, config: {config}")
    edited(
        FILE, "type: default, config: {retry_delay: 1}", "type: sfq.journal, config: {}"
    )
    edited(
        FILE,
        "bindingFilters:",
        "  q: {type: sfq.emulator, config: {}}\nbindingFilters:",
    )


def test_a_candidate_that_is_right() -> None:
    config = "{variables: n, costs: {q: 1}, steps: {/loop: {prefer: earliest}}}"
    candidate("{deployment: q}", config)
    assert found() == []


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            "{maxwait: 3}",
            "bindingFilters.mix.config.maxwait: unknown key; did you mean maxWait?",
        ),
        (
            "{steps: {/loop/solve: {cooldown: 3}}}",
            "bindingFilters.mix.config.steps./loop/solve.cooldown: unknown key; write it "
            "beside steps",
        ),
        (
            "{prefer: earlier}",
            "bindingFilters.mix.config.prefer: unknown prefer 'earlier'; did you mean "
            "earliest?",
        ),
        (
            # said once, though the cost of q is missing, too
            "{costs: {qq: 3}, budget: {cost: 9}}",
            "bindingFilters.mix.config.costs.qq: qq is not a target of the candidates; "
            "did you mean q?",
        ),
        (
            "{priority: 1001}",
            "bindingFilters.mix.config.priority: 1001 is not allowed; write 1000 or less",
        ),
        (
            "{latestStart: '2026-12-01T08:00'}",
            "bindingFilters.mix.config.latestStart: '2026-12-01T08:00' is not allowed; "
            "write a time with its zone, such as 2026-12-01T08:00:00+01:00",
        ),
        (
            "{steps: {/loop: {latestStart: '2026-02-30T08:00Z'}}}",
            "bindingFilters.mix.config.steps./loop.latestStart: '2026-02-30T08:00Z' is "
            "not allowed; write a time with its zone, such as 2026-12-01T08:00:00+01:00",
        ),
        (
            "{steps: {/prepare: {maxWait: 3}}}",
            "bindingFilters.mix.config.steps./prepare: no binding of /prepare names the "
            "filter mix; known: /loop/solve",
        ),
        (
            "{variables: size}",
            "bindingFilters.mix.config.variables: the tool of step /loop/solve has no "
            "input 'size'; variables must name an int input of the tool, one of: n",
        ),
        (
            "{steps: {/loop: {reads: points}}}",
            "bindingFilters.mix.config.steps./loop.reads: input 'points' of step "
            "/loop/solve is File; reads must name an int input of the tool, one of: n",
        ),
        (
            "{maxVariables: 3}",
            "bindingFilters.mix.config.maxVariables: maxVariables needs the number of "
            "variables of the step's problem; name the int input that holds it: "
            "variables: INPUT",
        ),
        (
            "{steps: {/loop: {minVariables: 3}}}",
            "bindingFilters.mix.config.steps./loop.minVariables: minVariables needs the "
            "number of variables of the step's problem; name the int input that holds it: "
            "variables: INPUT",
        ),
    ],
)
def test_a_filter_that_does_not_fit_its_steps(config: str, line: str) -> None:
    candidate("{deployment: q}", config)
    assert found() == [f"sf.yml:35: {line}"]


@pytest.mark.parametrize(
    ("targets", "config", "what"),
    [
        ("{deployment: q}", "{forecast: plan}", "without prefer: earliest"),
        (
            "{deployment: q}",
            "{forecast: plan, steps: {/loop: {prefer: earliest}}}",
            "as no target is on sfq.slurm",
        ),
    ],
)
def test_forecasts_without_effect(targets: str, config: str, what: str) -> None:
    candidate(targets, config)
    (remark,) = check_file(FILE).remarks
    assert what in str(remark)


def test_the_size_of_a_problem_is_an_input_of_the_tool() -> None:
    """StreamFlow passes no further input of the workflow's step on to its jobs."""
    candidate("{deployment: q}", "{variables: size}")
    edited("cwl/main.cwl", "in: {table: prepare/table}", IN.replace("n:", "size:"))
    edited("cwl/main.cwl", "inputs: {table: File}", "inputs: {table: File, size: int}")
    edited(
        "cwl/main.cwl", "source: table}]", "source: table}, {id: size, source: size}]"
    )
    edited("job.yml", "archive:", "limit: 9\narchive:")
    (line,) = [line for line in found() if "bindingFilters" in line]
    assert "the tool of step /loop/solve has no input 'size'" in line


def test_a_limit_on_variables_that_another_level_names_is_right() -> None:
    candidate("{deployment: q}", "{maxVariables: 3, steps: {/loop: {variables: n}}}")
    assert found() == []


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{budget: {cost: 3}}", True),
        ("{steps: {/loop/solve: {budget: {cost: 3}}}}", True),
        ("{steps: {/prepare: {budget: {cost: 3}}}}", False),
        ("{budget: {qpuSeconds: 3}}", False),
        ("{budget: {cost: 3}, costs: {q: 0}}", False),
    ],
)
def test_a_limit_on_costs_of_a_qpu_that_has_no_price(config: str, said: bool) -> None:
    candidate("{deployment: q}", config)
    line = (
        "sf.yml:13: workflows.main.bindings[1].target[0]: q is emulated and free, so "
        "budget.cost does not limit it; set the cost of a QPU second: costs: {q: ...}"
    )
    assert (line in found()) == said


@pytest.mark.parametrize("config", ["{}", "{onFailure: fail}"])
def test_a_candidate_with_fewer_attempts_than_places(config: str) -> None:
    candidate("{deployment: q}", config)
    edited(FILE, "max_retries: 3", "max_retries: 2")
    assert found() == []
    edited(FILE, "max_retries: 2", "max_retries: 1")
    said = (
        "sf.yml:36: failureManager.config.max_retries: /loop/solve needs 2 attempts to "
        "try all its targets; write 2 or more"
    )
    assert found() == ([said] if config == "{}" else [])


def test_a_candidate_that_has_nothing_to_decide() -> None:
    candidate("{deployment: cluster}", "{}")
    said = "a candidate without a quantum target has nothing to decide; add a quantum target"
    assert found() == [f"sf.yml:12: workflows.main.bindings[1].target: {said}"]
    edited(FILE, "          - {deployment: cluster}\n", "")
    edited(FILE, "          - {deployment: laptop}\n", "          - {deployment: q}\n")
    said = "a candidate with one target has nothing to decide; add a classical target"
    assert found() == [f"sf.yml:12: workflows.main.bindings[1].target: {said}"]
    twice = "          - {deployment: q}\n"
    edited(FILE, twice, 2 * twice)
    said = (
        "it is the same as target[0]; remove it, or name another deployment or service"
    )
    assert found() == [f"sf.yml:14: workflows.main.bindings[1].target[1]: {said}"]


def test_a_candidate_without_a_journal() -> None:
    candidate("{deployment: q}", "{}")
    edited(FILE, "type: sfq.journal, config: {}", "type: default, config: {}")
    assert found() == [
        "sf.yml:35: bindingFilters.mix: sfq.candidate learns from the run's journal, "
        "which is missing; add scheduling: {scheduler: {type: sfq.journal, config: {}}}"
    ]


def test_nothing_is_said_of_what_is_fetched_from_elsewhere() -> None:
    edited("cwl/main.cwl", "run: tool.cwl\n    in", "run: http://x/a.cwl\n    in")
    edited(FILE, "step: /prepare", "step: /prepare/inner/step")
    assert found() == []


def test_a_packed_workflow() -> None:
    Path("cwl/main.cwl").write_text("""\
cwlVersion: v1.2
$graph:
  - {id: tool, class: CommandLineTool, inputs: [], outputs: [], baseCommand: nope}
  - id: "#main"
    class: Workflow
    inputs: [{id: "#main/points", type: File}, {id: archive, type: ["null", File]}]
    outputs: []
    steps:
      - {id: "#main/prepare", run: "#tool", in: [], out: []}
""")
    edited(FILE, "/loop/solve", "/prepare/inner")
    assert found() == [
        f"sf.yml:11: {BINDING}[1].step: the workflow has no step /prepare/inner;"
        " did you mean /prepare?",
        "cwl/main.cwl:3: $graph[0].baseCommand: nope is not on the PATH of this host,"
        " where /prepare runs; install it, or bind the step elsewhere",
    ]


# Real files, in the forms StreamFlow's documentation and users give them.
REAL = {
    "docker compose": """
        dc-mpi:
          type: docker-compose
          config:
            files: [environment/docker-compose/docker-compose.yml]
            compatibility: true
            projectName: openmpi
        """,
    "kubernetes": """
        k8s-mpi:
          type: kubernetes
          config: {files: [environment/k8s/deployment.yaml]}
          workdir: /tmp
        """,
    "helm": """
        helm-mpi:
          type: helm
          config: {chart: environment/helm/openmpi, releaseName: openmpi-rel}
        """,
    "docker": """
        box:
          type: docker
          config:
            image: qsplit:latest
            workdir: /workspace
            volume: [.:/workspace]
            env: [PYTHONPATH=/workspace/src]
        """,
    "singularity in slurm over ssh": """
        login:
          type: ssh
          config:
            nodes: [{hostname: hpc.example.edu, sshKey: key, username: user}]
            checkHostKey: false
            tunnel: {hostname: gate.example.edu}
            sharedPaths: [/scratch]
        queue:
          type: slurm
          config:
            maxConcurrentJobs: 10
            pollingInterval: 2
            services:
              GPU: {gpus: 2, nodes: 1} # not checked by StreamFlow: a capital
              cpu: {nodes: "1", time: "00:10:00"}
              template: {file: job.sh}
          wraps: {deployment: login}
        box:
          type: singularity
          config: {image: "docker://python:3.10", nv: true}
          wraps: {deployment: queue, service: GPU}
        """,
    "the old inline form": """
        old:
          type: slurm
          config:
            file: job.sh
            hostname: login01.example.it
            maxConcurrentSessions: 5
            sshKey: key
            username: me
          workdir: /scratch
        """,
    "pbs with free resources": """
        pbs:
          type: pbs
          config:
            services:
              small: {destination: short, resources: {select: 1, walltime: "1:00"}}
        flux: {type: flux, config: {}}
        """,
}


@pytest.mark.parametrize("text", REAL.values(), ids=REAL)
def test_no_false_alarm(text: str) -> None:
    name = text.split()[0].rstrip(":")
    body = "\n".join(f"  {line[8:]}" for line in text.splitlines())
    Path(FILE).write_text(f"""\
version: v1.0
workflows:
  main:
    type: cwl
    config:
      file: cwl/main.cwl
      settings: job.yml
      docker:
        - step: /loop
          deployment: {{type: singularity, config: {{}}, wrapper: false}}
    bindings:
      - step: /
        target: [{{deployment: {name}, locations: 2}}]
      - port: /archive
        target: {{deployment: {name}, workdir: /data}}
checkpointManager: {{enabled: false}}
scheduling:
  policies:
    locality: {{type: data_locality, config: {{}}}}
deployments:
{body}
""")
    assert found() == []


def test_the_older_words_are_taken() -> None:
    text = GOOD.replace("deployments:", "models:").replace("{deployment:", "{model:")
    Path(FILE).write_text(text)
    assert found() == []


def test_what_streamflow_refuses_is_never_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema.Rules, "_walk", lambda *_: iter(()))
    edited(FILE, "max_retries: 3", "max_retries: many")
    assert found() == [
        "sf.yml:35: failureManager.config.max_retries: StreamFlow rejects it: 'many' is"
        " not of type 'integer'; see its documentation"
    ]


def test_a_plugin_that_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise ImportError("No module named 'site_plugin'")

    monkeypatch.setattr(schema, "load_extensions", broken)
    monkeypatch.setattr("sf_quantum.checking.rules", schema.Rules)
    assert main(["check", FILE]) == 2
    assert capsys.readouterr().err == (
        "sfq check: a StreamFlow plugin cannot be loaded: No module named 'site_plugin';"
        " install or remove it\n"
    )


SOLVE = """\
cwlVersion: v1.2
class: CommandLineTool
baseCommand: [sfq, solve]
inputs:
  problem: {type: File, inputBinding: {prefix: --problem}}
  sampler: {type: string, inputBinding: {prefix: --sampler}}
arguments: [--output, samples.json]
outputs: {}
"""
ALONE = """\
cwlVersion: v1.2
class: Workflow
inputs: {points: File, archive: File, sampler: string}
outputs: {}
steps:
  prepare: {run: tool.cwl, in: {points: points}, out: [table]}
  loop:
    run:
      class: Workflow
      inputs: {table: File, which: string}
      outputs: {}
      steps:
        solve: {run: solve.cwl, in: {problem: table, sampler: which}, out: []}
    in: {table: prepare/table, which: sampler}
    out: []
"""


@pytest.fixture
def solving() -> None:
    """/loop/solve is ``sfq solve``, in a loop, with a sampler of the job file's."""
    Path("cwl/solve.cwl").write_text(SOLVE)
    Path("cwl/main.cwl").write_text(ALONE)


def sampler(name: str) -> None:
    with open("job.yml", "a") as job:
        job.write(f"sampler: {name}\n")


def test_what_our_tools_would_refuse(solving: None) -> None:
    sampler("nael")
    (line,) = found()
    assert line.startswith("job.yml:3: sampler: unknown sampler 'nael', did you mean")
    assert line.endswith("; /loop/solve passes it to sfq solve --sampler")


@pytest.mark.parametrize("name", ["auto", "exact"])
def test_a_sampler_that_leaves_the_qpu_alone(solving: None, name: str) -> None:
    candidate("{deployment: q}", "{}")
    sampler(name)
    line = (
        "job.yml:3: sampler: exact never uses the QPU q, where /loop/solve runs; write "
        "auto, or bind the step to a classical location"
    )
    assert found() == ([line] if name == "exact" else [])


def test_a_candidate_filter_that_no_binding_names_is_a_remark() -> None:
    candidate("{deployment: q}", "{}")
    edited(FILE, "        filters: [mix]\n", "")
    findings = check_file(FILE)
    assert not findings.problems
    line = "bindingFilters.mix: no binding names this filter; add filters: [mix] to "
    said = [f"sf.yml:34: remark: {line}the binding of the step, or remove it"]
    assert [*map(str, findings.remarks)] == said


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("sfw", "unknown QPU type 'sfw'; did you mean sfq?"),
        (
            "dwave",
            "QPUs of type dwave cannot be used: it is gone; install what is missing",
        ),
    ],
)
def test_kinds_of_qpu(kind: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DWaveQpu, "problem", lambda: "it is gone")
    candidate("{deployment: q}", "{}")
    edited(
        FILE,
        "sfq.emulator, config: {}",
        f"sfq.rest, config: {{url: 'https://q', type: {kind}}}",
    )
    assert found() == [f"sf.yml:33: deployments.q.config.type: {line}"]


def limited(config: str) -> list[str]:
    """The remarks on a candidate's limits, for a problem of nine variables."""
    candidate = f"type: sfq.candidate, config: {config}"
    edited(FILE, "type: shuffle, config: {}", candidate)
    edited(FILE, "{deployment: cluster, service: quantum}", "{deployment: q}")
    edited(FILE, "  front:\n", "  q: {type: sfq.emulator, config: {}}\n  front:\n")
    edited(FILE, "type: default, config: {retry_delay: 1}", JOURNAL)
    edited("cwl/main.cwl", "inputs: {table: File}", "inputs: {table: File, n: int?}")
    edited("cwl/main.cwl", "source: table}]", "source: table}, {id: n, source: n}]")
    edited("cwl/main.cwl", "in: {table: prepare/table}", IN)
    edited("cwl/tool.cwl", "inputs: {points: File}", "inputs: {points: File, n: int?}")
    edited("job.yml", "archive:", "limit: 9\narchive:")
    text = "no job of /loop/solve goes to a QPU"
    return [str(one) for one in check_file(FILE).remarks if text in one.what]


JOURNAL = "type: sfq.journal, config: {}"
IN = "in: {table: prepare/table, n: limit}"
NOTHING: dict[str, tuple[str, bool]] = {
    "no seconds": ("{budget: {qpuSeconds: 0}}", True),
    "no seconds of the step": (
        "{budget: {qpuSeconds: 9}, steps: {/loop: {budget: {qpuSeconds: 0}}}}",
        True,
    ),
    "less than a job": ("{budget: {qpuSeconds: 9}, expectedSeconds: 10}", True),
    "a job": ("{budget: {qpuSeconds: 10}, expectedSeconds: 10}", False),
    "less than a job costs": (
        "{budget: {cost: 9}, costs: {q: 2}, expectedSeconds: 5}",
        True,
    ),
    "what a job costs": (
        "{budget: {cost: 10}, costs: {q: 2}, expectedSeconds: 5}",
        False,
    ),
    "free QPUs alone": ("{budget: {cost: 0}, costs: {q: 0}}", False),
    "below the size": ("{variables: n, maxVariables: 8}", True),
    "the size": ("{variables: n, maxVariables: 9, minVariables: 9}", False),
    "above the size": ("{variables: n, minVariables: 10}", True),
    # a QPU that is free starts the job at once
    "no wait": ("{maxWait: 0}", False),
    "a time that has passed": ("{latestStart: '2026-01-01T00:00Z'}", True),
    "a time to come": ("{latestStart: '2999-01-01T00:00Z'}", False),
}


@pytest.mark.parametrize(("config", "remarked"), NOTHING.values(), ids=NOTHING)
def test_limits_that_allow_no_qpu_are_remarks(config: str, remarked: bool) -> None:
    lines = limited(config)
    assert found() == []
    assert len(lines) == remarked


@pytest.mark.parametrize(
    "config",
    [
        "{budget: {qpuSeconds: .nan}}",
        "{budget: {cost: .nan}, costs: {q: 1}}",
        "{budget: {qpuSeconds: 9}, expectedSeconds: .nan}",
    ],
)
def test_a_limit_that_is_not_a_number_is_told_once(config: str) -> None:
    assert limited(config) == []
    (line,) = found()
    assert "nan is not allowed" in line


@pytest.mark.parametrize("key", ["maxConcurrentJobs", "maxConnections", "retries"])
def test_limits_that_let_nothing_through_are_problems(key: str) -> None:
    if key == "maxConcurrentJobs":
        edited(FILE, "maxConcurrentJobs: 4", "maxConcurrentJobs: 0")
    else:
        edited(FILE, "username: me", f"username: me, {key}: 0")
    (line,) = found()
    assert f".{key}: 0 " in line
    assert line.endswith("; write 1 or more")
