"""Our own QPU service as a QPU, and the client of its HTTP interface.

``service_qpu`` is the QPU; its methods are in parts: ``service_leases`` acquires, renews
and releases leases and decides when the next renewal is due, ``service_jobs`` submits,
follows and cancels jobs, which ``service_job`` reads, ``service_device`` asks for status
and description, ``problems`` solves problems by jobs. ``service_client`` sends the
requests, and repeats those that fail or that a busy service refuses (503), with
``credentials``. ``service_variables`` names the variables by which a job's clients find the
service and its lease, and mark their QPU jobs.
"""
