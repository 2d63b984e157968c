"""What the service drives: the device, its calibration, its errors, its simulators."""
