"""The gate of any batch system in tests: made in the test, run as a process, and killed."""

from __future__ import annotations

import argparse
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType

import pytest

from sf_quantum.cli.batch import gating
from sf_quantum.qpu.leasing.gating.gate import Gate
from sf_quantum.qpu.leasing.gating.scheduler import Scheduler
from sf_quantum.service.domain.jobs import Lease
from sf_quantum.service.domain.reasons import LeaseEndCause
from tests.support.service import RunningService
from tests.support.service_process import SFQ
from tests.support.waiting import until


def make_gate(command: ModuleType, scheduler: Scheduler, words: Sequence[str]) -> Gate:
    """Make a gate in this process, whose looks the test calls.

    :param command: the module of ``sfq slurm`` or the like
    """
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return gating.make_gate(parser.parse_args(words), scheduler)


@contextmanager
def running_gate(
    command: str, words: Sequence[str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a gate as a process, which is killed at the end of the block.

    :param command: ``slurm`` or the like
    """
    process = subprocess.Popen([*SFQ, command, *words])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def kill_gates(
    start: Callable[[], AbstractContextManager[subprocess.Popen[bytes]]],
    kills: int,
    longest_seconds: float,
) -> None:
    """Start a gate so many times, and kill it at a random moment each time."""
    moments = random.Random(1)
    for _ in range(kills):
        with start() as process, pytest.raises(subprocess.TimeoutExpired):
            process.wait(moments.uniform(0.2, longest_seconds))


def leases(service: RunningService) -> list[Lease]:
    """List all leases of a service, in the order of their grants."""
    return sorted(
        service.queue.store.leases.latest(None), key=lambda lease: lease.opened
    )


def kept_leases(service: RunningService) -> list[Lease]:
    """List the leases without those that went back as their gate was killed."""
    gone = LeaseEndCause.CLIENT_GONE.value
    return [lease for lease in leases(service) if lease.reason != gone]


def look_until_held(gate: Gate, service: RunningService) -> None:
    """Look until a lease is granted, of which the gate has not taken notice."""
    gate.poll()
    until(lambda: len(leases(service)) == 1, "a lease")
