"""Circuits in OpenQASM: read, checked and simulated.

In the service, ``circuit`` has what is known of a circuit without its parser. In a process,
``openqasm`` reads a text and checks it against the device: ``programs`` goes between OpenQASM
3's parser and Qiskit, with ``syntax`` (its tree), ``scopes`` (its names), ``expressions``
(its numbers), ``unrolling`` (its loops) and ``supported`` (what it may have); ``lines`` finds
lines of OpenQASM 2. ``aer`` simulates, with ``noise``; ``batches`` and ``templates`` read
circuits alike but for angles once.
"""
