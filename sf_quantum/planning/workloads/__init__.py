"""Workloads, as files describe them.

``workload`` has what a workload file may say, ``quantities`` the bounds of its numbers, and
``reading`` reads it with the recorded loads that it names, each by the module of its format in
``planning/traces``. ``streamflow_workload`` makes a workload of a StreamFlow file.
"""
