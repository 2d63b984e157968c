"""Leases for held jobs of a batch system, which are released once they have one.

``gate`` is independent of the batch system: ``scheduler`` has the interface of what it asks,
``slurm`` and the like implement it. ``in_job`` finds the lease from within the job.
"""
