"""Circuits in OpenQASM: their parsing, check and simulation.

In the service, ``circuit`` checks circuits without a parser. In a separate process,
``openqasm`` reads a text and checks it against the device. ``programs`` prepares OpenQASM 3
programs for Qiskit's converter, with ``syntax`` (their tree), ``scopes`` (their names),
``expressions`` (their numbers), ``unrolling`` (their loops) and ``supported`` (the statements
that they may have); ``lines`` finds lines of OpenQASM 2. ``aer`` simulates, with ``noise``.
``batches`` and ``templates`` read circuits that differ only in angles once.
"""
