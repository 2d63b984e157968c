"""Jobs that are not over: their states, the worker, and each attempt on the device.

``job_states`` is the state machine, ``job_table`` its owner, and ``job_control`` submits,
moves and cancels. The ``worker`` takes pending jobs in order; a ``job_run`` writes what
becomes of one, and its ``attempt`` runs what is left, in the ``slices`` that keep a long job
short for others: ``device_submission`` submits each once, and asks the device for those that
were sent before a restart, ``device_job`` follows it and reads its result, and ``giving_up``
says when a job at the device is given up. ``attempt_control`` interrupts an attempt,
``part_results`` joins results that are on disk.
"""
