"""Pulse sequences for neutral atoms: read, checked and simulated.

``device`` refuses what the emulated device cannot do, such as a register that is too large.
``runner`` is in the service; ``parsing``, which makes a Pulser sequence of a text, and
``simulation`` are in a separate process.
"""
