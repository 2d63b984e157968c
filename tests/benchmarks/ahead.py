"""When to request nodes ahead of a quantum step's end: two rules, simulated.

    python -m tests.benchmarks.ahead [--runs 300] [--steps 20]

A workflow shares three nodes with other users, first come, first served; of the loaded
lab of ``tests.benchmarks.hybrid``, whose phases it has, this is the queue alone. After each
quantum step, one node is needed, and two more later. The rules:

- ``last values``: the last duration less the last wait for nodes and half a second, which
  was the first rule of ``ahead``
- ``forecast``: ``JobForecast``, with several values of ``urgency``

Both have the same other users, by a seed. Prints for each quantum step, as means of all
runs with the standard error: seconds in which the node was idle, in which the workflow
waited for it, and the time from step to step.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean, stdev
from typing import Protocol

from sf_quantum.connectors.slurm.allocation.forecast import JobForecast

LOADS = (0.3, 0.4, 0.5)
URGENCIES = (1.0, 2.0, 3.0)
NODES = 3
#: seconds of the phases, and until the driver notices the end of one
CLUSTERINGS = (7.6, 1.2, 0.1)
QUANTUM = (12.0, 12.6)
SILHOUETTE = 5.9
LAG = 0.4
#: seconds of the scheduler, from free nodes to granted ones
GRANT = (0.2, 1.2)
#: of other users' jobs, which have one node or two
OTHERS = (1.0, 10.0)


class Cluster:
    """Nodes, and the jobs of others.

    :param load: the node-seconds that others request, relative to those of the cluster
    """

    def __init__(self, seed: int, load: float) -> None:
        self.random = random.Random(seed)
        self._pause = 1.5 * mean(OTHERS) / (NODES * load)
        self._free = [0.0] * NODES
        self._latest = 0.0
        self._next = 0.0

    def request(self, at: float) -> float:
        """Request a node; tells when it is granted, until it is released."""
        while self._next <= at:
            begins = self._begin(self._next, self.random.choice((1, 2)), OTHERS)
            self._latest = max(self._latest, begins)
            self._next += self.random.expovariate(1 / self._pause)
        self._latest = self._begin(at, 1, (math.inf, math.inf))
        return self._latest + self.random.uniform(*GRANT)

    def release(self, at: float) -> None:
        """Release the workflow's node that is released first."""
        self._free[self._free.index(math.inf)] = at

    def _begin(self, at: float, nodes: int, seconds: tuple[float, float]) -> float:
        self._free.sort()
        begins = max(at, self._latest, self._free[nodes - 1])
        length = math.inf if seconds[0] == math.inf else self.random.uniform(*seconds)
        self._free[:nodes] = [begins + length] * nodes
        return begins


class Rule(Protocol):
    """Tells when to request nodes during a quantum step."""

    def granted(self, seconds: float) -> None:
        """A request was pending for so long."""

    def request_time(self, start: float) -> float:
        """When to request nodes for a step that starts now; infinite if never."""

    def ended(self, end: float, arrival: float) -> None:
        """The step has ended; a job arrives."""


class LastValues:
    """The first rule."""

    def __init__(self) -> None:
        self._pending = self._start = 0.0
        self._seconds = math.inf

    def granted(self, seconds: float) -> None:
        self._pending = seconds

    def request_time(self, start: float) -> float:
        self._start = start
        return max(start, start + self._seconds - self._pending - 0.5)

    def ended(self, end: float, arrival: float) -> None:
        self._seconds = end - self._start


class Forecast:
    """The rule of the package."""

    def __init__(self, urgency: float) -> None:
        self._forecast = JobForecast(urgency)

    def granted(self, seconds: float) -> None:
        self._forecast.granted(seconds)

    def request_time(self, start: float) -> float:
        self._forecast.started("step", start)
        now = start
        while now < math.inf and not self._forecast.due(now):
            changes = self._forecast.changes(now)
            now = min((at for at in changes if at > now), default=math.inf)
        return now

    def ended(self, end: float, arrival: float) -> None:
        self._forecast.ended("step", end, completed=True)
        self._forecast.job_arrived(arrival)
        self._forecast.job_ended()


def run(rule: Rule, seed: int, load: float, steps: int) -> tuple[float, float, float]:
    """Simulate a run; returns idle, waiting and all seconds for each quantum step."""
    cluster = Cluster(seed, load)
    first = now = _cluster_points(cluster, rule, 20.0, 0)
    idle = waited = 0.0
    for _ in range(steps):
        start = now + LAG
        end = start + cluster.random.uniform(*QUANTUM)
        arrival = end + LAG
        requested = rule.request_time(start)
        requested = requested if requested < end else arrival
        granted = cluster.request(requested)
        rule.granted(granted - requested)
        rule.ended(end, arrival)
        begun = max(granted, arrival)
        idle, waited = idle + begun - granted, waited + begun - arrival
        now = _cluster_points(cluster, rule, begun + SILHOUETTE + LAG, 1)
    return idle / steps, waited / steps, (now - first) / steps


def _cluster_points(cluster: Cluster, rule: Rule, now: float, held: int) -> float:
    """Run the clustering phase, of which some jobs have a node already."""
    ends = []
    for number, seconds in enumerate(CLUSTERINGS):
        granted = now
        if number >= held:
            granted = cluster.request(now)
            rule.granted(granted - now)
        ends.append(granted + seconds)
    for end in sorted(ends):
        cluster.release(end)
    return max(ends)


def _cell(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} ± {stdev(values) / math.sqrt(len(values)):.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    rules: dict[str, Callable[[], Rule]] = {"last values": LastValues}
    for urgency in URGENCIES:
        rules[f"forecast, urgency {urgency:g}"] = partial(Forecast, urgency)
    print("| load | rule | idle s | waiting s | s from step to step |")
    print("|---|---|---|---|---|")
    for load in LOADS:
        for name, make in rules.items():
            runs = [run(make(), seed, load, args.steps) for seed in range(args.runs)]
            cells = " | ".join(_cell(values) for values in zip(*runs, strict=True))
            print(f"| {load:g} | {name} | {cells} |")


if __name__ == "__main__":
    main()
