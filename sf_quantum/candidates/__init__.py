"""Quantum candidates: steps that run on a QPU when it pays, else on a classical target.

``filter`` is what StreamFlow calls; ``attempts`` holds what earlier attempts teach;
``targets`` asks for the current state of QPUs and classical targets; ``decision`` chooses,
from plain values; ``failures`` shortens the log of an attempt that failed.
"""
