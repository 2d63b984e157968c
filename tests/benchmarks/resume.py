"""Kill the driver of the clustering workflow at random moments, and resume it.

    python -m tests.benchmarks.resume [--kills 30] [--seed 1] [--trials FILE] [--page]

``deployments/rest.yml`` runs on 600 points for two iterations, with a QPU service of its own,
whose emulated times are ten times as long as usual. First a run is left undisturbed. Then, for
each kill, a run is started in a new folder, and its driver's process group is killed (SIGKILL)
after a random number of the journal's events and a random part of a second; another one with
``SFQ_RESUME``, as ``sfq run --resume`` starts it, goes on to the end. A trial is right if the
labels are those of the undisturbed run, and no job runs again that had completed. The QPU seconds
are those that the service has charged for both runs together.

With ``--page`` the figures go into docs/howto/resume.md, after each trial. ``--trials`` adds the
trials to those in a file, so that processes with seeds of their own share the work.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median

from sf_quantum import journal
from sf_quantum.files import mapping, number
from sf_quantum.journal import HOUSEKEEPING
from tests.support import forking
from tests.support.clustering_runs import Run
from tests.support.folders import ROOT
from tests.support.forking import Command
from tests.support.journals import Event, read
from tests.support.service_process import QpuService
from tests.support.waiting import until

PAGE = ROOT / "docs" / "howto" / "resume.md"
SECONDS = 600
# of emulated time, so that some kills meet a QPU job
TIME_SCALE = "10"
# ends the lease of a driver that was killed before it knew of it
IDLE_SECONDS = 10.0
_FIGURES = re.compile(
    r"(?<=<!-- figures -->\n\n).*?(?=\n\n<!-- end of the figures -->)", re.DOTALL
)


@dataclass(frozen=True)
class Trial:
    """One killed run, and the one that resumed it.

    :param equal: the labels are those of an undisturbed run
    :param completed: the jobs that had completed when the driver was killed
    :param running: those that were running then
    :param completed_again: those that had completed, and ran in the second run
    :param running_again: those that were running, and ran in the second run
    :param qpu_seconds: charged for both
    :param undisturbed_qpu_seconds: charged for an undisturbed run
    """

    equal: bool
    completed: int
    running: int
    completed_again: int
    running_again: int
    qpu_seconds: float
    undisturbed_qpu_seconds: float

    @property
    def right(self) -> bool:
        """Whether the result is the same, and no other work was done twice."""
        return self.equal and not self.completed_again


def main() -> None:
    """Print a line for each trial, and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", metavar="FILE", type=Path)
    parser.add_argument("--page", action="store_true", help=f"write into {PAGE.name}")
    given = parser.parse_args()
    trials: list[Trial] = []
    with ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="sfq-"))
        file = given.trials or Path(temporary) / "trials"
        made = stack.enter_context(closing(_trials(Path(temporary), given.seed)))
        for trial in islice(made, given.kills):
            with file.open("a") as kept:
                kept.write(f"{json.dumps(asdict(trial))}\n")
            print(trial, "" if trial.right else "WRONG", flush=True)
            trials = [Trial(**json.loads(line)) for line in file.open()]
            if given.page:
                _write(_figures(trials))
    print(_figures(trials))
    if not all(trial.right for trial in trials):
        raise SystemExit(1)


