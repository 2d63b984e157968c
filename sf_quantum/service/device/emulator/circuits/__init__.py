"""Circuits in OpenQASM: their parsing, check and simulation.

In the service, ``circuit`` checks circuits without a parser. In a separate process,
``openqasm`` reads a circuit and checks it against the device. ``programs`` prepares OpenQASM 3
programs for Qiskit's converter, with ``syntax`` (their tree), ``scopes`` (their names),
``expressions`` (their numbers), ``unrolling`` (their loops) and ``supported`` (the statements
that they may have); ``lines`` finds lines of OpenQASM 2. ``aer`` simulates circuits, with
the errors of ``noise``. ``batches`` and ``templates`` parse only one of several circuits
that differ only in their angles.
"""
