"""Malleable programs: they give nodes back to Slurm while they use a QPU, and regain nodes.

A malleable job can change its number of nodes while it runs (D. G. Feitelson and L. Rudolph,
1996); R. Rocco et al., QCE 2025, use this around QPU calls. ``job`` decides which nodes are
given back and requested, ``program_nodes`` lists a program's nodes and writes the scripts
that start processes on them, and ``slurm`` runs Slurm's commands for both.

Imports: slurm.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from sf_quantum.errors import InputError
from sf_quantum.malleability.job import (
    MalleableJob,
    cancelled_with_process,
    lock_nodes,
)
from sf_quantum.malleability.slurm import SlurmError

logger = logging.getLogger(__name__)


@contextmanager
def offload(
    keep: int = 1, *, nodes: int | None = None, wait_seconds: float | None = None
) -> Iterator[list[str]]:
    """Give back nodes of this process's Slurm job during a block that uses a QPU.

    At the end of the block, the program gets further nodes until it has as many as before. A
    separate job holds these nodes, and ends with this process. After an exception in the
    block, the program continues with the nodes that it has kept. ``mpiexec`` and Slurm read
    the nodes from environment variables, see :doc:`/howto/malleable`. Outside Slurm, or
    without a node to give back, nothing is done, and a warning is logged once.

    :param keep: number of nodes to keep, including this process's and the batch script's
        nodes
    :param nodes: number of nodes after the block; by default the number at the job's start
    :param wait_seconds: longest wait for nodes, in seconds; the program then continues with the
        nodes that are free. ``None`` sets no limit
    :returns: the names of the nodes, updated at the end of the block
    :raises InputError: if the nodes cannot be given back
    """
    job = malleable(os.environ, keep, nodes, logger.info)
    if job is None:
        yield []
        return
    give_back(job, keep)
    names = job.nodes.names
    yield names
    cancelled_with_process(job.name, lock_nodes(job.folder))
    job.grow(wait_seconds, threading.Event())
    names[:] = job.nodes.names


def malleable(
    variables: Mapping[str, str],
    keep: int,
    nodes: int | None,
    tell: Callable[[str], None],
) -> MalleableJob | None:
    """Return the Slurm job that an environment is in, if the job has nodes to give back.

    Otherwise log a warning with the reason.

    :param keep: number of nodes to keep
    :param nodes: number of nodes after the QPU call; by default the number at the job's start
    :param tell: function that is called with a line of text about each change of the nodes
    """
    if keep < 1:
        raise InputError(f"keep {keep} nodes: a Slurm job has to keep at least 1")
    if not variables.get("SLURM_JOB_ID"):
        _warn("not in a Slurm job: no nodes are given back")
        return None
    try:
        job = MalleableJob(variables, tell)
    except SlurmError as error:
        _warn(f"no nodes are given back: {error}")
        return None
    if nodes is not None:
        job.wanted = nodes
    if max(job.wanted, len(job.nodes.names)) <= keep:
        _warn(f"job {job.id} has no nodes to give back, as it keeps {keep}")
        return None
    return job


def give_back(job: MalleableJob, keep: int) -> None:
    """Shrink a job to ``keep`` nodes; if Slurm refuses, log a warning."""
    try:
        job.shrink(keep)
    except SlurmError as error:
        logger.warning("Nodes are not given back: %s", error)


@cache
def _warn(text: str) -> None:
    logger.warning(text)
