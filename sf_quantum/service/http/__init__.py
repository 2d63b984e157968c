"""Authentication, request limits and dependencies, shared by all dialects.

Every request first passes ``guard``, where ``auth`` identifies the sender, by MUNGE or by the
``tokens`` of a file, and ``buckets`` limits the rate; ``queue/leases`` decides which leases a
sender may have. ``connections`` limits the number and times of connections, ``gzipped`` the
size of decompressed bodies, ``answers`` the answers that slow clients have not read.
``traffic`` records requests, ``logs`` formats the log. Each dialect reads the bodies.

Imports: net, service/domain, service/queue.
"""
