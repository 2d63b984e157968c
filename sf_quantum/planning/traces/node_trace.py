"""Recorded jobs on nodes, and the numbers of jobs that had to be left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class NodeJob(NamedTuple):
    """A job on nodes; times are in seconds, the submission from the trace's start.

    :param nodes: number of nodes by partition; a heterogeneous job gets all its nodes at
        the same time
    :param estimate: the user's estimate of the run time, at least the run time
    """

    submitted: float
    nodes: Mapping[str, int]
    seconds: float
    estimate: float


@dataclass
class NodeTrace:
    """The jobs of a trace, in the order of submission.

    :param left_out: number of jobs that were left out, by reason
    :param file: name of the file with the trace
    """

    jobs: list[NodeJob] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    file: str = ""

    def __len__(self) -> int:
        return len(self.jobs)

    def sort(self) -> None:
        """Sort the jobs by submission; jobs of the same time keep their order."""
        self.jobs.sort(key=lambda job: job.submitted)

    def starting(self, seconds: float) -> NodeTrace:
        """Return the jobs from a time on, with times counted from that time."""
        return NodeTrace(
            [
                job._replace(submitted=job.submitted - seconds)
                for job in self.jobs
                if job.submitted >= seconds
            ],
            self.left_out,
            self.file,
        )
