"""The emulated device: run times, errors and faults of real hardware, and its simulators.

``device`` is the device, ``settings`` its configuration, ``emulated_jobs`` the jobs on it,
and ``emulation`` the run of one job: its time, faults and result. ``technologies`` defines run
times and errors of each technology, ``layout`` and ``topology`` the qubits and couplers, and
``calibrations`` and ``device_errors`` their present errors. ``runners`` selects the simulator
of a payload, which ``computation`` runs in a separate process: ``annealing_sampler`` with
``annealing_schedules`` for problems, and ``circuits``, ``atoms`` and ``photons`` for the rest.
"""
