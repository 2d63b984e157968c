"""What client, service and device say to each other: typed, and without I/O."""
