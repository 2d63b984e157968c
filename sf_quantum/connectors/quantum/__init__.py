"""Locations with a QPU: each job of a step runs under a lease, and has to use it.

``location`` is the base of connectors with a QPU, and sets the job's variables. ``leased_jobs``
keeps which jobs hold leases, ``leases`` acquires and renews them off the event loop,
``job_marks`` makes the id, key and purpose by which a job's leases and QPU jobs are found again,
``qpu_jobs`` writes its QPU jobs into the journal, and ``running_steps`` tells others when
quantum steps start and end.
"""
