"""Pulse sequences for neutral atoms: their parsing, check and simulation.

``device`` rejects sequences that the emulated device cannot run, such as large registers.
``runner`` runs in the service; ``parsing``, which converts a text to a Pulser sequence, and
``simulation`` run in a separate process.
"""
