"""What the service is about: jobs, leases, identities, errors. Plain data."""
