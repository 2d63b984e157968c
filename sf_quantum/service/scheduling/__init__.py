"""Scheduling: policies, pending jobs, ETAs; without I/O or its own clock.

``pending`` keeps the pending jobs, which ``work`` describes, in the order of a policy of
``policies``; ``estimator`` predicts when each job starts, from the run times of ``pace`` and
the expected jobs of ``held`` leases. ``shares`` has the shares of projects and users. The
simulation of ``sfq plan`` runs the same classes.

Imports: service/domain.
"""
