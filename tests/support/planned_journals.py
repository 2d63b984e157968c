"""Journals that a test writes for the planner."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sf_quantum.cli import main
from sf_quantum.files import JSON
from tests.support.journals import Event, whole

# of the events below
STEP, PENDING, NOTICE, HELD, HOST = 0.5, 1.5, 0.5, 0.25, 3.0
TASKS, QPU_JOBS, BESIDE = (40.0, 10.0), 2, 1.0
STREAMFLOW = """
version: v1.0
workflows:
  hybrid:
    type: cwl
    config: {file: hybrid.cwl}
    bindings:
      - {step: /loop/cluster, target: {deployment: hpc, service: compute}}
      - {step: /loop/prepare, target: {deployment: host}}
      - {step: /loop/solve, target: {deployment: hpc, service: quantum}}
deployments:
  host: {type: local, config: {}}
  hpc:
    type: sfq.slurm
    config:
      allocation: {strategy: elastic, keep: 2}
      services:
        compute: {partition: batch, nodes: 2}
        quantum: {partition: qnodes, qpu: [pasqal]}
scheduling: {scheduler: {type: sfq.journal, config: {}}}
"""


QPU_JOB = 12.0


class Writer:
    """Writes the events of a run, step after step."""

    def __init__(self, file: Path) -> None:
        self.now = 1000.0
        self.number = 0
        self.events: list[Event] = []
        self.add("run", self.now, {"run": "r", "file": str(file)})

    def add(self, event: str, time: float, fields: Mapping[str, JSON]) -> None:
        self.events.append(whole({"time": time, "event": event, **fields}))

    def job(self, job: str, status: str, at: float, service: str | None) -> None:
        step, _, tag = job.rpartition("/")
        fields: dict[str, JSON] = {"job": job, "step": step, "tag": tag}
        fields |= {"loops": int(step.startswith("/loop")), "status": status}
        fields |= {"attempt": 1, "output": None, "service": service, "locations": []}
        self.add("job", at, {**fields, "deployment": "hpc" if service else "host"})

    def host(self, job: str, seconds: float) -> None:
        self.now += STEP
        self.job(job, "running", self.now, None)
        self.now += seconds
        self.job(job, "completed", self.now, None)

    def slurm(
        self,
        jobs: Mapping[str, float],
        service: str = "compute",
        waited: float = 0.0,
        lost: Mapping[bool, float] | None = None,
    ) -> None:
        """A group of jobs that are pending for some time.

        :param lost: seconds of earlier runs, after each of which Slurm has requeued the
            job, by whether a look at the queue has seen the run
        """
        self.now += STEP
        ends = [
            self.slurm_job(*job, service, waited, lost or {}) for job in jobs.items()
        ]
        self.now = max(ends)
        self.events.sort(key=lambda event: float(str(event["time"])))

    def slurm_job(
        self,
        job: str,
        seconds: float,
        service: str,
        waited: float,
        lost: Mapping[bool, float],
    ) -> float:
        """One of them.

        :returns: when the driver knows of its end
        """
        self.number += 1
        now, start = self.now, self.now + PENDING + waited
        quantum = service == "quantum"
        about: dict[str, JSON] = {"deployment": "hpc", "service": service, "job": job}
        about |= {"strategy": "per-step", "allocation": str(self.number)}
        about |= {"partition": "qnodes" if quantum else "batch", "quantum": quantum}
        held = {**about, "pending_reason": "Resources" if waited else "None"}
        self.job(job, "running", now, service)
        self.add("allocation", now, {**held, "status": "requested", "at": now})
        granted: dict[str, JSON] = {"status": "granted", "at": start, "nodes": 2}
        for is_seen, lost_seconds in lost.items():
            start += lost_seconds
            if is_seen:
                self.add("allocation", start, {**held, **granted})
                taken: dict[str, JSON] = {"status": "released", "at": start, "nodes": 0}
                self.add("allocation", start, {**held, **taken})
                granted["at"] = start = start + PENDING
        granted["at"] = start
        self.add("allocation", start, {**held, **granted})
        for number in range(QPU_JOBS if quantum else 0):
            fields: dict[str, JSON] = {
                "job": job,
                "qpu": "pasqal",
                "qpu_job": f"{self.number}-{number}",
            }
            fields |= {"lease_seconds": 4.0, "queued_seconds": 1.0}
            fields |= {"qpu_seconds": QPU_JOB, "ran_seconds": 13.0}
            self.add("qpu", start, fields)
        end = start + seconds
        given_back: dict[str, JSON] = {"status": "released", "at": end + HELD}
        self.add("allocation", end + HELD, {**held, **given_back, "nodes": 0})
        times: dict[str, JSON] = {"submitted": now, "started": start, "ended": end}
        outcome: dict[str, JSON] = {"state": "COMPLETED", "restarts": len(lost)}
        self.add("slurm", end + NOTICE, {**about, **times, **outcome})
        self.job(job, "completed", end + NOTICE, service)
        return end + NOTICE


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["plan", *words, "--repetitions", "2", "--json"]) == 0
    return json.loads(capsys.readouterr().out)
