"""IQM's dialect: gate-based QPUs for Qiskit on IQM, Cirq on IQM and QRMI's iqm-server.

``routes`` has the current API, ``earlier_api`` the earlier requests that CUDA-Q still sends,
and ``dialect`` the dialect's class. ``circuits`` checks circuits and writes them as
OpenQASM, ``measurements`` writes their results, ``jobs`` shows the queue's jobs as IQM's.
``architecture`` describes the QPU, ``calibrations`` its calibrated operations, and
``refusals`` writes errors.
"""
