"""Quantum locations, samplers and an example workflow for StreamFlow."""

__version__ = "0.1.0"
