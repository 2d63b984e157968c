"""The trace of a QPU service's jobs, for ``sfq usage --trace``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from pydantic import BaseModel, Field, ValidationError

from sf_quantum.cli.qpu import jobs, service
from sf_quantum.files import JSON
from sf_quantum.planning.traces.qpu import QpuJob, QpuTrace
from sf_quantum.qpu.sfq.service_client import ServiceClient, read_answer
from sf_quantum.service.domain.jobs import UNREADABLE, JobClass


class _Job(BaseModel):
    """The fields of a job that are read from the service's reply, a ``JobAnswer``."""

    id: str
    user: str
    lease: str
    charged_lease: str | None = None
    job_class: JobClass = Field(alias="class")
    kind: str
    parameters: dict[str, int | None]
    state: str
    note: str | None = None
    attempt: int
    submitted: float
    started: float | None
    ended: float | None
    queued_seconds: float | None = None
    qpu_seconds: float
    seconds: float
    lost_qpu_seconds: float = 0.0

    @property
    def owner(self) -> str:
        """The lease to which the job's usage is charged."""
        return self.charged_lease or self.lease


@dataclass(frozen=True)
class _Device:
    name: str
    technology: str


@dataclass(frozen=True)
class _LeaseRow:
    """The columns that are read of a lease in the service's report of usage."""

    lease: str
    project: str | None = None
    slurm_job_id: str | None = None
    slurm_cluster: str | None = None
    slurm_account: str | None = None


@dataclass(frozen=True)
class _LeasePage:
    count: int
    rows: list[_LeaseRow]


def collect(
    client: ServiceClient,
    since: float | None,
    before: float | None,
    warn: Callable[[str], None],
) -> tuple[QpuTrace, int]:
    """Read the jobs that were submitted in a period: the user's jobs, for an admin all jobs.

    :param since: start of the period in seconds since the epoch; ``None`` sets no bound
    :param before: end of the period (exclusive) in seconds since the epoch; ``None`` sets no
        bound
    :returns: the trace of the jobs that have ended, and the number of the other jobs
    """
    answer = service.request(client, "GET", "/v1/device")
    device = read_answer(client.name, _Device, answer, "a device")
    submitted = [*_submitted(client, since, before, warn)]
    over = [job for job in submitted if job.ended is not None]
    leases = _leases(client, since)
    trace = QpuTrace(
        [_row(job, leases.get(job.owner) or _LeaseRow(job.owner)) for job in over],
        device.name,
        device.technology,
    )
    return trace, len(submitted) - len(over)


def _submitted(
    client: ServiceClient,
    since: float | None,
    before: float | None,
    warn: Callable[[str], None],
) -> Iterator[_Job]:
    """Yield the jobs that were submitted in a period."""
    for page in jobs.pages(client):
        listed = [*_readable(page, warn)]
        for job in listed:
            if (since or 0.0) <= job.submitted and (
                before is None or job.submitted < before
            ):
                yield job
        # the next page has earlier jobs
        if listed and since is not None and all(j.submitted < since for j in listed):
            return


def _readable(
    page: Sequence[dict[str, JSON]], warn: Callable[[str], None]
) -> Iterator[_Job]:
    for content in page:
        try:
            job = _Job.model_validate(content)
        except ValidationError as error:
            wrong = error.errors()[0]
            where = ".".join(map(str, wrong["loc"]))
            warn(f"job {content.get('id')}: left out: {where}: {wrong['msg']}")
            continue
        if job.note and job.note.startswith(UNREADABLE):
            warn(f"job {job.id}: left out: {job.note}")
        else:
            yield job


def _leases(client: ServiceClient, since: float | None) -> dict[str, _LeaseRow]:
    """Return the rows of the usage report for leases, by lease id."""
    by_id: dict[str, _LeaseRow] = {}
    offset, count = 0, 1
    while offset < count:
        query = {"by": "lease", "limit": str(jobs.PAGE), "offset": str(offset)}
        if since is not None:
            query["from"] = str(since)
        path = f"/v1/accounting?{urlencode(query)}"
        answer = service.request(client, "GET", path)
        page = read_answer(client.name, _LeasePage, answer, "a report")
        new = {row.lease: row for row in page.rows if row.lease not in by_id}
        # A service that ignores the offset, or whose count is wrong, would be queried without end.
        if not new:
            break
        by_id |= new
        offset, count = offset + len(page.rows), page.count
    return by_id


def _row(job: _Job, lease: _LeaseRow) -> QpuJob:
    slurm_job, cluster = lease.slurm_job_id, lease.slurm_cluster
    return QpuJob(
        job=job.id,
        user=job.user,
        project=lease.project,
        account=lease.slurm_account,
        # Slurm's ids are unique only within a cluster
        slurm_job=f"{slurm_job}@{cluster}" if cluster else slurm_job,
        lease=job.owner,
        job_class=job.job_class,
        kind=job.kind,
        shots=job.parameters.get("num_reads"),
        state=job.state,
        submitted=job.submitted,
        started=job.started,
        ended=job.ended,
        queued_seconds=job.queued_seconds,
        # If a job ended while it was pending, its last attempt has not started.
        attempts=job.attempt if job.started is not None else job.attempt - 1,
        qpu_seconds=job.qpu_seconds,
        device_seconds=job.seconds,
        lost_qpu_seconds=job.lost_qpu_seconds,
    )
