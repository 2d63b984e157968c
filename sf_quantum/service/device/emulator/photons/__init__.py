"""Experiments in linear optics: read, checked and simulated.

``photonic`` is in the service, without Perceval; ``optics`` checks and simulates in a separate
process.
"""
