"""``deployments/candidates.yml`` with a QPU that goes offline at a random moment of each iteration.

``python tests/benchmarks/candidates.py [--limit N] [--points N]`` runs the workflow
with its solver on the nodes alone and as a candidate under faults, alternately, and
prints the cost of the faults: for whole runs, and for the candidate alone, from its
first request for a location to its end. Everything else is the same work, so on a
machine with other load the second figure is the more reliable one.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from sf_quantum import journal
from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.net.transport import Client
from sf_quantum.reporting import attempts
from tests.support.folders import ROOT
from tests.support.journals import Event, collect, read

BIN = Path(sys.executable).parent
STEP = "/iterate/solve"
CLASSICAL = [{"deployment": "nodes"}]
# limit of a run
PATIENCE_SECONDS = 900.0


@dataclass(frozen=True)
class Run:
    """A run that has ended.

    :param status: exit status of StreamFlow
    """

    status: int
    events: list[Event]

    @property
    def rows(self) -> list[attempts.JobAttempt]:
        """The attempts of all jobs."""
        return collect(self.events)

    @property
    def seconds(self) -> float:
        """From the first job's request for a location to the end of the last job."""
        return max(row.ended or 0 for row in self.rows) - self.rows[0].asked

    @property
    def solved(self) -> list[attempts.JobAttempt]:
        """The attempts of the candidate."""
        return [row for row in self.rows if f"/{row.step}" == STEP]

    @property
    def solving(self) -> float:
        """Seconds from the candidate's requests to its ends, over all iterations."""
        asked: dict[str, float] = {}
        total = 0.0
        for row in self.solved:
            asked.setdefault(row.tag, row.asked)
            if row.status == "completed" and row.ended is not None:
                total += row.ended - asked[row.tag]
        return total

    @property
    def destroyed(self) -> float:
        """Seconds on the QPU of jobs without a result."""
        return sum(
            float(str(event["ran_seconds"] or 0))
            for event in self.events
            if event["event"] == "qpu" and event["state"] != "Completed"
        )


def prepare(folder: Path, points: int, limit: int, **qpu: JSON) -> None:
    """Write points, inputs and a copy of the deployment file.

    :param points: how many
    :param limit: iterations, all of which are made
    :param qpu: keys of the emulator
    """
    rng = np.random.default_rng(7)
    centres = np.array([[0, 0], [9, 1], [2, 11], [12, 12]])
    each = points // len(centres)
    data = np.concatenate([c + rng.normal(size=(each, 2)) for c in centres])
    np.savetxt(folder / "points.csv", data, "%.6f", ",", header="x,y", comments="")
    job = {
        "points": {"class": "File", "path": "points.csv"},
        **{"clusters": "2:6", "threshold": 2.0, "limit": limit},
    }
    (folder / "job.yml").write_text(yaml.safe_dump(job))
    content = yaml.safe_load((ROOT / "deployments" / "candidates.yml").read_text())
    config = content["workflows"]["clustering-aggregation"]["config"]
    config["file"] = str(ROOT / "workflows" / "clustering-aggregation.cwl")
    config["settings"] = str(folder / "job.yml")
    content["deployments"]["qpu"]["config"] |= qpu
    # so that each fault finds the QPU in use
    content["bindingFilters"]["candidate"]["config"]["cooldown"] = 0
    (folder / "candidates.yml").write_text(yaml.safe_dump(content))
    bindings = content["workflows"]["clustering-aggregation"]["bindings"]
    (binding,) = [b for b in bindings if b.get("step") == STEP]
    binding["target"], binding["filters"] = CLASSICAL, []
    (folder / "classical.yml").write_text(yaml.safe_dump(content))


def run(
    folder: Path, file: str, faults: Faults | None = None, tools: str = str(BIN)
) -> Run:
    """Run a file of the folder, with faults if given.

    :param tools: where the steps find ``sfq``
    """
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "TMPDIR": str(temporary)}
    journals = folder / journal.DIRECTORY
    known = set(journals.glob("*.jsonl"))
    with (folder / f"{file}.log").open("wb") as log:
        driver = subprocess.Popen(
            [BIN / "streamflow", "run", folder / file, "--outdir", folder / "out"],
            cwd=folder,
            env=os.environ | environment,
            stdout=log,
            stderr=log,
        )
        try:
            path = journal.await_new(
                journals, driver.pid, known, lambda: driver.poll() is None
            )
            assert path is not None, (folder / f"{file}.log").read_text()
            if faults is not None:
                faults.disturb(path, temporary)
            status = driver.wait(PATIENCE_SECONDS)
        finally:
            driver.kill()
            driver.wait()
    return Run(status, read(path))


