"""Quantum candidates: steps that run on a quantum or on a classical target.

StreamFlow calls ``filter``; ``attempts`` keeps which jobs run where, and failures;
``history`` reads run times and spending from journals; ``targets`` queries the state of QPUs
and classical targets, ``forecast`` predicts the wait for nodes; ``decision`` chooses a target
from plain values. ``remarks`` and ``overruns`` tell the user what is odd, and which budgets
were exceeded.

Imports: connectors, journal, planning, protocol, qpu.
"""
