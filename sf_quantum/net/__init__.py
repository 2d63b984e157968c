"""Transports and credentials that clients and the QPU service share."""
