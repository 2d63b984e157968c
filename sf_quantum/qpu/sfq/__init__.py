"""QPUs behind this project's QPU service, and the client of its HTTP interface.

``service_qpu`` is the QPU. Its methods are in parts: ``service_leases`` acquires, renews and
releases leases and decides when the next renewal is due; ``service_jobs`` submits, follows
and cancels jobs, whose answers ``service_job`` reads; ``service_device`` requests status and
description; ``problems`` solves problems with jobs. ``service_client`` sends the requests
with ``credentials``, and repeats requests that fail or that a busy service refuses.
``service_variables`` names the variables with which a job's clients find the service and the
job's lease, and mark their QPU jobs.
"""
