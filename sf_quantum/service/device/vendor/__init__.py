"""A real QPU, of any registered kind, as a device: its vendor's client, watched.

``device`` is the device, ``settings`` its configuration. ``vendor_jobs`` submits, follows
and reads its jobs, ``job_table`` has those at the vendor, ``job_ids`` the submission of
each id, ``sampling`` those of vendors without jobs. ``lease`` holds the vendor's lease
while there is work, ``requests`` are sent under it, and ``state`` says how the QPU is and
when to ask again. ``costs`` says what jobs cost, ``sizes`` how large they are. Whatever a
vendor answers is checked by ``answer_checks`` before it counts (its size by the client, as
it is read), and ``evidence`` keeps what cannot be true; a vendor that is slow, wrong or
gone stops its own jobs only.
"""
