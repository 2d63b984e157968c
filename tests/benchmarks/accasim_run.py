"""Runs AccaSim on a trace, with the Python in which it is installed; see `plan_accasim`.

    python accasim_run.py DISPATCHER TRACE NODES

Prints the time at which each job started, by its number, as JSON. It imports nothing of this
project. The dispatchers are AccaSim's own `fifo` and `easy`, and `easy, kept`.
"""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

# AccaSim 1.1.2 imports it from there, where Python has not had it since 3.10
collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]

from accasim.base.allocator_class import FirstFit  # noqa: E402
from accasim.base.scheduler_class import (  # noqa: E402
    EASYBackfilling,
    FirstInFirstOut,
)
from accasim.base.simulator_class import Simulator  # noqa: E402


class Job(Protocol):
    """A job of AccaSim; times are in seconds."""

    requested_nodes: int
    expected_duration: int
    start_time: int


class KeepingFirstFit(FirstFit):  # type: ignore[misc]
    """First fit that starts no job which would delay the one that has a reservation.

    :param spare: nodes that the reservation leaves free
    """

    spare = 0

    def _compute_reservation_overlaps(
        self,
        job: Job,
        now: int,
        reserved_time: int | None = None,
        reserved_nodes: Sequence[str] | None = None,
    ) -> list[str]:
        """Return any nodes if the job may not start, which AccaSim then leaves out."""
        if reserved_time is None or now + job.expected_duration <= reserved_time:
            return []
        free = sum(node["core"] for node in self.avl_resources.values())
        if job.requested_nodes > free:
            return []
        if job.requested_nodes > self.spare:
            return ["reserved"]
        self.spare -= job.requested_nodes
        return []


class KeepingEasy(EASYBackfilling):  # type: ignore[misc]
    """EASY whose reservation is kept, and renewed whenever a job is submitted or ends.

    AccaSim's own passes an empty list of reserved nodes to its allocator, so that any job
    that fits overtakes the first one; and it computes the reservation once, so that the
    first job waits for the estimates of jobs that ended long before.
    """

    _reserved_slot: tuple[int | None, list[str]]

    def scheduling_method(
        self, now: int, queued: Sequence[Job], jobs: Mapping[str, Job]
    ) -> tuple[list[tuple[int, str, list[str]]], list[str]]:
        self._blocked_job_id, self._reserved_slot = None, (None, [])
        found: tuple[list[tuple[int, str, list[str]]], list[str]]
        found = super().scheduling_method(now, queued, jobs)
        return found

    def _calculate_slot(
        self,
        now: int,
        free: Mapping[str, Mapping[str, int]],
        decided: Sequence[tuple[int, str, list[str]]],
        before: Sequence[tuple[int, str, list[str]]] | None,
        blocked: Job,
        jobs: Mapping[str, Job],
    ) -> tuple[int, list[str]]:
        running = {
            job: jobs[job].start_time
            for job in self.resource_manager.current_allocations
        }
        running |= {job: now for _, job, _ in decided}
        slot: tuple[int, list[str]]
        slot = super()._calculate_slot(now, free, decided, before, blocked, jobs)
        later = sum(
            jobs[job].requested_nodes
            for job, start in running.items()
            if start + jobs[job].expected_duration > slot[0]
        )
        nodes = len(self.resource_manager.node_names)
        self.nonauto_allocator.spare = nodes - later - blocked.requested_nodes
        return slot


def main() -> None:
    dispatcher, trace, nodes = sys.argv[1:]
    content = {
        "system_name": "cluster",
        "start_time": 0,
        "equivalence": {"processor": {"core": 1}},
        "groups": {"node": {"core": 1, "mem": 1}},
        "resources": {"node": int(nodes)},
    }
    dispatchers: dict[str, Callable[[], FirstInFirstOut | EASYBackfilling]] = {
        "fifo": lambda: FirstInFirstOut(FirstFit()),
        "easy": lambda: EASYBackfilling(FirstFit()),
        "easy, kept": lambda: KeepingEasy(KeepingFirstFit()),
    }
    trace = os.path.abspath(trace)
    os.environ["TZ"] = "UTC"
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("system.json").write_text(json.dumps(content))
        with contextlib.redirect_stdout(sys.stderr):
            chosen = dispatchers[dispatcher]()
            simulator = Simulator(
                trace, "system.json", chosen, RESULTS_FOLDER_NAME=folder
            )
            files = simulator.start_simulation(system_status=False)
        lines = Path(files["sched-"]).read_text().splitlines()
    print(json.dumps(dict(map(_start, lines))))


def _start(line: str) -> tuple[int, float]:
    """Read a line of AccaSim's schedule: ``job;...__nodes__start;end;...``."""
    first, _nodes, times = line.split("__")
    start = datetime.fromisoformat(times.split(";")[0])
    return int(first.split(";")[0]), start.replace(tzinfo=UTC).timestamp()


if __name__ == "__main__":
    main()
