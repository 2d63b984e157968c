"""Malleable programs: they give nodes back while they use a QPU, and get nodes afterwards.

Malleability is what the field calls a running job's change of its number of nodes (D. G.
Feitelson and L. Rudolph, 1996); R. Rocco et al., QCE 2025, use it around QPU calls. ``job``
decides what is given back and asked for, ``program_nodes`` starts processes on the nodes that
a program has, and ``slurm`` runs Slurm's commands for both.

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
    keep: int = 1, *, nodes: int | None = None, patience: float | None = None
) -> Iterator[list[str]]:
    """Give nodes of this process's Slurm job back for a block, which uses a QPU.

    At the end of the block, the program gets as many nodes as it had: others, held by a
    further job that ends with this process. After an exception it goes on with those it has
    kept. Environment variables tell ``mpiexec`` and Slurm of the nodes, see
    :doc:`/howto/malleable`. Outside Slurm, and with no node to give back, nothing is done, and a
    warning says so once.

    :param keep: how many nodes it keeps; they include this process's and the batch script's
    :param nodes: how many it is to have after the block; by default those of the job's start
    :param patience: the longest wait for them, in seconds; it then goes on with those that
        are free. ``None``: as long as it takes
    :returns: the names of the nodes, updated at the end of the block
    :raises InputError: if nodes cannot be given back as asked
    """
    job = malleable(os.environ, keep, nodes, logger.info)
    if job is None:
        yield []
        return
    give_back(job, keep)
    names = job.nodes.names
    yield names
    cancelled_with_process(job.name, lock_nodes(job.folder))
    job.grow(patience, threading.Event())
    names[:] = job.nodes.names


def malleable(
    variables: Mapping[str, str],
    keep: int,
    nodes: int | None,
    tell: Callable[[str], None],
) -> MalleableJob | None:
    """Return the Slurm job of an environment, if nodes of it can be given back.

    Otherwise a warning says why not.

    :param keep: how many nodes it keeps
    :param nodes: how many it is to have afterwards; by default those of its start
    :param tell: called with a line about each change of its nodes
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
    """Shrink a job; if Slurm refuses, its nodes stay as they are, with a warning."""
    try:
        job.shrink(keep)
    except SlurmError as error:
        logger.warning("Nodes are not given back: %s", error)


@cache
def _warn(text: str) -> None:
    logger.warning(text)
