"""Commands around a QPU and its service, for its users and operators.

For users, ``lease`` runs a command under leases, ``qpus`` lists QPUs, ``jobs``, ``leases``
and ``usage`` show what a service has of these, and ``qpu_trace`` writes its jobs as a trace.
For operators, ``serve`` runs the service, ``token`` makes tokens, ``admin`` opens, closes and
changes a QPU. ``service`` has the options by which all of them name a QPU.
"""
