"""Circuits in OpenQASM: read, checked and simulated."""
