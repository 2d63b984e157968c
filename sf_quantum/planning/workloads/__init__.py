"""Workloads, as files describe them.

``workload`` defines the keys of a workload file, and ``quantities`` the bounds of its numbers.
``reading`` reads the file, and the recorded loads that it names with the modules of
``planning/traces``. ``streamflow_workload`` makes a workload from a StreamFlow file.
"""
