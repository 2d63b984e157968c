"""Quantum candidates: steps that run on a quantum or on a classical target.

StreamFlow calls ``filter``; ``attempts`` records the targets and failures of jobs;
``history`` reads run times and spending from journals; ``targets`` queries the state of QPUs
and classical targets; ``forecast`` reads Slurm's queue, from which ``planning/simulation``
predicts the wait for nodes; ``decision`` chooses a target from plain values. ``remarks``
warns the user of silent QPUs, unknown costs and contradicted hints, and ``overruns`` of
exceeded budgets.

Imports: connectors, journal, planning, protocol, qpu.
"""
