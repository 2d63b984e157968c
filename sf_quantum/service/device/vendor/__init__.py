"""A real QPU, of any registered kind, as a device that uses the vendor's client.

``device`` defines the device, ``settings`` its configuration. ``vendor_jobs`` submits, polls
and reads jobs, ``job_table`` lists the jobs at the vendor, ``job_ids`` records the submission
of each job id, and ``sampling`` runs the jobs of vendors whose API has no jobs.
``lease`` holds the vendor's lease while there is work, ``requests`` sends requests under the
lease, and ``state`` tracks the state of the QPU and the time of the next query. ``costs``
estimates the cost of jobs, ``sizes`` determines their size. ``answer_checks`` checks every
reply of the vendor before the service uses it (the client limits the size of replies), and
``evidence`` keeps replies that cannot be true. A vendor that is slow, wrong or down stops only
its own jobs.
"""
