"""Which job runs next, and when: policies, pending jobs, ETAs. Pure: no clock, no I/O."""
