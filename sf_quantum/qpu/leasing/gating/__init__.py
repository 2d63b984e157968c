"""Leases for held jobs of a batch system; a job is released once it has its lease.

``gate`` decides which job requests a lease, is released, is held again or has ended, for any
batch system: ``scheduler`` defines the interface, which ``slurm``, ``flux`` and ``pbs``
implement; ``pbs_status`` reads the jobs of OpenPBS. ``job_requests`` reads a job's request:
QPU, bounds and hints. ``in_job`` finds the lease from within the job.
"""
