"""Authentication, request limits and dependencies, shared by all dialects.

Every request passes ``guard`` first, with the sender that ``auth`` identifies, by MUNGE or
the ``tokens`` of a file (what a sender may have is decided in ``queue/leases``), and within
the rates of ``buckets``. ``connections`` bounds how many there are and how long they take,
``gzipped`` the bodies that unpack, ``answers`` what slow clients leave unread. ``traffic``
and ``logs`` record requests. Bodies are read by each dialect.

Imports: net, service/domain, service/queue.
"""
