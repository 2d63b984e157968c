"""IQM's dialect: gate-based QPUs for Qiskit on IQM, Cirq on IQM and QRMI's iqm-server.

``routes`` has the present API, ``earlier_api`` what CUDA-Q still asks, and ``dialect`` says
what the service needs to know of both. ``circuits`` checks circuits and writes them as
OpenQASM, ``measurements`` writes their results, ``jobs`` the queue's jobs as IQM's.
``architecture`` describes the QPU, ``calibrations`` what is calibrated, and ``refusals``
writes errors.
"""
