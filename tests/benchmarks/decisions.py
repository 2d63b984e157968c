"""Quality and speed of candidates' decisions, with a varying queue and unreachable QPUs.

``python tests/benchmarks/decisions.py [--rounds N]`` runs a loop with one candidate
that prefers the earliest end while other users' jobs fill and leave the QPU's queue,
then a loop with ten QPUs of which nine do not answer.
"""

from __future__ import annotations

import argparse
import itertools
import socket
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sf_quantum.files import JSON
from tests.support.candidate_runs import bind, candidate, decisions, where
from tests.support.journals import collect
from tests.support.projects import Project
from tests.support.service_process import QpuService

#: other users' jobs: number per burst (a second each on the annealer), and pause after
#: it
JOBS, READS = 8, 12_000
PAUSE_SECONDS = 4.0


@contextmanager
def _project() -> Iterator[Project]:
    with tempfile.TemporaryDirectory(prefix="sfqb", dir="/tmp") as folder:
        temporary = Path(folder, "tmp")
        temporary.mkdir()
        project = Project(Path(folder), temporary)
        project.debug = False
        yield project
        for process in project.processes():
            process.kill()


def _come_and_go(service: QpuService, over: threading.Event) -> None:
    """Let a queue grow and drain repeatedly."""
    while not over.is_set():
        leases = [service.occupy(READS) for _ in range(JOBS)]
        while "Queued" in service.occupants() and not over.wait(0.1):
            pass
        over.wait(PAUSE_SECONDS)
        for lease in leases:
            service.release(lease)


def earliest(rounds: int) -> bool:
    """Print the target of each round.

    :returns: whether each went to the target with the earliest expected end, and both
        targets were used
    """
    with _project() as project:
        service = QpuService(project.folder / "service", "--vqpus", "16")
        service.start()
        project.deployment("qpu", "sfq.rest", wraps="host", url=service.url)
        candidate(project, rounds=rounds, prefer="earliest")
        over = threading.Event()
        other = threading.Thread(target=_come_and_go, args=(service, over))
        other.start()
        try:
            assert project.run() == 0, project.log
        finally:
            over.set()
            other.join()
            service.kill()
        rows = [row for row in collect(project.events()) if row.why]
        for row in rows:
            print(f"  {row.job} {row.ran or 0:5.2f} s  {row.why}")
        went = where(project)
    turns = sum(a != b for a, b in itertools.pairwise(went))
    errors = [abs((row.ran or 0) - _expected(row.why)) for row in rows[2:]]
    print(
        f"{went.count('qpu')} of {rounds} on the QPU, {turns} turns; expected ends were "
        f"{statistics.median(errors):.2f} s off (median)"
    )
    return turns >= 4


def _expected(why: str) -> float:
    """Whether the chosen target has the earlier of the ends that the sentence names."""
    return float(why.split(" would end in ")[1].split()[0])


def silent() -> bool:
    """Print how long decisions take while nine of ten QPUs do not answer.

    :returns: whether all took less than 2.5 s
    """
    with _project() as project, ExitStack() as stack:
        names = [f"q{number}" for number in range(9)]
        for name in names:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            project.deployment(name, "sfq.rest", wraps="host", url=url)
        service = QpuService(project.folder / "service", "--time-scale", "0")
        service.start()
        stack.callback(service.kill)
        project.deployment("qpu", "sfq.rest", wraps="host", url=service.url)
        candidate(project, rounds=10)
        targets: list[JSON] = [{"deployment": n} for n in [*names, "qpu", "cpu"]]
        bind(project, {"/loop/solve": targets})
        assert project.run() == 0, project.log
        took = [float(str(event["seconds"])) for event in decisions(project)]
    print(f"nine of ten silent: {min(took):.2f} to {max(took):.2f} s for a decision")
    return max(took) < 2.5


def main() -> int:
    """Measure; the exit status is 0 if the results are as expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    return 0 if earliest(args.rounds) & silent() else 1


if __name__ == "__main__":
    sys.exit(main())
