"""Jobs that have not ended: their states, the worker, and each attempt on the device.

``job_states`` is the state machine, ``job_table`` its owner, and ``job_control`` submits,
moves and cancels jobs. The ``worker`` takes pending jobs in order; a ``job_run`` writes a
job's outcome, and its ``attempt`` runs the rest of the job, a long one in ``slices``.
``device_submission`` submits a slice once, and asks the device for slices that were sent
before a restart; ``device_job`` follows a slice and reads its result; ``giving_up`` decides
when a job on the device is given up. ``attempt_control`` interrupts an attempt,
``part_results`` reads results of circuits or BQMs that are on disk.
"""
