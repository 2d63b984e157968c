"""The QPU service: leases, a queue that survives being killed, and one device."""
