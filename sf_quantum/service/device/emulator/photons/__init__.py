"""Experiments in linear optics: their parsing, check and simulation.

``photonic`` runs in the service, without Perceval; ``optics`` checks and simulates experiments
in a separate process.
"""
