"""The job queue at work: worker, leases, availability, telemetry."""
