"""Synthetic traces in the Standard Workload Format."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from sf_quantum.planning.simulation.application import draw


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Jobs that arrive by a Poisson process; times are whole seconds.

    :param nodes: of the cluster
    :param most: nodes of the largest job; their logarithm is uniformly distributed
    :param seconds: mean run time, which is log-normal
    :param spread: of the run time, relative to the mean
    :param longest: run time at which the distribution is cut
    :param load: nodes that the jobs need on average, relative to those that there are
    :param margin: estimates are at most so many times the run time; drawn uniformly, and
        rounded up to whole minutes; 1: exact estimates
    """

    jobs: int
    nodes: int
    most: int
    seconds: float
    spread: float
    longest: int
    load: float
    margin: float
    seed: int


def write(trace: Synthetic) -> str:
    """Return the trace's text; equal settings give equal traces."""
    draws = random.Random(trace.seed)
    drawn = []
    for _ in range(trace.jobs):
        nodes = math.floor(math.exp(draws.uniform(0, math.log(trace.most + 1))))
        seconds = round(draw(draws, trace.seconds, trace.spread))
        seconds = min(max(1, seconds), trace.longest)
        estimate = seconds * draws.uniform(1, trace.margin)
        if trace.margin > 1:
            estimate = 60 * math.ceil(estimate / 60)
        drawn.append((nodes, seconds, round(estimate)))
    work = sum(nodes * seconds for nodes, seconds, _ in drawn)
    rate = trace.load * trace.nodes / (work / trace.jobs)
    lines = [f"; MaxJobs: {trace.jobs}", f"; MaxNodes: {trace.nodes}"]
    lines += [f"; MaxProcs: {trace.nodes}", "; Note: synthetic"]
    now = 0.0
    for number, (nodes, seconds, estimate) in enumerate(drawn, 1):
        known = {1: number, 2: math.floor(now), 4: seconds, 5: nodes}
        known |= {8: nodes, 9: estimate, 10: 1, 11: 1, 12: 1}
        lines.append(" ".join(str(known.get(column, -1)) for column in range(1, 19)))
        now += draws.expovariate(rate)
    return "\n".join(lines) + "\n"
