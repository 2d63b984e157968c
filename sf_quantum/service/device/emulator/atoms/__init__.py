"""Pulse sequences for neutral atoms: read, checked and simulated."""
