"""The marks of a workflow job: its id, and the key and purpose of its leases and QPU jobs.

The job gets its marks as environment variables. ``qpu.environment`` makes the variables that
name a job's QPU, and ``qpu.sfq.service_variables`` the variables with the marks for
``sfq serve``.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence

from sf_quantum import journal
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.environment import JOB_ID, job_environment
from sf_quantum.qpu.sfq import service_variables


def of_lease(job: str, client: Qpu, token: str) -> dict[str, str]:
    """Return the environment variables of a job that has a lease.

    :param token: token of the lease
    """
    return {
        **job_environment([(client, token)]),
        JOB_ID: job,
        # needed for a lease that is kept for several jobs: it has the purpose of the first job
        **marks(job, [client.name]),
    }


def job_key(job: str) -> str:
    """Return a key for a job that stays the same when a stopped run is resumed."""
    run = journal.current()
    if run is None:
        return uuid.uuid4().hex
    return hashlib.sha256(f"{run.origin}\n{job}".encode()).hexdigest()


def purpose(job: str) -> str:
    """Return the purpose of a job's leases and QPU jobs: ``RUN:/step/tag`` with a journal."""
    run = journal.current()
    return job if run is None else f"{run.run}:{job}"


def marks(job: str, qpus: Sequence[str]) -> dict[str, str]:
    """Return the environment variables from which a job's clients mark its QPU jobs.

    :param qpus: names of the QPUs
    """
    return service_variables.marks(qpus, job_key(job), purpose(job))
