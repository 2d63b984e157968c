"""Workloads, from workload files or StreamFlow files.

``workload`` defines the keys of a workload file, and ``quantities`` the bounds of its numbers.
``reading`` reads the file and, with the modules of ``planning/traces``, the recorded loads
that the file names. ``streamflow_workload`` makes a workload from a StreamFlow file.
"""
