"""The HTTP parts that all dialects share: authentication, limits, connections and logs.

Every request first passes ``guard``. There, ``auth`` identifies the sender, with MUNGE or with
the bearer ``tokens`` of a file, and ``buckets`` limits the rate. ``connections`` limits the
number of connections and their times, ``gzipped`` limits the size of decompressed bodies, and
``answers`` limits the responses that slow clients have not read. ``traffic`` records requests,
and ``logs`` formats the log. The dialects read the bodies, and ``queue/leases`` decides which
leases a sender may have.

Imports: net, service/domain, service/queue.
"""
