"""IQM's dialect: gate-based QPUs for Qiskit on IQM, Cirq on IQM and QRMI's iqm-server.

- ``routes``: the current API
- ``earlier_api``: requests of the earlier API, which CUDA-Q still sends
- ``dialect``: the dialect's class
- ``circuits``: checks circuits and writes them as OpenQASM
- ``measurements``: writes the results of circuits
- ``jobs``: shows the queue's jobs in IQM's form
- ``architecture``: describes the QPU
- ``calibrations``: describes the QPU's calibrated operations
- ``refusals``: writes refusals
"""
