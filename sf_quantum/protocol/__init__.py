"""Types of the data that client, service and device exchange; without I/O.

``tasks`` has the kinds of payload, results and states of jobs, ``descriptions`` the
properties of QPUs, ``calibrations`` the data of a calibration, ``bounds`` the largest sizes
of answers, ``values`` the checks of single values, ``leases`` the classes and hints of
leases, ``usage_columns`` the columns of usage reports, ``solver_parameters`` the parameters
of annealers, and ``run_times`` the run times of emulated QPUs.

Imports: samplers.
"""