def _trials(folder: Path, seed: int) -> Generator[Trial, None, None]:
    """Kill and resume runs without end."""
    draws = random.Random(seed)
    config = folder / "service.yml"
    config.write_text(json.dumps({"leases": {"idle_seconds": IDLE_SECONDS}}))
    options = ("--config", str(config), "--time-scale", TIME_SCALE)
    service = QpuService(folder / "service", *options)
    token = service.with_tokens("ada")
    service.start()
    try:
        undisturbed = _prepare(folder / "undisturbed", service, token)
        assert _start(undisturbed).wait(SECONDS) == 0, _output(undisturbed)
        charged = _charged(service)
        lines = len(_journal(undisturbed))
        while True:
            run = _prepare(folder / f"{draws.random()}", service, token)
            before = _charged(service)
            events, delay = draws.randrange(1, lines), draws.random() / 2
            if not _kill(run, events, delay):
                continue  # it has ended before
            first = _journal(run)
            assert _start(run, SFQ_RESUME="1").wait(SECONDS) == 0, _output(run)
            completed = _jobs(first, "completed")
            running = _jobs(first, "running") - completed
            again = _jobs(_journal(run), "running")
            yield Trial(
                equal=_labels(run) == _labels(undisturbed),
                completed=len(completed),
                running=len(running),
                completed_again=len(completed & again),
                running_again=len(running & again),
                qpu_seconds=_charged(service) - before,
                undisturbed_qpu_seconds=charged,
            )
    finally:
        service.end()


def _write(figures: str) -> None:
    PAGE.write_text(_FIGURES.sub(lambda _: figures, PAGE.read_text()))


def _prepare(folder: Path, service: QpuService, token: str) -> Run:
    """The workflow in a folder of its own."""
    folder.mkdir()
    run = Run("rest.yml", folder)
    run.replace("url: unix:qpu.sock", f"url: {service.url}\n      tokenFile: {token}")
    run.prepare()
    return run


def _start(run: Run, **variables: str) -> Command:
    with (run.folder / "log").open("ab") as log:
        return forking.Command(
            ["streamflow", "run", run.file.name, "--outdir", "out"],
            run.folder,
            {
                **os.environ,
                **run.environment,
                "TMPDIR": str(run.folder / "tmp"),
                **variables,
            },
            log.fileno(),
            log.fileno(),
        )


def _output(run: Run) -> str:
    return (run.folder / "log").read_text()


def _kill(run: Run, events: int, delay: float) -> bool:
    """Kill a run's driver after so many events and seconds, if it has not ended before."""
    command = _start(run)
    until(lambda: len(_journal(run)) >= events, "the events")
    time.sleep(delay)
    found = _journal(run)
    if found[-1]["event"] != "end":
        os.killpg(int(str(found[0]["pid"])), signal.SIGKILL)
    command.wait(SECONDS)
    return _journal(run)[-1]["event"] != "end"


def _journal(run: Run) -> list[Event]:
    """The events of the newest run."""
    path = journal.newest(run.folder / journal.DIRECTORY)
    return read(path) if path else []


def _jobs(events: list[Event], status: str) -> frozenset[str]:
    """The jobs of the workflow's steps that have had a status."""
    return frozenset(
        str(event["job"])
        for event in events
        if event["event"] == "job"
        and event["status"] == status
        and not str(event["step"]).endswith(HOUSEKEEPING)
    )


def _labels(run: Run) -> bytes:
    return (run.folder / "out" / "labels.csv").read_bytes()


def _charged(service: QpuService) -> float:
    """The QPU seconds of all jobs."""
    jobs = service.ask("GET", "/v1/jobs")
    assert isinstance(jobs, list)
    return sum(number(mapping(job).get("qpu_seconds")) for job in jobs)


def _figures(trials: list[Trial]) -> str:
    """A table of the trials' sums."""
    paid = sorted(trial.qpu_seconds for trial in trials)
    undisturbed = median(trial.undisturbed_qpu_seconds for trial in trials)
    rows = [
        ("kills", len(trials)),
        ("labels equal to the undisturbed run's", sum(t.equal for t in trials)),
        ("jobs that had completed", sum(t.completed for t in trials)),
        ("of these, run again", sum(t.completed_again for t in trials)),
        ("jobs that were running", sum(t.running for t in trials)),
        ("of these, run again", sum(t.running_again for t in trials)),
        ("QPU seconds of the undisturbed run", f"{undisturbed:.3f}"),
        (
            "QPU seconds of a killed run and its resumption, least and most",
            f"{paid[0]:.3f}, {paid[-1]:.3f}",
        ),
    ]
    lines = [f"| {name} | {value} |" for name, value in rows]
    return "\n".join(["| | |", "|---|---|", *lines])


if __name__ == "__main__":
    main()
