"""The model: a cluster, its QPUs and hybrid applications on a virtual clock.

``strategies`` says what an application holds and when, ``application`` has the phases of a
run. ``site`` is what strategies ask: its ``cluster`` (partitions with backfilling), its
``qpu`` (the service's policies over a model of the device) and overheads. ``elastic``
simulates elastic allocations, ``waiting`` predicts the wait in a partition.
"""
