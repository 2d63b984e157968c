"""The emulated device: run times, errors and faults of real hardware, and its simulators."""
