"""Leases: who may have one, requests that wait for one, and a lease's states."""
