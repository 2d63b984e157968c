"""The client of a QPU that is behind the service ``sfq serve``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, listing, mapping, socket_in
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.protocol.tasks import (
    JobParameters,
    LeaseJob,
    Outcome,
    Progress,
    Task,
)
from sf_quantum.qpu import JobSize, Qpu, QpuStatus, with_qpu_name
from sf_quantum.qpu.configuration import check_keys, check_name, config_text
from sf_quantum.qpu.environment import TOKEN, required
from sf_quantum.qpu.sfq import service_device, service_variables
from sf_quantum.qpu.sfq.credentials import Credentials
from sf_quantum.qpu.sfq.problems import Problems
from sf_quantum.qpu.sfq.service_client import ServiceClient
from sf_quantum.qpu.sfq.service_jobs import ServiceJobs
from sf_quantum.qpu.sfq.service_leases import ServiceLeases

if TYPE_CHECKING:
    from dimod.core.sampler import Sampler

# the keys of a lease's options in a deployment's configuration, and in a request
LEASE_OPTIONS = {
    "class": "class",
    "project": "project",
    "expectedSeconds": "expected_seconds",
    "pattern": "pattern",
    "latestStart": "latest_start",
    "priority": "priority",
    "reservation": "reservation",
    "maxQpuSeconds": "max_qpu_seconds",
    "maxShots": "max_shots",
    "maxQubits": "max_qubits",
    "user": "user",
    "slurmJob": "slurm_job_id",
    "slurmCluster": "slurm_cluster",
    "partition": "partition",
    "account": "account",
}
KEYS = (
    *service_variables.CONFIG_KEYS.values(),
    *(key for key in LEASE_OPTIONS if key != "latestStart"),
)
# environment variables of a Slurm job, and the lease options set from them: the lease ends
# with the job, and gets the class of the job's partition
SLURM_OPTIONS = {
    "SLURM_JOB_ID": "slurm_job_id",
    "SLURM_CLUSTER_NAME": "slurm_cluster",
    "SLURM_JOB_PARTITION": "partition",
    "SLURM_JOB_ACCOUNT": "account",
}


class SfqQpu(Qpu):
    """A QPU, real or emulated, behind ``sfq serve``.

    :param lease_options: options of the leases that this client acquires; only on the driver's
        side
    :param lease: token of the acquired lease; only on the job's side
    :param job_key: key that stays the same when the job is rerun; only on the job's side
    :param purpose: purpose of the QPU jobs, if it differs from the lease's
    """

    type = "sfq"
    variables = tuple(service_variables.CONFIG_KEYS)
    kinds = service_device.KINDS
    finds_by_tag = True
    supports_priorities = True
    reservations = None

    def __init__(
        self,
        name: str,
        url: str,
        *,
        credentials: Credentials | None = None,
        lease_options: Mapping[str, JSON] | None = None,
        lease: str | None = None,
        job_key: str | None = None,
        purpose: str | None = None,
    ) -> None:
        super().__init__(name)
        self._credentials = credentials or Credentials()
        self._job_size: JobSize | None = None
        #: Client for requests that only this kind of QPU supports.
        self.service = ServiceClient(url, name, self._credentials, lease)
        self._leases = ServiceLeases(self.service, dict(lease_options or {}))
        self._jobs = ServiceJobs(self.service, purpose)
        self._problems = Problems(self._jobs, lease, job_key)
        #: See :meth:`.ServiceJobs.counters`.
        self.counters = self._jobs.counters
        #: See :meth:`.ServiceJobs.sample_sets`.
        self.sample_sets = self._jobs.sample_sets

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, JSON]) -> Self:
        """See :meth:`Qpu.from_config`.

        The keys are ``url``, in which the path of a socket may be relative to the current
        folder; ``tokenFile`` or ``munge`` if the service authenticates its clients;
        ``class``, ``project``, hints and bounds of the leases; the ``user`` of the leases,
        which only root and admins may set; ``slurmJob``, ``slurmCluster``, ``partition``
        and ``account`` of the leases' Slurm job, by default from the environment.
        """
        check_name(name, "QPU name")
        check_keys(config, KEYS)
        url = config_text(config, "url")
        if url is None:
            raise InputError(f"url: missing in the configuration of QPU {name!r}")
        return cls(
            name,
            socket_in(url),
            credentials=Credentials(config_text(config, "tokenFile"), _munge(config)),
            lease_options={
                **_renamed(os.environ, SLURM_OPTIONS),
                **_renamed(config, LEASE_OPTIONS),
            },
        )

    @property
    def identity(self) -> str:
        return self.service.url.rstrip("/")

    def status(self) -> QpuStatus:
        return service_device.status(self.service, self._job_size)

    def with_job_size(self, size: JobSize | None) -> Self:
        """See :meth:`Qpu.with_job_size`; :meth:`status` then estimates the cost of the job."""
        sized = copy(self)
        sized._job_size = size
        return sized

    def with_hints(self, hints: LeaseHints) -> Self:
        """See :meth:`Qpu.with_hints`; hints replace those of the configuration."""
        hinted = copy(self)
        options = {**self._leases.options, **hints.to_json()}
        hinted._leases = replace(self._leases, options=options)
        return hinted

    def acquire(self, job: str | None = None) -> str:
        return self.acquire_waiting(job, wait_seconds=0.0)

    def acquire_waiting(
        self, job: str | None, *, wait_seconds: float, key: str | None = None
    ) -> str:
        """See :meth:`Qpu.acquire_waiting`; the service queues the request."""
        return self._leases.acquire_waiting(job, wait_seconds, key)

    def shortfall(self, token: str) -> str | None:
        """See :meth:`Qpu.shortfall`; the service may grant a lower class than requested."""
        return self._leases.shortfall(token)

    def renew(self, token: str) -> float | None:
        return self._leases.renew(token)

    def release(self, token: str) -> None:
        self._leases.release(token)

    def release_keeping_position(self, token: str) -> None:
        self._leases.release(token, keep_position=True)

    def jobs(self, token: str) -> list[LeaseJob] | None:
        return self._leases.jobs(token)

    def environment(self, token: str) -> dict[str, str]:
        service = self.service.url, self._credentials
        return {
            **service_variables.of_service(self.name, *service),
            f"{self.name}_{TOKEN}": token,
        }

    @classmethod
    def from_environment(cls, name: str, environment: Mapping[str, str]) -> Self:
        return cls(
            name,
            required(name, environment, service_variables.URL),
            credentials=service_variables.credentials(name, environment),
            lease=required(name, environment, TOKEN),
            job_key=environment.get(f"{name}_{service_variables.JOB_KEY}"),
            purpose=environment.get(f"{name}_{service_variables.PURPOSE}"),
        )

    def sampler(self) -> Sampler:
        from sf_quantum.qpu.sampler import QpuSampler

        return QpuSampler(self)

    def solve(
        self, bqm: Mapping[str, JSON], parameters: JobParameters
    ) -> dict[str, JSON]:
        """See :meth:`Qpu.solve`; an interrupt cancels the job on the QPU.

        The idempotency key is derived from the job's key, or from the lease if there is no
        such key, and from the problem and the parameters. So a second attempt finds the QPU
        job of the first, even if the driver was killed in between. If one process solves the
        same problem again without a seed, this is another job with its own samples. If another
        process has already submitted the job, its result is used, and the samples' ``info``
        contains ``found``.
        """
        samples = self._problems.solve(dict(bqm), parameters)
        if samples.get("type") != "SampleSet":
            raise QpuError(f"{self.service.name}: its answer is not a sample set")
        return self._with_merged_info(samples, {})

    def solve_multiple(
        self,
        bqms: Sequence[Mapping[str, JSON]],
        parameters: JobParameters,
    ) -> list[dict[str, JSON]]:
        """See :meth:`Qpu.solve_multiple`; all BQMs are one job, keyed as in :meth:`solve`."""
        if not bqms:
            return []
        answer = self._problems.solve([{**bqm} for bqm in bqms], parameters)
        sets, common = listing(answer.get("sample_sets")), mapping(answer.get("info"))
        samples = [self._with_merged_info(mapping(one), common) for one in sets]
        if len(samples) != len(bqms):
            detail = f"{len(samples)} sample sets for {len(bqms)} BQMs"
            raise QpuError(f"{self.service.name}: its answer has {detail}")
        return samples

    def describe(self) -> Description:
        return service_device.description(self.service)

    def submit(self, task: Task) -> str:
        return self._jobs.submit(task)

    def find(self, tag: str) -> str | None:
        return self._jobs.find(tag)

    def poll(self, job_id: str) -> Progress:
        job = self._jobs.get(job_id)
        return Progress(job.state, job.position, job.eta_seconds)

    def result(self, job_id: str, task: Task) -> Outcome:
        job = self._jobs.get(job_id, task.tag)
        return self._outcome(self._jobs.outcome(job, task.result_bytes))

    def run_job(self, task: Task) -> Outcome:
        return self._outcome(self._jobs.run(task))

    def cancel(self, job_id: str) -> None:
        self._jobs.cancel(job_id)

    def _with_merged_info(
        self, samples: Mapping[str, JSON], common: Mapping[str, JSON]
    ) -> dict[str, JSON]:
        info = {**common, **mapping(samples.get("info"))}
        return {**samples, "info": with_qpu_name(self.name, info)}

    def _outcome(self, outcome: Outcome) -> Outcome:
        if (result := outcome.result) is None:
            return outcome
        return replace(
            outcome, result=replace(result, info=with_qpu_name(self.name, result.info))
        )


def _renamed(values: Mapping[str, JSON], names: Mapping[str, str]) -> dict[str, JSON]:
    return {name: values[key] for key, name in names.items() if key in values}


def _munge(config: Mapping[str, JSON]) -> str | bool:
    value = config.get("munge", False)
    if isinstance(value, bool) or (isinstance(value, str) and value.startswith("/")):
        return value
    raise InputError("munge: expected true, false or the path of munged's socket")
