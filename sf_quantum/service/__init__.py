"""The QPU service: one durable queue in front of one device, spoken to over HTTP."""
