"""The emulated device: the run times, errors and faults of real hardware, and simulators.

``device`` defines the device, ``settings`` its configuration, ``emulated_jobs`` the jobs on
it, and ``emulation`` the run of one job: its time, faults and result. ``technologies``
defines the run times and errors of each technology, ``layout`` and ``topology`` the qubits
and couplers, and ``calibrations`` and ``device_errors`` the present errors of a device.
``runners`` selects the simulator of a payload, which ``computation`` runs in a separate
process: ``annealing_sampler`` with ``annealing_schedules`` for problems, and ``circuits``,
``atoms`` and ``photons`` for the other payloads.
"""
