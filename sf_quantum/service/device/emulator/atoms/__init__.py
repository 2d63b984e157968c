"""Pulse sequences for neutral atoms: read, checked and simulated.

``device`` says what the emulated device takes. ``runner`` is in the service; ``parsing`` and
``simulation`` are in a separate process.
"""
