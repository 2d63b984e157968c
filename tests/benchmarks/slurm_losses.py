"""What a user sees when Slurm loses a job's node, its controller or the job itself.

    python -m tests.benchmarks.slurm_losses [--fault NAME]

On a lab of its own, with each allocation strategy, a job runs through ``sfq.slurm`` and is
hit by a fault. It is tried again, as StreamFlow's failure manager does it, until it
succeeds. Printed are the faults, the strategies, what each attempt gave, and the warnings
that were logged meanwhile. docs/howto/slurm.md has the result.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.files import JSON
from tests.lab import Lab, running
from tests.support.lab_conf import Options
from tests.support.slurm_jobs import Cluster, cluster
from tests.support.waiting import until_async

STRATEGIES: dict[str, JSON] = {
    "per-step": "per-step",
    "elastic": {"strategy": "elastic", "idle": 60},
    "reserved": {"strategy": "reserved", "reserve": ["node"]},
}
ATTEMPTS = 3


class Hit:
    """A job that is hit by a fault while it runs for the first time.

    :param folder: with ``node``, the job's, once it runs
    """

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self._hurried: set[str] = set()

    @property
    def node(self) -> str:
        return (self.folder / "node").read_text().strip()

    @property
    def job(self) -> str:
        return str(self.lab.jobs()[0])

    def cancel(self) -> None:
        self.lab.output("scancel", self.job)

    def lose_node(self) -> None:
        node, job = self.node, int(self.job)
        self.lab.stop_node(node)
        gone = ("NODE_FAIL", "PENDING", "FAILED", "COMPLETED")
        self.lab.wait_for(
            lambda: self.lab.state(job) in gone or "down" in self.lab.nodes()[node],
            "Slurm to notice",
            120,
        )
        self.lab.start_node(node)

    def restart_node(self) -> None:
        node = self.node
        self.lab.stop_node(node)
        self.lab.start_node(node)

    def kill_controller(self) -> None:
        # it saves what it knows every five seconds
        time.sleep(6)
        self.lab.kill_controller()
        self.lab.start_controller()

    def forget(self) -> None:
        """The controller is killed before it has saved the running job."""
        self.lab.kill_controller()
        for file in (self.lab.folder / "state").glob("job_state*"):
            file.unlink()
        self.lab.start_controller()

    def requeue(self) -> None:
        said = self.lab.run("scontrol", "requeue", self.job).stderr.strip()
        if said:
            print(f"    scontrol requeue: {said}")

    def hurry(self) -> None:
        """Let requeued jobs start now, and not in two minutes."""
        waiting = self.lab.output("squeue", "-h", "-t", "PD", "-o", "%A %r")
        for job, reason in (line.split(maxsplit=1) for line in waiting.splitlines()):
            if reason == "BeginTime" and job not in self._hurried:
                self._hurried.add(job)
                self.lab.run("scontrol", "update", f"JobId={job}", "StartTime=now+2")


FAULTS: dict[str, Callable[[Hit], None]] = {
    "scancel": Hit.cancel,
    "node lost": Hit.lose_node,
    "slurmd restarted": Hit.restart_node,
    "slurmctld killed": Hit.kill_controller,
    "record lost": Hit.forget,
    "requeued": Hit.requeue,
}


async def attempt(run: Callable[[], Awaitable[tuple[str, int]]]) -> tuple[str, bool]:
    """Run a job: what it gave, and whether it succeeded."""
    try:
        text, code = await run()
    except WorkflowExecutionException as error:
        return str(error), False
    return text, code == 0


async def suffer(lab: Lab, folder: Path, fault: str, strategy: str) -> None:
    """Print what becomes of a job."""
    hit = Hit(lab, folder)
    services: dict[str, JSON] = {"node": {"partition": "compute"}}
    settings: JSON = STRATEGIES[strategy]
    script = (
        f"cd {folder}; echo $SLURMD_NODENAME >name && mv name node; "
        "[ -e struck ] || { touch running; sleep 20; }; echo well"
    )
    async with cluster(lab, folder, services=services, allocation=settings) as jobs:
        await _tried(jobs, hit, fault, script)
    lab.wait_idle(120)


async def _tried(jobs: Cluster, hit: Hit, fault: str, script: str) -> None:
    for number in range(1, ATTEMPTS + 1):
        work = asyncio.create_task(attempt(lambda: jobs.run(script, "node")))
        if number == 1:
            await until_async((hit.folder / "running").exists, "the job")
            (hit.folder / "struck").touch()
            await asyncio.to_thread(FAULTS[fault], hit)
        while not work.done():
            await asyncio.to_thread(hit.hurry)
            await asyncio.wait([work], timeout=1)
        text, good = work.result()
        first = re.sub(r"/[0-9a-f]{8}/", "/", text.splitlines()[0] if text else "")
        print(f"    attempt {number}: {'succeeds' if good else 'fails'}: {first}")
        if good:
            return


def main() -> None:
    """Print what becomes of each job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=FAULTS, action="append")
    args = parser.parse_args()
    said = logging.StreamHandler(_Indented())
    said.setLevel(logging.WARNING)
    logging.getLogger("streamflow").handlers[:] = [said]
    options = Options(nodes=3, qnodes=0, node_timeout=2, extra=("KillWait=1",))
    with (
        tempfile.TemporaryDirectory(prefix="sfq-losses-") as folder,
        running(Path(folder) / "lab", options) as lab,
    ):
        for fault in args.fault or FAULTS:
            for strategy in STRATEGIES:
                print(f"{fault}, {strategy}:", flush=True)
                own = Path(folder) / f"{fault}-{strategy}".replace(" ", "-")
                own.mkdir()
                asyncio.run(suffer(lab, own, fault, strategy))


class _Indented:
    """Standard output, with the lines of the log below the fault."""

    def write(self, text: str) -> None:
        if text.strip():
            print(f"    log: {text.strip()}")

    def flush(self) -> None:
        pass


if __name__ == "__main__":
    main()
