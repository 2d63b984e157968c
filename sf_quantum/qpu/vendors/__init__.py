"""The kinds of QPU, one module per vendor, and what several of them share.

``dwave`` contains D-Wave's annealers, ``iqm`` IQM's QPUs, ``qrmi`` all QPUs that QRMI reaches.
``rest`` sends requests to REST APIs and checks the answers (``qpu.running``, or the service's
queue, repeats refused requests). ``embedding`` and ``ising`` convert problems for annealers,
and their answers back. ``variables`` names the variables of vendors' own clients.
"""
