"""The emulated device: run times, errors and faults of real hardware, and its simulators.

``device`` is the device, ``settings`` its configuration, ``emulated_jobs`` the jobs on it,
and ``emulation`` what becomes of one: time, faults and result. ``technologies`` has run times
and errors of each technology, ``layout`` and ``topology`` the qubits and couplers,
``calibrations`` and ``device_errors`` how good they are now. ``runners`` choose how a payload
is computed, in a process as ``computation`` asks: ``annealing_sampler`` with
``annealing_schedules`` for problems, ``circuits``, ``atoms`` and ``photons`` for the rest.
"""
