"""Commands for users and operators of a QPU and its service.

For users, ``lease`` runs a command under leases, ``qpus`` lists QPUs, and ``jobs``, ``leases``
and ``usage`` show the jobs, leases and usage of a service; ``qpu_trace`` reads the trace of
the service's jobs. For operators, ``serve`` runs the service, ``token`` creates tokens, and
``admin`` opens, closes and changes a QPU. ``service`` has the options that select a QPU.
"""
