"""What keeps the service sound: endless tasks, readiness, telemetry, device operations."""
