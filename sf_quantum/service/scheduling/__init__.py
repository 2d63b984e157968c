"""Scheduling: policies, pending jobs, ETAs; without I/O or clocks of its own."""
