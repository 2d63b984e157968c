"""Scheduling: policies, pending jobs, ETAs; without I/O or clocks of its own.

``pending`` keeps the pending jobs in the order of a policy of ``policies``; ``estimator`` predicts
when each starts, with the run times of ``pace``. The simulation of ``sfq plan`` runs the same
classes.

Imports: service/domain.
"""
