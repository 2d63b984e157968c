"""``sfq check`` of deployments of type ``sfq.slurm``: allocations, services, partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checked_files import FILE, edited, found, slurm_lists, write_project
from tests.support.checked_files import sinfo as lists


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with everything that GOOD names."""
    write_project(tmp_path, monkeypatch)


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
    "reserved for nobody": ("allocation: {strategy: reserved, reserve: [quantum, quantum]}", "allocation: reserve for quantum is 2, but maxConcurrentJobs is 1; write maxConcurrentJobs: 2 or more"),
    "kept for nobody": ("allocation: {strategy: elastic, keep: 3}", "allocation: keep is 3, but maxConcurrentJobs is 1; write maxConcurrentJobs: 3 or more"),
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


RESERVED = "{strategy: reserved, reserve: [quantum]}"


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
@pytest.mark.parametrize(
    ("allocation", "of_service", "remedy"),
    [
        ("elastic", "", "give the service allocation: per-step"),
        (RESERVED, "", "take the service out of reserve"),
        (RESERVED, "allocation: per-step, ", "take the service out of reserve"),
        (
            *(RESERVED, "allocation: elastic, "),
            "take the service out of reserve and give the service allocation: per-step",
        ),
        ("elastic", "allocation: per-step, ", ""),
        ("per-step", "", ""),
    ],
)
def test_an_array_that_would_keep_its_nodes_is_a_problem(
    cluster: None, allocation: str, of_service: str, remedy: str
) -> None:
    edited(FILE, "maxConcurrentJobs: 4", f"allocation: {allocation}")
    edited(FILE, "partition: qpu", f"{of_service}array: 1-3, partition: qpu")
    where = f"{FILE}:31: deployments.cluster.config.services.quantum.array"
    what = "an allocation that is kept for several jobs cannot be an array"
    line = f"{where}: {what}; remove array, or {remedy}"
    assert found() == ([line] if remedy else [])


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
    assert (
        "reserve: 4 nodes requested, but partition qpus has 3; request at most 3"
        in line
    )
    edited(FILE, "quantum: 4", "quantum: 3")
    assert found() == []
    edited(FILE, "partition: qpus", "partition: qpus, nodes: 4")
    said = " ".join(found())
    assert "reserve: 12 nodes requested, but partition qpus has 3" in said
    assert "nodes: 4 nodes requested, but partition qpus has 3" in said


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
    assert "reserve: 3 nodes requested, but partition qpus has 2" in line
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
        " write a keep of at most 2"
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
