"""Experiments in linear optics: read, checked and simulated."""
