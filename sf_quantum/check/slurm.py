"""Checks of ``sfq.slurm`` beyond its schema: references and limits."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from sf_quantum.check.document import Document, FileProblem, Where, suggestion
from sf_quantum.connectors.slurm.services import ONE_CLUSTER
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, listing, mapping
from sf_quantum.qpu import qrmi_config

TYPE = "sfq.slurm"
#: StreamFlow's default of maxConcurrentJobs
ONE_JOB = 1
# Slurm's commands block while the controller is down
TIMEOUT_SECONDS = 5.0


def check(
    document: Document, name: str, config: dict[str, JSON], where: Where
) -> Iterator[FileProblem]:
    """Check the allocations, clusters and QPUs of a deployment.

    :param where: the path of ``config`` in the file
    """
    services = mapping(config.get("services"))
    jobs = config.get("maxConcurrentJobs", ONE_JOB)
    for allocation, below in allocations(config, where):
        yield from _reserve(document, name, services, allocation, below)
        if isinstance(jobs, int):
            yield from _unused(document, allocation, jobs, below)
    for service, content in services.items():
        if mapping(content).get("clusters"):
            below = (*where, "services", service, "clusters")
            yield document.problem(below, *ONE_CLUSTER)
    if isinstance(file := config.get("qrmiConfig"), str):
        yield from _qpus(document, document.folder / file, services, where)


def partitions(
    document: Document, config: dict[str, JSON], where: Where
) -> Iterator[FileProblem]:
    """Check the services' partitions, if Slurm answers on this host."""
    services = mapping(config.get("services"))
    partitions_of = {
        name: mapping(content).get("partition") for name, content in services.items()
    }
    known = _partitions() if any(partitions_of.values()) else []
    for service, names in partitions_of.items():
        for name in names.split(",") if isinstance(names, str) else []:
            if known and name not in known:
                below = (*where, "services", service, "partition")
                what = f"Slurm has no partition {name!r}"
                yield document.problem(below, what, suggestion(name, known))


def _partitions() -> list[str]:
    command = ["sinfo", "--noheader", "--all", "--format=%R"]
    try:
        sinfo = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return sinfo.stdout.split() if sinfo.returncode == 0 else []


def allocations(
    config: dict[str, JSON], where: Where
) -> Iterator[tuple[dict[str, JSON], Where]]:
    """The ``allocation`` of the deployment and of each service, with its path in the file."""
    yield mapping(config.get("allocation")), (*where, "allocation")
    for service, content in mapping(config.get("services")).items():
        below = (*where, "services", service, "allocation")
        yield mapping(mapping(content).get("allocation")), below


def _reserve(
    document: Document,
    name: str,
    services: dict[str, JSON],
    allocation: dict[str, JSON],
    where: Where,
) -> Iterator[FileProblem]:
    for index, service in enumerate(_reserved(allocation)):
        if service not in services:
            listed = isinstance(allocation["reserve"], list)
            what = f"deployment {name} has no service {service!r}"
            below = (*where, "reserve", index if listed else service)
            yield document.problem(below, what, suggestion(service, services))


def _unused(
    document: Document, allocation: dict[str, JSON], jobs: int, where: Where
) -> Iterator[FileProblem]:
    """Check that nodes are not held for more jobs than StreamFlow runs concurrently."""
    reserve = allocation.get("reserve")
    counts = reserve if isinstance(reserve, dict) else Counter(_reserved(allocation))
    sizes = {f"reserve for {service} is": count for service, count in counts.items()}
    sizes["keep is"] = allocation.get("keep")
    for what, count in sizes.items():
        if isinstance(count, int) and count > jobs:
            what = f"{what} {count}, but maxConcurrentJobs allows {jobs} at once"
            right = f"write maxConcurrentJobs: {count} or more"
            yield document.problem(where, what, right)
    most, kept = allocation.get("max"), allocation.get("keep")
    if isinstance(most, int) and isinstance(kept, int) and kept > most:
        what = f"keep is {kept}, but max is {most}"
        yield document.problem(where, what, "write a value of keep that is at most max")


def _reserved(allocation: dict[str, JSON]) -> list[str]:
    reserve = allocation.get("reserve")
    names = [*reserve] if isinstance(reserve, dict) else listing(reserve)
    return [name for name in names if isinstance(name, str)]


def _qpus(
    document: Document, file: Path, services: dict[str, JSON], where: Where
) -> Iterator[FileProblem]:
    """Check that ``qrmiConfig``, if it exists, defines the QPUs of the services."""
    if not file.is_file():
        return
    try:
        known = qrmi_config.names(str(file))
    except InputError as error:
        right = "give the path of a qrmi_config.json for QRMI's SPANK plugin"
        yield document.problem((*where, "qrmiConfig"), str(error), right)
        return
    for service, content in services.items():
        for index, qpu in enumerate(listing(mapping(content).get("qpu"))):
            if isinstance(qpu, str) and qpu not in known:
                below = (*where, "services", service, "qpu", index)
                what = f"{file} has no QPU {qpu!r}"
                yield document.problem(below, what, suggestion(qpu, known))
