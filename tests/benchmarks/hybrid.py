"""Rocco et al.'s experiment on the Slurm lab: time and nodes of each kind of allocation.

    python -m tests.benchmarks.hybrid [--runs 5] [--jobs 4] [--scale 0.1] [--json results.json]
    python -m tests.benchmarks.hybrid --loaded [--opponent ../checkout]

R. Rocco et al., QCE 2025, section IV: four iterations of clustering (k-means 1 s,
DBSCAN 12 s, hierarchical 76 s), quantum phase (120 s in table I, 1 s in table II) and
silhouette (59 s), on three classical nodes and a quantum one; one workflow alone
("single"), and two started together ("double"). Here the phases sleep that long, times
``--scale``. The rows:

- ``rigid``: a program in one Slurm job of three nodes; the paper's baseline.
- ``malleable``: the same program with one line more, ``with qpu.offload(keep=1)`` around
  the quantum phase and the silhouette, as in the paper.
- ``reserved``: a workflow with one allocation of three nodes for the run. The clustering
  phase lasts as long as its slowest method.
- ``stock``: StreamFlow's own connector in the authors' shape, one job of three nodes that
  clusters, one of a node for the silhouette; polled every second, its default being 5.
- ``per-step``: one job of one node for each method, the longest first, and for the
  silhouette.
- ``elastic``: the same jobs on one-node allocations, at most three, given back after one
  idle second down to ``keep``; the next ones are requested during the quantum phase.
  The quantum job has an allocation too, released as soon as it ends.

Wall seconds are from the first driver's first request for a job to the end of the last
job, by the journals; the drivers' start-up is not included. Those of programs are from
the submission of the first. Node-seconds are from
Slurm's record for every row (``slurm_runs.holds``), with a separate figure for the
quantum partition. Each figure is also divided by that of the baseline in the same run.

With one quantum phase at a time, as here, two workflows of table I need 114 s at least:
the second one's first quantum phase waits for the first one's. The paper's fastest,
1127.65 s, is below ten times that: its quantum node must have run phases of both at
once, which ``--qpus 2`` allows here.

``--loaded``: on a cluster where other users' jobs of one or two nodes queue (random, by
a seed, the same for each row), the phases of table I, one workflow: what ``keep`` and
``ahead`` buy, and how long the other users' jobs wait. Figures are divided by those of
``per-step``. ``idle node-s`` are those in which no job ran. With ``--opponent``, the rows with ``ahead`` are run with the package of
another checkout as well, and compared with it; with ``--jobs 2``, at the same time.

Each measurement has its own lab, so several can run in parallel (``--jobs``).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from statistics import mean
from threading import Event
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sf_quantum.files import JSON
from tests.benchmarks import slurm_runs
from tests.benchmarks.hybrid_programs import Phases, Program, holds
from tests.benchmarks.hybrid_tables import (
    BASELINE,
    LOADED,
    LOADED_BASELINE,
    OPPONENT,
    STOCK,
    Case,
    Figures,
    report,
)
from tests.lab import Lab, running
from tests.support.journals import Event as JournalEvent
from tests.support.lab_cluster import LabError
from tests.support.lab_conf import Options
from tests.support.lab_supervisor import missing

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")
F = TypeVar("F", bound="DataclassInstance")

CWL = Path(__file__).with_name("hybrid.cwl")
SCALE = 0.1
ITERATIONS = 4
# the longest first, so that it gets a node that is already allocated
CLUSTERINGS = (76.0, 12.0, 1.0)
SILHOUETTE = 59.0
QUANTUM = {"I": 120.0, "II": 1.0, LOADED: 120.0}
MODES = {"single": 1, "double": 2}
SERVICES: dict[str, dict[str, JSON]] = {
    # as in the paper, jobs do not share nodes
    "compute": {"partition": "compute", "nodes": "3", "exclusive": True},
    "node": {"partition": "compute", "nodes": "1", "exclusive": True},
    "quantum": {"partition": "quantum", "nodes": "1", "gres": "qpu:1"},
}
#: lengths of other users' jobs, before scaling
OTHERS_SECONDS = (10.0, 100.0)
# how long other users submit before the workflow starts, so that there is a queue
LEAD_SECONDS = 200.0


@dataclass(frozen=True)
class Row:
    """A way to run the workflow.

    :param connector: its type
    :param clusterings: how many jobs the clustering phase has, of the longest methods
    :param cluster: the service of these jobs
    :param score: the service of the silhouette
    :param config: of the connector, beside the services
    :param node: of the service ``node``, beside the rest
    :param quantum: of the service ``quantum``, beside the rest
    """

    connector: str
    clusterings: int
    cluster: str
    score: str
    config: Mapping[str, JSON]
    node: Mapping[str, JSON]
    quantum: Mapping[str, JSON] = field(default_factory=dict)

    def write(self, folder: Path, phases: Phases) -> Path:
        """Write the StreamFlow file of one workflow.

        :param phases: those of a program; the clusterings are the row's own
        """
        services: dict[str, JSON] = {
            **SERVICES,
            "node": {**SERVICES["node"], **self.node},
            "quantum": {**SERVICES["quantum"], **self.quantum},
        }
        return slurm_runs.write(
            folder,
            CWL,
            {
                "clusterings": [
                    f"{seconds:g}" for seconds in phases.clusterings[: self.clusterings]
                ],
                "quantum": f"sleep {phases.quantum:g}",
                "silhouette": f"{phases.silhouette:g}",
                "iterations": phases.iterations,
            },
            self.connector,
            {"maxConcurrentJobs": 10, "services": services, **self.config},
            {
                "/iterate/cluster": self.cluster,
                "/iterate/solve": "quantum",
                "/iterate/score": self.score,
            },
        )


def _apart(**allocation: JSON) -> Row:
    """Return one job for each method."""
    own: dict[str, JSON] = {"allocation": allocation} if allocation else {}
    return Row("sfq.slurm", 3, "node", "node", {}, own)


def _elastic(keep: int, *, ahead: bool) -> Row:
    row = _apart(strategy="elastic", keep=keep, max=3, idle=1, ahead=ahead)
    # released at once: another workflow may wait for the QPU
    quantum: dict[str, JSON] = {"allocation": {"strategy": "elastic", "idle": 0}}
    return replace(row, quantum=quantum)


_RESERVED: dict[str, JSON] = {"strategy": "reserved", "reserve": ["compute"]}
_PROGRAMS: dict[str, Row | Program] = {
    BASELINE: Program(malleable=False),
    "malleable": Program(malleable=True),
}
ROWS = {
    **_PROGRAMS,
    "reserved": Row(
        *("sfq.slurm", 1, "compute", "compute"), {"allocation": _RESERVED}, {}
    ),
    STOCK: Row("slurm", 1, "compute", "node", {"pollingInterval": 1}, {}),
    "per-step": _apart(),
    "elastic, keep 0": _elastic(0, ahead=True),
    "elastic, keep 1": _elastic(1, ahead=True),
}
LOADED_ROWS = {
    **_PROGRAMS,
    LOADED_BASELINE: _apart(),
    **{
        f"elastic, keep {keep}{', ahead' if ahead else ''}": _elastic(keep, ahead=ahead)
        for keep, ahead in product((0, 1), (False, True))
    },
}


@dataclass(frozen=True)
class Setting:
    """What is the same for all cases.

    :param load: see :func:`others`
    :param opponent: the folder of another checkout of the package
    """

    options: Options
    load: float
    seed: int
    iterations: int
    opponent: Path | None
    scale: float

    def phases(self, experiment: str) -> Phases:
        """Return the scaled phases."""
        clusterings = [seconds * self.scale for seconds in CLUSTERINGS]
        quantum = QUANTUM[experiment] * self.scale
        return Phases(clusterings, quantum, SILHOUETTE * self.scale, self.iterations)


@dataclass(frozen=True)
class Run:
    """What is known of a run.

    :param journals: of its drivers
    :param held: the nodes that its jobs held, by Slurm's record
    """

    journals: list[list[JournalEvent]]
    held: list[slurm_runs.Hold]

    def figures(self) -> Figures:
        journals = self.journals
        nodes = self._node_seconds("compute")
        return Figures(
            wall=slurm_runs.wall_seconds(journals),
            nodes=nodes,
            idle=nodes - slurm_runs.job_seconds(journals),
            qnodes=self._node_seconds("quantum"),
            queued=slurm_runs.queued_seconds(journals),
            account_error=slurm_runs.account_error_seconds(self.held, journals),
        )

    def _node_seconds(self, partition: str) -> float:
        return sum(one.node_seconds for one in self.held if one.partition == partition)


def measure(case: Case, setting: Setting, stop: Event) -> Figures:
    """Run a case on a lab of its own.

    :param stop: set to abort the run with an error
    """
    loaded = case.experiment == LOADED
    name = case.row.removesuffix(OPPONENT)
    row = (LOADED_ROWS if loaded else ROWS)[name]
    package = None if name == case.row else setting.opponent
    with (
        tempfile.TemporaryDirectory(prefix="sfq-hybrid-") as folder,
        running(Path(folder) / "lab", setting.options) as lab,
    ):
        load, seed, scale = setting.load, setting.seed + case.run, setting.scale
        phases, count = setting.phases(case.experiment), MODES[case.mode]
        busy = others(lab, load, seed, scale) if loaded else nullcontext()
        if isinstance(row, Program):
            with busy:
                wall, first = row.run(lab, Path(folder), phases, count, stop)
            held = sum(hold.node_seconds for hold in holds(lab, first))
            figures = Figures(wall, held)
        else:
            files = [row.write(Path(folder) / str(n), phases) for n in range(count)]
            with busy:
                journals = slurm_runs.drive(lab, files, stop, package)
            figures = Run(journals, slurm_runs.holds(lab)).figures()
        if not loaded:
            return figures
        waited = others_waited(lab, LEAD_SECONDS * scale, phases.seconds)
        return replace(figures, others=waited)


def others_waited(lab: Lab, lead: float, seconds: float) -> float:
    """Return the mean seconds that other users' jobs waited for their nodes.

    :param lead: of jobs submitted so long after the first
    :param seconds: and for so long
    """
    jobs = [job for job in lab.jobcomp() if job.name == slurm_runs.OTHERS]
    began = min(job.submitted for job in jobs) + lead
    # One that is still waiting when all are cancelled has waited until then.
    return mean(
        min(job.started, job.ended) - job.submitted
        for job in jobs
        if began <= job.submitted < began + seconds
    )


class OthersJob(NamedTuple):
    """A job of another user.

    :param at: its submission, in seconds after the first
    """

    at: float
    seconds: float
    nodes: int


def others_jobs(load: float, seed: int, scale: float = SCALE) -> Iterator[OthersJob]:
    """Draw the jobs of other users, without an end.

    :param load: the node-seconds that they request, relative to those of the cluster
    """
    draws = random.Random(seed)
    lasting = sum(OTHERS_SECONDS) / 2 * scale
    mean_pause = 1.5 * lasting / (3 * load)
    at = 0.0
    while True:
        at += draws.expovariate(1 / mean_pause)
        seconds = round(draws.uniform(*OTHERS_SECONDS) * scale, 2)
        yield OthersJob(at, seconds, draws.choice((1, 2)))


@contextmanager
def others(lab: Lab, load: float, seed: int, scale: float = SCALE) -> Iterator[None]:
    """Let other users submit for some time before the block, and until its end.

    :param load: see :func:`others_jobs`
    """
    over = Event()
    began = time.monotonic()

    def submit() -> None:
        for job in others_jobs(load, seed, scale):
            if over.wait(began + job.at - time.monotonic()):
                break
            wanted = (f"--nodes={job.nodes}", "--exclusive", "--output=/dev/null")
            command = ("--chdir=/", "--wrap", f"sleep {job.seconds:.2f}")
            lab.submit(f"--job-name={slurm_runs.OTHERS}", *wanted, *command)

    with ThreadPoolExecutor(1) as pool:
        submitting = pool.submit(submit)
        try:
            over.wait(LEAD_SECONDS * scale)
            yield
        finally:
            over.set()
            submitting.result()
            lab.output("scancel", f"--name={slurm_runs.OTHERS}")


def measure_all(
    cases: Sequence[C], jobs: int, work: Callable[[C, Event], F]
) -> dict[C, F]:
    """Measure all cases, some of them in parallel, and print a line as each ends.

    :returns: the figures of those that did not fail
    """
    results: dict[C, F] = {}
    stop = Event()
    with ThreadPoolExecutor(jobs) as pool:
        pending = {pool.submit(work, case, stop): case for case in cases}
        try:
            for done in as_completed(pending):
                case = pending[done]
                try:
                    results[case] = done.result()
                except (slurm_runs.RunError, LabError) as error:
                    print(f"{case} failed: {error}", file=sys.stderr)
                else:
                    line = asdict(case) | asdict(results[case])
                    print(json.dumps(line), file=sys.stderr)
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return {case: results[case] for case in cases if case in results}


def _cases(args: argparse.Namespace) -> Iterator[Case]:
    for run in range(args.runs):
        if args.loaded:
            names = _chosen(args.rows, LOADED_ROWS)
            if args.opponent:
                pairs = ((row, row + OPPONENT) for row in names if "ahead" in row)
                names = list(chain.from_iterable(pairs))
            # the first of a pair has no advantage from run to run
            names = names[::-1] if run % 2 else names
            yield from (Case(LOADED, "single", row, run) for row in names)
            continue
        for experiment, mode in product(args.table, args.mode):
            names = _chosen(args.rows, ROWS)
            yield from (Case(experiment, mode, row, run) for row in names)


def _chosen(rows: list[str] | None, known: Iterable[str]) -> list[str]:
    if rows and (unknown := set(rows) - set(known)):
        sys.exit(f"no such row: {', '.join(unknown)}; there are: {'; '.join(known)}")
    return [row for row in known if not rows or row in rows]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="cases side by side")
    parser.add_argument("--scale", type=float, default=SCALE, help="of all seconds")
    parser.add_argument("--json", type=Path, help="a file for every figure")
    parser.add_argument("--table", nargs="+", choices=("I", "II"), default=["I", "II"])
    parser.add_argument("--mode", nargs="+", choices=MODES, default=[*MODES])
    parser.add_argument("--rows", nargs="+", help="by name, instead of all")
    parser.add_argument("--qpus", type=int, default=1, help="quantum phases at once")
    parser.add_argument("--loaded", action="store_true")
    parser.add_argument(
        "--load", type=float, default=0.7, help="what others want of it"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the others' jobs")
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument(
        "--opponent", type=Path, help="folder of a checkout, with --loaded"
    )
    return parser.parse_args()


def main() -> None:
    """Print the tables."""
    args = _arguments()
    if lacking := missing():
        sys.exit(lacking)
    slurm_runs.heed_sigterm()
    setting = Setting(
        *(Options(qpus=args.qpus), args.load, args.seed, args.iterations),
        args.opponent and args.opponent.resolve(),
        args.scale,
    )
    cases = list(_cases(args))
    results = measure_all(
        cases, args.jobs, lambda case, stop: measure(case, setting, stop)
    )
    if args.json:
        lines = [asdict(case) | asdict(figures) for case, figures in results.items()]
        args.json.write_text(json.dumps(lines, indent=1) + "\n")
    if results:
        phases = {name: setting.phases(name).seconds for name in QUANTUM}
        print(report(results, phases))
    if failed := len(cases) - len(results):
        sys.exit(f"{failed} of {len(cases)} cases failed")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
