"""What client, service and device say to each other: typed, and without I/O.

``tasks`` has the kinds of payload, results and states of jobs, ``descriptions`` what a QPU
says of itself, ``calibrations`` what a vendor says of its calibration, ``bounds`` and
``values`` what each field may be, ``leases`` the classes and times of leases,
``usage_columns`` the columns of usage reports, ``solver_parameters`` those of annealers,
``run_times`` those of emulated QPUs.

Imports: samplers.
"""
