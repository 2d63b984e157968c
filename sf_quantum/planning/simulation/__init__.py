"""The model: a cluster, its QPUs and hybrid applications on a virtual clock.

``strategies`` decides which resources an application holds and when, ``application`` contains
the phases of a run. Strategies request resources from ``site``: nodes from its ``cluster``
(partitions with backfilling), leases from its ``qpu`` services (the service's policies with a
model of the device); ``site`` adds overheads. ``elastic`` simulates elastic allocations, and
``waiting`` predicts the wait in a partition, for the candidate filter.
"""
