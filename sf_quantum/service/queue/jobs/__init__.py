"""Jobs that are not over: their states, the worker, and each attempt on the device."""
