"""Slurm as the gate's batch system: the comment of a held job names the QPU."""

from __future__ import annotations

from collections.abc import Mapping

from sf_quantum.qpu.leasing.batch_jobs import BatchJob
from sf_quantum.qpu.leasing.burst import controller
from sf_quantum.qpu.leasing.gating.scheduler import Applicant, GatedJob, Scheduler


class Slurm(Scheduler):
    """The cluster that Slurm's commands on this host use.

    :raises QpuError: if the controller does not answer
    """

    title = "Slurm"

    def __init__(self) -> None:
        super().__init__(controller.cluster())

    def jobs(self) -> dict[str, GatedJob]:
        return {
            str(id_): GatedJob(
                user=row.user,
                request=row.comment,
                is_pending=row.state == "PENDING",
                is_held=row.held,
                may_start=row.may_start,
                reason=row.reason,
                submitted=row.submitted,
                by_admin=row.held_by_admin,
            )
            for id_, row in sorted(controller.gated_jobs().items())
        }

    def applicant(self, job: str) -> Applicant:
        details = controller.details(int(job))
        lease_options = {
            "slurmJob": job,
            "slurmCluster": self._cluster,
            "partition": details.partitions,
            "account": details.account,
        }
        return Applicant(details.user, details.partitions, details.qos, lease_options)

    def release(self, job: str) -> None:
        controller.slurm("scontrol", "release", job)

    def hold(self, job: str) -> None:
        # Users can release only this kind of hold.
        controller.hold(job, "uhold")

    def explain(self, job: str, text: str) -> None:
        controller.comment(job, text)


def job_of(variables: Mapping[str, str]) -> tuple[BatchJob, str] | None:
    """Read the Slurm job of an environment, and its user if that is known.

    The tasks of an array share a lease.
    """
    job = variables.get("SLURM_ARRAY_JOB_ID") or variables.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        return None
    cluster = variables.get("SLURM_CLUSTER_NAME", "")
    return BatchJob("Slurm", cluster, job), variables.get("SLURM_JOB_USER", "")
