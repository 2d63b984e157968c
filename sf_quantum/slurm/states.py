"""The states of Slurm's jobs: squeue(1) and sacct(1) up to 25.05."""

from __future__ import annotations

from collections.abc import Iterable

# All final states of squeue(1), "JOB STATE CODES".
ENDED = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED "
    "TIMEOUT".split()
)
# States that are not final: RUNNING with nodes, QUEUED without.
RUNNING = frozenset(
    "COMPLETING RESIZING RUNNING SIGNALING STAGE_OUT STOPPED SUSPENDED".split()
)
QUEUED = frozenset(
    "CONFIGURING EXPEDITING PENDING POWER_UP_NODE REQUEUED REQUEUE_FED REQUEUE_HOLD "
    "RESV_DEL_HOLD SPECIAL_EXIT".split()
)
#: the state of a federated job on all clusters except the cluster that runs it
REVOKED = "REVOKED"


def unknown(states: Iterable[str]) -> str:
    """Return, as text, the states that are not in Slurm's manual pages; empty if none."""
    return ", ".join(sorted({*states} - ENDED - RUNNING - QUEUED))
