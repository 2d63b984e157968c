"""Solves problems with jobs of a service; a repeated attempt finds the job of the first."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import JobParameters
from sf_quantum.qpu.sfq.service_job import ServiceJob
from sf_quantum.qpu.sfq.service_jobs import ServiceJobs


class Problems:
    """Solves problems, each under an idempotency key.

    :param lease: lease of the jobs
    :param job_key: key that stays the same when the program is rerun; it replaces the lease
        in the idempotency keys
    """

    def __init__(
        self, jobs: ServiceJobs, lease: str | None, job_key: str | None
    ) -> None:
        self._jobs = jobs
        self._lease = lease
        self._scope = job_key or lease
        # Number of times that each problem was solved without a seed, by its key.
        self._solved: Counter[str] = Counter()

    def solve(self, problem: JSON, parameters: JobParameters) -> dict[str, JSON]:
        """Solve a problem or a list of problems; an interrupt cancels the job.

        See :meth:`sf_quantum.qpu.sfq.service_qpu.SfqQpu.solve` for the key.
        """
        name = self._jobs.service.name
        given = {key: value for key, value in parameters.items() if value is not None}
        job: dict[str, JSON] = {"problem": problem, "parameters": {**given}}
        text = json.dumps([self._scope, job], sort_keys=True, allow_nan=False)
        key = hashlib.sha256(text.encode()).hexdigest()
        times = self._solved[key]
        if self._jobs.purpose is not None:
            job["purpose"] = self._jobs.purpose
        try:
            was_found, followed = self._run(job, f"{key}.{times}" if times else key)
        except InputError:
            raise
        except BaseException:
            self._jobs.withdraw(job)
            raise
        if followed.state != "Completed":
            how = "was cancelled" if followed.state == "Cancelled" else "failed"
            about = f": {followed.remark or 'no reason given'}"
            if followed.note == "cancelled":
                about = ""
            raise QpuError(f"{name}: the job {how}{about}")
        samples = self._jobs.send("GET", followed.id, "/result", retry=True).json()
        if "seed" not in given:
            self._solved[key] += 1
            if was_found and isinstance(info := samples.get("info"), dict):
                samples["info"] = {**info, "found": True}
        return samples

    def _run(self, job: dict[str, JSON], key: str) -> tuple[bool, ServiceJob]:
        """Run a job, under a new key if an earlier attempt failed or was cancelled.

        :param job: body of the submission; afterwards it contains the key that was used
        :returns: whether the job had been submitted before, and the job
        """
        service, attempt = self._jobs.service, 1
        while True:
            job["idempotency_key"] = key if attempt == 1 else f"{key}-{attempt}"
            # The request does not wait for the job's end: if the connection were lost
            # meanwhile, it would be unknown whether the service has the job.
            response = service.send("POST", "/v1/jobs", job, retry=True)
            submitted = ServiceJob.read(
                service.name, response.json(), key=str(job["idempotency_key"])
            )
            is_new = response.status == 201
            if is_new or submitted.state not in ("Failed", "Cancelled"):
                followed = self._jobs.follow(submitted)
                # The job of an earlier attempt is cancelled when that attempt's lease ends.
                if followed.state != "Cancelled" or followed.lease in (
                    None,
                    self._lease,
                ):
                    return not is_new, followed
            attempt += 1
