"""IQM's dialect: gate-based QPUs for Qiskit on IQM, Cirq on IQM and QRMI's iqm-server."""
