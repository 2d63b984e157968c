"""Scheduling: policies, pending jobs, ETAs; without I/O or clocks of its own.

``pending`` keeps the pending jobs in the order of a policy of ``policies``, as ``work``
describes them; ``estimator`` predicts when each starts, with the run times of ``pace`` and
what ``held`` leases will submit. ``shares`` has the shares of projects and users. The
simulation of ``sfq plan`` runs the same classes.

Imports: service/domain.
"""
