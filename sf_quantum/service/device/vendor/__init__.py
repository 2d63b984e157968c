"""A real QPU, of any registered kind, as a device: its vendor's client, supervised.

``device`` is the device, ``settings`` its configuration. ``vendor_jobs`` submits, polls and
reads its jobs, ``job_table`` lists the jobs at the vendor, ``job_ids`` notes the submission of
each job id, and ``sampling`` runs the jobs of vendors whose API has none. ``lease`` holds the
vendor's lease while there is work, ``requests`` sends requests under the lease, and ``state``
tracks the state of the QPU and the time of the next query. ``costs`` estimates the cost of
jobs, ``sizes`` their size. ``answer_checks`` checks every answer of the vendor before it is
used (the client bounds the size of what it reads), and ``evidence`` keeps answers that cannot
be true. A vendor that is slow, wrong or down stops only its own jobs.
"""
