"""Leases from the client's side: acquired, renewed, given back and accounted for."""
