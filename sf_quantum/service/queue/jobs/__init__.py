"""Jobs that have not ended: their states, the worker, and each attempt on the device.

- ``job_states``: the state machine
- ``job_table``: the owner of the state machines
- ``job_control``: submits, moves and cancels jobs
- ``worker``: takes pending jobs in the policy's order, and starts a ``job_run`` for each
- ``job_run``: runs an attempt of a job, and writes how it ended
- ``attempt``: runs the unfinished part of a job, in ``slices`` if the job is long
- ``device_submission``: submits a slice once, and searches the device for a slice that was
  sent before a restart
- ``device_job``: follows a slice on the device and reads its result
- ``giving_up``: decides when a job on the device is given up
- ``attempt_control``: how other threads interrupt an attempt
- ``part_results``: the results of a job's circuits or BQMs, from the disk
"""
