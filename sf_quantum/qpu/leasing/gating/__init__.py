"""Leases for held jobs of a batch system: a job is released when its lease is granted.

``gate`` decides which job asks, is released, is held again or is gone, for any batch
system: ``scheduler`` has the interface of what it asks, ``slurm``, ``flux`` and ``pbs``
implement it, ``pbs_status`` reads the jobs of OpenPBS. ``job_requests`` reads what a job
asks for: QPU, bounds and hints. ``in_job`` finds the lease from within the job.
"""
