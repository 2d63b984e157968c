"""The kinds of QPU, one module or folder per vendor, and their shared parts.

``dwave`` contains D-Wave's annealers, ``iqm`` IQM's QPUs, ``qrmi`` all QPUs that QRMI reaches.
``rest`` sends requests to REST APIs and checks the answers, but does not repeat requests
(``qpu.running`` and the service's queue do). ``embedding`` and ``ising`` convert problems for
annealers, and the answers back. ``variables`` names the variables of vendors' own clients.
"""