class Faults:
    """Closes the QPU at a random moment of each iteration, and opens it for the next.

    :param within: the moments are drawn from so many seconds
    :param seed: of the moments
    """

    def __init__(self, within: float, seed: int) -> None:
        self._within = within
        self._random = random.Random(seed)
        self.closed = 0

    def disturb(self, path: Path, temporary: Path) -> None:
        """Follow a run to its end.

        :param path: its journal
        :param temporary: the folder in which the emulator keeps its socket
        """
        over = threading.Event()
        for event in _beginnings(one.to_json() for one in journal.follow(path)):
            over.set()
            _ask(temporary, "open", {})
            if event is not None:
                over = threading.Event()
                delay = self._random.uniform(0, self._within)
                arguments = (temporary, delay, over)
                threading.Thread(target=self._close, args=arguments).start()

    def _close(self, temporary: Path, delay: float, over: threading.Event) -> None:
        # in the first iteration the QPU is offline from the start
        if over.wait(delay):
            return
        while not _ask(temporary, "close", {"message": "a fault"}):
            if over.wait(0.02):
                return
        self.closed += 1


def _beginnings(events: Iterator[Event]) -> Iterator[Event | None]:
    """Yield the first event of each iteration, and ``None`` at the run's end."""
    seen: set[str] = set()
    for event in events:
        iteration = ".".join(str(event.get("tag")).split(".")[:2])
        begins = event["event"] == "job" and event["step"] == "/iterate/cluster"
        if begins and iteration not in seen:
            seen.add(iteration)
            yield event
    yield None


def _ask(temporary: Path, what: str, body: dict[str, JSON]) -> bool:
    for path in temporary.glob("sfq-*/socket"):
        with suppress(QpuError):
            client = Client(f"unix:{path}", {})
            return client.request("POST", f"/v1/device/{what}", body).status == 200
    return False


def main() -> int:
    """Measure and print; the exit status is 0 if the bound holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=80_000)
    parser.add_argument("--limit", type=int, default=10, help="iterations")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each kind")
    parser.add_argument("--scale", type=float, default=1.0, help="of the QPU's time")
    args = parser.parse_args()
    ratios, parts = [], []
    with tempfile.TemporaryDirectory(prefix="sfqb", dir="/tmp") as name:
        folder = Path(name)
        prepare(folder, args.points, args.limit, timeScale=args.scale)
        for seed in range(args.seeds):
            classical = run(folder, "classical.yml")
            faults = Faults(classical.seconds / args.limit, seed)
            done = run(folder, "candidates.yml", faults)
            assert (classical.status, done.status) == (0, 0)
            more = done.seconds - done.destroyed - classical.seconds
            ratios.append(more / classical.seconds)
            more = done.solving - done.destroyed - classical.solving
            parts.append(more / classical.seconds)
            tell(seed, classical, done, faults)
    print(
        f"more than all classical, less the QPU time destroyed: {spread(ratios)} of the "
        f"whole; by the candidate's own part {spread(parts)}"
    )
    return 0 if statistics.median(ratios) <= 0.1 else 1


def tell(seed: int, classical: Run, done: Run, faults: Faults) -> None:
    """Print a pair of runs, and each decision."""
    decided = [event for event in done.events if event["event"] == "decision"]
    assert len(decided) == len(done.solved)
    longest = max(float(str(event["seconds"])) for event in decided)
    lost = [row for row in done.solved if row.status != "completed"]
    well = [row for row in done.solved if row.status == "completed"]
    on_qpu = [row for row in well if row.location == "qpu"]
    print(
        f"seed {seed}: all classical {classical.seconds:.1f} s ({classical.solving:.1f} s "
        f"solving), with faults {done.seconds:.1f} s ({done.solving:.1f} s solving); "
        f"closed {faults.closed} times, {len(on_qpu)} of {len(well)} solved on the QPU, "
        f"{len(lost)} attempts lost with {done.destroyed:.2f} s of QPU time; "
        f"longest decision {longest:.2f} s"
    )
    for row in done.solved:
        print(f"  {row.job} attempt {row.attempt} {row.status:9} {row.why}")


def spread(ratios: list[float]) -> str:
    """Format the median of some ratios, and their range."""
    low, high = min(ratios), max(ratios)
    return f"{statistics.median(ratios):+.1%} ({low:+.1%} to {high:+.1%})"


if __name__ == "__main__":
    sys.exit(main())
