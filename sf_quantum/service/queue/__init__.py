"""The job queue at work: jobs, leases, availability, upkeep."""
