"""Commands around a QPU and its service, for its users and operators.

For users, ``lease`` runs a command under leases, ``qpus`` lists QPUs, ``jobs``, ``leases``
and ``usage`` show the jobs, leases and usage of a service, and ``qpu_trace`` reads the trace
of its jobs. For operators, ``serve`` runs the service, ``token`` makes tokens, ``admin``
opens, closes and changes a QPU. ``service`` has the options with which they select a QPU.
"""
