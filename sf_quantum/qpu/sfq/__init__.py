"""QPUs behind this project's QPU service, and the client of its HTTP interface.

``service_qpu`` defines the QPU, whose methods are in several modules: ``service_leases``
acquires, renews and releases leases and decides when the next renewal is due; ``service_jobs``
submits, follows and cancels jobs, which ``service_job`` reads from the service's answers;
``service_device`` requests status and description; ``problems`` solves problems with jobs.
``service_client`` sends the requests with ``credentials``, and repeats requests that fail or
that a busy service does not accept.
``service_variables`` names the variables with which a job's clients find the service and the
job's lease, and mark their QPU jobs.
"""
