"""Locations with a QPU: each job of a step runs under a lease, and must use the QPU.

``location`` is the base of connectors with a QPU, and sets a job's variables. ``leased_jobs``
has the jobs that hold leases, ``leases`` acquires and renews leases off the event loop,
``job_marks`` makes the id, key and purpose that identify a job's leases and QPU jobs,
``qpu_jobs`` writes QPU jobs into the journal, and ``running_steps`` notifies listeners when
quantum steps start and end.
"""
