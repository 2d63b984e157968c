"""The kinds of QPU, one module per vendor, and what several of them share.

``dwave`` has annealers, ``iqm`` IQM's circuits, ``qrmi`` all that QRMI reaches. ``rest``
sends checked requests to REST APIs (``qpu.running``, or the service's queue,
repeats refused ones), ``embedding`` and ``ising`` bring problems to an annealer's qubits and
back, ``variables`` names the variables of vendors' own clients.
"""
